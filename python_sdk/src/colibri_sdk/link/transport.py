# SPDX-License-Identifier: Apache-2.0
"""What carries the link's bytes: serial ports, sockets, pseudo-terminals, descriptors, pipes of a process.

Opening says clearly why it fails: NoDeviceError (not there), PortPermissionError, PortBusyError. Attaching does not
reset a board: the control lines are left as the system sets them, and are not dropped on closing.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import select
import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

from colibri_sdk.errors import LinkLostError, NoDeviceError, PortBusyError, PortPermissionError, UsageError

DEFAULT_BAUD = 115200
_READ_BYTES = 65536
_POLL_SECONDS = 0.02  # of ports that cannot be waited for together with a wake-up
_NUMBER = re.compile("[0-9]{1,9}")  # of a TCP port or a descriptor


class Transport(ABC):
    """A line. One thread calls exchange; wake and close may come from another."""

    name: str
    bytes_per_second: float | None = None  # None: not known

    @abstractmethod
    def exchange(self, out: bytes, timeout: float) -> bytes:
        """Takes `out` for writing, then waits until something was read, or written, or woken, or `timeout` seconds
        have passed. Returns what was read. Raises LinkLostError when the line is broken."""

    @property
    @abstractmethod
    def pending(self) -> int:
        """Bytes taken and not written yet."""

    @abstractmethod
    def wake(self) -> None:
        """Makes exchange return at once."""

    @abstractmethod
    def close(self) -> None:
        """Closes the line. May be called twice."""


class DescriptorTransport(Transport):
    """Two file descriptors (or one twice) that select(2) can wait for."""

    def __init__(
        self,
        name: str,
        reader: int,
        writer: int,
        *,
        close: Callable[[], None],
        bytes_per_second: float | None = None,
    ) -> None:
        self.name = name
        self.bytes_per_second = bytes_per_second
        self._reader = reader
        self._writer = writer
        self._close = close
        self._out = bytearray()
        self._wake_reader, self._wake_writer = os.pipe()
        self._lock = threading.RLock()  # wake may be called by a destructor, at any moment
        self._closed = False
        for descriptor in (reader, writer, self._wake_reader, self._wake_writer):
            os.set_blocking(descriptor, False)

    @property
    def pending(self) -> int:
        return len(self._out)

    def exchange(self, out: bytes, timeout: float) -> bytes:
        self._out += out
        try:
            waited_for = [self._writer] if self._out else []
            readable, writable, _ = select.select([self._reader, self._wake_reader], waited_for, [], max(timeout, 0.0))
            if self._wake_reader in readable:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake_reader, 4096)
            if writable:
                with contextlib.suppress(BlockingIOError):
                    del self._out[: os.write(self._writer, self._out)]
            if self._reader not in readable:
                return b""
            data = os.read(self._reader, _READ_BYTES)
        except BlockingIOError:
            return b""
        except (OSError, ValueError) as error:  # ValueError: closed meanwhile
            raise LinkLostError(f"{self.name}: the line broke: {error}", "Check the cable and the device.") from error
        if not data:
            raise LinkLostError(f"{self.name}: the other side closed the line", "Check the cable and the device.")
        return data

    def wake(self) -> None:
        with self._lock, contextlib.suppress(BlockingIOError):
            if not self._closed:
                os.write(self._wake_writer, b"!")

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
            os.close(self._wake_reader)
            os.close(self._wake_writer)
        self._close()


class PortTransport(Transport):
    """A pyserial port without a descriptor: rfc2217://, spy://, loop:// ..."""

    def __init__(self, name: str, port: Any) -> None:
        self.name = name
        self._port = port

    @property
    def pending(self) -> int:
        return 0

    def exchange(self, out: bytes, timeout: float) -> bytes:
        import serial

        try:
            if out:
                self._port.write(out)
            self._port.timeout = min(max(timeout, 0.0), _POLL_SECONDS)
            return bytes(self._port.read(max(1, min(self._port.in_waiting, _READ_BYTES))))
        except (serial.SerialException, OSError, TypeError, AttributeError) as error:  # the last two: closed meanwhile
            raise LinkLostError(f"{self.name}: the line broke: {error}", "Check the cable and the device.") from error

    def wake(self) -> None:
        """The next poll is at most 20 ms away."""

    def close(self) -> None:
        self._port.close()


def open_transport(target: str | Path, *, baud: int | None = None, timeout: float = 10.0) -> Transport:
    """Opens a line by its name.

    `target`: a serial port or pseudo-terminal (path), "unix:PATH", "socket://HOST:PORT" or "tcp:HOST:PORT", "fd:N", or
    any other URL that pyserial knows. `baud` counts for serial ports only; 115200 unless given.
    """
    name = str(target)
    if name.startswith("unix:"):
        return _open_unix(name, timeout)
    if name.startswith(("socket://", "tcp:")):
        return _open_tcp(name, timeout)
    if name.startswith("fd:"):
        return _open_descriptor(name)
    return _open_serial(name, baud or DEFAULT_BAUD, timeout)


def from_socket(name: str, connection: socket.socket) -> Transport:
    """A connected stream socket; the transport owns it from now on."""
    return DescriptorTransport(name, connection.fileno(), connection.fileno(), close=connection.close)


def _connect(name: str, family: socket.AddressFamily, address: Any, timeout: float) -> Transport:
    connection = socket.socket(family, socket.SOCK_STREAM)
    try:
        connection.settimeout(timeout)
        connection.connect(address)
    except PermissionError as error:
        connection.close()
        raise PortPermissionError(f"{name}: {error.strerror}", "Check the socket's permissions.", port=name) from error
    except OSError as error:
        connection.close()
        raise NoDeviceError(
            f"nothing listens at {name}: {error.strerror or error}", "Start the device or the emulator first."
        ) from error
    if family != socket.AF_UNIX:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return from_socket(name, connection)


def _open_unix(name: str, timeout: float) -> Transport:
    return _connect(name, socket.AF_UNIX, name.removeprefix("unix:"), timeout)


def _open_tcp(name: str, timeout: float) -> Transport:
    host, colon, port = name.removeprefix("socket://").removeprefix("tcp:").rpartition(":")
    if not colon or not _NUMBER.fullmatch(port) or int(port) > 65535:
        raise UsageError(f"{name} is no address", "Write it as socket://HOST:PORT.")
    host = host.strip("[]")
    try:
        family, _, _, _, address = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:  # the latter: a name that is none, with a part of no or 64 characters, say
        raise NoDeviceError(f"{name}: the host {host} is not known: {error}", "Check the name.") from error
    return _connect(name, family, address, timeout)


def _open_descriptor(name: str) -> Transport:
    number = name.removeprefix("fd:")
    if not _NUMBER.fullmatch(number):
        raise UsageError(f"{name} is no descriptor", "Write it as fd:N.")
    descriptor = int(number)
    try:
        os.fstat(descriptor)
    except OSError as error:
        raise NoDeviceError(f"{name} is not open", "Pass an open descriptor to this process.") from error
    return DescriptorTransport(name, descriptor, descriptor, close=lambda: os.close(descriptor))


def _open_serial(name: str, baud: int, timeout: float) -> Transport:
    import serial

    try:
        options: dict[str, Any] = {"baudrate": baud, "timeout": 0, "write_timeout": timeout}
        if "://" not in name:
            options["exclusive"] = True  # two programs on one line would take each other's bytes
        port = serial.serial_for_url(name, **options)
    except serial.SerialException as error:
        raise _port_error(name, error) from error
    except (ValueError, OverflowError) as error:
        raise UsageError(f"{name}: {error}", "Check the port's name and the baud rate.") from error
    try:
        descriptor = port.fileno()
    except (AttributeError, OSError):
        return PortTransport(name, port)
    _keep_control_lines(descriptor)
    return DescriptorTransport(name, descriptor, descriptor, close=port.close, bytes_per_second=baud / 10)


def _keep_control_lines(descriptor: int) -> None:
    """Closing must not drop DTR: many boards wire it to reset."""
    import termios

    with contextlib.suppress(termios.error):
        settings = termios.tcgetattr(descriptor)
        settings[2] &= ~termios.HUPCL
        termios.tcsetattr(descriptor, termios.TCSANOW, settings)


def _port_error(name: str, error: OSError) -> NoDeviceError | PortBusyError | PortPermissionError:
    if error.errno in (errno.EACCES, errno.EPERM):
        return PortPermissionError(
            f"{name} is there, but you may not open it",
            "Add yourself to its group (ls -l shows it), then log in again. `colibri-sdk doctor` checks it.",
            port=name,
        )
    if error.errno in (errno.EBUSY, errno.EAGAIN) or "exclusively lock" in str(error):
        from colibri_sdk.ports import holder

        by = holder(name)
        return PortBusyError(
            f"{name} is in use{' by ' + by if by else ''}", "Close the other program first.", port=name, holder=by
        )
    if error.errno in (errno.ENOENT, errno.ENODEV, errno.ENXIO):
        return NoDeviceError(f"{name} does not exist", "Check the cable, or name another port.")
    return NoDeviceError(f"{name} cannot be opened: {error}", "Check that it is a serial port.")
