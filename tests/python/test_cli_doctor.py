# SPDX-License-Identifier: Apache-2.0
"""What `doctor` finds, and what it advises."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from types import SimpleNamespace

import pytest

from colibri_sdk import doctor, ports
from colibri_sdk.cli import main
from colibri_sdk.doctor import Verdict


def tool(directory: Path, name: str, text: str) -> None:
    path = directory / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def test_packages_file_is_whole() -> None:
    packages = doctor.system_packages()
    names = [package.name for package in packages]
    assert len(names) == len(set(names))
    assert {"gcc", "gcc-aarch64-linux-gnu", "gcc-riscv64-unknown-elf", "mtools"} <= set(names)
    assert all(package.evidence and package.purpose for package in packages)


def test_missing_package_says_what_for_and_how(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    tool(tmp_path, "second", "echo second version 3")
    package = doctor.SystemPackage("a-package", "first,second", "makes tea")
    (there,) = doctor.check_packages([package])
    assert (there.verdict, there.found) == (Verdict.OK, "second version 3")
    (tmp_path / "second").unlink()
    (gone,) = doctor.check_packages([package])
    assert gone.verdict == Verdict.MISSING
    assert "makes tea" in gone.found
    assert "apt-get install --no-install-recommends a-package" in gone.advice


def test_file_pattern_as_evidence(tmp_path: Path) -> None:
    package = doctor.SystemPackage("headers", f"{tmp_path}/*/x.h", "builds")
    assert package.found() == ""
    (tmp_path / "v1").mkdir()
    (tmp_path / "v1" / "x.h").touch()
    assert package.found() == str(tmp_path / "v1" / "x.h")


@pytest.mark.parametrize(
    ("version", "machines", "verdicts"),
    [
        ("7.2.0", "raspi3b  x\nvirt  y", [Verdict.OK]),
        ("9.0.1", "raspi3b  x\nvirt  y", [Verdict.OK]),
        ("6.2.0", "raspi3b  x\nvirt  y", [Verdict.WARN, Verdict.OK]),
        ("7.2.0", "virt-7.2  y", [Verdict.MISSING]),
    ],
)
def test_emulator_version_and_machines(tmp_path: Path, version: str, machines: str, verdicts: list[Verdict]) -> None:
    name = "qemu-system-aarch64"
    tool(tmp_path, name, f'[ "$1" = -M ] && printf "{machines}\\n" || echo "QEMU emulator version {version}"')
    checks = list(doctor.check_qemu(lambda command: str(tmp_path / name) if command == name else None))
    assert [check.verdict for check in checks] == verdicts


def test_port_that_is_not_permitted_or_busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "ttyUSB0"
    path.touch()
    port = ports.Port(str(path), 0x0403, 0x6001, "cable")
    monkeypatch.setattr(ports, "holder", lambda _: "minicom (process 9)")
    busy, *_ = doctor.check_ports([port], [])
    assert (busy.verdict, "minicom (process 9)" in busy.found) == (Verdict.WARN, True)
    monkeypatch.setattr(doctor.os, "access", lambda *_: False)
    denied, *_ = doctor.check_ports([port], [])
    assert denied.verdict == Verdict.WARN
    assert f"usermod -aG {path.group()}" in denied.advice

    def unknown(number: int) -> object:
        raise KeyError(number)

    monkeypatch.setattr(ports.grp, "getgrgid", unknown)  # as in a container: the group is another machine's
    nameless, *_ = doctor.check_ports([port], [])
    assert f"usermod -aG {path.stat().st_gid}" in nameless.advice


def test_user_outside_dialout_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.os, "geteuid", lambda: 1000)
    group = doctor.grp.getgrnam("dialout").gr_gid
    assert list(doctor.check_ports([], [group + 1]))[-1].verdict == Verdict.WARN
    assert list(doctor.check_ports([], [group]))[-1].verdict == Verdict.OK


def test_udev_rules_are_compared_with_the_boards(tmp_path: Path) -> None:
    wanted = doctor.udev_rules(["0403:6001", "10c4:ea60", "0403:6001"])
    assert wanted.count("SUBSYSTEM") == 2
    (none,) = doctor.check_udev([tmp_path], wanted)
    (tmp_path / doctor.RULES_NAME).write_text("# old")
    (old,) = doctor.check_udev([tmp_path], wanted)
    (tmp_path / doctor.RULES_NAME).write_text(wanted)
    (right,) = doctor.check_udev([tmp_path], wanted)
    assert [check.verdict for check in (none, old, right)] == [Verdict.WARN, Verdict.WARN, Verdict.OK]


def test_modem_manager(tmp_path: Path) -> None:
    for number, name in ((1, "init"), (2, "ModemManager")):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "comm").write_text(f"{name}\n")
    (running,) = doctor.check_modem_manager(sorted(tmp_path.iterdir()))
    assert running.verdict == Verdict.WARN
    (quiet,) = doctor.check_modem_manager([tmp_path / "1", tmp_path / "gone"])
    assert quiet.verdict == Verdict.OK


def test_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    checks = [doctor.Check("gcc", Verdict.MISSING, "not installed", "install it")]
    monkeypatch.setattr(doctor, "examine", lambda _: checks)
    assert main.run(["doctor", "--json"]) == 1
    assert json.loads(capsys.readouterr().out) == [
        {"name": "gcc", "verdict": "missing", "found": "not installed", "advice": "install it"}
    ]
    assert main.run(["doctor"]) == 1
    assert "-> install it" in capsys.readouterr().out
    checks[0] = doctor.Check("gcc", Verdict.WARN, "old")
    assert main.run(["doctor"]) == 0


def test_udev_rules_come_out_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["doctor", "--udev-rules"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("#")
    assert all(line.startswith('SUBSYSTEM=="tty"') for line in lines[1:])
    assert any('"0403"' in line for line in lines)


def test_devices_say_whether_they_have_a_key(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Played:
        def __init__(self, has_key: bool) -> None:
            self.has_key = has_key

        def __enter__(self) -> Played:
            return self

        def __exit__(self, *_: object) -> None: ...

        def info(self) -> SimpleNamespace:
            return SimpleNamespace(board="rpi3", has_key=self.has_key)

    monkeypatch.setattr(doctor, "examine", lambda _: [])
    for has_key, verdict in ((True, "ok"), (False, "warn")):
        monkeypatch.setattr("colibri_sdk.device.Device.open", lambda port, has_key=has_key: Played(has_key))
        assert main.run(["doctor", "--port", "unix:link", "--json"]) == 0
        (check,) = json.loads(capsys.readouterr().out)
        assert (check["name"], check["verdict"]) == ("device unix:link", verdict)
        assert check["found"].startswith("rpi3, runs ")
        assert ("no public key" in check["found"], "--public-key" in check["advice"]) == (not has_key, not has_key)


def test_a_device_that_does_not_answer_is_one_line_of_the_report(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The others, which may say why, were not shown."""
    other = doctor.Check("group dialout", doctor.Verdict.WARN, "you are not in it", "log in anew")
    monkeypatch.setattr(doctor, "examine", lambda _: [other])
    assert main.run(["doctor", "--port", "unix:/nowhere", "--json"]) == 1
    first, second = json.loads(capsys.readouterr().out)
    assert first["name"] == "group dialout"
    assert (second["name"], second["verdict"]) == ("device unix:/nowhere", "missing")
    assert "nothing listens" in second["found"] and second["advice"]
