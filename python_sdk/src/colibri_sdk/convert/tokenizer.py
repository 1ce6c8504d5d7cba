# SPDX-License-Identifier: Apache-2.0
"""Compiles a Hugging Face tokenizer.json into the tokenizer section of an image.

What the engine can do is byte-level byte-pair encoding after GPT-2's split. Everything else that a tokenizer.json can
ask for is refused by the name of its field, because a tokenizer that is almost right gives a model that is quietly
wrong. docs/tokenizer.md lists what is supported.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from colibri_sdk.convert.unicode import class_table
from colibri_sdk.errors import CheckpointError
from colibri_sdk.image.layout import MERGE, NO_RANK, TOKEN_SPECIAL, TOKENIZER, Pretokenizer, TokenizerKind, align_up

_TABLE_ALIGN = 8
_TOP_KEYS = frozenset(
    ("version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer", "post_processor", "decoder")
) | {"model"}
# Fields of the model and the values under which they change nothing. With a token for each byte nothing is unknown,
# so unk_token and fuse_unk are never used and may say anything.
_MODEL_DEFAULTS: Mapping[str, tuple[object, ...]] = {
    "dropout": (None, 0),
    "continuing_subword_prefix": (None, ""),
    "end_of_word_suffix": (None, ""),
    "byte_fallback": (None, False),
    "ignore_merges": (None, False),
}
_MODEL_KEYS = frozenset(_MODEL_DEFAULTS) | {"type", "vocab", "merges", "unk_token", "fuse_unk"}


@dataclass(frozen=True)
class CompiledTokenizer:
    """A tokenizer as an image holds it."""

    section: bytes
    special: dict[str, int]  # the added tokens, by their text; never made from a user's text
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
    return compile_config(tokenizer_json.name, _Source(tokenizer_json.name).read(tokenizer_json), vocab)


def compile_config(name: str, config: Mapping[str, Any], vocab: int) -> CompiledTokenizer:
    """The same of a document that is read already, or was made from another kind of file; `name` is for messages."""
    source = _Source(name)
    _check_pipeline(source, config)
    model = source.mapping(config.get("model"), "model")
    _check_model(source, model)
    tokens = _read_vocab(source, model, vocab)
    special = _read_added(source, config, tokens, vocab)
    texts = _token_texts(source, tokens, special)
    byte_ids = _byte_ids(source, texts, special)
    merges = _read_merges(source, model, tokens, special)
    prefix = _read_prefix(source, config.get("post_processor"), vocab)
    section = _build(texts, frozenset(special.values()), byte_ids, merges)
    return CompiledTokenizer(section, special, len(texts), prefix)


@dataclass(frozen=True)
class _Source:
    """The file, for messages: every complaint names the field."""

    name: str

    def refuse(self, field: str, complaint: str, hint: str = "") -> CheckpointError:
        return CheckpointError(f"{self.name}: {field} {complaint}", hint, where=self.name)

    def unsupported(self, field: str, value: object, supported: str) -> CheckpointError:
        shown = json.dumps(value, ensure_ascii=False, default=str)
        shown = shown if len(shown) <= 80 else shown[:77] + "..."
        return self.refuse(
            field, f"is {shown}, which the engine cannot do", f"Supported: {supported}. See docs/tokenizer.md."
        )

    def read(self, path: Path) -> dict[str, Any]:
        try:
            config = json.loads(path.read_text("utf-8"))
        except OSError as error:
            raise self.refuse("cannot be read:", error.strerror or str(error)) from error
        except (ValueError, RecursionError) as error:
            raise self.refuse("is not JSON:", str(error), "Download the file again.") from error
        return self.mapping(config, "the document")

    def mapping(self, value: object, field: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise self.refuse(field, "is missing or not an object")
        return value

    def sequence(self, value: object, field: str) -> list[Any]:
        if not isinstance(value, list):
            raise self.refuse(field, "is missing or not a list")
        return value

    def token_id(self, value: object, field: str, vocab: int) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < vocab:
            raise self.refuse(
                field, f"is {value!r}, not a token id below {vocab}", "The model's embeddings end there; wrong file?"
            )
        return value

    def only_keys(self, value: Mapping[str, Any], known: Iterable[str], field: str) -> None:
        unknown = sorted(set(value) - set(known))
        if unknown:
            raise self.unsupported(f"{field}{unknown[0]}", value[unknown[0]], "no such field")


def _check_pipeline(source: _Source, config: Mapping[str, Any]) -> None:
    """Normalizer, pre-tokeniser and decoder. Truncation and padding are about batches and concern no single prompt."""
    source.only_keys(config, _TOP_KEYS, "")
    if config.get("version", "1.0") != "1.0":
        raise source.unsupported("version", config["version"], '"1.0"')
    if config.get("normalizer") is not None:
        raise source.unsupported("normalizer", config["normalizer"], "null")
    split = source.mapping(config.get("pre_tokenizer"), "pre_tokenizer")
    if split.get("type") != "ByteLevel":
        raise source.unsupported("pre_tokenizer.type", split.get("type"), '"ByteLevel"')
    source.only_keys(split, ("type", "add_prefix_space", "trim_offsets", "use_regex"), "pre_tokenizer.")
    if split.get("add_prefix_space") is not False:
        raise source.unsupported("pre_tokenizer.add_prefix_space", split.get("add_prefix_space"), "false")
    if split.get("use_regex", True) is not True:
        raise source.unsupported("pre_tokenizer.use_regex", split["use_regex"], "true")
    decoder = source.mapping(config.get("decoder"), "decoder")
    if decoder.get("type") != "ByteLevel":
        raise source.unsupported("decoder.type", decoder.get("type"), '"ByteLevel"')


def _check_model(source: _Source, model: Mapping[str, Any]) -> None:
    if model.get("type", "BPE") != "BPE":
        raise source.unsupported("model.type", model["type"], '"BPE"')
    source.only_keys(model, _MODEL_KEYS, "model.")
    for key, values in _MODEL_DEFAULTS.items():
        if model.get(key) not in values:
            raise source.unsupported(f"model.{key}", model[key], " or ".join(json.dumps(value) for value in values))


def _read_vocab(source: _Source, model: Mapping[str, Any], vocab: int) -> dict[str, int]:
    tokens = source.mapping(model.get("vocab"), "model.vocab")
    owner: dict[int, str] = {}
    for text, value in tokens.items():
        token = source.token_id(value, f"model.vocab[{text!r}]", vocab)
        if token in owner:
            raise source.refuse("model.vocab", f"gives id {token} to {owner[token]!r} and to {text!r}")
        owner[token] = text
    return tokens


def _read_added(source: _Source, config: Mapping[str, Any], tokens: Mapping[str, int], vocab: int) -> dict[str, int]:
    """The special tokens. Those that are added but not special would be cut out of a user's text: not supported."""
    owner = {token: text for text, token in tokens.items()}
    special: dict[str, int] = {}
    for index, entry in enumerate(source.sequence(config.get("added_tokens", []), "added_tokens")):
        field = f"added_tokens[{index}]"
        entry = source.mapping(entry, field)
        text = entry.get("content")
        if not isinstance(text, str) or not text:
            raise source.refuse(f"{field}.content", "is not a text")
        token = source.token_id(entry.get("id"), f"{field}.id", vocab)
        if entry.get("special") is not True:
            raise source.unsupported(f"{field}.special ({text!r})", entry.get("special"), "true")
        for flag in ("single_word", "lstrip", "rstrip"):
            if entry.get(flag, False) is not False:
                raise source.unsupported(f"{field}.{flag} ({text!r})", entry[flag], "false")
        if tokens.get(text, token) != token or owner.get(token, text) != text or text in special:
            raise source.refuse(field, f"({text!r}, id {token}) contradicts model.vocab or another added token")
        owner[token] = text
        special[text] = token
    return special


def _token_texts(source: _Source, tokens: Mapping[str, int], special: Mapping[str, int]) -> list[bytes]:
    """Each id's bytes; empty for ids that nothing has. Special tokens have their name."""
    alphabet = byte_alphabet()
    count = 1 + max((*tokens.values(), *special.values()), default=-1)
    texts = [b""] * count
    for text, token in tokens.items():
        if text in special:
            continue
        try:
            texts[token] = bytes(alphabet[character] for character in text)
        except KeyError as error:
            raise source.refuse(
                "model.vocab", f"has {text!r} (id {token}), which is not spelled in byte-level characters"
            ) from error
    for text, token in special.items():
        try:
            texts[token] = text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise source.refuse("added_tokens", f"has {text!r}, which is not valid Unicode") from error
    return texts


def _byte_ids(source: _Source, texts: list[bytes], special: Mapping[str, int]) -> list[int]:
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


def _read_merges(
    source: _Source, model: Mapping[str, Any], tokens: Mapping[str, int], special: Mapping[str, int]
) -> list[tuple[int, int, int]]:
    """(left, right, merged), lowest rank first. Of a pair that is listed twice the last one counts."""
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
            if part in special:
                raise source.refuse(field, f"uses {part!r}, which is a special token: text could become it")
        pair = (tokens[entry[0]], tokens[entry[1]])
        ordered.pop(pair, None)
        ordered[pair] = tokens["".join(entry)]
    return [(left, right, merged) for (left, right), merged in ordered.items()]


def _read_prefix(source: _Source, processor: object, vocab: int) -> tuple[int, ...]:
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


def _template_prefix(source: _Source, entry: Mapping[str, Any], vocab: int) -> tuple[int, ...]:
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


def _merge_hash(left: int, right: int, slots: int) -> int:
    """col_merge_hash of image.h."""
    word = 0xFFFFFFFF
    h = (left * 0x9E3779B1 & word) ^ (right * 0x85EBCA6B & word)
    h ^= h >> 15
    h = h * 0xC2B2AE35 & word
    h ^= h >> 13
    return h & (slots - 1)


def _merge_table(merges: list[tuple[int, int, int]]) -> np.ndarray[Any, np.dtype[np.void]]:
    """Open addressing, at most half full: a search that finds nothing, which is the usual one, looks at 2.5 slots.
    Lower ranks, which are looked up more often, are placed first and so lie nearest to where the search begins."""
    slots = 1
    while slots < 2 * len(merges) or slots == 1:
        slots *= 2
    table = np.zeros(slots, MERGE)
    table["rank"] = NO_RANK
    taken = bytearray(slots)
    for rank, (left, right, merged) in enumerate(merges):
        slot = _merge_hash(left, right, slots)
        while taken[slot]:
            slot = (slot + 1) % slots
        taken[slot] = 1
        table[slot] = (left, right, rank, merged)
    return table


def _build(
    texts: list[bytes], special: frozenset[int], byte_ids: list[int], merges: list[tuple[int, int, int]]
) -> bytes:
    """struct col_tokenizer and its tables, as firmware/engine/image.h describes them."""
    lengths = [len(text) for text in texts]
    flags = [TOKEN_SPECIAL if token in special or not text else 0 for token, text in enumerate(texts)]
    merge_table = _merge_table(merges)
    classes = class_table()
    tables = {
        "byte_ids": np.array(byte_ids, "<u4").tobytes(),
        "token_offsets": np.concatenate(([0], np.cumsum(lengths, dtype="<u4"))).astype("<u4").tobytes(),
        "token_flags": bytes(flags),
        "token_text": b"".join(texts),
        "merges": merge_table.tobytes(),
        "classes": classes.tobytes(),
    }
    head = np.zeros((), TOKENIZER)
    head["kind"] = TokenizerKind.BYTE_BPE
    head["pretokenizer"] = Pretokenizer.GPT2
    head["vocab"] = len(texts)
    head["merge_slots"] = len(merge_table)
    head["merge_count"] = len(merges)
    head["class_count"] = len(classes)
    head["max_token_bytes"] = max(lengths)
    head["text_bytes"] = sum(lengths)
    body = bytearray(TOKENIZER.itemsize)
    for name, table in tables.items():
        body.extend(bytes(align_up(len(body), _TABLE_ALIGN) - len(body)))
        head[name] = len(body)
        body.extend(table)
    body[: TOKENIZER.itemsize] = head.tobytes()
    return bytes(body)
