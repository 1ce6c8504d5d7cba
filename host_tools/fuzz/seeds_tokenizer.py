# SPDX-License-Identifier: Apache-2.0
"""Writes seed inputs for fuzz_tokenizer into a directory: the demo model's tokenizer, and one that is much smaller.

python host_tools/fuzz/seeds_tokenizer.py build/fuzz/seeds-tokenizer
"""

from __future__ import annotations

import json
import struct
import sys
import tempfile
from pathlib import Path

from colibri_sdk.convert.template import compile_template
from colibri_sdk.convert.tokenizer import CompiledTokenizer, byte_alphabet, compile_tokenizer

HUMMINGBIRD = Path(__file__).resolve().parents[2] / "models" / "hummingbird"
TEXTS = (
    "set pump 3 to 40 percent",
    "it's  \n\n 12 \u0663\u0664 \u4e2d\u6587 \U0001f469\u200d\U0001f52c \u3000x <|user|> ",
    "",
)
TRIMMING = "{{ '<a>System: be brief.\n' + messages[0]['content'] | trim + '<b>ok' }}"


def small(directory: Path) -> CompiledTokenizer:
    vocab = {character: index for index, character in enumerate(byte_alphabet())}
    merges = [["a", "b"], ["ab", "a"], ["\u0120", "a"], ["1", "2"], ["\u010a", "\u010a"], ["b", "a"], ["a", "ba"]]
    for left, right in merges:
        vocab.setdefault(left + right, len(vocab))
    added = [{"id": len(vocab) + i, "content": name, "special": True} for i, name in enumerate(("<a>", "<b>"))]
    config = {
        "added_tokens": added,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False},
        "decoder": {"type": "ByteLevel"},
        "model": {"type": "BPE", "vocab": vocab, "merges": merges},
    }
    path = directory / "tokenizer.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    return compile_tokenizer(path, len(vocab) + 2)


def main(out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    demo = compile_tokenizer(HUMMINGBIRD / "tokenizer.json", 1024)
    chat = json.loads((HUMMINGBIRD / "tokenizer_config.json").read_text("utf-8"))["chat_template"]
    with tempfile.TemporaryDirectory() as directory:
        tiny = small(Path(directory))
    for name, tokenizer, template in (("hummingbird", demo, chat), ("small", tiny, TRIMMING)):
        section = compile_template(template, tokenizer, "<|bos|>", "<|eos|>")
        for index, text in enumerate(TEXTS):
            head = struct.pack("<4I", len(tokenizer.section), len(section), tokenizer.vocab, 0)
            (out / f"{name}-{index}").write_bytes(head + tokenizer.section + section + text.encode())


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
