# SPDX-License-Identifier: Apache-2.0
"""From an address of a fault to "function+0x1c (file.c:42)", by the firmware's ELF."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any


class Symbols:
    """The functions, and the lines where there is debug information, of one ELF file."""

    def __init__(self, elf: Path) -> None:
        from elftools.elf.elffile import ELFFile

        with elf.open("rb") as file:
            parsed = ELFFile(file)
            self._functions = sorted(_functions(parsed))
            self._lines = sorted(_lines(parsed.get_dwarf_info())) if parsed.has_dwarf_info() else []

    def describe(self, address: int) -> str:
        """The function with the offset into it, then file and line; empty when no function is there."""
        name = ""
        for start, size, function in self._functions:
            if start <= address < start + max(size, 1):
                name = f"{function}+{address - start:#x}" if address != start else function
        if name:
            line = self._line(address)
            if line:
                name += f" ({line})"
        return name

    def _line(self, address: int) -> str:
        for start, end, line in self._lines:
            if start <= address < end:
                return line
        return ""


def _functions(elf: Any) -> Iterator[tuple[int, int, str]]:
    table = elf.get_section_by_name(".symtab")
    for symbol in table.iter_symbols() if table else ():
        if symbol["st_info"]["type"] == "STT_FUNC" and symbol["st_shndx"] != "SHN_UNDEF":
            yield symbol["st_value"], symbol["st_size"], symbol.name


def _lines(dwarf: Any) -> Iterator[tuple[int, int, str]]:
    for unit in dwarf.iter_CUs():
        program = dwarf.line_program_for_CU(unit)
        if program is None:
            continue
        first = 0 if program["version"] >= 5 else 1
        previous = None
        for entry in program.get_entries():
            state = entry.state
            if state is None:
                continue
            if previous is not None and state.address > previous.address:
                name = program["file_entry"][previous.file - first].name
                text = name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name)
                yield previous.address, state.address, f"{text}:{previous.line}"
            previous = None if state.end_sequence else state


# Names of hal_fault.registers, by the device's processor.
_X86_64 = ["rax", "rbx", "rcx", "rdx", "rsi", "rdi", "rbp", *(f"r{i}" for i in range(8, 16))]


def register_names(architecture: str, count: int) -> list[str]:
    """What the registers of a fault are called; r0, r1 ... where the architecture is not known."""
    if architecture == "x86_64":
        names = _X86_64
    elif architecture == "aarch64":
        names = [f"x{i}" for i in range(31)]
    elif architecture.startswith("riscv"):
        names = [f"x{i}" for i in range(1, 32)]
    else:
        names = [f"r{i}" for i in range(count)]
    return [*names, *(f"more{i}" for i in range(len(names), count))][:count]
