# SPDX-License-Identifier: Apache-2.0
"""Firmware configurations: one per board file. Makes build/BOARD/firmware.elf, its raw image and report.json."""

from pathlib import Path

import board_files
import contract_flags
import firmware_report
import monocypher_source
from runtime_builds import key_of, runtime_objects
from SCons.Script import Action, Alias, Depends, Dir, Environment, File, Glob, Value
from sources import INCLUDES, c_files, engine_objects, objects, shorten_commands, use_sdk

ARCHITECTURE_DIRECTORIES = {"aarch64": "firmware/hal/arch/aarch64", "riscv64": "firmware/hal/arch/riscv"}

# mem.c's loops must not be turned into calls of the functions that they implement.
FILE_FLAGS = {"firmware/hal/arch/common/mem.c": ["-fno-tree-loop-distribute-patterns"]}
# Code that runs before the MMU is on, where memory faults on unaligned access.
EARLY_FILES = {"aarch64": {"firmware/hal/arch/aarch64/mmu.c", "firmware/hal/arch/common/mem.c"}}


def board_names():
    return sorted(f.name.removesuffix(".toml") for f in Glob("#boards/*.toml"))


def _load(name, memory):
    """The checked board file, with less memory if that is given."""
    use_sdk()
    from SCons.Errors import UserError

    from colibri_sdk.boards import load_board, with_memory
    from colibri_sdk.errors import ColibriError
    from colibri_sdk.store import parse_size

    try:
        board = load_board(name, directory=Path(Dir("#boards").srcnode().abspath))
        return with_memory(board, parse_size(memory)) if memory else board
    except ColibriError as error:
        raise UserError(str(error)) from error


def _generated(env, target, text, board_file):
    def write(target, source, env):
        Path(str(target[0])).write_text(source[0].get_text_contents(), encoding="utf-8")

    node = env.Command(target, Value(text), Action(write, f"generate $TARGET from {board_file}"))
    return node[0]


def _hal_objects(env, build, data):
    architecture = data["architecture"]
    directory = ARCHITECTURE_DIRECTORIES[architecture]
    names = board_files.drivers(data)
    paths = c_files("firmware/hal", "firmware/hal/arch/common", directory, "firmware/hal/drivers/common")
    paths += [f"firmware/hal/drivers/{name}.c" for name in names]
    made = []
    for path in paths:
        flags = list(FILE_FLAGS.get(path, []))
        if path in EARLY_FILES.get(architecture, ()):
            flags.append("-mstrict-align")
        made += objects(env, build, [path], flags)
    for node in sorted(Glob(f"#{directory}/*.S"), key=str):
        path = str(node)
        made += env.Object(f"{build}/obj/{path.removesuffix('.S')}_asm.o", node)
    return made


def declare_board(out, name, arguments):
    board = _load(name, arguments.get("MEMORY"))
    data = board.data
    build = f"{out}/{board.build_name}"
    shared = f"{out}/{name}"  # for objects that neither the memory nor the key changes
    directory = ARCHITECTURE_DIRECTORIES[board.architecture]
    env = Environment(
        tools=[data["toolchain"]["family"]],
        toolpath=["#toolchains"],
        TARGET_ARCHITECTURE=board.architecture,
        FREESTANDING=True,
        CPU_FLAGS=data["toolchain"]["cpu_flags"],
        CPPPATH=[*INCLUDES, f"#{directory}", "#firmware/hal/drivers", monocypher_source.include(out)],
    )
    shorten_commands(env, arguments)
    env.Append(LINKFLAGS=data["toolchain"]["link_flags"])

    drivers = Dir("#firmware/hal/drivers").srcnode().abspath
    generated = _generated(env, f"{build}/board.c", board_files.board_c(data, drivers), f"boards/{name}.toml")
    script = _generated(env, f"{build}/board.ld", board_files.linker_script(data), f"boards/{name}.toml")
    hal = env.Object(f"{build}/obj/board.o", generated) + _hal_objects(env, shared, data)
    engine = engine_objects(env, shared, without=contract_flags.HOSTED_FILES)
    key = key_of(arguments)
    keyed = build if key is None else f"{build}-{key.label}"
    runtime = runtime_objects(env, out, shared, keyed, key)

    made = _link(env, f"{keyed}/firmware.elf", hal + runtime + engine, script)
    binary_name = board.flash.firmware_file or "firmware.bin"
    made += env.Command(
        f"{keyed}/{binary_name}", made[0], Action("$OBJCOPY -O binary $SOURCE $TARGET", "binary $TARGET")
    )
    made += firmware_report.declare(env, keyed, made[0], engine, board)
    Alias(name, made)

    checks = objects(env, shared, c_files("tests/qemu/bringup"))
    bringup = _link(env, f"{build}/bringup.elf", hal + checks, script)
    bringup += env.Command(
        f"{build}/bringup/{binary_name}", bringup[0], Action("$OBJCOPY -O binary $SOURCE $TARGET", "binary $TARGET")
    )
    Alias(f"{name}-bringup", bringup)
    Alias("boards", made)


def _link(env, target, parts, script):
    elf = env.Program(
        target, parts, LINKFLAGS=[*env["LINKFLAGS"], "-T", File(script), f"-Wl,-Map={target.removesuffix('.elf')}.map"]
    )
    Depends(elf, script)
    return elf
