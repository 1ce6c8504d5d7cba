# SPDX-License-Identifier: Apache-2.0
r"""Reads the regular expressions by which tokenizers cut text, into nodes that split_table.py turns into tables.

Understood is what such patterns are made of: characters and sets of them (`[^\s\p{L}]`, `\p{Lu}`, `\p{Han}`, `\s`,
`\r`, ranges, sets within sets, `&&`), alternatives, groups, `(?i:...)` over ASCII, greedy `?`, `*`, `+`, `{m,n}`,
possessive `?+`, `*+`, `++` of one character, and a look at the one next character (`(?!\S)`, `(?=x)`, `$`). The dialect
is Oniguruma's with Ruby's syntax, which the tokenizers library uses. Everything else raises PatternError, which says
what and where.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from colibri_sdk.convert.unicode import CODE_POINTS, CharacterSet, category, characters, named_property, white_space

MAX_REPEAT = 100

# What folds to an ASCII letter beside its other case, and pairs of letters that one character can stand for.
_FOLDS = {"s": "\u017f", "k": "\u212a"}
_LIGATURES = ("ff", "fi", "fl", "st", "ss")


class PatternError(ValueError):
    """The pattern is wrong, or uses what is not supported. `index`: which one of several."""

    index = 0


@dataclass(frozen=True)
class One:
    """One character of set number `index`."""

    index: int


@dataclass(frozen=True)
class Ahead:
    """Nothing, before a character of set number `index`; at the text's end where `at_end`."""

    index: int
    at_end: bool


@dataclass(frozen=True)
class Row:
    parts: tuple[Node, ...]


@dataclass(frozen=True)
class Choice:
    """The first one that leads to a match."""

    options: tuple[Node, ...]


@dataclass(frozen=True)
class Repeat:
    """As often as possible, from `low` times to `high` times (None: any number)."""

    part: Node
    low: int
    high: int | None


Node = One | Ahead | Row | Choice | Repeat


@dataclass
class CharacterSets:
    """Sets of characters, each once, by number."""

    sets: list[CharacterSet] = field(default_factory=list)
    _numbers: dict[bytes, int] = field(default_factory=dict)

    def number(self, found: CharacterSet) -> int:
        key = np.packbits(found).tobytes()
        if key not in self._numbers:
            self._numbers[key] = len(self.sets)
            self.sets.append(found)
        return self._numbers[key]


def parse(pattern: str, sets: CharacterSets) -> Node:
    """The pattern as nodes; its sets of characters go to `sets`."""
    reader = _Reader(pattern, sets)
    node = reader.choice(fold=False)
    if not reader.at_end:
        raise reader.error("an unmatched )")
    if nullable(node):
        raise reader.error("it matches the empty text")
    return node


def nullable(node: Node) -> bool:
    """Whether it matches the empty text."""
    match node:
        case One():
            return False
        case Ahead():
            return True
        case Row(parts):
            return all(map(nullable, parts))
        case Choice(options):
            return any(map(nullable, options))
        case Repeat(part, low, _):
            return low == 0 or nullable(part)


class _Reader:
    def __init__(self, pattern: str, sets: CharacterSets) -> None:
        self._pattern = pattern
        self._sets = sets
        self._at = 0

    @property
    def at_end(self) -> bool:
        return self._at == len(self._pattern)

    def error(self, complaint: str) -> PatternError:
        return PatternError(f"{complaint} at character {self._at + 1}")

    def _peek(self, text: str) -> bool:
        return self._pattern.startswith(text, self._at)

    def _take(self, text: str) -> bool:
        found = self._peek(text)
        self._at += len(text) if found else 0
        return found

    def _next(self) -> str:
        if self.at_end:
            raise self.error("the pattern ends too early")
        self._at += 1
        return self._pattern[self._at - 1]

    def choice(self, *, fold: bool) -> Node:
        options = [self._row(fold=fold)]
        while self._take("|"):
            options.append(self._row(fold=fold))
        return options[0] if len(options) == 1 else Choice(tuple(options))

    def _row(self, *, fold: bool) -> Node:
        parts: list[Node] = []
        letters = ""
        while not self.at_end and not self._peek("|") and not self._peek(")"):
            start = self._at
            part = self._quantified(self._atom(fold=fold))
            letters += self._pattern[start : self._at].lower()
            if fold and any(pair in letters for pair in _LIGATURES):
                raise self.error("letters that a ligature stands for, whatever the case,")
            parts.append(part)
        return parts[0] if len(parts) == 1 else Row(tuple(parts))

    def _atom(self, *, fold: bool) -> Node:
        if self._take("("):
            return self._group(fold=fold)
        if self._take("["):
            return self._one(self._bracket(), fold=fold)
        if self._take("$"):  # before a line's end and at the text's
            return Ahead(self._sets.number(characters("\n")), at_end=True)
        if self._take("."):
            return self._one(~characters("\n"), fold=False)
        character = self._next()
        if character == "\\":
            return self._one(self._escape(), fold=fold)
        if character in "*+?{}^":
            self._at -= 1
            raise self.error(f"{character!r}, which is not supported here,")
        return self._one(characters(character), fold=fold)

    def _one(self, found: CharacterSet, *, fold: bool) -> One:
        if fold:
            if found[128:].any():
                raise self.error("(?i:) with other characters than ASCII")
            for character in map(chr, np.flatnonzero(found)):
                lower = character.lower()
                found = found | characters(lower + character.upper() + _FOLDS.get(lower, ""))
        return One(self._sets.number(found))

    def _group(self, *, fold: bool) -> Node:
        if self._take("?!") or self._take("?="):
            negative = self._pattern[self._at - 1] == "!"
            node = self.choice(fold=fold)
            if not isinstance(node, One):
                raise self.error("a look ahead at more than one character")
            found = self._sets.sets[node.index]
            node = Ahead(self._sets.number(~found if negative else found), at_end=negative)
        elif self._take("?i:"):
            node = self.choice(fold=True)
        elif self._take("?:") or not self._peek("?"):
            node = self.choice(fold=fold)
        else:
            raise self.error("a group of an unsupported kind")
        if not self._take(")"):
            raise self.error("a group that does not end")
        return node

    def _quantified(self, node: Node) -> Node:
        if self._take("?"):
            low, high = 0, 1
        elif self._take("*"):
            low, high = 0, None
        elif self._take("+"):
            low, high = 1, None
        elif self._take("{"):
            low, high = self._bounds()
        else:
            return node
        doubled = high != 0 and self._pattern[self._at - 1] == "}" and self._take("+")  # not possessive in this dialect
        possessive = not doubled and self._take("+")
        if not self.at_end and self._pattern[self._at] in "?+*{":
            raise self.error("a lazy or doubled repetition")
        if nullable(node):
            raise self.error("a repetition of what matches the empty text")
        repeated = Repeat(node, low, high)
        if doubled and not nullable(repeated):
            return Repeat(repeated, 1, None)
        if doubled:
            raise self.error("a repetition of what matches the empty text")
        return self._possessive(node, repeated) if possessive else repeated

    def _possessive(self, node: Node, repeated: Repeat) -> Node:
        """Nothing that was taken is given back: of single characters, the next one is none that could be taken."""
        if not isinstance(node, One):
            raise self.error("a possessive repetition of more than one character")
        other = Ahead(self._sets.number(~self._sets.sets[node.index]), at_end=True)
        if repeated.high is None:
            return Row((repeated, other))
        return Choice((node, other))

    def _bounds(self) -> tuple[int, int | None]:
        end = self._pattern.find("}", self._at)
        low, comma, high = self._pattern[self._at : max(end, self._at)].partition(",")
        parts = (low, high) if comma else (low, low)
        if not all(part.isascii() and (part.isdigit() or not part) for part in parts) or not any(parts):
            raise self.error("a repetition that is not {m,n}")
        self._at = end + 1
        bounds = int(parts[0] or 0), int(parts[1]) if parts[1] else None
        if max(bounds[0], bounds[1] or 0) > MAX_REPEAT or (bounds[1] is not None and not bounds[0] <= bounds[1] != 0):
            raise self.error("a repetition of this size")
        return bounds

    def _bracket(self) -> CharacterSet:
        """Behind [: members, sets within the set, and && between those sets of them that must all hold a character."""
        negative = self._take("^")
        whole: CharacterSet | None = None
        found = np.zeros(CODE_POINTS, np.bool_)
        empty = True
        while not self._take("]"):
            if self._peek("&&"):
                if empty:
                    raise self.error("a set without members")
                self._at += 2
                whole = found if whole is None else whole & found
                found = np.zeros(CODE_POINTS, np.bool_)
                empty = True
                continue
            if self._peek("[:"):
                raise self.error("a POSIX class")
            empty = False
            found |= self._bracket() if self._take("[") else self._range()
        if empty:
            raise self.error("a set without members")
        whole = found if whole is None else whole & found
        return ~whole if negative else whole

    def _range(self) -> CharacterSet:
        """A member of a set, or all from one character to another."""
        low = self._member()
        if isinstance(low, str) and self._peek("-") and not self._peek("-]"):
            self._at += 1
            if self._peek("["):
                raise self.error("a range of characters that is none")
            high = self._member()
            if not isinstance(high, str) or high < low:
                raise self.error("a range of characters that is none")
            found = np.zeros(CODE_POINTS, np.bool_)
            found[ord(low) : ord(high) + 1] = True
            return found
        return characters(low) if isinstance(low, str) else low

    def _member(self) -> str | CharacterSet:
        character = self._next()
        if character != "\\":
            return character
        found = self._escape()
        one = np.flatnonzero(found)
        return chr(one[0]) if len(one) == 1 else found

    def _escape(self) -> CharacterSet:
        character = self._next()
        match character:
            case "s" | "S":
                found = white_space()
            case "d" | "D":
                found = category("Nd")
            case "p" | "P":
                return self._property(negative=character == "P")
            case "n" | "r" | "t" | "f" | "v":
                return characters({"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v"}[character])
            case "u":
                digits = self._pattern[self._at : self._at + 4]
                if len(digits) != 4 or any(digit not in "0123456789abcdefABCDEF" for digit in digits):
                    raise self.error(r"a \u without four digits")
                self._at += 4
                return characters(chr(int(digits, 16)))
            case other if other.isascii() and other.isalnum():
                raise self.error(f"\\{other}, which is not supported,")
            case other:
                return characters(other)
        return ~found if character.isupper() else found

    def _property(self, *, negative: bool) -> CharacterSet:
        end = self._pattern.find("}", self._at)
        if not self._take("{") or end < 0:
            raise self.error(r"a \p without braces")
        name = self._pattern[self._at : end]
        negative ^= name.startswith("^")
        name = name.removeprefix("^")
        found = named_property(name)
        if found is None:
            raise self.error(rf"\p{{{name}}}, which no property is called,")
        self._at = end + 1
        return ~found if negative else found
