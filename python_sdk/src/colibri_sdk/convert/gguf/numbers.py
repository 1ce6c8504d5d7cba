# SPDX-License-Identifier: Apache-2.0
"""Numbers of GGUF tensors: rows of stored bytes to float32, or to the blocks that the image takes over as they are.

The gguf package dequantises. What is of our own is only what must not become floats on the way.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import numpy.typing as npt
from gguf import quants
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from colibri_sdk.convert.description import Floats
from colibri_sdk.convert.mxfp4 import Mxfp4
from colibri_sdk.convert.quantize import IntegerBlocks
from colibri_sdk.image.layout import BLOCK

Bytes = npt.NDArray[np.uint8]

# Types that can be packed.
READABLE_TYPES: tuple[str, ...] = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_K", "Q5_K", "Q6_K", "MXFP4")

_PLAIN = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype(ml_dtypes.bfloat16)}


def row_bytes(kind: GGMLQuantizationType, cols: int) -> int:
    """Bytes of a row of `cols` numbers."""
    block, size = GGML_QUANT_SIZES[kind]
    return cols // block * size


def to_floats(kind: GGMLQuantizationType, rows: Bytes) -> Floats:
    """Rows [rows][bytes] as float32 [rows][cols]; NaN and infinity stay what they are."""
    if kind.name in _PLAIN:
        plain: Floats = np.ascontiguousarray(rows).view(_PLAIN[kind.name]).astype(np.float32)
        return plain
    if kind is GGMLQuantizationType.MXFP4:
        return _mxfp4(rows).floats()
    with np.errstate(invalid="ignore", over="ignore"):
        return quants.dequantize(np.ascontiguousarray(rows), kind).astype(np.float32)


def to_blocks(kind: GGMLQuantizationType, rows: Bytes) -> IntegerBlocks | None:
    """The same rows, of one of BLOCK_TYPES, as integers and scales; None where a scale does not fit binary16."""
    if kind is GGMLQuantizationType.MXFP4:
        return _mxfp4(rows).integers()
    blocks = np.ascontiguousarray(rows).reshape(rows.shape[0], -1, GGML_QUANT_SIZES[kind][1])
    scale = np.ascontiguousarray(blocks[..., :2]).view("<f2")[..., 0]
    data = blocks[..., 2:]
    if kind is GGMLQuantizationType.Q8_0:
        return IntegerBlocks(scale, data.view(np.int8))
    nibbles = np.concatenate([data & 15, data >> 4], axis=-1)
    return IntegerBlocks(scale, nibbles.astype(np.int8) - np.int8(8))


def _mxfp4(rows: Bytes) -> Mxfp4:
    blocks = rows.reshape(rows.shape[0], -1, 1 + BLOCK // 2)
    return Mxfp4.from_halves(blocks[..., 0], blocks[..., 1:])
