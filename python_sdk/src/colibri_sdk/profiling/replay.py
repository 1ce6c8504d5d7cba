# SPDX-License-Identifier: Apache-2.0
"""Recorded routing through the rule by which devices keep experts: the engine's own code, without a device."""

from __future__ import annotations

import mmap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from colibri_sdk.engine import Library
from colibri_sdk.errors import UsageError
from colibri_sdk.profiling.trace import U32, RoutingTrace

# Of each layer that has some, the pinned experts in the order of their priority.
Pins = Mapping[int, Sequence[int]]


def replay(library: Library, trace: RoutingTrace, slots: int, pins: Pins | None = None) -> U32:
    """Misses of each step, [steps], of a device that starts with an empty cache of `slots` experts per layer.

    They are what the device counts for the same prompts in the same order, without prefetch. Raises UsageError for a
    number of slots below 1.
    """
    if not 1 <= slots < 2**32:
        raise UsageError(f"{slots} cache slots are impossible", "Each layer keeps at least one expert.")
    ffi, lib = library.ffi, library.lib
    layers = len(trace.experts)
    experts = ffi.new("uint32_t[]", list(trace.experts))
    size = int(lib.colibri_replay_bytes(layers, experts, slots))
    memory = mmap.mmap(-1, max(size, 1))  # page-aligned
    handle = ffi.new("struct colibri_replay **")
    order = ffi.new("uint32_t[]", pin_numbers(trace.experts, pins or {}))
    status = lib.colibri_replay_begin(handle, ffi.from_buffer(memory), size, layers, experts, slots, order)
    library.check(status, None, subject="the replay of a trace")
    return _steps(library, trace, handle[0])


def _steps(library: Library, trace: RoutingTrace, handle: Any) -> U32:
    ffi, step = library.ffi, library.lib.colibri_replay_step
    expert = np.ascontiguousarray(trace.expert, np.uint32)
    first = trace.step_first.astype(np.int64).tolist()
    missed = np.zeros(trace.steps, np.uint32)
    uses, misses = ffi.from_buffer("uint32_t[]", expert), ffi.from_buffer("uint32_t[]", missed, require_writable=True)
    for index, layer in enumerate(trace.step_layer.tolist()):
        at = first[index]
        status = step(handle, layer, uses + at, first[index + 1] - at, misses + index)
        if status:
            library.check(status, None, subject=f"step {index} of the trace")
    return missed


def pin_numbers(experts: Sequence[int], pins: Pins) -> list[int]:
    """For each expert, layer after layer, its place in the layer's order from 1 on, or 0: as images state it."""
    numbers: list[int] = []
    for layer, count in enumerate(experts):
        row = [0] * count
        for place, expert in enumerate(pins.get(layer, ()), 1):
            row[expert] = place
        numbers += row
    return numbers


def expert_bytes(image: Path) -> tuple[int, ...]:
    """Bytes of an expert of each layer, 0 where it has none: what a miss reads."""
    from colibri_sdk.image.reader import ImageFile

    with ImageFile(image) as file:
        return tuple(
            file.place(int(layer["first_expert"])).size if int(layer["router"]["experts"]) else 0
            for layer in file.layers
        )
