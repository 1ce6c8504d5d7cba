# SPDX-License-Identifier: Apache-2.0
"""The normalizer and pre_tokenizer of published byte-level tokenizers, as their tokenizer.json files have them."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from colibri_sdk.convert.gguf.splits import PRE_TOKENIZERS

Json = dict[str, Any]

_TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
LLAMA3 = _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + _TAIL
QWEN2 = _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + _TAIL
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
DEEPSEEK_V2 = (
    "[\r\n]",
    PRE_TOKENIZERS["deepseek-llm"].patterns[1],  # its letters, in over a hundred ranges
    "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
    "\\s+$",
    "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+",
)
DEEPSEEK_V3 = (
    r"\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)
_KIMI_UPPER, _KIMI_LOWER = (
    rf"[{kinds}\p{{Lm}}\p{{Lo}}\p{{M}}&&[^\p{{Han}}]]" for kinds in (r"\p{Lu}\p{Lt}", r"\p{Ll}")
)
KIMI_K2 = (
    rf"[\p{{Han}}]+|[^\r\n\p{{L}}\p{{N}}]?{_KIMI_UPPER}*{_KIMI_LOWER}+{_CONTRACTION}?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_KIMI_UPPER}+{_KIMI_LOWER}*{_CONTRACTION}?"
    r"|\p{N}{1,3}" + _TAIL
)
CL100K = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]"
    r"|\s+(?!\S)|\s"
)
SCRIPTS = (r"[\p{Hiragana}\p{Katakana}[\u30fc]]+|\p{Cyrillic}++", r"[\p{L}&&\P{Latin}]+|\P{^Thai}")
NFC: Json = {"type": "NFC"}
DIGITS: Json = {"type": "Digits", "individual_digits": True}


def level(*, regex: bool) -> Json:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": regex}


def split(pattern: str, behavior: str = "Isolated", *, invert: bool = False) -> Json:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": behavior, "invert": invert}


def sequence(*parts: Json) -> Json:
    return {"type": "Sequence", "pretokenizers": list(parts)}


def added_token(token: int, text: str, *, special: bool = False, normalized: bool = False) -> Json:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": normalized, "special": special}
    return {"id": token, "content": text, **flags}


PIPELINES: dict[str, Json] = {
    "gpt2": {"pre_tokenizer": level(regex=True)},
    "olmo": {"normalizer": NFC, "pre_tokenizer": level(regex=True)},
    "starcoder": {"pre_tokenizer": sequence(DIGITS, level(regex=True))},
    "digit runs": {"pre_tokenizer": sequence({"type": "Digits", "individual_digits": False}, level(regex=True))},
    "llama3": {"pre_tokenizer": sequence(split(LLAMA3), level(regex=False))},
    "gpt4": {"pre_tokenizer": sequence(split(LLAMA3, "Removed", invert=True), level(regex=False))},
    "qwen2": {"normalizer": NFC, "pre_tokenizer": sequence(split(QWEN2), level(regex=False))},
    "deepseek-v2": {
        "normalizer": {"type": "Sequence", "normalizers": []},
        "pre_tokenizer": sequence(*map(split, DEEPSEEK_V2), DIGITS, level(regex=False)),
    },
    "deepseek-v3": {
        "normalizer": {"type": "Sequence", "normalizers": []},
        "pre_tokenizer": sequence(*map(split, DEEPSEEK_V3), level(regex=False)),
    },
    "o200k": {"pre_tokenizer": sequence(split(O200K), level(regex=False))},
    "tekken": {"pre_tokenizer": sequence(split(TEKKEN), level(regex=False))},
    "kimi-k2": {"pre_tokenizer": sequence(split(KIMI_K2), level(regex=False))},
    "scripts, cl100k": {"pre_tokenizer": sequence(*map(split, (*SCRIPTS, CL100K)), level(regex=False))},
    "nfd": {"normalizer": {"type": "NFD"}, "pre_tokenizer": level(regex=True)},
    "nfkc": {"normalizer": {"type": "NFKC"}, "pre_tokenizer": level(regex=True)},
}


def with_pipeline(source: Path, path: Path, name: str) -> Path:
    """The tokenizer of `source` with another pipeline."""
    config = json.loads(source.read_text("utf-8"))
    path.write_text(json.dumps(config | PIPELINES[name]), encoding="utf-8")
    return path


def with_whole_words(source: Path, path: Path) -> Path:
    """Llama-3's: with ignore_merges, and tokens that no merge leads to any more."""
    config = json.loads(source.read_text("utf-8"))
    config |= PIPELINES["llama3"]
    merges = config["model"]["merges"]
    random.Random(3).shuffle(merges)
    config["model"] |= {"ignore_merges": True, "merges": merges[: len(merges) // 2]}
    path.write_text(json.dumps(config), encoding="utf-8")
    return path


def with_every_table(source: Path, path: Path) -> Path:
    """Normalises, splits three times, keeps whole words, and has added tokens of both sorts: no table is empty."""
    config = json.loads(source.read_text("utf-8"))
    config |= PIPELINES["deepseek-v3"] | {"normalizer": NFC}
    config["model"]["ignore_merges"] = True
    free = 1 + max(*config["model"]["vocab"].values(), *(entry["id"] for entry in config["added_tokens"]))
    for index, (text, late) in enumerate((("<think>", False), ("<th", False), ("  ", True), ("<end", True))):
        config["added_tokens"].append(added_token(free + index, text, normalized=late))
    path.write_text(json.dumps(config), encoding="utf-8")
    return path


def sentencepiece_config(model: str) -> Json:
    """A small tokenizer of the kind "BPE" or "Unigram" with U+2581 for spaces and tokens for bytes."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += [
        "\u2581",
        "a",
        "b",
        "0",
        "1",
        "\u4e2d",
        "\n",
        "aa",
        "ab",
        "aab",
        "\u2581a",
        "\u2581aab",
        "01",
        "\u2581\u2581",
        "\u2581\u20810",
    ]
    merges = [
        [piece[:cut], piece[cut:]]
        for piece in pieces[259:]
        for cut in range(1, len(piece))
        if piece[:cut] in pieces and piece[cut:] in pieces
    ]
    usual: Json = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": False}
    kinds = {
        "BPE": {"type": "BPE", "vocab": {piece: i for i, piece in enumerate(pieces)}, "merges": merges,
                "unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True},
        "Unigram": {"type": "Unigram", "unk_id": 0, "byte_fallback": True,
                    "vocab": [[piece, -1.0 - index / 16] for index, piece in enumerate(pieces)]},
    }  # fmt: skip
    added = [added_token(index, pieces[index], special=True) for index in range(3)]
    added.append(added_token(len(pieces), "<think>"))
    return {"added_tokens": added, "pre_tokenizer": usual, "decoder": usual, "model": kinds[model]}
