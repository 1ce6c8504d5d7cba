# SPDX-License-Identifier: Apache-2.0
"""Which experts stay in memory: the engine's rule against a second model of it, decision by decision."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from colibri_sdk.engine import Library
from native import Native, shared_object
from store_rule import Rule

NONE = 2**32 - 1

# One cache in memory that the caller gives, and its rule as functions of plain numbers.
SHIM = """
#include "cache.h"
struct col_cache *make(void *memory, uint32_t experts, uint32_t slots, const uint32_t *pin)
{
    struct col_arena arena = {.base = memory};
    struct col_cache *cache = col_arena_claim(&arena, 1, sizeof *cache);
    col_cache_layout(cache, &arena, experts, slots);
    col_cache_clear(cache);
    for (uint32_t e = 0; e < experts; e++) {
        col_cache_pin(cache, e, pin[e]);
    }
    return cache;
}
uint32_t held(const struct col_cache *cache, uint32_t slot) { return cache->held[slot]; }
bool guessed(const struct col_cache *cache, uint32_t expert) { return cache->expert[expert].guessed; }
"""
DECLARATIONS = """
struct col_cache;
struct col_cache *make(void *memory, uint32_t experts, uint32_t slots, const uint32_t *pin);
uint32_t held(const struct col_cache *cache, uint32_t slot);
bool guessed(const struct col_cache *cache, uint32_t expert);
void col_cache_begin(struct col_cache *cache);
void col_cache_want(struct col_cache *cache, uint32_t expert);
bool col_cache_assign(struct col_cache *cache, uint32_t expert, bool alone, uint32_t *slot, bool *hit);
void col_cache_done(struct col_cache *cache, uint32_t expert);
void col_cache_expect(struct col_cache *cache, uint32_t expert);
bool col_cache_guess(struct col_cache *cache, uint32_t expert, uint32_t *slot);
void col_cache_forget(struct col_cache *cache, uint32_t expert);
"""


@dataclass(frozen=True)
class Trace:
    """Routing of one layer: its size, its pins, and the experts of each step."""

    experts: int
    slots: int
    pins: tuple[int, ...]
    steps: tuple[tuple[int, ...], ...]


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    experts = draw(st.integers(1, 12))
    slots = draw(st.integers(1, experts + 2))
    order = draw(st.permutations(range(1, experts + 1)))
    count = draw(st.integers(0, experts))
    doubled = draw(st.booleans())  # as in an image that somebody has made by hand
    pins = tuple(max(1, pin // 2) if doubled else pin if pin <= count else 0 for pin in order)
    one = st.frozensets(st.integers(0, experts - 1), min_size=1, max_size=min(experts, 6)).map(sorted).map(tuple)
    steps = draw(st.lists(one, max_size=40))
    # A habit of few experts and time to forget it: ageing shows only over many steps.
    habit = draw(one)
    repeat = draw(st.integers(0, 90))
    return Trace(experts, slots, pins, (*steps, *[habit] * repeat, *draw(st.lists(one, max_size=25))))


class Cache:
    """The C rule of one layer, driven as store.c and replay.c drive it."""

    def __init__(self, native: Native, experts: int, slots: int, pins: Sequence[int]) -> None:
        self.native, self.lib = native, native.lib
        block = native.ffi.new("char[]", 4096 + 64)
        start = int(native.ffi.cast("uintptr_t", block))
        self._keep = block
        self.cache = self.lib.make(block + -start % 64, experts, slots, native.ffi.new("uint32_t[]", list(pins)))
        self._slot, self._hit = native.ffi.new("uint32_t *"), native.ffi.new("bool *")

    def begin(self, needed: Sequence[int]) -> None:
        self.lib.col_cache_begin(self.cache)
        for expert in needed:
            self.lib.col_cache_want(self.cache, expert)

    def assign(self, expert: int, alone: bool) -> tuple[int, bool] | None:
        good = self.lib.col_cache_assign(self.cache, expert, alone, self._slot, self._hit)
        return (self._slot[0], self._hit[0]) if good else None

    def step(self, needed: Sequence[int]) -> list[tuple[int, int, bool]]:
        self.begin(needed)
        assigned: list[tuple[int, int, bool]] = []
        for done, expert in enumerate(needed):
            while len(assigned) < len(needed):
                found = self.assign(needed[len(assigned)], len(assigned) == done)
                if found is None:
                    break
                assigned.append((needed[len(assigned)], *found))
            assert len(assigned) > done
            self.lib.col_cache_done(self.cache, expert)
        return assigned

    def guess(self, experts: Sequence[int]) -> list[int | None]:
        """The slot that each takes, if it takes one."""
        for expert in experts:
            self.lib.col_cache_expect(self.cache, expert)
        return [self._slot[0] if self.lib.col_cache_guess(self.cache, one, self._slot) else None for one in experts]

    def held(self, slots: int) -> dict[int, int]:
        found = {slot: self.lib.held(self.cache, slot) for slot in range(slots)}
        return {slot: expert for slot, expert in found.items() if expert != NONE}


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> Native:
    path = shared_object(tmp_path_factory.mktemp("cache"), ["cache.c", "arena.c"], SHIM)
    return Native(path, DECLARATIONS)


@pytest.fixture(scope="module")
def library(host_library: Path) -> Library:
    return Library.load(host_library)


# ------------------------------------------------------------------------------------------------------------- the rule


@settings(max_examples=150, deadline=None)
@given(trace=traces())
def test_every_decision_is_the_documented_one(native: Native, trace: Trace) -> None:
    cache, rule = Cache(native, trace.experts, trace.slots, trace.pins), Rule(trace.experts, trace.slots, trace.pins)
    for needed in trace.steps:
        assert cache.step(needed) == rule.step(needed)
        assert cache.held(rule.slots) == rule.kept


def test_ageing_forgets_a_habit(native: Native) -> None:
    """Expert 0 was needed 100 times; 130 steps later expert 1, needed 40 times since, counts more, and 0 goes first."""
    cache, rule = Cache(native, 4, 2, [0] * 4), Rule(4, 2)
    sequence = [(0,)] * 100 + [(1,), (2,), (2,)] * 43 + [(3,)]
    for needed in sequence:
        assert cache.step(needed) == rule.step(needed)
    assert 0 not in cache.held(2).values()


def test_the_step_that_ages_is_the_64th(native: Native) -> None:
    """Two uses in steps 62 and 63 are worth one in step 64, which is more recent. A step earlier or later: not."""
    cache = Cache(native, 5, 3, [0] * 5)
    for needed in [(3,)] * 61 + [(1,), (1,), (0,)]:
        cache.step(needed)
    cache.step((2,))
    assert set(cache.held(3).values()) == {0, 2, 3}


def test_frequency_counts_before_recency(native: Native) -> None:
    cache = Cache(native, 4, 2, [0] * 4)
    for needed in ((0,), (0,), (1,)):
        cache.step(needed)
    assert cache.step((2,)) == [(2, 1, False)]  # 0 was used twice, though 1 more recently
    assert cache.step((3,)) == [(3, 1, False)]  # 0 still


def test_what_a_step_needs_later_stays(native: Native) -> None:
    """3 and 4 are kept; 0, 3 and 4 are needed. Nothing else can go for 0: the last needed does; 3 survives."""
    cache = Cache(native, 5, 2, [0] * 5)
    cache.step((3, 4))
    assert cache.step((0, 3, 4)) == [(0, 1, False), (3, 0, True), (4, 1, False)]


def test_pinned_experts_stay_whatever_comes(native: Native) -> None:
    cache = Cache(native, 8, 3, [0, 0, 2, 0, 0, 1, 3, 0])  # 5, 2, 6 in this order: two of three slots
    cache.step((2, 5))
    for expert in (0, 1, 3, 4, 6, 7) * 20:
        cache.step((expert,))
        assert {2, 5} < set(cache.held(3).values())


def test_one_slot_pins_nothing(native: Native) -> None:
    cache = Cache(native, 3, 1, [1, 2, 3])
    assert [cache.step((e,)) for e in (0, 1, 2)] == [[(e, 0, False)] for e in (0, 1, 2)]


# ------------------------------------------------------------------------------------------ steps that are not finished


def test_a_step_that_broke_off_leaves_no_trace_of_need(native: Native) -> None:
    """Its experts can be given up by the next step, those whose read failed leave an empty slot."""
    cache = Cache(native, 6, 2, [0] * 6)
    cache.begin((0, 1, 2))
    assert cache.assign(0, True) == (0, False)
    assert cache.assign(1, False) == (1, False)
    assert cache.assign(2, False) is None
    cache.lib.col_cache_forget(cache.cache, 0)
    for expert in (0, 1, 2):
        cache.lib.col_cache_done(cache.cache, expert)
    assert cache.held(2) == {1: 1}
    assert cache.step((3, 4)) == [(3, 0, False), (4, 1, False)]


def test_forgetting_what_is_not_kept(native: Native) -> None:
    cache = Cache(native, 3, 2, [0] * 3)
    cache.step((0, 1))
    cache.lib.col_cache_forget(cache.cache, 2)
    assert cache.held(2) == {0: 0, 1: 1}


# -------------------------------------------------------------------------------------------------------------- guesses


def test_guesses_take_no_slot_from_each_other_or_from_pinned(native: Native) -> None:
    cache = Cache(native, 8, 3, [1, 0, 0, 0, 0, 0, 0, 0])
    cache.step((0, 1, 2))
    # 0 is pinned; of 1 and 2 only 1 may go, because 2 is guessed and kept already; then nothing is left to give up
    assert cache.guess((3, 4, 2)) == [1, None, None]
    assert cache.held(3) == {0: 0, 1: 3, 2: 2}
    for expert in (3, 2, 4):
        cache.lib.col_cache_done(cache.cache, expert)
    assert cache.lib.guessed(cache.cache, 3)
    assert cache.step((3, 5)) == [(3, 1, True), (5, 2, False)]
    assert not cache.lib.guessed(cache.cache, 3)


@settings(max_examples=100, deadline=None)
@given(trace=traces(), guesses=st.lists(st.lists(st.integers(0, 11), max_size=4, unique=True), max_size=60))
def test_guesses_never_break_a_step(native: Native, trace: Trace, guesses: list[list[int]]) -> None:
    """Whatever is guessed, each needed expert gets a slot of its own while it is computed, and no expert has two."""
    cache = Cache(native, trace.experts, trace.slots, trace.pins)
    slots = min(trace.experts, trace.slots)
    for index, needed in enumerate(trace.steps):
        guessed = [e for e in (guesses[index] if index < len(guesses) else []) if e < trace.experts]
        kept = set(cache.held(slots).values()) & set(guessed)
        taken = [slot for slot in cache.guess(guessed) if slot is not None]
        assert len(set(taken)) == len(taken)
        assert kept <= set(cache.held(slots).values())
        for expert in guessed:
            cache.lib.col_cache_done(cache.cache, expert)
        before = set(cache.held(slots).values())
        assigned = cache.step(needed)
        assert [expert for expert, _, _ in assigned] == list(needed)
        assert all(not hit or expert in before for expert, _, hit in assigned)
        held = list(cache.held(slots).values())
        assert len(set(held)) == len(held)


# --------------------------------------------------------------------------------------------------------------- replay


class Replay:
    """colibri_replay_*, for layers of several sizes."""

    def __init__(self, library: Library, experts: Sequence[int], slots: int, pins: Sequence[int] | None) -> None:
        self.ffi, self.lib = library.ffi, library.lib
        sizes = self.ffi.new("uint32_t[]", list(experts))
        needed = self.lib.colibri_replay_bytes(len(experts), sizes, slots)
        self._memory = self.ffi.new("char[]", needed + 64)
        start = self._memory + -int(self.ffi.cast("uintptr_t", self._memory)) % 64
        handle = self.ffi.new("struct colibri_replay **")
        pin = self.ffi.NULL if pins is None else self.ffi.new("uint32_t[]", list(pins))
        for short, status in ((1, self.lib.COLIBRI_E_ARENA_SIZE), (0, self.lib.COLIBRI_OK)):
            args = (handle, start, needed - short, len(experts), sizes, slots, pin)
            assert self.lib.colibri_replay_begin(*args) == status
        self.replay = handle[0]

    def step(self, layer: int, needed: Sequence[int]) -> int:
        misses = self.ffi.new("uint32_t *")
        expert = self.ffi.new("uint32_t[]", list(needed))
        assert self.lib.colibri_replay_step(self.replay, layer, expert, len(needed), misses) == self.lib.COLIBRI_OK
        return int(misses[0])


@settings(max_examples=60, deadline=None)
@given(data=st.lists(traces(), min_size=1, max_size=3), slots=st.integers(1, 10), pinned=st.booleans())
def test_a_replay_counts_what_the_rule_misses(library: Library, data: list[Trace], slots: int, pinned: bool) -> None:
    pins = [pin for trace in data for pin in trace.pins] if pinned else None
    replay = Replay(library, [trace.experts for trace in data], slots, pins)
    rules = [Rule(trace.experts, slots, trace.pins if pinned else ()) for trace in data]
    for index in range(max(len(trace.steps) for trace in data)):
        for layer, trace in enumerate(data):
            if index < len(trace.steps):
                needed = trace.steps[index]
                want = sum(not hit for _, _, hit in rules[layer].step(needed))
                assert replay.step(layer, needed) == want


def test_replays_refuse_what_is_no_step(library: Library) -> None:
    replay = Replay(library, [4, 0, 2], 2, None)
    ffi, lib = library.ffi, library.lib
    misses = ffi.new("uint32_t *")
    for layer, needed in ((3, [0]), (1, [0]), (0, [4]), (0, [1, 1]), (0, [2, 1]), (2, [0, 1, 2])):
        expert = ffi.new("uint32_t[]", needed)
        status = lib.colibri_replay_step(replay.replay, layer, expert, len(needed), misses)
        assert status == lib.COLIBRI_E_ARGUMENT
    assert replay.step(0, []) == 0
    assert replay.step(0, [0, 1, 2, 3]) == 4


def test_sizes_that_no_replay_can_have(library: Library) -> None:
    sizes = library.ffi.new("uint32_t[]", [8, 65537])
    assert library.lib.colibri_replay_bytes(1, sizes, 0) == 0
    assert library.lib.colibri_replay_bytes(2, sizes, 1) == 0
    assert library.lib.colibri_replay_bytes(4097, sizes, 1) == 0
    assert library.lib.colibri_replay_bytes(1, sizes, 2**32 - 1) == library.lib.colibri_replay_bytes(1, sizes, 8)
