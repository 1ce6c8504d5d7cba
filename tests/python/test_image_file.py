# SPDX-License-Identifier: Apache-2.0
"""Writing and reading images: order, alignment, checksums, atomic replacement, and damage that is found by name."""

from __future__ import annotations

import hashlib
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import checkpoints
from colibri_sdk.convert import pack
from colibri_sdk.engine import Library
from colibri_sdk.errors import ImageError, InternalError, UsageError
from colibri_sdk.image.kinds import require_image
from colibri_sdk.image.layout import HEADER, LAYER, MODEL, PAGE, SectionKind
from colibri_sdk.image.reader import ImageFile
from colibri_sdk.image.writer import ImageWriter, short_utf8
from colibri_sdk.status import Status


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("image")
    pack(checkpoints.write(directory / "tiny"), directory / "tiny.colibri")
    return directory / "tiny.colibri"


def damaged(image: Path, tmp_path: Path, at: int, data: bytes) -> Path:
    copy = tmp_path / "damaged.colibri"
    content = bytearray(image.read_bytes())
    content[at : at + len(data)] = data
    copy.write_bytes(content)
    return copy


def test_sections_are_ordered_page_aligned_and_apart(image: Path) -> None:
    raw = image.read_bytes()
    with ImageFile(image) as file:
        sections = list(file.sections.values())
        kinds = [section.kind for section in sections]
    assert kinds == sorted(kinds) and SectionKind.CARD in kinds and SectionKind.TOKENIZER not in kinds
    end = PAGE
    for section in sections:
        assert section.offset % PAGE == 0 and section.offset >= end
        assert not any(raw[end : section.offset])
        end = section.offset + section.bytes
    assert len(raw) % PAGE == 0 and len(raw) - end < PAGE and not any(raw[end:])


def test_checksums_by_an_independent_reading(image: Path) -> None:
    """With struct and zlib alone, from the description in docs/image-format.md."""
    raw = image.read_bytes()
    (stored,) = struct.unpack_from("<I", raw, 124)
    page = bytearray(raw[:PAGE])
    page[124:128] = bytes(4)
    assert zlib.crc32(page) == stored
    (count,) = struct.unpack_from("<I", raw, 28)
    own: dict[int, tuple[int, int]] = {}
    for index in range(count):
        _name, kind, crc, offset, length = struct.unpack_from("<16sIIQQ", raw, 128 + 64 * index)
        if kind in (9, 10, 11):  # signature, updates, experts
            assert crc == 0
            own[kind] = (offset, length)
        else:
            assert zlib.crc32(raw[offset : offset + length]) == crc
        if kind == SectionKind.EXPERT_DIR:
            directory = (offset, length)
    start, length = own[9]
    assert length == 256 and raw[32:48] == hashlib.sha256(raw[PAGE:start]).digest()[:16]
    assert raw[start : start + 12] == b"COLISIG\x1a" + struct.pack("<I", 1)
    assert struct.unpack_from("<I", raw, start + 252)[0] == zlib.crc32(raw[start : start + 252])
    assert not any(raw[start + 12 : start + 252])  # unsigned
    start, length = own[10]
    head = struct.unpack_from("<8sQII16s", raw, start)
    assert head == (b"COLIUPD\x1a", 1, 0, 0, raw[32:48])
    assert not any(raw[start + 40 : start + 508])
    assert struct.unpack_from("<I", raw, start + 508)[0] == zlib.crc32(raw[start : start + 508])
    assert length == 2 * PAGE and not any(raw[start + 512 : start + length])
    at = 0
    start, length = own[11]
    for entry in struct.iter_unpack("<QQIIII32s", raw[directory[0] : sum(directory)]):
        offset, size, crc, pin, _layer, _expert, digest = entry
        assert offset == at and size % PAGE == 0 and pin == 0
        blob = raw[start + offset : start + offset + size]
        assert zlib.crc32(blob) == crc and hashlib.blake2b(blob, digest_size=32).digest() == digest
        at += size
    assert at + size == length == len(raw) - start  # one spare place


def test_experts_are_listed_layer_by_layer(image: Path) -> None:
    with ImageFile(image) as file:
        listed = [(int(entry["layer"]), int(entry["expert"])) for entry in file.experts]
        assert file.layers["first_expert"].tolist() == [0, 3]
    assert listed == [(layer, expert) for layer in range(2) for expert in range(3)]


def test_the_engine_accepts_what_is_packed(host_library: Path, tmp_path: Path) -> None:
    library = Library.load()
    source = checkpoints.write(tmp_path / "m")
    for quant in ("q8", "q4", "f16", "f32"):
        for kv in ("f16", "f32", "q8"):
            pack(source, tmp_path / "m.colibri", quant=quant, kv=kv, context=33)
            library.validate(tmp_path / "m.colibri")
            plan = library.plan(tmp_path / "m.colibri")
            assert (plan.context, plan.kv_format) == (33, kv)


def test_verify_finds_a_flipped_bit_by_name(image: Path, tmp_path: Path) -> None:
    with ImageFile(image) as file:
        places = {section.name: section.offset for section in file.sections.values()}
        blobs = places["experts"]
        second = int(file.experts[4]["offset"]) + blobs + 5
        raw = image.read_bytes()
        assert next(file.verify()).name == "header"
    # not where the reader itself would stumble
    for name in ("rope", "resident", "card"):
        places[name] += 20
    for name, at in [*((n, places[n]) for n in ("rope", "resident", "card")), ("expert 1/1", second)]:
        copy = damaged(image, tmp_path, at, bytes([raw[at] ^ 1]))
        with ImageFile(copy) as file:
            wrong = [check.name for check in file.verify() if not check.ok]
        assert wrong == ([name, f"digest of {name}"] if at == second else [name, "image id"])


def test_verify_finds_a_changed_header(image: Path, tmp_path: Path) -> None:
    fields = HEADER.fields
    assert fields is not None
    copy = damaged(image, tmp_path, fields["model_name"][1], b"other")
    with ImageFile(copy) as file:
        assert file.model_name == "other"
        assert [check.name for check in file.verify() if not check.ok] == ["header"]


@pytest.mark.parametrize(("at", "data", "status", "where"), [
    (0, b"GGUF", Status.E_IMAGE_MAGIC, "header"),
    (8, b"\x01", Status.E_IMAGE_VERSION, "format version"),
    (16, b"\xff" * 8, Status.E_IMAGE_SIZE, "image"),
    (28, b"\xff" * 4, Status.E_IMAGE_DIMENSION, "section count"),
    (28, bytes(4), Status.E_IMAGE_DIMENSION, "section count"),
    (128 + 16, b"\x63", Status.E_IMAGE_UNSUPPORTED, "model"),
    (128 + 64 + 16, b"\x01", Status.E_IMAGE_SECTION, "layers"),
    (128 + 24, b"\x01", Status.E_IMAGE_SECTION, "model"),
    (128 + 24, b"\xff" * 8, Status.E_IMAGE_SECTION, "model"),
    (128 + 32, b"\xff" * 8, Status.E_IMAGE_SECTION, "model"),
    (128 + 32, b"\x01", Status.E_IMAGE_DIMENSION, "model"),
    (128 + 64 + 32, b"\x01", Status.E_IMAGE_DIMENSION, "layers"),
])  # fmt: skip
def test_structure_that_cannot_be_read(
    image: Path, tmp_path: Path, at: int, data: bytes, status: Status, where: str
) -> None:
    with pytest.raises(ImageError) as caught:
        ImageFile(damaged(image, tmp_path, at, data))
    assert (caught.value.status, caught.value.where) == (status, where)
    assert caught.value.hint and "damaged.colibri" in caught.value.message


@pytest.mark.parametrize(
    ("size", "words"), [(0, "it is empty"), (1, "begins with b'C'"), (127, "only 127 bytes"), (4095, "only 4095 bytes")]
)
def test_file_that_is_too_short(image: Path, tmp_path: Path, size: int, words: str) -> None:
    copy = tmp_path / "short.colibri"
    copy.write_bytes(image.read_bytes()[:size])
    with pytest.raises(ImageError, match=words):
        ImageFile(copy)


@pytest.mark.parametrize(
    ("head", "words", "advice"),
    [
        (b"COLIPKG\x1a", "is an update of one expert", "update expert"),
        (bytes(510) + b"\x55\xaa", "is a card or disk", "--card"),
        (b"COLIVOL\x1a", "a card's model partition", "--card"),
        (b"GGUF\3\0\0\0", "is a GGUF file", "pack"),
        (b"PK\3\4", "is a ZIP archive", "--profile"),
        (b'{"kind": ', 'begins with b\'{"kind":', "pack"),
    ],
)
@pytest.mark.parametrize("size", [512, PAGE])
def test_another_kind_of_file_is_named(tmp_path: Path, head: bytes, words: str, advice: str, size: int) -> None:
    path = tmp_path / "a.colibri"
    path.write_bytes(head.ljust(size, b"\0"))
    for look in (ImageFile, require_image):
        with pytest.raises(ImageError, match=words) as caught:
            look(path)
        assert "a.colibri is no Colibri image" in caught.value.message and advice in caught.value.hint


def test_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none\.colibri cannot be read"):
        ImageFile(tmp_path / "none.colibri")


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_reader_never_crashes(image: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Any damage to header, directory and structs: an ImageError, or values that were really there."""
    raw = bytearray(image.read_bytes())
    with ImageFile(image) as file:
        start = file.signed_bytes
    signature, updates = (start, start + 256), (start + PAGE, start + PAGE + 512)
    for _ in range(data.draw(st.integers(1, 6))):
        structs = [(PAGE, PAGE + MODEL.itemsize), (2 * PAGE, 2 * PAGE + 2 * LAYER.itemsize)]
        places = [(0, 832), *structs, signature, updates]
        at = data.draw(st.one_of(*(st.integers(*place) for place in places)))
        raw[at] = data.draw(st.integers(0, 255))
    copy = tmp_path_factory.mktemp("damage") / "x.colibri"
    copy.write_bytes(raw)
    try:
        with ImageFile(copy) as file:
            list(file.verify())
            file.resident_tensor(file.model["embedding"])
            file.resident_tensor(file.layers[0]["attention"]["query"]["weight"])
            for layer in range(len(file.layers)):
                file.expert_tensor(layer, 0, "down")
            file.rotary_tables()
            assert isinstance(file.card, dict) and file.pins is not None and file.spare_places is not None
    except (ImageError, UsageError):
        pass


def test_sections_cannot_be_written_out_of_order(tmp_path: Path) -> None:
    with (
        pytest.raises(InternalError, match="MODEL is written after ROPE"),
        ImageWriter(tmp_path / "x.colibri", "x") as writer,
    ):
        writer.add(SectionKind.ROPE, b"a")
        writer.add(SectionKind.MODEL, b"b")
    assert not list(tmp_path.iterdir())


def test_rewritten_section_keeps_its_length(tmp_path: Path) -> None:
    with (
        pytest.raises(InternalError, match="had 3 bytes and is rewritten with 2"),
        ImageWriter(tmp_path / "x.colibri", "x") as writer,
    ):
        writer.add(SectionKind.EXPERT_DIR, bytes(3))
        writer.rewrite(SectionKind.EXPERT_DIR, b"ab")


def test_full_disk_is_said_to_be_that(tmp_path: Path) -> None:
    """/dev/full is a disk without room."""
    writer = ImageWriter(tmp_path / "x.colibri", "x")
    with pytest.raises(UsageError, match="No space left on device"), writer:
        writer._file.close()
        writer._file = Path("/dev/full").open("r+b", buffering=0)  # type: ignore[assignment]  # noqa: SIM115  (the writer closes it)
        writer.add(SectionKind.MODEL, bytes(10))
    assert not list(tmp_path.iterdir())


def test_target_keeps_its_old_content_until_the_new_is_whole(tmp_path: Path) -> None:
    target = tmp_path / "x.colibri"
    target.write_bytes(b"old")
    with ImageWriter(target, "x") as writer:
        writer.add(SectionKind.MODEL, b"new")
        assert target.read_bytes() == b"old"
    assert target.read_bytes()[:8] == b"COLIBRI\x1a"
    assert [path.name for path in tmp_path.iterdir()] == ["x.colibri"]


@given(st.text(), st.integers(0, 40))
def test_short_utf8_is_a_prefix_of_whole_characters(text: str, limit: int) -> None:
    short = short_utf8(text.encode("utf-8", "ignore").decode(), limit)
    assert len(short) <= limit and b"\0" not in short
    assert text.encode("utf-8", "ignore").decode().replace("\0", "").startswith(short.decode())


def test_long_model_names_are_cut_between_characters(tmp_path: Path) -> None:
    with ImageWriter(tmp_path / "x.colibri", "ü" * 40) as writer:
        writer.add(SectionKind.MODEL, b"x")
    header = np.fromfile(tmp_path / "x.colibri", HEADER, count=1)[0]
    assert bytes(header["model_name"]).decode() == "ü" * 23
