# SPDX-License-Identifier: Apache-2.0
"""Frames of the link protocol (PROTOCOL.md, section 1)."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

from cobs import cobs

VERSION = 2
PAYLOAD_MAX = 512
_HEADER = struct.Struct("<BBBBI")
_CRC = struct.Struct("<I")
_RAW_MAX = _HEADER.size + PAYLOAD_MAX + _CRC.size
# What COBS makes of the longest frame.
_ENCODED_MAX = _RAW_MAX + (_RAW_MAX + 253) // 254


class Kind(IntEnum):
    DATA = 1
    MORE = 2
    ACK = 3
    NAK = 4
    PING = 5
    SYN = 6
    SYN_ACK = 7
    RST = 8
    FAULT = 9
    REBOOT = 10


@dataclass(frozen=True)
class Frame:
    """One frame. `kind` is a Kind, or a number that this version does not know."""

    kind: int
    seq: int = 0
    ack: int = 0
    credit: int = 0
    session: int = 0
    payload: bytes = b""
    version: int = VERSION


@dataclass(frozen=True)
class Noise:
    """Bytes between two delimiters that were no frame: damaged, or printed by somebody else on the line."""

    data: bytes


def encode(frame: Frame) -> bytes:
    """The frame with both delimiters."""
    if len(frame.payload) > PAYLOAD_MAX:
        raise ValueError(f"a payload of {len(frame.payload)} bytes is longer than {PAYLOAD_MAX}")
    first = frame.version << 4 | frame.kind
    raw = _HEADER.pack(first, frame.seq, frame.ack, frame.credit, frame.session) + frame.payload
    stuffed: bytes = cobs.encode(raw + _CRC.pack(zlib.crc32(raw)))
    return b"\0" + stuffed + b"\0"


def decode(encoded: bytes) -> Frame | None:
    """What stood between two delimiters; None when it is no frame."""
    try:
        raw = cobs.decode(encoded)
    except cobs.DecodeError:
        return None
    if not _HEADER.size + _CRC.size <= len(raw) <= _RAW_MAX:
        return None
    covered, crc = raw[: -_CRC.size], raw[-_CRC.size :]
    if zlib.crc32(covered) != _CRC.unpack(crc)[0]:
        return None
    first, seq, ack, credit, session = _HEADER.unpack_from(covered)
    return Frame(first & 15, seq, ack, credit, session, covered[_HEADER.size :], first >> 4)


class Deframer:
    """Cuts a stream of bytes into frames and noise."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame | Noise]:
        pieces = data.split(b"\0")
        for piece in pieces[:-1]:
            self._buffer += piece
            encoded = bytes(self._buffer)
            self._buffer.clear()
            if encoded:
                yield decode(encoded) or Noise(encoded)
        self._buffer += pieces[-1]
        if len(self._buffer) > 2 * _ENCODED_MAX:  # noise without end: keep it short, it stays no frame
            del self._buffer[_ENCODED_MAX + 1 :]
