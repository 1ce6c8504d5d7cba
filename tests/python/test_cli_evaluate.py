# SPDX-License-Identifier: Apache-2.0
"""Counting exact answers, and reading the files they are counted in."""

from __future__ import annotations

from pathlib import Path

import pytest

from colibri_sdk.errors import UsageError
from colibri_sdk.evaluate import Example, evaluate, read_examples
from colibri_sdk.profiling.prompts import read_prompts


def test_counts_only_what_is_right_to_the_last_character() -> None:
    examples = [Example("a", "1"), Example("b", "2"), Example("c", "3")]
    answers = {"a": "1", "b": "2 ", "c": ""}
    scores = [(score.n, score.exact) for score in evaluate(examples, answers.__getitem__)]
    assert scores == [(1, 1), (2, 1), (3, 1)]


def test_summary_has_number_share_and_misses() -> None:
    *_, score = evaluate([Example("a", "1"), Example("b", "2")], lambda _: "1")
    assert score.as_json() == {
        "n": 2,
        "exact": 1,
        "accuracy": 0.5,
        "misses": [{"prompt": "b", "answer": "2", "got": "1"}],
    }


def test_reads_lines_in_order_up_to_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    path.write_text('{"prompt": "a", "answer": "1", "more": 0}\n\n{"prompt": "ä", "answer": "2"}\nnot read\n', "utf-8")
    assert read_examples(path, limit=2) == [Example("a", "1"), Example("ä", "2")]


def test_lines_end_with_a_line_feed_alone(tmp_path: Path) -> None:
    """JSON's texts may hold the other ends that Unicode knows, and other systems put a carriage return before it."""
    path = tmp_path / "e.jsonl"
    path.write_text(
        '{"prompt": "a\u2028b\u0085", "answer": "1"}\r\n{"prompt": "c", "answer": "2"}\n', "utf-8", newline=""
    )
    assert read_examples(path) == [Example("a\u2028b\u0085", "1"), Example("c", "2")]
    assert read_prompts(path) == ["a\u2028b\u0085", "c"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"prompt": "a", "answer": "1"}\n{"prompt": "b"}', "line 2: no text named prompt and answer"),
        ('{"prompt": "a", "answer": 1}', "line 1: no text named"),
        ("[1]", "line 1: no text named"),
        ('{"prompt": ', "line 1: not JSON"),
        ("\n", "has no examples"),
        ("[" * 100_000, "line 1: not JSON"),
        ("9" * 5000, "line 1: not JSON"),
        ('{"prompt": "\\ud800", "answer": ""}', "line 1: half of a surrogate pair"),
        ('{"prompt": "\udcff", "answer": ""}', "not UTF-8: byte 12"),
    ],
)
def test_bad_lines_are_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "e.jsonl"
    path.write_text(text, "utf-8", "surrogateescape")
    with pytest.raises(UsageError, match=message):
        read_examples(path)
