# SPDX-License-Identifier: Apache-2.0
"""What an update is to bring, and how little of it must travel: checksums tell what is on the medium already."""

from __future__ import annotations

import functools
import hashlib
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from colibri_sdk.image.layout import DIGEST_BYTES, PAGE
from colibri_sdk.update.messages import DATA_BYTES

# A part that differs is looked at in that many pieces, and so on down to pages.
FAN_OUT = 16
_CHUNK = 1 << 20


@dataclass(frozen=True, order=True)
class Range:
    """`bytes` bytes from byte `start`; both whole pages."""

    start: int
    bytes: int

    @property
    def end(self) -> int:
        return self.start + self.bytes


class Content:
    """Bytes that can be read at any place, from a file that stays where it is.

    `read(offset, count)` gives exactly `count` bytes."""

    def __init__(self, read: Callable[[int, int], bytes], size: int) -> None:
        self.read = read
        self.bytes = size

    def chunks(self, part: Range, size: int = _CHUNK) -> Iterator[tuple[int, bytes]]:
        """The part as (offset, data), at most `size` bytes each."""
        for start in range(part.start, part.end, size):
            yield start, self.read(start, min(size, part.end - start))

    def crc(self, part: Range) -> int:
        crc = 0
        for _, data in self.chunks(part):
            crc = zlib.crc32(data, crc)
        return crc

    @functools.cached_property
    def digest(self) -> bytes:
        """BLAKE2b-256 of it all, as an image states for each expert."""
        digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
        for _, data in self.chunks(Range(0, self.bytes)):
            digest.update(data)
        return digest.digest()


def differing(
    content: Content, crc_there: Callable[[Range], int], parts: Iterable[Range], settled: Callable[[int], None]
) -> list[Range]:
    """Which pages of `parts` differ from what is at the same offsets on the medium; ascending, joined where they meet.

    Where the first, the middle and the last piece of a part differ, all of it is taken to differ: looking at each page
    would cost more. Only the first piece is looked into, for an interrupted transfer leaves a beginning that is right.
    `settled` gets the number of bytes about which all is known.
    """
    found: list[Range] = []

    def equal(part: Range) -> bool:
        return crc_there(part) == content.crc(part)

    def look(part: Range) -> None:
        """At a part that is known to differ."""
        pieces = _pieces(part)
        known: dict[int, bool] = {}
        whole = len(pieces) == 1
        if len(pieces) > 2:
            for index in (0, len(pieces) - 1, len(pieces) // 2):
                known[index] = equal(pieces[index])
                if known[index]:
                    break
            else:
                whole = True
        if whole:
            rest = part
            if pieces[0].bytes > PAGE:
                look(pieces[0])
                rest = Range(pieces[0].end, part.end - pieces[0].end)
            found.append(rest)
            settled(rest.bytes)
            return
        for index, piece in enumerate(pieces):
            if known[index] if index in known else equal(piece):
                settled(piece.bytes)
            else:
                look(piece)

    for part in parts:
        if equal(part):
            settled(part.bytes)
        else:
            look(part)
    return joined(found)


def without(parts: Iterable[Range], gaps: Iterable[Range]) -> list[Range]:
    """`parts` less `gaps`; both ascending."""
    left: list[Range] = []
    rest = deque(gaps)
    for part in parts:
        at = part.start
        while rest and rest[0].start < part.end:
            gap = rest[0]
            if gap.start > at:
                left.append(Range(at, gap.start - at))
            at = max(at, gap.end)
            if gap.end > part.end:
                break  # it goes on in the next part
            rest.popleft()
        if at < part.end:
            left.append(Range(at, part.end - at))
    return left


def joined(parts: Iterable[Range]) -> list[Range]:
    """Ascending, parts that touch as one."""
    out: list[Range] = []
    for part in sorted(parts):
        if out and out[-1].end == part.start:
            out[-1] = Range(out[-1].start, out[-1].bytes + part.bytes)
        else:
            out.append(part)
    return out


def pieces_to_send(content: Content, parts: Iterable[Range]) -> Iterator[tuple[int, bytes]]:
    """The parts as (offset, data) in the size that one request carries."""
    for part in parts:
        yield from content.chunks(part, DATA_BYTES)


def _pieces(part: Range) -> list[Range]:
    """The part in at most FAN_OUT pieces of one length, the last one shorter; itself when it is a page or less."""
    size = PAGE
    while size * FAN_OUT < part.bytes:
        size *= FAN_OUT
    return [Range(start, min(size, part.end - start)) for start in range(part.start, part.end, size)]
