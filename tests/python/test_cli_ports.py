# SPDX-License-Identifier: Apache-2.0
"""The port that is chosen, and what is said when none can be."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from colibri_sdk import ports
from colibri_sdk.errors import AmbiguousDeviceError, NoDeviceError, PortBusyError, PortPermissionError


@dataclass
class FakePort:
    device: str
    vid: int | None = None
    pid: int | None = None
    description: str | None = None


FTDI = "0403:6001"


def listing(*found: FakePort) -> Callable[[], list[FakePort]]:
    return lambda: list(found)


@pytest.fixture(autouse=True)
def _no_port_in_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ports.PORT_VARIABLE, raising=False)


def test_named_port_wins_over_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ports.PORT_VARIABLE, "/dev/from-environment")
    found = listing(FakePort("/dev/ttyUSB0", 0x0403, 0x6001))
    assert ports.choose("/dev/named", [FTDI], comports=found) == "/dev/named"
    assert ports.choose(None, [FTDI], comports=found) == "/dev/from-environment"


def test_single_match_is_taken_whatever_else_is_there() -> None:
    found = listing(
        FakePort("/dev/ttyACM0", 0x2341, 0x0043), FakePort("/dev/ttyUSB7", 0x0403, 0x6001), FakePort("/dev/ttyS0")
    )
    assert ports.choose(None, [FTDI.upper(), "10c4:ea60"], comports=found) == "/dev/ttyUSB7"


def test_two_matches_are_refused_and_both_are_named() -> None:
    found = listing(FakePort("/dev/ttyUSB1", 0x0403, 0x6001), FakePort("/dev/ttyUSB0", 0x0403, 0x6001))
    with pytest.raises(AmbiguousDeviceError) as caught:
        ports.choose(None, [FTDI], comports=found)
    assert caught.value.ports == ("/dev/ttyUSB0", "/dev/ttyUSB1")
    assert "/dev/ttyUSB0" in caught.value.message and "/dev/ttyUSB1" in caught.value.message
    assert caught.value.exit_code == 4


def test_other_ports_are_named_but_never_taken() -> None:
    with pytest.raises(NoDeviceError, match=r"/dev/ttyACM0 \(2341:0043, Uno\)") as caught:
        ports.choose(None, [FTDI], comports=listing(FakePort("/dev/ttyACM0", 0x2341, 0x0043, "Uno")))
    assert caught.value.exit_code == 3


def test_no_port_at_all() -> None:
    with pytest.raises(NoDeviceError, match="no serial port found for a rpi3"):
        ports.choose(None, [FTDI], what="a rpi3", comports=listing())


def test_port_that_does_not_exist_is_no_device(tmp_path: Path) -> None:
    with pytest.raises(NoDeviceError, match="does not exist"):
        ports.check_usable(str(tmp_path / "ttyUSB0"))


def test_port_without_permission_names_the_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    port = tmp_path / "ttyUSB0"
    port.touch()
    monkeypatch.setattr(ports.os, "access", lambda *_: False)
    with pytest.raises(PortPermissionError, match="may not open it") as caught:
        ports.check_usable(str(port))
    assert f"usermod -aG {port.group()}" in caught.value.hint
    assert caught.value.exit_code == 5


def test_busy_port_names_its_holder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "holder", lambda _: "minicom (process 4711)")
    with pytest.raises(PortBusyError, match=r"in use by minicom \(process 4711\)") as caught:
        ports.check_usable("/dev/null")  # any character device that may be opened
    assert caught.value.exit_code == 5
    assert caught.value.holder == "minicom (process 4711)"


def test_holder_finds_another_process_in_proc() -> None:
    main, side = pty.openpty()
    waiting = [sys.executable, "-c", "input()"]
    try:
        with subprocess.Popen(waiting, stdin=subprocess.PIPE, pass_fds=[side]) as child:
            assert child.stdin is not None
            assert f"(process {child.pid})" in ports.holder(os.ttyname(side))
            child.communicate(b"\n", timeout=30)
    finally:
        os.close(side)
        os.close(main)


@pytest.mark.parametrize("port", ["socket://localhost:1", "unix:/nowhere", "tcp:localhost:1", "fd:7"])
def test_ports_with_a_scheme_are_left_to_the_link(port: str) -> None:
    ports.check_usable(port)
