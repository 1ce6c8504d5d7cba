# SPDX-License-Identifier: Apache-2.0
"""What each size of the expert cache would read, for a recorded trace: before anyone buys a board."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from colibri_sdk.engine import Library
from colibri_sdk.image.reader import ImageFile
from colibri_sdk.profiling.replay import expert_bytes, replay
from colibri_sdk.profiling.trace import RoutingTrace


@dataclass(frozen=True)
class LayerReads:
    """One layer's counters after the whole trace, as the device's statistics name them."""

    hits: int
    misses: int
    read_bytes: int


@dataclass(frozen=True)
class Point:
    """One size of the cache: `slots` experts in each layer that has so many.

    `bytes_per_token` is of all tokens, those of prompts included, which are computed in batches and share reads;
    `bytes_per_answer_token` of those that were computed one by one, 0 where there were none. `seconds_per_answer_token`
    is what reading them takes at the rate that was given: a lower bound of a token's time.
    """

    slots: int
    hits: int
    misses: int
    read_bytes: int
    bytes_per_token: float
    bytes_per_answer_token: float
    seconds_per_answer_token: float | None
    slot_bytes: int
    arena_bytes: int
    layers: tuple[LayerReads, ...]

    @property
    def hit_rate(self) -> float:
        """0 to 1."""
        return self.hits / (self.hits + self.misses)

    def as_json(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "hit_rate": self.hit_rate}


def curve(
    library: Library,
    image: Path,
    trace: RoutingTrace,
    *,
    sizes: Sequence[int] = (),
    bytes_per_second: float | None = None,
    context: int = 0,
    kv: str = "image",
    progress: Callable[[int, int, str], None] | None = None,
) -> Iterator[Point]:
    """A point for each of `sizes`, by default for 1 up to all experts of the largest layer; the image's own pins count.

    Raises UsageError when the trace is of another image.
    """
    with ImageFile(image) as file:
        trace.require_image(file.image_id, file.experts_of_layers, image.name)
        pins = file.pins
    blob = np.asarray(expert_bytes(image), np.uint64)
    uses = _by_layer(trace, np.diff(trace.step_first))
    single = trace.step_tokens == 1
    answered = _computed_alone(trace, single)
    wanted = sizes or range(1, max(trace.experts) + 1)
    for number, slots in enumerate(wanted, 1):
        misses = replay(library, trace, slots, pins)
        missed = _by_layer(trace, misses)
        read = missed.astype(np.uint64) * blob
        alone = int((_by_layer(trace, np.where(single, misses, 0)).astype(np.uint64) * blob).sum())
        plan = library.plan(image, context=context, kv=kv, cache_slots=slots)
        per_answer = alone / answered if answered else 0.0
        if progress is not None:
            progress(number, len(wanted), "")
        yield Point(
            slots=slots,
            hits=int((uses - missed).sum()),
            misses=int(missed.sum()),
            read_bytes=int(read.sum()),
            bytes_per_token=int(read.sum()) / trace.positions,
            bytes_per_answer_token=per_answer,
            seconds_per_answer_token=per_answer / bytes_per_second if bytes_per_second else None,
            slot_bytes=plan.slot_bytes,
            arena_bytes=plan.arena_bytes,
            layers=tuple(
                LayerReads(int(used - lost), int(lost), int(size))
                for used, lost, size in zip(uses, missed, read, strict=True)
            ),
        )


def _by_layer(trace: RoutingTrace, counts: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Sums of what is counted for each step: [layers]."""
    sums = np.zeros(len(trace.experts), np.int64)
    np.add.at(sums, trace.step_layer, counts.astype(np.int64))
    return sums


def _computed_alone(trace: RoutingTrace, single: npt.NDArray[np.bool_]) -> int:
    """Tokens that were a batch by themselves; each passes every layer with a router once."""
    routed = next(layer for layer, experts in enumerate(trace.experts) if experts)
    return int(np.count_nonzero(single & (trace.step_layer == routed)))


def thinned(points: Sequence[Point], rows: int) -> list[Point]:
    """At most `rows` of the points, the ends among them, closer where slots are few."""
    if len(points) <= rows:
        return list(points)
    last = len(points) - 1
    kept = sorted({round(last ** (index / (rows - 1))) for index in range(rows)} | {0, last})
    return [points[index] for index in kept]
