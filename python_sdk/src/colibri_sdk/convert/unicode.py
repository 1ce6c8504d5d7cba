# SPDX-License-Identifier: Apache-2.0
"""What the tokenizer's tables know of Unicode: categories of characters, and the normalisation forms.

The tokenizers library decides by its own regular expression engine what a letter is, and that engine follows one
version of Unicode: 16.0 for the pinned release. The tables therefore come from that version, whatever Python's own
`unicodedata` knows, so that an image is the same on every host. Tests compare every code point with the library.
"""

from __future__ import annotations

import functools
import sys
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import unicodedata2
from tokenizers import Regex, normalizers, pre_tokenizers

UNICODE_VERSION = "16.0.0"
CODE_POINTS = sys.maxunicode + 1

# One truth value for each code point.
CharacterSet = npt.NDArray[np.bool_]

# White_Space is no general category: these control characters belong to it and other control characters do not.
_SPACE_CONTROLS = "\t\n\v\f\r\x85"
_HANGUL = range(0xAC00, 0xAC00 + 11172)  # syllables are composed by arithmetic, not from a table


def check_version() -> None:
    if unicodedata2.unidata_version != UNICODE_VERSION:  # another version would make another image, silently
        raise RuntimeError(f"unicodedata2 has Unicode {unicodedata2.unidata_version}, {UNICODE_VERSION} is needed")


@functools.cache
def _categories() -> tuple[tuple[str, ...], npt.NDArray[np.uint8]]:
    """The general categories, and [code points] the number of each one's category; read only."""
    check_version()
    numbers: dict[str, int] = {}
    found = np.empty(CODE_POINTS, np.uint8)
    for point in range(CODE_POINTS):
        found[point] = numbers.setdefault(unicodedata2.category(chr(point)), len(numbers))
    found.flags.writeable = False
    return tuple(numbers), found


def is_category(name: str) -> bool:
    return any(known.startswith(name) for known in _categories()[0]) and name != ""


def category(name: str) -> CharacterSet:
    r"""The characters of a general category, "Lu", or of all that begin alike, "L": \p{NAME}."""
    names, numbers = _categories()
    found: CharacterSet = np.array([known.startswith(name) for known in names])[numbers]
    return found


def named_property(name: str) -> CharacterSet | None:
    r"""The characters of \p{NAME}: a general category, or a script or other property that the library's regular
    expressions know. None where they know no such name."""
    if is_category(name):
        return category(name)
    return _library_property(name)


@functools.lru_cache(maxsize=32)
def _library_property(name: str) -> CharacterSet | None:
    """The library is asked which characters match, so that its version of Unicode counts here as well."""
    if not name.isascii() or not name.replace("_", "").isalnum():
        return None
    try:
        others = normalizers.Replace(Regex(rf"\p{{{name}}}"), "")
    except Exception as error:  # what the library raises for a name that it does not know
        if type(error) is not Exception:
            raise
        return None
    found = np.ones(CODE_POINTS, np.bool_)
    found[0xD800:0xE000] = False  # surrogates are in no text
    rest = others.normalize_str(every_character())
    found[np.frombuffer(rest.encode("utf-32-le"), "<u4")] = False
    found.flags.writeable = False
    return found


def every_character() -> str:
    """One after another, without surrogates, which are in no text."""
    points = np.arange(CODE_POINTS, dtype="<u4")
    return points[(points < 0xD800) | (points > 0xDFFF)].tobytes().decode("utf-32-le")


@functools.cache
def word_characters() -> CharacterSet:
    """What goes on with a word, for the library's added tokens that must be words by themselves. Its expressions for
    these are not those of patterns, but those by which its Whitespace splits: into runs of such characters and of
    others."""
    split = pre_tokenizers.Whitespace().pre_tokenize_str
    runs = [run for run, _ in split(every_character())]
    beside_a_letter = split(" ".join("a" + run[0] for run in runs))
    found = np.zeros(CODE_POINTS, np.bool_)
    for piece, (start, _) in beside_a_letter:
        if len(piece) == 2:
            found[list(map(ord, runs[start // 3]))] = True
    found.flags.writeable = False
    return found


def white_space() -> CharacterSet:
    r"""White_Space: \s."""
    found = category("Z")
    found[[ord(character) for character in _SPACE_CONTROLS]] = True
    return found


def characters(text: str) -> CharacterSet:
    found = np.zeros(CODE_POINTS, np.bool_)
    found[[ord(character) for character in text]] = True
    return found


@functools.cache
def newer_digits() -> str:
    r"""The characters that the library's Digits takes for numbers beyond \p{N}: it follows a newer version of Unicode
    than the library's regular expressions, so it is asked about what these leave unassigned."""
    unassigned = np.flatnonzero(category("Cn")[:0x20000])
    digits = pre_tokenizers.Digits(individual_digits=True)
    pieces = digits.pre_tokenize_str("".join(f"a{chr(point)}" for point in unassigned))
    return "".join(piece for piece, _ in pieces if len(piece) == 1 and piece != "a")


@dataclass(frozen=True)
class Normalisation:
    """The tables of a normalisation form, as firmware/engine/image.h describes them. Hangul is not in them."""

    decompositions: list[tuple[int, str]]  # code point, what stands for it in the end; ascending
    compositions: list[tuple[int, int, int]]  # first, second, composed; ascending
    classes: list[tuple[int, int]]  # first code point of a range, its canonical combining class; ascending from 0


@functools.cache
def normalisation(form: str) -> Normalisation:
    """The tables of NFC, NFD, NFKC or NFKD, as the tokenizers library normalises.

    Its normaliser is of an older version of Unicode than its regular expressions. What a character decomposes to and
    its class never change once it is assigned, so the library is asked which characters it knows."""
    check_version()
    whole = normalizers.NFKD() if form in ("NFKC", "NFKD") else normalizers.NFD()
    composes = normalizers.NFC()
    decompositions, classes, compositions = [], [(0, 0)], []
    for point in range(CODE_POINTS):
        character = chr(point)
        order = unicodedata2.combining(character)
        if order and not _is_ordered(character, order):
            order = 0
        if order != classes[-1][1]:
            classes.append((point, order))
        if point in _HANGUL or not unicodedata2.decomposition(character):
            continue
        decomposed = whole.normalize_str(character)
        if decomposed != character:
            decompositions.append((point, decomposed))
        pair = unicodedata2.decomposition(character).split()
        if form in ("NFC", "NFKC") and len(pair) == 2 and pair[0][0] != "<":
            first, second = (int(part, 16) for part in pair)
            if composes.normalize_str(chr(first) + chr(second)) == character:
                compositions.append((first, second, point))
    return Normalisation(decompositions, sorted(compositions), classes)


def _is_ordered(character: str, order: int) -> bool:
    """Whether the library knows the class of a mark: it changes places with a mark that belongs before or behind it."""
    overlay, above = "\u0334", "\u0301"  # classes 1 and 230
    pair = character + overlay if order > 1 else above + character
    ordered: str = normalizers.NFD().normalize_str(pair)
    return ordered != pair
