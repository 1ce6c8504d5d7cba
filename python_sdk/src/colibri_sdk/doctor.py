# SPDX-License-Identifier: Apache-2.0
"""Is this machine ready? Each check says ok, warn or missing, and what to do about it.

Looks only; changes nothing and opens no port.
"""

from __future__ import annotations

import contextlib
import grp
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from colibri_sdk import paths, ports

OLDEST_QEMU = (7, 2)  # the oldest that the emulated boards are tested with
MACHINES = {"qemu-system-aarch64": ("raspi3b", "virt"), "qemu-system-riscv64": ("virt", "sifive_u")}
RULES_NAME = "70-colibri.rules"


class Verdict(StrEnum):
    OK = "ok"
    WARN = "warn"
    MISSING = "missing"


@dataclass(frozen=True)
class Check:
    """One line of the report. `advice` is empty when there is nothing to do."""

    name: str
    verdict: Verdict
    found: str
    advice: str = ""


@dataclass(frozen=True)
class SystemPackage:
    """A line of system-packages.txt: the package, what shows that it is there, what it is for."""

    name: str
    evidence: str
    purpose: str

    def found(self) -> str:
        """Path of the command or file that shows the package is there; empty when there is none."""
        if self.evidence.startswith("/"):
            return str(next(Path("/").glob(self.evidence[1:]), ""))
        return next((path for name in self.evidence.split(",") if (path := shutil.which(name))), "")


def system_packages() -> list[SystemPackage]:
    """What the system must have, from the file that the launcher reads too."""
    lines = (paths.repo_root() / "python_sdk" / "system-packages.txt").read_text().splitlines()
    rows = [line.split("|") for line in lines if line.strip() and not line.startswith("#")]
    return [SystemPackage(*(field.strip() for field in row)) for row in rows]


def _first_line(command: str, *arguments: str) -> str:
    """The first line a program prints; empty when it fails."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run([command, *arguments], capture_output=True, text=True, timeout=20, check=True)
        return (done.stdout or done.stderr).strip().partition("\n")[0]
    return ""


def check_python() -> Iterator[Check]:
    version = ".".join(map(str, sys.version_info[:3]))
    verdict = Verdict.OK if sys.version_info >= (3, 11) else Verdict.MISSING
    yield Check(
        "python", verdict, f"{version} ({sys.executable})", "" if verdict == Verdict.OK else "Use 3.11 or later."
    )


def check_packages(packages: Iterable[SystemPackage]) -> Iterator[Check]:
    for package in packages:
        path = package.found()
        if not path:
            advice = f"apt-get install --no-install-recommends {package.name}"
            yield Check(package.name, Verdict.MISSING, f"not installed; {package.purpose}", advice)
            continue
        version = "" if package.evidence.startswith("/") else _first_line(path, "--version")
        yield Check(package.name, Verdict.OK, version or path)


def check_qemu(which: Callable[[str], str | None] = shutil.which) -> Iterator[Check]:
    for command, machines in MACHINES.items():
        path = which(command)
        if not path:
            continue  # check_packages has said so
        version = re.search(r"version (\d+)\.(\d+)", _first_line(path, "--version"))
        found = (int(version[1]), int(version[2])) if version else (0, 0)
        if found < OLDEST_QEMU:
            wanted = ".".join(map(str, OLDEST_QEMU))
            yield Check(
                f"{command} version", Verdict.WARN, ".".join(map(str, found)), f"Tested with {wanted} and later."
            )
        listing = subprocess.run([path, "-M", "help"], capture_output=True, text=True, timeout=20, check=False).stdout
        lacking = [machine for machine in machines if not re.search(rf"^{machine}\b", listing, re.MULTILINE)]
        if lacking:
            yield Check(
                f"{command} machines", Verdict.MISSING, f"no {', '.join(lacking)}", "Install a full QEMU build."
            )
        else:
            yield Check(f"{command} machines", Verdict.OK, ", ".join(machines))


def check_ports(found: Iterable[ports.Port], groups: Iterable[int]) -> Iterator[Check]:
    listed = list(found)
    for port in listed:
        path = Path(port.device)
        if not os.access(path, os.R_OK | os.W_OK):
            advice = f"sudo usermod -aG {ports.group_of(path)} $USER, then log out and in"
            yield Check(port.device, Verdict.WARN, f"{port}: not permitted", advice)
        elif busy := ports.holder(port.device):
            yield Check(
                port.device, Verdict.WARN, f"{port}: in use by {busy}", "Close that program before using the board."
            )
        else:
            yield Check(port.device, Verdict.OK, str(port))
    if not listed:
        yield Check("serial ports", Verdict.OK, "none now; emulated boards need none")
    with contextlib.suppress(KeyError):
        dialout = grp.getgrnam("dialout")
        if os.geteuid() != 0 and dialout.gr_gid not in set(groups):
            yield Check(
                "group dialout", Verdict.WARN, "you are not in it", "sudo usermod -aG dialout $USER, then log in anew"
            )
        else:
            yield Check("group dialout", Verdict.OK, "you may open serial ports")


def udev_rules(usb_ids: Iterable[str]) -> str:
    """Rules that let the user at the machine open the boards' ports, and keep ModemManager away from them."""
    lines = ["# Ports of the boards that colibri-sdk knows: for who sits at the machine, not for ModemManager."]
    for usb_id in sorted(set(usb_ids)):
        vid, pid = usb_id.split(":")
        lines.append(
            f'SUBSYSTEM=="tty", ATTRS{{idVendor}}=="{vid}", ATTRS{{idProduct}}=="{pid}", '
            'TAG+="uaccess", ENV{ID_MM_DEVICE_IGNORE}="1", ENV{ID_MM_PORT_IGNORE}="1"'
        )
    return "\n".join(lines) + "\n"


def check_udev(directories: Iterable[Path], wanted: str) -> Iterator[Check]:
    advice = (
        f"colibri-sdk doctor --udev-rules | sudo tee /etc/udev/rules.d/{RULES_NAME} && sudo udevadm control --reload"
    )
    for directory in directories:
        rules = directory / RULES_NAME
        if rules.is_file():
            if rules.read_text() == wanted:
                yield Check("udev rules", Verdict.OK, str(rules))
            else:
                yield Check("udev rules", Verdict.WARN, f"{rules} is of another version", advice)
            return
    yield Check("udev rules", Verdict.WARN, "not installed; only real boards over USB need them", advice)


def check_modem_manager(processes: Iterable[Path]) -> Iterator[Check]:
    for process in processes:
        with contextlib.suppress(OSError):
            if (process / "comm").read_text().strip() == "ModemManager":
                advice = "Install the udev rules above, or: sudo systemctl stop ModemManager"
                yield Check(
                    "ModemManager", Verdict.WARN, "running: it sends modem commands to new serial ports", advice
                )
                return
    yield Check("ModemManager", Verdict.OK, "not running")


def check_build_dir() -> Iterator[Check]:
    directory = paths.build_dir()
    existing = next(path for path in (directory, *directory.parents) if path.exists())
    free = shutil.disk_usage(existing).free
    if not os.access(existing, os.W_OK):
        yield Check(
            "build directory", Verdict.MISSING, f"{directory}: not writable", "Set COLIBRI_BUILD_DIR to one that is."
        )
    elif free < 1 << 30:
        yield Check(
            "build directory", Verdict.WARN, f"{free >> 20} MiB free at {existing}", "Card images need about 1 GiB."
        )
    else:
        yield Check("build directory", Verdict.OK, f"{directory}, {free >> 30} GiB free")


def check_device(port: str, board: str, has_key: bool) -> Check:
    """Whom the device on a port trusts: INFO says whether its firmware has a public key."""
    from colibri_sdk.update.report import takes

    verdict = Verdict.OK if has_key else Verdict.WARN
    advice = "" if has_key else "Before it goes into the field: `colibri-sdk build --public-key`, docs/field-update.md."
    return Check(f"device {port}", verdict, f"{board}, runs {takes(has_key)}", advice)


def examine(usb_ids: Iterable[str]) -> list[Check]:
    """All checks, in the order of the report. `usb_ids`: "vid:pid" of the boards."""
    rule_places = [Path("/etc/udev/rules.d"), Path("/usr/lib/udev/rules.d"), Path("/lib/udev/rules.d")]
    return [
        *check_python(),
        *check_packages(system_packages()),
        *check_qemu(),
        *check_build_dir(),
        *check_ports(ports.list_serial_ports(), os.getgroups()),
        *check_udev(rule_places, udev_rules(usb_ids)),
        *check_modem_manager(Path("/proc").glob("[0-9]*")),
    ]
