# SPDX-License-Identifier: Apache-2.0
"""The pieces of a rendered chat: what a caller hands to a device instead of one string.

A prompt is a sequence of segments, each either one token id (a special token of the chat template) or text. Text is
tokenised as text whatever it spells, so a user who types "<|assistant|>" gets these thirteen characters and not the
control token. Text segments that follow each other are tokenised as one piece.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Segment:
    """One token id, or a piece of text; `text` counts only where `token` is None."""

    token: int | None = None
    text: str | bytes = ""

    @property
    def text_bytes(self) -> bytes:
        """The text as the device gets it: UTF-8, bytes as they are; empty for a token."""
        if self.token is not None:
            return b""
        return self.text if isinstance(self.text, bytes) else self.text.encode("utf-8", "surrogateescape")
