# SPDX-License-Identifier: Apache-2.0
"""Patterns as tables that the device walks: one look-up for each character, whatever the patterns say.

All patterns of a tokenizer share one table of character classes: characters that no set of any pattern tells apart
are of one class. Each pattern is an automaton over these classes. A state stands for the threads that a backtracking
matcher could be in, in the order in which it would try them, so that the automaton finds the match which that matcher
finds (Cox, "Regular Expression Matching: the Virtual Machine Approach", 2009). A match is noticed at the character
after it, which is where a look ahead is decided as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from colibri_sdk.convert.pattern import Ahead, CharacterSets, Choice, Node, One, PatternError, Repeat, Row, parse
from colibri_sdk.convert.unicode import CODE_POINTS, white_space, word_characters
from colibri_sdk.image.layout import MAX_SPLIT_STATES, SPLIT_MATCH

_MAX_INSTRUCTIONS = 4096
_MAX_CLASSES = 200

Moves = npt.NDArray[np.uint16]
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class SplitTables:
    """The tables of struct col_tokenizer that cut texts."""

    ranges: npt.NDArray[np.uint32]  # [ranges]: first code point << 8 | class, ascending from code point 0
    classes: int
    first_word: int  # from here on classes are parts of words, where that was asked for,
    first_space: int  # and from here on white space
    moves: tuple[Moves, ...]  # for each pattern [states][classes + 1]: next state, and SPLIT_MATCH


def compile_splits(
    patterns: Sequence[str], *, words: bool = False, last: Callable[[CharacterSets], Node] | None = None
) -> SplitTables:
    """`words`: classes tell parts of words apart; `last` makes one more pattern, behind the others.

    Raises PatternError for a pattern that cannot be compiled."""
    sets = CharacterSets()
    nodes = [_named(index, parse, pattern, sets) for index, pattern in enumerate(patterns)]
    if last is not None:
        nodes.append(last(sets))
    space = sets.number(white_space())
    ends = [sets.number(word_characters()), space] if words else [space]
    # One bit for each set a code point is in, the highest for white space, so that its classes come last.
    order = [number for number in range(len(sets.sets)) if number not in ends] + ends
    if len(order) > 64:
        raise PatternError(f"the patterns tell {len(order)} sets of characters apart; 64 is the limit")
    member = np.zeros(CODE_POINTS, np.uint64)
    for bit, number in enumerate(order):
        member |= sets.sets[number].astype(np.uint64) << np.uint64(bit)
    starts = np.concatenate(([0], 1 + np.flatnonzero(np.diff(member))))
    kinds, class_of = np.unique(member[starts], return_inverse=True)
    if len(kinds) > _MAX_CLASSES:
        raise PatternError(f"the patterns tell {len(kinds)} classes of characters apart; {_MAX_CLASSES} is the limit")
    in_set = [frozenset(class_of[sets.sets[number][starts]].tolist()) for number in range(len(sets.sets))]
    moves = [
        _named(index, lambda node: _automaton(_instructions(node, in_set), len(kinds)), node)
        for index, node in enumerate(nodes)
    ]
    ranges = (starts << 8 | class_of).astype("<u4")
    return SplitTables(ranges, len(kinds), min(in_set[ends[0]]), min(in_set[space]), tuple(moves))


def _named(index: int, make: Callable[..., _Result], *arguments: object) -> _Result:
    """An error knows which pattern it is about."""
    try:
        return make(*arguments)
    except PatternError as error:
        error.index = index
        raise


# ------------------------------------------------------------------------------------------------------- instructions


@dataclass(frozen=True)
class _Consume:
    classes: frozenset[int]


@dataclass(frozen=True)
class _Look:
    """Goes on where the next character is of one of the classes; the text's end is class number `classes`."""

    classes: frozenset[int]
    at_end: bool


@dataclass(frozen=True)
class _Fork:
    """Both ways, the first one first."""

    ways: tuple[int, int]


@dataclass(frozen=True)
class _Jump:
    to: int


_Instruction = _Consume | _Look | _Fork | _Jump


def _instructions(node: Node, in_set: Sequence[frozenset[int]]) -> list[_Instruction]:
    """A program whose end, one past its last instruction, is the match."""
    code: list[_Instruction] = []

    def fork(place: int, first: int, second: int) -> None:
        code[place] = _Fork((first, second))

    def add(node: Node) -> None:
        if len(code) > _MAX_INSTRUCTIONS:
            raise PatternError("it is too large")
        match node:
            case One(index):
                code.append(_Consume(in_set[index]))
            case Ahead(index, at_end):
                code.append(_Look(in_set[index], at_end))
            case Row(parts):
                for part in parts:
                    add(part)
            case Choice(options):
                ends = []
                for option in options[:-1]:
                    place = len(code)
                    code.append(_Jump(0))
                    add(option)
                    ends.append(len(code))
                    code.append(_Jump(0))
                    fork(place, place + 1, len(code))
                add(options[-1])
                for end in ends:
                    code[end] = _Jump(len(code))
            case Repeat(part, low, high):
                for _ in range(low):
                    add(part)
                if high is None:
                    place = len(code)
                    code.append(_Jump(0))
                    add(part)
                    code.append(_Jump(place))
                    fork(place, place + 1, len(code))
                else:
                    places = []
                    for _ in range(high - low):
                        places.append(len(code))
                        code.append(_Jump(0))
                        add(part)
                    for place in places:
                        fork(place, place + 1, len(code))

    add(node)
    return code


# ---------------------------------------------------------------------------------------------------------- automaton


def _automaton(code: list[_Instruction], classes: int) -> Moves:
    """[states][classes + 1]; state 0 has no threads left, state 1 is where a match begins, column `classes` is the
    text's end."""
    states: dict[tuple[int, ...], int] = {(): 0, (0,): 1}
    waiting: list[tuple[int, ...]] = [(0,)]
    rows: dict[int, list[tuple[bool, int]]] = {0: [(False, 0)] * (classes + 1)}
    while waiting:
        threads = waiting.pop()
        row = []
        for kind in range(classes + 1):
            matched, after = _step(code, threads, kind, at_end=kind == classes)
            if after not in states:
                states[after] = len(states)
                waiting.append(after)
                if len(states) > 16 * MAX_SPLIT_STATES:
                    raise PatternError(f"it needs more than {16 * MAX_SPLIT_STATES} states")
            row.append((matched, states[after]))
        rows[states[threads]] = row
    return _smallest([rows[state] for state in range(len(states))])


def _step(code: list[_Instruction], threads: Iterable[int], kind: int, *, at_end: bool) -> tuple[bool, tuple[int, ...]]:
    """(whether a match ends here, the threads after this character). A match ends the threads of lower priority."""
    seen: set[int] = set()
    after: dict[int, None] = {}
    stack = list(reversed(list(threads)))
    while stack:
        place = stack.pop()
        if place in seen:
            continue
        seen.add(place)
        if place == len(code):
            return True, tuple(after)
        match code[place]:
            case _Jump(to):
                stack.append(to)
            case _Fork((first, second)):
                stack += (second, first)
            case _Look(wanted, end):
                if end if at_end else kind in wanted:
                    stack.append(place + 1)
            case _Consume(wanted):
                if not at_end and kind in wanted:
                    after[place + 1] = None
    return False, tuple(after)


def _smallest(rows: list[list[tuple[bool, int]]]) -> Moves:
    """States that behave alike become one (Moore); numbered in the order in which they are reached."""
    block = [0] * len(rows)
    while True:
        signatures = [(block[state], tuple((m, block[to]) for m, to in row)) for state, row in enumerate(rows)]
        numbers = {signature: number for number, signature in enumerate(dict.fromkeys(signatures))}
        finer = [numbers[signature] for signature in signatures]
        if len(numbers) == len(set(block)):
            break
        block = finer
    if block[0] == block[1]:
        raise PatternError("it matches nothing")
    place = {block[0]: 0, block[1]: 1}
    order = [0, 1]
    for state in order:
        for _, to in rows[state]:
            if block[to] not in place:
                place[block[to]] = len(order)
                order.append(to)
    if len(order) > MAX_SPLIT_STATES:
        raise PatternError(f"it needs {len(order)} states; {MAX_SPLIT_STATES} is the limit")
    table = [[place[block[to]] | (SPLIT_MATCH if matched else 0) for matched, to in rows[state]] for state in order]
    return np.array(table, "<u2")


def is_total(moves: Moves) -> bool:
    """Whether every text is matches from its beginning to its end: none is left over between two of them."""
    seen = {1}
    waiting = [1]
    while waiting:
        state = waiting.pop()
        for column, move in enumerate(moves[state].tolist()):
            if state == 1 and column == moves.shape[1] - 1:
                continue  # there is no text
            if state != 1 and move & SPLIT_MATCH:
                continue  # at least one character matched
            to = move & ~SPLIT_MATCH
            if to == 0:
                return False
            if to not in seen:
                seen.add(to)
                waiting.append(to)
    return True
