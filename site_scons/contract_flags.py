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

# Engine files that run once per image or only on demand: small matters more than fast. All others are for speed.
SMALL_FILES = {
    "image_open.c",
    "image_content.c",
    "image_layers.c",
    "layout.c",
    "selftest.c",
    "session.c",
    "choose.c",
    "status.c",
    "stats.c",
    "template.c",
    "tensor.c",
    "tokenizer.c",
    "generate.c",
    "stream.c",
    "sampler.c",
}
SMALL = ["-Os"]

# Where every processor has a faster kernel set, the scalar one is only what that set is compared with.
SMALL_REFERENCE = ("aarch64",)
