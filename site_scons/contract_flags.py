# SPDX-License-Identifier: Apache-2.0
"""Compiler flags that hold for every toolchain, and the reason for each.

The toolchain modules (toolchains/) add what is particular to a compiler family or a processor; nothing there may
contradict these.
"""

LANGUAGE = ["-std=c11"]

WARNINGS = ["-Wall", "-Wextra", "-Wconversion", "-Werror"]

# The numeric contract (docs/numeric-contract.md): products and sums are rounded separately on every target.
# -fno-math-errno lets the compiler use the processor's square root instead of calling a libm that is not there.
NUMERIC = ["-ffp-contract=off", "-fno-math-errno"]

# The engine includes nothing of a C library, on the host too, so that what is tested there is what boards run.
FREESTANDING = ["-ffreestanding"]

# One section per function and object: the linker drops what a program does not use.
SECTIONS = ["-ffunction-sections", "-fdata-sections"]

# Our directories serve #include "..." only: <link.h> is the system's, whatever our files are called.
INCLUDE = "-iquote"

OPTIMISE = ["-O2", "-g"]

EVERYWHERE = LANGUAGE + WARNINGS + NUMERIC + SECTIONS + OPTIMISE

# Kernel files by the instruction set they are written for: file name prefix -> (architectures, extra flags).
# A file whose prefix is not listed is portable C and is compiled for every target. FMA is never among the flags.
KERNEL_FILES = {
    "avx2": (("x86_64",), ["-mavx2", "-mf16c"]),
    "neon": (("aarch64",), []),
}

# Engine files whose loops run over every number: fast matters more than small. All others steer, or run once per image
# or per token; they share 64 KB of text with these on a board.
FAST_FILES = {
    "avx2.c",
    "neon.c",
    "scalar.c",
    "crc32.c",
    "kv.c",
    "norm.c",
    "numeric.c",
    "sha256.c",
}
SMALL = ["-Os"]

# Engine files that only workstations call. Boards do without them, to keep their text small.
HOSTED_FILES = {"replay.c"}

# Where every processor has a faster kernel set, the scalar one is only what that set is compared with.
SMALL_REFERENCE = ("aarch64",)
