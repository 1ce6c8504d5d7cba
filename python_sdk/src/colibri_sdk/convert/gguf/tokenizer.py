# SPDX-License-Identifier: Apache-2.0
"""The tokenizer and the chat template of a GGUF file, as the tokenizer.json that convert/tokenizer.py compiles, or as
the pieces that convert/sentencepiece_model.py does.

`tokenizer.ggml.model` says how texts become tokens and, for byte-level BPE, `tokenizer.ggml.pre` how they are split
before. A name that splits.py does not list is refused: another split gives other tokens, and a model that is quietly
wrong.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf.constants import TokenType

from colibri_sdk.convert.gguf.cursor import Texts
from colibri_sdk.convert.gguf.metadata import Metadata
from colibri_sdk.convert.gguf.splits import PRE_TOKENIZERS
from colibri_sdk.convert.sentencepiece_model import Piece, PieceType, Spaces, charsmap_of, compile_pieces
from colibri_sdk.convert.tokenizer import CompiledTokenizer, compile_config
from colibri_sdk.convert.tokenizer_source import Source
from colibri_sdk.convert.weights import ChatFacts
from colibri_sdk.image.layout import MAX_VOCAB, TokenizerKind

_LIST = "tokenizer.ggml.tokens"
_CHARSMAP = "tokenizer.ggml.precompiled_charsmap"
_ROLES = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "pad_token": "padding_token_id",
    "unk_token": "unknown_token_id",
}

# How texts of vocabularies of SentencePiece spell a space.
_SPACE = "\u2581"

# Added tokens are found as they are spelled, with nothing around them taken away.
_AS_SPELLED = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}

# Longer tokens of such a vocabulary would be cut into two in very many places.
_LONGEST_PIECE = 512


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
    if model == "gpt2":
        return compile_config(meta.path.name, byte_level_document(meta), vocab)
    if model == "llama":
        return compile_config(meta.path.name, sentencepiece_document(meta), vocab)
    if model == "t5":
        return unigram_pieces(meta, vocab)
    return meta.refuse(
        f"has a tokenizer of the kind {model!r}, which is not supported",
        'Supported: "gpt2", "llama" and "t5". Pack the model\'s safetensors with its tokenizer.json instead.',
    )


def byte_level_document(meta: Metadata) -> dict[str, Any]:
    """A tokenizer.json that does what tokenizer.ggml.model = gpt2 does."""
    pre = meta.text("tokenizer.ggml.pre") or "default"
    split = PRE_TOKENIZERS.get(pre)
    if split is None:
        meta.refuse(
            f"splits texts by tokenizer.ggml.pre = {pre!r}, which is not supported",
            f"Supported: {', '.join(PRE_TOKENIZERS)}.",
        )
    merges = meta.texts("tokenizer.ggml.merges")
    if merges is None:
        meta.refuse("has no tokenizer.ggml.merges")
    tokens = _tokens(meta)
    return {
        "version": "1.0",
        "added_tokens": tokens.added,
        "normalizer": split.normalizer(),
        "pre_tokenizer": split.pre_tokenizer(),
        "post_processor": _prefix(meta, tokens, split.whole_words),
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "vocab": tokens.ids,
            "merges": [_pair(meta, entry) for entry in merges],
            "ignore_merges": split.whole_words,
        },
    }


def sentencepiece_document(meta: Metadata) -> dict[str, Any]:
    """The same for tokenizer.ggml.model = llama: SentencePiece's byte-pair encoding, which knows scores, not merges.

    Of all neighbours that make a token together, the pair whose token has the best score merges first. So every way to
    cut a token into two others is a merge, in the order of scores.
    """
    tokens = _tokens(meta)
    scores = _scores(meta, len(tokens.kinds))
    if meta.switch("tokenizer.ggml.remove_extra_whitespaces"):
        meta.refuse("removes extra white space from texts, which is not supported")
    parts = {text: token for text, token in tokens.ids.items() if tokens.kinds[token] == TokenType.NORMAL}
    found: list[tuple[float, int, int, str, str]] = []
    for text, token in parts.items():
        if len(text) > _LONGEST_PIECE:
            meta.refuse(f"has a token of {len(text)} characters; {_LONGEST_PIECE} is the limit")
        for cut in range(1, len(text)):
            left, right = text[:cut], text[cut:]
            if left in parts and right in parts:
                found.append((-float(scores[token]), -len(left), -len(right), left, right))
    prefix = meta.switch("tokenizer.ggml.add_space_prefix") is not False
    spaces = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}
    back = [{"type": "Replace", "pattern": {"String": _SPACE}, "content": " "}, {"type": "ByteFallback"}]
    unknown = next((text for text, token in tokens.ids.items() if tokens.kinds[token] == TokenType.UNKNOWN), None)
    return {
        "version": "1.0",
        "added_tokens": tokens.added,
        "normalizer": {
            "type": "Sequence",
            "normalizers": [*([{"type": "Prepend", "prepend": _SPACE}] if prefix else []), spaces],
        },
        "pre_tokenizer": None,
        "post_processor": _prefix(meta, tokens, True),
        "decoder": {
            "type": "Sequence",
            "decoders": [
                *back,
                {"type": "Fuse"},
                *([{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if prefix else []),
            ],
        },
        "model": {
            "type": "BPE",
            "vocab": tokens.ids,
            "merges": [[left, right] for *_, left, right in sorted(found)],
            "byte_fallback": TokenType.BYTE in tokens.kinds,
            "unk_token": unknown,
            "fuse_unk": True,
        },
    }


def unigram_pieces(meta: Metadata, vocab: int) -> CompiledTokenizer:
    """The tokenizer that tokenizer.ggml.model = t5 names: SentencePiece's unigram model with its charsmap."""
    texts = _texts(meta)
    kinds = _kinds(meta, len(texts))
    scores = _scores(meta, len(texts))
    wrong = next((kind for kind in kinds if kind not in list(PieceType)), None)
    if wrong is not None:
        meta.refuse(f"has a token of the type {wrong}, which is none")
    pieces = [
        Piece(text, float(score), PieceType(kind)) for text, score, kind in zip(texts, scores, kinds, strict=True)
    ]
    if meta.switch("tokenizer.ggml.add_eos_token"):
        meta.refuse("ends every text with the eos token, which is not supported", "It is no model for generation.")
    bos = meta.token("bos_token_id") if meta.switch("tokenizer.ggml.add_bos_token") else None
    if bos is not None and not 0 <= bos < len(pieces):
        meta.refuse(f"has tokenizer.ggml.bos_token_id = {bos}, which is no token")
    source = Source(meta.path.name)
    spaces = Spaces(
        first=meta.switch("tokenizer.ggml.add_space_prefix") is True,
        trim=meta.switch("tokenizer.ggml.remove_extra_whitespaces") is True,
    )
    rules = charsmap_of(source, _CHARSMAP, _bytes(meta, _CHARSMAP))
    return compile_pieces(source, pieces, TokenizerKind.UNIGRAM, vocab, (), spaces, rules, bos=bos)


def _scores(meta: Metadata, count: int) -> npt.NDArray[np.generic]:
    scores = meta.values.get("tokenizer.ggml.scores")
    if not isinstance(scores, np.ndarray) or scores.dtype.kind != "f" or scores.size != count:
        meta.refuse(f"has no tokenizer.ggml.scores for each of its {count} tokens")
    return scores


def _bytes(meta: Metadata, key: str) -> bytes:
    value = meta.values.get(key)
    if value is None:
        return b""
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "iu" or value.dtype.itemsize != 1:
        meta.refuse(f"has a {key} that is no list of bytes")
    return value.tobytes()


@dataclass(frozen=True)
class _Tokens:
    """What both kinds have: ids by text, kinds by id, and the tokens that are cut out of texts before."""

    ids: dict[str, int]
    kinds: list[int]
    added: list[dict[str, Any]]


def _texts(meta: Metadata) -> Texts:
    """The text of each token."""
    texts = meta.texts(_LIST)
    if texts is None:
        meta.refuse(f"has no {_LIST}")
    if len(texts) > MAX_VOCAB:
        meta.refuse(f"has {len(texts)} tokens; {MAX_VOCAB} is the limit")
    return texts


def _tokens(meta: Metadata) -> _Tokens:
    texts = _texts(meta)
    kinds = _kinds(meta, len(texts))
    ids: dict[str, int] = {}
    added: list[dict[str, Any]] = []
    for token, (text, kind) in enumerate(zip(texts, kinds, strict=True)):
        if kind == TokenType.UNUSED:
            continue  # fills the vocabulary up
        if text in ids:
            meta.refuse(f"has the token {text[:80]!r} twice: {ids[text]} and {token}")
        ids[text] = token
        if kind in (TokenType.CONTROL, TokenType.USER_DEFINED, TokenType.UNKNOWN):
            special = kind != TokenType.USER_DEFINED
            added.append({"id": token, "content": text, "special": special, **_AS_SPELLED})
    return _Tokens(ids, kinds, added)


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


def _prefix(meta: Metadata, tokens: _Tokens, by_default: bool) -> dict[str, Any] | None:
    """The bos token before every text, where the file asks for it."""
    begin = meta.switch("tokenizer.ggml.add_bos_token")
    token = meta.token("bos_token_id")
    if meta.switch("tokenizer.ggml.add_eos_token"):
        meta.refuse("ends every text with the eos token, which is not supported", "It is no model for generation.")
    if not (by_default if begin is None else begin) or token is None:
        return None
    name = next((text for text, one in tokens.ids.items() if one == token), None)
    if name is None:
        meta.refuse(f"has tokenizer.ggml.bos_token_id = {token}, which is no token")
    return {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": name, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [],
        "special_tokens": {name: {"id": name, "ids": [token], "tokens": [name]}},
    }
