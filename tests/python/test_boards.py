# SPDX-License-Identifier: Apache-2.0
"""Board files: what is accepted, and that what is wrong is named with its file and key."""

from __future__ import annotations

import shutil
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from colibri_sdk.boards import list_boards, load_board
from colibri_sdk.errors import UsageError

ISSUE_BOARDS = {"host", "rpi3", "virt-aarch64", "virt-riscv64", "hifive-unleashed"}

Copy = Callable[[str, str, str], Path]


@pytest.fixture
def changed(tmp_path: Path, repo_root: Path) -> Copy:
    """changed(board, old, new): a boards directory with that board's file changed; fails when `old` is not in it."""

    def change(name: str, old: str, new: str) -> Path:
        shutil.copy(repo_root / "boards" / "schema.json", tmp_path)
        text = (repo_root / "boards" / f"{name}.toml").read_text()
        assert old in text
        (tmp_path / f"{name}.toml").write_text(text.replace(old, new, 1))
        return tmp_path

    return change


def test_all_boards_load_and_are_what_their_files_say(repo_root: Path) -> None:
    boards = {board.name: board for board in list_boards()}
    assert set(boards) >= ISSUE_BOARDS
    for name, board in boards.items():
        data = tomllib.loads((repo_root / "boards" / f"{name}.toml").read_text())
        assert board.title == data["title"]
        assert board.baud == data["link"]["baud"]
        assert board.as_json()["name"] == name
        assert board.emulated
        if name != "host":
            assert board.memory is not None
            assert board.memory.ram.bytes == data["memory"]["ram_bytes"]
            assert set(board.devices) >= {"console", "clock", "block", "power", "watchdog"}
            # The emulated board must really have the memory that the firmware is told of.
            assert board.emulator.memory_bytes >= board.memory.ram.bytes


def test_unknown_board_lists_the_known_ones() -> None:
    with pytest.raises(UsageError, match="there is no board 'rpi9'") as caught:
        load_board("rpi9")
    for name in ISSUE_BOARDS:
        assert name in caught.value.hint


def test_name_cannot_leave_the_directory() -> None:
    with pytest.raises(UsageError, match="there is no board"):
        load_board("../boards/rpi3")


@pytest.mark.parametrize(
    ("board", "old", "new", "key"),
    [
        ("rpi3", 'driver = "pl011"', 'driver = "pl012"', "console.driver"),
        ("rpi3", "clock_hz = 48_000_000", "clock_hz = -1", "console.clock_hz"),
        ("rpi3", "clock_hz = 48_000_000", "clok_hz = 48_000_000", "console"),
        ("rpi3", 'architecture = "aarch64"', 'architecture = "arm"', "architecture"),
        ("rpi3", "load_address = 0x80000", "load_address = 0x3f000000", "memory.load_address"),
        ("rpi3", "load_address = 0x80000", "load_address = 0x80001", "memory.load_address"),
        ("rpi3", "base = 0x3f000000, bytes", "base = 0x3b000000, bytes", "memory.device_regions.0"),
        ("rpi3", 'name = "rpi3"', 'name = "rpi2"', "name"),
        ("rpi3", '"0403:6001"', '"0403-6001"', "link.usb_ids.0"),
        ("rpi3", 'method = "sd-card"', 'method = "tape"', "flash.method"),
        ("rpi3", 'firmware_file = "kernel8.img"', 'firmware_file = "a/b"', "flash.firmware_file"),
        ("rpi3", "memory_bytes = 0x40000000", "memory_bytes = 0x20000000", "emulator.memory_bytes"),
        ("rpi3", "[watchdog]\n", "[watchdogs]\n", "watchdog"),
        ("virt-riscv64", 'machine = "virt"\n', "", "emulator"),
        ("hifive-unleashed", "[block.bus]", "[block.bas]", "block"),
        ("hifive-unleashed", "transfer_hz = 20_000_000", "transfer_hz = 50_000_000", "block.transfer_hz"),
        ("host", 'kind = "process"', 'kind = "magic"', "emulator.kind"),
    ],
)
def test_mistake_is_named_with_file_and_key(board: str, old: str, new: str, key: str, changed: Copy) -> None:
    directory = changed(board, old, new)
    with pytest.raises(UsageError) as caught:
        load_board(board, directory)
    assert str(directory / f"{board}.toml") in caught.value.message
    assert key in caught.value.message
    assert "docs/adding-a-board.md" in caught.value.hint


def test_broken_toml_is_said_to_be_that(changed: Copy) -> None:
    directory = changed("rpi3", "[memory]", "[memory")
    with pytest.raises(UsageError, match="not valid TOML"):
        load_board("rpi3", directory)


def test_board_on_known_parts_is_one_file(changed: Copy) -> None:
    """A copy with another name and memory is a board."""
    directory = changed("rpi3", "ram_bytes = 0x3b400000", "ram_bytes = 0x1b400000")
    text = (directory / "rpi3.toml").read_text().replace('name = "rpi3"', 'name = "rpi3-a-plus"', 1)
    (directory / "rpi3-a-plus.toml").write_text(text)
    board = load_board("rpi3-a-plus", directory)
    assert board.memory is not None
    assert board.memory.ram.bytes == 0x1B400000
