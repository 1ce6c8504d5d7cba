# SPDX-License-Identifier: Apache-2.0
"""How long work reports its progress. Drawing it is the caller's job."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Called now and then while bytes are processed."""

    def update(self, done_bytes: int, total_bytes: int, what: str) -> None:
        """`done_bytes` of `total_bytes` are done; `what` is being worked on."""


class Silent:
    """A Progress that says nothing."""

    def update(self, done_bytes: int, total_bytes: int, what: str) -> None:
        """Nothing to see."""
