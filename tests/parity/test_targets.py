# SPDX-License-Identifier: Apache-2.0
"""The same bits for every architecture on the boards' processors, under QEMU's user mode, and no step aside in memory:
the whole engine also runs under the sanitizers, over every variant."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from colibri_sdk.convert import pack
from colibri_sdk.engine import Engine, Library
from colibri_sdk.image.layout import KvFormat
from engine_programs import ANSWER, PROMPT, engine_program, prompt
from kernel_programs import TOOLCHAINS
from made_once import MadeOnce

HERE = Path(__file__).resolve().parent
TINY = sorted(path.parent.name for path in HERE.glob("*/reference.json"))
VARIANTS = sorted(path.parent for path in HERE.glob("variants/*/reference.json"))

Tiny = Callable[[str, str], Path]


@pytest.fixture(scope="module")
def library(host_library: Path) -> Library:
    return Library.load(host_library)


@pytest.fixture(scope="module")
def built(once: MadeOnce) -> Callable[[str], Path]:
    return lambda target: engine_program(target, "model_hashes", once)


def wanted(library: Library, image: Path, kv: str) -> str:
    """The line that the program must print, from this machine's library with the scalar kernels."""
    engine = Engine(library, image, kernels="scalar", kv=kv, context=PROMPT + ANSWER)
    result = engine.generate(prompt(engine.info.vocab), max_tokens=ANSWER, ignore_eos=True)
    return " ".join(["", *map(str, result.token_ids), result.logits_sha256])


@pytest.mark.parametrize(("quant", "kv"), [("q8", "f16"), ("q4", "q8"), ("f32", "f32")])
@pytest.mark.parametrize("target", ["aarch64", "riscv64"])
def test_bits(library: Library, built: Callable[[str], Path], tiny: Tiny, target: str, quant: str, kv: str) -> None:
    images = [tiny(name, quant) for name in TINY]
    out = TOOLCHAINS[target].run(built(target), str(int(KvFormat[kv.upper()])), "best", *images)
    assert out.splitlines() == [wanted(library, image, kv) for image in images]


@pytest.mark.parametrize(("quant", "kv", "kernels"), [("f32", "q8", "scalar"), ("q4", "f16", "best")])
def test_memory(
    library: Library, built: Callable[[str], Path], tmp_path: Path, quant: str, kv: str, kernels: str
) -> None:
    """Odd dimensions, one expert, all experts, windows: with sanitizers and fences between all buffers of the arena."""
    images = []
    for source in VARIANTS:
        if kernels == "scalar" or "odd" in source.name:
            images.append(tmp_path / f"{source.name}.colibri")
            pack(source, images[-1], quant=quant)
    assert len(images) >= 12
    out = TOOLCHAINS["sanitized"].run(built("sanitized"), str(int(KvFormat[kv.upper()])), kernels, *images)
    assert out.splitlines() == [wanted(library, image, kv) for image in images]
