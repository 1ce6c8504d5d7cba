# SPDX-License-Identifier: Apache-2.0
"""Patterns as tables find the matches that a backtracking matcher finds."""

from __future__ import annotations

import re

import numpy as np
import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st

from colibri_sdk.convert.pattern import CharacterSets, PatternError, nullable, parse
from colibri_sdk.convert.split_table import SplitTables, compile_splits, is_total
from colibri_sdk.image.layout import SPLIT_MATCH

ALPHABET = "ab1 \n\u00e9"


def match_length(tables: SplitTables, text: str) -> int:
    """The walk of firmware/engine/pretokenizer.c from the text's beginning."""
    moves = tables.moves[0]
    state, matched = 1, 0
    for at in range(len(text) + 1):
        column = tables.classes
        if at < len(text):
            column = int(tables.ranges[np.searchsorted(tables.ranges >> 8, ord(text[at]), side="right") - 1]) & 0xFF
        move = int(moves[state, column])
        if move & SPLIT_MATCH:
            matched = at
        state = move & ~SPLIT_MATCH
        if state == 0:
            break
    assert state == 0
    return matched


sets = [r"[\p{L}&&[^a]]", "[^[ab]1]", r"[^\P{L}&&\S]", "[a1&&ab&&[^1]]"]
atoms = st.sampled_from(
    ["a", "b", "1", " ", r"\s", r"\S", r"\p{L}", r"\P{L}", r"\p{N}", r"[^\s\p{L}]", "[ab]", r"\n", "[^a]", *sets]
)
ahead = st.sampled_from([r"(?!\S)", "(?=a)", "(?!b)"])


def larger(smaller: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    quantifier = st.sampled_from(["?", "*", "+", "{2}", "{1,3}", "{2,}"])
    group = smaller.map(lambda part: f"(?:{part})")
    return st.one_of(
        st.tuples(group, quantifier).map("".join),
        st.lists(st.one_of(smaller, ahead), min_size=1, max_size=3).map("".join),
        st.lists(smaller, min_size=2, max_size=3).map(lambda parts: f"(?:{'|'.join(parts)})"),
    )


patterns = st.recursive(
    st.one_of(atoms, st.tuples(atoms, st.sampled_from(["?", "*", "+", "?+", "*+", "++"])).map("".join)),
    larger,
    max_leaves=8,
)


@settings(max_examples=300, deadline=None)
@given(pattern=patterns, texts=st.lists(st.text(ALPHABET, max_size=10), min_size=1, max_size=10))
def test_matches_are_those_of_a_backtracking_matcher(pattern: str, texts: list[str]) -> None:
    try:
        tables = compile_splits([pattern])
    except PatternError:  # it matches the empty text, or nothing; nothing else is wrong with these patterns
        whole = _compiled(pattern)
        assert any(whole.fullmatch(text) for text in ("",)) or "(?" in pattern or _repeats_nothing(pattern)
        return
    for text in texts:
        found = _compiled(pattern).match(text)
        assert match_length(tables, text) == (found.end() if found else 0), repr(text)
    if is_total(tables.moves[0]):
        assert all(_compiled(pattern).match(text) for text in texts if text)


def _compiled(pattern: str) -> regex.Pattern[str]:
    return regex.compile(pattern, regex.VERSION1)  # in which sets have sets and intersections, as in Oniguruma


def _repeats_nothing(pattern: str) -> bool:
    return regex.search(r"[*+?}]\)?[*+?{]", pattern) is not None


@pytest.mark.parametrize(
    ("pattern", "complaint"),
    [
        ("", "empty text"),
        ("a*", "empty text"),
        ("(?!a)", "empty text"),
        ("(a", "does not end"),
        ("a)", "unmatched"),
        ("a**", "doubled"),
        ("a+?", "lazy"),
        ("a++?", "lazy"),
        ("a{0,2}+", "empty text"),
        ("a{1,2}+?", "doubled"),
        ("(?:ab)++", "more than one character"),
        ("(?:a?)*b", "empty text"),
        ("(?<=a)b", "unsupported kind"),
        ("a(?!bc)", "more than one"),
        ("^a", "'^'"),
        ("[a", "too early"),
        ("[a[b]", "too early"),
        ("[a&&]", "without members"),
        ("[&&a]", "without members"),
        ("[[:alpha:]]", "POSIX"),
        ("[a-[b]]", "range"),
        ("[z-a]", "range"),
        (r"\p{Klingon}", "no property is called"),
        (r"\pL", "braces"),
        (r"\w", "not supported"),
        (r"a\b", "not supported"),
        ("a{2,1}", "this size"),
        ("a{1,1000}", "this size"),
        ("a{x}", "{m,n}"),
        (r"(?i:\p{L})", "ASCII"),
        ("(?i:'st)", "ligature"),
        (r"[^\s\S]", "matches nothing"),
        ("(?:(?:a{100}){100}){100}", "too large"),
    ],
)
def test_what_is_not_supported_is_said(pattern: str, complaint: str) -> None:
    with pytest.raises(PatternError, match=re.escape(complaint)):
        compile_splits([pattern])


def test_the_pattern_at_fault_is_known() -> None:
    with pytest.raises(PatternError) as caught:
        compile_splits(["a", "b", "(c"])
    assert caught.value.index == 2


def test_what_can_be_empty() -> None:
    assert not nullable(parse(r"a\s*", CharacterSets()))
    with pytest.raises(PatternError):
        parse("a?b?", CharacterSets())


def test_total() -> None:
    assert is_total(compile_splits([r"\s+|\S"]).moves[0])
    assert not is_total(compile_splits([r"\s+|\Sa"]).moves[0])
    assert not is_total(compile_splits([r"\s+(?!\S)|\S"]).moves[0])
