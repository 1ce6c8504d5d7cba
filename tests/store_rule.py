# SPDX-License-Identifier: Apache-2.0
"""The rule of docs/expert-store.md by which a layer keeps its experts, written a second time."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

HALF_LIFE = 64


class Rule:
    """One layer. `kept` maps slots to experts."""

    def __init__(self, experts: int, slots: int, pins: Sequence[int] = ()) -> None:
        self.slots = min(experts, slots)
        pinned = [expert for expert, pin in enumerate(pins) if 1 <= pin <= self.slots - 1]
        self.pinned = set(pinned[: self.slots - 1])
        self.kept: dict[int, int] = {}
        self.steps = 0
        self.uses: dict[int, list[int]] = {expert: [] for expert in range(experts)}  # steps in which it was needed

    def step(self, needed: Sequence[int]) -> list[tuple[int, int, bool]]:
        """Each needed expert's slot in the order of assignment, and whether it was there: (expert, slot, hit)."""
        self.steps += 1
        for expert in needed:
            self.uses[expert].append(self.steps)
        waiting, taken = list(needed), []
        assigned: list[tuple[int, int, bool]] = []
        for left in range(len(needed), 0, -1):
            while waiting:
                slot = self._slot(waiting, taken)
                if slot is None:
                    break
                hit = self.kept.get(slot) == waiting[0]
                self.kept[slot] = waiting[0]
                assigned.append((waiting[0], slot, hit))
                taken.append(waiting.pop(0))
            assert len(taken) + len(waiting) == left
            taken.pop(0)  # the lowest is computed
        return assigned

    def _slot(self, waiting: Sequence[int], taken: Sequence[int]) -> int | None:
        for slot, expert in self.kept.items():
            if expert == waiting[0]:
                return slot
        empty = set(range(self.slots)) - set(self.kept)
        if empty:
            return min(empty)
        free = {slot: e for slot, e in self.kept.items() if e not in self.pinned and e not in taken}
        idle = {slot: e for slot, e in free.items() if e not in waiting}
        if idle:
            return min(idle, key=lambda slot: self._worth(idle[slot]))
        if taken:
            return None  # its slot will be free
        return max(free, key=lambda slot: free[slot])

    def _worth(self, expert: int) -> tuple[int, int, int]:
        uses = self.uses[expert]
        return self._frequency(uses), uses[-1] if uses else 0, expert

    def _frequency(self, uses: Sequence[int]) -> int:
        """65536 for each use; halved, and rounded down, at the beginning of each step that is a multiple of 64."""
        frequency = 0
        for block in range(self.steps // HALF_LIFE + 1):
            if block > 0:
                frequency = int(Fraction(frequency, 2))
            frequency += 65536 * sum(1 for step in uses if step // HALF_LIFE == block)
        return frequency
