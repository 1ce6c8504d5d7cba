# SPDX-License-Identifier: Apache-2.0
"""Hosted configurations: the library, the host board, the host's programs, fuzz targets, and the engine's programs for
Linux on another architecture."""

import re
import shutil

import monocypher_source
from runtime_builds import TRUST, key_of, runtime_objects, trust_object
from SCons.Errors import UserError
from SCons.Script import Alias, Environment, File
from sources import INCLUDES, c_files, engine_objects, objects, shorten_commands

# What of the firmware updates models and chooses the one to start; needs neither a link nor a board.
UPDATE_PARTS = [
    f"firmware/runtime/{name}.c"
    for name in ("boot", "loader", "trust", "update", "update_expert", "update_list", "update_model", "volume")
]


def api_version():
    """MAJOR.MINOR.0 from colibri.h, which is the only place that states it."""
    text = File("#firmware/engine/colibri.h").get_text_contents()
    major, minor = (re.search(rf"#define COLIBRI_API_{part} (\d+)", text).group(1) for part in ("MAJOR", "MINOR"))
    return f"{major}.{minor}.0"


def _host_environment(out, arguments, sanitize, compiler=None):
    env = Environment(
        tools=["host"],
        toolpath=["#toolchains"],
        HOST_CC=compiler or arguments.get("CC"),
        SANITIZE=sanitize,
        CPPPATH=[*INCLUDES, monocypher_source.include(out)],
        CPPDEFINES=["_DEFAULT_SOURCE"],  # programs use POSIX beside C11
    )
    shorten_commands(env, arguments)
    return env


# What a program needs beside the engine: of the runtime and the host board.
MORE_SOURCES = {
    "bench_store": [
        *(f"firmware/runtime/{name}.c" for name in ("loader", "storage", "trust", "volume")),
        *(f"host_tools/host_board/{name}.c" for name in ("block", "crc_join")),
    ]
}


def _programs(env, out, build, directory, library, prefix=""):
    """Each C file of a directory is one program, linked with the engine."""
    made = []
    for path in c_files(directory):
        name = path.rsplit("/", 1)[-1].removesuffix(".c")
        sources = [path, *MORE_SOURCES.get(name, [])]
        flags = [*env["LINKFLAGS"], "-pthread"] if name in MORE_SOURCES else env["LINKFLAGS"]
        target = f"{build}/{directory}/{prefix}{name}"
        parts = objects(env, build, sources)
        if any(source.startswith("firmware/runtime/") for source in sources):
            parts += monocypher_source.objects(env, out, build)
        made += env.Program(target, [*parts, library], LINKFLAGS=flags)
    return made


def _keyed_powercut(env, build, libraries):
    """The same with a key, whose private half is in host_tools/powercut/sign.c."""
    key = bytes.fromhex("f65333fa6303b6a23defd7de2af8aa461cb047ccbf12d4edd29ef3b1eba6706b")
    trust = trust_object(env, f"{build}/obj/powercut-keyed/trust.o", key)
    others = [path for path in UPDATE_PARTS if path != TRUST]
    cut = objects(env, build, [*c_files("host_tools/powercut"), *others])
    return env.Program(f"{build}/powercut-keyed", [*cut, *trust, *libraries])


def declare_host(out, arguments):
    sanitize = arguments.get("SANITIZE", "0") not in ("", "0")
    build = f"{out}/host-sanitize" if sanitize else f"{out}/host"
    env = _host_environment(out, arguments, sanitize)
    version = api_version()

    engine = engine_objects(env, build)
    static = env.StaticLibrary(f"{build}/libcolibri.a", engine)
    shared = env.SharedLibrary(f"{build}/colibri", engine, SHLIBVERSION=version)
    made = [static, shared]

    key = key_of(arguments)
    keyed = build if key is None else f"{build}-{key.label}"
    board = objects(env, build, c_files("host_tools/host_board")) + runtime_objects(env, out, build, keyed, key)
    made += env.Program(
        f"{keyed}/colibri-host",
        [*board, static],
        LINKFLAGS=[*env["LINKFLAGS"], "-pthread"],  # the readers of its block device
    )
    made += _programs(env, out, build, "host_tools/bench", static)
    cut = objects(env, build, [*c_files("host_tools/powercut"), *UPDATE_PARTS])
    cypher = monocypher_source.objects(env, out, build)
    made += env.Program(f"{build}/powercut", [*cut, *cypher, static])
    made += _keyed_powercut(env, build, [*cypher, static])
    Alias("host-tests", _programs(env, out, build, "tests/engine", static))
    Alias("host", made)
    Alias("host-sanitize", made)
    if not sanitize:
        _declare_install(env, arguments, build, static, shared, version)


def _declare_install(env, arguments, build, static, shared, version):
    prefix = arguments.get("PREFIX", "/usr/local")
    destination = arguments.get("DESTDIR", "") + prefix
    package = env.Substfile(
        f"{build}/colibri.pc",
        "#firmware/engine/colibri.pc.in",
        SUBST_DICT={"@PREFIX@": prefix, "@VERSION@": version},
    )
    installed = [
        env.Install(f"{destination}/lib", static),
        env.InstallVersionedLib(f"{destination}/lib", shared, SHLIBVERSION=version),
        env.Install(f"{destination}/include", "#firmware/engine/colibri.h"),
        env.Install(f"{destination}/lib/pkgconfig", package),
    ]
    Alias("install", installed)


def declare_linux(out, name, architecture, arguments):
    """Static Linux programs: the engine's tests and benchmarks, to be run with the toolchain's TEST_RUNNER."""
    build = f"{out}/{name}"
    env = Environment(
        tools=["gcc_cross"],
        toolpath=["#toolchains"],
        TARGET_ARCHITECTURE=architecture,
        FREESTANDING=False,
        CPPPATH=[*INCLUDES, monocypher_source.include(out)],
    )
    shorten_commands(env, arguments)
    static = env.StaticLibrary(f"{build}/libcolibri.a", engine_objects(env, build))
    made = [static]
    made += _programs(env, out, build, "host_tools/bench", static)
    made += _programs(env, out, build, "tests/engine", static)
    Alias(name, made)


def declare_fuzz(out, arguments):
    """libFuzzer targets: the engine and the runtime's portable half under ASan and UBSan, with coverage."""
    compiler = arguments.get("CC") or next(filter(shutil.which, ("clang", "clang-14", "clang-15", "clang-16")), None)
    if compiler is None:
        raise UserError("fuzz targets need clang with libFuzzer; try: apt install clang-14 libclang-rt-14-dev")
    build = f"{out}/fuzz"
    env = _host_environment(out, arguments, sanitize=True, compiler=compiler)
    env.Append(CCFLAGS=["-fsanitize=fuzzer-no-link"])
    library = env.StaticLibrary(f"{build}/libcolibri.a", engine_objects(env, build) + runtime_objects(env, out, build))
    linked = env.Clone()
    linked.Append(LINKFLAGS=["-fsanitize=fuzzer"])
    Alias("fuzz", _programs(linked, out, build, "host_tools/fuzz", library))
