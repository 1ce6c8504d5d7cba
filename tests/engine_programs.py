# SPDX-License-Identifier: Apache-2.0
"""Compiles a test program around the whole engine, for this machine and for other architectures."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernel_programs import TOOLCHAINS, kernel_objects
from native import ENGINE

HERE = Path(__file__).resolve().parent / "engine"
PROMPT, ANSWER = 21, 10  # as in engine/program.h


def prompt(vocab: int) -> list[int]:
    """The programs' prompt for a model with that many tokens."""
    return [((i * 2654435761) % 2**32 >> 7) % vocab for i in range(PROMPT)]


def engine_program(target: str, name: str, directory: Path) -> Path:
    """tests/engine/`name`.c, linked with the engine; under sanitizers with fences between all buffers of the arena."""
    toolchain = TOOLCHAINS[target]
    if toolchain.missing:
        pytest.skip(f"{', '.join(toolchain.missing)} not installed")
    objects = kernel_objects(toolchain, directory)
    there = {object_.stem for object_ in objects}
    sources = [HERE / f"{name}.c", *(path for path in sorted(ENGINE.glob("*.c")) if path.stem not in there)]
    fenced = target == "sanitized"
    for path in [*sources, *([HERE / "fenced_arena.c"] if fenced else [])]:
        bare = ["-Dcol_arena_claim=col_arena_claim_bare"] if fenced and path.stem == "arena" else []
        objects.append(toolchain.compile(path, directory / f"{path.stem}.o", "-ffp-contract=off", *bare))
    return toolchain.link_program(objects, directory / name)
