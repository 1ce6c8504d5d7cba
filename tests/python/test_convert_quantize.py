# SPDX-License-Identifier: Apache-2.0
"""Tiles hold the weights they were made from, as exactly as their format can."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from colibri_sdk.convert.quantize import pack_tensor
from colibri_sdk.errors import CheckpointError
from colibri_sdk.image.layout import BLOCK, TILE_Q4, TILE_Q8, TILE_ROWS, Format, align_up, tensor_bytes
from colibri_sdk.image.tensors import unpack_tensor

Floats = npt.NDArray[np.float32]

MATRIX_FORMATS = [Format.F32, Format.F16, Format.Q8, Format.Q4]
SHAPES = st.tuples(st.integers(1, 10), st.integers(1, 40))


def matrices(largest: float) -> st.SearchStrategy[Floats]:
    """All shapes that matter to tiles; all kinds of numbers, zeros, denormals and negative zeros included."""
    return arrays.arrays(
        np.float32, SHAPES, elements=st.floats(-largest, largest, width=32, allow_nan=False), fill=st.nothing()
    )


def scales_per_weight(data: bytes, fmt: Format, rows: int, cols: int) -> Floats:
    """The scale of each weight's block, [rows][cols]."""
    dtype = TILE_Q8 if fmt is Format.Q8 else TILE_Q4
    tiles = np.frombuffer(data, dtype).reshape(align_up(rows, TILE_ROWS) // TILE_ROWS, -1)
    by_row = tiles["scale"].astype(np.float32).transpose(0, 2, 1).reshape(-1, tiles.shape[1])
    return by_row.repeat(BLOCK, axis=1)[:rows, :cols]


@settings(max_examples=60, deadline=None)
@given(matrices(60000.0), st.sampled_from(MATRIX_FORMATS))
def test_length_is_what_the_layout_says(matrix: Floats, fmt: Format) -> None:
    assert len(pack_tensor(matrix, fmt, "t")) == tensor_bytes(fmt, *matrix.shape)


@settings(max_examples=60, deadline=None)
@given(matrices(2.0**127))
def test_f32_keeps_every_bit(matrix: Floats) -> None:
    back = unpack_tensor(pack_tensor(matrix, Format.F32, "t"), Format.F32, *matrix.shape)
    assert back.tobytes() == matrix.tobytes()


@settings(max_examples=60, deadline=None)
@given(matrices(65000.0))
def test_f16_rounds_to_nearest(matrix: Floats) -> None:
    back = unpack_tensor(pack_tensor(matrix, Format.F16, "t"), Format.F16, *matrix.shape)
    assert np.array_equal(back, matrix.astype(np.float16).astype(np.float32))


@settings(max_examples=60, deadline=None)
@given(matrices(1e6))
def test_q8_errs_by_at_most_half_a_scale(matrix: Floats) -> None:
    data = pack_tensor(matrix, Format.Q8, "t")
    back = unpack_tensor(data, Format.Q8, *matrix.shape)
    scale = scales_per_weight(data, Format.Q8, *matrix.shape)
    # half a scale, and the last bit of the quotient that decided the rounding
    assert (np.abs(back.astype(np.float64) - matrix) <= scale * (0.5 + 2.0**-15)).all()


@pytest.mark.parametrize("steps", [1.0, 1.3, 1.45, 2.4, 3.49, 1023.4])
def test_q8_errs_by_at_most_half_a_scale_where_scales_are_coarse(steps: float) -> None:
    """Far below 6e-5 binary16 has steps of 2**-24: a scale rounded down there would cut the peak off."""
    weights = np.linspace(-1, 1, 32, dtype=np.float32).reshape(1, 32) * np.float32(127 * steps * 2.0**-24)
    data = pack_tensor(weights, Format.Q8, "t")
    scale = scales_per_weight(data, Format.Q8, 1, 32)
    assert (np.abs(unpack_tensor(data, Format.Q8, 1, 32) - weights) <= scale * (0.5 + 2.0**-15)).all()


@settings(max_examples=60, deadline=None)
@given(matrices(1e5))
def test_q8_scale_is_not_wasted(matrix: Floats) -> None:
    """The largest weight of a block uses the integer's range: otherwise bits are lost that cost nothing."""
    tiles = np.frombuffer(pack_tensor(matrix, Format.Q8, "t"), TILE_Q8)
    largest = np.abs(tiles["q"].reshape(-1, 8, TILE_ROWS, 4).astype(int)).max(axis=(1, 3))
    normal = tiles["scale"] >= np.float16(2.0**-14)
    assert (largest[normal] >= 126).all()


@settings(max_examples=60, deadline=None)
@given(matrices(1e5))
def test_q4_is_no_worse_than_the_plain_grid(matrix: Floats) -> None:
    """Squared error per block against scale = amax / 7 in binary16 on -7 .. 7."""
    rows, cols = matrix.shape
    back = unpack_tensor(pack_tensor(matrix, Format.Q4, "t"), Format.Q4, rows, cols)
    padded = np.zeros((rows, align_up(cols, BLOCK)), np.float64)
    padded[:, :cols] = matrix
    blocks = padded.reshape(rows, -1, BLOCK)
    with np.errstate(over="ignore"):
        scale = (np.abs(blocks).max(-1, keepdims=True).astype(np.float32) / np.float32(7)).astype(np.float16)
    finite = np.isfinite(scale[..., 0]) & (scale[..., 0] != 0)
    wide = np.where(finite[..., None], scale, 1).astype(np.float64)
    plain = np.clip(np.rint(blocks / wide), -7, 7) * wide
    ours = np.zeros_like(padded)
    ours[:, :cols] = back
    error = ((ours.reshape(blocks.shape) - blocks) ** 2).sum(-1)
    bound = ((plain - blocks) ** 2).sum(-1)
    assert (error[finite] <= bound[finite] * (1 + 1e-6) + 1e-30).all()


def test_q4_search_beats_the_plain_grid_clearly() -> None:
    """On normal weights the search must be worth its time: a quarter of the squared error at least."""
    weights = np.random.default_rng(5).standard_normal((256, 256)).astype(np.float32)
    back = unpack_tensor(pack_tensor(weights, Format.Q4, "t"), Format.Q4, 256, 256)
    blocks = weights.reshape(256, 8, 32)
    scale = (np.abs(blocks).max(-1, keepdims=True) / 7).astype(np.float16).astype(np.float32)
    plain = (np.clip(np.rint(blocks / scale), -7, 7) * scale - blocks) ** 2
    assert ((back - weights) ** 2).mean() < 0.75 * plain.mean()


@pytest.mark.parametrize("fmt", [Format.Q8, Format.Q4])
def test_integers_on_the_grid_are_exact(fmt: Format) -> None:
    """What a format can hold, it holds: multiples of a power of two that span the integers' range."""
    top = 127 if fmt is Format.Q8 else 7
    weights = np.random.default_rng(1).integers(-top, top + 1, (9, 65)).astype(np.float32) * np.float32(0.25)
    weights[:, ::32] = top * 0.25
    assert np.array_equal(unpack_tensor(pack_tensor(weights, fmt, "t"), fmt, 9, 65), weights)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_q4_uses_its_sixteenth_value(sign: float) -> None:
    """-8 .. 7 in a power of two is exact, and so is its mirror image, whose scale is negative."""
    weights = (np.arange(32) % 16 - 8).astype(np.float32).reshape(1, 32) * np.float32(0.5 * sign)
    assert np.array_equal(unpack_tensor(pack_tensor(weights, Format.Q4, "t"), Format.Q4, 1, 32), weights)


def test_tiles_lie_as_image_h_says() -> None:
    """Each weight of an 8 x 32 tile is its own number; every one must be where the header puts it."""
    weights = np.arange(256, dtype=np.float32).reshape(8, 32) - 128
    weights[:, 0] = 127  # the scale is 1
    weights = np.clip(weights, -127, 127)
    tile = np.frombuffer(pack_tensor(weights, Format.Q8, "t"), TILE_Q8)[0]
    for row in range(8):
        assert tile["scale"][row] == 1
        for column in range(32):
            group, c = divmod(column, 4)
            assert tile["q"][group][4 * row + c] == weights[row, column]


def test_nibbles_lie_as_image_h_says() -> None:
    weights = np.random.default_rng(2).integers(-7, 8, (8, 32)).astype(np.float32)
    weights[:, 3] = 7
    weights[:, 4] = -7
    tile = np.frombuffer(pack_tensor(weights, Format.Q4, "t"), TILE_Q4)[0]
    for row in range(8):
        for column in range(32):
            pair, rest = divmod(column, 8)
            high, c = divmod(rest, 4)
            byte = int(tile["q"][pair][4 * row + c])
            nibble = byte >> 4 if high else byte & 15
            assert (nibble - 8) * float(tile["scale"][row]) == weights[row, column]


@pytest.mark.parametrize(("fmt", "empty"), [(Format.Q8, 0), (Format.Q4, 0x88)])
def test_missing_rows_and_columns_are_zero(fmt: Format, empty: int) -> None:
    data = pack_tensor(np.full((1, 1), 3, np.float32), fmt, "t")
    tile = np.frombuffer(data, TILE_Q8 if fmt is Format.Q8 else TILE_Q4)[0]
    assert (tile["scale"][1:] == 0).all()
    rest = tile["q"].astype(np.uint8).ravel()
    assert (rest[1:] == empty).all()
    assert (np.delete(unpack_tensor(data, fmt, 8, 32), 0) == 0).all()


@settings(max_examples=40, deadline=None)
@given(matrices(1000.0), st.sampled_from(MATRIX_FORMATS), st.integers(1, 3))
def test_pieces_of_rows_give_the_whole(matrix: Floats, fmt: Format, groups: int) -> None:
    step = groups * TILE_ROWS
    pieces = [pack_tensor(matrix[row : row + step], fmt, "t") for row in range(0, len(matrix), step)]
    assert b"".join(pieces) == pack_tensor(matrix, fmt, "t")


@pytest.mark.parametrize("fmt", [Format.F32_VECTOR, *MATRIX_FORMATS])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_are_refused_by_name(fmt: Format, bad: float) -> None:
    matrix = np.zeros((1, 40), np.float32)
    matrix[0, 17] = bad
    with pytest.raises(CheckpointError, match=r"tensor some\.weight has .*row 0, column 17"):
        pack_tensor(matrix, fmt, "some.weight")


@pytest.mark.parametrize(("fmt", "value"), [(Format.F16, 65520.0), (Format.Q8, 8.4e6), (Format.Q4, 7e5)])
def test_what_does_not_fit_is_refused_by_name(fmt: Format, value: float) -> None:
    with pytest.raises(CheckpointError, match=r"tensor some\.weight has a weight of magnitude") as caught:
        pack_tensor(np.full((1, 32), value, np.float32), fmt, "some.weight")
    assert "--quant f32" in caught.value.hint


@pytest.mark.parametrize("fmt", [Format.Q8, Format.Q4])
def test_tiny_blocks_get_the_smallest_scale(fmt: Format) -> None:
    weights = np.full((1, 32), 1e-12, np.float32)
    data = pack_tensor(weights, fmt, "t")
    assert np.abs(unpack_tensor(data, fmt, 1, 32) - weights).max() <= 2.0**-25
    assert (scales_per_weight(data, fmt, 1, 32) != 0).all()
