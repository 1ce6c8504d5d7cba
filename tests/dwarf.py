# SPDX-License-Identifier: Apache-2.0
"""Structs and enums as the compiler laid them out, read from an ELF file's DWARF."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elftools.elf.elffile import ELFFile


@dataclass(frozen=True)
class Member:
    """One field: where it lies and its size in bytes, arrays as a whole."""

    name: str
    offset: int
    size: int


@dataclass(frozen=True)
class Struct:
    size: int
    members: tuple[Member, ...]


@dataclass(frozen=True)
class Types:
    """By tag name; enums map constants to values."""

    structs: dict[str, Struct]
    enums: dict[str, dict[str, int]]


def compiled_types(directory: Path, text: str, include: Path) -> Types:
    """Compiles C text with debug information into a shared object, which has no relocations left, and reads it."""
    source, out = directory / "types.c", directory / "types.so"
    source.write_text(text, encoding="utf-8")
    flags = ["-std=c11", "-g", "-fno-eliminate-unused-debug-types", "-shared", "-fPIC", f"-I{include}"]
    subprocess.run(["cc", *flags, str(source), "-o", str(out)], check=True, timeout=60)
    return read_types(out)


def read_types(path: Path) -> Types:
    structs: dict[str, Struct] = {}
    enums: dict[str, dict[str, int]] = {}
    with path.open("rb") as file:
        for unit in ELFFile(file).get_dwarf_info().iter_CUs():
            for die in unit.iter_DIEs():
                name = die.attributes.get("DW_AT_name")
                if name is None or "DW_AT_byte_size" not in die.attributes:
                    continue
                tag = name.value.decode()
                if die.tag == "DW_TAG_structure_type":
                    members = tuple(
                        Member(
                            child.attributes["DW_AT_name"].value.decode(),
                            child.attributes["DW_AT_data_member_location"].value,
                            _size(child.get_DIE_from_attribute("DW_AT_type")),
                        )
                        for child in die.iter_children()
                        if child.tag == "DW_TAG_member"
                    )
                    structs[tag] = Struct(die.attributes["DW_AT_byte_size"].value, members)
                elif die.tag == "DW_TAG_enumeration_type":
                    enums[tag] = {
                        child.attributes["DW_AT_name"].value.decode(): child.attributes["DW_AT_const_value"].value
                        for child in die.iter_children()
                    }
    return Types(structs, enums)


def _size(die: Any) -> int:
    """Bytes of a type, through typedefs, qualifiers and arrays."""
    if "DW_AT_byte_size" in die.attributes:
        return int(die.attributes["DW_AT_byte_size"].value)
    size = _size(die.get_DIE_from_attribute("DW_AT_type"))
    if die.tag == "DW_TAG_array_type":
        for bound in die.iter_children():
            count = bound.attributes.get("DW_AT_count")
            size *= count.value if count is not None else bound.attributes["DW_AT_upper_bound"].value + 1
    return size
