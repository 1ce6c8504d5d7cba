# SPDX-License-Identifier: Apache-2.0
"""What became of the numbers in a checkpoint's files: kind of matrix by kind of matrix, for report and card."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from colibri_sdk.convert.description import TensorSource
from colibri_sdk.convert.quantisation import Encoding
from colibri_sdk.image.layout import Format


class Fate(StrEnum):
    """From best to worst."""

    KEPT = "kept"  # the same bits: floats of the same width, or blocks with their scales and integers
    EXACT = "exact"  # the same numbers, written otherwise
    ROUNDED = "rounded"  # floats made narrower, quantised or multiplied
    REQUANTISED = "requantised"  # quantised in the file, widened and quantised anew


@dataclass(frozen=True)
class Origin:
    """All matrices of one kind, e.g. attention.query or experts.gate, that were stored and are packed alike."""

    kind: str
    stored: str
    packed: str
    fate: Fate
    weights: int


_FLOATS = {"F32": Format.F32, "F16": Format.F16, "BF16": None}
_OWN_BLOCKS = {"Q8_0": Format.Q8, "Q4_0": Format.Q4}


def fate(source: TensorSource, stored: str, encoding: Encoding, whole_blocks: bool) -> Fate:
    """What becomes of a matrix; `whole_blocks`: all of it was taken over as blocks."""
    if whole_blocks:
        return Fate.KEPT if _OWN_BLOCKS.get(stored) is encoding.format else Fate.EXACT
    if source.scale != 1.0:
        return Fate.ROUNDED if stored in _FLOATS or encoding.format is Format.F32 else Fate.REQUANTISED
    if _FLOATS.get(stored) is encoding.format:
        return Fate.KEPT
    if encoding.format is Format.F32:
        return Fate.EXACT
    return Fate.ROUNDED if stored in _FLOATS else Fate.REQUANTISED


def fates(source: TensorSource, stored: str, encoding: Encoding) -> set[Fate]:
    """All that may become of a matrix, as far as names and shapes tell: only blocks can be taken over."""
    ways = (False,) if stored in _FLOATS else (False, True)
    return {fate(source, stored, encoding, whole_blocks) for whole_blocks in ways}


@dataclass
class OriginMeter:
    """Counts weights as they are packed."""

    _weights: dict[tuple[str, str, str, Fate], int] = field(default_factory=dict)

    def add(self, label: str, source: TensorSource, stored: str, encoding: Encoding, whole_blocks: bool) -> None:
        """One matrix, with its line in a report; vectors, which are always float32, do not count."""
        if encoding.format is not Format.F32_VECTOR:
            self.count(label, source, stored, encoding, fate(source, stored, encoding, whole_blocks))

    def count(self, label: str, source: TensorSource, stored: str, encoding: Encoding, what: Fate) -> None:
        """One matrix whose fate is known."""
        kind = re.sub(r"^layers\.\d+\.", "", label)
        key = kind, stored, encoding.name, what
        self._weights[key] = self._weights.get(key, 0) + source.rows * source.cols

    def results(self) -> tuple[Origin, ...]:
        """In the order of the image."""
        return tuple(Origin(*key, weights) for key, weights in self._weights.items())


def summary(origins: Iterable[Origin]) -> list[str]:
    """A line for each pair of formats and fate, e.g. "Q8_0 to q8, kept: attention.query, experts.gate"."""
    lines: dict[tuple[str, str, Fate], list[str]] = {}
    for one in origins:
        lines.setdefault((one.stored, one.packed, one.fate), []).append(one.kind)
    return [f"{stored} to {packed}, {fate}: {', '.join(kinds)}" for (stored, packed, fate), kinds in lines.items()]
