# SPDX-License-Identifier: Apache-2.0
"""Contents of a card for tests of the loader: images that are right as far as the loader looks, partition tables."""

from __future__ import annotations

import struct
import zlib

PAGE = 4096
BLOCK = 512
MODEL_PARTITION = 0xDA


def image(pages: int = 4, *, stated_bytes: int | None = None, break_crc: bool = False) -> bytes:
    """`pages` pages with a header as image.h describes it; the rest is a pattern."""
    page = bytearray(PAGE)
    page[:8] = b"COLIBRI\x1a"
    struct.pack_into("<IIQII", page, 8, 1, 1, PAGE * pages if stated_bytes is None else stated_bytes, PAGE, 0)
    struct.pack_into("<I", page, 124, zlib.crc32(page) ^ break_crc)
    return bytes(page) + bytes(i * 7 % 251 for i in range(PAGE * (pages - 1)))


def partitioned(content: bytes, *, first: int = 64, kind: int = MODEL_PARTITION, count: int | None = None) -> bytes:
    """A card with a FAT partition and, from block `first`, one of type `kind` that holds `content`."""
    table = bytearray(BLOCK)
    entries = [(0x0C, 8, 32), (kind, first, len(content) // BLOCK if count is None else count)]
    for index, (code, start, blocks) in enumerate(entries):
        struct.pack_into("<B3xB3xII", table, 446 + 16 * index, 0, code, start, blocks)
    table[510:] = b"\x55\xaa"
    return bytes(table).ljust(first * BLOCK, b"\xf6") + content
