# SPDX-License-Identifier: Apache-2.0
"""GGUF files as checkpoints: docs/gguf.md."""

from __future__ import annotations

from colibri_sdk.convert.gguf.checkpoint import GgufCheckpoint
from colibri_sdk.convert.gguf.metadata import ARCHITECTURES
from colibri_sdk.convert.gguf.numbers import READABLE_TYPES

__all__ = ["ARCHITECTURES", "READABLE_TYPES", "GgufCheckpoint"]
