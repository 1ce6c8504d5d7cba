# SPDX-License-Identifier: Apache-2.0
"""Two slots for a model on one medium: the volume that a card's model partition holds.

    page 0      struct col_volume: where slots and boot states are
    page 1, 2   a struct col_boot_state each, at the start of the page; the valid one with the higher sequence counts
    1 MiB       slot A
    behind it   slot B, of the same length

Slots begin at multiples of 1 MiB, so that writing one never shares an erase block of a card with the other or with the
boot states. The dtypes mirror firmware/runtime/volume.h; a test compares them through DWARF. What the fields mean and
how a device uses them: there, and in docs/field-update.md.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from enum import IntEnum
from typing import BinaryIO

import numpy as np

from colibri_sdk.errors import FlashError
from colibri_sdk.image.kinds import VOLUME_MAGIC as VOLUME_MAGIC
from colibri_sdk.image.layout import PAGE, align_up

MIB = 1 << 20
BOOT_STATE_MAGIC = b"COLIBOT\x1a"
VOLUME_VERSION = 1
SLOTS = 2
SLOT_NAMES = ("A", "B")
SECTOR = 512
BOOT_TRIES = 3  # starts of a model on trial, unless told otherwise
BOOT_MAX_TRIES = 100
_CRC_AT = SECTOR - 4
# A slot has room for a model that has grown by a sixteenth: a longer tokenizer or card is no new partition.
_GROWTH = 16


class BootResult(IntEnum):
    """enum col_boot_result: what became of the last model that was on trial."""

    NONE = 0
    ON_TRIAL = 1
    CONFIRMED = 2
    WITHDRAWN = 3
    TRIES_USED = 4
    INVALID = 5


VOLUME_SLOT = np.dtype([("offset", "<u8"), ("bytes", "<u8")])

VOLUME = np.dtype(
    [
        ("magic", "V8"),
        ("version", "<u4"),
        ("slots", "<u4"),
        ("slot", VOLUME_SLOT, (SLOTS,)),
        ("state_offset", "<u8"),
        ("reserved", "<u4", (113,)),
        ("crc32", "<u4"),
    ]
)

BOOT_STATE = np.dtype(
    [
        ("magic", "V8"),
        ("sequence", "<u8"),
        ("active", "<u4"),
        ("trial", "<u4"),
        ("tries_left", "<u4"),
        ("tries", "<u4"),
        ("counter", "<u8"),
        ("last_result", "<u4"),
        ("last_status", "<i4"),
        ("reserved", "<u4", (115,)),
        ("crc32", "<u4"),
    ]
)

# The C constant that each number above mirrors.
CONSTANTS: dict[str, int] = {
    "COL_VOLUME_VERSION": VOLUME_VERSION,
    "COL_SLOTS": SLOTS,
    "COL_BOOT_TRIES": BOOT_TRIES,
    "COL_BOOT_MAX_TRIES": BOOT_MAX_TRIES,
}

# The C struct that each dtype mirrors.
STRUCTS: dict[str, np.dtype[np.void]] = {
    "col_volume_slot": VOLUME_SLOT,
    "col_volume": VOLUME,
    "col_boot_state": BOOT_STATE,
}


@dataclass(frozen=True)
class Volume:
    """Where the parts of a volume are; bytes from its start."""

    slot_offsets: tuple[int, int]
    slot_bytes: tuple[int, int]
    state_offset: int

    @property
    def bytes(self) -> int:
        """Length up to the end of the last part."""
        ends = [offset + size for offset, size in zip(self.slot_offsets, self.slot_bytes, strict=True)]
        return max(*ends, self.state_offset + 2 * PAGE)


@dataclass(frozen=True)
class BootState:
    """Which slot boots. `active` is 0 or 1; `trial` is the slot on trial, None for none. `last_status` is a Status."""

    sequence: int
    active: int
    trial: int | None
    tries_left: int
    tries: int
    counter: int
    last_result: int
    last_status: int


def plan(image_bytes: int) -> Volume:
    """The volume for an image of that length, with some room for its successors."""
    slot = align_up(image_bytes + image_bytes // _GROWTH, MIB)
    return Volume((MIB, MIB + slot), (slot, slot), PAGE)


def make_head(volume: Volume, *, counter: int = 0) -> bytes:
    """The first pages of a fresh volume: slot A is active. `counter`: the security counter that devices start from."""
    head = np.zeros((), VOLUME)
    head["magic"] = np.void(VOLUME_MAGIC)
    head["version"] = VOLUME_VERSION
    head["slots"] = SLOTS
    head["slot"]["offset"] = volume.slot_offsets
    head["slot"]["bytes"] = volume.slot_bytes
    head["state_offset"] = volume.state_offset
    state = np.zeros((), BOOT_STATE)
    state["magic"] = np.void(BOOT_STATE_MAGIC)
    state["sequence"] = 1
    state["counter"] = counter
    pages = bytearray(volume.state_offset + 2 * PAGE)
    pages[:SECTOR] = _sealed(head.tobytes())
    pages[volume.state_offset : volume.state_offset + SECTOR] = _sealed(state.tobytes())
    return bytes(pages)


def read(file: BinaryIO, start: int, name: str) -> tuple[Volume, BootState] | None:
    """The volume at byte `start` of a medium, None when there is none. FlashError when it is damaged."""
    file.seek(start)
    sector = file.read(SECTOR)
    if sector[: len(VOLUME_MAGIC)] != VOLUME_MAGIC:
        return None
    if not _is_sealed(sector):
        raise FlashError(f"{name}: the volume's first page is damaged", "Write the card again.", target=name)
    head = np.frombuffer(sector, VOLUME)[0]
    if int(head["version"]) != VOLUME_VERSION or int(head["slots"]) != SLOTS:
        raise FlashError(
            f"{name} has a volume of version {head['version']} with {head['slots']} slots",
            "Write the card again with this version of the SDK.",
            target=name,
        )
    offsets, sizes = head["slot"]["offset"].tolist(), head["slot"]["bytes"].tolist()
    volume = Volume((offsets[0], offsets[1]), (sizes[0], sizes[1]), int(head["state_offset"]))
    medium = file.seek(0, 2)
    if any(number % PAGE or not number for number in (*offsets, *sizes, volume.state_offset)):
        raise FlashError(f"{name}: the parts of its volume are impossible", "Write the card again.", target=name)
    if start + volume.bytes > medium:
        raise FlashError(
            f"{name} has {medium:,} bytes, and its volume ends at byte {start + volume.bytes:,}",
            "Use the whole card, or write one again that is large enough.",
            target=name,
        )
    return volume, _read_state(file, start + volume.state_offset, name)


def _read_state(file: BinaryIO, start: int, name: str) -> BootState:
    states = []
    for page in range(2):
        file.seek(start + page * PAGE)
        sector = file.read(SECTOR)
        if sector[: len(BOOT_STATE_MAGIC)] == BOOT_STATE_MAGIC and _is_sealed(sector):
            state = np.frombuffer(sector, BOOT_STATE)[0]
            if _is_possible(int(state["sequence"]), int(state["active"]), int(state["trial"])):
                states.append(state)
    if not states:
        raise FlashError(f"{name} has no valid boot state", "Write the card again.", target=name)
    newest = max(states, key=lambda state: int(state["sequence"]))
    numbers = {field: int(newest[field]) for field in BootState.__dataclass_fields__}
    trial = numbers.pop("trial")
    return BootState(trial=trial - 1 if trial else None, **numbers)


def _is_possible(sequence: int, active: int, trial: int) -> bool:
    """As boot.c has it; `trial` counts from 1, 0 for none."""
    return sequence != 0 and active < SLOTS and trial <= SLOTS and trial != active + 1


def _sealed(sector: bytes) -> bytes:
    """The sector with its checksum in its last four bytes."""
    return sector[:_CRC_AT] + struct.pack("<I", zlib.crc32(sector[:_CRC_AT]))


def _is_sealed(sector: bytes) -> bool:
    return len(sector) == SECTOR and _sealed(sector) == sector
