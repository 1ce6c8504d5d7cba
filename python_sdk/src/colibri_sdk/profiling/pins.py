# SPDX-License-Identifier: Apache-2.0
"""Experts that stay in the cache, chosen from a trace, and written into an image.

The most used experts of a layer come first. How many are worth it depends on how steady the routing is: a pinned expert
takes its slot from those that the running text needs. So the number is chosen on prompts that the order was not made
from.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from colibri_sdk.engine import Library
from colibri_sdk.errors import ImageError, UsageError
from colibri_sdk.image.layout import SectionKind
from colibri_sdk.image.reader import ImageFile
from colibri_sdk.image.recard import replace_sections
from colibri_sdk.profiling.replay import Pins, pin_numbers, replay
from colibri_sdk.profiling.trace import RoutingTrace


@dataclass(frozen=True)
class PinChoice:
    """`count` experts of each layer (fewer where it has fewer), in `pins`. The hit rates, 0 to 1, are those of held-out
    prompts with `slots` slots, without and with as many pins; None where nothing was held out."""

    slots: int
    count: int
    pins: Pins
    rate_without: float | None
    rate_with: float | None


def most_used(trace: RoutingTrace, count: int) -> Pins:
    """The `count` experts of each layer that most steps needed, the most used first, ties by the lower index."""
    uses = trace.uses()
    return {
        layer: np.argsort(-uses[layer, :experts], kind="stable")[:count].tolist()
        for layer, experts in enumerate(trace.experts)
        if experts and count
    }


def choose(library: Library, trace: RoutingTrace, slots: int, count: int | None = None) -> PinChoice:
    """Pins for a cache of `slots` experts per layer: `count` of them, or by default as many as read least.

    The default is tried with the order of the first half of the prompts on the second half, for 0, 1, 2, 4 … slots - 1
    pins; fewer win a tie. The pins themselves are then chosen from all prompts.
    """
    if count is not None:
        return PinChoice(slots, count, most_used(trace, count), None, None)
    if trace.prompts < 2:
        raise UsageError(
            "one prompt does not tell how many pins are worth it", "Give more prompts, or their number with --pins."
        )
    half = trace.prompts // 2
    seen, held_out = trace.part(0, half), trace.part(half, trace.prompts)
    tried = sorted({0, slots - 1, *(1 << power for power in range(slots.bit_length()) if 1 << power < slots)})
    rates = {
        number: 1 - float(replay(library, held_out, slots, most_used(seen, number)).sum()) / len(held_out.expert)
        for number in tried
    }
    best = max(tried, key=lambda number: (rates[number], -number))
    return PinChoice(slots, best, most_used(trace, best), rates[0], rates[best])


def write(image: Path, pins: Pins) -> str:
    """Writes the pins into the image's expert directory, in place of those it had; returns the image's identity then.

    The image becomes unsigned, and is replaced at once or not at all (recard.replace_sections). Where it has these very
    pins, nothing is written and its identity and signature stay.
    """
    with ImageFile(image) as file:
        experts = list(file.experts_of_layers)
        directory, old_id = file.experts.copy(), file.image_id
    wrong = next((layer for layer, order in pins.items() if not _possible(order, experts, layer)), None)
    if wrong is not None:
        raise UsageError(
            f"layer {wrong} of {image.name} cannot pin {list(pins[wrong])}", "Each expert once, and only those it has."
        )
    numbers = pin_numbers(experts, pins)
    if len(numbers) != len(directory):
        raise ImageError(
            f"{image.name} has {len(directory)} experts, and its layers are to have {len(numbers)}",
            "Pack the model again.",
        )
    if directory["pin"].tolist() == numbers:
        return old_id
    directory["pin"] = numbers
    _, image_id = replace_sections(image, {SectionKind.EXPERT_DIR: directory.tobytes()})
    return image_id


def _possible(order: object, experts: list[int], layer: int) -> bool:
    row = list(order) if isinstance(order, list | tuple) else []
    return layer < len(experts) and len(set(row)) == len(row) and all(0 <= one < experts[layer] for one in row)
