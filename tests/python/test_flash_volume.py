# SPDX-License-Identifier: Apache-2.0
"""Volumes with two slots: their structs are the C compiler's; what is written is read back, or said to be damaged."""

from __future__ import annotations

import io
import itertools
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from colibri_sdk.errors import FlashError
from colibri_sdk.flash import volume
from colibri_sdk.flash.volume import BootState, Volume
from dwarf import Types, compiled_types

RUNTIME = Path(__file__).resolve().parents[2] / "firmware" / "runtime"
MIB = 1 << 20
PAGE = 4096


@pytest.fixture(scope="module")
def types(tmp_path_factory: pytest.TempPathFactory) -> Types:
    constants = "".join(f"    MIRRORED_{name} = (int)({name}),\n" for name in volume.CONSTANTS)
    used = "".join(f"enum {name} {name}_used;\n" for name in ("col_boot_result", "mirrored"))
    used += "".join(f"struct {name} {name}_used;\n" for name in volume.STRUCTS)
    text = f'#include "volume.h"\nenum mirrored {{\n{constants}}};\n{used}'
    return compiled_types(tmp_path_factory.mktemp("volume"), text, RUNTIME)


@pytest.mark.parametrize("name", volume.STRUCTS)
def test_struct_has_the_same_fields(types: Types, name: str) -> None:
    dtype = volume.STRUCTS[name]
    assert dtype.fields is not None and dtype.names is not None
    mirrored = [(field, dtype.fields[field][1], dtype.fields[field][0].itemsize) for field in dtype.names]
    assert mirrored == [(member.name, member.offset, member.size) for member in types.structs[name].members]
    assert dtype.itemsize == types.structs[name].size


def test_every_struct_of_the_volume_is_mirrored(types: Types) -> None:
    text = (RUNTIME / "volume.h").read_text()
    assert {name for name in types.structs if f"COL_ASSERT_SIZE(struct {name}," in text} == set(volume.STRUCTS)


def test_enum_and_constants_are_the_same(types: Types) -> None:
    assert {f"COL_BOOT_{one.name}": one.value for one in volume.BootResult} == types.enums["col_boot_result"]
    compiled = {name.removeprefix("MIRRORED_"): value for name, value in types.enums["mirrored"].items()}
    assert compiled == volume.CONSTANTS


def test_magics_are_the_same() -> None:
    text = (RUNTIME / "volume.h").read_text()
    for name, magic in (("VOLUME", volume.VOLUME_MAGIC), ("BOOT", volume.BOOT_STATE_MAGIC)):
        assert f'#define COL_{name}_MAGIC "{magic[:-1].decode()}\\x1a"' in text


@given(st.integers(PAGE, 1 << 40))
def test_parts_lie_apart_and_take_the_image(image_bytes: int) -> None:
    made = volume.plan(image_bytes)
    parts = [(0, PAGE), (made.state_offset, 2 * PAGE), *zip(made.slot_offsets, made.slot_bytes, strict=True)]
    for (start, size), (following, _) in itertools.pairwise(parts):
        assert start + size <= following
    assert all(offset % MIB == 0 for offset in made.slot_offsets)
    assert made.slot_bytes[0] == made.slot_bytes[1] >= image_bytes
    assert made.bytes == made.slot_offsets[1] + made.slot_bytes[1]


def test_a_fresh_volume_by_hand() -> None:
    """Field by field with struct, at the offsets of volume.h."""
    pages = volume.make_head(volume.plan(5 * MIB), counter=7)
    assert len(pages) == 3 * PAGE
    assert struct.unpack_from("<8sIIQQQQQ", pages) == (
        *(b"COLIVOL\x1a", 1, 2),
        *(MIB, 6 * MIB, 7 * MIB, 6 * MIB),  # a sixteenth more than 5 MiB, in whole MiB
        PAGE,
    )
    assert struct.unpack_from("<8sQIIIIQIi", pages, PAGE) == (b"COLIBOT\x1a", 1, 0, 0, 0, 0, 7, 0, 0)
    for start in (0, PAGE):
        assert struct.unpack_from("<I", pages, start + 508)[0] == zlib.crc32(pages[start : start + 508])
    assert not any(pages[512:PAGE]) and not any(pages[PAGE + 512 :])


def state_sector(sequence: int, *, active: int = 0, trial: int = 0) -> bytes:
    head = struct.pack("<8sQIIIIQIi", b"COLIBOT\x1a", sequence, active, trial, 2, 3, 5, 1, -20).ljust(508, b"\0")
    return head + struct.pack("<I", zlib.crc32(head))


def with_states(*sectors: bytes, start: int = 0) -> io.BytesIO:
    made = volume.plan(MIB)
    content = bytearray(start) + bytearray(volume.make_head(made)).ljust(made.bytes, b"\0")
    for page, sector in enumerate(sectors, 1):
        content[start + page * PAGE : start + page * PAGE + 512] = sector
    return io.BytesIO(bytes(content))


@pytest.mark.parametrize("order", [(8, 9), (9, 8)])
def test_the_newer_valid_boot_state_counts(order: tuple[int, int]) -> None:
    states = {8: state_sector(8), 9: state_sector(9, active=1, trial=1)}
    found = volume.read(with_states(*(states[number] for number in order), start=MIB), MIB, "card")
    assert found == (Volume((MIB, 3 * MIB), (2 * MIB, 2 * MIB), PAGE), BootState(9, 1, 0, 2, 3, 5, 1, -20))
    torn = {8: state_sector(8), 9: state_sector(9)[:300] + bytes(212)}
    again = volume.read(with_states(*(torn[number] for number in order)), 0, "card")
    assert again is not None and (again[1].sequence, again[1].trial) == (8, None)


def test_what_is_no_volume_or_damaged() -> None:
    assert volume.read(io.BytesIO(b"COLIBRI\x1a" + bytes(PAGE)), 0, "card") is None
    assert volume.read(io.BytesIO(b""), 0, "card") is None
    with pytest.raises(FlashError, match="no valid boot state"):
        volume.read(with_states(bytes(512), b"\xff" * 512), 0, "card")


@pytest.mark.parametrize("state", [{"active": 2}, {"trial": 3}, {"active": 1, "trial": 2}, {"active": 2**32 - 1}])
def test_a_state_that_no_board_would_take_does_not_count(state: dict[str, int]) -> None:
    found = volume.read(with_states(state_sector(8), state_sector(9, **state)), 0, "card")
    assert found is not None and found[1].sequence == 8
    with pytest.raises(FlashError, match="no valid boot state"):
        volume.read(with_states(bytes(512), state_sector(9, **state)), 0, "card")


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("offset", 0, "impossible"),
        ("offset", MIB + 512, "impossible"),
        ("bytes", 0, "impossible"),
        ("bytes", 1 << 62, "its volume ends at byte"),
        ("offset", 2**64 - PAGE, "its volume ends at byte"),
        ("state_offset", 2**64 - PAGE, "its volume ends at byte"),
        ("state_offset", 0, "impossible"),
    ],
)
def test_parts_that_lie_nowhere_are_refused(field: str, value: int, words: str) -> None:
    content = bytearray(with_states().getvalue())
    head = np.frombuffer(content, volume.VOLUME, 1)[0]
    (head if field == "state_offset" else head["slot"][1])[field] = value
    content[508:512] = struct.pack("<I", zlib.crc32(content[:508]))
    with pytest.raises(FlashError, match=words):
        volume.read(io.BytesIO(content), 0, "card")


def test_a_card_that_was_cut_off_is_said_to_be_too_small() -> None:
    content = with_states().getvalue()
    with pytest.raises(FlashError, match="and its volume ends at byte 5,242,880") as failed:
        volume.read(io.BytesIO(content[:-1]), 0, "card")
    assert "large enough" in failed.value.hint


@pytest.mark.parametrize("at", [8, 12, 16, 63, 400, 508])
def test_a_damaged_head_is_said_to_be(at: int) -> None:
    content = bytearray(volume.make_head(volume.plan(MIB)))
    content[at] ^= 1
    with pytest.raises(FlashError, match="first page is damaged"):
        volume.read(io.BytesIO(bytes(content)), 0, "card")


def test_another_version_is_named() -> None:
    content = bytearray(volume.make_head(volume.plan(MIB)))
    content[8] = 9
    content[508:512] = struct.pack("<I", zlib.crc32(content[:508]))
    with pytest.raises(FlashError, match="version 9 with 2 slots"):
        volume.read(io.BytesIO(bytes(content)), 0, "card")
