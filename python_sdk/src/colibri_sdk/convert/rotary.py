# SPDX-License-Identifier: Apache-2.0
"""Rotary tables. The device has no sine and no cosine: it reads these."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

_ROWS_AT_ONCE = 4096


def inverse_frequencies(theta: float, dim: int) -> npt.NDArray[np.float32]:
    """1 / theta^(2i / dim) for i below dim / 2, rounded to float32 where transformers rounds: after the power and after
    the division.

    Rounding once would be nearer to the formula, and further from the numbers that models were trained with: an error
    of 1e-7 in a frequency is 1e-4 in the angle at position 1000. With these roundings cosines and sines are within
    one unit in the last place of those of transformers; measured at bases 1e4 and 1e6, up to context 512. Powers and
    cosines are taken in float64, where libraries agree to the last bit that survives the rounding.
    """
    exponent = np.arange(0, dim, 2, dtype=np.float32) / np.float32(dim)
    power = np.power(np.float64(theta), exponent.astype(np.float64)).astype(np.float32)
    return np.float32(1.0) / power


def tables(theta: float, dim: int, rows: int) -> Iterator[bytes]:
    """The rope section in pieces: cosines [rows][dim / 2], then sines, float32; row = position."""
    frequencies = inverse_frequencies(theta, dim)
    for function in (np.cos, np.sin):
        for start in range(0, rows, _ROWS_AT_ONCE):
            positions = np.arange(start, min(start + _ROWS_AT_ONCE, rows), dtype=np.float32)
            angles = positions[:, np.newaxis] * frequencies
            yield function(angles.astype(np.float64)).astype("<f4").tobytes()


def table_bytes(dim: int, rows: int) -> int:
    """Length of the rope section in bytes."""
    return 2 * rows * (dim // 2) * 4
