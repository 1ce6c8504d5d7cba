# SPDX-License-Identifier: Apache-2.0
"""Real disks, on a made-up machine: which are refused, and that a written one is read back, its first block last."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from colibri_sdk.errors import FlashError, VerifyError
from colibri_sdk.flash import blockdev
from colibri_sdk.flash.blockdev import BLOCK, Disk, System, check, write

GB = 10**9


class Machine:
    """sysfs, mountinfo and swaps as Linux has them, with one card: /dev/sdx and its partition sdx1."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.devices = root / "devices"
        self.system = System(root / "class", root / "mountinfo", root / "swaps")
        (root / "class").mkdir()
        (root / "mountinfo").write_text("21 26 0:19 / /proc rw shared:12 - proc proc rw\n")
        (root / "swaps").write_text("Filename\tType\tSize\tUsed\tPriority\n")
        self.add("sdx", size=32 * GB, removable="1", dev="8:240")
        self.add_partition("sdx", "sdx1", dev="8:241")

    def add(self, name: str, *, size: int, removable: str, dev: str, ro: str = "0") -> Path:
        entry = self.devices / name
        (entry / "device").mkdir(parents=True)
        (entry / "holders").mkdir()
        for key, value in {"size": str(size // BLOCK), "removable": removable, "ro": ro, "dev": dev}.items():
            (entry / key).write_text(value + "\n")
        (self.system.sysfs / name).symlink_to(entry)
        return entry

    def add_partition(self, disk: str, name: str, *, dev: str) -> Path:
        entry = self.devices / disk / name
        (entry / "holders").mkdir(parents=True)
        for key, value in {"partition": "1", "dev": dev, "size": "2048"}.items():
            (entry / key).write_text(value + "\n")
        (self.system.sysfs / name).symlink_to(entry)
        return entry

    def entry(self, name: str) -> Path:
        return self.devices / name


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    (tmp_path / "machine").mkdir()
    return Machine(tmp_path / "machine")


SDX = Path("/dev/sdx")


def test_removable_card_is_accepted(machine: Machine) -> None:
    (machine.entry("sdx") / "device" / "model").write_text("SD/MMC Reader\n")
    disk = check(SDX, system=machine.system)
    assert disk == Disk(SDX, 32 * GB // BLOCK * BLOCK)
    assert disk.model == "SD/MMC Reader"


def test_card_on_an_mmc_bus_is_accepted(machine: Machine) -> None:
    entry = machine.add("mmcblk0", size=8 * GB, removable="0", dev="179:0")
    (entry / "device" / "type").write_text("SD\n")
    assert check(Path("/dev/mmcblk0"), system=machine.system).bytes == 8 * GB // BLOCK * BLOCK


@pytest.mark.parametrize(
    ("spoilt", "words", "forceable"),
    [
        (lambda m: (m.entry("sdx") / "removable").write_text("0\n"), "is not removable", True),
        (lambda m: (m.entry("sdx") / "size").write_text(f"{300 * GB // BLOCK}\n"), "has 300 GB", True),
        (lambda m: (m.entry("sdx") / "size").write_text("0\n"), "holds no medium", False),
        (lambda m: (m.entry("sdx") / "ro").write_text("1\n"), "is write-protected", False),
        (
            lambda m: (m.root / "mountinfo").write_text("36 35 8:241 / /media/card rw - vfat /dev/sdx1 rw\n"),
            "is in use: sdx1 mounted on /media/card",
            False,
        ),
        (
            lambda m: (m.root / "mountinfo").write_text("36 35 8:240 / /mnt rw - ext4 /dev/sdx rw\n"),
            "is in use: sdx mounted on /mnt",
            False,
        ),
        (
            lambda m: (m.root / "swaps").write_text("Filename Type\n/dev/sdx1 partition 1000 0 -2\n"),
            "swap on /dev/sdx1",
            False,
        ),
        (lambda m: (m.entry("sdx") / "sdx1" / "holders" / "dm-0").mkdir(), "dm-0 on sdx1", False),
    ],
    ids=["fixed", "large", "empty", "protected", "mounted-partition", "mounted", "swap", "holder"],
)
def test_dangerous_disks_are_refused(
    spoilt: Callable[[Machine], Any], words: str, forceable: bool, machine: Machine
) -> None:
    spoilt(machine)
    with pytest.raises(FlashError, match=words) as caught:
        check(SDX, system=machine.system)
    assert str(SDX) in caught.value.message
    assert caught.value.hint
    if forceable:
        check(SDX, force=True, system=machine.system)
    else:
        with pytest.raises(FlashError, match=words):
            check(SDX, force=True, system=machine.system)


def test_partition_is_refused_and_its_disk_named(machine: Machine) -> None:
    with pytest.raises(FlashError, match="is a partition") as caught:
        check(Path("/dev/sdx1"), force=True, system=machine.system)
    assert "/dev/sdx" in caught.value.hint


def test_unknown_device_is_refused(machine: Machine) -> None:
    with pytest.raises(FlashError, match="not a disk"):
        check(Path("/dev/sdy"), force=True, system=machine.system)


def test_name_by_link_is_followed(machine: Machine, tmp_path: Path) -> None:
    (machine.entry("sdx") / "removable").write_text("0\n")
    link = tmp_path / "usb-card"
    link.symlink_to("/dev/sdx")
    with pytest.raises(FlashError, match="is not removable"):
        check(link, system=machine.system)


# Writing. The "disk" is a file.


class Steps:
    """Records writes to the disk as (position, bytes) in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.writes: list[tuple[int, bytes]] = []
        original = os.pwrite

        def pwrite(descriptor: int, data: Any, position: int) -> int:
            self.writes.append((position, bytes(data)))
            return original(descriptor, data, position)

        monkeypatch.setattr(blockdev.os, "pwrite", pwrite)


@pytest.fixture
def image(tmp_path: Path) -> Path:
    path = tmp_path / "card.img"
    path.write_bytes(os.urandom(9 * (1 << 20) + 3 * BLOCK))
    return path


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    path = tmp_path / "disk"
    path.write_bytes(b"\xa5" * (12 << 20))
    return Disk(path, 12 << 20)


class Updates:
    def __init__(self) -> None:
        self.seen: list[tuple[int, int, str]] = []

    def update(self, done_bytes: int, total_bytes: int, what: str = "") -> None:
        self.seen.append((done_bytes, total_bytes, what))


def test_disk_gets_the_image_and_nothing_more(disk: Disk, image: Path) -> None:
    updates = Updates()
    write(disk, image, progress=updates)
    content = disk.path.read_bytes()
    size = image.stat().st_size
    assert content[:size] == image.read_bytes()
    assert content[size:] == b"\xa5" * (len(content) - size)
    done = [each[0] for each in updates.seen]
    assert done == sorted(done)
    assert updates.seen[-1][:2] == (2 * size, 2 * size)
    assert {"writing", "verifying"} <= {each[2] for each in updates.seen}


def test_first_block_is_cleared_first_and_written_last(
    disk: Disk, image: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = Steps(monkeypatch)
    write(disk, image)
    first = image.read_bytes()[:BLOCK]
    assert steps.writes[0] == (0, bytes(BLOCK))
    assert steps.writes[-1] == (0, first)
    assert all(position >= BLOCK for position, _ in steps.writes[1:-1])


@pytest.mark.parametrize("flipped", [BLOCK, 4 << 20, 9 * (1 << 20) + 3 * BLOCK - 1])
def test_card_that_lies_is_found_out_and_left_without_a_table(
    flipped: int, disk: Disk, image: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = os.pwrite

    def bad_cell(descriptor: int, data: Any, position: int) -> int:
        data = bytearray(data)
        if position <= flipped < position + len(data):
            data[flipped - position] ^= 0x10
        return original(descriptor, data, position)

    monkeypatch.setattr(blockdev.os, "pwrite", bad_cell)
    with pytest.raises(VerifyError, match=f"byte {flipped:,}") as caught:
        write(disk, image)
    assert str(disk.path) in caught.value.message
    assert disk.path.read_bytes()[:BLOCK] == bytes(BLOCK)


def test_card_that_is_pulled_out_has_no_table(disk: Disk, image: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = os.pwrite

    def gone(descriptor: int, data: Any, position: int) -> int:
        if position > 4 << 20:
            raise OSError(5, "Input/output error")
        return original(descriptor, data, position)

    monkeypatch.setattr(blockdev.os, "pwrite", gone)
    with pytest.raises(FlashError, match="Input/output error"):
        write(disk, image)
    assert disk.path.read_bytes()[:BLOCK] == bytes(BLOCK)


def test_too_small_card_is_refused_untouched(image: Path, tmp_path: Path) -> None:
    path = tmp_path / "small"
    path.write_bytes(b"\xa5" * (1 << 20))
    with pytest.raises(FlashError, match="are needed"):
        write(Disk(path, 1 << 20), image)
    assert path.read_bytes() == b"\xa5" * (1 << 20)


def test_missing_permission_says_what_to_do(disk: Disk, image: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(blockdev.os, "open", refuse)
    with pytest.raises(FlashError, match="Permission denied") as caught:
        write(disk, image)
    assert "sudo" in caught.value.hint


def test_reads_back_without_direct_access_too(disk: Disk, image: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = os.open

    def no_direct(path: Any, flags: int, *rest: Any) -> int:
        if flags & os.O_DIRECT:
            raise OSError(22, "Invalid argument")
        return original(path, flags, *rest)

    monkeypatch.setattr(blockdev.os, "open", no_direct)
    write(disk, image)
    assert disk.path.read_bytes()[: image.stat().st_size] == image.read_bytes()
