# SPDX-License-Identifier: Apache-2.0
"""EdDSA on Curve25519 by the formulas of RFC 8032, on whole numbers, for any hash of 64 bytes. Slow, and not secret.

With SHA-512 it is Ed25519, which the RFC has test vectors for; with BLAKE2b it is what boards verify.
"""

from __future__ import annotations

from collections.abc import Callable

Hash = Callable[[bytes], bytes]
Point = tuple[int, int, int, int]  # X, Y, Z, T: x = X / Z, y = Y / Z, x y = T / Z

FIELD = 2**255 - 19
ORDER = 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, -1, FIELD) % FIELD
ZERO: Point = (0, 1, 1, 0)


def _add(p: Point, q: Point) -> Point:
    a = (p[1] - p[0]) * (q[1] - q[0])
    b = (p[1] + p[0]) * (q[1] + q[0])
    c, d = 2 * D * p[3] * q[3], 2 * p[2] * q[2]
    e, f, g, h = b - a, d - c, d + c, b + a
    return e * f % FIELD, g * h % FIELD, f * g % FIELD, e * h % FIELD


def _multiply(factor: int, point: Point) -> Point:
    total = ZERO
    for bit in f"{factor:b}":
        total = _add(total, total)
        if bit == "1":
            total = _add(total, point)
    return total


def _encode(point: Point) -> bytes:
    inverse = pow(point[2], -1, FIELD)
    x, y = point[0] * inverse % FIELD, point[1] * inverse % FIELD
    return (y | (x & 1) << 255).to_bytes(32, "little")


def _decode(data: bytes) -> Point | None:
    number = int.from_bytes(data, "little")
    y, odd = number & (1 << 255) - 1, number >> 255
    square = (y * y - 1) * pow(D * y * y + 1, -1, FIELD) % FIELD
    x = pow(square, (FIELD + 3) // 8, FIELD)
    if (x * x - square) % FIELD:
        x = x * pow(2, (FIELD - 1) // 4, FIELD) % FIELD
    if (x * x - square) % FIELD or y >= FIELD or (x == 0 and odd):
        return None
    x = x if x & 1 == odd else FIELD - x
    return x, y, 1, x * y % FIELD


_base = _decode((4 * pow(5, -1, FIELD) % FIELD).to_bytes(32, "little"))
assert _base is not None
BASE: Point = _base


def _expand(seed: bytes, digest: Hash) -> tuple[int, bytes]:
    both = digest(seed)
    return int.from_bytes(both[:32], "little") & (1 << 254) - 8 | 1 << 254, both[32:]


def _number(digest: Hash, *parts: bytes) -> int:
    return int.from_bytes(digest(b"".join(parts)), "little") % ORDER


def public_key(seed: bytes, digest: Hash) -> bytes:
    """The 32 bytes that belong to a seed of 32."""
    return _encode(_multiply(_expand(seed, digest)[0], BASE))


def sign(seed: bytes, message: bytes, digest: Hash) -> bytes:
    """64 bytes: R and S."""
    secret, prefix = _expand(seed, digest)
    nonce = _number(digest, prefix, message)
    commitment = _encode(_multiply(nonce, BASE))
    challenge = _number(digest, commitment, public_key(seed, digest), message)
    return commitment + ((nonce + challenge * secret) % ORDER).to_bytes(32, "little")


def check(signature: bytes, public: bytes, message: bytes, digest: Hash) -> bool:
    """Whether S B = R + k A, with S below the group's order."""
    s, key = int.from_bytes(signature[32:], "little"), _decode(public)
    if s >= ORDER or key is None:
        return False
    challenge = _number(digest, signature[:32], public, message)
    negative = (-key[0] % FIELD, key[1], 1, -key[3] % FIELD)
    return _encode(_add(_multiply(s, BASE), _multiply(challenge, negative))) == signature[:32]
