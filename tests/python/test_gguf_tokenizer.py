# SPDX-License-Identifier: Apache-2.0
"""The tokenizer in a GGUF file's metadata, as the document that is compiled: it loads in the tokenizers library, and
cuts and merges as the model's own does."""

from __future__ import annotations

import json
import re
import sys
import unicodedata
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from gguf import TokenType
from hypothesis import given
from hypothesis import strategies as st
from sentencepiece import sentencepiece_model_pb2
from tokenizers import Tokenizer

import gguf_files
from colibri_sdk.convert.gguf.header import read_header
from colibri_sdk.convert.gguf.metadata import Metadata
from colibri_sdk.convert.gguf.splits import PRE_TOKENIZERS, Split
from colibri_sdk.convert.gguf.tokenizer import byte_level_document, chat_facts, compile_from, sentencepiece_document
from colibri_sdk.convert.sentencepiece_model import compile_model
from colibri_sdk.convert.tokenizer import byte_alphabet
from colibri_sdk.errors import CheckpointError
from gguf_bytes import ARRAY, STRING, File, text, value
from tokenizer_sentencepiece import sentencepiece_model

SPACE = "\u2581"


def metadata(tmp_path: Path, **entries: tuple[int, Any]) -> Metadata:
    """Metadata with these keys of tokenizer.ggml, through a real file."""
    keys = [text(b"general.architecture") + value(STRING, b"llama")]
    keys += [text(f"tokenizer.ggml.{name}".encode()) + value(*entry) for name, entry in entries.items()]
    path = tmp_path / "t.gguf"
    path.write_bytes(File(keys=keys, tensors=[]).bytes())
    return Metadata(path, read_header(path).metadata)


def words(*texts: str) -> tuple[int, Any]:
    return ARRAY, (STRING, [one.encode() for one in texts])


BYTES = list(byte_alphabet())


@pytest.mark.parametrize("pre", PRE_TOKENIZERS)
def test_every_split_loads(tmp_path: Path, pre: str) -> None:
    meta = metadata(
        tmp_path,
        pre=(STRING, pre.encode()),
        tokens=words(*BYTES, "<s>", "th"),
        token_type=(ARRAY, (5, [1] * 256 + [3, 1])),
        merges=words("t h"),
        bos_token_id=(4, 256),
        add_bos_token=(7, 1),
    )
    tokenizer = Tokenizer.from_str(json.dumps(byte_level_document(meta)))
    assert tokenizer.encode("the").tokens == ["<s>", "th", "e"]
    assert tokenizer.decode(tokenizer.encode("the 12 ünï").ids) == "the 12 ünï"


PIECES = {
    "default": ["It", "'", "s", " ", "123", "45", " it"],
    "gpt-2": ["It's", " 12345", " it"],
    "refact": ["It", "'s", " ", "1", "2", "3", "4", "5", " it"],
    "llama-bpe": ["It", "'s", " ", "123", "45", " it"],
    "qwen2": ["It", "'s", " ", "1", "2", "3", "4", "5", " it"],
    "gpt-4o": ["It's", " ", "123", "45", " it"],
    "deepseek-v3": ["It", "'s", " ", "123", "45", " it"],
    "kimi-k2": ["It's", " ", "123", "45", " it"],
    "deepseek-llm": ["It", "'", "s", " ", "1", "2", "3", "4", "5", " it"],
}


@pytest.mark.parametrize("pre", PIECES)
def test_where_texts_are_cut(tmp_path: Path, pre: str) -> None:
    """Contractions, digits and spaces, as each family's published tokenizer cuts them."""
    document = {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": PRE_TOKENIZERS[pre].pre_tokenizer(),
        "model": {"type": "BPE", "vocab": {}, "merges": []},
    }
    pre_tokenizer = Tokenizer.from_str(json.dumps(document)).pre_tokenizer
    found = [piece.replace("Ġ", " ") for piece, _ in pre_tokenizer.pre_tokenize_str("It's 12345 it")]
    wanted = PIECES[pre] if pre != "gpt-2" else ["It", "'s", " 12345", " it"]
    assert found == wanted


def test_the_letters_of_deepseek_v2() -> None:
    """The published list has 2729 letters, all with case; it is no category: many letters with case are not in it."""
    letters = re.compile(PRE_TOKENIZERS["deepseek-llm"].patterns[1])
    listed = {chr(point) for point in range(sys.maxunicode + 1) if letters.fullmatch(chr(point))}
    cased = {
        chr(point) for point in range(sys.maxunicode + 1) if unicodedata.category(chr(point)) in ("Lu", "Ll", "Lt")
    }
    assert listed < cased and len(listed) == 2729
    assert listed >= set("aZ\u0531\u10c5\u13f8\u1c90\u1fbe\u212a\uab70\ufb17\U00010cf2\U0001e943")
    assert not listed & set("\u0561\u10d0\u1c80\u2d00\ua790\uab30\U00016e40\U0001d400")


def test_normal_forms_and_defaults() -> None:
    assert PRE_TOKENIZERS["qwen2"].normalizer() == {"type": "NFC"}
    assert Split(gpt2=True).normalizer() is None
    assert [name for name, split in PRE_TOKENIZERS.items() if split.whole_words] == ["llama-bpe", "llama3", "llama-v3"]


def test_the_demo_model_says_the_same_as_its_own_file(repo_root: Path, tmp_path: Path) -> None:
    source = repo_root / "models" / "hummingbird"
    gguf_files.write(source, tmp_path / "bird.gguf", tokenizer=True)
    meta = Metadata(tmp_path / "bird.gguf", read_header(tmp_path / "bird.gguf").metadata)
    ours = Tokenizer.from_str(json.dumps(byte_level_document(meta)))
    theirs = Tokenizer.from_file(str(source / "tokenizer.json"))
    for line in (source / "eval.jsonl").read_text().splitlines()[:50]:
        assert ours.encode(line).ids == theirs.encode(line).ids
    assert (
        chat_facts(meta).tokens["bos_token"] == json.loads((source / "tokenizer_config.json").read_text())["bos_token"]
    )


# ------------------------------------------------------------------------------------------------- SentencePiece


@given(data=st.data())
def test_scores_merge_as_sentencepiece_merges(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Beside the algorithm: while any two neighbours make a token, those with the best score do, from the left."""
    letters = [SPACE, "a", "b", "c"]
    longer = data.draw(st.lists(st.text("ab" + SPACE, min_size=2, max_size=4), unique=True, min_size=1, max_size=12))
    pieces = [*letters, *longer]
    scores = [-100.0] * len(letters) + [float(-one) for one in data.draw(st.permutations(range(len(longer))))]
    tokens = ["<unk>", "<s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    kinds = [TokenType.UNKNOWN, TokenType.CONTROL] + [TokenType.BYTE] * 256 + [TokenType.NORMAL] * len(pieces)
    meta = metadata(
        tmp_path_factory.mktemp("spm"),
        tokens=words(*tokens),
        token_type=(ARRAY, (5, [int(kind) for kind in kinds])),
        scores=(ARRAY, (6, [0.0] * 258 + scores)),
        bos_token_id=(4, 1),
    )
    tokenizer = Tokenizer.from_str(json.dumps(sentencepiece_document(meta)))
    phrase = data.draw(st.text("abc d", min_size=1, max_size=12))
    symbols = list(SPACE + phrase.replace(" ", SPACE))
    value_of = dict(zip(pieces, scores, strict=True))
    while True:
        pairs = [(value_of[a + b], -at) for at, (a, b) in enumerate(pairwise(symbols)) if a + b in value_of]
        if not pairs:
            break
        at = -max(pairs)[1]
        symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]
    wanted = ["<s>"] + [f"<0x{ord(one):02X}>" if one == "d" else one for one in symbols]
    assert tokenizer.encode(phrase).tokens == wanted
    assert tokenizer.decode(tokenizer.encode(phrase).ids) == phrase


def test_without_a_space_before(tmp_path: Path) -> None:
    meta = metadata(
        tmp_path,
        tokens=words("<unk>", SPACE, "a"),
        token_type=(ARRAY, (5, [2, 1, 1])),
        scores=(ARRAY, (6, [0.0, -1.0, -2.0])),
        add_space_prefix=(7, 0),
    )
    assert Tokenizer.from_str(json.dumps(sentencepiece_document(meta))).encode("a a").tokens == ["a", SPACE, "a"]


# ------------------------------------------------------------------------------------------------------- unigram


def unigram_keys(model: Path) -> dict[str, tuple[int, Any]]:
    """What llama.cpp's converter takes out of a tokenizer.model."""
    proto = sentencepiece_model_pb2.ModelProto()
    proto.ParseFromString(model.read_bytes())
    rules = proto.normalizer_spec
    return {
        "model": (STRING, b"t5"),
        "tokens": words(*(piece.piece for piece in proto.pieces)),
        "scores": (ARRAY, (6, [piece.score for piece in proto.pieces])),
        "token_type": (ARRAY, (5, [piece.type for piece in proto.pieces])),
        "precompiled_charsmap": (ARRAY, (0, list(rules.precompiled_charsmap))),
        "add_space_prefix": (7, int(rules.add_dummy_prefix)),
        "remove_extra_whitespaces": (7, int(rules.remove_extra_whitespaces)),
        "bos_token_id": (4, proto.trainer_spec.bos_id),
        "add_bos_token": (7, 1),
    }


@pytest.fixture(scope="module")
def unigram(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("unigram") / "tokenizer.model"
    sentencepiece_model(
        path,
        "unigram",
        normalization_rule_name="nmt_nfkc",
        remove_extra_whitespaces=True,
        user_defined_symbols=["<think>"],
    )
    return path


def test_a_unigram_model_is_that_of_its_own_file(tmp_path: Path, unigram: Path) -> None:
    keys = unigram_keys(unigram)
    count = len(keys["tokens"][1][1])
    compiled = compile_from(metadata(tmp_path, **keys), count)
    assert compiled == compile_model(unigram, count)
    del keys["precompiled_charsmap"]
    plain = compile_from(metadata(tmp_path, **keys, add_eos_token=(7, 0)), count)
    assert plain is not None and compiled is not None
    assert len(plain.section) < len(compiled.section) - 100_000


@pytest.mark.parametrize(
    "entries, message",
    [
        ({"precompiled_charsmap": (ARRAY, (0, [1, 2, 3]))}, "charsmap has 3 bytes"),
        ({"precompiled_charsmap": (ARRAY, (4, [1, 2, 3]))}, "charsmap that is no list of bytes"),
        ({"precompiled_charsmap": (STRING, b"abc")}, "charsmap that is no list of bytes"),
        ({"scores": (ARRAY, (6, [0.0]))}, "no tokenizer.ggml.scores for each"),
        ({"token_type": (ARRAY, (5, [1]))}, "no tokenizer.ggml.token_type for each"),
        ({"add_eos_token": (7, 1)}, "eos token, which is not"),
        ({"bos_token_id": (4, 1 << 20)}, "bos_token_id = 1048576"),
        ({"tokens": (ARRAY, (4, [1]))}, "a list of texts"),
    ],
)
def test_unigram_models_that_lie(tmp_path: Path, unigram: Path, entries: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        compile_from(metadata(tmp_path, **(unigram_keys(unigram) | entries)), 4096)


def test_a_token_of_no_type(tmp_path: Path, unigram: Path) -> None:
    keys = unigram_keys(unigram)
    kinds = [9, *keys["token_type"][1][1][1:]]
    with pytest.raises(CheckpointError, match="the type 9"):
        compile_from(metadata(tmp_path, **(keys | {"token_type": (ARRAY, (5, kinds))})), 4096)


# ------------------------------------------------------------------------------------------------------ refusals

GPT2 = {"model": (STRING, b"gpt2"), "pre": (STRING, b"gpt-2")}


@pytest.mark.parametrize(
    "entries, message",
    [
        ({"model": (STRING, b"bert")}, "tokenizer of the kind 'bert'"),
        ({"model": (STRING, b"t5")}, "no tokenizer.ggml.tokens"),
        ({"model": (4, 1)}, "tokenizer.ggml.model = 1; a text"),
        ({"model": (STRING, b"gpt2")}, "no tokenizer.ggml.merges"),  # and splits by the default
        ({"model": (STRING, b"gpt2"), "pre": (STRING, b"viking")}, "tokenizer.ggml.pre = 'viking'"),
        (GPT2, "no tokenizer.ggml.merges"),
        ({**GPT2, "merges": words()}, "no tokenizer.ggml.tokens"),
        ({**GPT2, "merges": words(), "tokens": (ARRAY, (4, [1, 2]))}, "tokens = .*a list of texts"),
        ({**GPT2, "merges": words("ab"), "tokens": words("a")}, "the merge 'ab'"),
        ({**GPT2, "merges": words(), "tokens": words("a", "a")}, "the token 'a' twice"),
        ({**GPT2, "merges": words(), "tokens": words("a"), "token_type": (ARRAY, (5, [1, 1]))}, "token_type for each"),
        ({**GPT2, "merges": words(), "tokens": words("a"), "add_eos_token": (7, 1)}, "eos token, which is not"),
        (
            {**GPT2, "merges": words(), "tokens": words("a"), "add_bos_token": (7, 1), "bos_token_id": (4, 9)},
            "bos_token_id = 9, which is no token",
        ),
        ({**GPT2, "merges": words(), "tokens": words("a")}, "no token for the byte"),
        ({"model": (STRING, b"llama"), "tokens": words("a")}, "no tokenizer.ggml.scores"),
        (
            {"model": (STRING, b"llama"), "tokens": words("a" * 600), "scores": (ARRAY, (6, [0.0]))},
            "a token of 600 characters",
        ),
    ],
)
def test_refusals(tmp_path: Path, entries: dict[str, tuple[int, Any]], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        compile_from(metadata(tmp_path, **entries), 1000)


def test_no_tokenizer(tmp_path: Path) -> None:
    assert compile_from(metadata(tmp_path), 10) is None
    assert chat_facts(metadata(tmp_path)).template is None


def test_a_whole_document_inside(repo_root: Path, tmp_path: Path) -> None:
    """tokenizer.huggingface.json is taken as it is."""
    document = (repo_root / "models" / "hummingbird" / "tokenizer.json").read_bytes()
    keys = [text(b"general.architecture") + value(STRING, b"llama")]
    keys += [text(b"tokenizer.ggml.model") + value(STRING, b"gpt2")]
    path = tmp_path / "t.gguf"
    path.write_bytes(
        File(keys=[*keys, text(b"tokenizer.huggingface.json") + value(STRING, document)], tensors=[]).bytes()
    )
    compiled = compile_from(Metadata(path, read_header(path).metadata), 1024)
    assert compiled is not None and compiled.special
    path.write_bytes(File(keys=[*keys, text(b"tokenizer.huggingface.json") + value(STRING, b"{")], tensors=[]).bytes())
    with pytest.raises(CheckpointError, match="not JSON"):
        compile_from(Metadata(path, read_header(path).metadata), 1024)
