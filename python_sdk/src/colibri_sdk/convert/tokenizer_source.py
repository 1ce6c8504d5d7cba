# SPDX-License-Identifier: Apache-2.0
"""A tokenizer's document while it is read: every complaint names the field that is at fault."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from colibri_sdk.errors import CheckpointError


@dataclass(frozen=True)
class Source:
    """The file, for messages: every complaint names the field."""

    name: str

    def refuse(self, field: str, complaint: str, hint: str = "") -> CheckpointError:
        return CheckpointError(f"{self.name}: {field} {complaint}", hint, where=self.name)

    def unsupported(self, field: str, value: object, supported: str) -> CheckpointError:
        shown = json.dumps(value, ensure_ascii=False, default=str)
        shown = shown if len(shown) <= 80 else shown[:77] + "..."
        return self.refuse(
            field, f"is {shown}, which the engine cannot do", f"Supported: {supported}. See docs/tokenizer.md."
        )

    def read(self, path: Path) -> dict[str, Any]:
        try:
            config = json.loads(path.read_text("utf-8"))
        except OSError as error:
            raise self.refuse("cannot be read:", error.strerror or str(error)) from error
        except (ValueError, RecursionError) as error:
            raise self.refuse("is not JSON:", str(error), "Download the file again.") from error
        return self.mapping(config, "the document")

    def mapping(self, value: object, field: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise self.refuse(field, "is missing or not an object")
        return value

    def sequence(self, value: object, field: str) -> list[Any]:
        if not isinstance(value, list):
            raise self.refuse(field, "is missing or not a list")
        return value

    def token_id(self, value: object, field: str, vocab: int) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < vocab:
            raise self.refuse(
                field, f"is {value!r}, not a token id below {vocab}", "The model's embeddings end there; wrong file?"
            )
        return value

    def only_keys(self, value: Mapping[str, Any], known: Iterable[str], field: str) -> None:
        unknown = sorted(set(value) - set(known))
        if unknown:
            raise self.unsupported(f"{field}{unknown[0]}", value[unknown[0]], "no such field")
