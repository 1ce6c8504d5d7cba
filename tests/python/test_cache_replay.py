# SPDX-License-Identifier: Apache-2.0
"""Replayed traces: what follows from the cache's rule without knowing its code, and what pins do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from colibri_sdk.engine import Library
from colibri_sdk.errors import UsageError
from colibri_sdk.profiling.replay import pin_numbers, replay
from colibri_sdk.profiling.trace import RoutingTrace
from routing import make_trace, traces


@pytest.fixture(scope="module")
def library(host_library: Path) -> Library:
    return Library.load(host_library)


def per_layer(trace: RoutingTrace) -> list[list[list[int]]]:
    """The steps of each layer."""
    layers: list[list[list[int]]] = [[] for _ in trace.experts]
    for index, layer in enumerate(trace.step_layer):
        layers[layer].append(trace.expert[int(trace.step_first[index]) : int(trace.step_first[index + 1])].tolist())
    return layers


def fewest_misses(steps: list[list[int]], slots: int) -> int:
    """Belady's bound: with the future known, the expert that is needed last gives way."""
    order = [expert for step in steps for expert in step]
    kept: set[int] = set()
    misses = 0
    for at, expert in enumerate(order):
        if expert in kept:
            continue
        misses += 1
        if len(kept) == slots:
            later = order[at + 1 :]
            kept.remove(max(kept, key=lambda one: later.index(one) if one in later else len(order)))
        kept.add(expert)
    return misses


@settings(max_examples=60, deadline=None)
@given(trace=traces(longest=12), slots=st.integers(1, 9))
def test_misses_lie_between_what_must_be_and_what_can_be(library: Library, trace: RoutingTrace, slots: int) -> None:
    missed = replay(library, trace, slots)
    assert missed.shape == (trace.steps,)
    assert (missed <= np.diff(trace.step_first)).all()
    for layer, steps in enumerate(per_layer(trace)):
        misses = int(missed[trace.step_layer == layer].sum())
        assert misses >= fewest_misses(steps, slots)


@settings(max_examples=30, deadline=None)
@given(trace=traces(longest=12))
def test_with_all_slots_each_expert_is_read_once(library: Library, trace: RoutingTrace) -> None:
    missed = replay(library, trace, 9)
    for layer, steps in enumerate(per_layer(trace)):
        assert int(missed[trace.step_layer == layer].sum()) == len({expert for step in steps for expert in step})


@settings(max_examples=30, deadline=None)
@given(trace=traces(longest=12))
def test_one_slot_holds_the_last_expert_that_was_computed(library: Library, trace: RoutingTrace) -> None:
    missed = replay(library, trace, 1)
    for layer, steps in enumerate(per_layer(trace)):
        held, expected = -1, []
        for step in steps:
            expected.append(len(step) - (step[0] == held))
            held = step[-1]
        assert missed[trace.step_layer == layer].tolist() == expected


def test_layers_do_not_disturb_each_other(library: Library) -> None:
    one = [(0, 1, [(0, 1)]), (0, 1, [(1, 1)])] * 4
    both = [step for pair in zip(one, [(1, 1, [(number % 8, 1)]) for number in range(8)], strict=True) for step in pair]
    alone = replay(library, make_trace([8, 8], [list(one)]), 2)
    together = make_trace([8, 8], [both])
    assert replay(library, together, 2)[together.step_layer == 0].tolist() == alone.tolist()


def test_pinned_expert_stays(library: Library) -> None:
    """Expert 0 is needed at the beginning and at the end; between, others are needed more often."""
    steps = [(0, 1, [(0, 1)]), *[(0, 1, [(1 + number % 3, 1)]) for number in range(30)], (0, 1, [(0, 1)])]
    trace = make_trace([4], [steps])
    assert replay(library, trace, 2)[-1] == 1
    assert replay(library, trace, 2, {0: [0]})[-1] == 0
    assert replay(library, trace, 1, {0: [0]})[-1] == 1  # one slot always remains for the others


def test_pins_are_numbered_per_layer_in_their_order() -> None:
    assert pin_numbers([3, 0, 2], {0: [2, 0], 2: [1]}) == [2, 0, 1, 0, 1]


@pytest.mark.parametrize("slots", [0, -1, 2**32])
def test_impossible_sizes_are_refused(library: Library, slots: int) -> None:
    with pytest.raises(UsageError, match="cache slots are impossible"):
        replay(library, make_trace([2], [[(0, 1, [(0, 1)])]]), slots)
