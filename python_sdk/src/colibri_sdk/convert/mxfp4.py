# SPDX-License-Identifier: Apache-2.0
"""MXFP4: blocks of 32 four-bit floats (E2M1) with one power of two (E8M0) for each block.

After the OCP Microscaling Formats (MX) specification v1.0. A weight is VALUES[code] / 2 x 2^(exponent - 127). Doubled,
all values are integers of -12 .. 12: so int8 blocks hold them exactly wherever binary16 has the power of two.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from colibri_sdk.convert.description import Floats
from colibri_sdk.convert.quantize import IntegerBlocks

Bytes = npt.NDArray[np.uint8]

BLOCK = 32

# Doubled values of the 16 codes.
_DOUBLED = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)

# E8M0's exponent of 1/2, whose multiples the doubled values are; its code for NaN; and what binary16 can hold.
_HALF = 128
_NAN = 255
_LOWEST, _HIGHEST = _HALF - 24, _HALF + 15


@dataclass(frozen=True)
class Mxfp4:
    """Rows of a matrix."""

    exponents: Bytes  # [rows][blocks]
    codes: Bytes  # [rows][blocks][32], each below 16

    @classmethod
    def from_pairs(cls, exponents: Bytes, data: Bytes) -> Mxfp4:
        """From bytes [rows][blocks][16] that hold neighbours, the first in the low half: as gpt-oss is published."""
        codes = np.empty((*data.shape[:-1], BLOCK), np.uint8)
        codes[..., 0::2], codes[..., 1::2] = data & 15, data >> 4
        return cls(exponents, codes)

    @classmethod
    def from_halves(cls, exponents: Bytes, data: Bytes) -> Mxfp4:
        """From bytes [rows][blocks][16] that hold weight i and i + 16, the first in the low half: as GGUF has it."""
        return cls(exponents, np.concatenate([data & 15, data >> 4], axis=-1))

    def floats(self) -> Floats:
        """[rows][cols] float32, exact; NaN where a block's exponent says so."""
        scale = np.ldexp(np.float32(1.0), self.exponents.astype(np.int32) - _HALF)
        scale = np.where(self.exponents == _NAN, np.float32(np.nan), scale).astype(np.float32)
        return (_DOUBLED[self.codes].astype(np.float32) * scale[..., np.newaxis]).reshape(self.codes.shape[0], -1)

    def integers(self) -> IntegerBlocks | None:
        """The same numbers as int8 blocks; None where a power of two lies outside binary16."""
        if ((self.exponents < _LOWEST) | (self.exponents > _HIGHEST)).any():
            return None
        scale = np.ldexp(np.float32(1.0), self.exponents.astype(np.int32) - _HALF).astype(np.float16)
        return IntegerBlocks(scale, _DOUBLED[self.codes])
