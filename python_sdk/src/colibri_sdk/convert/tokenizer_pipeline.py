# SPDX-License-Identifier: Apache-2.0
"""What a tokenizer.json does to a text before its model sees it, and to the model's tokens when they become text again:
normalizer, pre_tokenizer and decoder. What the engine does not do is refused by the name of its field."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from colibri_sdk.convert.charsmap import AS_IT_IS, NO_RULES, CharsmapError, Rules, read_rules
from colibri_sdk.convert.graphemes import cluster
from colibri_sdk.convert.pattern import PatternError
from colibri_sdk.convert.split_table import SplitTables, compile_splits, is_total
from colibri_sdk.convert.tokenizer_source import Source
from colibri_sdk.convert.unicode import newer_digits
from colibri_sdk.image.layout import MAX_SPLITS, Rewrite, SpacePrefix, SpaceStrip

SPACE_MARK = "\u2581"  # what SentencePiece writes for a space

GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
# Metaspace with split: pieces begin with a space. The engine takes U+2581 for a space.
_BEFORE_SPACES = rf"[ {SPACE_MARK}]?[^ {SPACE_MARK}]+|[ {SPACE_MARK}]"

_FORMS = ("NFC", "NFD", "NFKC", "NFKD")

# The steps that are read, and what of them is.
NORMALIZERS: Mapping[str, str] = {
    **dict.fromkeys(_FORMS, "the normal form of Unicode"),
    "Precompiled": "SentencePiece's rules, its charsmap",
    "Strip": "of white space at the end",
    "Prepend": "of U+2581, SentencePiece's space",
    "Replace": "of a space by U+2581; of several by one",
    "Sequence": "of these",
}
PRE_TOKENIZERS: Mapping[str, str] = {
    "ByteLevel": "with GPT-2's pattern or without",
    "Split": "by a regular expression: isolated, or what is not matched removed, where nothing is",
    "Digits": "one by one or in runs",
    "Metaspace": "spaces as U+2581, one in front: always, first, never",
    "Sequence": "of these",
}


@dataclass(frozen=True)
class Pipeline:
    form: str | None  # Unicode normalisation
    byte_level: bool
    splits: SplitTables
    prefix: SpacePrefix
    strip: SpaceStrip
    rewrite: Rewrite = AS_IT_IS
    rules: Rules = NO_RULES
    spaces_early: bool = False  # the normalizer itself spells spaces as U+2581


@dataclass
class _Reading:
    """What was read so far."""

    form: str | None = None
    byte_level: bool = False
    spaces: bool = False  # a space is U+2581 from here on
    prefix: SpacePrefix = SpacePrefix.NONE
    rewrite: Rewrite = AS_IT_IS
    rules: Rules = NO_RULES


def read_pipeline(source: Source, config: Mapping[str, Any]) -> Pipeline:
    reading = _Reading()
    for field, entry in _parts(source, config.get("normalizer"), "normalizer", "normalizers"):
        _normalizer(source, entry, field, reading)
    spaces_early = reading.spaces or reading.prefix != SpacePrefix.NONE
    patterns: list[tuple[str, str, bool]] = []  # field, pattern, whether it must leave nothing over
    for field, entry in _parts(source, config.get("pre_tokenizer"), "pre_tokenizer", "pretokenizers"):
        if reading.byte_level:
            raise source.unsupported(field, entry, "nothing behind ByteLevel")
        patterns += _pre_tokenizer(source, entry, field, reading)
    if not reading.byte_level and not reading.spaces:
        raise source.unsupported(
            "pre_tokenizer",
            config.get("pre_tokenizer"),
            "one with ByteLevel, or spaces as U+2581 (Metaspace, or Replace)",
        )
    if reading.byte_level and (reading.prefix != SpacePrefix.NONE or reading.rewrite):
        raise source.unsupported("normalizer", config.get("normalizer"), f"{', '.join(_FORMS)} before ByteLevel")
    if Rewrite.COLLAPSE in reading.rewrite and reading.rules.doubles_spaces:
        raise source.refuse("normalizer", "has rules that write several spaces, and makes them one")
    strip = _decoder(source, config, reading)
    words = any(isinstance(entry, dict) and entry.get("single_word") is True for entry in _entries(config))
    return Pipeline(
        reading.form,
        reading.byte_level,
        _splits(source, patterns, words=words, clusters=Rewrite.CLUSTERS in reading.rewrite),
        reading.prefix,
        strip,
        reading.rewrite,
        reading.rules,
        spaces_early,
    )


def _entries(config: Mapping[str, Any]) -> list[Any]:
    added = config.get("added_tokens")
    return added if isinstance(added, list) else []


def _parts(source: Source, value: object, field: str, key: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The steps of a pipeline, those of a Sequence one by one."""
    if value is None:
        return
    entry = source.mapping(value, field)
    if entry.get("type") == "Sequence":
        for index, part in enumerate(source.sequence(entry.get(key), f"{field}.{key}")):
            yield from _parts(source, part, f"{field}.{key}[{index}]", key)
    else:
        yield field, entry


def _normalizer(source: Source, entry: Mapping[str, Any], field: str, reading: _Reading) -> None:
    kind = entry.get("type")
    spaced = reading.spaces or reading.prefix != SpacePrefix.NONE
    if kind in _FORMS and not spaced and reading.form is None and not reading.rewrite:
        reading.form = kind
    elif kind == "Precompiled" and not spaced and reading.form is None and not reading.rewrite:
        reading.rules = _charsmap(source, entry, field)
        reading.rewrite = Rewrite.RULES | (Rewrite.CLUSTERS if len(reading.rules.units) else AS_IT_IS)
    elif kind == "Strip" and _strips_the_end(entry) and not spaced and _may_go_on(reading):
        reading.rewrite |= Rewrite.RULES | Rewrite.TRIM_END
    elif kind == "Replace" and _makes_one_space(entry) and not spaced and _may_go_on(reading):
        reading.rewrite |= Rewrite.RULES | Rewrite.COLLAPSE
    elif kind == "Prepend" and entry.get("prepend") == SPACE_MARK and reading.prefix == SpacePrefix.NONE:
        reading.prefix = SpacePrefix.EACH
    elif kind == "Replace" and entry.get("pattern") == {"String": " "} and entry.get("content") == SPACE_MARK:
        reading.spaces = True
    else:
        known = ", ".join((*_FORMS, "Precompiled", "then Strip on the right", "then Replace of ' {2,}' by a space"))
        raise source.unsupported(
            field, entry, f"null, {known}, Prepend of U+2581, Replace of a space by it, Sequence of these"
        )


def _may_go_on(reading: _Reading) -> bool:
    """Whether a step may follow that comes after rules, and before spaces are made one."""
    return reading.form is None and Rewrite.COLLAPSE not in reading.rewrite


def _strips_the_end(entry: Mapping[str, Any]) -> bool:
    return entry.get("strip_left") is False and entry.get("strip_right") is True


def _makes_one_space(entry: Mapping[str, Any]) -> bool:
    return entry.get("pattern") == {"Regex": " {2,}"} and entry.get("content") in (" ", SPACE_MARK)


def _charsmap(source: Source, entry: Mapping[str, Any], field: str) -> Rules:
    field += ".precompiled_charsmap"
    text = entry.get("precompiled_charsmap")
    if not isinstance(text, str):
        raise source.refuse(field, "is missing or not a text")
    try:
        return read_rules(base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError) as error:
        complaint = str(error) if isinstance(error, CharsmapError) else "is not base64"
        raise source.refuse(field, complaint, "Download the file again.") from error


def _pre_tokenizer(
    source: Source, entry: Mapping[str, Any], field: str, reading: _Reading
) -> list[tuple[str, str, bool]]:
    match entry.get("type"):
        case "ByteLevel":
            source.only_keys(entry, ("type", "add_prefix_space", "trim_offsets", "use_regex"), f"{field}.")
            if entry.get("add_prefix_space") is not False:
                raise source.unsupported(f"{field}.add_prefix_space", entry.get("add_prefix_space"), "false")
            if reading.spaces:
                raise source.unsupported(field, entry, "ByteLevel without U+2581")
            reading.byte_level = True
            regex = entry.get("use_regex", True)
            if not isinstance(regex, bool):
                raise source.unsupported(f"{field}.use_regex", regex, "true, false")
            return [(field, GPT2_PATTERN, True)] if regex else []
        case "Digits":
            source.only_keys(entry, ("type", "individual_digits"), f"{field}.")
            if reading.spaces:
                raise source.unsupported(field, entry, "no Digits of texts with U+2581 for spaces")
            return [(field, rf"[\p{{N}}{newer_digits()}]" + ("" if entry.get("individual_digits") else "+"), False)]
        case "Split":
            return _split(source, entry, field, reading)
        case "Metaspace":
            return _metaspace(source, entry, field, reading)
        case other:
            raise source.unsupported(f"{field}.type", other, "ByteLevel, Split, Digits, Metaspace, Sequence of these")


def _split(source: Source, entry: Mapping[str, Any], field: str, reading: _Reading) -> list[tuple[str, str, bool]]:
    source.only_keys(entry, ("type", "pattern", "behavior", "invert"), f"{field}.")
    pattern = source.mapping(entry.get("pattern"), f"{field}.pattern")
    behavior = entry.get("behavior")
    only_matches = behavior == "Removed" and entry.get("invert") is True
    if pattern == {"String": " "} and reading.spaces:
        return []  # there is no space any more
    regex = pattern.get("Regex")
    if not isinstance(regex, str) or len(pattern) != 1:
        raise source.unsupported(f"{field}.pattern", pattern, "a Regex")
    if not only_matches and (behavior != "Isolated" or entry.get("invert", False) is not False):
        raise source.unsupported(f"{field}.behavior", behavior, '"Isolated", or "Removed" with invert')
    if reading.spaces:
        raise source.unsupported(field, entry, "no Split of texts with U+2581 for spaces")
    return [(field, regex, only_matches)]


def _metaspace(source: Source, entry: Mapping[str, Any], field: str, reading: _Reading) -> list[tuple[str, str, bool]]:
    known = ("type", "replacement", "str_rep", "add_prefix_space", "prepend_scheme", "split")
    source.only_keys(entry, known, f"{field}.")
    if entry.get("replacement") != SPACE_MARK:
        raise source.unsupported(f"{field}.replacement", entry.get("replacement"), "U+2581")
    if reading.spaces or reading.prefix != SpacePrefix.NONE:
        raise source.unsupported(field, entry, "U+2581 put in once")
    reading.spaces = True
    reading.prefix = {
        "always": SpacePrefix.MISSING,
        "first": SpacePrefix.FIRST,
        "never": SpacePrefix.NONE,
    }[_scheme(source, entry, field)]
    return [(field, _BEFORE_SPACES, True)] if entry.get("split", True) is not False else []


def _scheme(source: Source, entry: Mapping[str, Any], field: str) -> str:
    older = "always" if entry.get("add_prefix_space", True) is not False else "never"
    scheme = entry.get("prepend_scheme") or older
    if scheme not in ("always", "first", "never"):
        raise source.unsupported(f"{field}.prepend_scheme", scheme, '"always", "first", "never"')
    return str(scheme)


def _splits(source: Source, patterns: list[tuple[str, str, bool]], *, words: bool, clusters: bool) -> SplitTables:
    if len(patterns) + clusters > MAX_SPLITS:
        raise source.refuse("pre_tokenizer", f"has {len(patterns)} splits; {MAX_SPLITS - clusters} is the limit")
    try:
        tables = compile_splits(
            [pattern for _, pattern, _ in patterns], words=words, last=cluster if clusters else None
        )
    except PatternError as error:
        field, pattern, _ = patterns[error.index]
        raise source.refuse(
            f"{field}.pattern", f"is {pattern!r}: {error}", "docs/tokenizer.md says what patterns may contain."
        ) from error
    for (field, pattern, whole), moves in zip(patterns, tables.moves, strict=False):
        if whole and not is_total(moves):
            raise source.refuse(f"{field}.behavior", f"leaves out what {pattern!r} does not match")
    return tables


def _decoder(source: Source, config: Mapping[str, Any], reading: _Reading) -> SpaceStrip:
    parts = list(_parts(source, config.get("decoder"), "decoder", "decoders"))
    if not parts:
        raise source.refuse("decoder", "is missing or not an object")
    strip = SpaceStrip.NONE
    spaces = False
    for field, entry in parts:
        kind = entry.get("type")
        if reading.byte_level and kind == "ByteLevel" and len(parts) == 1:
            continue
        match kind:
            case "Metaspace" if not reading.byte_level and len(parts) == 1:
                spaces = True
                strip = SpaceStrip.NONE if _scheme(source, entry, field) == "never" else SpaceStrip.TOKEN
            case "Replace" if not reading.byte_level and entry.get("pattern") == {"String": SPACE_MARK}:
                spaces = entry.get("content") == " "
            case "ByteFallback" | "Fuse" if not reading.byte_level:
                pass
            case "Strip" if not reading.byte_level and spaces and entry.get("content") == " ":
                if entry.get("start") not in (0, 1) or entry.get("stop") != 0:
                    raise source.unsupported(field, entry, "at most one space at the start")
                strip = SpaceStrip.ONE if entry["start"] else strip
            case _:
                known = "ByteLevel" if reading.byte_level else "Metaspace, or Replace, ByteFallback, Fuse, Strip"
                raise source.unsupported(f"{field}.type", kind, known)
    if not reading.byte_level and not spaces:
        raise source.unsupported("decoder", config.get("decoder"), "one that makes U+2581 a space")
    return strip
