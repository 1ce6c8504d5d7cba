# SPDX-License-Identifier: Apache-2.0
"""How many answers of a model are right to the last character."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from colibri_sdk.errors import UsageError
from colibri_sdk.json_lines import json_lines, read_text, require_characters

_HINT = 'Each line is to be {"prompt": TEXT, "answer": TEXT}.'


@dataclass(frozen=True)
class Example:
    """A prompt and the one right answer."""

    prompt: str
    answer: str


@dataclass
class Score:
    """Running result. `misses` are the wrong ones: the example and what came instead."""

    n: int = 0
    exact: int = 0
    misses: list[tuple[Example, str]] = field(default_factory=list)

    @property
    def accuracy(self) -> float:
        """Share of exact answers, 0 to 1."""
        return self.exact / self.n if self.n else 0.0

    def add(self, example: Example, got: str) -> None:
        self.n += 1
        if got == example.answer:
            self.exact += 1
        else:
            self.misses.append((example, got))

    def as_json(self) -> dict[str, Any]:
        return {
            "n": self.n,
            "exact": self.exact,
            "accuracy": self.accuracy,
            "misses": [
                {"prompt": example.prompt, "answer": example.answer, "got": got} for example, got in self.misses
            ],
        }


def read_examples(path: Path, limit: int = 0) -> list[Example]:
    """The examples of a JSON Lines file with the fields `prompt` and `answer`; the first `limit`, or all if it is 0."""
    lines = json_lines(read_text(path)[1], path, _HINT)
    examples = [_example(row, where) for where, row in islice(lines, limit or None)]
    if not examples:
        raise UsageError(f"{path} has no examples", _HINT)
    return examples


def _example(row: Any, where: str) -> Example:
    if not isinstance(row, dict) or not all(isinstance(row.get(name), str) for name in ("prompt", "answer")):
        raise UsageError(f"{where}: no text named prompt and answer", _HINT)
    require_characters(where, (row["prompt"], row["answer"]))
    return Example(row["prompt"], row["answer"])


def evaluate(examples: Iterable[Example], answer: Callable[[str], str]) -> Iterator[Score]:
    """Asks each prompt and counts; yields the running score after each, always the same object."""
    score = Score()
    for example in examples:
        score.add(example, answer(example.prompt))
        yield score
