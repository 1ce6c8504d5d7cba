# SPDX-License-Identifier: Apache-2.0
"""The engine's tokenizer gives the ids of the tokenizers library, whatever the text and the vocabulary."""

from __future__ import annotations

import json
import random
import sys

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from native import Native
from tokenizer_native import (
    E_BUFFER_SIZE,
    E_TEXT_SIZE,
    HUMMINGBIRD,
    EngineTokenizer,
    Reference,
    all_references,
    open_tokenizer,
    split_bytes,
    split_text,
)
from tokenizer_texts import any_text, hard_text, in_parts

NAMES = ("hummingbird", "trained", "scrambled-1", "scrambled-2")


@pytest.fixture(scope="module")
def references(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Reference]:
    references = all_references(tmp_path_factory.mktemp("json"))
    assert tuple(references) == NAMES
    return references


@pytest.fixture(scope="module", params=NAMES)
def pair(
    request: pytest.FixtureRequest, native: Native, references: dict[str, Reference]
) -> tuple[EngineTokenizer, Reference]:
    reference = references[request.param]
    return open_tokenizer(native, reference.compiled), reference


def check_text(pair: tuple[EngineTokenizer, Reference], text: str) -> None:
    engine, reference = pair
    assert engine.pieces(text) == split_text(text)
    ids = engine.encode(text)
    assert ids == reference.ids(text)
    assert engine.text(ids) == text.encode()


# ---------------------------------------------------------------------------------------------------- valid Unicode


@settings(max_examples=500, deadline=None)
@given(text=any_text)
def test_any_unicode(pair: tuple[EngineTokenizer, Reference], text: str) -> None:
    check_text(pair, text)


@settings(max_examples=1000, deadline=None)
@given(text=hard_text)
@example(text="")
@example(text=" ")
@example(text="  a")
@example(text="a \n b")
@example(text="\u3000\u3000x")
@example(text="it's '' 'sx 're'll")
def test_hard_unicode(pair: tuple[EngineTokenizer, Reference], text: str) -> None:
    check_text(pair, text)


LONG = {
    "one letter": "a" * 10_000,
    "two letters": "ab" * 5_000,
    "aab": "aab" * 3_333,
    "spaces": " " * 10_000,
    "spaces before a word": " " * 9_999 + "x",
    "newlines and spaces": "\n \n" * 3_000,
    "digits": "0123456789" * 1_000,
    "Han": "中文" * 5_000,
    "emoji": "\U0001f469\u200d\U0001f52c" * 1_000,
    "punctuation": "?!" * 5_000,
    "apostrophes": "'" * 10_000,
    "sentence": "set pump 3 to 40 percent, please. " * 1_900,  # 64 KB
}


@pytest.mark.parametrize("name", LONG)
def test_long_runs(pair: tuple[EngineTokenizer, Reference], name: str) -> None:
    check_text(pair, LONG[name])


@pytest.mark.parametrize("seed", range(20))
def test_long_pieces_at_random(pair: tuple[EngineTokenizer, Reference], seed: int) -> None:
    """Many pairs of many ranks at once: removals from the middle of the heap move others up as well as down."""
    source = random.Random(seed)
    for letters in ("ab", "aab\u4e2d", "01", " \n"):
        check_text(pair, "".join(source.choices(letters, k=3000)))


def test_prompts_of_the_demo(native: Native, references: dict[str, Reference]) -> None:
    reference = references["hummingbird"]
    engine = EngineTokenizer(native, reference.compiled.section, reference.vocab)
    lines = (HUMMINGBIRD / "eval.jsonl").read_text("utf-8").splitlines()
    assert len(lines) > 100
    for line in lines:
        for text in json.loads(line).values():
            check_text((engine, reference), text)


def test_every_code_point(native: Native, references: dict[str, Reference]) -> None:
    """Behind a letter, a digit, a space, punctuation and itself, and before a space."""
    reference = references["hummingbird"]
    engine = EngineTokenizer(native, reference.compiled.section, reference.vocab)
    characters = [chr(point) for point in range(sys.maxunicode + 1) if not 0xD800 <= point < 0xE000]
    for part in in_parts(characters):
        text = "".join(f"a{c}1{c}{c} {c}!{c} " for c in part)
        assert engine.pieces(text) == split_text(text), f"from U+{ord(part[0]):04X} on"
    text = "".join(characters)
    assert engine.text(engine.encode(text)) == text.encode()


# ---------------------------------------------------------------------------------------------------------- any bytes

cut_text = st.builds(
    lambda text, front, back: text.encode()[front : len(text.encode()) - back],
    hard_text,
    st.integers(0, 3),
    st.integers(0, 3),
)
any_bytes = st.one_of(
    st.binary(max_size=80),
    cut_text,
    st.lists(st.one_of(cut_text, st.binary(min_size=1, max_size=3)), max_size=8).map(b"".join),
)


@settings(max_examples=1000, deadline=None)
@given(data=any_bytes)
@example(data=b"\xe2\x82")
@example(data=b"a\xe2\x82 \xac\xff\xff\xff  \xc0\x80\xed\xa0\x80'\xf0\x9f")
@example(data=b"\xff" * 3000)
@example(data=b"\xe4\xb8\xad\xe4\xb8" * 500)
def test_any_bytes(pair: tuple[EngineTokenizer, Reference], data: bytes) -> None:
    engine, reference = pair
    ids = engine.encode(data)
    assert engine.text(ids) == data
    assert engine.pieces(data) == [len(piece) for piece in split_bytes(data)]
    assert ids == reference.byte_ids(data)


# -------------------------------------------------------------------------------------------- special tokens, limits


def test_special_tokens_never_come_from_text(pair: tuple[EngineTokenizer, Reference]) -> None:
    engine, reference = pair
    special = reference.compiled.special
    assert special
    for name, token in special.items():
        assert reference.rendered_ids(name) == [token]
        ids = engine.encode(f"{name} x{name}{name}")
        assert not set(ids) & set(special.values())
        assert engine.text(ids).decode() == f"{name} x{name}{name}"
        assert engine.text([token]) == b""


def test_unknown_ids_have_no_text(pair: tuple[EngineTokenizer, Reference]) -> None:
    engine, reference = pair
    assert engine.text([reference.vocab, reference.vocab + 1, 0xFFFFFFFF]) == b""


@settings(max_examples=100, deadline=None)
@given(text=hard_text, room=st.integers(0, 40))
def test_too_little_room_states_the_need(pair: tuple[EngineTokenizer, Reference], text: str, room: int) -> None:
    engine, _ = pair
    whole = engine.encode(text)
    status, ids = engine.try_encode(text, room=room)
    assert status == (0 if len(whole) <= room else E_BUFFER_SIZE)
    assert ids == whole[:room] + [-1] * (len(whole) - room)


def test_longer_than_allowed_is_refused(pair: tuple[EngineTokenizer, Reference]) -> None:
    engine, _ = pair
    assert engine.try_encode("abcd", limit=3) == (E_TEXT_SIZE, [])
    assert engine.try_encode("abcd", limit=4)[0] == 0
    assert engine.try_encode("", limit=0) == (0, [])
