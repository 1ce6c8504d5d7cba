# SPDX-License-Identifier: Apache-2.0
"""Compiles a test program around the whole engine, for this machine and for other architectures."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from kernel_programs import SEPARATE, TOOLCHAINS, kernel_objects
from native import ENGINE

HERE = Path(__file__).resolve().parent / "engine"
PROMPT, ANSWER = 21, 10  # as in engine/program.h


def prompt(vocab: int) -> list[int]:
    """The programs' prompt for a model with that many tokens."""
    return [((i * 2654435761) % 2**32 >> 7) % vocab for i in range(PROMPT)]


def engine_program(target: str, name: str, root: Path) -> Path:
    """tests/engine/`name`.c, linked with the engine, in a directory of `root`; under sanitizers with fences between all
    buffers of the arena. The engine is compiled once for all programs."""
    toolchain = TOOLCHAINS[target]
    if toolchain.missing:
        pytest.skip(f"{', '.join(toolchain.missing)} not installed")
    directory = root / f"engine-{target}"
    objects = _engine(target, directory)
    program = toolchain.compile(HERE / f"{name}.c", directory / f"{name}.o", SEPARATE)
    return toolchain.link_program([*objects, program], directory / name)


@cache
def _engine(target: str, directory: Path) -> list[Path]:
    directory.mkdir()
    toolchain = TOOLCHAINS[target]
    objects = kernel_objects(toolchain, directory)
    there = {object_.stem for object_ in objects}
    fences = [HERE / "fenced_arena.c"] if target == "sanitized" else []
    for path in [*sorted(ENGINE.glob("*.c")), *fences]:
        bare = ["-Dcol_arena_claim=col_arena_claim_bare"] if fences and path.stem == "arena" else []
        if path.stem not in there:
            objects.append(toolchain.compile(path, directory / f"{path.stem}.o", SEPARATE, *bare))
    return objects
