# SPDX-License-Identifier: Apache-2.0
"""What cards on SPI and on four lines share: registers and checksums (SD Physical Layer Specification 6.00)."""

from __future__ import annotations

BLOCK = 512

# Kinds of cards, as parameters of SpiCard and EmmcCard.
CARDS = {
    "high capacity": {"blocks": 64 * 1024},
    "standard": {"blocks": 1024, "high_capacity": False},
    "version 1": {"blocks": 1024, "high_capacity": False, "version2": False},
}


def unwritten(number: int) -> bytes:
    """What a played device has in a block that nobody has written: another content in each."""
    return number.to_bytes(8, "big") * (BLOCK // 8)


def crc(data: bytes, polynomial: int, bits: int) -> int:
    """Remainder of the data's bits, most significant first, from 0 on (4.5)."""
    value, top = 0, 1 << (bits - 1)
    for byte in data:
        for bit in range(7, -1, -1):
            carry = bool(value & top) != bool(byte >> bit & 1)
            value = (value << 1 & (1 << bits) - 1) ^ (polynomial if carry else 0)
    return value


def crc7(data: bytes) -> int:
    return crc(data, 0x09, 7)


def crc16(data: bytes) -> int:
    return crc(data, 0x1021, 16)


def csd(blocks: int, high_capacity: bool) -> bytes:
    """The card-specific data of a card of that size (5.3.2, 5.3.3): the fields that say it, all others 0."""
    if high_capacity:
        assert blocks % 1024 == 0
        value = 1 << 126 | (blocks // 1024 - 1) << 48
    else:
        multiplier, length = 7, 9  # of 512 bytes each
        assert blocks % (1 << multiplier + 2) == 0
        value = length << 80 | (blocks // (1 << multiplier + 2) - 1) << 62 | multiplier << 47
    raw = value.to_bytes(16, "big")[:15]
    return raw + bytes([crc7(raw) << 1 | 1])
