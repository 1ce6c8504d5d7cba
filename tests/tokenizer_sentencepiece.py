# SPDX-License-Identifier: Apache-2.0
"""Small SentencePiece tokenizers, trained on the spot with the sentencepiece and tokenizers libraries."""

from __future__ import annotations

import base64
import io
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sentencepiece
import tokenizers

from colibri_sdk.convert.sentencepiece_model import compile_model
from colibri_sdk.convert.tokenizer import CompiledTokenizer, compile_tokenizer
from tokenizer_pipelines import added_token

SPACE = "\u2581"
WORDS = [
    "set",
    "pump",
    "pumps",
    "to",
    "percent",
    "the",
    "valve",
    "valves",
    "aab",
    "ab",
    "abab",
    "12",
    "2024",
    "it's",
    "caf\u00e9",
]
WORDS += ["\u4e2d\u6587", "\u4e2d", "\u0434\u0430", "\U0001f600", "a\u0301", "...", "\n", "\t", "<s>", "x\u2581y"]


def corpus() -> list[str]:
    """Sentences of the words above and of made up ones, the first ones more often."""
    source = random.Random(11)
    made = [
        "".join(source.choices(("a", "ba", "st", "er", "in", "\u0434\u043e", "0", "\u4e2d"), k=n % 6 + 2))
        for n in range(300)
    ]
    words = WORDS * 12 + made
    return [" ".join(source.choices(words, k=source.randint(1, 12))) for _ in range(2000)]


@dataclass(frozen=True)
class Model:
    """One tokenizer, by a library and compiled."""

    compiled: CompiledTokenizer
    ids: Callable[[str], list[int]]
    text: Callable[[list[int]], str]
    joins_bytes: bool = True  # tokens of bytes become text


def sentencepiece_model(path: Path, kind: str, **options: Any) -> Model:
    """By the sentencepiece library; without rules of normalisation, unless `options` ask for them."""
    written = io.BytesIO()
    usual = {"vocab_size": 400, "byte_fallback": True, "hard_vocab_limit": False, "character_coverage": 1.0}
    usual |= {"normalization_rule_name": "identity", "remove_extra_whitespaces": False}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(corpus()),
        model_writer=written,
        model_type=kind,
        minloglevel=2,
        num_threads=1,
        **(usual | options),
    )
    path.write_bytes(written.getvalue())
    processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
    compiled = compile_model(path, processor.vocab_size())
    return Model(compiled, processor.encode, processor.decode)


def charsmap(path: Path) -> bytes:
    """The rules of normalisation in a model's file."""
    from sentencepiece import sentencepiece_model_pb2

    proto = sentencepiece_model_pb2.ModelProto()
    proto.ParseFromString(path.read_bytes())
    blob: bytes = proto.normalizer_spec.precompiled_charsmap
    return blob


def small_charsmap(directory: Path) -> bytes:
    """Rules that write nothing, a space, more than they read; and for texts that begin alike."""
    rules = {
        "\u00e9": "e",
        "e\u0301": "e",
        "e": "\u0113",
        "\u00a0": " ",
        "\x01": "",
        "\ufb01": "fi",
        "\u4e2d\u6587": "CJK",
    }
    lines = [
        " ".join(f"{ord(one):X}" for one in text) + "\t" + " ".join(f"{ord(one):X}" for one in stands)
        for text, stands in rules.items()
    ]
    (directory / "rules.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    path = directory / "rules.model"
    sentencepiece_model(
        path, "bpe", normalization_rule_name="", normalization_rule_tsv=str(directory / "rules.tsv"), vocab_size=350
    )
    return charsmap(path)


def precompiled(blob: bytes, *, collapse: str | None = None) -> dict[str, Any]:
    """A normalizer with such rules; `collapse`: then white space at the end goes, and several spaces become this."""
    steps: list[dict[str, Any]] = [
        {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(blob).decode("ascii")}
    ]
    if collapse is not None:
        steps.append({"type": "Strip", "strip_left": False, "strip_right": True})
        steps.append({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": collapse})
    return {"normalizer": {"type": "Sequence", "normalizers": steps}}


def model_json(path: Path) -> dict[str, Any]:
    """A tokenizer.json as Llama-2's, made from a sentencepiece BPE model."""
    from sentencepiece import sentencepiece_model_pb2

    proto = sentencepiece_model_pb2.ModelProto()
    proto.ParseFromString(path.read_bytes())
    vocab = {piece.piece: token for token, piece in enumerate(proto.pieces)}
    scored = [piece for piece in proto.pieces if piece.type == piece.NORMAL and len(piece.piece) > 1]
    merges = [
        [piece.piece[:cut], piece.piece[cut:]]
        for piece in sorted(scored, key=lambda piece: -piece.score)
        for cut in range(1, len(piece.piece))
        if piece.piece[:cut] in vocab and piece.piece[cut:] in vocab
    ]
    special = [token for token, piece in enumerate(proto.pieces) if piece.type in (piece.CONTROL, piece.UNKNOWN)]
    return {
        "added_tokens": [added_token(token, proto.pieces[token].piece, special=True) for token in special],
        "model": {
            "type": "BPE",
            "vocab": vocab,
            "merges": merges,
            "unk_token": "<unk>",
            "fuse_unk": True,
            "byte_fallback": True,
        },
    }


LLAMA2 = {
    "normalizer": {
        "type": "Sequence",
        "normalizers": [
            {"type": "Prepend", "prepend": SPACE},
            {"type": "Replace", "pattern": {"String": " "}, "content": SPACE},
        ],
    },
    "pre_tokenizer": None,
    "decoder": {
        "type": "Sequence",
        "decoders": [
            {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ],
    },
}


def metaspace(scheme: str, *, split: bool) -> dict[str, Any]:
    step = {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": scheme, "split": split}
    return {"normalizer": None, "pre_tokenizer": step, "decoder": step}


PIPELINES = {
    "llama2": LLAMA2,
    "first": metaspace("first", split=False),
    "always": metaspace("always", split=True),
    "never": metaspace("never", split=True),
}


def tokenizers_model(path: Path, config: dict[str, Any]) -> Model:
    """By the tokenizers library. Special tokens that are part of the model are out of a text's reach for it too."""
    path.write_text(json.dumps(config), encoding="utf-8")
    vocab = config["model"]["vocab"]
    compiled = compile_tokenizer(path, len(vocab) + len(config["added_tokens"]))
    names = {entry["content"] for entry in config["added_tokens"] if entry["special"]}
    hidden = {name: f"\ue000{name}\ue001" for name in names}
    model = dict(config["model"])
    if isinstance(vocab, dict):
        model["vocab"] = {hidden.get(text, text): token for text, token in vocab.items()}
        model["unk_token"] = hidden.get(model["unk_token"], model["unk_token"])
    else:
        model["vocab"] = [[hidden.get(text, text), score] for text, score in vocab]
    plain = config | {"model": model, "added_tokens": [e for e in config["added_tokens"] if not e["special"]]}
    library = tokenizers.Tokenizer.from_str(json.dumps(plain))
    return Model(
        compiled,
        lambda text: library.encode(text, add_special_tokens=False).ids,
        lambda ids: library.decode(ids, skip_special_tokens=False),
        joins_bytes=config["decoder"]["type"] != "Metaspace",
    )


def unigram_json(*, byte_fallback: bool) -> dict[str, Any]:
    trainer = tokenizers.trainers.UnigramTrainer(
        vocab_size=300, unk_token="<unk>", special_tokens=["<unk>", "<s>"], show_progress=False
    )
    tokenizer = tokenizers.Tokenizer(tokenizers.models.Unigram())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(SPACE, prepend_scheme="always", split=True)
    tokenizer.train_from_iterator(corpus(), trainer)
    config: dict[str, Any] = json.loads(tokenizer.to_str())
    model = config["model"]
    if byte_fallback:
        model["vocab"] += [[f"<0x{byte:02X}>", -50.0] for byte in range(256)]
        model["byte_fallback"] = True
    return {"added_tokens": config["added_tokens"], "model": model}


def all_models(directory: Path) -> dict[str, Model]:
    found = {
        "sentencepiece bpe": sentencepiece_model(directory / "bpe.model", "bpe"),
        "sentencepiece bpe, unknown": sentencepiece_model(directory / "bpe-unk.model", "bpe", byte_fallback=False),
        "sentencepiece bpe, symbols": sentencepiece_model(
            directory / "bpe-user.model", "bpe", user_defined_symbols=["<think>", "<th", "ab"], add_dummy_prefix=False
        ),
        "sentencepiece bpe, symbols and space": sentencepiece_model(
            directory / "bpe-space.model", "bpe", user_defined_symbols=["<think>", "ab"]
        ),
        "sentencepiece unigram": sentencepiece_model(directory / "unigram.model", "unigram"),
        "sentencepiece unigram, unknown": sentencepiece_model(
            directory / "unigram-unk.model", "unigram", byte_fallback=False, user_defined_symbols=["<think>"]
        ),
    }
    symbols = ["<think>", "\u00e9t", "ab"]
    found["sentencepiece bpe, nmt_nfkc"] = sentencepiece_model(
        directory / "bpe-nmt.model",
        "bpe",
        normalization_rule_name="nmt_nfkc",
        remove_extra_whitespaces=True,
        user_defined_symbols=symbols,
    )
    found["sentencepiece unigram, nmt_nfkc_cf"] = sentencepiece_model(
        directory / "unigram-cf.model",
        "unigram",
        normalization_rule_name="nmt_nfkc_cf",
        remove_extra_whitespaces=True,
        byte_fallback=False,
        user_defined_symbols=symbols,
    )
    found["sentencepiece unigram, nfkc"] = sentencepiece_model(
        directory / "unigram-nfkc.model", "unigram", normalization_rule_name="nfkc", add_dummy_prefix=False
    )
    found["sentencepiece bpe, symbols of spaces"] = sentencepiece_model(
        directory / "bpe-spaces.model", "bpe", user_defined_symbols=[SPACE * 2, SPACE * 3, "\n\n", f"{SPACE}ab"]
    )
    rules = charsmap(directory / "bpe-nmt.model")
    found["unigram, rules as T5"] = tokenizers_model(
        directory / "t5.json",
        unigram_json(byte_fallback=False) | metaspace("always", split=True) | precompiled(rules, collapse=SPACE),
    )
    taking = unigram_json(byte_fallback=True) | metaspace("first", split=False)
    taking |= precompiled(charsmap(directory / "unigram-nfkc.model"))
    start = len(taking["model"]["vocab"])
    taking["added_tokens"] += [
        added_token(start, "<think>") | {"lstrip": True, "rstrip": True},
        added_token(start + 1, "set", normalized=True) | {"single_word": True, "rstrip": True},
    ]
    found["unigram, rules, tokens that take"] = tokenizers_model(directory / "taking.json", taking)
    bpe = model_json(directory / "bpe.model")
    bpe["added_tokens"].append(added_token(len(bpe["model"]["vocab"]), "<think>"))
    for name, pipeline in PIPELINES.items():
        found[f"bpe, {name}"] = tokenizers_model(directory / f"bpe-{name}.json", bpe | pipeline)
        for fallback in (False, True):
            config = unigram_json(byte_fallback=fallback) | pipeline
            title = f"unigram, {name}{', bytes' if fallback else ''}"
            found[title] = tokenizers_model(directory / f"{title}.json", config)
    unknown = json.loads(json.dumps(bpe | PIPELINES["always"]))
    unknown["model"]["byte_fallback"] = False
    found["bpe, unknown"] = tokenizers_model(directory / "bpe-unknown.json", unknown)
    unknown["model"]["fuse_unk"] = False
    found["bpe, unknowns"] = tokenizers_model(directory / "bpe-unknowns.json", unknown)
    return found
