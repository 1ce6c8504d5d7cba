# SPDX-License-Identifier: Apache-2.0
"""Lets other programs attach to an emulated board's serial line: a Unix socket, or a pseudo-terminal.

One program at a time has the line; the next one gets it where the last left it. The board runs on in between.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import tty
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from colibri_sdk.errors import UsageError

if TYPE_CHECKING:
    from colibri_sdk.emulator import Emulator

_CHUNK = 65536
# How often it is looked whether the emulator still runs; also how long a pseudo-terminal that nobody reads holds bytes
# back before they are dropped, as a serial line without a listener drops them.
_CHECK_SECONDS = 0.5


def serve_socket(emulator: Emulator, path: Path, ready: Callable[[str], None]) -> None:
    """Listens at `path` until the emulator ends; `ready` gets the port's name when programs may attach."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        try:
            listener.bind(str(path))
        except OSError as error:
            raise UsageError(f"{path} cannot be listened at: {error}", "Name another place with --socket.") from error
        try:
            listener.listen(1)
            listener.settimeout(_CHECK_SECONDS)
            ready(f"unix:{path}")
            while emulator.running:
                with contextlib.suppress(TimeoutError):
                    client, _ = listener.accept()
                    with client, emulator.transport() as line:
                        _pump(client.fileno(), line.fileno(), lambda: emulator.running)
        finally:
            path.unlink(missing_ok=True)


def serve_terminal(emulator: Emulator, ready: Callable[[str], None]) -> None:
    """Offers a pseudo-terminal until the emulator ends; `ready` gets its name."""
    main, side = os.openpty()
    try:
        # Raw: the link's bytes are no text. Our own descriptor of the other side stays open, so that the terminal
        # lives on when a program that used it goes.
        tty.setraw(side)
        with emulator.transport() as line:
            ready(os.ttyname(side))
            _pump(main, line.fileno(), lambda: emulator.running)
    finally:
        os.close(main)
        os.close(side)


def _pump(one: int, other: int, go_on: Callable[[], bool]) -> None:
    """Carries bytes both ways until one side ends or `go_on` says no."""
    ways = {one: other, other: one}
    while go_on():
        readable, _, _ = select.select(list(ways), [], [], _CHECK_SECONDS)
        for source in readable:
            try:
                data = os.read(source, _CHUNK)
                if not data:
                    return
                _write(ways[source], data)
            except OSError:
                return


def _write(target: int, data: bytes) -> None:
    while data:
        _, writable, _ = select.select([], [target], [], _CHECK_SECONDS)
        if not writable:
            return
        # In small pieces, each of which a descriptor that is ready takes without blocking.
        data = data[os.write(target, data[:512]) :]
