# SPDX-License-Identifier: Apache-2.0
"""SentencePiece's rules of normalisation: the "precompiled charsmap" of its files, of tokenizer.json and of GGUF.

It is a trie in the form of a double array (Darts), from texts to places in a pool of texts that stand for them. The
device walks it as it is (firmware/engine/rewrite.c); here it is checked.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from colibri_sdk.image.layout import MAX_RULE_BYTES, Rewrite

_MAX_UNITS = 1 << 18  # what is published has 46,000
_MAX_STEPS = 1 << 20
_LABEL, _LEAF, _VALUE = 0x800000FF, 0x100, 0x7FFFFFFF

Units = npt.NDArray[np.uint32]


AS_IT_IS = Rewrite(0)


class CharsmapError(ValueError):
    """It is no charsmap."""


@dataclass(frozen=True)
class Rules:
    """`units` are empty where there are no rules; `texts` are UTF-8, each with a zero byte behind it."""

    units: Units
    texts: bytes

    @property
    def doubles_spaces(self) -> bool:
        """Whether two spaces side by side stand for something."""
        return b"  " in self.texts


NO_RULES = Rules(np.zeros(0, np.uint32), b"")


def read_rules(blob: bytes) -> Rules:
    """The rules of a charsmap; raises CharsmapError for anything that is none."""
    if not blob:
        return NO_RULES
    size = int.from_bytes(blob[:4], "little")
    if len(blob) < 4 or size % 4 or not 4 <= size <= len(blob) - 4:
        raise CharsmapError(f"has {len(blob)} bytes, and a trie of {size}")
    units = np.frombuffer(blob, "<u4", size // 4, 4)
    if len(units) > _MAX_UNITS:
        raise CharsmapError(f"has a trie of {len(units)} units; {_MAX_UNITS} is the limit")
    texts = blob[4 + size :]
    texts = texts if texts.endswith(b"\0") else texts + b"\0"
    try:
        texts.decode("utf-8")
    except UnicodeDecodeError as error:
        raise CharsmapError(f"has texts that are not UTF-8: {error}") from error
    if any(value >= len(texts) or 0x80 <= texts[value] < 0xC0 for value in _values(units)):
        raise CharsmapError("points beyond its texts or into a character")
    return Rules(units, texts)


def _offsets(units: Units) -> Units:
    return ((units >> 10) << ((units & 0x200) >> 6)).astype(np.uint32)


def _values(units: Units) -> Iterator[int]:
    """Where the texts begin that stand for something. Each level of the trie is looked at as a whole, so that tries
    whose branches come together again, as these do, take no longer than their units."""
    level = _offsets(units[:1])
    steps = 0
    letters = np.arange(1, 256, dtype=np.uint32)
    for _ in range(MAX_RULE_BYTES + 1):
        steps += len(level)
        if steps > _MAX_STEPS:
            raise CharsmapError("has a trie that leads in circles")
        ahead = []
        for part in np.array_split(level, 1 + len(level) // 4096):
            places = part[:, None] ^ letters
            there = places < len(units)
            found = units[np.where(there, places, 0)]
            hit = there & ((found & _LABEL) == letters)
            ahead.append(np.stack([places[hit], found[hit]]))
        places, found = np.concatenate(ahead, axis=1)
        places = places ^ _offsets(found)
        leaves = places[(found & _LEAF) != 0]
        if (leaves >= len(units)).any():
            raise CharsmapError("points beyond its trie")
        yield from np.unique(units[leaves] & _VALUE).tolist()
        level = np.unique(places)
        if not len(level):
            return
    raise CharsmapError(f"has rules for texts of more than {MAX_RULE_BYTES} bytes")
