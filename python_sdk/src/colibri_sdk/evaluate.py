# SPDX-License-Identifier: Apache-2.0
"""How many answers of a model are right to the last character."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from colibri_sdk.errors import UsageError


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
    examples: list[Example] = []
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if limit and len(examples) == limit:
                break
            if line.strip():
                examples.append(_example(line, f"{path}, line {number}"))
    if not examples:
        raise UsageError(f"{path} has no examples", 'Each line is to be {"prompt": TEXT, "answer": TEXT}.')
    return examples


def _example(line: str, where: str) -> Example:
    hint = 'Each line is to be {"prompt": TEXT, "answer": TEXT}.'
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise UsageError(f"{where}: not JSON ({error.msg} at column {error.colno})", hint) from error
    if not isinstance(row, dict) or not all(isinstance(row.get(name), str) for name in ("prompt", "answer")):
        raise UsageError(f"{where}: no text named prompt and answer", hint)
    return Example(row["prompt"], row["answer"])


def evaluate(examples: Iterable[Example], answer: Callable[[str], str]) -> Iterator[Score]:
    """Asks each prompt and counts; yields the running score after each, always the same object."""
    score = Score()
    for example in examples:
        score.add(example, answer(example.prompt))
        yield score
