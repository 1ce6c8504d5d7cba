# SPDX-License-Identifier: Apache-2.0
"""Cards: what `write_card` puts on them, read back with tools that share nothing with it."""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from colibri_sdk.boards import Board, load_board
from colibri_sdk.build import Firmware
from colibri_sdk.errors import FlashError, ImageError, UsageError
from colibri_sdk.flash import blockdev, write_card
from colibri_sdk.flash.card import read_boot_file

MIB = 1 << 20
MODEL_TYPE = "da"


def tool(*command: str, data: bytes | None = None) -> bytes:
    path = os.environ["PATH"] + ":/usr/sbin:/sbin"
    program = shutil.which(command[0], path=path)
    assert program, f"{command[0]} is not installed"
    return subprocess.run([program, *command[1:]], input=data, capture_output=True, check=True, timeout=60).stdout


def sfdisk(card: Path) -> dict[str, object]:
    table = json.loads(tool("sfdisk", "-J", str(card)))["partitiontable"]
    assert table["label"] == "dos"
    assert table["unit"] == "sectors"
    return dict(table)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Not a whole image, but what the flasher looks at: its first bytes; an odd size."""
    path = tmp_path / "model.colibri"
    path.write_bytes(b"COLIBRI\x1a" + os.urandom(3 * MIB + 4093))
    return path


@pytest.fixture
def firmware(tmp_path: Path) -> Firmware:
    binary = tmp_path / "some.bin"
    binary.write_bytes(os.urandom(70_001))
    return Firmware(tmp_path / "firmware.elf", binary, {})


@pytest.fixture
def rpi3() -> Board:
    return load_board("rpi3")


def test_card_has_partitions_boot_files_and_model(rpi3: Board, firmware: Firmware, model: Path, tmp_path: Path) -> None:
    card = tmp_path / "card.img"
    write_card(rpi3, firmware=firmware, model=model, to=card, slots=1)
    boot, data = sfdisk(card)["partitions"]  # type: ignore[misc]
    assert (boot["type"], data["type"]) == ("c", MODEL_TYPE)  # FAT32 with block addresses; non-file-system data
    assert boot["bootable"] is True
    for partition in (boot, data):
        assert partition["start"] * 512 % MIB == 0
    assert boot["start"] + boot["size"] <= data["start"]
    content = card.read_bytes()
    start = data["start"] * 512
    original = model.read_bytes()
    assert content[start : start + len(original)] == original
    assert data["size"] * 512 >= len(original)
    # QEMU's card reader wants a power of two.
    assert len(content).bit_count() == 1
    assert len(content) >= start + data["size"] * 512
    at = f"{card}@@{boot['start'] * 512}"
    names = tool("mdir", "-b", "-i", at, "::").decode().split()
    assert sorted(names) == ["::/config.txt", "::/kernel8.img"]
    assert firmware.binary is not None
    assert tool("mcopy", "-n", "-i", at, "::kernel8.img", "-") == firmware.binary.read_bytes()
    config = tool("mcopy", "-n", "-i", at, "::config.txt", "-").decode()
    assert "arm_64bit=1" in config.splitlines()
    assert "kernel=kernel8.img" in config.splitlines()
    assert read_boot_file(card, "kernel8.img") == firmware.binary.read_bytes()


def test_boot_partition_is_a_sound_file_system(rpi3: Board, firmware: Firmware, model: Path, tmp_path: Path) -> None:
    card = tmp_path / "card.img"
    write_card(rpi3, firmware=firmware, model=model, to=card)
    boot = sfdisk(card)["partitions"][0]  # type: ignore[index]
    volume = tmp_path / "boot.fat"
    with card.open("rb") as file:
        file.seek(boot["start"] * 512)
        volume.write_bytes(file.read(boot["size"] * 512))
    tool("fsck.fat", "-n", str(volume))
    assert volume.read_bytes()[82:90] == b"FAT32   "


def test_card_file_is_sparse(rpi3: Board, firmware: Firmware, model: Path, tmp_path: Path) -> None:
    card = tmp_path / "card.img"
    write_card(rpi3, firmware=firmware, model=model, to=card)
    status = card.stat()
    assert status.st_size >= 64 * MIB
    assert status.st_blocks * 512 < 16 * MIB


def test_same_input_gives_the_same_partition_table_and_model(
    rpi3: Board, firmware: Firmware, model: Path, tmp_path: Path
) -> None:
    cards = [tmp_path / "a.img", tmp_path / "b.img"]
    for card in cards:
        write_card(rpi3, firmware=firmware, model=model, to=card)
    first, second = (card.read_bytes() for card in cards)
    assert first[:MIB] == second[:MIB]
    assert first[65 * MIB :] == second[65 * MIB :]


def test_boot_files_are_copied_but_no_other_kernel(
    rpi3: Board, firmware: Firmware, model: Path, tmp_path: Path
) -> None:
    files = tmp_path / "boot"
    (files / "overlays").mkdir(parents=True)
    for name in ("bootcode.bin", "start.elf", "fixup.dat", "bcm2710-rpi-3-b.dtb", "overlays/disable-bt.dtbo"):
        (files / name).write_bytes(name.encode() * 100)
    for name in ("kernel.img", "kernel8.img", "config.txt"):
        (files / name).write_bytes(b"another system's")
    card = tmp_path / "card.img"
    write_card(rpi3, firmware=firmware, model=model, to=card, boot_files=files)
    at = f"{card}@@{sfdisk(card)['partitions'][0]['start'] * 512}"  # type: ignore[index]
    names = set(tool("mdir", "-b", "-/", "-i", at, "::").decode().split())
    assert "::/kernel.img" not in names
    for name in ("bootcode.bin", "start.elf", "fixup.dat", "bcm2710-rpi-3-b.dtb", "overlays/disable-bt.dtbo"):
        assert tool("mcopy", "-n", "-i", at, f"::{name}", "-") == (files / name).read_bytes()
    assert firmware.binary is not None
    assert tool("mcopy", "-n", "-i", at, "::kernel8.img", "-") == firmware.binary.read_bytes()
    assert b"arm_64bit=1" in tool("mcopy", "-n", "-i", at, "::config.txt", "-")


def test_incomplete_boot_files_are_named(rpi3: Board, firmware: Firmware, model: Path, tmp_path: Path) -> None:
    files = tmp_path / "boot"
    files.mkdir()
    (files / "start.elf").write_bytes(b"x")
    card = tmp_path / "card.img"
    with pytest.raises(FlashError, match=r"lacks bootcode\.bin, fixup\.dat"):
        write_card(rpi3, firmware=firmware, model=model, to=card, boot_files=files)
    assert not card.exists()


@pytest.mark.parametrize(("name", "power_of_two"), [("virt-aarch64", False), ("hifive-unleashed", True)])
def test_raw_disk_is_one_model_partition(name: str, power_of_two: bool, model: Path, tmp_path: Path) -> None:
    disk = tmp_path / "disk.img"
    write_card(load_board(name), firmware=None, model=model, to=disk, slots=1)
    (data,) = sfdisk(disk)["partitions"]  # type: ignore[misc]
    assert data["type"] == MODEL_TYPE
    content = disk.read_bytes()
    start = data["start"] * 512
    assert content[start : start + model.stat().st_size] == model.read_bytes()
    assert (len(content).bit_count() == 1) == power_of_two


@pytest.mark.parametrize("name", ["rpi3", "virt-aarch64", "hifive-unleashed"])
def test_two_slots_are_a_volume(name: str, firmware: Firmware, model: Path, tmp_path: Path) -> None:
    """Slot A, at the offset that the volume's first page states, is the model; slot B is empty."""
    board, card = load_board(name), tmp_path / "card.img"
    assert write_card(board, firmware=firmware, model=model, to=card) == 2  # as nobody says otherwise
    data = sfdisk(card)["partitions"][-1]  # type: ignore[index]
    content, start, original = card.read_bytes(), data["start"] * 512, model.read_bytes()
    magic, version, slots, a, a_bytes, b, b_bytes = struct.unpack_from("<8sII4Q", content, start)
    assert (magic, version, slots) == (b"COLIVOL\x1a", 1, 2)
    assert content[start + a : start + a + len(original)] == original
    assert min(a_bytes, b_bytes) >= len(original)
    assert b >= a + a_bytes
    assert b + b_bytes <= data["size"] * 512
    assert not any(content[start + a + len(original) :])
    assert (len(content).bit_count() == 1) == board.emulator.storage_power_of_two
    assert card.stat().st_blocks * 512 < 16 * MIB


def test_other_numbers_of_slots_are_refused(rpi3: Board, firmware: Firmware, model: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="1 or 2 slots, not 3"):
        write_card(rpi3, firmware=firmware, model=model, to=tmp_path / "card.img", slots=3)


@pytest.mark.parametrize(
    ("disk_mib", "slots", "made"),
    [
        (200, None, 2),
        (72, None, 1),
        *[(200, 1, 1), (200, 2, 2), (72, 1, 1)],
        *[(72, 2, "for 2 slots"), (10, 1, "for 1 slot"), (10, None, "for 1 slot")],
    ],
)
def test_slots_of_a_real_card(
    disk_mib: int,
    slots: int | None,
    made: int | str,
    firmware: Firmware,
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A card of 72 MiB has room for the boot partition and one model. Old bytes in slot B do not matter, but for its
    first page, where an image would be recognised."""
    disk = tmp_path / "disk"
    disk.write_bytes(b"\xff" * (disk_mib * MIB))
    monkeypatch.setattr(blockdev, "check", lambda path, force: blockdev.Disk(path, disk_mib * MIB))
    monkeypatch.setattr("colibri_sdk.flash._is_device", lambda path: True)
    board, files = load_board("rpi3"), tmp_path / "boot"
    files.mkdir()
    for name in board.flash.required_boot_files:
        (files / name).write_bytes(b"x")

    def flash() -> int:
        return write_card(board, firmware=firmware, model=model, to=disk, boot_files=files, slots=slots)

    if isinstance(made, str):
        with pytest.raises(FlashError, match=made):
            flash()
        return
    assert flash() == made
    assert disk.stat().st_size == disk_mib * MIB
    if made == 2:
        content = disk.read_bytes()
        start = sfdisk(disk)["partitions"][-1]["start"] * 512  # type: ignore[index]
        b = struct.unpack_from("<Q", content, start + 32)[0]
        assert content[start + b : start + b + 4096] == bytes(4096)
        assert content[start + b + 4096 :].count(0) == 0


def test_existing_file_is_kept_unless_forced(rpi3: Board, firmware: Firmware, model: Path, tmp_path: Path) -> None:
    card = tmp_path / "card.img"
    card.write_bytes(b"precious")
    with pytest.raises(FlashError, match="exists"):
        write_card(rpi3, firmware=firmware, model=model, to=card)
    assert card.read_bytes() == b"precious"
    write_card(rpi3, firmware=firmware, model=model, to=card, force=True)
    assert sfdisk(card)["partitions"]


def test_failure_leaves_neither_half_a_card_nor_scratch(rpi3: Board, model: Path, tmp_path: Path) -> None:
    missing = Firmware(tmp_path / "f.elf", tmp_path / "not-built.bin", {})
    before = set(tmp_path.iterdir())
    with pytest.raises(FlashError):
        write_card(rpi3, firmware=missing, model=model, to=tmp_path / "card.img")
    assert set(tmp_path.iterdir()) == before


def test_what_is_no_image_is_refused(rpi3: Board, firmware: Firmware, tmp_path: Path) -> None:
    text = tmp_path / "model.colibri"
    text.write_text("not a model")
    with pytest.raises(ImageError, match="is no Colibri image"):
        write_card(rpi3, firmware=firmware, model=text, to=tmp_path / "card.img")
    with pytest.raises(UsageError, match="No such file"):
        write_card(rpi3, firmware=firmware, model=tmp_path / "nothing", to=tmp_path / "card.img")


def test_board_without_storage_says_so(model: Path, tmp_path: Path) -> None:
    with pytest.raises(FlashError, match="has no storage"):
        write_card(load_board("host"), firmware=None, model=model, to=tmp_path / "x.img")


@pytest.mark.parametrize("target", ["/dev/null", "/dev", "/dev/no-such-disk"])
def test_device_files_that_are_no_disks_are_refused(target: str, rpi3: Board, firmware: Firmware, model: Path) -> None:
    with pytest.raises(FlashError):
        write_card(rpi3, firmware=firmware, model=model, to=Path(target), force=True)
