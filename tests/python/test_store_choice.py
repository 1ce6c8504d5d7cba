# SPDX-License-Identifier: Apache-2.0
"""The options of the expert store, before a device hears of them."""

from __future__ import annotations

import pytest

from colibri_sdk.boards import load_board, with_memory
from colibri_sdk.cli.options import take_store
from colibri_sdk.errors import UsageError
from colibri_sdk.store import StoreChoice, parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("4096", 4096),
        ("512K", 512 << 10),
        ("64M", 64 << 20),
        ("64 MB", 64 << 20),
        ("1GiB", 1 << 30),
        ("64B", 64),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "M", "-1", "64X", "1.5M", "64MM", "64iB", "64Mi", "0x10", "64\u212a", "٣K"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(UsageError):
        parse_size(text)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({}, None),
        ({"store": "memory"}, StoreChoice("memory")),
        ({"cache_slots": 0}, StoreChoice("block")),
        ({"cache_slots": 3, "prefetch": True}, StoreChoice("block", cache_slots=3, prefetch=True)),
        ({"prefetch": True}, StoreChoice("block", prefetch=True)),
        ({"memory_limit": 1 << 20}, StoreChoice("auto", memory_limit=1 << 20)),
        ({"store": "auto", "cache_slots": 2}, StoreChoice("auto", cache_slots=2)),
    ],
)
def test_what_the_options_mean(given: dict[str, object], wanted: StoreChoice | None) -> None:
    values = {"store": None, "cache_slots": None, "prefetch": False, "memory_limit": None, "other": 1, **given}
    assert take_store(values) == wanted
    assert values == {"other": 1}


def test_a_board_with_less_memory() -> None:
    """The firmware's figure, the emulator's where it follows it, and a directory of its own."""
    board = load_board("hifive-unleashed")
    small = with_memory(board, 64 << 20)
    assert small.memory is not None and board.memory is not None
    assert small.memory.ram.bytes == small.emulator.memory_bytes == small.data["memory"]["ram_bytes"] == 64 << 20
    assert (board.build_name, small.build_name) == ("hifive-unleashed", "hifive-unleashed-64M")
    raspberry = with_memory(load_board("rpi3"), 256 << 20)
    assert raspberry.emulator.memory_bytes == 1 << 30  # a machine that QEMU has in one size only
    for wrong in (0, (64 << 20) + 1, board.memory.ram.bytes + (1 << 20)):
        with pytest.raises(UsageError):
            with_memory(board, wrong)
    with pytest.raises(UsageError):
        with_memory(load_board("host"), 64 << 20)
