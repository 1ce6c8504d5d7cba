# SPDX-License-Identifier: Apache-2.0
"""Compiles a test program around the whole engine, for this machine and for other architectures."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernel_programs import SEPARATE, TOOLCHAINS, kernel_objects
from made_once import MadeOnce
from native import ENGINE

HERE = Path(__file__).resolve().parent / "engine"
PROMPT, ANSWER = 21, 10  # as in engine/program.h


def prompt(vocab: int) -> list[int]:
    """The programs' prompt for a model with that many tokens."""
    return [((i * 2654435761) % 2**32 >> 7) % vocab for i in range(PROMPT)]


def engine_program(target: str, name: str, once: MadeOnce) -> Path:
    """tests/engine/`name`.c, linked with the engine; under sanitizers with fences between all buffers of the arena. The
    engine is compiled once for all programs."""
    toolchain = TOOLCHAINS[target]
    if toolchain.missing:
        pytest.skip(f"{', '.join(toolchain.missing)} not installed")
    engine = once(f"engine-{target}", lambda directory: _compile_engine(target, directory))

    def make(directory: Path) -> None:
        program = toolchain.compile(HERE / f"{name}.c", directory / f"{name}.o", SEPARATE)
        toolchain.link_program([*sorted(engine.glob("*.o")), program], directory / name)

    return once(f"{name}-{target}", make) / name


def _compile_engine(target: str, directory: Path) -> None:
    toolchain = TOOLCHAINS[target]
    there = {object_.stem for object_ in kernel_objects(toolchain, directory)}
    fences = [HERE / "fenced_arena.c"] if target == "sanitized" else []
    for path in [*sorted(ENGINE.glob("*.c")), *fences]:
        bare = ["-Dcol_arena_claim=col_arena_claim_bare"] if fences and path.stem == "arena" else []
        if path.stem not in there:
            toolchain.compile(path, directory / f"{path.stem}.o", SEPARATE, *bare)
