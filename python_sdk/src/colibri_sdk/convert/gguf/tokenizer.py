# SPDX-License-Identifier: Apache-2.0
"""The tokenizer and the chat template of a GGUF file, as the tokenizer.json that convert/tokenizer.py compiles.

`tokenizer.ggml.model` says how texts become tokens and, for byte-level BPE, `tokenizer.ggml.pre` how they are split
before. A name that is not listed here is refused: another split gives other tokens and a model that is quietly wrong.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from gguf.constants import TokenType

from colibri_sdk.convert.gguf.metadata import Metadata
from colibri_sdk.convert.tokenizer import CompiledTokenizer, compile_config
from colibri_sdk.convert.weights import ChatFacts
from colibri_sdk.image.layout import MAX_VOCAB

_LIST = "tokenizer.ggml.tokens"
_ROLES = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "pad_token": "padding_token_id",
    "unk_token": "unknown_token_id",
}

# The patterns as the models' own tokenizer.json files have them.
_TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_LLAMA3 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + _TAIL
_QWEN2 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + _TAIL
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_O200K = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTIONS}?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_CONTRACTIONS}?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_DEEPSEEK3 = (
    r"\p{N}{1,3}",
    "[一-龥\u3040-ゟ゠-ヿ]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)
_SINGLE_DIGITS = r"\p{N}"

# tokenizer.ggml.pre to the patterns that split before the byte level, and whether GPT-2's own split follows.
PRE_TOKENIZERS: Mapping[str, tuple[tuple[str, ...], bool]] = {
    **dict.fromkeys(("gpt-2", "phi-2", "olmo", "mpt", "jais", "trillion", "exaone4", "mellum", "gigachat"), ((), True)),
    **dict.fromkeys(("starcoder", "refact", "smollm", "codeshell", "command-r"), ((_SINGLE_DIGITS,), True)),
    **dict.fromkeys(
        ("llama-bpe", "llama3", "llama-v3", "glm4", "chatglm-bpe", "dbrx", "smaug-bpe"), ((_LLAMA3,), False)
    ),
    **dict.fromkeys(("qwen2", "stablelm2", "hunyuan", "megrez", "deepseek-r1-qwen"), ((_QWEN2,), False)),
    **dict.fromkeys(("gpt-4o", "llama4"), ((_O200K,), False)),
    "deepseek-v3": (_DEEPSEEK3, False),
}

# Those whose words that are tokens stay whole, and whose texts begin with the bos token, unless told otherwise.
_WHOLE_WORDS = frozenset(("llama-bpe", "llama3", "llama-v3"))


def chat_facts(meta: Metadata) -> ChatFacts:
    """The chat template and the texts of the tokens it may name."""
    tokens = meta.texts(_LIST)
    wanted = {role: meta.token(key) for role, key in _ROLES.items()}
    found: dict[str, str] = {}
    if tokens is not None and any(token is not None for token in wanted.values()):
        listed = {token: text for token, text in enumerate(tokens) if token in wanted.values()}
        found = {role: listed[token] for role, token in wanted.items() if token is not None and token in listed}
    return ChatFacts(meta.text("tokenizer.chat_template"), found)


def compile_from(meta: Metadata, vocab: int) -> CompiledTokenizer | None:
    """The compiled tokenizer for a model with `vocab` embeddings; None for a file without one."""
    model = meta.text("tokenizer.ggml.model")
    if model is None or model == "none":
        return None
    whole = meta.text("tokenizer.huggingface.json")
    if whole is not None:
        try:
            document = json.loads(whole)
        except (ValueError, RecursionError) as error:
            meta.refuse(f"has a tokenizer.huggingface.json that is not JSON: {error}")
        if not isinstance(document, dict):
            meta.refuse("has a tokenizer.huggingface.json that is no JSON object")
        return compile_config(meta.path.name, document, vocab)
    if model != "gpt2":
        meta.refuse(
            f"has a tokenizer of the kind {model!r}, which is not supported",
            'Supported: "gpt2". Pack the model\'s safetensors with its tokenizer.json instead.',
        )
    return compile_config(meta.path.name, byte_level_document(meta), vocab)


def byte_level_document(meta: Metadata) -> dict[str, Any]:
    """A tokenizer.json that does what tokenizer.ggml.model = gpt2 does."""
    pre = meta.text("tokenizer.ggml.pre") or "default"
    if pre not in PRE_TOKENIZERS:
        meta.refuse(
            f"splits texts by tokenizer.ggml.pre = {pre!r}, which is not supported",
            f"Supported: {', '.join(PRE_TOKENIZERS)}.",
        )
    tokens, merges = meta.texts(_LIST), meta.texts("tokenizer.ggml.merges")
    if tokens is None or merges is None:
        meta.refuse(f"has no {_LIST if tokens is None else 'tokenizer.ggml.merges'}")
    if len(tokens) > MAX_VOCAB:
        meta.refuse(f"has {len(tokens)} tokens; {MAX_VOCAB} is the limit")
    kinds = _kinds(meta, len(tokens))
    vocabulary: dict[str, int] = {}
    added: list[dict[str, Any]] = []
    for token, (text, kind) in enumerate(zip(tokens, kinds, strict=True)):
        if kind == TokenType.UNUSED:
            continue  # fills the vocabulary up
        if text in vocabulary:
            meta.refuse(f"has the token {text!r} twice: {vocabulary[text]} and {token}")
        vocabulary[text] = token
        if kind in (TokenType.CONTROL, TokenType.USER_DEFINED, TokenType.UNKNOWN):
            special = kind != TokenType.USER_DEFINED
            added.append({"id": token, "content": text, "special": special, "normalized": not special})
    return {
        "version": "1.0",
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": _pre_tokenizer(*PRE_TOKENIZERS[pre]),
        "post_processor": _prefix(meta, pre, {token: text for text, token in vocabulary.items()}),
        "decoder": {"type": "ByteLevel"},
        "model": {
            "type": "BPE",
            "vocab": vocabulary,
            "merges": [_pair(meta, entry) for entry in merges],
            "ignore_merges": pre in _WHOLE_WORDS,
        },
    }


def _kinds(meta: Metadata, count: int) -> list[int]:
    value = meta.values.get("tokenizer.ggml.token_type")
    if value is None:
        return [int(TokenType.NORMAL)] * count
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "iu" or value.size != count:
        meta.refuse(f"has no tokenizer.ggml.token_type for each of its {count} tokens")
    return [int(one) for one in value]


def _pair(meta: Metadata, entry: str) -> list[str]:
    """A merge's two tokens: a space between them, which may not be either's first character alone."""
    cut = entry.find(" ", 1)
    if cut < 0:
        meta.refuse(f"has the merge {entry[:80]!r}, which is not two tokens")
    return [entry[:cut], entry[cut + 1 :]]


def _pre_tokenizer(patterns: tuple[str, ...], then_gpt2: bool) -> dict[str, Any]:
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": then_gpt2}
    if not patterns:
        return level
    splits = [
        {"type": "Digits", "individual_digits": True}
        if pattern == _SINGLE_DIGITS
        else {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
        for pattern in patterns
    ]
    return {"type": "Sequence", "pretokenizers": [*splits, level]}


def _prefix(meta: Metadata, pre: str, texts: Mapping[int, str]) -> dict[str, Any] | None:
    """The bos token before every text, where the file asks for it."""
    begin = meta.switch("tokenizer.ggml.add_bos_token")
    token = meta.token("bos_token_id")
    if meta.switch("tokenizer.ggml.add_eos_token"):
        meta.refuse("ends every text with the eos token, which is not supported", "It is no model for generation.")
    if not (pre in _WHOLE_WORDS if begin is None else begin) or token is None:
        return None
    if token not in texts:
        meta.refuse(f"has tokenizer.ggml.bos_token_id = {token}, which is no token")
    name = texts[token]
    return {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": name, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [],
        "special_tokens": {name: {"id": name, "ids": [token], "tokens": [name]}},
    }
