# SPDX-License-Identifier: Apache-2.0
"""Compiles the C side of the tests: with the sanitizers, warnings as errors, once per session."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import fuzzing
from colibri_sdk.build import build_monocypher

ROOT = Path(__file__).resolve().parents[2]
HERE = ROOT / "tests" / "link"
RUNTIME = ROOT / "firmware" / "runtime"
ENGINE = ROOT / "firmware" / "engine"

WARNINGS = ["-std=c11", "-Wall", "-Wextra", "-Wconversion", "-Werror"]
SANITIZE = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer"]
# In a library that Python loads, AddressSanitizer would have to be loaded before Python itself.
UNDEFINED = ["-fsanitize=undefined", "-fno-sanitize-recover=all", "-fPIC", "-shared"]
# What the runtime needs of the engine beside the engine itself.
ENGINE_PARTS = [
    ENGINE / name for name in ("compare.c", "crc32.c", "detail.c", "image_checks.c", "sha256.c", "status.c")
]
FAKE_ENGINE = [HERE / "fake_engine.c", *ENGINE_PARTS]


def runtime_sources() -> list[Path]:
    return sorted(RUNTIME.glob("*.c"))


def host_board_sources() -> list[Path]:
    return sorted((ROOT / "host_tools" / "host_board").glob("*.c"))


def with_monocypher(out: Path, sources: Sequence[Path], compiler: str, flags: Sequence[str]) -> list[str]:
    """`sources` for a compiler's command line and, if one of them needs it, Monocypher compiled with `flags`: without
    our warnings, which its authors do not build with, and without optimisation, with which UBSan takes GCC ten times as
    long. `out` is what is being made."""
    parts = [str(path) for path in sources]
    if str(RUNTIME / "trust.c") not in parts:
        return parts
    library, made = build_monocypher(), f"{out}.monocypher.o"
    plain = [flag for flag in flags if flag != "-shared" and not flag.startswith("-W")]
    command = [compiler, "-std=c11", "-O0", "-g", *plain, "-c", str(library / "monocypher.c"), "-o", made]
    subprocess.run(command, check=True, timeout=600)
    return ["-iquote", str(library), *parts, made]


def compile_c(out: Path, sources: Sequence[Path], flags: Sequence[str]) -> Path:
    """Compiles and links `sources` to `out`; a failure shows the compiler's own words."""
    compiler = os.environ.get("CC", "gcc")
    parts = with_monocypher(out, sources, compiler, flags)
    command = [compiler, *WARNINGS, "-O1", "-g", "-ffp-contract=off", *flags, *parts, "-o", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stderr}"
    return out


def compile_fuzz_target(out: Path, sources: Sequence[Path], *libraries: Path) -> None:
    """For libFuzzer, under ASan and UBSan."""
    flags = ["-std=c11", "-O1", "-g", "-fsanitize=fuzzer,address,undefined", "-fno-sanitize-recover=all"]
    parts = with_monocypher(out, sources, fuzzing.compiler(), flags)
    command = [fuzzing.compiler(), *flags, *parts, *map(str, libraries), "-o", str(out)]
    subprocess.run(command, check=True, timeout=600)
