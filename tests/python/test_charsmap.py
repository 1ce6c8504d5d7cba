# SPDX-License-Identifier: Apache-2.0
"""Charsmaps: those that the sentencepiece library writes are read, and what is none is refused at once."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colibri_sdk.convert.charsmap import NO_RULES, CharsmapError, read_rules
from tokenizer_sentencepiece import charsmap, sentencepiece_model, small_charsmap


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return small_charsmap(tmp_path_factory.mktemp("rules"))


def blob(units: list[int], texts: bytes = b"x\0") -> bytes:
    return struct.pack(f"<{len(units) + 1}I", 4 * len(units), *units) + texts


LEAF = 0x100


def chain(length: int) -> list[int]:
    """A rule for `length` times "a", each letter in a block of 256 units of its own."""
    units = [0] * 256 * (length + 2)
    place = 0
    for number in range(length + 1):
        block = 256 * (number + 1)
        units[place] = (place ^ block) << 10 | (0x61 if number else 0) | (LEAF if number == length else 0)
        place = block if number == length else block ^ 0x61
    units[place] = 0x80000000
    return units


def test_what_the_library_writes(tmp_path: Path, small: bytes) -> None:
    assert read_rules(b"") == NO_RULES
    rules = read_rules(small)
    assert b"CJK\0" in rules.texts and not rules.doubles_spaces
    sentencepiece_model(tmp_path / "m.model", "bpe", normalization_rule_name="nmt_nfkc_cf")
    rules = read_rules(charsmap(tmp_path / "m.model"))
    assert len(rules.units) > 40_000 and rules.texts.endswith(b"\0")
    assert read_rules(blob(chain(64))).texts == b"x\0"
    assert read_rules(blob(chain(1), b"a  b")).doubles_spaces


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"abc", "has 3 bytes"),
        (b"abcd", "has 4 bytes"),
        (struct.pack("<I", 0) + b"x\0", "a trie of 0"),
        (struct.pack("<I", 6) + bytes(8), "a trie of 6"),
        (struct.pack("<I", 0x7FFFFFFC) + bytes(8), "a trie of 2147483644"),
        (blob([0] * ((1 << 18) + 1)), "units"),
        (blob(chain(1), b"\xff\0"), "not UTF-8"),
        (blob([*chain(1)[:512], 0x80000009, *[0] * 255]), "beyond its texts"),
        (blob([*chain(1)[:512], 0x80000001, *[0] * 255], "\u00e9".encode()), "into a character"),
        (blob(chain(65)), "more than 64 bytes"),
        (blob(chain(1)[:512]), "beyond its trie"),
    ],
)  # fmt: skip
def test_what_is_none(content: bytes, complaint: str) -> None:
    with pytest.raises(CharsmapError, match=complaint):
        read_rules(content)


def test_a_trie_that_leads_in_circles() -> None:
    """Each unit leads to units of every byte, among them itself."""
    units = [at & 0xFF | LEAF for at in range(1 << 16)]
    with pytest.raises(CharsmapError):
        read_rules(blob(units))
    source = random.Random(1)
    units = [(source.randrange(64) * 256 | at & 0xFF) << 10 | at & 0xFF for at in range(1 << 16)]
    with pytest.raises(CharsmapError, match=r"circles|more than 64"):
        read_rules(blob(units))


@given(data=st.data())
def test_damage_is_refused_or_harmless(small: bytes, data: st.DataObject) -> None:
    damaged = bytearray(small)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    try:
        rules = read_rules(bytes(damaged[: data.draw(st.integers(0, len(damaged)))]))
    except CharsmapError:
        return
    assert not rules.units.size or rules.texts.endswith(b"\0")
