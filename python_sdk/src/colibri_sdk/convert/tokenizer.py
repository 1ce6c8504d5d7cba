# SPDX-License-Identifier: Apache-2.0
"""Compiles a Hugging Face tokenizer.json into the tokenizer section of an image.

What the engine can do is byte-level byte-pair encoding, and SentencePiece's byte-pair encoding and unigram model.
Whatever else a tokenizer.json can ask for is refused by the name of its field, because a tokenizer that is almost right
gives a model that is quietly wrong. docs/tokenizer.md lists what is supported.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tokenizers

from colibri_sdk.convert.tokenizer_pipeline import SPACE_MARK, Pipeline, read_pipeline
from colibri_sdk.convert.tokenizer_section import Merge, Tables, build_section
from colibri_sdk.convert.tokenizer_source import Source
from colibri_sdk.image.layout import (
    TOKEN_TAKES_AFTER,
    TOKEN_TAKES_BEFORE,
    TOKEN_WORD,
    TOKENIZER_FUSE,
    TOKENIZER_SINGLE,
    TOKENIZER_WHOLE,
    Rewrite,
    TokenizerKind,
)

_TOP_KEYS = frozenset(
    ("version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer", "post_processor", "decoder")
) | {"model"}
# Fields of a BPE model and the values under which they change nothing.
_BPE_DEFAULTS: Mapping[str, tuple[object, ...]] = {
    "dropout": (None, 0),
    "continuing_subword_prefix": (None, ""),
    "end_of_word_suffix": (None, ""),
}
_BPE_KEYS = frozenset(_BPE_DEFAULTS) | {
    "type", "vocab", "merges", "unk_token", "fuse_unk", "byte_fallback", "ignore_merges"
}  # fmt: skip
_UNIGRAM_KEYS = frozenset(("type", "vocab", "unk_id", "byte_fallback"))
UNKNOWN_PENALTY = 10.0  # an unknown character scores so much less than the worst token, as in the libraries


@dataclass(frozen=True)
class CompiledTokenizer:
    """A tokenizer as an image holds it."""

    section: bytes
    special: dict[str, int]  # the added tokens, by their text; never made from a user's text
    taking: dict[int, int]  # TOKEN_TAKES_* of added tokens, by id
    vocab: int  # tokens, the largest id plus one
    prefix: tuple[int, ...]  # what the checkpoint's post-processor puts before every text, e.g. its bos token


def byte_alphabet() -> dict[str, int]:
    """The character by which byte-level vocabularies spell each byte: printable Latin-1 as it is, the others from
    U+0100 on (GPT-2's bytes_to_unicode)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    return alphabet | {chr(256 + index): byte for index, byte in enumerate(others)}


def compile_tokenizer(tokenizer_json: Path, vocab: int) -> CompiledTokenizer:
    """Reads tokenizer.json; `vocab` is the number of the model's embeddings, which no token id may reach.

    Raises CheckpointError, which names the field, for anything that the engine would do differently."""
    return compile_config(tokenizer_json.name, Source(tokenizer_json.name).read(tokenizer_json), vocab)


def compile_config(name: str, config: Mapping[str, Any], vocab: int, *, single_sums: bool = False) -> CompiledTokenizer:
    """The same of a document that is read already, or was made from another kind of file; `name` is for messages.
    `single_sums`: a unigram model's scores are added up in binary32, as SentencePiece does."""
    source = Source(name)
    source.only_keys(config, _TOP_KEYS, "")
    if config.get("version", "1.0") != "1.0":
        raise source.unsupported("version", config["version"], '"1.0"')
    model = source.mapping(config.get("model"), "model")
    kind = model.get("type", "Unigram" if isinstance(model.get("vocab"), list) else "BPE")
    if kind not in ("BPE", "Unigram"):
        raise source.unsupported("model.type", kind, '"BPE", "Unigram"')
    pipeline = read_pipeline(source, config)
    if kind == "Unigram" and pipeline.byte_level:
        raise source.unsupported("model.type", kind, '"BPE" with ByteLevel')
    tokens, scores = (
        _read_scores(source, model, vocab) if kind == "Unigram" else (_read_vocab(source, model, vocab), [])
    )
    added = _read_added(source, config, tokens, vocab, pipeline)
    tables = _tables(source, model, pipeline, tokens, added)
    if kind == "Unigram":
        tables = _with_scores(source, model, tables, tokens, scores, single_sums=single_sums)
    prefix = _read_prefix(source, config.get("post_processor"), vocab)
    section = build_section(pipeline, tables)
    return CompiledTokenizer(section, added.special, added.taking, len(tables.texts), prefix)


def _read_vocab(source: Source, model: Mapping[str, Any], vocab: int) -> dict[str, int]:
    tokens = source.mapping(model.get("vocab"), "model.vocab")
    owner: dict[int, str] = {}
    for text, value in tokens.items():
        token = source.token_id(value, f"model.vocab[{text!r}]", vocab)
        if token in owner:
            raise source.refuse("model.vocab", f"gives id {token} to {owner[token]!r} and to {text!r}")
        owner[token] = text
    return tokens


def _check_defaults(source: Source, model: Mapping[str, Any]) -> None:
    source.only_keys(model, _BPE_KEYS, "model.")
    for key, values in _BPE_DEFAULTS.items():
        if model.get(key) not in values:
            raise source.unsupported(f"model.{key}", model[key], " or ".join(json.dumps(value) for value in values))


def _switch(source: Source, model: Mapping[str, Any], key: str) -> bool:
    value = model.get(key)
    if value not in (None, True, False):
        raise source.unsupported(f"model.{key}", value, "true, false")
    return bool(value)


@dataclass(frozen=True)
class _Added:
    """The added tokens by their texts. Special ones never come from text; the others do, wherever they are spelled.
    `taking` has TOKEN_* by id, of both."""

    special: dict[str, int]
    early: dict[str, int]
    late: dict[str, int]
    taking: dict[int, int]


def _read_added(
    source: Source, config: Mapping[str, Any], tokens: Mapping[str, int], vocab: int, pipeline: Pipeline
) -> _Added:
    owner = {token: text for text, token in tokens.items()}
    added = _Added({}, {}, {}, {})
    seen: set[str] = set()
    for index, entry in enumerate(source.sequence(config.get("added_tokens", []), "added_tokens")):
        field = f"added_tokens[{index}]"
        entry = source.mapping(entry, field)
        text = entry.get("content")
        if not isinstance(text, str) or not text:
            raise source.refuse(f"{field}.content", "is not a text")
        token = source.token_id(entry.get("id"), f"{field}.id", vocab)
        special = entry.get("special", False)
        if not isinstance(special, bool):
            raise source.unsupported(f"{field}.special ({text!r})", special, "true, false")
        flags = taking(source, entry, field, special=special)
        if flags:
            added.taking[token] = flags
        if tokens.get(text, token) != token or owner.get(token, text) != text or text in seen:
            raise source.refuse(field, f"({text!r}, id {token}) contradicts model.vocab or another added token")
        owner[token] = text
        seen.add(text)
        if special:
            added.special[text] = token
        elif not entry.get("normalized", True):
            added.early[text] = token
        else:
            if flags and Rewrite.COLLAPSE in pipeline.rewrite:  # U+2581 may be no white space there
                raise source.unsupported(
                    f"{field}.normalized ({text!r})", True, "false, with lstrip, rstrip, single_word"
                )
            _check_normal(source, config, pipeline, text, field)
            added.late[text] = token
    return added


def taking(source: Source, entry: Mapping[str, Any], field: str, *, special: bool) -> int:
    """TOKEN_TAKES_* and TOKEN_WORD of an added token."""
    flags = 0
    for name, flag in (("lstrip", TOKEN_TAKES_BEFORE), ("rstrip", TOKEN_TAKES_AFTER), ("single_word", TOKEN_WORD)):
        value = entry.get(name, False)
        if not isinstance(value, bool) or (special and name == "single_word" and value):
            raise source.unsupported(
                f"{field}.{name} ({entry.get('content')!r})", value, "false" if special else "true, false"
            )
        flags |= flag if value else 0
    return flags


def _check_normal(source: Source, config: Mapping[str, Any], pipeline: Pipeline, text: str, field: str) -> None:
    """A token that is found in normalised texts is spelled as these are."""
    if pipeline.spaces_early:
        raise source.unsupported(f"{field}.normalized ({text!r})", True, "false, where the normalizer writes U+2581")
    if Rewrite.COLLAPSE in pipeline.rewrite and (" " in text or SPACE_MARK in text):
        raise source.unsupported(f"{field}.content", text, "no space, where several spaces become one")
    if pipeline.form is None and not pipeline.rewrite:
        return
    model: dict[str, Any] = {"type": "BPE", "vocab": {}, "merges": []}
    document: dict[str, Any] = {"added_tokens": [], "normalizer": config.get("normalizer"), "model": model}
    normal = tokenizers.Tokenizer.from_str(json.dumps(document)).normalizer.normalize_str(text)
    if normal != text:
        raise source.refuse(f"{field}.content", f"is {text!r}, which the normalizer makes {normal!r}")


def _tables(
    source: Source, model: Mapping[str, Any], pipeline: Pipeline, tokens: Mapping[str, int], added: _Added
) -> Tables:
    """What both SentencePiece's kinds and byte-level BPE have."""
    flags = 0
    byte_ids: list[int] = []
    unknown = None
    if pipeline.byte_level:
        texts = _byte_level_texts(source, tokens, added)
        byte_ids = _alphabet_ids(source, texts, added.special)
        kind = TokenizerKind.BYTE_BPE
        flags = TOKENIZER_WHOLE if _switch(source, model, "ignore_merges") else 0
        lookup = [token for text, token in tokens.items() if text not in added.special] if flags else []
        if _switch(source, model, "byte_fallback"):
            raise source.unsupported("model.byte_fallback", True, "false, with ByteLevel")
    else:
        kind = TokenizerKind.CHAR_BPE
        byte_ids = _fallback_ids(source, model, tokens)
        texts = _character_texts(source, tokens, added, byte_ids)
        lookup = _lookup(source, tokens, added, byte_ids)
        if _switch(source, model, "ignore_merges"):
            raise source.unsupported("model.ignore_merges", True, "false, without ByteLevel")
        flags = TOKENIZER_FUSE if _switch(source, model, "fuse_unk") else 0
        name = model.get("unk_token")
        if not byte_ids and name is not None:
            if name not in tokens:
                raise source.refuse("model.unk_token", f"is {name!r}, which is not in model.vocab")
            unknown = tokens[name]
    merges: list[Merge] = []
    if model.get("type", "BPE") == "BPE" and not isinstance(model.get("vocab"), list):
        _check_defaults(source, model)
        merges = _read_merges(source, model, tokens, frozenset((*added.special.values(), *_only(byte_ids, kind))))
    return Tables(
        kind=kind,
        texts=texts,
        special=frozenset(added.special.values()),
        byte_ids=byte_ids,
        merges=merges,
        scores=[],
        sorted=lookup,
        early=list(added.early.values()),
        late=list(added.late.values()),
        unknown=unknown,
        flags=flags,
        taking=added.taking,
    )


def _only(byte_ids: list[int], kind: TokenizerKind) -> list[int]:
    """Byte tokens that stand for bytes of unknown characters and do not merge."""
    return [] if kind == TokenizerKind.BYTE_BPE else byte_ids


def _filled(source: Source, spelled: Mapping[int, bytes], added: _Added) -> list[bytes]:
    """Each id's bytes; empty for ids that nothing has. Added tokens have their name."""
    names = {**added.special, **added.early, **added.late}
    texts = [b""] * (1 + max((*spelled, *names.values()), default=-1))
    for token, text in spelled.items():
        texts[token] = text
    for name, token in names.items():
        try:
            texts[token] = name.encode("utf-8")
        except UnicodeEncodeError as error:
            raise source.refuse("added_tokens", f"has {name!r}, which is not valid Unicode") from error
    return texts


def _byte_level_texts(source: Source, tokens: Mapping[str, int], added: _Added) -> list[bytes]:
    alphabet = byte_alphabet()
    names = {**added.special, **added.early, **added.late}
    spelled: dict[int, bytes] = {}
    for text, token in tokens.items():
        if text in names:
            continue
        try:
            spelled[token] = bytes(alphabet[character] for character in text)
        except KeyError as error:
            raise source.refuse(
                "model.vocab", f"has {text!r} (id {token}), which is not spelled in byte-level characters"
            ) from error
    return _filled(source, spelled, added)


def _alphabet_ids(source: Source, texts: list[bytes], special: Mapping[str, int]) -> list[int]:
    names = frozenset(special.values())
    single = {text[0]: token for token, text in enumerate(texts) if len(text) == 1 and token not in names}
    missing = [byte for byte in range(256) if byte not in single]
    if missing:
        raise source.refuse(
            "model.vocab",
            f"has no token for the byte 0x{missing[0]:02x} ({len(missing)} are missing)",
            "A byte-level tokenizer needs all 256; train it with ByteLevel.alphabet() as its initial alphabet.",
        )
    return [single[byte] for byte in range(256)]


def _fallback_ids(source: Source, model: Mapping[str, Any], tokens: Mapping[str, int]) -> list[int]:
    """The tokens <0x00> to <0xFF>, where the model falls back to them."""
    if not _switch(source, model, "byte_fallback"):
        return []
    names = [f"<0x{byte:02X}>" for byte in range(256)]
    missing = [name for name in names if name not in tokens]
    if missing:
        raise source.refuse("model.byte_fallback", f"is true and {missing[0]} is not in model.vocab")
    return [tokens[name] for name in names]


def _character_texts(source: Source, tokens: Mapping[str, int], added: _Added, byte_ids: list[int]) -> list[bytes]:
    spelled: dict[int, bytes] = {}
    for text, token in tokens.items():
        try:
            spelled[token] = text.replace(SPACE_MARK, " ").encode("utf-8")
        except UnicodeEncodeError as error:
            raise source.refuse("model.vocab", f"has {text!r}, which is not valid Unicode") from error
    spelled |= {token: bytes([byte]) for byte, token in enumerate(byte_ids)}
    return _filled(source, spelled, added)


def _lookup(source: Source, tokens: Mapping[str, int], added: _Added, byte_ids: list[int]) -> list[int]:
    """The tokens that text can become, by their spelling. Texts have U+2581 for each space, so that a token with a
    space in it never comes up."""
    if SPACE_MARK not in tokens or SPACE_MARK in added.special:
        raise source.refuse("model.vocab", "has no token for U+2581, by which spaces are spelled")
    bytes_only = frozenset(byte_ids)
    return [
        token
        for text, token in tokens.items()
        if text and " " not in text and text not in added.special and token not in bytes_only
    ]


def _read_merges(
    source: Source, model: Mapping[str, Any], tokens: Mapping[str, int], untouchable: frozenset[int]
) -> list[Merge]:
    """Lowest rank first. Of a pair that is listed twice the last one counts. A merge that would make a special token
    of text is left out."""
    ordered: dict[tuple[int, int], int] = {}
    for index, entry in enumerate(source.sequence(model.get("merges"), "model.merges")):
        field = f"model.merges[{index}]"
        if isinstance(entry, str):
            if entry.startswith("#version"):
                continue
            entry = entry.split(" ")
        if not isinstance(entry, list) or len(entry) != 2 or not all(isinstance(part, str) for part in entry):
            raise source.refuse(field, f"is {entry!r}, not two tokens")
        for part in (*entry, "".join(entry)):
            if part not in tokens:
                raise source.refuse(field, f"needs {part!r}, which is not in model.vocab")
        left, right, merged = (tokens[part] for part in (*entry, "".join(entry)))
        if untouchable & {left, right, merged}:
            continue
        ordered.pop((left, right), None)
        ordered[left, right] = merged
    return [Merge(left, right, merged, rank) for rank, ((left, right), merged) in enumerate(ordered.items())]


def _read_scores(source: Source, model: Mapping[str, Any], vocab: int) -> tuple[dict[str, int], list[float]]:
    """A unigram model's tokens, whose ids are their places, and their scores."""
    source.only_keys(model, _UNIGRAM_KEYS, "model.")
    tokens: dict[str, int] = {}
    scores: list[float] = []
    for index, entry in enumerate(source.sequence(model.get("vocab"), "model.vocab")):
        field = f"model.vocab[{index}]"
        if not isinstance(entry, list) or len(entry) != 2 or not isinstance(entry[0], str):
            raise source.refuse(field, "is not a text and a score")
        text, score = entry
        if not isinstance(score, int | float) or isinstance(score, bool) or not abs(score) < 1e30:
            raise source.refuse(field, f"has the score {score!r}, which is not a finite number")
        source.token_id(index, field, vocab)
        if text in tokens:
            raise source.refuse("model.vocab", f"has {text!r} twice, at {tokens[text]} and {index}")
        tokens[text] = index
        scores.append(float(score))
    return tokens, scores


def _with_scores(
    source: Source,
    model: Mapping[str, Any],
    tables: Tables,
    tokens: Mapping[str, int],
    scores: list[float],
    *,
    single_sums: bool,
) -> Tables:
    unknown = source.token_id(model.get("unk_id"), "model.unk_id", len(scores))
    known = scores + [0.0] * (len(tables.texts) - len(scores))
    known[unknown] = min(scores) - UNKNOWN_PENALTY
    return replace(
        tables,
        kind=TokenizerKind.UNIGRAM,
        scores=known,
        unknown=unknown,
        sorted=[token for token in tables.sorted if token != unknown],
        flags=TOKENIZER_FUSE | (TOKENIZER_SINGLE if single_sums else 0),
    )


def _read_prefix(source: Source, processor: object, vocab: int) -> tuple[int, ...]:
    """Ids that the post-processor puts before a text, where it puts none after it."""
    field = "post_processor"
    if processor is None:
        return ()
    entry = source.mapping(processor, field)
    match entry.get("type"):
        case "ByteLevel":  # moves offsets, no ids
            return ()
        case "Sequence":
            parts = source.sequence(entry.get("processors"), f"{field}.processors")
            prefixes = [_read_prefix(source, part, vocab) for part in parts]
            return tuple(token for prefix in reversed(prefixes) for token in prefix)
        case "TemplateProcessing":
            return _template_prefix(source, entry, vocab)
        case other:
            raise source.unsupported(f"{field}.type", other, "null, ByteLevel, TemplateProcessing, Sequence of these")


def _template_prefix(source: Source, entry: Mapping[str, Any], vocab: int) -> tuple[int, ...]:
    field = "post_processor.single"
    single = [source.mapping(part, field) for part in source.sequence(entry.get("single"), field)]
    known = source.mapping(entry.get("special_tokens"), "post_processor.special_tokens")
    if not single or "Sequence" not in single[-1]:
        raise source.unsupported(field, single, "special tokens before the text, none after it")
    ids: list[int] = []
    for part in single[:-1]:
        name = source.mapping(part.get("SpecialToken"), field).get("id")
        where = f"post_processor.special_tokens[{name!r}]"
        for value in source.sequence(source.mapping(known.get(str(name)), where).get("ids"), f"{where}.ids"):
            ids.append(source.token_id(value, f"{where}.ids", vocab))
    return tuple(ids)
