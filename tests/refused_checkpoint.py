# SPDX-License-Identifier: Apache-2.0
"""Packing a checkpoint that must be refused."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from colibri_sdk.convert import pack
from colibri_sdk.errors import EXIT_IMAGE, CheckpointError

MOST_MEMORY = 16 << 20


def refusal(checkpoint: Path, out: Path) -> CheckpointError:
    """The error of packing it; nothing may be left behind, and little memory used."""
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointError) as caught:
            pack(checkpoint, out)
        assert tracemalloc.get_traced_memory()[1] < MOST_MEMORY
    finally:
        tracemalloc.stop()
    assert not out.exists() and not list(out.parent.glob(".*.partial"))
    assert caught.value.exit_code == EXIT_IMAGE
    return caught.value
