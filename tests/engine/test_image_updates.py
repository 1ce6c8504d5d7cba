# SPDX-License-Identifier: Apache-2.0
"""The parts of an image that change after packing: signature, replaced experts, spare places; and images of which only
the beginning is in memory."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from colibri_sdk.convert import pack
from colibri_sdk.engine import Library
from colibri_sdk.errors import ImageError
from colibri_sdk.image.layout import HEADER, PAGE, UPDATE_HEAD, SectionKind
from colibri_sdk.image.reader import ImageFile
from colibri_sdk.status import Status
from forge import Forge

SPARE = 2
EXPERTS = 8  # of each of hummingbird's four layers


@pytest.fixture(scope="module")
def library(host_library: Path) -> Library:
    return Library.load(host_library)


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory, repo_root: Path) -> Path:
    out = tmp_path_factory.mktemp("updates") / "spare.colibri"
    pack(repo_root / "models" / "hummingbird", out, quant="q4", spare=SPARE)
    return out


def blob(forge: Forge, index: int) -> Any:
    """The packed bytes of an expert."""
    entry = forge.experts[index]
    return forge.contents(SectionKind.EXPERTS)[int(entry["offset"]) : int(entry["offset"]) + int(entry["bytes"])]


def spare_place(forge: Forge, number: int) -> int:
    size = int(forge.experts["bytes"].max())
    return int(forge.contents(SectionKind.EXPERTS).size) - (SPARE - number) * size


def replace(forge: Forge, entries: list[tuple[int, int, int, int]], *, copy: int = 1, sequence: int = 2) -> None:
    """Writes a table of (layer, expert, offset of the place, index of the packed expert whose bytes go there)."""
    head, updates = forge.update_head(copy), forge.updates(len(entries), copy)
    head["magic"], head["image_id"] = np.void(b"COLIUPD\x1a"), forge.header["image_id"]
    head["sequence"], head["count"] = sequence, len(entries)
    contents = forge.contents(SectionKind.EXPERTS)
    written = [blob(forge, source).copy() for *_, source in entries]
    for update, (layer, expert, offset, _), data in zip(updates, entries, written, strict=True):
        contents[offset : offset + data.size] = data
        update["layer"], update["expert"], update["offset"] = layer, expert, offset
        update["bytes"], update["generation"] = data.size, 1
        update["crc32"], update["image_id"] = zlib.crc32(data), forge.header["image_id"][0]
        update["digest"] = np.void(hashlib.blake2b(data, digest_size=32).digest())
    forge.seal_updates(copy)


@pytest.fixture
def forge(image: Path) -> Forge:
    """Expert 3 of layer 1 lies in a spare place, as expert 2 of layer 1 was; expert 0 of layer 2 where 1/3 was."""
    made = Forge(image)
    freed = int(made.experts["offset"][EXPERTS + 3])
    replace(made, [(1, 3, spare_place(made, 1), EXPERTS + 2), (2, 0, freed, EXPERTS + 7)])
    return made


def test_a_right_table_is_accepted_and_says_where_experts_lie(library: Library, forge: Forge, tmp_path: Path) -> None:
    library.validate(forge.write(tmp_path / "x.colibri"))
    experts = int(forge.section(SectionKind.EXPERTS)["offset"][0])
    with ImageFile(tmp_path / "x.colibri") as file:
        assert (file.updates_sequence, len(file.updates)) == (2, 2)
        assert all(check.ok for check in file.verify())
        moved = file.place(EXPERTS + 3)
        assert (moved.offset, moved.generation) == (experts + spare_place(forge, 1), 1)
        assert file.place(EXPERTS + 2).generation == 0
        np.testing.assert_array_equal(file.expert_tensor(1, 3, "up"), file.expert_tensor(1, 2, "up"))
        np.testing.assert_array_equal(file.expert_tensor(2, 0, "down"), file.expert_tensor(1, 7, "down"))


def test_the_newer_whole_copy_counts(library: Library, forge: Forge, tmp_path: Path) -> None:
    """Copy 0 has sequence 1 and no entries, copy 1 sequence 2: without copy 1, the packed experts count again."""

    def sequence() -> int:
        with ImageFile(forge.write(tmp_path / "x.colibri")) as file:
            return file.updates_sequence

    assert sequence() == 2
    forge.updates(2, 1)["counter"][1] ^= 1  # not sealed: the copy is damaged
    assert sequence() == 1
    # The packed expert 1/3 has been overwritten, which the older table does not know.
    assert forge.verdict(library) == (-8, "experts")
    forge.update_head(0)["sequence"] = 7
    forge.seal_updates(0)
    forge.seal_updates(1)
    assert sequence() == 7
    assert forge.verdict(library) == (-8, "experts")
    forge.update_head(1)["sequence"] = 8
    forge.seal_updates(1)
    assert sequence() == 8
    assert forge.verdict(library)[0] == 0
    forge.update_head(0)["sequence"] = forge.update_head(1)["sequence"] = 0
    forge.seal_updates(0)
    forge.seal_updates(1)
    assert forge.verdict(library) == (-9, "updates")


def test_the_contents_of_replaced_experts_are_checked(library: Library, forge: Forge, image: Path) -> None:
    contents = forge.contents(SectionKind.EXPERTS)
    contents[spare_place(forge, 1) + 1000] ^= 4
    assert forge.verdict(library) == (-8, "experts")
    infinite = Forge(image)
    replace(infinite, [(1, 3, spare_place(infinite, 0), EXPERTS + 2)])
    place = spare_place(infinite, 0)
    contents = infinite.contents(SectionKind.EXPERTS)
    contents[place : place + 2] = np.array([0x7C00], "<u2").view(np.uint8)
    data = contents[place : place + int(infinite.updates(1, 1)["bytes"][0])]
    infinite.updates(1, 1)["crc32"] = zlib.crc32(data)
    infinite.seal_updates(1)
    assert infinite.verdict(library)[0] == -11


def table(field: str, value: Any, *, entry: int = 1) -> Callable[[Forge], None]:
    def change(forge: Forge) -> None:
        forge.updates(2, 1)[field][entry] = value

    return change


def head(field: str, value: Any) -> Callable[[Forge], None]:
    def change(forge: Forge) -> None:
        forge.update_head(1)[field] = value

    return change


@pytest.mark.parametrize(
    "change",
    [
        table("layer", 4), table("layer", 2**32 - 1), table("layer", 0), table("expert", EXPERTS),
        table("expert", 2**32 - 1), table("bytes", 0), table("bytes", PAGE), table("bytes", 2**64 - PAGE),
        table("generation", 0), table("board", b"x" * 32), table("image_id", np.void(bytes(16))),
        table("reserved", 1), table("offset", 0), table("offset", 1), table("offset", PAGE),
        table("offset", 2**64 - PAGE), table("offset", 2**63),
        # an order that searching could not rely on: the same expert twice, and descending
        table("layer", 3, entry=0), table("layer", 1),
    ],
)  # fmt: skip
def test_a_table_that_makes_no_sense_is_refused(
    library: Library, forge: Forge, change: Callable[[Forge], None]
) -> None:
    change(forge)
    entries = forge.updates(2, 1)
    if (entries["layer"][0], entries["layer"][1]) == (1, 1):
        entries["expert"][1] = entries["expert"][0]
    forge.seal_updates(1)
    assert forge.verdict(library) == (-12, "updates")


@pytest.mark.parametrize("which", ["beyond the spare places", "of an expert in use", "used twice", "inside a place"])
def test_places_do_not_overlap(library: Library, forge: Forge, which: str) -> None:
    size = int(forge.experts["bytes"].max())
    offset = {
        "beyond the spare places": spare_place(forge, SPARE),
        "of an expert in use": int(forge.experts["offset"][4]),
        "used twice": spare_place(forge, 1),
        "inside a place": spare_place(forge, 0) + size // 2 // PAGE * PAGE,
    }[which]
    forge.updates(2, 1)["offset"][1] = offset
    forge.seal_updates(1)
    assert forge.verdict(library) == (-12, "updates")


@pytest.mark.parametrize(
    "change",
    [
        head("magic", np.void(b"COLIUPDX")), head("sequence", 0), head("count", 63), head("count", 2**32 - 1),
        head("image_id", np.void(bytes(16))), head("reserved", 1),
        lambda forge: forge.update_head(1).view("u1").fill(0),
    ],
)  # fmt: skip
def test_a_copy_that_is_not_whole_does_not_count(
    library: Library, forge: Forge, change: Callable[[Forge], None], tmp_path: Path
) -> None:
    change(forge)
    forge.seal_updates(1)
    with ImageFile(forge.write(tmp_path / "x.colibri")) as file:
        assert file.updates_sequence == 1
    assert forge.verdict(library) == (-8, "experts")  # that which the copy had moved
    forge.update_head(0)["crc32"] ^= 1
    assert forge.verdict(library) == (-9, "updates")


@pytest.mark.parametrize("size", [0, 1, 2 * PAGE - 1, PAGE, 3 * PAGE])
def test_two_copies_of_whole_pages(library: Library, image: Path, size: int) -> None:
    forge = Forge(image)
    forge.section(SectionKind.UPDATES)
    table = forge.sections
    table["bytes"][table["kind"] == SectionKind.UPDATES] = size
    forge.seal()
    assert forge.verdict(library) in {(-10, "updates"), (-9, "updates")}


@pytest.mark.parametrize(
    ("field", "value", "status"),
    [
        ("magic", np.void(b"COLISIGX"), -9), ("version", 0, -14), ("version", 2, -14), ("algorithm", 2, -14),
        ("algorithm", 2**32 - 1, -14), ("counter", 1, -9), ("board", b"rpi3", -9), ("board", b"x" * 32, -9),
        ("key_id", np.void(b"k" * 16), -9), ("digest", np.void(b"d" * 64), -9), ("signature", np.void(b"s" * 64), -9),
        ("reserved", 1, -9),
    ],
)  # fmt: skip
def test_signatures_that_are_none(library: Library, image: Path, field: str, value: Any, status: int) -> None:
    """Of an unsigned image, every field is zero."""
    forge = Forge(image)
    forge.signature[field] = value
    assert forge.verdict(library) == (-8, "signature")
    forge.seal_signature()
    assert forge.verdict(library) == (status, "signature")


def test_signatures_of_the_right_form(library: Library, image: Path) -> None:
    """Who signed is not the engine's to say, but a board's name ends with a NUL, and what is reserved is zero."""
    forge = Forge(image)
    forge.signature["algorithm"], forge.signature["counter"], forge.signature["board"] = 1, 2**64 - 1, b"x" * 31
    forge.seal_signature()
    assert forge.verdict(library)[0] == 0
    for field, value in (("board", b"x" * 32), ("reserved", 1)):
        wrong = Forge(image)
        wrong.signature["algorithm"] = 1
        wrong.signature[field] = value
        wrong.seal_signature()
        assert wrong.verdict(library) == (-9, "signature")


@pytest.mark.parametrize("size", [0, 1, 255, 257, 4096])
def test_length_of_the_signature(library: Library, image: Path, size: int) -> None:
    forge = Forge(image)
    table = forge.sections
    table["bytes"][table["kind"] == SectionKind.SIGNATURE] = size
    forge.seal()
    assert forge.verdict(library) == (-9 if size == 0 else -10, "signature")


def test_spare_places_are_whole(library: Library, image: Path) -> None:
    """With a page less at the end, the places that are left have no size that would fit any expert."""
    forge = Forge(image)
    forge.data = forge.data[:-PAGE]
    forge.header["image_bytes"] -= PAGE
    table = forge.sections
    table["bytes"][table["kind"] == SectionKind.EXPERTS] -= PAGE
    forge.seal()
    assert forge.verdict(library) == (-12, "experts")


@pytest.mark.parametrize("spare", [0, 1, 3])
def test_number_of_spare_places(library: Library, tiny_source: Path, tmp_path: Path, spare: int) -> None:
    pack(tiny_source, tmp_path / "x.colibri", spare=spare)
    library.validate(tmp_path / "x.colibri")
    with ImageFile(tmp_path / "x.colibri") as file:
        count, size = file.spare_places
        assert (count, size) == (spare, int(file.experts["bytes"].max()))


@pytest.fixture(scope="module")
def tiny_source(repo_root: Path) -> Path:
    return repo_root / "tests" / "parity" / "mixtral"


def test_the_beginning_of_an_image_is_checked_like_a_whole_one(library: Library, forge: Forge) -> None:
    """A front ends where the experts begin; their contents can't be looked at, all else is."""
    front = int(forge.section(SectionKind.EXPERTS)["offset"][0])
    assert forge.verdict(library, front)[0] == 0
    for length in (front - PAGE, front + PAGE, front - 1, PAGE):
        assert forge.verdict(library, length) == (-5, "image")
    forge.contents(SectionKind.EXPERTS)[5] ^= 1
    assert forge.verdict(library)[0] == -8
    assert forge.verdict(library, front)[0] == 0
    for kind in SectionKind:
        if kind is SectionKind.EXPERTS:
            continue
        contents = forge.contents(kind)
        contents[7] ^= 0x10
        if kind is not SectionKind.UPDATES:  # where the other copy counts then
            assert forge.verdict(library, front)[1] == kind.name.lower().replace("_", "-")
        contents[7] ^= 0x10
    forge.updates(2, 1)["generation"][0] = 0
    forge.seal_updates(1)
    assert forge.verdict(library, front) == (-12, "updates")
    forge.data[front - 1] ^= 1  # in the copy of the table that counts, but behind its entries
    assert forge.verdict(library, front) == (-12, "updates")


def test_bytes_at_the_end_of_a_front_are_zero(library: Library, tiny_source: Path, tmp_path: Path) -> None:
    """A page put between updates and experts."""
    pack(tiny_source, tmp_path / "x.colibri")
    forge = Forge(tmp_path / "x.colibri")
    front = int(forge.section(SectionKind.EXPERTS)["offset"][0])
    forge.data = np.concatenate([forge.data[:front], np.zeros(PAGE, np.uint8), forge.data[front:]])
    forge.header["image_bytes"] += PAGE
    table = forge.sections
    table["offset"][table["kind"] == SectionKind.EXPERTS] += PAGE
    forge.seal()
    assert forge.verdict(library)[0] == 0
    assert forge.verdict(library, front + PAGE)[0] == 0
    forge.data[front + 9] = 1
    assert forge.verdict(library) == (-8, "experts")
    assert forge.verdict(library, front + PAGE)[0] == -8


def test_models_without_experts_have_no_updates(library: Library, repo_root: Path, tmp_path: Path) -> None:
    pack(repo_root / "tests" / "parity" / "llama", tmp_path / "x.colibri")
    library.validate(tmp_path / "x.colibri")
    forge = Forge(tmp_path / "x.colibri")
    kinds = forge.sections["kind"].tolist()
    assert kinds[-1] == SectionKind.SIGNATURE and SectionKind.CARD in kinds
    assert not {SectionKind.EXPERT_DIR, SectionKind.UPDATES, SectionKind.EXPERTS} & set(kinds)
    with ImageFile(tmp_path / "x.colibri") as file:
        assert file.spare_places == (0, 0) and len(file.updates) == 0
        assert all(check.ok for check in file.verify())


def test_update_tables_count_all_experts_of_small_models(image: Path, tiny_source: Path, tmp_path: Path) -> None:
    """One page holds 14 entries, which is enough for the tiny model's; hummingbird's copies have four pages and 62."""
    pack(tiny_source, tmp_path / "x.colibri")
    with ImageFile(tmp_path / "x.colibri") as tiny, ImageFile(image) as large:
        pages = {len(file.experts): file.sections[SectionKind.UPDATES].bytes // 2 // PAGE for file in (tiny, large)}
    assert all((pages[count] == 1) == (count <= 14) for count in pages), pages
    assert pages[32] == 4 and (4 * PAGE - UPDATE_HEAD.itemsize) // 256 == 62


def test_identity_is_of_what_is_signed(image: Path) -> None:
    """By hand: SHA-256 from the second page to the signature, so that an update changes no identity."""
    forge = Forge(image)
    end = int(forge.section(SectionKind.SIGNATURE)["offset"][0])
    assert bytes(forge.header["image_id"][0]) == hashlib.sha256(forge.data[PAGE:end]).digest()[:16]
    assert HEADER.itemsize == 128


def test_spare_places_are_no_experts(library: Library, image: Path) -> None:
    """What a plan states as the experts' bytes is what the directory lists."""
    forge = Forge(image)
    listed = int(forge.experts["bytes"].sum())
    assert library.plan(image).expert_bytes == listed
    assert listed + SPARE * int(forge.experts["bytes"].max()) == forge.contents(SectionKind.EXPERTS).size


def test_a_front_needs_a_storage(library: Library, image: Path, tmp_path: Path) -> None:
    forge = Forge(image)
    front = int(forge.section(SectionKind.EXPERTS)["offset"][0])
    whole = library.plan(image, cache_slots=2)
    path = tmp_path / "front.colibri"
    forge.data[:front].tofile(path)
    with pytest.raises(ImageError) as caught:
        library.plan(path)
    error = caught.value
    assert (error.status, error.where) == (Status.E_IMAGE_SIZE, "image")
    assert (error.got, error.wanted) == (front, image.stat().st_size)
    assert library.plan(path, cache_slots=2) == whole
