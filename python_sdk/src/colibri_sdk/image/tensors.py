# SPDX-License-Identifier: Apache-2.0
"""From the tiles of an image back to matrices, for inspection and tests. The engine never does this: it computes on
tiles."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from colibri_sdk.image.layout import BLOCK, TILE_Q4, TILE_Q8, TILE_ROWS, Format, align_up

Floats = npt.NDArray[np.float32]


def unpack_tensor(data: bytes | memoryview, fmt: Format, rows: int, cols: int) -> Floats:
    """The exact float32 values [rows][cols] of a tensor; `data` has tensor_bytes(fmt, rows, cols) bytes."""
    if fmt is Format.F32_VECTOR:
        return np.frombuffer(data, "<f4", count=cols).reshape(1, cols).copy()
    groups = align_up(rows, TILE_ROWS) // TILE_ROWS
    blocks = align_up(cols, BLOCK) // BLOCK
    if fmt in (Format.F32, Format.F16):
        flat = np.frombuffer(data, "<f4" if fmt is Format.F32 else "<f2").reshape(groups, cols, TILE_ROWS)
        return flat.transpose(0, 2, 1).reshape(groups * TILE_ROWS, cols)[:rows].astype(np.float32)
    if fmt is Format.Q8:
        tiles = np.frombuffer(data, TILE_Q8).reshape(groups, blocks)
        q = tiles["q"].reshape(groups, blocks, 8, TILE_ROWS, 4)
    else:
        tiles = np.frombuffer(data, TILE_Q4).reshape(groups, blocks)
        pairs = tiles["q"].reshape(groups, blocks, 4, 1, TILE_ROWS, 4)
        both = np.concatenate([pairs & 15, pairs >> 4], axis=3).astype(np.int8) - np.int8(8)
        q = both.reshape(groups, blocks, 8, TILE_ROWS, 4)
    by_row = q.transpose(0, 3, 1, 2, 4).reshape(groups, TILE_ROWS, blocks, BLOCK)
    scale = tiles["scale"].astype(np.float32).transpose(0, 2, 1)[..., np.newaxis]
    values = by_row.astype(np.float32) * scale
    return values.reshape(groups * TILE_ROWS, blocks * BLOCK)[:rows, :cols]
