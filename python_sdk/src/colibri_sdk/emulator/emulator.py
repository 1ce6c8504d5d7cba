# SPDX-License-Identifier: Apache-2.0
"""A running emulated board: its process, its serial line, everything it ever said on it."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Protocol

from colibri_sdk.emulator.lines import Line
from colibri_sdk.emulator.parent import end_with_parent
from colibri_sdk.emulator.relay import Relay
from colibri_sdk.errors import EmulatorError

STOP_SECONDS = 5.0
LONGEST_SOCKET_PATH = 60  # of 107 that the system allows, with room for the names in the directory


class Monitor(Protocol):
    """Control of a running emulator."""

    def execute(self, command: str, arguments: dict[str, object] | None = None) -> object: ...

    def quit(self) -> None: ...


class Emulator:
    """Made by `start`. A context manager: the process ends with it, whatever happens."""

    def __init__(self, name: str, elf: Path | None = None) -> None:
        self.name = name
        self.elf = elf  # the firmware, for the names of its functions
        temporary = tempfile.gettempdir()
        self.directory = Path(
            tempfile.mkdtemp(prefix="colibri-", dir=temporary if len(temporary) <= LONGEST_SOCKET_PATH else "/tmp")
        )
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: BinaryIO | None = None
        self._relay: Relay | None = None
        self._monitor: Monitor | None = None
        self._last_errors = ""

    def __enter__(self) -> Emulator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<emulated {self.name}, {'running' if self.running else 'ended'}>"

    # What users of an emulated board need.

    def transport(self) -> socket.socket:
        """A connected socket that is the board's serial line. What the board said before comes first.

        One at a time: a new one takes the line over. Closing it leaves the board running.
        """
        if self._relay is None:
            raise EmulatorError(f"{self.name} has no serial line: it has been stopped")
        return self._relay.attach()

    def console_output(self) -> bytes:
        """Everything that the board has sent so far."""
        return self._relay.recorded() if self._relay else b""

    def errors(self) -> str:
        """What the emulator itself printed."""
        path = self.directory / "errors"
        with contextlib.suppress(OSError):
            self._last_errors = path.read_text("utf-8", "replace").strip()
        return self._last_errors

    def read_memory(self, address: int, size: int) -> bytes:
        """`size` bytes of the emulated board's memory at a physical address, as they are at this moment."""
        if self._monitor is None:
            raise EmulatorError(f"{self.name} has no monitor: its memory cannot be read")
        dump = self.directory / "memory"
        self._monitor.execute("pmemsave", {"val": address, "size": size, "filename": str(dump)})
        return dump.read_bytes()

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def wait(self, timeout: float) -> int:
        """Waits until the emulator ends by itself (the board switched itself off); its exit code.

        EmulatorError when it is still running after `timeout` seconds.
        """
        if self._process is None:
            raise EmulatorError(f"{self.name} was never started")
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired as error:
            raise self.failure(f"{self.name} is still running after {timeout:g} s") from error

    def stop(self) -> None:
        """Ends the process and its connections. What was recorded stays readable. May be called again.

        An interruption (Ctrl-C) on the way makes it less patient, not less thorough, and is raised again at the end.
        """
        monitor, self._monitor = self._monitor, None
        try:
            self._end_process(monitor)
        finally:
            self._release()

    def _end_process(self, monitor: Monitor | None) -> None:
        """Politely, then firmly, then by force."""
        interruption: BaseException | None = None
        if monitor is not None:
            try:
                monitor.quit()
                self._wait_ended()
            except Exception:  # noqa: BLE001 - it may be gone already: what counts is that the process ends
                pass
            except BaseException as error:  # noqa: BLE001 - raised at the end
                interruption = error
        if self._process is not None:
            for end in (self._process.terminate, self._process.kill):
                try:
                    if self._process.poll() is None:
                        end()
                        self._wait_ended()
                except BaseException as error:  # noqa: BLE001 - the same
                    interruption = error
        if interruption is not None:
            raise interruption

    def _wait_ended(self) -> None:
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_SECONDS)

    def _release(self) -> None:
        if self._relay is not None:
            self._relay.close()
        self.errors()  # kept for later questions
        if self._errors is not None:
            self._errors.close()
            self._errors = None
        shutil.rmtree(self.directory, ignore_errors=True)

    # What the functions that start one need.

    def launch(self, command: Sequence[str], *, pass_fds: Sequence[int] = ()) -> None:
        """Starts the program, its own output kept for reports. From the main thread: it also ends with this program."""
        self._errors = (self.directory / "errors").open("wb")
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=self._errors,
                stderr=self._errors,
                pass_fds=pass_fds,
                start_new_session=True,  # Ctrl-C at the terminal is for the user's program, which ends this one
                preexec_fn=end_with_parent(),
            )
        except OSError as error:
            raise EmulatorError(f"{command[0]} cannot be started: {error.strerror}") from error

    def connect(self, line: Line) -> None:
        """Takes over the emulator's end of the serial line."""
        self._relay = Relay(line)

    def attach_monitor(self, monitor: Monitor) -> None:
        """QEMU's control connection: also a polite way to end it, tried first."""
        self._monitor = monitor

    def failure(self, message: str) -> EmulatorError:
        """An error with everything that helps: what the emulator printed and what the board said."""
        if self._relay is not None and self._relay.board_has_ended:
            self._wait_ended()  # its line ends a moment before the process does
        ended = self._process.poll() if self._process else None
        if ended is not None:
            message += f"; the emulator ended with exit code {ended}"
        if errors := self.errors():
            message += f": {errors}"
        return EmulatorError(
            message, "`colibri-sdk doctor` checks the emulators on this machine.", console=self.console_output()
        )
