# SPDX-License-Identifier: Apache-2.0
"""Starts a board in QEMU as its file says."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
import threading
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from colibri_sdk.emulator.emulator import Emulator
from colibri_sdk.emulator.lines import Line, PipeLine, SocketLine
from colibri_sdk.errors import ToolMissingError, UsageError

if TYPE_CHECKING:
    from qemu.qmp import QMPClient

    from colibri_sdk.boards import Board
    from colibri_sdk.build import Firmware

# From starting the program to a machine that is ready to run; QEMU takes 0.1 s on an idle machine.
READY_SECONDS = 60.0
POLL_SECONDS = 0.05
QUIT_SECONDS = 5.0  # a machine that does not answer is ended by a signal


def start_qemu(
    board: Board,
    *,
    firmware: Firmware | None,
    storage: Path | None,
    cpu: str | None,
    arguments: Sequence[str],
) -> Emulator:
    program = shutil.which(board.emulator.program)
    if program is None:
        raise ToolMissingError(
            f"{board.emulator.program} is not installed",
            "`colibri-sdk doctor` says which packages this machine needs.",
            tool=board.emulator.program,
        )
    running = Emulator(board.name, firmware.elf if firmware else None)
    try:
        boot = _program(board, firmware, storage, running.directory)
        with _Monitor() as monitor, _serial(board, running) as serial:
            monitor_path = running.directory / "monitor"
            monitor.listen(monitor_path)
            running.launch(
                [
                    program,
                    *machine_arguments(board, boot, storage, cpu),
                    *("-S", "-display", "none", "-monitor", "none", "-parallel", "none"),
                    *("-chardev", f"{board.emulator.channel},id=link,path={serial.path}"),
                    *[word for _ in range(board.emulator.console) for word in ("-serial", "null")],
                    *("-serial", "chardev:link"),
                    *("-chardev", f"socket,id=monitor,path={monitor_path}", "-mon", "chardev=monitor,mode=control"),
                    *arguments,
                ]
            )
            monitor.accept(running)
            running.connect(serial.take(running))
            running.attach_monitor(monitor.keep())
            monitor.execute("cont")
    except BaseException:
        running.stop()
        raise
    return running


def machine_arguments(board: Board, program: Path, storage: Path | None, cpu: str | None) -> list[str]:
    """QEMU's arguments for the machine, its processor, memory, firmware and storage."""
    settings = board.emulator
    words = ["-M", settings.machine, "-m", f"{settings.memory_bytes >> 20}M", *settings.arguments]
    if cpu or settings.cpus:
        words += ["-cpu", cpu or settings.cpus[0]]
    words += [settings.firmware_option, str(program)]
    if storage is not None:
        file = str(storage).replace(",", ",,")
        if settings.storage == "sd":
            words += ["-drive", f"if=sd,format=raw,file={file}"]
        elif settings.storage == "virtio":
            words += ["-drive", f"if=none,id=model,format=raw,file={file}", "-device", "virtio-blk-device,drive=model"]
        else:
            raise UsageError(f"{board.name} has no storage in its emulator", "Leave the card out.")
    return words


def _program(board: Board, firmware: Firmware | None, storage: Path | None, directory: Path) -> Path:
    """What the machine boots: from the card when the board does so, else the firmware."""
    name = board.flash.firmware_file
    if storage is not None and board.flash.boots:
        from colibri_sdk.flash.card import read_boot_file

        program = directory / name
        program.write_bytes(read_boot_file(storage, name))
        return program
    if firmware is None:
        raise UsageError(f"{board.name} needs firmware", f"Build it: colibri-sdk build {board.name}")
    program = firmware.elf if board.emulator.firmware == "elf" else firmware.binary or firmware.elf
    if not program.is_file():
        raise UsageError(f"{program} is not built", f"Build it: colibri-sdk build {board.name}")
    return program


class _Socket:
    """A listening socket, to which QEMU connects while it starts."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._listener.bind(str(path))
            self._listener.listen(1)
        except BaseException:
            self._listener.close()
            raise

    def take(self, running: Emulator) -> Line:
        self._listener.settimeout(READY_SECONDS)
        try:
            connection, _ = self._listener.accept()
        except TimeoutError:
            raise running.failure(
                f"QEMU did not open {running.name}'s serial line within {READY_SECONDS:g} s"
            ) from None
        connection.setblocking(True)
        return SocketLine(connection)

    def close(self) -> None:
        self._listener.close()


class _Pipe:
    """Named pipes, which QEMU opens while it starts."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._line: PipeLine | None = PipeLine(path)

    def take(self, running: Emulator) -> Line:
        assert self._line is not None
        line, self._line = self._line, None
        line.started()
        return line

    def close(self) -> None:
        if self._line is not None:
            self._line.close()


def _serial(board: Board, running: Emulator) -> contextlib.closing[_Socket | _Pipe]:
    path = running.directory / "serial"
    return contextlib.closing(_Pipe(path) if board.emulator.channel == "pipe" else _Socket(path))


class _Monitor:
    """QEMU's control connection. The client library is asynchronous: it gets a thread with an event loop."""

    def __init__(self) -> None:
        from qemu.qmp import QMPClient

        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._client: QMPClient = QMPClient("colibri")
        self._kept = False

    def __enter__(self) -> _Monitor:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._kept:
            self._close()

    def listen(self, path: Path) -> None:
        self._run(self._client.start_server(str(path)))

    def accept(self, running: Emulator) -> None:
        """Waits for QEMU to connect and to greet."""
        future = asyncio.run_coroutine_threadsafe(self._client.accept(), self._loop)
        for _ in range(int(READY_SECONDS / POLL_SECONDS)):
            with contextlib.suppress(TimeoutError):
                future.result(POLL_SECONDS)
                return
            if not running.running:
                future.cancel()
                raise running.failure(f"{running.name} did not start in QEMU")
        future.cancel()
        raise running.failure(f"QEMU's monitor for {running.name} did not answer within {READY_SECONDS:g} s")

    def execute(self, command: str, arguments: dict[str, object] | None = None) -> object:
        return self._run(self._client.execute(command, arguments))

    def keep(self) -> _Monitor:
        """Stays connected after the `with` block, until quit() ends QEMU and the connection."""
        self._kept = True
        return self

    def quit(self) -> None:
        try:
            self._run(self._client.execute("quit"), QUIT_SECONDS)
        finally:
            self._close()

    def _run(self, coroutine: Coroutine[Any, Any, object], limit: float = READY_SECONDS) -> object:
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result(limit)
        except BaseException:  # nobody waits for it any more: out of time, or interrupted
            future.cancel()
            raise

    def _close(self) -> None:
        with contextlib.suppress(Exception):
            asyncio.run_coroutine_threadsafe(self._client.disconnect(), self._loop).result(5.0)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5.0)
        if not self._thread.is_alive():
            self._loop.close()
