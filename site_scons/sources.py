# SPDX-License-Identifier: Apache-2.0
"""Finds source files by directory and compiles them into a configuration's directory."""

import sys

import contract_flags
from SCons.Script import Dir, File, Glob

ENGINE_DIRECTORIES = ("firmware/engine", "firmware/engine/kernels")
INCLUDES = ["#firmware/engine", "#firmware/hal", "#firmware/runtime"]


def use_sdk():
    """Makes the SDK's modules importable, which read board files and keys. They need nothing of it but themselves and
    their libraries."""
    sdk = Dir("#python_sdk/src").srcnode().abspath
    if sdk not in sys.path:
        sys.path.insert(0, sdk)


def shorten_commands(env, arguments):
    """One short line per step; VERBOSE=1 shows the commands."""
    if arguments.get("VERBOSE", "0") in ("", "0"):
        env.Replace(
            CCCOMSTR="compile $TARGET",
            SHCCCOMSTR="compile $TARGET",
            ASPPCOMSTR="assemble $TARGET",
            ARCOMSTR="archive $TARGET",
            RANLIBCOMSTR="",
            LINKCOMSTR="link $TARGET",
            SHLINKCOMSTR="link $TARGET",
        )


def c_files(*directories):
    return sorted((str(f) for d in directories for f in Glob(f"#{d}/*.c")), key=str)


def objects(env, build, paths, flags=(), **overrides):
    """One object per source under BUILD/obj/, at the source's own path."""
    made = []
    for path in paths:
        node = File(f"#{path}")
        target = f"{build}/obj/{path.rsplit('.', 1)[0]}.o"
        extra = dict(overrides)
        if flags:
            extra["CCFLAGS"] = env["CCFLAGS"] + list(flags)
        made += env.Object(target, node, **extra)
    return made


def file_flags(path, architecture):
    """Extra flags of an engine source, or None when the target has no such instructions."""
    name = path.rsplit("/", 1)[-1]
    if name not in contract_flags.FAST_FILES:
        return contract_flags.SMALL
    if name == "scalar.c" and architecture in contract_flags.SMALL_REFERENCE:
        return contract_flags.SMALL
    for prefix, (architectures, flags) in contract_flags.KERNEL_FILES.items():
        if name.startswith(prefix):
            return flags if architecture in architectures else None
    return []


def engine_objects(env, build, without=()):
    """The whole engine but for the files named, each kernel file with the flags of its instruction set."""
    everywhere = contract_flags.FREESTANDING + list(env.get("ENGINE_FLAGS", []))
    made = []
    for path in c_files(*ENGINE_DIRECTORIES):
        flags = file_flags(path, env["ARCHITECTURE"])
        if flags is contract_flags.SMALL:
            flags = flags + list(env.get("SMALL_FLAGS", []))
        if flags is not None and path.rsplit("/", 1)[-1] not in without:
            made += objects(env, build, [path], everywhere + flags)
    return made
