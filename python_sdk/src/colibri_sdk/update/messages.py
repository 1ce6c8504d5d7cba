# SPDX-License-Identifier: Apache-2.0
"""Bodies of the requests 11 to 19 (PROTOCOL.md, "Updates"): dataclasses <-> bytes."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum

from colibri_sdk.flash.volume import SLOTS
from colibri_sdk.image.layout import MAX_EXPERTS, MAX_LAYERS
from colibri_sdk.link.messages import Reader, bounded

SECTOR = 512  # offsets into a target, and lengths, are multiples of it
DATA_BYTES = 4096  # of one UPDATE_DATA; it may have up to 24 sectors, but several short ones fill the line better
UPDATE_BYTES = 256  # of struct col_update and of struct col_signature


class UpdateKind(IntEnum):
    """enum update_kind."""

    EXPERT = 1
    MODEL = 2


class UpdateState(IntEnum):
    """enum update_state: whether an update is open, and whether the device is at work on it."""

    IDLE = 0
    OPEN = 1
    WORKING = 2


class Where(IntEnum):
    """enum update_where: what UPDATE_CRC reads."""

    TARGET = 0
    RUNNING_IMAGE = 1


@dataclass(frozen=True)
class UpdateStatus:
    """UPDATE_STATUS. Slots are numbered from 1 (A); 0: none. Bytes and counters as PROTOCOL.md says."""

    state: int
    kind: int
    slots: int
    writable: bool
    running: int
    active: int
    trial: int
    tries_left: int
    tries: int
    last_result: int
    last_status: int
    updates: int
    updates_max: int
    free_places: int
    layer: int
    expert: int
    updates_sequence: int
    counter: int
    target_bytes: int
    done: int
    total: int
    slot_bytes: int
    image_ids: tuple[str, str]  # hexadecimal; empty where there is no image

    @classmethod
    def read(cls, reader: Reader) -> UpdateStatus:
        state, kind, slots, writable, running, active, trial, _ = reader.numbers("8B")
        tries_left, tries, last_result, last_status = reader.numbers("IIIi")
        updates, updates_max, free_places, layer, expert, _ = reader.numbers("6I")
        sequence, counter, target_bytes, done, total, slot_bytes = reader.numbers("6Q")
        first, second = (reader.take(16) for _ in range(2))
        for what, slot in (("running", running), ("active", active), ("trial", trial)):
            bounded(f"{what} slot", slot, SLOTS)
        return cls(
            state=state,
            kind=bounded("kind of update", kind, max(UpdateKind)),
            slots=bounded("slots", slots, SLOTS),
            writable=bool(writable),
            running=running,
            active=active,
            trial=trial,
            tries_left=tries_left,
            tries=tries,
            last_result=last_result,
            last_status=last_status,
            updates=updates,
            updates_max=updates_max,
            free_places=free_places,
            layer=layer,
            expert=expert,
            updates_sequence=sequence,
            counter=counter,
            target_bytes=target_bytes,
            done=done,
            total=total,
            slot_bytes=slot_bytes,
            image_ids=(_id(first), _id(second)),
        )


@dataclass(frozen=True)
class Begun:
    """UPDATE_BEGIN's result. `place`: an expert's offset in the running image; `resumed`: it was open already."""

    target_bytes: int
    place: int
    resumed: bool

    @classmethod
    def read(cls, reader: Reader) -> Begun:
        target_bytes, place = reader.numbers("QQ")
        return cls(target_bytes, place, bool(reader.number("B")))


@dataclass(frozen=True)
class Confirmed:
    """UPDATE_CONFIRM's result: the slot that is active now, and the security counter."""

    active: int
    counter: int

    @classmethod
    def read(cls, reader: Reader) -> Confirmed:
        active, counter = reader.numbers("B7xQ")
        return cls(bounded("active slot", active, SLOTS), counter)


@dataclass(frozen=True)
class RolledBack:
    """UPDATE_ROLLBACK's result: what there was to give up, and whether only a restart brings the active model back."""

    update: bool
    trial: bool
    restart: bool

    @classmethod
    def read(cls, reader: Reader) -> RolledBack:
        update, trial, restart = reader.numbers("BBB5x")
        return cls(bool(update), bool(trial), bool(restart))


@dataclass(frozen=True)
class DirectoryEntry:
    """An expert as it is in effect on the medium. `offset` counts from the start of the running image's file; `size` is
    in bytes."""

    layer: int
    expert: int
    generation: int
    crc32: int
    offset: int
    size: int
    digest: bytes


def read_directory(reader: Reader) -> tuple[int, list[DirectoryEntry]]:
    """DIRECTORY's result: how many entries there are in all, and those that are here."""
    total, count = reader.numbers("II")
    bounded("experts", total, MAX_LAYERS * MAX_EXPERTS)
    entries = []
    for _ in range(count):
        layer, expert, generation, crc32, offset, size = reader.numbers("IIIIQQ")
        entries.append(DirectoryEntry(layer, expert, generation, crc32, offset, size, reader.take(32)))
    return total, entries


def pack_begin_expert(update: bytes) -> bytes:
    """`update`: a struct col_update."""
    return struct.pack("<II", UpdateKind.EXPERT, 0) + update


def pack_begin_model(page: bytes, signature: bytes, tries: int) -> bytes:
    """`page`: the image's first; `signature`: its struct col_signature; `tries`: starts on trial, 0: the usual."""
    return struct.pack("<II", UpdateKind.MODEL, tries) + page + signature


def pack_data(offset: int, data: bytes) -> bytes:
    return struct.pack("<Q", offset) + data


def pack_copy(source: int, target: int, size: int) -> bytes:
    return struct.pack("<QQQ", source, target, size)


def pack_crc(where: Where, offset: int, size: int) -> bytes:
    return struct.pack("<IIQQ", where, 0, offset, size)


def _id(image_id: bytes) -> str:
    return image_id.hex() if any(image_id) else ""
