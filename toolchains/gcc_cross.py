# SPDX-License-Identifier: Apache-2.0
"""SCons tool: GCC cross compilers of the distribution, for boards (freestanding) and for Linux programs of another
architecture (tests and benchmarks of the engine, which run under QEMU's user mode).

Construction variables taken: TARGET_ARCHITECTURE, FREESTANDING (bool), CPU_FLAGS (from the board's TOML file).
TEST_RUNNER is the user-mode emulator that runs a Linux program of that architecture.
"""

import shutil

import contract_flags
from SCons.Errors import UserError

# Compiler prefixes in order of preference: (for boards, for Linux programs).
PREFIXES = {
    "aarch64": (("aarch64-linux-gnu-", "aarch64-none-elf-"), ("aarch64-linux-gnu-",)),
    "riscv64": (("riscv64-unknown-elf-", "riscv64-linux-gnu-"), ("riscv64-linux-gnu-",)),
}

PACKAGES = {"aarch64": "gcc-aarch64-linux-gnu", "riscv64": "gcc-riscv64-unknown-elf"}

# -mno-outline-atomics: the helper functions live in libgcc, which firmware does not link.
# -mcmodel=medany: boards are linked at 2 GB and above, out of reach of RISC-V's absolute addressing.
ARCHITECTURE_FLAGS = {
    "aarch64": ["-mno-outline-atomics"],
    "riscv64": ["-march=rv64gc", "-mabi=lp64d", "-mcmodel=medany"],
}

# The engine of a board names nothing but itself and lies within a megabyte of it: one instruction reaches each address
# where two were needed. (The linker refuses what is too far.) Drivers name the board's memory, which may lie anywhere.
# Nobody walks up frame pointers either, which GCC keeps here unless told not to.
ENGINE_FLAGS = {"aarch64": ["-mcmodel=tiny", "-fomit-frame-pointer"]}

# Optimisations that -Os leaves on although they made the engine's steering code larger: 1 KB in all, by trial.
SMALL_FLAGS = {
    "aarch64": ["-fno-tree-sra", "-fno-thread-jumps", "-fno-move-loop-invariants", "--param=uninlined-function-insns=0"]
}

TEST_RUNNERS = {"aarch64": "qemu-aarch64", "riscv64": "qemu-riscv64"}

# Firmware: no C library, no start files, no position independence; stack usage and call graph for the report.
FIRMWARE_FLAGS = [
    *contract_flags.FREESTANDING,
    "-fno-pic",
    "-fno-stack-protector",
    "-fno-asynchronous-unwind-tables",
    "-fno-common",
    "-fstack-usage",
    "-fcallgraph-info=su",
]
FIRMWARE_LINK_FLAGS = [
    "-nostdlib",
    "-static",
    "-no-pie",
    "-Wl,--gc-sections",
    "-Wl,--build-id=none",
    "-Wl,--fatal-warnings",
]


def find_prefix(architecture, freestanding):
    """The first compiler prefix that is installed, or None."""
    boards, linux = PREFIXES[architecture]
    return next((p for p in (boards if freestanding else linux) if shutil.which(p + "gcc")), None)


def generate(env):
    architecture = env["TARGET_ARCHITECTURE"]
    freestanding = bool(env.get("FREESTANDING"))
    prefix = find_prefix(architecture, freestanding)
    if prefix is None:
        wanted = ", ".join(p + "gcc" for p in PREFIXES[architecture][0 if freestanding else 1])
        raise UserError(
            f"no C compiler for {architecture}: {wanted} not found; try: apt install {PACKAGES[architecture]}"
        )
    for tool in ("gcc", "gnulink", "ar", "as", "textfile", "compilation_db"):
        env.Tool(tool)
    runner = shutil.which(TEST_RUNNERS[architecture])
    env.Replace(
        INCPREFIX=contract_flags.INCLUDE,
        CC=shutil.which(prefix + "gcc"),
        AS=shutil.which(prefix + "gcc"),
        AR=shutil.which(prefix + "ar"),
        RANLIB=shutil.which(prefix + "ranlib"),
        OBJCOPY=shutil.which(prefix + "objcopy"),
        LINK="$CC",
        CCFLAGS=contract_flags.EVERYWHERE + ARCHITECTURE_FLAGS[architecture] + list(env.get("CPU_FLAGS", [])),
        ASPPFLAGS=["-g"] + ARCHITECTURE_FLAGS[architecture] + list(env.get("CPU_FLAGS", [])),
        ASPPCOM="$CC $ASPPFLAGS $_CPPINCFLAGS $_CPPDEFFLAGS -c -o $TARGET $SOURCES",
        LINKFLAGS=FIRMWARE_LINK_FLAGS + ARCHITECTURE_FLAGS[architecture]
        if freestanding
        else ["-static", "-Wl,--gc-sections"],
        PROGSUFFIX="",
        ARCHITECTURE=architecture,
        TEST_RUNNER=[runner] if runner else [],
    )
    if freestanding:
        env.Append(CCFLAGS=FIRMWARE_FLAGS)
        env.Replace(ENGINE_FLAGS=ENGINE_FLAGS.get(architecture, []), SMALL_FLAGS=SMALL_FLAGS.get(architecture, []))


def exists(env):
    return any(find_prefix(a, f) for a in PREFIXES for f in (True, False))
