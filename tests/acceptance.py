# SPDX-License-Identifier: Apache-2.0
"""What the acceptance tests share: the boards they run on, and the run whose bits are compared."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

PROMPT = "if the level of tank 2 drops below 20 percent start pump 1"
GENERATED = 32
QUANTS = ["q8", "q4", "f16", "f32"]


@dataclass(frozen=True)
class Place:
    """A board, and the processor it is emulated with where there is a choice."""

    board: str
    cpu: str | None = None

    def __str__(self) -> str:
        return f"{self.board}-{self.cpu}" if self.cpu else self.board

    @property
    def options(self) -> dict[str, Any]:
        return {"cpu": self.cpu} if self.cpu else {}


BOARDS = [Place("host"), Place("rpi3"), Place("virt-aarch64"), Place("virt-riscv64"), Place("hifive-unleashed")]
PLACES = [place for place in BOARDS if place.board != "virt-aarch64"] + [
    Place("virt-aarch64", "cortex-a53"),
    Place("virt-aarch64", "cortex-a76"),
    Place("virt-aarch64", "max"),
]


def each(places: list[Place]) -> pytest.MarkDecorator:
    """Parametrises `place`; what needs QEMU is marked so."""
    return pytest.mark.parametrize(
        "place",
        [
            pytest.param(place, marks=[] if place.board == "host" else [pytest.mark.qemu], id=str(place))
            for place in places
        ],
    )


@dataclass(frozen=True)
class Run:
    """What a run left behind, in the forms that are compared."""

    token_ids: tuple[int, ...]
    logits_sha256: str


@cache
def reference_run(image: Path) -> Run:
    """The run on this machine with the scalar kernels, against which all others are held."""
    return host_run(image, "scalar")


def host_run(image: Path, kernels: str) -> Run:
    from colibri_sdk.engine import Engine, Library

    engine = Engine(Library.load(), image, kernels=kernels)
    result = engine.generate(engine.prompt(PROMPT), max_tokens=GENERATED, ignore_eos=True)
    return Run(result.token_ids, result.logits_sha256)
