# SPDX-License-Identifier: Apache-2.0
"""Writes the tokenizer section of an image: struct col_tokenizer of firmware/engine/image.h and its tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from colibri_sdk.convert.tokenizer_pipeline import Pipeline
from colibri_sdk.convert.unicode import normalisation
from colibri_sdk.image.layout import (
    COMPOSITION,
    DECOMPOSITION,
    MERGE,
    NO_RANK,
    NO_TOKEN,
    TOKEN_SPECIAL,
    TOKENIZER,
    TokenizerKind,
    align_up,
)

_TABLE_ALIGN = 8


@dataclass(frozen=True)
class Merge:
    left: int
    right: int
    merged: int
    rank: int  # lower first; below the number of merges


@dataclass(frozen=True)
class Tables:
    """What a section is made of, besides the pipeline."""

    kind: TokenizerKind
    texts: list[bytes]  # of each token; empty for ids that nothing has
    special: frozenset[int]
    byte_ids: list[int]  # 256, or none
    merges: list[Merge]
    scores: list[float]  # of each token, or none
    sorted: list[int]  # tokens that are found by their text, in any order
    early: list[int]  # added tokens that are found before normalisation
    late: list[int]  # and after it
    unknown: int | None
    flags: int
    taking: Mapping[int, int] = field(default_factory=dict)  # TOKEN_TAKES_*, TOKEN_WORD of added tokens


def build_section(pipeline: Pipeline, tables: Tables) -> bytes:
    lengths = [len(text) for text in tables.texts]
    flags = [
        tables.taking.get(token, 0) | (TOKEN_SPECIAL if token in tables.special or not text else 0)
        for token, text in enumerate(tables.texts)
    ]
    merges = _merge_table(tables.merges) if tables.kind != TokenizerKind.UNIGRAM else np.zeros(0, MERGE)
    splits = pipeline.splits
    decompositions, compositions, orders, points = _normalisation(pipeline.form)
    moves = [part.reshape(-1) for part in splits.moves]
    content: dict[str, npt.NDArray[np.generic]] = {
        "byte_ids": _words(tables.byte_ids),
        "token_offsets": _words(np.concatenate(([0], np.cumsum(lengths, dtype=np.uint64)))),
        "token_flags": np.array(flags, np.uint8),
        "token_text": np.frombuffer(b"".join(tables.texts), np.uint8),
        "merges": merges,
        "scores": np.array(tables.scores, "<f8"),
        "sorted": _by_text(tables, tables.sorted),
        "early": _by_text(tables, tables.early),
        "late": _by_text(tables, tables.late),
        "classes": splits.ranges,
        "splits": _words(len(part) for part in splits.moves),
        "moves": np.concatenate(moves).astype("<u2") if moves else np.zeros(0, "<u2"),
        "decompositions": decompositions,
        "compositions": compositions,
        "orders": orders,
        "points": points,
        "rules": pipeline.rules.units,
        "rule_text": np.frombuffer(pipeline.rules.texts, np.uint8),
    }
    head = np.zeros((), TOKENIZER)
    numbers = {
        "kind": tables.kind,
        "flags": tables.flags,
        "prefix": pipeline.prefix,
        "strip": pipeline.strip,
        "vocab": len(tables.texts),
        "unknown": NO_TOKEN if tables.unknown is None else tables.unknown,
        "max_token_bytes": max(lengths),
        "text_bytes": sum(lengths),
        "byte_count": len(tables.byte_ids),
        "merge_slots": len(merges),
        "merge_count": len(tables.merges),
        "score_count": len(tables.scores),
        "sorted_count": len(tables.sorted),
        "early_count": len(tables.early),
        "late_count": len(tables.late),
        "class_count": len(splits.ranges),
        "classes_used": splits.classes,
        "first_space": splits.first_space,
        "split_count": len(moves),
        "move_count": sum(len(part) for part in moves),
        "decomposition_count": len(decompositions),
        "composition_count": len(compositions),
        "order_count": len(orders),
        "point_count": len(points),
        "rewrite": pipeline.rewrite,
        "rule_count": len(pipeline.rules.units),
        "rule_bytes": len(pipeline.rules.texts),
        "first_word": splits.first_word,
    }
    for name, number in numbers.items():
        head[name] = number
    body = bytearray(TOKENIZER.itemsize)
    for name, table in content.items():
        body.extend(bytes(align_up(len(body), _TABLE_ALIGN) - len(body)))
        head[name] = len(body)
        body.extend(table.tobytes())
    body[: TOKENIZER.itemsize] = head.tobytes()
    return bytes(body)


def _words(values: Iterable[int] | npt.NDArray[np.generic]) -> npt.NDArray[np.uint32]:
    return np.array(values if isinstance(values, np.ndarray) else list(values), "<u4")


def _by_text(tables: Tables, tokens: list[int]) -> npt.NDArray[np.uint32]:
    return _words(sorted(tokens, key=lambda token: tables.texts[token]))


def _merge_hash(left: int, right: int, slots: int) -> int:
    """col_merge_hash of image.h."""
    word = 0xFFFFFFFF
    h = (left * 0x9E3779B1 & word) ^ (right * 0x85EBCA6B & word)
    h ^= h >> 15
    h = h * 0xC2B2AE35 & word
    h ^= h >> 13
    return h & (slots - 1)


def _merge_table(merges: list[Merge]) -> npt.NDArray[np.void]:
    """Open addressing, at most half full: a search that finds nothing, which is the usual one, looks at 2.5 slots.
    Lower ranks, which are looked up more often, are placed first and so lie nearest to where the search begins."""
    slots = 1
    while slots < 2 * len(merges) or slots == 1:
        slots *= 2
    table = np.zeros(slots, MERGE)
    table["rank"] = NO_RANK
    taken = bytearray(slots)
    for merge in merges:
        slot = _merge_hash(merge.left, merge.right, slots)
        while taken[slot]:
            slot = (slot + 1) % slots
        taken[slot] = 1
        table[slot] = (merge.left, merge.right, merge.rank, merge.merged)
    return table


def _normalisation(form: str | None) -> tuple[npt.NDArray[np.generic], ...]:
    """decompositions, compositions, orders, points."""
    if form is None:
        return np.zeros(0, DECOMPOSITION), np.zeros(0, COMPOSITION), _words([]), _words([])
    tables = normalisation(form)
    rows: list[tuple[int, int, int]] = []
    points: list[int] = []
    for point, text in tables.decompositions:
        rows.append((point, len(points), len(text)))
        points += map(ord, text)
    orders = [first << 8 | order for first, order in tables.classes]
    return (
        np.array(rows, DECOMPOSITION),
        np.array(tables.compositions, COMPOSITION),
        _words(orders),
        _words(points),
    )
