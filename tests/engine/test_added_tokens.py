# SPDX-License-Identifier: Apache-2.0
"""Added tokens that take white space beside them, or that must be words, are those of the tokenizers library."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from native import Native
from tokenizer_native import EngineTokenizer, Reference, open_tokenizer, train
from tokenizer_pipelines import NFC, PIPELINES, added_token
from tokenizer_texts import CHARACTERS, WHITE, hard_text, in_parts

Pair = tuple[EngineTokenizer, Reference]

TOKENS = {
    "[L]": {"lstrip": True},
    "[R]": {"rstrip": True},
    "[B]": {"lstrip": True, "rstrip": True},
    "[R]\n": {},
    "\n": {},
    "pump": {"single_word": True},
    "pump 3": {"single_word": True, "rstrip": True},
    "u\u0308ber": {"single_word": True, "lstrip": True},
    "<w>": {"single_word": True, "lstrip": True, "rstrip": True},
}


@pytest.fixture(scope="module", params=["both", "late"])
def pair(request: pytest.FixtureRequest, native: Native, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    path = train(tmp_path_factory.mktemp("json") / "tokenizer.json")
    config = json.loads(path.read_text("utf-8")) | PIPELINES["gpt2"]
    late = TOKENS if request.param == "late" else list(TOKENS)[::2]
    names = [name for name in TOKENS if request.param == "both" or name != "u\u0308ber"]
    if request.param == "late":
        config |= {"normalizer": NFC}
        names.append("\u00fcber")
    start = 1 + max(*config["model"]["vocab"].values(), *(entry["id"] for entry in config["added_tokens"]))
    for token, name in enumerate(names, start):
        flags = TOKENS.get(name, TOKENS["u\u0308ber"])
        config["added_tokens"].append(added_token(token, name, normalized=name in (*late, "\u00fcber")) | flags)
    path.write_text(json.dumps(config), encoding="utf-8")
    reference = Reference(path)
    return open_tokenizer(native, reference.compiled), reference


texts = st.lists(
    st.one_of(
        st.sampled_from([*TOKENS, "\u00fcber", "[R", " ", "  ", "\n", "\u3000", "\x1c", "_", "a", "3", "\u0301", "-"]),
        st.text(WHITE, max_size=3),
        hard_text,
    ),
    max_size=12,
).map("".join)


@settings(max_examples=250, deadline=None)
@given(text=texts)
@example(text="[R] \n[R]\n \n\n[R]\n")
@example(text="[R] \n x")
@example(text="[L][R] [L] [B] [B]")
@example(text=" \n[B]\n pump-pump pumps _pump pump_ \u0301pump pump\u0301 pump 3pump 3")
@example(text="<w><w> <w>a <w>")
def test_ids(pair: Pair, text: str) -> None:
    engine, reference = pair
    limit = 4 * len(text.encode())
    assert engine.encode(text, limit=limit) == reference.ids(text)


def test_every_code_point(pair: Pair) -> None:
    """On both sides of a token that must be a word, and beside those that take white space."""
    engine, reference = pair
    if "\u00fcber" in reference.plain.get_vocab():
        pytest.skip("the same characters as without normalisation")
    for part in in_parts(CHARACTERS):
        text = "".join(f"-{c}<w>-pump{c}[R]{c}-{c}[L]" for c in part)
        assert engine.encode(text) == reference.ids(text), f"from U+{ord(part[0]):04X} on"
