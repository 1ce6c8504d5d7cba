# SPDX-License-Identifier: Apache-2.0
"""The engine normalises and cuts texts as the tokenizers library does, for the pipelines of published models."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from native import Native
from tokenizer_native import E_TEXT_SIZE, EngineTokenizer, Reference, open_tokenizer, train
from tokenizer_pipelines import PIPELINES, added_token, with_pipeline, with_whole_words
from tokenizer_texts import CHARACTERS, hard_text, in_parts, pattern_text

Pair = tuple[EngineTokenizer, Reference]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("json") / "trained.json")


def opened(native: Native, path: Path) -> Pair:
    reference = Reference(path)
    return open_tokenizer(native, reference.compiled), reference


@pytest.fixture(scope="module", params=[*PIPELINES, "whole words"])
def pair(
    request: pytest.FixtureRequest, native: Native, trained: Path, tmp_path_factory: pytest.TempPathFactory
) -> Pair:
    path = tmp_path_factory.mktemp("pipeline") / "tokenizer.json"
    if request.param == "whole words":
        return opened(native, with_whole_words(trained, path))
    return opened(native, with_pipeline(trained, path, request.param))


def check_text(pair: Pair, text: str) -> None:
    engine, reference = pair
    normal = reference.normal(text)
    assert engine.pieces(normal) == reference.pieces(normal)
    ids = engine.encode(text, limit=3 * len(text.encode()) + len(normal.encode()))
    assert ids == reference.ids(text)
    assert engine.text(ids).decode() == normal


@settings(max_examples=400, deadline=None)
@given(text=st.one_of(pattern_text, hard_text))
@example(text="I'LL we'\u017f \u017f\u212a it's")
@example(text="a  \n\n  b\r\n\r\n c \n")
@example(text="1234567 \u0661\u0662\u0663\u0664")
@example(text="e\u0323\u0301 \u0344 \u1100\u1161\u11a8\u11a8 \uac00\u11a8 \u09c7\u09be \u0301e")
def test_texts(pair: Pair, text: str) -> None:
    check_text(pair, text)


def test_every_code_point(pair: Pair) -> None:
    """Beside letters of both cases, digits, white space, punctuation and itself."""
    engine, reference = pair
    for part in in_parts(CHARACTERS):
        text = "".join(f"a{c}A{c}1{c}{c} {c}!{c}\n '{c}" for c in part)
        normal = reference.normal(text)
        assert engine.pieces(normal) == reference.pieces(normal), f"from U+{ord(part[0]):04X} on"


def test_every_code_point_in_normal_form(pair: Pair) -> None:
    engine, reference = pair
    if reference.normalizer is None:
        pytest.skip("does not normalise")
    for part in in_parts(CHARACTERS):
        text = "".join(f"{c} e{c}\u0323 \u0301{c}" for c in part)
        normal = reference.normal(text)
        ids = engine.encode(text, limit=12 * len(text.encode()))
        assert engine.text(ids).decode() == normal, f"from U+{ord(part[0]):04X} on"


LONG = {
    "spaces before Han": " " * 65_000 + "\u4e2d",
    "spaces before a digit": " " * 65_000 + "1",
    "line ends": "\r\n" * 32_000,
    "letters": "aB" * 32_000,
    "digits": "7" * 65_000,
    "marks": "e" + "\u0301\u0323\u0327" * 10_000,
    "punctuation": "?!" * 32_000 + "\n",
    "controls": "\x00" * 65_000,
}


@pytest.mark.parametrize("name", LONG)
def test_long_runs(pair: Pair, name: str) -> None:
    """64 KB of what invites patterns to look again and again. Steps that grew with the square would take minutes."""
    engine, reference = pair
    text = LONG[name]
    ids = engine.encode(text, limit=2 * len(text.encode()))
    assert engine.text(ids).decode() == reference.normal(text)
    if not name.startswith("spaces"):  # for some patterns the library itself takes that long
        assert ids == reference.ids(text)


@settings(max_examples=100, deadline=None)
@given(data=st.binary(max_size=60))
def test_any_bytes(pair: Pair, data: bytes) -> None:
    engine, reference = pair
    ids = engine.encode(data, limit=4 * len(data))
    if reference.normalizer is None:
        assert engine.text(ids) == data
    assert sum(engine.pieces(data)) == len(data)


def test_a_text_that_grows_beyond_the_limit_is_refused(native: Native, trained: Path, tmp_path: Path) -> None:
    engine, _ = opened(native, with_pipeline(trained, tmp_path / "tokenizer.json", "qwen2"))
    assert engine.try_encode("\u0958", limit=5) == (E_TEXT_SIZE, [])
    assert engine.try_encode("\u0958", limit=6)[0] == 0


def test_whole_words_are_not_cut(native: Native, trained: Path, tmp_path: Path) -> None:
    """The library agrees by the tests above; here that the setting was put to use."""
    engine, reference = opened(native, with_whole_words(trained, tmp_path / "tokenizer.json"))
    cut = opened(native, with_pipeline(trained, tmp_path / "other.json", "llama3"))[0]
    words = [text for text in reference.plain.get_vocab() if text.isascii() and text.isalpha()]
    assert words and all(len(engine.encode(word)) == 1 for word in words)
    assert cut.status == 0


# ------------------------------------------------------------------------------- added tokens that are not special

ADDED = ["<think>", "</think>", "<th", "th", "think> ", "  ", "    ", "\n\n", "\u00e9!", "12"]
added_text = st.lists(
    st.one_of(
        st.sampled_from([*ADDED, "<", ">", "think", " ", "e\u0301!", "\u0301", "1", "2", "a", "<s>", "[INST]"]),
        st.text("<>/thinkn 12", max_size=8),
    ),
    max_size=14,
).map("".join)


@pytest.fixture(scope="module", params=["gpt2", "qwen2", "deepseek-v3"])
def with_added(
    request: pytest.FixtureRequest, native: Native, trained: Path, tmp_path_factory: pytest.TempPathFactory
) -> Pair:
    path = with_pipeline(trained, tmp_path_factory.mktemp("added") / "tokenizer.json", request.param)
    config = json.loads(path.read_text("utf-8"))
    free = len(config["model"]["vocab"])
    for index, text in enumerate(ADDED):
        token = config["model"]["vocab"].get(text, free + index)
        config["added_tokens"].append(added_token(token, text, normalized=index % 2 == 1))
    path.write_text(json.dumps(config), encoding="utf-8")
    return opened(native, path)


@settings(max_examples=500, deadline=None)
@given(text=added_text)
@example(text="<think>")
@example(text="a <think>\n\n</think>\n\nb")
@example(text="<<think>think> </think>  ")
@example(text="e\u0301!<th\u0301")
def test_added_tokens_are_found_in_text(with_added: Pair, text: str) -> None:
    engine, reference = with_added
    assert engine.encode(text) == reference.ids(text)


def test_added_tokens_have_their_text(with_added: Pair) -> None:
    engine, reference = with_added
    for name in ADDED:
        token = reference.plain.token_to_id(name)
        assert engine.encode(name) == [token]
        assert engine.text([token]).decode() == name


@pytest.mark.parametrize("text", ["<" * 65_000, "<think" * 10_000, " " * 65_000], ids=["<", "<think", "spaces"])
def test_many_beginnings_of_added_tokens(with_added: Pair, text: str) -> None:
    engine, reference = with_added
    assert engine.encode(text) == reference.ids(text)
