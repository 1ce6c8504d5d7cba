# SPDX-License-Identifier: Apache-2.0
"""Files of prompts: JSON Lines, or a prompt on each line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from colibri_sdk.convert import calibration
from colibri_sdk.errors import ColibriError, UsageError

# A text, which the model's chat template is put around, or token ids as they are.
Prompt = str | tuple[int, ...]

_HINT = 'In a .jsonl file each line is {"prompt": TEXT} or {"ids": [NUMBERS]}; in others each line is a prompt.'


def read_prompts(path: Path, limit: int = 0) -> list[Prompt]:
    """The prompts of `path`, in order; the first `limit`, or all if it is 0. Raises UsageError when there are none."""
    prompts: list[Prompt] = []
    for number, row in enumerate(calibration.read(path).rows, 1):
        if path.suffix != ".jsonl":
            prompts += [line.strip() for line in str(row["text"]).splitlines() if line.strip()]
        elif row.get("ids"):
            prompts.append(tuple(row["ids"]))
        elif "prompt" in row:
            prompts.append(str(row["prompt"]))
        else:
            raise UsageError(f"{path}: prompt {number} is neither a text nor ids", _HINT)
    return prompts[:limit] if limit else prompts


@contextmanager
def named(number: int, prompts: int) -> Iterator[None]:
    """Errors say that prompt `number` of so many, from 0, is the one that they are about."""
    try:
        yield
    except ColibriError as error:
        error.message = f"prompt {number + 1} of {prompts}: {error.message}"
        raise
