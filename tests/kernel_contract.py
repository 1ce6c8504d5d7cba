# SPDX-License-Identifier: Apache-2.0
"""The numeric contract of kernels.h once more, in NumPy: every operation in binary32, rounded after each step.

Arrays run over rows and tokens, Python loops over what the contract orders: columns, blocks, elements of a lane.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
ROWS, BLOCK, LANES = 8, 32, 8

Q8 = np.dtype([("scale", "<f2", (ROWS,)), ("q", "i1", (8, ROWS, 4))])
Q4 = np.dtype([("scale", "<f2", (ROWS,)), ("q", "u1", (4, ROWS, 4))])


def q8_weights(tiles: NDArray[Any]) -> NDArray[np.int64]:
    """[row_tiles, blocks] tiles -> [row_tiles, blocks, row, column of the block]."""
    return tiles["q"].astype(np.int64).transpose(0, 1, 3, 2, 4).reshape(*tiles.shape, ROWS, BLOCK)


def q4_weights(tiles: NDArray[Any]) -> NDArray[np.int64]:
    nibbles = np.stack([tiles["q"] & 15, tiles["q"] >> 4], axis=3)  # [.., pair, half, row, column of four]
    return nibbles.astype(np.int64).transpose(0, 1, 4, 2, 3, 5).reshape(*tiles.shape, ROWS, BLOCK) - 8


def matmul_quantised(weights: NDArray[np.int64], scale: NDArray[np.float16], xq: NDArray[np.int8], xs: F32) -> F32:
    """weights [T, B, 8, 32], scale [T, B, 8], xq [n, B, 32], xs [n, B] -> [n, 8 * T]."""
    sums = np.einsum("tbrc,nbc->nbtr", weights, xq.astype(np.int64))
    acc = np.zeros((len(xq), weights.shape[0], ROWS), np.float32)
    for b in range(weights.shape[1]):
        factor = scale[None, :, b].astype(np.float32) * xs[:, b, None, None]
        acc = acc + sums[:, b].astype(np.float32) * factor
    return acc.reshape(len(xq), -1)


def matmul_float(weights: NDArray[Any], x: F32) -> F32:
    """weights [T, cols, 8] of binary16 or binary32, x [n, cols] -> [n, 8 * T]."""
    wide = weights.astype(np.float32)
    acc = np.zeros((len(x), wide.shape[0], ROWS), np.float32)
    for c in range(wide.shape[1]):
        acc = acc + wide[None, :, c] * x[:, c, None, None]
    return acc.reshape(len(x), -1)


def tree(s: F32) -> np.float32:
    return np.float32(((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7])))


def lane_sum(terms: F32) -> np.float32:
    lanes = np.zeros(LANES, np.float32)
    for start in range(0, len(terms), LANES):
        row = terms[start : start + LANES]
        lanes[: len(row)] = lanes[: len(row)] + row
    return tree(lanes)


def dot(a: F32, b: NDArray[Any]) -> np.float32:
    return lane_sum(a * b.astype(np.float32))


def exp(x: F32) -> F32:
    """The range reduction and Cephes polynomial of numeric.h."""
    f = np.float32
    clamped = np.clip(x, f(-87.33654), f(88))
    n = np.rint(clamped * f(1.44269504)).astype(np.float32)
    r = (clamped - n * f(0.693359375)) - n * f(-2.12194440e-4)
    p = f(1.9875691500e-4) * r + f(1.3981999507e-3)
    for c in (8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1):
        p = p * r + f(c)
    p = p * (r * r) + r
    p = p + f(1)
    return np.where(x < f(-87.33654), f(0), np.ldexp(p, n.astype(np.int32)))


def quantize(x: F32) -> tuple[bool, NDArray[np.int8], F32]:
    """x [blocks, 32] -> (all finite, q, scale)."""
    amax = np.abs(x).max(axis=1)
    if not np.isfinite(x).all():
        return False, np.zeros(x.shape, np.int8), np.zeros(len(x), np.float32)
    small = amax < np.float32(1e-30)
    safe = np.where(small, np.float32(1), amax)
    q = np.clip(np.rint(x * (np.float32(127) / safe)[:, None]), -127, 127)
    q[small] = 0
    return True, q.astype(np.int8), np.where(small, np.float32(0), safe / np.float32(127))


def swiglu(g: F32, u: F32) -> F32:
    return (g / (np.float32(1) + exp(-g))) * u
