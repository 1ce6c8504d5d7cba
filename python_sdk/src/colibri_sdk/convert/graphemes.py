# SPDX-License-Identifier: Apache-2.0
"""Extended grapheme clusters (UAX #29) as a pattern: the tokenizers library applies a charsmap to one after another."""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable

import numpy as np
import regex
from tokenizers.normalizers import Precompiled

from colibri_sdk.convert.pattern import CharacterSets, Choice, Node, One, Repeat, Row
from colibri_sdk.convert.unicode import CODE_POINTS, CharacterSet, characters, every_character

_LETTER = "\u0915"  # a consonant of Devanagari
_VIRAMA = "\u094d"  # which links it to the next one
_MARK = "\u0301"


def cluster(sets: CharacterSets) -> Node:
    """One cluster; every text consists of them. The rules' names are those of the annex."""

    def one(found: CharacterSet) -> Node:
        return One(sets.number(found))

    def some(node: Node, low: int = 0) -> Node:
        return Repeat(node, low, None)

    control = _property("GCB=Control")
    extend = _property("GCB=Extend") | _property("GCB=ZWJ")
    # The library's version of Unicode is another one than that of the properties; it is asked which it knows.
    behind = extend | _property("GCB=SpacingMark")
    behind &= ~_kept(behind, lambda c: f"a{c}", letter="a")
    extend &= behind
    before = _kept(_property("GCB=Prepend"), lambda c: f"{c}{_LETTER}{_MARK}")
    consonants = _kept(_property("InCB=Consonant"), lambda c: f"{c}{_VIRAMA}{_LETTER}{_MARK}")
    linkers = _kept(_property("InCB=Linker"), lambda c: f"{_LETTER}{c}{_LETTER}{_MARK}")
    between = _kept(_property("InCB=Extend"), lambda c: f"{_LETTER}{_VIRAMA}{c}{_LETTER}{_MARK}")

    leading, vowel, trailing = (one(_property(f"GCB={name}")) for name in "LVT")
    lv, lvt = one(_property("GCB=LV")), one(_property("GCB=LVT"))
    hangul = Choice(  # GB6 to GB8
        (
            Row((some(leading), Choice((Row((lv, some(vowel))), some(vowel, 1), lvt)), some(trailing))),
            some(leading, 1),
            some(trailing, 1),
        )
    )
    picture = one(_property("ExtPict"))
    pictures = Row((picture, some(Row((some(one(extend)), one(characters("\u200d")), picture)))))  # GB11
    joined = some(one(between | linkers))
    conjunct = Row((one(consonants), some(Row((joined, one(linkers), joined, one(consonants))))))  # GB9c
    flag = one(_property("GCB=Regional_Indicator"))
    ends = control | characters("\r\n")
    core = Choice((Row((flag, flag)), hangul, pictures, conjunct, one(~ends)))  # GB12, GB999
    return Choice(
        (
            Row((one(characters("\r")), one(characters("\n")))),  # GB3
            one(ends),  # GB4, GB5
            Row((some(one(before)), core, some(one(behind)))),  # GB9, GB9a, GB9b
        )
    )


@functools.lru_cache(maxsize=32)
def _property(name: str) -> CharacterSet:
    found = np.zeros(CODE_POINTS, np.bool_)
    found[list(map(ord, regex.findall(rf"\p{{{name}}}", every_character())))] = True
    found.flags.writeable = False
    return found


def _kept(asked: CharacterSet, text: Callable[[str], str], letter: str = _LETTER) -> CharacterSet:
    """Those of the characters for which the library keeps all of their text, when it has a rule for the letter: this
    rule takes a whole cluster of fewer than six bytes that begins with the letter, marks and all."""
    characters = list(map(chr, np.flatnonzero(asked)))
    texts = list(map(text, characters))
    written = Precompiled(_charsmap(letter, "x")).normalize_str("\n".join(texts)).split("\n")
    found = np.zeros(CODE_POINTS, np.bool_)
    found[[ord(c) for c, old, new in zip(characters, texts, written, strict=True) if len(old) == len(new)]] = True
    return found


def _charsmap(rule_for: str, stands: str) -> bytes:
    """A charsmap with one rule: each of its bytes has a block of the trie's units of its own."""
    letters = rule_for.encode("utf-8")
    units = [0] * 256 * (len(letters) + 2)
    place = 0
    for number, letter in enumerate((0, *letters), start=1):
        block = 256 * number
        last = number > len(letters)
        units[place] = (place ^ block) << 10 | (0x100 if last else 0) | letter
        place = block if last else block ^ letters[number - 1]
    units[place] = 0x80000000
    return struct.pack(f"<{len(units) + 1}I", 4 * len(units), *units) + stands.encode("utf-8") + b"\0"
