# SPDX-License-Identifier: Apache-2.0
"""Makes vectors.json from PROTOCOL.md alone: with the `cobs` library, zlib and struct, without the SDK's code.

python tests/link/make_vectors.py > tests/link/vectors.json
"""

from __future__ import annotations

import json
import random
import struct
import sys
import zlib

from cobs import cobs


def wire(kind: int, seq: int, ack: int, credit: int, session: int, payload: bytes, version: int = 2) -> bytes:
    raw = bytes([version << 4 | kind, seq, ack, credit]) + session.to_bytes(4, "little") + payload
    raw += zlib.crc32(raw).to_bytes(4, "little")
    return b"\0" + cobs.encode(raw) + b"\0"


def string(text: str) -> bytes:
    data = text.encode()
    return len(data).to_bytes(2, "little") + data


def stuffing(rng: random.Random) -> list[dict[str, str]]:
    raws = [b"", b"\0", b"\0\0", b"\1", b"a\0b", bytes(254), bytes(255)]
    raws += [bytes([1]) * n for n in (253, 254, 255, 508, 509, 524)]
    raws += [bytes([1]) * 254 + b"\0", bytes([1]) * 253 + b"\0\1", bytes(range(256)), bytes(range(255, -1, -1))]
    raws += [bytes(rng.choice((0, 1, 255)) for _ in range(rng.randrange(524))) for _ in range(20)]
    return [{"raw": raw.hex(), "encoded": cobs.encode(raw).hex()} for raw in raws]


def frames(rng: random.Random) -> list[dict[str, object]]:
    cases = [
        (1, 0, 0, 8, 1, b""),
        (2, 255, 255, 127, 0xFFFFFFFF, b"\0" * 512),
        (3, 0, 200, 0, 0x01020304, b""),
        (4, 0, 1, 8, 0x80000000, b""),
        (5, 0, 0, 8, 7, b""),
        (6, 0, 0, 32, 0xDEADBEEF, struct.pack("<BBHI", 2, 2, 512, 1 << 28)),
        (8, 0, 0, 0, 0, struct.pack("<iBB", 0, 2, 2)),
        (8, 0, 0, 0, 5, struct.pack("<iBB", -47, 2, 2)),
        (10, 0, 0, 0, 0, b""),
        (1, 3, 4, 5, 0x00FF00FF, bytes(range(256)) * 2),
        (1, 9, 9, 9, 9, b"\xff" * 511),
    ]
    for _ in range(20):
        payload = rng.randbytes(rng.randrange(513))
        cases.append((rng.randrange(1, 11), *(rng.randrange(256) for _ in range(3)), rng.randrange(1 << 32), payload))
    names = ("kind", "seq", "ack", "credit", "session", "payload")
    made = []
    for case in cases:
        fields: dict[str, object] = dict(zip(names, case, strict=True))
        fields["payload"] = case[5].hex()
        made.append({**fields, "wire": wire(*case).hex()})
    return made


def damaged() -> list[dict[str, str]]:
    good = wire(1, 2, 3, 4, 5, b"payload")
    inside = good[1:-1]
    flipped = bytearray(inside)
    flipped[6] ^= 4
    long_raw = bytes([0x21, 0, 0, 8]) + bytes([1]) * (4 + 513)
    cases = {
        "crc": bytes(flipped),
        "cut short": inside[:-3],
        "group runs past the end": b"\x09" + b"abc",
        "too short for a header": cobs.encode(b"\x21\0\0\x08" + zlib.crc32(b"\x21\0\0\x08").to_bytes(4, "little")),
        "payload of 513 bytes": cobs.encode(long_raw + zlib.crc32(long_raw).to_bytes(4, "little")),
        "noise": b"U-Boot 2023.01 (Jan 01 2023)\r\n",
    }
    return [{"name": name, "between_delimiters": data.hex()} for name, data in cases.items()]


def bodies() -> dict[str, dict[str, object]]:
    hello = (
        struct.pack("<BBHIBBHiQQ", 2, 2, 512, 16384, 3, 0, 0, -41, 4096, 5 << 30)
        + bytes(range(16))
        + string("rpi3")
        + string("0.2.0")
    )
    generate = struct.pack("<HHHHIIfffQ", 2 | 8, 3, 2, 0, 64, 40, 0.5, 0.75, 1.25, 1 << 63)
    generate += string("\n") + string("}}")
    generate += b"\1" + struct.pack("<I", 3) + b"abc"
    generate += b"\2" + struct.pack("<III", 2, 1000, 1)
    generate += b"\1" + struct.pack("<I", 4) + "é→".encode()[:4]
    return {
        "hello": {
            "bytes": hello.hex(),
            "layout": "bbhwbbhwqqqqss",
            "fields": {
                "state": 3,
                "busy": False,
                "status": -41,
                "loaded": 4096,
                "total": 5 << 30,
                "image_id": bytes(range(16)).hex(),
                "board": "rpi3",
                "firmware": "0.2.0",
                "max_message": 16384,
            },
        },
        "generate": {
            "bytes": generate.hex(),
            "fields": {
                "max_tokens": 64,
                "top_k": 40,
                "temperature": 0.5,
                "top_p": 0.75,
                "repetition_penalty": 1.25,
                "seed": 1 << 63,
                "stop": ["\n", "}}"],
                "segments": [["text", b"abc".hex()], ["ids", [1000, 1]], ["text", "é→".encode()[:4].hex()]],
            },
        },
        "error": {
            "bytes": (struct.pack("<iQQ", -15, 600, 512) + string("prompt") + string("the context is full")).hex(),
            "layout": "wqqss",
            "fields": {"status": -15, "got": 600, "wanted": 512, "where": "prompt", "sentence": "the context is full"},
        },
        "tokens": {
            "bytes": (struct.pack("<III", 5, 0, 20) + string("") + struct.pack("<III", 6, 1, 21) + string("né")).hex(),
            "layout": "wwwswwws",
            "fields": {"tokens": [[5, 0, 20, ""], [6, 1, 21, "né"]]},
        },
        "routes": {
            "bytes": struct.pack("<III2I2f", 3, 17, 2, 1, 6, 0.25, 0.75).hex(),
            "layout": "wwwwwff",
            "fields": {"routes": [[3, 17, [1, 6], [0.25, 0.75]]]},
        },
    }


def main() -> None:
    rng = random.Random(20240501)
    vectors = {"cobs": stuffing(rng), "frames": frames(rng), "damaged": damaged(), "bodies": bodies()}
    json.dump(vectors, sys.stdout, indent=1, ensure_ascii=False)
    print()


if __name__ == "__main__":
    main()
