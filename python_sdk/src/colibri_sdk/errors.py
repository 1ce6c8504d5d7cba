# SPDX-License-Identifier: Apache-2.0
"""Everything that can go wrong, as one tree of exceptions.

    ColibriError                     exit code
    ├── UsageError                   2   what was asked for makes no sense or does not exist
    ├── NoDeviceError                3   no port, or no device behind it
    ├── AmbiguousDeviceError         4   more than one device matches (ports)
    ├── PortBusyError                5   another program has the port (port, holder)
    ├── PortPermissionError          5   the port is there and may not be opened (port)
    ├── TransferError                6   bytes did not arrive
    │   ├── LinkTimeoutError             the device did not answer in time (waited_seconds)
    │   ├── LinkLostError                the line broke while a request was running
    │   ├── VerifyError                  what was read back is not what was written (where)
    │   └── FlashError                   a card or a disk cannot be written (target)
    ├── ImageError                   7   a Colibri image is wrong (status, where, got, wanted)
    ├── CheckpointError              7   a checkpoint cannot be packed (where)
    ├── DeviceError                  8   the device said no (status, where, got, wanted)
    │   └── DeviceFaultError             the device trapped (registers, symbol)
    ├── BuildError                   1   the compiler or SCons failed (log)
    ├── EmulatorError                1   QEMU or the emulated board failed (console)
    ├── ToolMissingError             1   a program of the system is not installed (tool)
    └── InternalError                1   a bug in this SDK

Each carries its data as attributes. `str(error)` is the sentence that says what is wrong, then, on a line of its
own, what to try. The exit codes are those of the command line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

EXIT_OK = 0
EXIT_INTERNAL = 1
EXIT_USAGE = 2
EXIT_NO_DEVICE = 3
EXIT_AMBIGUOUS = 4
EXIT_PORT = 5
EXIT_TRANSFER = 6
EXIT_IMAGE = 7
EXIT_DEVICE = 8
EXIT_INTERRUPTED = 130


class ColibriError(Exception):
    """Base of all errors of this package."""

    exit_code: int = EXIT_INTERNAL

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message, hint)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n{self.hint}" if self.hint else self.message


class UsageError(ColibriError):
    """A parameter is out of range, a file or a board of that name does not exist."""

    exit_code = EXIT_USAGE


class NoDeviceError(ColibriError):
    """There is no port to open, or nothing that answers as a device."""

    exit_code = EXIT_NO_DEVICE


class AmbiguousDeviceError(ColibriError):
    """Several ports match and none was named. `ports` are the candidates."""

    exit_code = EXIT_AMBIGUOUS

    def __init__(self, message: str, hint: str = "", *, ports: Sequence[str] = ()) -> None:
        super().__init__(message, hint)
        self.ports = tuple(ports)


class PortBusyError(ColibriError):
    """Another program holds the port. `holder` names it where the system tells."""

    exit_code = EXIT_PORT

    def __init__(self, message: str, hint: str = "", *, port: str = "", holder: str = "") -> None:
        super().__init__(message, hint)
        self.port = port
        self.holder = holder


class PortPermissionError(ColibriError):
    """The port exists and this user may not open it."""

    exit_code = EXIT_PORT

    def __init__(self, message: str, hint: str = "", *, port: str = "") -> None:
        super().__init__(message, hint)
        self.port = port


class TransferError(ColibriError):
    """Bytes did not get from one side to the other."""

    exit_code = EXIT_TRANSFER


class LinkTimeoutError(TransferError):
    """The device did not answer within `waited_seconds`."""

    def __init__(self, message: str, hint: str = "", *, waited_seconds: float = 0.0) -> None:
        super().__init__(message, hint)
        self.waited_seconds = waited_seconds


class LinkLostError(TransferError):
    """The line broke, or the device restarted, while a request was running; that request is lost."""


class VerifyError(TransferError):
    """What was read back differs from what was written. `where` names the place."""

    def __init__(self, message: str, hint: str = "", *, where: str = "") -> None:
        super().__init__(message, hint)
        self.where = where


class FlashError(TransferError):
    """A card, a disk or a card image cannot or must not be written. `target` is its path."""

    def __init__(self, message: str, hint: str = "", *, target: str = "") -> None:
        super().__init__(message, hint)
        self.target = target


class _StatusError(ColibriError):
    """An error with a status code of the engine (`colibri_status`) and the numbers of its detail."""

    def __init__(
        self,
        message: str,
        hint: str = "",
        *,
        status: int = 0,
        where: str = "",
        got: int = 0,
        wanted: int = 0,
    ) -> None:
        super().__init__(message, hint)
        self.status = int(status)
        self.where = where
        self.got = got
        self.wanted = wanted


class ImageError(_StatusError):
    """A Colibri image is damaged, inconsistent, or made for another version or board."""

    exit_code = EXIT_IMAGE


class CheckpointError(ColibriError):
    """A checkpoint cannot be packed. `where` names the file or the tensor at fault."""

    exit_code = EXIT_IMAGE

    def __init__(self, message: str, hint: str = "", *, where: str = "") -> None:
        super().__init__(message, hint)
        self.where = where


class DeviceError(_StatusError):
    """The device refused a request or failed at it."""

    exit_code = EXIT_DEVICE


class DeviceFaultError(DeviceError):
    """The device's processor trapped, or its watchdog fired.

    `registers` maps names to values; `symbol` is the function at the trapped address (with its offset), when the
    firmware's ELF is known.
    """

    def __init__(
        self,
        message: str,
        hint: str = "",
        *,
        status: int = 0,
        where: str = "",
        got: int = 0,
        wanted: int = 0,
        registers: Mapping[str, int] | None = None,
        symbol: str = "",
    ) -> None:
        super().__init__(message, hint, status=status, where=where, got=got, wanted=wanted)
        self.registers = dict(registers or {})
        self.symbol = symbol


class BuildError(ColibriError):
    """The build failed. `log` is what the tools printed."""

    def __init__(self, message: str, hint: str = "", *, log: str = "") -> None:
        super().__init__(message, hint)
        self.log = log


class EmulatorError(ColibriError):
    """The emulator did not start, or the emulated board does not answer. `console` is all it printed."""

    def __init__(self, message: str, hint: str = "", *, console: bytes = b"") -> None:
        super().__init__(message, hint)
        self.console = console

    def __str__(self) -> str:
        text = super().__str__()
        if self.console:
            text += "\nconsole output:\n" + self.console.decode("utf-8", "backslashreplace")
        return text


class ToolMissingError(ColibriError):
    """A program that the system should have is not installed. `tool` is its name."""

    def __init__(self, message: str, hint: str = "", *, tool: str = "") -> None:
        super().__init__(message, hint)
        self.tool = tool


class InternalError(ColibriError):
    """An invariant of this SDK does not hold."""

    def __init__(self, message: str, hint: str = "This is a bug: please report it with the output of --debug.") -> None:
        super().__init__(message, hint)
