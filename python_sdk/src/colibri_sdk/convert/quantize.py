# SPDX-License-Identifier: Apache-2.0
"""Matrices to tiles: the numeric side of the packer.

Input is float32 [rows][cols]; output is the array that lies in the image (image.h, docs/image-format.md): tiles of 8
rows, for the integer formats of 32 columns, interleaved for SIMD. Everything is elementwise IEEE arithmetic in a
stated order, so that the same checkpoint gives the same image on every machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from colibri_sdk.errors import CheckpointError
from colibri_sdk.image.layout import BLOCK, TILE_Q4, TILE_Q8, TILE_ROWS, Format, align_up

Floats = npt.NDArray[np.float32]
Halves = npt.NDArray[np.float16]
Packed = npt.NDArray[Any]

# The smallest positive binary16. A block whose ideal scale lies below it takes this one: its error, at most half a
# scale, is then below 3e-8.
_SMALLEST_HALF = np.float16(2.0**-24)

# Candidate scales of a 4-bit block: its signed peak divided by these. The plain grids -7 .. 7 and, with the peak at -8,
# -8 .. 7; then a coarser one that leaves room, and two finer ones that clip the peak for the sake of the other weights.
_Q4_DIVISORS = (7.0, -8.0, -7.2, -8.8, 7.4)

# Rounds of fitting the scale to the best integers so far by least squares.
_Q4_FITS = 2


def pack_tensor(matrix: Floats, fmt: Format, name: str, scale: np.float16 | None = None) -> bytes:
    """The bytes of [rows][cols] float32 in format `fmt`. `name` is for messages. `scale`, with Format.Q8 only: the one
    scale of all blocks, from min_max_scale.

    `rows` must be a multiple of 8 unless these are the matrix's last rows, so that a matrix can be packed in pieces.
    Raises CheckpointError when a number is NaN or infinite or does not fit the format.
    """
    if not np.isfinite(matrix).all():
        row, col = (int(i) for i in np.argwhere(~np.isfinite(matrix))[0])
        raise CheckpointError(
            f"tensor {name} has {matrix[row, col]} at row {row}, column {col}",
            "NaN and infinity cannot be run; the checkpoint is damaged or its training diverged.",
            where=name,
        )
    if scale is not None:
        return _pack_one_scale(matrix, scale).tobytes()
    return _PACKERS[fmt](matrix, name).tobytes()


def _pad(matrix: Floats, rows: int, cols: int) -> Floats:
    """`matrix` with zero rows and columns added up to [rows][cols]."""
    if matrix.shape == (rows, cols):
        return matrix
    padded = np.zeros((rows, cols), np.float32)
    padded[: matrix.shape[0], : matrix.shape[1]] = matrix
    return padded


def _blocks(matrix: Floats) -> Floats:
    """[rows][cols] as [row group][row of 8][block][32], zero-padded."""
    rows, cols = align_up(matrix.shape[0], TILE_ROWS), align_up(matrix.shape[1], BLOCK)
    return _pad(matrix, rows, cols).reshape(rows // TILE_ROWS, TILE_ROWS, cols // BLOCK, BLOCK)


def _interleave(q: npt.NDArray[np.int8]) -> npt.NDArray[np.int8]:
    """[row group][row][block][32] to the tiles' order [row group][block][group of 4 columns][4 * row + column]."""
    groups, _, blocks, _ = q.shape
    split = q.reshape(groups, TILE_ROWS, blocks, 8, 4)
    return split.transpose(0, 2, 3, 1, 4).reshape(groups, blocks, 8, BLOCK)


def _row_groups(matrix: Floats) -> Floats:
    """[rows][cols] as [row group][cols][8], zero-padded."""
    rows, cols = align_up(matrix.shape[0], TILE_ROWS), matrix.shape[1]
    return _pad(matrix, rows, cols).reshape(rows // TILE_ROWS, TILE_ROWS, cols).transpose(0, 2, 1)


def _too_large(name: str, fmt: str, value: float) -> CheckpointError:
    return CheckpointError(
        f"tensor {name} has a weight of magnitude {value:g}, which {fmt} cannot hold",
        "Pack with --quant f32.",
        where=name,
    )


def _pack_vector(matrix: Floats, name: str) -> Packed:
    if matrix.shape[0] != 1:
        raise CheckpointError(f"tensor {name} is to be a vector and has {matrix.shape[0]} rows", where=name)
    return np.ascontiguousarray(matrix, "<f4")


def _pack_f32(matrix: Floats, name: str) -> Packed:
    return np.ascontiguousarray(_row_groups(matrix), "<f4")


def _pack_f16(matrix: Floats, name: str) -> Packed:
    with np.errstate(over="ignore"):
        halves = matrix.astype("<f2")
    if not np.isfinite(halves).all():
        raise _too_large(name, "f16", float(np.abs(matrix).max()))
    padded = np.zeros((align_up(halves.shape[0], TILE_ROWS), halves.shape[1]), "<f2")
    padded[: halves.shape[0]] = halves
    groups = padded.reshape(-1, TILE_ROWS, halves.shape[1]).transpose(0, 2, 1)
    return np.ascontiguousarray(groups)


def _to_half(scale: Floats) -> Halves:
    """binary16, round to nearest even; what would vanish becomes the smallest number of its sign. Zero stays zero."""
    with np.errstate(over="ignore"):
        half = scale.astype(np.float16)
    lost = (half == 0) & (scale != 0)
    return np.where(lost, np.copysign(_SMALLEST_HALF, scale).astype(np.float16), half)


def _divide(blocks: Floats, scale: Halves) -> Floats:
    """blocks / scale, 0 where the scale is 0."""
    wide = scale.astype(np.float32)[..., np.newaxis]
    wide[wide == 0] = np.inf
    return np.divide(blocks, wide)


def _pack_q8(matrix: Floats, name: str) -> Packed:
    """Per block: scale = amax / 127 in binary16, q = round-half-even(w / scale).

    Where rounding the scale down would push the peak past 127.5 (only far below 6e-5, where binary16 is coarse) the
    next larger scale is taken. The error of each weight is then at most half a scale.
    """
    blocks = _blocks(matrix)
    amax = np.abs(blocks).max(axis=3)
    scale = _to_half(amax / np.float32(127.0))
    if not np.isfinite(scale).all():
        raise _too_large(name, "q8", float(amax.max()))
    short = amax > scale.astype(np.float32) * np.float32(127.5)
    scale = np.where(short, np.nextafter(scale, np.float16(np.inf)), scale)
    q = np.clip(np.rint(_divide(blocks, scale)), -127, 127).astype(np.int8)
    return _tiles_q8(scale, q)


def _tiles_q8(scale: Halves, q: npt.NDArray[np.int8]) -> Packed:
    """Scales [row group][row][block] and integers [row group][row][block][32] as tiles."""
    tiles = np.zeros((q.shape[0], q.shape[2]), TILE_Q8)
    tiles["scale"] = scale.transpose(0, 2, 1)
    tiles["q"] = _interleave(q)
    return tiles


def min_max_scale(pieces: Iterable[Floats], name: str) -> np.float16:
    """The scale of a whole matrix: the smallest that reaches its minimum with -128 and its maximum with 127.

    Rounding to binary16 may cut the two off by at most half a step, as rounding does everywhere else.
    """
    low = high = np.float32(0)
    for piece in pieces:
        if np.isfinite(piece).all():  # otherwise pack_tensor says where
            low, high = min(low, piece.min()), max(high, piece.max())
    scale = _to_half(np.maximum(high / np.float32(127), -low / np.float32(128)))[()]
    if not np.isfinite(scale):
        raise _too_large(name, "i8", float(max(high, -low)))
    wide = np.float32(scale)
    short = high > wide * np.float32(127.5) or -low > wide * np.float32(128.5)
    return np.float16(np.nextafter(scale, np.float16(np.inf)) if short else scale)


def _pack_one_scale(matrix: Floats, scale: np.float16) -> Packed:
    """q = round-half-even(w / scale), -128 .. 127; the scale of rows that pad the last tile is 0."""
    blocks = _blocks(matrix)
    scales = np.zeros(blocks.shape[:3], np.float16)
    scales.reshape(-1, blocks.shape[2])[: matrix.shape[0]] = scale
    return _tiles_q8(scales, np.clip(np.rint(_divide(blocks, scales)), -128, 127).astype(np.int8))


def _sum_block(values: Floats) -> Floats:
    """Sum over the last axis of 32 by halving: a fixed order, where np.sum leaves its order to the build."""
    while values.shape[-1] > 1:
        half = values.shape[-1] // 2
        values = values[..., :half] + values[..., half:]
    return values[..., 0]


def _q4_integers(blocks: Floats, scale: Halves) -> Floats:
    """round-half-even(w / scale) in -8 .. 7, as floats."""
    q = _divide(blocks, scale)
    np.rint(q, out=q)
    return np.clip(q, -8, 7, out=q)


def _pack_q4(matrix: Floats, name: str) -> Packed:
    """Per block: the scale of the smallest squared error among the candidates, q = round-half-even(w / scale), -8 .. 7.

    Candidates are the signed peak divided by _Q4_DIVISORS and then, of the best one so far, the least-squares scale
    sum(w * q) / sum(q * q) of its own integers. Scales may be negative, which lets either sign reach -8. Ties keep the
    earlier candidate. On normal weights this leaves 70 % of the squared error of the grid -7 .. 7.
    """
    blocks = _blocks(matrix)
    at = np.abs(blocks).argmax(axis=3)[..., np.newaxis]
    peak = np.take_along_axis(blocks, at, axis=3)[..., 0]
    best_scale = np.zeros(peak.shape, np.float16)
    best_error = np.where(peak == 0, np.float32(0), np.float32(np.inf))

    def consider(scale: Halves) -> None:
        usable = np.where(np.isfinite(scale), scale, np.float16(0))
        miss = _q4_integers(blocks, usable)
        miss *= usable.astype(np.float32)[..., np.newaxis]
        np.subtract(blocks, miss, out=miss)
        # Squares of what no scale reaches may overflow: such a candidate is not taken.
        with np.errstate(over="ignore"):
            error = _sum_block(np.multiply(miss, miss, out=miss))
        better = (error < best_error) & np.isfinite(scale)
        np.copyto(best_error, error, where=better)
        np.copyto(best_scale, usable, where=better)

    for divisor in _Q4_DIVISORS:
        consider(_to_half(peak / np.float32(divisor)))
    if not np.isfinite(best_error).all():
        raise _too_large(name, "q4", float(np.abs(peak).max()))
    for _ in range(_Q4_FITS):
        q = _q4_integers(blocks, best_scale)
        above, below = _sum_block(blocks * q), _sum_block(q * q)
        consider(_to_half(np.divide(above, below, out=np.zeros_like(above), where=below != 0)))

    return _tiles_q4(best_scale, _q4_integers(blocks, best_scale).astype(np.int8))


def _tiles_q4(scale: Halves, q: npt.NDArray[np.int8]) -> Packed:
    """Scales [row group][row][block] and integers [row group][row][block][32], -8 .. 7, as tiles."""
    nibbles = _interleave(q + np.int8(8)).astype(np.uint8)
    tiles = np.zeros((nibbles.shape[0], nibbles.shape[1]), TILE_Q4)
    tiles["scale"] = scale.transpose(0, 2, 1)
    tiles["q"] = nibbles[:, :, 0::2] | (nibbles[:, :, 1::2] << 4)
    return tiles


@dataclass(frozen=True)
class IntegerBlocks:
    """Rows of a matrix as some checkpoints store them and as tiles hold them: scale x integer, in blocks of 32."""

    scale: Halves  # [rows][blocks]
    q: npt.NDArray[np.int8]  # [rows][blocks][32]

    @property
    def size(self) -> int:
        """Number of weights."""
        return self.q.size


def pack_blocks(rows: IntegerBlocks, fmt: Format, name: str) -> bytes:
    """The bytes of rows whose blocks are taken over bit for bit, in Q8 or, where integers are -8 .. 7, in Q4.

    The condition on the number of rows is pack_tensor's. Raises CheckpointError when a scale is NaN or infinite.
    """
    if not np.isfinite(rows.scale).all():
        row, block = (int(i) for i in np.argwhere(~np.isfinite(rows.scale))[0])
        raise CheckpointError(
            f"tensor {name} has the scale {rows.scale[row, block]} at row {row}, block {block}",
            "NaN and infinity cannot be run; the checkpoint is damaged.",
            where=name,
        )
    height, blocks = rows.scale.shape
    groups = align_up(height, TILE_ROWS) // TILE_ROWS
    scale = np.zeros((groups * TILE_ROWS, blocks), np.float16)
    q = np.zeros((groups * TILE_ROWS, blocks, BLOCK), np.int8)
    scale[:height], q[:height] = rows.scale, rows.q
    shaped = scale.reshape(groups, TILE_ROWS, blocks), q.reshape(groups, TILE_ROWS, blocks, BLOCK)
    return (_tiles_q8 if fmt is Format.Q8 else _tiles_q4)(*shaped).tobytes()


_PACKERS: dict[Format, Callable[[Floats, str], Packed]] = {
    Format.F32_VECTOR: _pack_vector,
    Format.F32: _pack_f32,
    Format.F16: _pack_f16,
    Format.Q8: _pack_q8,
    Format.Q4: _pack_q4,
}
