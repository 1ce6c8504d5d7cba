# SPDX-License-Identifier: Apache-2.0
"""The tokenizers library applies a charsmap to grapheme clusters, short ones as a whole; so does the engine."""

from __future__ import annotations

import json

import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st

from native import Native
from tokenizer_native import EngineTokenizer, open_tokenizer
from tokenizer_sentencepiece import (
    SPACE,
    Model,
    charsmap,
    metaspace,
    precompiled,
    sentencepiece_model,
    tokenizers_model,
    unigram_json,
)
from tokenizer_texts import CHARACTERS

Pair = tuple[EngineTokenizer, Model]

# Between two consonants, behind what has rules and what has none, before marks.
PLACES = (
    "a{0}b {0}a\u0301",
    "\u0915{0}\u0915\u0300 \u0958{0}\u0958\u0300 {0}\u094d\u0958\u0300",
    "\u0915\u094d{0}\u0958\u0300 \u0958{0}\u094d{0}\u0958\u0300",
    "\u0600{0}\u0301 {0}\u00a0\u0301",
    "\u00a0{0} {0}\u0301 \ufb01{0}",
    "\u00a9\u200d{0} {0}\u200d\u00a9\u0300 {0}\u0308\u200d{0}\u0300",
    "{0}{0}{0} \u1100{0}\u11a8 \uac00{0} {0}\r\n{0}",
)
# What rules of clusters tell apart.
INTERESTING = regex.compile(r"[^\p{GCB=Other}]|\p{ExtPict}|\p{InCB=Consonant}|\p{Mn}|\p{Mc}|\p{Cf}|\p{Zs}", regex.V1)


@pytest.fixture(scope="module")
def pair(native: Native, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """Byte fallback: whatever the rules write can be told from the ids."""
    directory = tmp_path_factory.mktemp("clusters")
    sentencepiece_model(directory / "nfkc.model", "bpe", normalization_rule_name="nmt_nfkc")
    config = unigram_json(byte_fallback=True) | metaspace("never", split=False)
    config |= precompiled(charsmap(directory / "nfkc.model"))
    model = tokenizers_model(directory / "tokenizer.json", json.loads(json.dumps(config)))
    return open_tokenizer(native, model.compiled), model


def ids_of(engine: EngineTokenizer, text: str) -> list[int]:
    return engine.encode(text, limit=11 * len(text.encode()))


def test_interesting_code_points(pair: Pair) -> None:
    engine, model = pair
    hangul = range(0xAC00, 0xD7A4)
    points = [c for c in CHARACTERS if INTERESTING.match(c) and (ord(c) not in hangul or ord(c) % 37 == 0)]
    assert len(points) > 5000
    for start in range(0, len(points), 512):
        for place in PLACES:
            text = " ".join(place.format(c) for c in points[start : start + 512])
            assert ids_of(engine, text) == model.ids(text), f"{place!r}, from U+{ord(points[start]):04X} on"


letters = (
    "a\u0301\u0300\u00e9 \u00a0\u3000\u0915\u094d\u0958\u093c\u200d\u00a9\u0600\u1100\u1161\u11a8\uac00\uac01\r\n\x01"
)
letters += f"\U0001f1e9\U0001f1ea\u0e33\u0903\ufb01\u00bd{SPACE}\U0001f469\u200b\u1cf5"


@settings(max_examples=300, deadline=None)
@given(
    text=st.text(st.one_of(st.sampled_from(letters), st.characters(exclude_categories=["Cs"], exclude_characters="\0")))
)
def test_texts(pair: Pair, text: str) -> None:
    engine, model = pair
    assert ids_of(engine, text) == model.ids(text)
