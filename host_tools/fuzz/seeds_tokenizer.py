# SPDX-License-Identifier: Apache-2.0
"""Writes seed inputs for fuzz_tokenizer into a directory: the demo model's tokenizer, and small ones of each kind.

python host_tools/fuzz/seeds_tokenizer.py build/fuzz/seeds-tokenizer
"""

from __future__ import annotations

import base64
import json
import struct
import sys
import tempfile
from pathlib import Path
from typing import Any

from colibri_sdk.convert.template import compile_template
from colibri_sdk.convert.tokenizer import CompiledTokenizer, byte_alphabet, compile_config, compile_tokenizer

HUMMINGBIRD = Path(__file__).resolve().parents[2] / "models" / "hummingbird"
TEXTS = (
    "set pump 3 to 40 percent",
    "it's  \n\n 12 \u0663\u0664 \u4e2d\u6587 \U0001f469\u200d\U0001f52c \u3000x <|user|> ",
    " <c>  a <c a\u0301 ab-ab <c>\n ",
    "",
)
TRIMMING = "{{ '<a>System: be brief.\n' + messages[0]['content'] | trim + '<b>ok' }}"


def small(directory: Path) -> CompiledTokenizer:
    vocab = {character: index for index, character in enumerate(byte_alphabet())}
    merges = [["a", "b"], ["ab", "a"], ["\u0120", "a"], ["1", "2"], ["\u010a", "\u010a"], ["b", "a"], ["a", "ba"]]
    for left, right in merges:
        vocab.setdefault(left + right, len(vocab))
    added = [{"id": len(vocab) + i, "content": name, "special": True} for i, name in enumerate(("<a>", "<b>"))]
    for name, normalized, flag in (("<c>", False, "lstrip"), ("<c", False, "rstrip"), ("a b", True, "single_word")):
        token = len(vocab) + len(added)
        added.append({"id": token, "content": name, "special": False, "normalized": normalized, flag: True})
    splits = [
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated"}
        for pattern in (r"\p{N}{1,3}", r"[^\r\n\p{L}\p{N}]?\p{L}+|\s*[\r\n]+|\s+(?!\S)|\s+")
    ]
    level = {"type": "ByteLevel", "add_prefix_space": False}
    config = {
        "added_tokens": added,
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*splits, level]},
        "decoder": {"type": "ByteLevel"},
        "model": {"type": "BPE", "vocab": vocab, "merges": merges, "ignore_merges": True},
    }
    path = directory / "tokenizer.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    return compile_tokenizer(path, len(vocab) + len(added))


def sentencepiece(kind: str) -> dict[str, Any]:
    """With tokens for bytes, and spaces in front."""
    pieces = [
        "<unk>",
        "<a>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        "\u2581",
        "a",
        "b",
        "ab",
        "\u2581a",
        "\u2581\u2581",
    ]
    step = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": kind == "BPE"}
    model: dict[str, Any] = {"type": kind, "byte_fallback": True}
    if kind == "BPE":
        merges = [["a", "b"], ["\u2581", "a"], ["\u2581", "\u2581"]]
        model |= {"vocab": {piece: token for token, piece in enumerate(pieces)}, "merges": merges}
    else:
        model |= {"vocab": [[piece, -1.0 - token / 16] for token, piece in enumerate(pieces)], "unk_id": 0}
    special = [{"id": token, "content": pieces[token], "special": True} for token in (0, 1)]
    return {"added_tokens": special, "pre_tokenizer": step, "decoder": step, "model": model}


def with_rules() -> dict[str, Any]:
    """With rules of normalisation for clusters, and tokens that are found behind them."""
    trie = [0] * 768  # a double array in which "a" stands for "b ": see firmware/engine/image.h
    trie[0] = 256 << 10
    trie[256 ^ ord("a")] = (256 ^ ord("a") ^ 512) << 10 | 0x100 | ord("a")
    trie[512] = 0x80000000
    blob = struct.pack(f"<{len(trie) + 1}I", 4 * len(trie), *trie) + b"b \0"
    config = sentencepiece("Unigram")
    normalizer = {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(blob).decode("ascii")}
    strip = {"type": "Strip", "strip_left": False, "strip_right": True}
    added = {"id": 264, "content": "<c>", "special": False, "normalized": False, "lstrip": True, "rstrip": True}
    return config | {
        "normalizer": {"type": "Sequence", "normalizers": [normalizer, strip]},
        "added_tokens": [*config["added_tokens"], added],
    }


def main(out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    demo = compile_tokenizer(HUMMINGBIRD / "tokenizer.json", 1024)
    chat = json.loads((HUMMINGBIRD / "tokenizer_config.json").read_text("utf-8"))["chat_template"]
    with tempfile.TemporaryDirectory() as directory:
        tiny = small(Path(directory))
    every = {
        "hummingbird": (demo, chat),
        "small": (tiny, TRIMMING),
        "rules": (compile_config("rules", with_rules(), 300), TRIMMING),
        **{kind: (compile_config(kind, sentencepiece(kind), 300), TRIMMING) for kind in ("BPE", "Unigram")},
    }
    for name, (tokenizer, template) in every.items():
        section = compile_template(template, tokenizer, "<|bos|>", "<|eos|>")
        for index, text in enumerate(TEXTS):
            head = struct.pack("<4I", len(tokenizer.section), len(section), tokenizer.vocab, 0)
            (out / f"{name}-{index}").write_bytes(head + tokenizer.section + section + text.encode())


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
