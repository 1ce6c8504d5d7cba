# SPDX-License-Identifier: Apache-2.0
"""Declares to SCons what each configuration consists of. SConstruct calls `declare` once.

Only the configurations that the command line asks for are declared, so that nobody needs the cross compilers of boards
they do not build for.
"""

import firmware_builds
import host_builds
import monocypher_source
from SCons.Errors import UserError
from SCons.Script import AlwaysBuild, Default, Environment, SConsignFile

LINUX_TARGETS = {"linux-aarch64": "aarch64", "linux-riscv64": "riscv64"}


def _wanted(arguments, targets, boards, out):
    """Names of the configurations that the command line needs, from aliases and from paths below build/."""
    names = set()
    if "BOARD" in arguments:
        names.add(arguments["BOARD"])
    for target in map(str, targets):
        below = target.removeprefix(f"{out}/")
        name = below.split("/")[0]
        if name == "boards":
            names.update(board for board in boards if board != "host")
        elif name in ("install", "compile_commands.json", ".", "host-sanitize", "host-tests"):
            names.add("host")
        else:
            names.add(name.removesuffix("-bringup"))
    return names or {"host"}


def declare(arguments, targets):
    out = arguments.get("BUILD_DIR", "build")
    SConsignFile(f"{out}/.sconsign")
    boards = firmware_builds.board_names()
    for name in sorted(_wanted(arguments, targets, boards, out)):
        if name == "host":
            host_builds.declare_host(out, arguments)
        elif name == "monocypher":
            monocypher_source.source(out)
        elif name == "fuzz":
            host_builds.declare_fuzz(out, arguments)
        elif name in LINUX_TARGETS:
            host_builds.declare_linux(out, name, LINUX_TARGETS[name], arguments)
        elif name in boards:
            firmware_builds.declare_board(out, name, arguments)
        else:
            known = ", ".join([*boards, *LINUX_TARGETS, "fuzz", "boards", "install", "monocypher"])
            raise UserError(f"nothing is called '{name}' here; there are: {known}")
    # Every environment above noted its commands; any of them can write the file.
    database = Environment(tools=["compilation_db"]).CompilationDatabase("#compile_commands.json")
    AlwaysBuild(database)
    if not targets:
        Default(arguments.get("BOARD", "host"), database)
