# SPDX-License-Identifier: Apache-2.0
"""The emulator's end of a serial line: a socket, or a pair of named pipes."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
from pathlib import Path
from typing import Protocol

PIPE_BYTES = 1 << 20  # what Linux lets every user have


class Line(Protocol):
    def receive(self, size: int) -> bytes:
        """Waits for bytes; none when the other end has gone."""

    def send(self, data: bytes) -> None:
        """Waits until all is taken. OSError when the other end has gone."""

    def end(self) -> None:
        """Wakes whoever waits in one of the other two."""

    def close(self) -> None:
        """Gives the descriptors back."""


class SocketLine:
    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection

    def receive(self, size: int) -> bytes:
        return self._socket.recv(size)

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def end(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._socket.close()


class PipeLine:
    """QEMU's chardev "pipe": PATH.in is what it reads, PATH.out what it writes. It opens both for both directions.

    Made before QEMU starts, and then held open in both directions too, so that nobody waits for anybody. `started`
    lets go of the ends that are QEMU's: from then on its end is our end of file."""

    def __init__(self, path: Path) -> None:
        self._paths = [path.with_name(path.name + suffix) for suffix in (".out", ".in")]
        for each in self._paths:
            os.mkfifo(each)
        self._reader, self._writer = (os.open(each, os.O_RDWR | os.O_CLOEXEC) for each in self._paths)
        with contextlib.suppress(PermissionError):  # the user has many pipes: a smaller one will do
            fcntl.fcntl(self._reader, fcntl.F_SETPIPE_SZ, PIPE_BYTES)

    def started(self) -> None:
        reader = os.open(self._paths[0], os.O_RDONLY | os.O_CLOEXEC)
        writer = os.open(self._paths[1], os.O_WRONLY | os.O_CLOEXEC)
        os.close(self._reader)
        os.close(self._writer)
        self._reader, self._writer = reader, writer

    def receive(self, size: int) -> bytes:
        return os.read(self._reader, size)

    def send(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._writer, view) :]

    def end(self) -> None:
        """Nothing to do: QEMU is stopped before, and then both return."""

    def close(self) -> None:
        os.close(self._reader)
        os.close(self._writer)
