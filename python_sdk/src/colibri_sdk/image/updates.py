# SPDX-License-Identifier: Apache-2.0
"""The table of experts that were replaced since an image was packed: its two copies, their checksums, which one counts.

What a table may say is the engine's to check (`col_updates_check`); here it is found, read and written.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from colibri_sdk.image.layout import MAX_UPDATES, PAGE, UPDATE, UPDATE_HEAD, UPDATES_MAGIC

_HEAD_CRC = UPDATE_HEAD.itemsize - 4
_SMALL = (PAGE - UPDATE_HEAD.itemsize) // UPDATE.itemsize
_PAGES = 4


@dataclass(frozen=True)
class UpdateTable:
    """The copy that counts. `entries` is an array of UPDATE, ascending by layer and expert."""

    copy: int
    sequence: int
    entries: npt.NDArray[np.void]


def copy_bytes(experts: int) -> int:
    """Length of each copy in an image with so many experts: one page where that holds them all, else four."""
    return PAGE if experts <= _SMALL else _PAGES * PAGE


def capacity(length: int) -> int:
    """Experts that a copy of `length` bytes can name."""
    return min(MAX_UPDATES, (length - UPDATE_HEAD.itemsize) // UPDATE.itemsize)


def encode_copy(entries: npt.NDArray[np.void], sequence: int, image_id: bytes, length: int) -> bytes:
    """One copy, `length` bytes, of a table for the image `image_id` (16 bytes)."""
    body = entries.tobytes()
    head = np.zeros((), UPDATE_HEAD)
    head["magic"] = np.void(UPDATES_MAGIC)
    head["sequence"], head["count"] = sequence, len(entries)
    head["entries_crc32"] = zlib.crc32(body)
    head["image_id"] = np.void(image_id)
    head["crc32"] = zlib.crc32(head.tobytes()[:_HEAD_CRC])
    return (head.tobytes() + body).ljust(length, b"\0")


def read_table(section: bytes, image_id: bytes) -> UpdateTable | None:
    """The table of an updates section: of the copies that are whole the one with the higher sequence."""
    length = len(section) // 2
    found: UpdateTable | None = None
    for copy in range(2):
        table = _read_copy(copy, section[copy * length : (copy + 1) * length], image_id)
        if table is not None and (found is None or table.sequence > found.sequence):
            found = table
    return found


def _read_copy(copy: int, data: bytes, image_id: bytes) -> UpdateTable | None:
    if len(data) < UPDATE_HEAD.itemsize:
        return None
    head = np.frombuffer(data, UPDATE_HEAD, 1)[0]
    count, sequence = int(head["count"]), int(head["sequence"])
    whole = (
        bytes(head["magic"]) == UPDATES_MAGIC
        and zlib.crc32(data[:_HEAD_CRC]) == int(head["crc32"])
        and sequence > 0
        and count <= capacity(len(data))
        and bytes(head["image_id"]) == image_id
        and not head["reserved"].any()
    )
    if not whole:
        return None
    body = data[UPDATE_HEAD.itemsize : UPDATE_HEAD.itemsize + count * UPDATE.itemsize]
    if zlib.crc32(body) != int(head["entries_crc32"]):
        return None
    return UpdateTable(copy, sequence, np.frombuffer(body, UPDATE, count).copy())
