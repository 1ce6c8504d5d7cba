# SPDX-License-Identifier: Apache-2.0
"""Worst-case stack of a firmware, from the compiler's own figures.

GCC writes for each object a call graph whose nodes carry the frame's size (-fcallgraph-info=su, files *.ci). The bound
for an entry function is the costliest path of direct calls plus, for calls through pointers, the INDIRECT_DEPTH
costliest paths that start at different functions whose address is taken (found in the objects' relocations).

This is a true bound as long as calls through pointers nest at most INDIRECT_DEPTH deep and no function is entered
again through a pointer while it runs. The longest such chain in the runtime: a request's handler -> the engine's poll
hook -> the handler of a request that is answered meanwhile -> the link's hook -> the watchdog driver -> the clock.
Recursion by direct calls makes the result unbounded (None), as does a frame whose size is not known at compile time.
"""

import re
from pathlib import Path

from elftools.elf.elffile import ELFFile
from elftools.elf.relocation import RelocationSection

INDIRECT_DEPTH = 6
INDIRECT = "__indirect_call"

NODE = re.compile(r'node: \{ title: "([^"]+)" label: "([^"]*)"')
EDGE = re.compile(r'edge: \{ sourcename: "([^"]+)" targetname: "([^"]+)"')
FRAME = re.compile(r"(\d+) bytes \((static|dynamic|dynamic,bounded)\)")

# Relocations of calls and jumps: AArch64 (ELF for the Arm 64-bit Architecture) and RISC-V (psABI).
CALL_TYPES = {"EM_AARCH64": {279, 280, 282, 283}, "EM_RISCV": {16, 17, 18, 19, 44, 45}}


class Graph:
    """Functions of all objects. Names are as GCC titles them: static functions have their file's name before them."""

    def __init__(self):
        self.frames = {}
        self.unbounded = set()
        self.calls = {}
        self.indirect = set()

    def read(self, text):
        for title, label in NODE.findall(text):
            frame = FRAME.search(label)
            if frame:
                self.frames[title] = int(frame.group(1))
                if frame.group(2) == "dynamic":
                    self.unbounded.add(title)
        for source, target in EDGE.findall(text):
            if target == INDIRECT:
                self.indirect.add(source)
            else:
                self.calls.setdefault(source, set()).add(target)

    def depth(self, function, memo, path=()):
        """Bytes of the costliest path of direct calls, or None when it has no bound."""
        if function in memo:
            return memo[function]
        if function in path or function in self.unbounded:
            return None
        deepest = 0
        for callee in self.calls.get(function, ()):
            below = self.depth(callee, memo, (*path, function))
            if below is None:
                memo[function] = None
                return None
            deepest = max(deepest, below)
        memo[function] = self.frames.get(function, 0) + deepest
        return memo[function]


def address_taken(path):
    """Names of functions that an object refers to otherwise than by calling them."""
    found = set()
    with Path(path).open("rb") as file:
        elf = ELFFile(file)
        calls = CALL_TYPES[elf["e_machine"]]
        for section in elf.iter_sections():
            if not isinstance(section, RelocationSection) or ".debug" in section.name or ".eh_frame" in section.name:
                continue
            symbols = elf.get_section(section["sh_link"])
            for relocation in section.iter_relocations():
                if relocation["r_info_type"] in calls:
                    continue
                symbol = symbols.get_symbol(relocation["r_info_sym"])
                if symbol["st_info"]["type"] == "STT_FUNC" or (
                    symbol["st_shndx"] == "SHN_UNDEF" and symbol["st_info"]["bind"] == "STB_GLOBAL"
                ):
                    found.add(symbol.name)
                elif symbol["st_info"]["type"] == "STT_SECTION":
                    name = elf.get_section(symbol["st_shndx"]).name
                    if name.startswith(".text."):
                        found.add(name.removeprefix(".text."))
                elif isinstance(symbol["st_shndx"], int):
                    # A local label (.L, .LANCHOR): what counts is whether it marks a function's section.
                    name = elf.get_section(symbol["st_shndx"]).name
                    if name.startswith(".text.") and symbol["st_value"] == 0:
                        found.add(name.removeprefix(".text."))
    return found


def analyse(objects, entries):
    """{entry: bytes or None} for functions that run on a stack of their own, over the objects of one firmware."""
    graph = Graph()
    taken = set()
    for path in map(Path, objects):
        info = path.with_suffix(".ci")
        if info.is_file():
            graph.read(info.read_text("utf-8"))
        taken |= address_taken(path)
    memo = {}
    starts = [name for name in graph.frames if name.rsplit(":", 1)[-1] in taken]
    depths = [graph.depth(name, memo) for name in starts]
    result = {}
    for entry in entries:
        direct = graph.depth(entry, memo)
        if direct is None or None in depths:
            result[entry] = None
        else:
            result[entry] = direct + sum(sorted(depths, reverse=True)[:INDIRECT_DEPTH])
    return result
