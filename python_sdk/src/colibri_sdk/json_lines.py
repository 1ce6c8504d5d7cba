# SPDX-License-Identifier: Apache-2.0
"""Files of JSON Lines, as people write them. What is wrong in one is said with its line."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from colibri_sdk.errors import UsageError


def read_text(path: Path) -> tuple[bytes, str]:
    """The bytes of `path`, and the text that they are. UsageError when it cannot be read or is not UTF-8."""
    try:
        data = path.read_bytes()
        return data, data.decode("utf-8")
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}", "Name a file with text.") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8: byte {error.start}", "Name a file with text.") from error


def json_lines(text: str, path: Path, hint: str) -> Iterator[tuple[str, Any]]:
    """Where each line of `text` that is not blank stands, and its value. UsageError, with `hint`, where it has none.

    Lines end with a line feed and nothing else: a text in JSON may hold all others that Unicode knows."""
    for number, line in enumerate(text.split("\n"), 1):
        where = f"{path}, line {number}"
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{where}: not JSON ({error})", hint) from error
        yield where, value


def require_characters(where: str, texts: Iterable[str]) -> None:
    """UsageError where a text holds half of a surrogate pair, which \\uXXXX can write."""
    if any("\ud800" <= character <= "\udfff" for text in texts for character in text):
        raise UsageError(
            f"{where}: half of a surrogate pair, which is no character", "Write both halves: \\ud83d\\ude00."
        )
