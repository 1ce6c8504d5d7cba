# SPDX-License-Identifier: Apache-2.0
"""Opening lines: what is absent, not permitted or busy is told apart; attaching and leaving does not reset a board."""

from __future__ import annotations

import errno
import os
import socket
import termios
from pathlib import Path

import pytest
import serial

from colibri_sdk.device import Device
from colibri_sdk.errors import LinkLostError, NoDeviceError, PortBusyError, PortPermissionError, UsageError
from colibri_sdk.link import transport
from colibri_sdk.link.transport import DescriptorTransport, PortTransport, open_transport


def test_what_is_not_there(tmp_path: Path) -> None:
    for name in ("/dev/ttyNOWHERE7", f"unix:{tmp_path / 'nothing'}", "fd:987654"):
        with pytest.raises(NoDeviceError):
            open_transport(name)
    with socket.socket() as taken:  # bound but not listening: refused at once
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(NoDeviceError, match="nothing listens"):
            open_transport(f"socket://127.0.0.1:{taken.getsockname()[1]}")
    plain = tmp_path / "file"
    plain.write_text("no port")
    with pytest.raises(NoDeviceError):
        open_transport(plain)


@pytest.mark.parametrize("host", ["x..y", "x" * 64])
def test_what_is_no_host(host: str) -> None:
    with pytest.raises(NoDeviceError, match="is not known"):
        open_transport(f"socket://{host}:1")


def test_what_is_no_speed() -> None:
    ours, theirs = os.openpty()
    for baud in (-1, 10**30):
        with pytest.raises(UsageError):
            open_transport(os.ttyname(theirs), baud=baud)
    os.close(ours)
    os.close(theirs)


@pytest.mark.parametrize(
    "name",
    [
        *("socket://nowhere", "tcp:host:", "socket://h:99999", "socket://h:\u00b2", "socket://h:" + "9" * 5000),
        *("fd:x", "fd:\u00b2", "fd:" + "9" * 20, "fd:" + "9" * 5000, "magic://port"),
    ],
)
def test_what_is_no_name(name: str) -> None:
    with pytest.raises(UsageError):
        open_transport(name)


def test_a_busy_port() -> None:
    master, slave = os.openpty()
    name = os.ttyname(slave)
    line = open_transport(name)
    try:
        with pytest.raises(PortBusyError) as raised:
            open_transport(name)
        assert raised.value.port == name
    finally:
        line.close()
    open_transport(name).close()
    os.close(master)
    os.close(slave)


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.EACCES, PortPermissionError),
        (errno.EPERM, PortPermissionError),
        (errno.EBUSY, PortBusyError),
        (errno.ENOENT, NoDeviceError),
        (errno.EIO, NoDeviceError),
    ],
)
def test_why_a_port_does_not_open(monkeypatch: pytest.MonkeyPatch, number: int, kind: type[Exception]) -> None:
    """Root may open everything, so the system's answers are played."""

    def refuse(*_: object, **__: object) -> None:
        raise serial.SerialException(number, f"could not open port: {os.strerror(number)}")

    monkeypatch.setattr(serial, "serial_for_url", refuse)
    with pytest.raises(kind, match="/dev/ttyUSB0"):
        open_transport("/dev/ttyUSB0")


def test_leaving_does_not_drop_the_control_lines() -> None:
    master, slave = os.openpty()
    open_transport(os.ttyname(slave)).close()
    assert termios.tcgetattr(slave)[2] & termios.HUPCL == 0
    os.close(master)
    os.close(slave)


def test_the_speed_is_the_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    master, slave = os.openpty()
    line = open_transport(os.ttyname(slave), baud=9600)
    assert line.bytes_per_second == 960.0
    assert termios.tcgetattr(slave)[4] == termios.B9600
    line.close()
    os.close(master)
    os.close(slave)


def test_exchange_reads_writes_and_is_woken() -> None:
    ours, theirs = socket.socketpair()
    line = transport.from_socket("pair", ours)
    assert line.exchange(b"out", 5.0) == b""  # returns as soon as something was written
    assert theirs.recv(10) == b"out"
    theirs.sendall(b"in")
    assert line.exchange(b"", 5.0) == b"in"
    line.wake()
    assert line.exchange(b"", 60.0) == b""
    theirs.close()
    with pytest.raises(LinkLostError):
        line.exchange(b"", 5.0)
    line.close()
    line.close()
    line.wake()


def test_a_full_line_keeps_what_it_could_not_write() -> None:
    ours, theirs = socket.socketpair()
    line = transport.from_socket("pair", ours)
    data = os.urandom(1 << 20)
    line.exchange(data, 0.0)
    assert 0 < line.pending < len(data)
    got = bytearray()
    while len(got) < len(data):
        got += theirs.recv(65536)
        line.exchange(b"", 0.0)
    assert got == data
    assert line.pending == 0
    theirs.close()
    line.close()


def test_pyserial_urls_without_a_descriptor() -> None:
    """loop:// gives back what is written: nobody answers as a device, and the session says so in time."""
    line = open_transport("loop://")
    assert isinstance(line, PortTransport)
    assert line.exchange(b"echo", 1.0) == b"echo"
    line.close()
    with pytest.raises(NoDeviceError, match="nothing answers"):
        Device.open("loop://", timeout=0.5)


def test_a_descriptor() -> None:
    ours, theirs = socket.socketpair()
    line = open_transport(f"fd:{ours.detach()}")
    assert isinstance(line, DescriptorTransport)
    line.exchange(b"x", 1.0)
    assert theirs.recv(4) == b"x"
    line.close()
    assert theirs.recv(4) == b""
    theirs.close()
