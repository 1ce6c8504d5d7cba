# SPDX-License-Identifier: Apache-2.0
"""An image that is inconsistent in any way is refused, by the name of the section or the dimension at fault."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from colibri_sdk.engine import Library
from colibri_sdk.errors import ImageError
from colibri_sdk.image.layout import HEADER, PAGE, SECTION, UPDATE_HEAD, SectionKind, member
from forge import Forge

Packed = Callable[[str], Path]


@pytest.fixture(scope="module")
def library(host_library: Path) -> Library:
    return Library.load(host_library)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("forged") / "forged.colibri"


def refusal(library: Library, forge: Forge, path: Path) -> ImageError:
    forge.write(path)
    with pytest.raises(ImageError) as caught:
        library.validate(path)
    return caught.value


@pytest.mark.parametrize("quant", ["q8", "q4", "f16", "f32"])
def test_what_the_packer_makes_is_right(
    library: Library, hummingbird: Packed, tiny_mixtral: Packed, quant: str
) -> None:
    library.validate(hummingbird(quant))
    library.validate(tiny_mixtral(quant))


@pytest.mark.parametrize("missing", [1, 64, PAGE, 10 * PAGE])
def test_short_and_long_files(library: Library, hummingbird: Packed, bench: Path, missing: int) -> None:
    forge = Forge(hummingbird("q8"))
    whole = forge.data
    forge.data = whole[:-missing]
    assert refusal(library, forge, bench).status == -5
    forge.data = np.concatenate([whole, np.zeros(missing, np.uint8)])
    assert refusal(library, forge, bench).status == -5


@pytest.mark.parametrize("size", [0, 1, 127, PAGE - 1])
def test_files_below_a_page(library: Library, hummingbird: Packed, bench: Path, size: int) -> None:
    forge = Forge(hummingbird("q8"))
    forge.data = forge.data[:size]
    assert refusal(library, forge, bench).where == "header"


@given(place=st.integers(0, 2**40), bit=st.integers(0, 7))
@settings(max_examples=150, deadline=None)
def test_every_flipped_bit_is_found(library: Library, hummingbird: Packed, bench: Path, place: int, bit: int) -> None:
    """Checksums cover every byte, or the byte is one that must be zero; but for those that mean nothing: the copy of
    the table of updates that does not count, the entries that it does not have, and the spare places for experts."""
    forge = Forge(hummingbird("q4"))
    updates, experts = (int(forge.section(kind)["offset"][0]) for kind in (SectionKind.UPDATES, SectionKind.EXPERTS))
    spare = experts + int(forge.experts["offset"][-1] + forge.experts["bytes"][-1])
    places = np.r_[0 : updates + UPDATE_HEAD.itemsize, experts:spare]
    forge.data[places[place % places.size]] ^= 1 << bit
    assert refusal(library, forge, bench).where


def test_a_flip_names_its_section(library: Library, hummingbird: Packed, bench: Path) -> None:
    for kind in SectionKind:
        forge = Forge(hummingbird("q8"))
        contents = forge.contents(kind)
        contents[100 if kind is SectionKind.UPDATES else contents.size // 2] ^= 0x10
        error = refusal(library, forge, bench)
        assert error.status == (-9 if kind is SectionKind.UPDATES else -8)
        assert error.where == kind.name.lower().replace("_", "-")


def test_bytes_that_mean_nothing_may_have_any_value(library: Library, hummingbird: Packed, bench: Path) -> None:
    forge = Forge(hummingbird("q8"))
    updates = forge.contents(SectionKind.UPDATES)
    updates[UPDATE_HEAD.itemsize : updates.size // 2] = 0xA5
    updates[updates.size // 2 :] = 0x5A
    end = int(forge.experts["offset"][-1] + forge.experts["bytes"][-1])
    forge.contents(SectionKind.EXPERTS)[end:] = 0xFF
    library.validate(forge.write(bench))


@pytest.mark.parametrize("field", ["offset", "bytes", "layer", "expert", "pin"])
@pytest.mark.parametrize("value", [1, 7, 9, 2**31 - 1, 2**32 - 1, 2**63, 2**64 - PAGE])
def test_expert_directory(library: Library, hummingbird: Packed, bench: Path, field: str, value: int) -> None:
    forge = Forge(hummingbird("q8"))
    last = forge.experts[-1:]
    if value >= 2 ** (8 * last[field].dtype.itemsize) or last[field][0] == value or (field == "pin" and value <= 8):
        pytest.skip("does not fit the field, or is right")
    last[field] = value
    forge.seal()
    error = refusal(library, forge, bench)
    assert (error.status, error.where) == (-12, "expert-dir")


@pytest.mark.parametrize("value", [0, 1, 2**12 - 1, 2**63, 2**64 - PAGE, 2**64 - 1])
@pytest.mark.parametrize("field", ["offset", "bytes"])
@pytest.mark.parametrize("kind", list(SectionKind))
def test_section_ranges(
    library: Library, hummingbird: Packed, bench: Path, kind: SectionKind, field: str, value: int
) -> None:
    if field == "bytes" and value == 4095 and kind in {SectionKind.CARD, SectionKind.TEMPLATE}:
        pytest.skip("only zeros more, which these sections may end with")
    forge = Forge(hummingbird("q8"))
    table = forge.sections
    table[field][table["kind"] == kind] = value
    forge.seal()
    assert refusal(library, forge, bench).status in {-9, -5, -10, -8, -13}


def test_overlapping_sections(library: Library, hummingbird: Packed, bench: Path) -> None:
    forge = Forge(hummingbird("q8"))
    table = forge.sections
    table["offset"][3] = table["offset"][2]
    forge.seal()
    error = refusal(library, forge, bench)
    assert (error.status, error.where) == (-9, table["name"][3].decode())


def test_missing_and_doubled_sections(library: Library, hummingbird: Packed, bench: Path) -> None:
    for kind in SectionKind:
        forge = Forge(hummingbird("q8"))
        rest = forge.sections[forge.sections["kind"] != kind].copy()
        forge.header["section_count"] = len(rest)
        forge.data[128 : 128 + rest.nbytes] = rest.view(np.uint8)
        forge.seal()
        assert refusal(library, forge, bench).status in {-9, -5}
    forge = Forge(hummingbird("q8"))
    forge.sections["kind"][2] = forge.sections["kind"][1]
    forge.seal()
    assert refusal(library, forge, bench).status == -9


@pytest.mark.parametrize(
    ("field", "value", "status"),
    [
        ("magic", b"COLIBRIS", -6), ("format_version", 1, -7), ("numeric_version", 9, -7), ("page_bytes", 512, -10),
        ("section_count", 0, -10), ("section_count", 63, -10), ("section_count", 2**32 - 1, -10), ("prng", 7, -14),
        ("image_bytes", 0, -5), ("image_bytes", 2**64 - 1, -5), ("model_name", b"x" * 48, -9),
    ],
)  # fmt: skip
def test_header(library: Library, hummingbird: Packed, bench: Path, field: str, value: Any, status: int) -> None:
    forge = Forge(hummingbird("q8"))
    forge.header[field] = np.void(value) if field == "magic" else value
    forge.seal(sections=False)
    assert refusal(library, forge, bench).status == status


def test_reserved_bytes_are_zero(library: Library, hummingbird: Packed, bench: Path) -> None:
    """A later version may give them a meaning that this one must not ignore."""
    places = [
        ("header", HEADER.fields["reserved"][1]),
        ("directory", 128 + SECTION.fields["reserved"][1]),
    ]  # fmt: skip
    for _, place in places:
        forge = Forge(hummingbird("q8"))
        forge.data[place] = 1
        forge.seal()
        assert refusal(library, forge, bench).status == -9
    forge = Forge(hummingbird("q8"))
    forge.model["reserved"][0, 2] = 1
    forge.seal()
    assert refusal(library, forge, bench).status == -9
    for part in ((), ("attention",), ("router",)):
        for word in range(member(forge.layers, (*part, "reserved")).shape[1]):
            forge = Forge(hummingbird("q8"))
            member(forge.layers, (*part, "reserved"))[3, word] = 1
            forge.seal()
            assert refusal(library, forge, bench).status == -9


@pytest.mark.parametrize("bits", [0x7C00, 0xFC00, 0x7E01])
@pytest.mark.parametrize("quant", ["q8", "q4", "f16"])
def test_half_precision_numbers_are_finite(
    library: Library, hummingbird: Packed, bench: Path, quant: str, bits: int
) -> None:
    """A scale (or a weight) that is NaN or infinite, with right checksums, in the resident part and in an expert."""
    forge = Forge(hummingbird(quant))
    place = int(forge.layers["attention"]["query"]["weight"]["offset"][1])
    forge.contents(SectionKind.RESIDENT)[place : place + 2] = np.array([bits], "<u2").view(np.uint8)
    forge.seal()
    error = refusal(library, forge, bench)
    assert (error.status, error.where) == (-11, "query")

    forge = Forge(hummingbird(quant))
    place = int(forge.experts["offset"][9] + forge.layers["expert"]["down"]["weight"]["offset"][1])
    forge.contents(SectionKind.EXPERTS)[place : place + 2] = np.array([bits], "<u2").view(np.uint8)
    forge.seal_experts()
    forge.seal()
    error = refusal(library, forge, bench)
    assert (error.status, error.where) == (-11, "down")


@pytest.mark.parametrize("kind", [SectionKind.ROPE, SectionKind.RESIDENT])
def test_single_precision_numbers_are_finite(
    library: Library, hummingbird: Packed, bench: Path, kind: SectionKind
) -> None:
    forge = Forge(hummingbird("f32"))
    forge.contents(kind).view("<f4")[77] = np.nan
    forge.seal()
    assert refusal(library, forge, bench).status == -11


def test_a_hole_between_sections_is_zero(library: Library, hummingbird: Packed, bench: Path) -> None:
    forge = Forge(hummingbird("q8"))
    entry = forge.section(SectionKind.MODEL)
    forge.data[int(entry["offset"][0] + entry["bytes"][0])] = 1
    assert refusal(library, forge, bench).where == "layers"
