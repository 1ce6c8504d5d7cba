# SPDX-License-Identifier: Apache-2.0
"""What a firmware costs: sizes, worst stack, memory left for model and arena. Written to report.json and printed; a
firmware over its limits does not build."""

import json
from pathlib import Path

import stack_usage
from elftools.elf.constants import SH_FLAGS
from elftools.elf.elffile import ELFFile
from SCons.Script import Action

ENGINE_TEXT_LIMIT = 64 * 1024


def _text_bytes(path):
    with Path(path).open("rb") as file:
        return sum(
            section["sh_size"]
            for section in ELFFile(file).iter_sections()
            if section["sh_flags"] & SH_FLAGS.SHF_EXECINSTR
        )


def measure(elf_path, engine_objects, all_objects, board):
    """Bytes. `engine_text` is the sum over the engine's objects, also of what the linker drops."""
    with Path(elf_path).open("rb") as file:
        elf = ELFFile(file)
        sizes = {section.name: section["sh_size"] for section in elf.iter_sections()}
        symbols = {s.name: s["st_value"] for s in elf.get_section_by_name(".symtab").iter_symbols()}
    stacks = stack_usage.analyse(all_objects, ("hal_start", "hal_on_fault"))
    return {
        "board": board.name,
        "text": sizes[".text"],
        "rodata": sizes[".rodata"],
        "data": sizes.get(".data", 0),
        "bss": sizes.get(".bss", 0),
        "engine_text": sum(map(_text_bytes, engine_objects)),
        "stack_worst": stacks["hal_start"],
        "stack_bytes": board.memory.stack_bytes,
        "fault_stack_worst": stacks["hal_on_fault"],
        "fault_stack_bytes": board.memory.fault_stack_bytes,
        "memory_bytes": symbols["hal_ram_end"] - symbols["hal_memory_start"],
    }


def over_limits(report):
    """Sentences about what is too large; empty when the firmware may be built."""
    problems = []
    if report["engine_text"] > ENGINE_TEXT_LIMIT:
        problems.append(f"the engine's text is {report['engine_text']:,} bytes, more than {ENGINE_TEXT_LIMIT:,}")
    for stack, size in (("stack_worst", "stack_bytes"), ("fault_stack_worst", "fault_stack_bytes")):
        if report[stack] is not None and report[stack] > report[size]:
            problems.append(
                f"{stack} is {report[stack]:,} bytes, more than the board file's {size} of {report[size]:,}"
            )
    return problems


def line(report):
    def count(value):
        return "unbounded" if value is None else f"{value:,}"

    return (
        f"{report['board']}: text {report['text']:,}  rodata {report['rodata']:,}  data {report['data']:,}  "
        f"bss {report['bss']:,}  engine text {report['engine_text']:,}  worst stack {count(report['stack_worst'])} "
        f"of {report['stack_bytes']:,}  fault stack {count(report['fault_stack_worst'])} "
        f"of {report['fault_stack_bytes']:,}  "
        f"left for model and arena {report['memory_bytes']:,}"
    )


def _write(target, source, env):
    elf, board = source[0], env["BOARD"]
    objects = [str(node) for node in elf.sources if str(node).endswith(".o")]
    report = measure(str(elf), [str(node) for node in env["ENGINE_OBJECTS"]], objects, board)
    problems = over_limits(report)
    if problems:
        for problem in problems:
            print(f"{board.name}: {problem}")
        return 1
    Path(str(target[0])).write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    print(line(report))
    return 0


def declare(env, build, elf, engine, board):
    # What the action's signature holds must be the same in the next build, which a closure's objects are not.
    limits = f"{board.memory.stack_bytes} {board.memory.fault_stack_bytes}"
    action = Action(_write, None, varlist=["STACK_LIMITS"])
    return env.Command(f"{build}/report.json", elf, action, BOARD=board, ENGINE_OBJECTS=engine, STACK_LIMITS=limits)
