# SPDX-License-Identifier: Apache-2.0
"""SCons tool: GCC or clang for the machine that the build runs on.

The compiler is CC=... on the command line, else the first of gcc, clang, cc on the PATH. TEST_RUNNER is empty: a
program that was built runs as it is.
"""

import platform
import shutil

import contract_flags
from SCons.Errors import UserError

CANDIDATES = ("gcc", "clang", "cc")


def _compiler(env):
    wanted = env.get("HOST_CC")
    found = shutil.which(wanted) if wanted else next(filter(None, map(shutil.which, CANDIDATES)), None)
    if not found:
        raise UserError(f"no host C compiler: {wanted or ', '.join(CANDIDATES)} not found; install gcc or pass CC=...")
    return found


def generate(env):
    compiler = _compiler(env)
    for tool in ("gcc", "gnulink", "ar", "textfile", "install", "compilation_db"):
        env.Tool(tool)
    env.Replace(
        INCPREFIX=contract_flags.INCLUDE,
        CC=compiler,
        AR=shutil.which("ar") or "ar",
        LINK="$CC",
        SHLINK="$CC",
        CCFLAGS=list(contract_flags.EVERYWHERE),
        SHCCFLAGS=["$CCFLAGS", "-fPIC"],
        LINKFLAGS=["-Wl,--gc-sections"] if platform.system() == "Linux" else [],
        # One set of objects serves the static and the shared library: all code is position-independent.
        STATIC_AND_SHARED_OBJECTS_ARE_THE_SAME=True,
        ARCHITECTURE={"AMD64": "x86_64", "arm64": "aarch64"}.get(platform.machine(), platform.machine()),
        TEST_RUNNER=[],
    )
    env.Append(CCFLAGS=["-fPIC"])
    if env.get("SANITIZE"):
        flags = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer"]
        env.Append(CCFLAGS=flags, LINKFLAGS=flags)


def exists(env):
    return any(map(shutil.which, CANDIDATES))
