# SPDX-License-Identifier: Apache-2.0
"""A cable that can be cut."""

from __future__ import annotations

import itertools
import socket
import threading
from pathlib import Path


class Cable:
    """Relays between a listening Unix socket and a device's; `cut` closes both ends, then it can be used again."""

    def __init__(self, outside: Path, device: Path) -> None:
        self._device = device
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(outside))
        self._listener.listen()
        self._ends: list[socket.socket] = []
        self._relays: list[threading.Thread] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)

    def __enter__(self) -> Cable:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            device = socket.socket(socket.AF_UNIX)
            device.connect(str(self._device))
            self._ends += [client, device]
            for pair in itertools.permutations((client, device)):
                self._relays.append(threading.Thread(target=self._relay, args=pair, daemon=True))
                self._relays[-1].start()

    @staticmethod
    def _relay(source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                target.sendall(data)
        except OSError:
            pass

    def cut(self) -> None:
        for end in self._ends:
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        for relay in self._relays:
            relay.join()  # or it would go on with whatever is opened next
        for end in self._ends:
            end.close()
        self._ends.clear()
        self._relays.clear()
