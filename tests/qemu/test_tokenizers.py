# SPDX-License-Identifier: Apache-2.0
"""Tokenizers that came through GGUF files and tokenizer.model: a board's ids of difficult texts, and what it generates
from them, are those of this machine, and the ids those of the libraries."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import pytest
import sentencepiece

import checkpoints
import gguf_files
from acceptance import Place, each
from colibri_sdk.convert import pack
from colibri_sdk.engine import Engine, Library
from tokenizer_native import Reference
from tokenizer_pipelines import with_pipeline
from tokenizer_sentencepiece import sentencepiece_model

BIRD = Path(__file__).resolve().parents[2] / "models" / "hummingbird"
BOARDS = [Place("virt-aarch64"), Place("virt-riscv64")]
TEXTS = [
    "",
    " two  spaces\n\n and\t\r\nlines ",
    "it's 2024, we'LL set \u0663\u0664 pumps to 12345.678e-9",
    "\ufb01ne \u2460 \uff21\uff42 caf\u00e9 cafe\u0301\u00a0\u3000x \u3300",
    "\U0001f469\u200d\U0001f52c \u4e2d\u6587\u4e2d \u0434\u0430 \uff01",
    "<s></s><unk><|user|><think>x\u2581y<0x41>",
    "\x01\x7f\x85\u200b\ufeff\ufffd\U0010ffff",
    "\u1100\u1161\u11a8 \uac01 \u0958 \u0344\u0323e\u0323\u0301",
    "\u0561\u0531\u10d0\u1c90 \u212a\ufb17\U0001e943\U0001d400",
    "ab" * 150 + " " * 40 + "\u4e2d" * 20,
    "?!...\u2018\u3002,;-- [x]{y}\\n'",
]
PROMPT = "set the pumps to 12 percent, caf\u00e9 \u4e2d\u6587"


@dataclass(frozen=True)
class Case:
    """An image, and the ids of the sentencepiece or the tokenizers library."""

    image: Path
    ids: Callable[[str], list[int]]


def checkpoint(directory: Path, vocab: int) -> Path:
    """A tiny one with random weights."""
    settings = checkpoints.config(vocab_size=vocab, max_position_embeddings=1024)  # the longest text takes 600
    return checkpoints.write(directory, settings, checkpoints.tensors(settings))


def pieces(model: Path) -> Callable[[gguf.GGUFWriter], None]:
    """Writes the tokens of a SentencePiece model as llama.cpp's converter does."""
    library = sentencepiece.SentencePieceProcessor(model_file=str(model))
    kinds = gguf.TokenType

    def kind(token: int) -> gguf.TokenType:
        if library.is_unknown(token):
            return kinds.UNKNOWN
        if library.is_control(token):
            return kinds.CONTROL
        return kinds.BYTE if library.is_byte(token) else kinds.NORMAL

    def change(writer: gguf.GGUFWriter) -> None:
        tokens = range(library.vocab_size())
        writer.add_tokenizer_model("llama")
        writer.add_token_list([library.id_to_piece(token) for token in tokens])
        writer.add_token_scores([library.get_score(token) for token in tokens])
        writer.add_token_types([kind(token) for token in tokens])
        writer.add_bos_token_id(library.bos_id())

    return change


def gguf_sentencepiece(directory: Path) -> Case:
    model = sentencepiece_model(directory / "bpe.model", "bpe")
    source = checkpoint(directory / "m", model.compiled.vocab)
    gguf_files.write(source, directory / "m.gguf", change=pieces(directory / "bpe.model"))
    return packed(directory / "m.gguf", model.ids)


def gguf_byte_level(directory: Path) -> Case:
    """The demo's vocabulary, split as DeepSeek-V2 splits: by a long list of letters, among others."""
    source = checkpoint(directory / "m", json.loads((BIRD / "config.json").read_text("utf-8"))["vocab_size"])
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(BIRD / name, source)

    def change(writer: gguf.GGUFWriter) -> None:
        for shard in writer.kv_data:
            shard["tokenizer.ggml.pre"].value = "deepseek-llm"

    gguf_files.write(source, directory / "m.gguf", tokenizer=True, change=change)
    reference = Reference(with_pipeline(BIRD / "tokenizer.json", directory / "split.json", "deepseek-v2"))
    return packed(directory / "m.gguf", reference.ids)


def unigram(directory: Path) -> Case:
    """With the rules of normalisation that most models of this kind have."""
    model = sentencepiece_model(
        directory / "tokenizer.model",
        "unigram",
        normalization_rule_name="nmt_nfkc",
        remove_extra_whitespaces=True,
        user_defined_symbols=["<think>"],
    )
    source = checkpoint(directory / "m", model.compiled.vocab)
    shutil.copy(directory / "tokenizer.model", source)
    return packed(source, model.ids)


def packed(source: Path, ids: Callable[[str], list[int]]) -> Case:
    image = source.with_suffix(".colibri")
    assert pack(source, image).has_tokenizer
    return Case(image, ids)


@pytest.fixture(scope="module", params=[gguf_sentencepiece, gguf_byte_level, unigram], ids=lambda make: make.__name__)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    made: Case = request.param(tmp_path_factory.mktemp("tokenizers"))
    return made


@each(BOARDS)
def test_a_board_reads_as_this_machine_does(case: Case, emulated: Callable[..., Any], place: Place) -> None:
    engine = Engine(Library.load(), case.image, kernels="scalar")
    device = emulated(place.board, case.image)
    for text in TEXTS:
        ids = device.tokenize(text)
        assert ids == engine.tokenize(text) == case.ids(text), text
    prompt = device.tokenize(PROMPT)
    assert 5 < len(prompt) < 50
    wanted = engine.generate(prompt, max_tokens=8, ignore_eos=True)
    generation = device.generate(prompt, max_tokens=8, ignore_eos=True)
    assert tuple(token.id for token in generation) == wanted.token_ids and len(wanted.token_ids) == 8
    assert generation.result.logits_sha256 == wanted.logits_sha256
