# SPDX-License-Identifier: Apache-2.0
"""Memory is what the plan says: on the device to the byte, and not a byte beyond the arena is touched."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from acceptance import BOARDS, PROMPT, Place, each
from colibri_sdk.device import Device
from colibri_sdk.errors import ColibriError

PackModel = Callable[[str], Path]


def check_that_a_full_context_takes_what_was_planned(device: Device, image: Path, prompt: str | list[int]) -> None:
    """A generation that fills the whole context uses every region as far as it is ever used."""
    from colibri_sdk.engine import Library

    plan = Library.load().plan(image)
    generation = device.generate(prompt, ignore_eos=True)
    for _ in generation:
        pass
    assert generation.result.finish_reason == "context"
    assert generation.result.prompt_tokens + generation.result.generated_tokens >= plan.context
    stats = device.stats()
    assert stats.arena_bytes == plan.arena_bytes
    assert stats.arena_peak_bytes == plan.arena_bytes
    assert stats.canary_intact
    assert device.info().arena_bytes == plan.arena_bytes
    assert device.info().image_bytes == image.stat().st_size


@each(BOARDS)
def test_plan_is_the_high_water_mark_and_the_canary_lives(
    hummingbird: PackModel, emulated: Callable[..., Device], place: Place
) -> None:
    image = hummingbird("q8")
    check_that_a_full_context_takes_what_was_planned(emulated(place.board, image), image, PROMPT)


@each(BOARDS)
def test_the_same_with_float_weights(tiny_mixtral: PackModel, emulated: Callable[..., Device], place: Place) -> None:
    """Of a smaller model, because float products take emulated boards long."""
    image = tiny_mixtral("f32")
    check_that_a_full_context_takes_what_was_planned(emulated(place.board, image), image, list(range(21)))


@pytest.mark.parametrize("quant", ["q8", "q4", "f16", "f32"])
def test_nothing_is_written_behind_the_arena(hummingbird: PackModel, quant: str) -> None:
    from colibri_sdk.engine import Engine, Library

    engine = Engine(Library.load(), hummingbird(quant))
    engine.generate(engine.prompt(PROMPT), ignore_eos=True)
    assert engine.position == engine.info.context
    assert engine.arena.guard_intact()
    assert engine.stats().arena_peak_bytes == engine.plan.arena_bytes


@pytest.mark.parametrize(
    ("change", "status"),
    [({"short": 1}, "E_ARENA_SIZE"), ({"offset": 1}, "E_ARENA_ALIGN"), ({"offset": 32}, "E_ARENA_ALIGN")],
)
def test_arena_that_is_short_or_misaligned_is_refused(
    hummingbird: PackModel, change: dict[str, int], status: str
) -> None:
    from colibri_sdk.engine import Engine, Library
    from colibri_sdk.status import Status

    library, image = Library.load(), hummingbird("q8")
    whole = library.plan(image).arena_bytes
    with pytest.raises(ColibriError) as caught:
        Engine(library, image, arena_bytes=whole - change.get("short", 0), arena_offset=change.get("offset", 0))
    assert getattr(caught.value, "status", None) == Status[status]


def test_arena_of_exactly_the_plan_is_enough(hummingbird: PackModel) -> None:
    from colibri_sdk.engine import Engine, Library

    library, image = Library.load(), hummingbird("q8")
    engine = Engine(library, image, arena_bytes=library.plan(image).arena_bytes)
    assert engine.generate(engine.prompt(PROMPT), max_tokens=4).generated_tokens == 4
