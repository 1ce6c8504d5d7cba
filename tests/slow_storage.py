# SPDX-License-Identifier: Apache-2.0
"""A storage for engines under test: an image file whose reads come late, in any order, and can be made to fail."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from colibri_sdk.engine import PENDING, Read

GARBAGE = 0x5A

# What happens to a read when it ends: it may change the slot and says status and CRC-32, or None to leave it as it is.
Fault = Callable[[Read], tuple[int, int] | None]


@dataclass
class _Going:
    what: Read
    number: int
    left: int


@dataclass
class SlowStorage:
    """Each read needs up to `patience` checks; until then its slot holds garbage. `faults` are by the read's number."""

    image: Path
    depth: int = 2
    patience: int = 3
    seed: int = 1
    faults: dict[int, Fault] = field(default_factory=dict)
    refused: dict[int, int] = field(default_factory=dict)  # status of starting that read
    newer: dict[tuple[int, int, int], bytes] = field(default_factory=dict)  # (layer, expert, generation): its bytes
    log: list[Read] = field(default_factory=list)
    most: int = 0  # reads that were under way at once

    def __post_init__(self) -> None:
        self.data = bytearray(self.image.read_bytes())
        self._random = random.Random(self.seed)
        self._going: dict[int, _Going] = {}

    def start(self, read: int, what: Read) -> int:
        assert 0 <= read < self.depth
        assert read not in self._going
        assert what.offset % 4096 == 0
        assert what.bytes % 4096 == 0
        number = len(self.log)
        self.log.append(what)
        if number in self.refused:
            return self.refused[number]
        self._going[read] = _Going(what, number, self._random.randint(0, self.patience))
        what.to[:] = bytes([GARBAGE]) * what.bytes
        self.most = max(self.most, len(self._going))
        return 0

    def check(self, read: int) -> tuple[int, int]:
        going = self._going[read]
        if going.left > 0:
            going.left -= 1
            # Bytes come piece by piece, and not from the front.
            going.what.to[-64:] = self.data[going.what.offset : going.what.offset + 64]
            return PENDING, 0
        del self._going[read]
        what = going.what
        newer = self.newer.get((what.layer, what.expert, what.generation))
        what.to[:] = newer or self.data[what.offset : what.offset + what.bytes]
        fault = self.faults.get(going.number)
        ended = fault(what) if fault is not None else None
        return ended if ended is not None else (0, zlib.crc32(what.to))

    @property
    def idle(self) -> bool:
        """No read is under way."""
        return not self._going
