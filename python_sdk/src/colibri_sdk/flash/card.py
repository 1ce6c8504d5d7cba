# SPDX-License-Identifier: Apache-2.0
"""The content of a card or disk, as a sparse file.

    sd-card     MBR | FAT32 boot partition: firmware, config.txt, the board's boot files | model partition
    raw-disk    MBR | model partition

Partitions start at multiples of 1 MiB. The model partition has type 0xDA ("non-file-system data"). With two slots it
holds a volume (volume.py) whose slot A has the image, so that a new model can be tried beside the old one; with one it
holds the image from its first byte. mkfs.fat and mtools make the file system, in the file, without root.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from colibri_sdk.errors import FlashError, ToolMissingError, UsageError
from colibri_sdk.flash import volume
from colibri_sdk.image.kinds import require_image
from colibri_sdk.image.layout import PAGE

if TYPE_CHECKING:
    from colibri_sdk.boards import Board
    from colibri_sdk.build import Firmware

BLOCK = 512
MIB = 1 << 20
# The smallest FAT32 file system has 65,525 clusters; with clusters of one block that is 32 MiB. Room for two firmware
# versions and the Raspberry Pi's boot files.
BOOT_BYTES = 64 * MIB
FAT32_LBA = 0x0C
MODEL_TYPE = 0xDA
VOLUME_ID = "C011B121"  # fixed, so that the same input gives the same card
VOLUME_LABEL = "COLIBRI"


@dataclass(frozen=True)
class Partition:
    """One entry of the partition table; bytes from the start of the disk."""

    type: int
    start: int
    bytes: int
    bootable: bool = False

    @property
    def end(self) -> int:
        return self.start + self.bytes


def make_card(
    board: Board,
    *,
    firmware: Firmware | None,
    model: Path,
    to: Path,
    boot_files: Path | None,
    for_emulator: bool,
    slots: int,
) -> None:
    """Writes the card's content to the file `to`.

    `for_emulator` gives it the size of a card that the emulator accepts. Otherwise it ends where what follows may hold
    anything: most of an empty slot B."""
    model_bytes = model_size(model)
    partitions = plan(board, model_bytes, slots)
    size = partitions[-1].end
    if for_emulator and board.emulator.storage_power_of_two:
        size = 1 << (size - 1).bit_length()
    with to.open("wb") as file:
        file.truncate(size)
        file.write(partition_table(partitions))
        start = partitions[-1].start
        if slots == volume.SLOTS:
            two = volume.plan(model_bytes)
            file.seek(start)
            file.write(volume.make_head(two))
            if not for_emulator:
                file.truncate(start + two.slot_offsets[1] + PAGE)  # with slot B's first page: zeros, no image
            start += two.slot_offsets[0]
        file.seek(start)
        with model.open("rb") as source:
            shutil.copyfileobj(source, file, MIB)
    if board.flash.boots:
        _make_boot_partition(board, firmware, to, partitions[0], boot_files)


def plan(board: Board, model_bytes: int, slots: int) -> list[Partition]:
    """The partitions of the board's card, in order; the last is the model's."""
    if slots not in (1, volume.SLOTS):
        raise UsageError(f"a card has 1 or {volume.SLOTS} slots, not {slots}", "With 2 a new model can be tried.")
    partitions = []
    start = MIB
    if board.flash.boots:
        partitions.append(Partition(FAT32_LBA, start, BOOT_BYTES, bootable=True))
        start += BOOT_BYTES
    content = model_bytes if slots == 1 else volume.plan(model_bytes).bytes
    partitions.append(Partition(MODEL_TYPE, start, -(-content // MIB) * MIB))
    return partitions


def partition_table(partitions: Sequence[Partition]) -> bytes:
    """The master boot record: no boot code, up to four entries, addresses in blocks."""
    record = bytearray(BLOCK)
    struct.pack_into("<I", record, 440, int(VOLUME_ID, 16))
    for index, partition in enumerate(partitions):
        struct.pack_into(
            "<B3sB3sII",
            record,
            446 + 16 * index,
            0x80 if partition.bootable else 0,
            b"\xfe\xff\xff",  # cylinder, head, sector: "see the block address"
            partition.type,
            b"\xfe\xff\xff",
            partition.start // BLOCK,
            partition.bytes // BLOCK,
        )
    record[510:] = b"\x55\xaa"
    return bytes(record)


def read_partitions(card: Path) -> list[Partition]:
    """The partition table of a card's file; FlashError when it has none."""
    with card.open("rb") as file:
        record = file.read(BLOCK)
    if len(record) != BLOCK or record[510:] != b"\x55\xaa":
        raise FlashError(f"{card} has no partition table", "Write it with `colibri-sdk flash`.", target=str(card))
    found = []
    for index in range(4):
        flag, _, kind, _, start, blocks = struct.unpack_from("<B3sB3sII", record, 446 + 16 * index)
        if kind:
            found.append(Partition(kind, start * BLOCK, blocks * BLOCK, bootable=bool(flag & 0x80)))
    return found


def read_boot_file(card: Path, name: str) -> bytes:
    """A file of the boot partition, as the board's boot ROM would find it."""
    boot = next((p for p in read_partitions(card) if p.type == FAT32_LBA), None)
    if boot is None:
        raise FlashError(f"{card} has no boot partition", "Write it with `colibri-sdk flash`.", target=str(card))
    return _run("mcopy", "-n", "-i", f"{card}@@{boot.start}", f"::{name}", "-", target=card)


def model_size(model: Path) -> int:
    """Bytes of an image. UsageError or ImageError when it cannot be read or is none."""
    require_image(model)
    return model.stat().st_size


def _make_boot_partition(
    board: Board, firmware: Firmware | None, card: Path, boot: Partition, boot_files: Path | None
) -> None:
    if firmware is None or firmware.binary is None:
        raise FlashError(
            f"{board.name} boots its firmware from the card, and there is none",
            f"Build it: colibri-sdk build {board.name}",
            target=str(card),
        )
    # Geometry as a partition's, not a floppy's; -h: blocks before the partition; sizes for mkfs.fat are in KiB.
    _run(
        *("mkfs.fat", "-F", "32", "-s", "1", "-i", VOLUME_ID, "-n", VOLUME_LABEL, "--invariant"),
        *("--offset", str(boot.start // BLOCK), "-h", str(boot.start // BLOCK), str(card), str(boot.bytes // 1024)),
        target=card,
    )
    volume = f"{card}@@{boot.start}"
    if boot_files is not None:
        _copy_boot_files(board, volume, boot_files, card)
    _copy(volume, firmware.binary, board.flash.firmware_file, card)
    if board.flash.config_txt:
        _run("mcopy", "-o", "-i", volume, "-", "::config.txt", target=card, data=board.flash.config_txt.encode())


def _copy_boot_files(board: Board, volume: str, boot_files: Path, card: Path) -> None:
    missing = [name for name in board.flash.required_boot_files if not (boot_files / name).is_file()]
    if missing:
        raise FlashError(
            f"{boot_files} lacks {', '.join(missing)}",
            "It must be the boot/ directory of a Raspberry Pi firmware distribution.",
            target=str(card),
        )
    ours = {board.flash.firmware_file, "config.txt"}
    # Kernels of other systems in that directory would only fill the card.
    for path in sorted(boot_files.iterdir()):
        if path.name in ours or path.name.startswith("kernel"):
            continue
        if path.is_dir():
            _run("mcopy", "-s", "-o", "-i", volume, str(path), f"::{path.name}", target=card)
        else:
            _copy(volume, path, path.name, card)


def _copy(volume: str, source: Path, name: str, card: Path) -> None:
    _run("mcopy", "-o", "-i", volume, str(source), f"::{name}", target=card)


def _run(*command: str, target: Path, data: bytes | None = None) -> bytes:
    program = shutil.which(command[0]) or shutil.which(command[0], path="/usr/sbin:/sbin")
    if program is None:
        raise ToolMissingError(
            f"{command[0]} is not installed", "Install mtools and dosfstools (apt: the same names).", tool=command[0]
        )
    done = subprocess.run([program, *command[1:]], input=data, capture_output=True, check=False)
    if done.returncode != 0:
        said = (done.stderr or done.stdout).decode("utf-8", "replace").strip()
        raise FlashError(f"{command[0]} failed on {target}: {said}", "Is there space left?", target=str(target))
    return done.stdout
