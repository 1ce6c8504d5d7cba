# SPDX-License-Identifier: Apache-2.0
"""Which port a device is on: the one named, or the only one whose VID:PID matches; never just any.

Also says why a port that is there cannot be opened: who has it, or what permission lacks.
"""

from __future__ import annotations

import contextlib
import grp
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from colibri_sdk.errors import AmbiguousDeviceError, NoDeviceError, PortBusyError, PortPermissionError

PORT_VARIABLE = "COLIBRI_PORT"


@dataclass(frozen=True)
class Port:
    """A serial port of this machine. `vid` and `pid` are None when it is not a USB device."""

    device: str
    vid: int | None
    pid: int | None
    description: str

    @property
    def usb_id(self) -> str:
        return f"{self.vid:04x}:{self.pid:04x}" if self.vid is not None and self.pid is not None else ""

    def __str__(self) -> str:
        return f"{self.device} ({', '.join(filter(None, (self.usb_id, self.description)))})"


def _comports() -> Iterable[Any]:
    from serial.tools import list_ports

    found: Iterable[Any] = list_ports.comports()
    return found


def list_serial_ports(comports: Callable[[], Iterable[Any]] = _comports) -> list[Port]:
    """All serial ports that the system reports, in the order of their names."""
    ports = (Port(p.device, p.vid, p.pid, p.description or "") for p in comports())
    return sorted(ports, key=lambda port: port.device)


def choose(
    named: str | None,
    usb_ids: Iterable[str],
    *,
    what: str = "a board",
    comports: Callable[[], Iterable[Any]] = _comports,
) -> str:
    """The port to open: `named` (from --port), else $COLIBRI_PORT, else the only port with one of `usb_ids`.

    `usb_ids` are "vid:pid" in hexadecimal. Raises NoDeviceError or AmbiguousDeviceError; both name what is there.
    """
    explicit = named or os.environ.get(PORT_VARIABLE)
    if explicit:
        return explicit
    wanted = {usb_id.lower() for usb_id in usb_ids}
    ports = list_serial_ports(comports)
    matches = [port for port in ports if port.usb_id in wanted]
    if len(matches) > 1:
        raise AmbiguousDeviceError(
            f"{len(matches)} ports could be {what}: {', '.join(map(str, matches))}",
            f"Name one: --port {matches[0].device} or --port {matches[1].device} (or set {PORT_VARIABLE}).",
            ports=[port.device for port in matches],
        )
    if matches:
        return matches[0].device
    if ports:
        raise NoDeviceError(
            f"no port looks like {what}; there are {', '.join(map(str, ports))}",
            f"If one of these is it, name it: --port {ports[0].device} (or set {PORT_VARIABLE}).",
        )
    raise NoDeviceError(
        f"no serial port found for {what}",
        "Plug the USB cable in, or name a port: --port /dev/ttyUSB0, --port socket://HOST:PORT, --port unix:PATH. "
        "For an emulated board give --board and an image.",
    )


def _same_device(descriptor: Path, wanted: int) -> bool:
    with contextlib.suppress(OSError):
        status = descriptor.stat()
        return stat.S_ISCHR(status.st_mode) and status.st_rdev == wanted
    return False


def _holders(port: str) -> Iterator[tuple[int, str]]:
    """Processes that have this character device open, as far as /proc shows them to this user."""
    try:
        wanted = Path(port).stat().st_rdev
    except OSError:
        return
    for process in Path("/proc").glob("[0-9]*"):
        if int(process.name) == os.getpid():
            continue
        try:
            descriptors = list((process / "fd").iterdir())
        except OSError:
            continue  # ended meanwhile, or another user's
        if any(_same_device(descriptor, wanted) for descriptor in descriptors):
            with contextlib.suppress(OSError):
                yield int(process.name), (process / "comm").read_text().strip()


def holder(port: str) -> str:
    """Who has the port open: "minicom (process 4711)"; empty when nobody is seen."""
    return ", ".join(f"{name} (process {pid})" for pid, name in _holders(port))


def group_of(path: Path) -> str:
    """The group that a file belongs to; its number where this machine has no name for it, as in containers."""
    gid = path.stat().st_gid
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def check_usable(port: str) -> None:
    """Raises the error that says why a local port cannot be used; returns when nothing speaks against it.

    Called before opening, because "permission denied" and "busy" come out of the serial library as one error.
    Ports with a scheme (socket://, unix:) are not looked at.
    """
    if "://" in port or port.startswith(("unix:", "tcp:", "fd:")):
        return
    path = Path(port)
    if not path.exists():
        there = ", ".join(str(p) for p in list_serial_ports()) or "none"
        raise NoDeviceError(
            f"{port} does not exist; serial ports now: {there}", "Check the cable, or name another --port."
        )
    if not os.access(path, os.R_OK | os.W_OK):
        group = group_of(path)
        raise PortPermissionError(
            f"{port} is there, but you may not open it (it belongs to group {group})",
            f"Run: sudo usermod -aG {group} $USER, then log out and in. `colibri-sdk doctor` checks it.",
            port=port,
        )
    busy = holder(port)
    if busy and stat.S_ISCHR(path.stat().st_mode) and not _is_pty(path):
        raise PortBusyError(
            f"{port} is in use by {busy}", "Close that program, then try again.", port=port, holder=busy
        )


def _is_pty(path: Path) -> bool:
    """Pseudo-terminals always have their other side's program open; that is no obstacle."""
    return path.resolve().is_relative_to("/dev/pts")
