# SPDX-License-Identifier: Apache-2.0
"""Talking to the bring-up program (tests/qemu/bringup/) on an emulated board."""

from __future__ import annotations

import re
import socket
from functools import cache
from pathlib import Path

from elftools.elf.elffile import ELFFile

from colibri_sdk.boards import Board, load_board
from colibri_sdk.build import Firmware, build_bringup
from colibri_sdk.emulator import Emulator

REPLY_SECONDS = 300.0
BOARDS = ("rpi3", "virt-aarch64", "virt-riscv64", "hifive-unleashed")


@cache
def built(name: str) -> tuple[Board, Firmware]:
    board = load_board(name)
    return board, build_bringup(board)


class Reply:
    """One line: words and NAME=VALUE pairs. A value that appears more than once is a list in `all`."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.pairs = re.findall(r"(\w+)=(\S+)", text)

    def __getitem__(self, name: str) -> int:
        return int(dict(self.pairs)[name], 0)

    def string(self, name: str) -> str:
        return dict(self.pairs)[name]

    def all(self, name: str) -> list[int]:
        return [int(value, 0) for key, value in self.pairs if key == name]


class Console:
    """Lines in, lines out; each wait ends with the console's output in the error."""

    def __init__(self, running: Emulator) -> None:
        self.running = running
        self._line = running.transport()
        self._line.settimeout(REPLY_SECONDS)
        self._buffer = b""
        self.banner = self.read()

    def read(self) -> Reply:
        while b"\n" not in self._buffer:
            try:
                data = self._line.recv(4096)
            except TimeoutError:
                raise self.running.failure(f"no line within {REPLY_SECONDS:g} s") from None
            if not data:
                raise self.running.failure("the line was closed")
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return Reply(line.decode("ascii"))

    def ask(self, command: str) -> Reply:
        self.send(command)
        return self.read()

    def send(self, command: str) -> None:
        self._line.sendall(command.encode("ascii") + b"\n")

    def close(self) -> None:
        self._line.close()

    @property
    def closed_by_board(self) -> bool:
        """True when the line ends without another byte."""
        try:
            return self._line.recv(1, socket.MSG_WAITALL) == b""
        except TimeoutError:
            return False


def symbols(elf: Path) -> dict[str, tuple[int, int]]:
    """Name -> (address, size) of an ELF's symbols."""
    with elf.open("rb") as file:
        table = ELFFile(file).get_section_by_name(".symtab")
        return {s.name: (s["st_value"], s["st_size"]) for s in table.iter_symbols() if s.name}


def function_at(elf: Path, address: int) -> str:
    """The function whose code holds the address."""
    with elf.open("rb") as file:
        for symbol in ELFFile(file).get_section_by_name(".symtab").iter_symbols():
            if (
                symbol["st_info"]["type"] == "STT_FUNC"
                and symbol["st_value"] <= address < symbol["st_value"] + symbol["st_size"]
            ):
                return str(symbol.name)
    return ""
