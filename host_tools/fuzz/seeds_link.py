# SPDX-License-Identifier: Apache-2.0
"""Writes first inputs for fuzz_link into a directory: sessions with each kind of request, as fuzz_link.c reads them.

python host_tools/fuzz/seeds_link.py DIRECTORY
"""

from __future__ import annotations

import struct
import sys
from pathlib import Path

FIRST_REQUEST = 0x51000000
BEGIN = b"\x02\x00"  # no time passes; the even number leaves the model in
SYN = b"\x01"
HELLO, INFO, GENERATE, CANCEL, STATS, SELFTEST, LOGITS, TOKENIZE, REBOOT, PROVOKE = range(1, 11)
STATUS, BEGIN_UPDATE, DATA, COMMIT, CONFIRM, ROLLBACK, DIRECTORY, COPY, CRC, CONFIGURE = range(11, 21)


def piece(kind: int, body: bytes = b"", *, more: bool = False) -> bytes:
    assert len(body) < 250
    return bytes([5, kind | 0x20 | (0x80 if more else 0), len(body)]) + body


def text(data: bytes) -> bytes:
    return struct.pack("<BI", 1, len(data)) + data


def ids(*values: int) -> bytes:
    return struct.pack(f"<BI{len(values)}I", 2, len(values), *values)


def generate(flags: int, segments: list[bytes], stops: list[bytes] = [], tokens: int = 8) -> bytes:  # noqa: B006
    head = struct.pack("<HHHHIIfffQ", flags, len(segments), len(stops), 0, tokens, 0, 0.0, 0.0, 0.0, 1)
    return head + b"".join(struct.pack("<H", len(stop)) + stop for stop in stops) + b"".join(segments)


def wait(steps: int) -> bytes:
    return bytes([2, steps])


LONG = piece(GENERATE, generate(2, [text(b"hello")], tokens=200))
UNHEARD = piece(GENERATE, generate(6, [text(b"hello")], tokens=20))

SEEDS = {
    "hello-info": piece(HELLO) + piece(INFO),
    "generate-text": piece(GENERATE, generate(1, [text(b"hello")])),
    "generate-traced": piece(GENERATE, generate(12, [text(b"ab"), ids(256, 257), text(b"c")])),
    "generate-stops": piece(GENERATE, generate(2, [text(b"hello")], [b"a", b"e "], 40)),
    "generate-cancel": piece(GENERATE, generate(2, [text(b"hello")], tokens=0))
    + wait(1)
    + piece(CANCEL, struct.pack("<I", FIRST_REQUEST))
    + wait(9),
    "generate-busy": LONG + wait(1) + piece(STATS, b"\0"),
    "generate-anew": LONG + wait(1) + SYN + b"\x01" + piece(HELLO),
    "generate-silent": b"\x03" + UNHEARD + wait(200) + b"\x03" + wait(9),
    "logits": piece(LOGITS, struct.pack("<II3I", 2, 3, 1, 2, 258)) + piece(LOGITS, struct.pack("<III", 1, 1, 999)),
    "tokenize": piece(TOKENIZE, b"\x01hello") + piece(TOKENIZE, b"\0", more=True) + piece(TOKENIZE, b"long" * 50),
    "stats-selftest": piece(STATS, b"\x01") + piece(SELFTEST) + piece(CANCEL, struct.pack("<I", 7)),
    "provoke-reboot": piece(PROVOKE, struct.pack("<I", 2)) + piece(REBOOT),
    "unknown": piece(0) + piece(31) + piece(STATUS, b"x"),
    "update": piece(STATUS)
    + piece(BEGIN_UPDATE, struct.pack("<II", 1, 0) + bytes(200), more=True)
    + bytes([5, 0x20, 56])
    + bytes(56)
    + b"".join(piece(kind) for kind in (COMMIT, CONFIRM, ROLLBACK))
    + piece(DATA, bytes(8 + 64))
    + piece(DIRECTORY, bytes(4))
    + piece(COPY, struct.pack("<QQQ", 0, 4096, 512))
    + piece(CRC, struct.pack("<IIQQ", 1, 0, 0, 512)),
    "configure": piece(CONFIGURE, struct.pack("<BBHIQ", 1, 0, 0, 0, 0))
    + wait(9)
    + LONG
    + wait(1)
    + piece(CONFIGURE, struct.pack("<BBHIQ", 2, 1, 0, 3, 0)),
    "configure-cancel": piece(CONFIGURE, struct.pack("<BBHIQ", 1, 0, 0, 0, 1 << 16))
    + piece(CANCEL, struct.pack("<I", FIRST_REQUEST))
    + wait(9)
    + piece(CONFIGURE, struct.pack("<BBHIQ", 0, 0, 0, 0, 4096))
    + wait(9)
    + piece(STATUS),
    "any-frames": b"".join(bytes([4, kind, 0, 8, 4]) + b"abcd" for kind in range(12)) + b"\0\x05\0\0\x01\xff\0",
}


def main() -> None:
    directory = Path(sys.argv[1])
    directory.mkdir(parents=True, exist_ok=True)
    for name, script in SEEDS.items():
        (directory / name).write_bytes(BEGIN + SYN + script)
    (directory / "no-model").write_bytes(b"\x01" + piece(INFO) + piece(STATS, b"\0") + piece(SELFTEST))


if __name__ == "__main__":
    main()
