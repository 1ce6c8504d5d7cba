# SPDX-License-Identifier: Apache-2.0
"""The NumPy dtypes of the image are what the C compiler makes of image.h, field for field."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from colibri_sdk.image import layout
from dwarf import Types, compiled_types

ENGINE = Path(__file__).resolve().parents[2] / "firmware" / "engine"


@pytest.fixture(scope="module")
def types(tmp_path_factory: pytest.TempPathFactory) -> Types:
    # Constants are macros, which DWARF does not have: an enum brings them in.
    constants = "".join(f"    MIRRORED_{name} = (int)({name} & 0x7fffffffu),\n" for name in layout.CONSTANTS)
    text = f"""
#include "image.h"
#include "image_view.h"
enum mirrored {{
{constants}}};
enum mirrored used;
"""
    return compiled_types(tmp_path_factory.mktemp("layout"), text, ENGINE)


def on_disk_structs(types: Types) -> set[str]:
    """Those that image.h defines; the engine's own structs in memory are not among them."""
    text = (ENGINE / "image.h").read_text()
    return {name for name in types.structs if f"COL_ASSERT_SIZE(struct {name}," in text}


def test_every_struct_of_the_image_is_mirrored(types: Types) -> None:
    assert on_disk_structs(types) == set(layout.STRUCTS)


@pytest.mark.parametrize("name", layout.STRUCTS)
def test_struct_has_the_same_fields(types: Types, name: str) -> None:
    dtype = layout.STRUCTS[name]
    assert dtype.fields is not None and dtype.names is not None
    mirrored = [(field, dtype.fields[field][1], dtype.fields[field][0].itemsize) for field in dtype.names]
    compiled = [(member.name, member.offset, member.size) for member in types.structs[name].members]
    assert mirrored == compiled
    assert dtype.itemsize == types.structs[name].size


@pytest.mark.parametrize("name", layout.ENUMS)
def test_enum_has_the_same_constants(types: Types, name: str) -> None:
    enum, prefix = layout.ENUMS[name]
    assert {prefix + member.name: member.value for member in enum} == types.enums[name]


def test_constants_are_the_same(types: Types) -> None:
    compiled = {name.removeprefix("MIRRORED_"): value for name, value in types.enums["mirrored"].items()}
    assert compiled == {name: value & 0x7FFFFFFF for name, value in layout.CONSTANTS.items()}


def test_magic_is_the_same() -> None:
    assert '#define COL_IMAGE_MAGIC "COLIBRI\\x1a"' in (ENGINE / "image.h").read_text()
    assert layout.MAGIC == b"COLIBRI\x1a"


def test_no_dtype_has_padding() -> None:
    for dtype in layout.STRUCTS.values():
        assert dtype.fields is not None
        assert sum(field[0].itemsize for field in dtype.fields.values()) == dtype.itemsize


@given(st.integers(0, 2**40), st.integers(1, 2**20))
def test_align_up(value: int, step: int) -> None:
    aligned = layout.align_up(value, step)
    assert aligned % step == 0 and value <= aligned < value + step


@pytest.mark.parametrize("fmt", layout.Format)
def test_tensor_bytes_grow_with_tiles(fmt: layout.Format) -> None:
    """By hand: 9 rows are two row groups, 33 columns two blocks."""
    expected = {
        layout.Format.F32_VECTOR: 33 * 4,
        layout.Format.F32: 2 * 33 * 8 * 4,
        layout.Format.F16: 2 * 33 * 8 * 2,
        layout.Format.Q8: 2 * 2 * (8 * 2 + 8 * 32),
        layout.Format.Q4: 2 * 2 * (8 * 2 + 8 * 32 // 2),
    }
    rows = 1 if fmt is layout.Format.F32_VECTOR else 9
    assert layout.tensor_bytes(fmt, rows, 33) == expected[fmt]


def test_byte_order_is_little_endian() -> None:
    header = np.zeros((), layout.HEADER)
    header["format_version"] = 0x01020304
    assert header.tobytes()[8:12] == bytes([4, 3, 2, 1])


TYPES = {"u8": "u1", "i8": "i1", "u16": "<u2", "u32": "<u4", "u64": "<u8", "f16": "<f2", "f32": "<f4", "char": "S"}


@pytest.mark.parametrize("name", layout.STRUCTS)
def test_documentation_has_the_same_fields(repo_root: Path, name: str) -> None:
    """docs/image-format.md: | offset | type | field | meaning |, in the order of the struct."""
    text = (repo_root / "docs" / "image-format.md").read_text()
    part = text.split(f"### `{name}`\n")[1].split("\n#")[0]
    rows = re.findall(r"^\| (\d+) \| (\w+)((?:\[\d+\])*) \| `(\w+)` \|", part, re.MULTILINE)
    dtype = layout.STRUCTS[name]
    assert dtype.fields is not None and dtype.names is not None
    assert [row[3] for row in rows] == list(dtype.names)
    for offset, base, bounds, field in rows:
        kind, at = dtype.fields[field][:2]
        assert int(offset) == at, field
        shape = tuple(int(bound) for bound in re.findall(r"\d+", bounds))
        if base in layout.STRUCTS:
            assert kind == layout.STRUCTS[base], field
        elif base == "char":
            assert kind == np.dtype(f"S{shape[0]}")
        elif kind.kind == "V" and kind.subdtype is None:
            assert base == "u8" and shape == (kind.itemsize,)
        else:
            assert kind == np.dtype((TYPES[base], shape)), field
