# SPDX-License-Identifier: Apache-2.0
"""Emulated boards: QEMU machines and the host board's process, both behind one class.

    with emulator.start(board, firmware=firmware, storage=card) as running:
        with Device.open(running) as device:
            ...

A QEMU machine is created paused, its serial line and its monitor already connected, and only then started: no byte that
the board sends at boot is lost. There are no ports and no fixed paths.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from colibri_sdk import paths
from colibri_sdk.emulator.emulator import Emulator
from colibri_sdk.emulator.lines import SocketLine
from colibri_sdk.errors import EmulatorError, UsageError

if TYPE_CHECKING:
    from colibri_sdk.boards import Board
    from colibri_sdk.build import Firmware

__all__ = ["Emulator", "start"]


def start(
    board: Board,
    *,
    firmware: Firmware | None = None,
    storage: Path | None = None,
    cpu: str | None = None,
    arguments: Sequence[str] = (),
) -> Emulator:
    """Starts `board` and returns at once: what it says is there to be read.

    `firmware`: as `build` returns it; a board that boots from its card takes it from the card instead, as the real one
    does. `storage`: the card or disk; for the host board the model's image. `cpu`: another processor model
    (board.emulator.cpus). `arguments`: more for QEMU or for colibri-host.

    EmulatorError: the program is not installed, or it ended at once; its own words are in the message.
    """
    if storage is not None and not storage.is_file():
        raise UsageError(f"{storage} does not exist", "Write it with `colibri-sdk flash` or `colibri-sdk pack`.")
    if board.emulator.kind == "process":
        if cpu:
            raise UsageError(f"{board.name} has no other processors than this machine's", "Leave --cpu out.")
        return _start_process(board, firmware, storage, arguments)
    if board.emulator.kind == "qemu":
        from colibri_sdk.emulator.qemu import start_qemu

        return start_qemu(board, firmware=firmware, storage=storage, cpu=cpu, arguments=arguments)
    raise EmulatorError(f"{board.name} has no emulator", "`colibri-sdk boards` says which boards have one.")


def _start_process(board: Board, firmware: Firmware | None, storage: Path | None, arguments: Sequence[str]) -> Emulator:
    program = firmware.elf if firmware else paths.build_dir() / "host" / board.emulator.program
    if not program.is_file():
        raise EmulatorError(f"{program} is not built", "Build it: colibri-sdk build host")
    ours, theirs = socket.socketpair()
    running = Emulator(board.name, program)
    try:
        command = [str(program), *([str(storage)] if storage else []), "--fd", str(theirs.fileno()), *arguments]
        running.launch(command, pass_fds=(theirs.fileno(),))
        running.connect(SocketLine(ours))
    except BaseException:
        ours.close()
        running.stop()
        raise
    finally:
        theirs.close()
    return running
