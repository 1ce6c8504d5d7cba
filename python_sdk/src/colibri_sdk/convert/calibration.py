# SPDX-License-Identifier: Apache-2.0
"""Texts that a packed model is measured on: from a file to passages of token ids."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from colibri_sdk.errors import UsageError
from colibri_sdk.json_lines import json_lines, read_text, require_characters

if TYPE_CHECKING:
    from colibri_sdk.engine import Engine

# Plain text is cut into passages of so many tokens, or of the model's context where that is shorter.
PASSAGE_TOKENS = 512

_HINT = 'Each line is to be {"prompt": TEXT, "answer": TEXT}, {"prompt": TEXT}, {"text": TEXT} or {"ids": [NUMBERS]}.'


@dataclass(frozen=True)
class Passage:
    """A sequence of which the predictions of ids[first:] are measured; first >= 1."""

    ids: tuple[int, ...]
    first: int

    @property
    def scored(self) -> int:
        return len(self.ids) - self.first


@dataclass(frozen=True)
class Material:
    """A file's contents: lines of JSON, or one plain text as the only line with "text"."""

    path: Path
    sha256: str
    rows: tuple[Mapping[str, Any], ...]


def read(path: Path) -> Material:
    """Reads `path`: JSON Lines where its name ends in .jsonl, else UTF-8 text. Raises UsageError."""
    data, text = read_text(path)
    rows: tuple[Mapping[str, Any], ...] = ({"text": text},) if text.strip() else ()
    if path.suffix == ".jsonl":
        rows = tuple(_row(value, where) for where, value in json_lines(text, path, _HINT))
    if not rows:
        raise UsageError(f"{path} has no text", _HINT if path.suffix == ".jsonl" else "Name a file with text.")
    return Material(path, hashlib.sha256(data).hexdigest(), rows)


def _row(row: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(row, dict):
        raise UsageError(f"{where}: no JSON object", _HINT)
    if isinstance(row.get("ids"), list):
        if all(isinstance(one, int) and not isinstance(one, bool) and one >= 0 for one in row["ids"]):
            return {"ids": row["ids"]}
        raise UsageError(f"{where}: ids are to be numbers from 0 up", _HINT)
    texts = {key: row[key] for key in ("prompt", "answer", "text") if isinstance(row.get(key), str)}
    if "text" not in texts and "prompt" not in texts:
        raise UsageError(f"{where}: neither text, prompt nor ids", _HINT)
    require_characters(where, texts.values())
    return texts


def passages(
    material: Material, engine: Engine, card: Mapping[str, Any], *, has_tokenizer: bool
) -> tuple[Passage, ...]:
    """The material in the tokens of `engine`'s model, whose card is given.

    An answer's tokens and the end token behind it are measured, its prompt's are not; of all else everything but the
    first token is. What exceeds the context is cut off. Raises UsageError when nothing is left, or when a text is for a
    model without a tokenizer.
    """
    if not has_tokenizer and any("ids" not in row for row in material.rows):
        raise UsageError(
            f"{material.path}: the model has no tokenizer, and this is text",
            'Give a .jsonl file whose lines are {"ids": [NUMBERS]}.',
        )
    found = [one for row in material.rows for one in _passages(row, material, engine, card)]
    kept = tuple(one for one in found if one.scored > 0)
    if not kept:
        raise UsageError(f"{material.path} holds no token to predict", "Give a longer text.")
    return kept


def _passages(row: Mapping[str, Any], material: Material, engine: Engine, card: Mapping[str, Any]) -> Iterator[Passage]:
    context = engine.info.context
    if "ids" in row:
        wrong = next((one for one in row["ids"] if one >= engine.info.vocab), None)
        if wrong is not None:
            raise UsageError(
                f"{material.path}: {wrong} is no token id of the model", f"Ids are 0 to {engine.info.vocab - 1}."
            )
        yield Passage(tuple(row["ids"][:context]), 1)
    elif "text" in row:
        start = card.get("special_tokens", {}).get(card.get("tokens", {}).get("bos_token"))
        before = () if start is None else (int(start),)
        ids = _tokenize(engine, row["text"])
        step = max(1, min(context, PASSAGE_TOKENS) - len(before))
        for at in range(0, len(ids), step):
            yield Passage((*before, *ids[at : at + step]), 1)
    else:
        prompt = engine.prompt(row["prompt"])
        if "answer" not in row:
            yield Passage(tuple(prompt[:context]), 1)
            return
        end = card.get("eos_token_ids", [])[:1]
        answered = (*prompt, *engine.tokenize(row["answer"], begins=False), *end)
        yield Passage(answered[:context], len(prompt))


def _tokenize(engine: Engine, text: str) -> list[int]:
    """A text of any length, in pieces that end with a line where one is longer than the engine takes at once."""
    limit = max(4, engine.info.max_text_bytes)
    ids: list[int] = []
    piece = b""
    for line in text.encode("utf-8").splitlines(keepends=True):
        for part in _cut(line, limit):
            if len(piece) + len(part) > limit:
                ids += engine.tokenize(piece, begins=not ids)
                piece = b""
            piece += part
    return ids + (engine.tokenize(piece, begins=not ids) if piece else [])


def _cut(line: bytes, limit: int) -> Iterator[bytes]:
    """A line in parts of at most `limit` bytes, each of whole characters."""
    while len(line) > limit:
        end = limit
        while line[end] & 0xC0 == 0x80:
            end -= 1
        yield line[:end]
        line = line[end:]
    yield line


def sample(all_passages: tuple[Passage, ...], tokens: int) -> tuple[Passage, ...]:
    """Evenly spread passages with about so many tokens, at least one; all where there are no more."""
    total = sum(len(one.ids) for one in all_passages)
    step = max(1, -(-total // tokens))
    return all_passages[::step]
