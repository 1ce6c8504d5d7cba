# SPDX-License-Identifier: Apache-2.0
"""Hostile GGUF headers: refused at once, by name, without a large allocation, with no other exception."""

from __future__ import annotations

import struct
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFReader
from hypothesis import given, settings
from hypothesis import strategies as st

import gguf_files
from colibri_sdk.convert import pack
from colibri_sdk.convert.gguf.cursor import MAX_ELEMENTS, MAX_TEXT_BYTES, Texts
from colibri_sdk.convert.gguf.header import MAX_TENSORS, read_header
from colibri_sdk.errors import EXIT_IMAGE, CheckpointError
from gguf_bytes import ARRAY, STRING, File, Tensor, text, value

PARITY = Path(__file__).resolve().parent.parent / "parity"
HUGE = 2**63

# The most that may be allocated while a small file is refused, in bytes.
MEMORY = 4 << 20


def refusal(path: Path) -> CheckpointError:
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointError) as caught:
            read_header(path)
        assert tracemalloc.get_traced_memory()[1] < MEMORY
    finally:
        tracemalloc.stop()
    assert caught.value.exit_code == EXIT_IMAGE
    assert path.name in caught.value.message
    assert len(caught.value.message) < 500
    return caught.value


def refused(tmp_path: Path, file: File | bytes) -> str:
    path = tmp_path / "hostile.gguf"
    path.write_bytes(file if isinstance(file, bytes) else file.bytes())
    return refusal(path).message


def key(name: bytes, kind: int, content: Any) -> bytes:
    return text(name) + value(kind, content)


def test_a_sound_file_is_read(tmp_path: Path) -> None:
    """What the cases below spoil is right before, for us and for the gguf package."""
    keys = [
        key(b"general.architecture", STRING, b"llama"),
        key(b"numbers", ARRAY, (5, [1, -2, 3])),
        key(b"words", ARRAY, (STRING, [b"a", b"", "ü".encode()])),
        key(b"nested", ARRAY, (ARRAY, [(4, [7]), (STRING, [b"x"])])),
        key(b"small", 6, 0.1),
        key(b"yes", 7, 1),
    ]
    path = tmp_path / "sound.gguf"
    path.write_bytes(File(keys=keys, tensors=[Tensor(b"a", (4, 2)), Tensor(b"b", (2,), 1)]).bytes())
    header = read_header(path)
    assert [(one.name, one.shape, one.type.name) for one in header.tensors.values()] == [
        ("a", (2, 4), "F32"),
        ("b", (2,), "F16"),
    ]
    found = header.metadata
    words, numbers, nested = found["words"], found["numbers"], found["nested"]
    assert isinstance(words, Texts) and list(words) == ["a", "", "ü"]
    assert isinstance(numbers, np.ndarray) and numbers.tolist() == [1, -2, 3]
    assert isinstance(nested, list) and isinstance(nested[0], np.ndarray) and nested[0].tolist() == [7]
    assert (found["small"], found["yes"]) == (0.1, True)
    theirs = {one.name: one.data_offset for one in GGUFReader(path).tensors}
    assert {name: entry.offset for name, entry in header.tensors.items()} == theirs


CASES: dict[str, tuple[File | bytes, str]] = {
    "empty file": (b"", "has 0 bytes"),
    "cut before the counts": (File().bytes()[:20], "has 20 bytes"),
    "magic": (File(magic=b"GGML"), "begins with b'GGML'"),
    "safetensors": (struct.pack("<Q", 100) + b"{}" * 50, "begins with"),
    "version 1": (File(version=1), "version 1"),
    "version 4": (File(version=4), "version 4"),
    "big-endian": (File(version=3 << 24), "big-endian"),
    "tensor count": (File(tensor_count=2**40), f"states {2**40} tensors"),
    "negative tensor count": (File(tensor_count=2**64 - 1), f"states {2**64 - 1} tensors"),
    "count that wraps": (File(tensor_count=2**61), f"states {2**61} tensors"),
    "one tensor too many": (File(tensor_count=3, data=b""), "empty name for tensor 2"),
    "key count": (File(key_count=HUGE), f"states {HUGE} keys"),
    "empty key": (File(keys=[key(b"", 4, 1)]), "empty name for metadata key 0"),
    "key twice": (File(keys=[key(b"k", 4, 1), key(b"k", 4, 1)]), "'k' twice"),
    "key of 2^63 bytes": (File(keys=[text(b"k", HUGE)]), f"states {HUGE} bytes for metadata key 0"),
    "key that wraps": (File(keys=[text(b"k", 2**64 - 8)]), f"states {2**64 - 8} bytes"),
    "key that is no text": (File(keys=[text(b"\xff\xfe") + value(4, 1)]), "not UTF-8"),
    "text of 2^63 bytes": (
        File(keys=[text(b"k") + struct.pack("<I", STRING) + text(b"", HUGE)]),
        f"states {HUGE} bytes",
    ),
    "text that is none": (File(keys=[key(b"k", STRING, b"\xc3")]), "k that is not UTF-8"),
    "type of a value": (File(keys=[text(b"k") + struct.pack("<I", 13)]), "gives k the type 13"),
    "boolean": (File(keys=[key(b"k", 7, 2)]), "2 where k is to be true or false"),
    "array of 2^60": (File(keys=[key(b"k", ARRAY, (0, 2**60, []))]), f"states {2**60} elements for k"),
    "array that wraps": (File(keys=[key(b"k", ARRAY, (12, 2**61 + 1, [1.0]))]), f"states {2**61 + 1} elements"),
    "texts of 2^60": (File(keys=[key(b"k", ARRAY, (STRING, 2**60, []))]), f"states {2**60} elements for k"),
    "text in an array": (
        File(keys=[text(b"k") + struct.pack("<IIQ", ARRAY, STRING, 2) + text(b"a") + text(b"b", HUGE)]),
        r"k\[1\]",
    ),
    "type of elements": (File(keys=[text(b"k") + struct.pack("<IIQ", ARRAY, 99, 1) + bytes(20)]), "the type 99"),
    "arrays in arrays": (
        File(keys=[key(b"k", ARRAY, (ARRAY, [(ARRAY, [(ARRAY, [(4, [1])])])]))]),
        "nests arrays deeper",
    ),
    "arrays without end": (
        File(keys=[text(b"k") + struct.pack("<I", ARRAY) + struct.pack("<IQ", ARRAY, 1) * 5000]),
        "nests arrays deeper",
    ),
    "alignment 0": (File(keys=[key(b"general.alignment", 4, 0)]), "general.alignment = 0"),
    "alignment 48": (File(keys=[key(b"general.alignment", 4, 48)]), "no power of two"),
    "alignment 2^31": (File(keys=[key(b"general.alignment", 4, 2**31)]), "general.alignment"),
    "alignment as text": (File(keys=[key(b"general.alignment", STRING, b"32")]), "general.alignment = '32'"),
    "empty tensor name": (File(tensors=[Tensor(b"")]), "empty name for tensor 0"),
    "tensor name of 2^63 bytes": (File(tensors=[Tensor(b"a", name_length=HUGE)]), f"states {HUGE} bytes for tensor 0"),
    "long tensor name": (File(tensors=[Tensor(b"a" * 300)]), "states 300 bytes for tensor 0; 256 is the limit"),
    "tensor twice": (File(tensors=[Tensor(b"a"), Tensor(b"a")]), "tensor 'a' twice"),
    "no dimension": (File(tensors=[Tensor(b"a", ())]), "gives tensor 'a' 0 dimensions"),
    "five dimensions": (File(tensors=[Tensor(b"a", (1,) * 5)]), "gives tensor 'a' 5 dimensions"),
    "2^32 - 1 dimensions": (File(tensors=[Tensor(b"a", dim_count=2**32 - 1)]), "dimensions; 1 to 4"),
    "dimension 0": (File(tensors=[Tensor(b"a", (4, 0))]), r"dimensions \[4, 0\]"),
    "negative dimension": (File(tensors=[Tensor(b"a", (-4,))]), r"dimensions \[-4\]"),
    "product that wraps to 0": (File(tensors=[Tensor(b"a", (2**32, 2**32))]), "too short: tensor 'a' takes"),
    "product that wraps to 8": (File(tensors=[Tensor(b"a", (2**62 + 2, 4))]), "too short: tensor 'a' takes"),
    "negative twice": (File(tensors=[Tensor(b"a", (-2, -2))]), r"dimensions \[-2, -2\]"),
    "row not in blocks": (File(tensors=[Tensor(b"a", (33,), 8)]), "Q8_0 has them in blocks of 32"),
    "type 4, which was removed": (File(tensors=[Tensor(b"a", kind=4)]), "type 4, which is not known"),
    "type 2^31": (File(tensors=[Tensor(b"a", kind=2**31)]), f"type {2**31}, which is not known"),
    "offset behind the end": (File(tensors=[Tensor(b"a", offset=4096)]), "too short: tensor 'a'"),
    "offset that wraps": (File(tensors=[Tensor(b"a", offset=2**64 - 32)]), "too short: tensor 'a'"),
    "offset between": (File(tensors=[Tensor(b"a", offset=16)]), "no multiple of 32"),
    "same place": (File(tensors=[Tensor(b"a"), Tensor(b"b", offset=0)]), "lays tensor 'b' over 'a'|'a' over 'b'"),
    "overlap": (File(tensors=[Tensor(b"a", (16,)), Tensor(b"b")]), "lays tensor 'b' over 'a'"),
    "no data": (File(data=b""), "too short: tensor 'a'"),
}


@pytest.mark.parametrize("file, message", CASES.values(), ids=list(CASES))
def test_each_lie_is_refused(tmp_path: Path, file: File | bytes, message: str) -> None:
    import re

    assert re.search(message, refused(tmp_path, file))


def test_more_tensors_than_any_model_has(tmp_path: Path) -> None:
    """The file is long enough for all of them (a hole on the disk): the limit alone protects."""
    path = tmp_path / "hostile.gguf"
    path.write_bytes(File(tensor_count=MAX_TENSORS + 1, tensors=[]).bytes())
    with path.open("r+b") as file:
        file.truncate(64 * (MAX_TENSORS + 1))
    assert f"states {MAX_TENSORS + 1} tensors; {MAX_TENSORS} is the limit" in refusal(path).message


@pytest.mark.parametrize("kind", [STRING, 0, ARRAY])
def test_more_elements_than_any_vocabulary_has(tmp_path: Path, kind: int) -> None:
    path = tmp_path / "hostile.gguf"
    path.write_bytes(File(keys=[key(b"k", ARRAY, (kind, 2**30, []))], tensors=[]).bytes())
    with path.open("r+b") as file:
        file.truncate(1 << 34)
    assert f"more than {MAX_ELEMENTS} elements" in refusal(path).message


def test_a_text_longer_than_any_template(tmp_path: Path) -> None:
    path = tmp_path / "hostile.gguf"
    path.write_bytes(File(keys=[text(b"k") + struct.pack("<I", STRING) + text(b"", 2**33)], tensors=[]).bytes())
    with path.open("r+b") as file:
        file.truncate(1 << 34)
    assert f"{MAX_TEXT_BYTES} is the limit" in refusal(path).message


def test_many_experts_are_refused_before_they_get_names(tmp_path: Path) -> None:
    """A tensor of a million experts of one number each: nothing is made for each of them."""

    def change(writer: Any) -> None:
        writer.add_tensor("blk.1.ffn_gate_exps.weight", np.zeros((10**6, 1, 1), np.float32))

    gguf_files.write(PARITY / "llama", tmp_path / "model.gguf", change=change)
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointError, match=r"ffn_gate_exps.weight' has shape \[1000000, 1, 1\]"):
            pack(tmp_path / "model.gguf", tmp_path / "m.colibri")
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The smallest whole model: a few thousand bytes of header, and its data."""
    path = tmp_path_factory.mktemp("sound") / "model.gguf"
    gguf_files.write(PARITY / "mixtral", path)
    return path.read_bytes()


def survives(tmp_path: Path, data: bytes) -> None:
    """Packs, or is refused with a CheckpointError. Anything else fails the test."""
    path = tmp_path / "mutant.gguf"
    path.write_bytes(data)
    tracemalloc.start()
    try:
        pack(path, tmp_path / "m.colibri", quant="q8")
    except CheckpointError as error:
        assert len(error.message) < 2000
    finally:
        assert tracemalloc.get_traced_memory()[1] < 32 << 20
        tracemalloc.stop()


EVIL = [0, 1, 2**31, 2**32 - 1, 2**62, 2**63, 2**64 - 1]


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_words_of_the_header_replaced(
    sound: bytes, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """64-bit and 32-bit words anywhere in the header become sizes that an attacker would try."""
    tmp_path = tmp_path_factory.mktemp("mutant")
    changed = bytearray(sound)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(4, 3000))
        word = data.draw(st.sampled_from(EVIL) | st.integers(0, 2**64 - 1))
        width = data.draw(st.sampled_from([1, 4, 8]))
        changed[at : at + width] = word.to_bytes(8, "little")[:width]
    survives(tmp_path, bytes(changed))


@settings(max_examples=60, deadline=None)
@given(kept=st.integers(0, 4000))
def test_cut_anywhere(sound: bytes, tmp_path_factory: pytest.TempPathFactory, kept: int) -> None:
    path = tmp_path_factory.mktemp("cut") / "cut.gguf"
    path.write_bytes(sound[:kept])
    refusal(path)
