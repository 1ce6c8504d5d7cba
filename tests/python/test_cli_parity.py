# SPDX-License-Identifier: Apache-2.0
"""The comparison with a reference: it has to find each kind of difference."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from colibri_sdk.errors import CheckpointError
from colibri_sdk.parity import Case, Floats, Routing, compare, read_cases

LONG = {
    "input_ids": [5, 6, 7, 8],
    "logits_last4": [[float(row), -1.0] for row in range(4)],
    "router": {"0": {"experts": [3, 1], "weights": [0.6, 0.4]}, "2": {"experts": [0, 2], "weights": [0.9, 0.1]}},
    "greedy_ids": [9, 9, 1],
}
SHORT = {
    "prompt_ids": [1, 2],
    "completion_ids": [4],
    "top1_experts_last_token": [3, 0],
    "logit_ids": [1],
    "logits_last_token": [-1.0],
}


@dataclass
class Fake:
    """Gives the reference's own results, but for what a test changes."""

    case: Case
    logits_change: float = 0.0
    columns: int = 2
    routing: Routing = ()
    ids: list[int] = field(default_factory=list)

    def logits(self, ids: Sequence[int], last: int) -> tuple[Floats, Routing]:
        assert ids == self.case.ids
        full = np.zeros((last, self.columns), np.float32)
        if self.case.columns is None:
            full[:, : self.case.logits.shape[1]] = self.case.logits
        else:
            full[:, self.case.columns] = self.case.logits
        full[-1, 1] += self.logits_change
        return full, self.routing or [[(1, 0.4), (3, 0.6)], [], [(0, 0.9), (2, 0.1)]]

    def greedy(self, ids: Sequence[int], count: int) -> list[int]:
        return (self.ids or self.case.greedy)[:count]


def written(tmp_path: Path, content: object) -> Case:
    (tmp_path / "reference.json").write_text(json.dumps(content))
    (case,) = read_cases(tmp_path)
    return case


@pytest.fixture
def long_case(tmp_path: Path) -> Case:
    return written(tmp_path, LONG)


@pytest.fixture
def short_case(tmp_path: Path) -> Case:
    return written(tmp_path, {"cases": [SHORT]})


def test_the_same_is_the_same(long_case: Case, short_case: Case) -> None:
    result = compare([long_case], Fake(long_case))
    assert (result.max_abs_diff, result.router_agreement, result.greedy_equal, result.ok) == (0.0, 1.0, True, True)
    assert compare([short_case], Fake(short_case, routing=[[(1, 0.4), (3, 0.6)], [(0, 1.0)]])).ok


@pytest.mark.parametrize(("change", "ok"), [(0.0009, True), (0.0011, False), (float("nan"), False)])
def test_a_logit_that_differs(long_case: Case, change: float, ok: bool) -> None:
    result = compare([long_case], Fake(long_case, logits_change=change))
    assert result.ok is ok
    assert result.max_abs_diff == pytest.approx(change if change == change else float("inf"), rel=1e-3)


def test_a_later_nan_is_not_lost_behind_a_number(long_case: Case) -> None:
    class Both(Fake):
        calls = 0

        def logits(self, ids: Sequence[int], last: int) -> tuple[Floats, Routing]:
            self.calls += 1
            self.logits_change = float("nan") if self.calls == 2 else 0.0
            return super().logits(ids, last)

    assert not compare([long_case] * 3, Both(long_case)).ok


def test_too_few_logits(long_case: Case) -> None:
    class Short(Fake):
        def logits(self, ids: Sequence[int], last: int) -> tuple[Floats, Routing]:
            full, routing = super().logits(ids, last)
            return full[1:], routing

    assert compare([long_case], Short(long_case)).max_abs_diff == float("inf")


@pytest.mark.parametrize("chosen", [[(1, 0.4), (2, 0.6)], [(3, 0.6), (2, 0.4)], [(3, 0.6)]])
def test_a_router_choice_that_differs(long_case: Case, chosen: list[tuple[int, float]]) -> None:
    result = compare([long_case], Fake(long_case, routing=[chosen, [], [(0, 0.9), (2, 0.1)]]))
    assert result.router_agreement == 0.5
    assert not result.ok


@pytest.mark.parametrize(("change", "ok"), [(0.0009, True), (0.0011, False), (-0.2, False), (float("nan"), False)])
def test_a_weight_that_differs(long_case: Case, change: float, ok: bool) -> None:
    """The right experts in wrong shares."""
    routing = [[(1, 0.4), (3, 0.6 + change)], [], [(0, 0.9), (2, 0.1)]]
    result = compare([long_case], Fake(long_case, routing=routing))
    assert (result.router_agreement, result.ok) == (1.0, ok)
    assert result.max_weight_diff == pytest.approx(abs(change) if change == change else float("inf"), rel=1e-3)


def test_only_the_first_ranked_expert_counts_where_only_that_is_known(short_case: Case) -> None:
    assert compare([short_case], Fake(short_case, routing=[[(3, 0.7), (6, 0.3)], [(0, 1.0)]])).ok
    assert not compare([short_case], Fake(short_case, routing=[[(3, 0.3), (6, 0.7)], [(0, 1.0)]])).ok


def test_a_greedy_token_that_differs(long_case: Case) -> None:
    result = compare([long_case], Fake(long_case, ids=[9, 9, 2]))
    assert (result.greedy_equal, result.ok) == (False, False)


@pytest.mark.parametrize("content", ["{", "[]", '{"cases": [{}]}', '{"cases": []}', '{"input_ids": [1]}'])
def test_a_reference_that_cannot_be_read(tmp_path: Path, content: str) -> None:
    (tmp_path / "reference.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"reference\.json"):
        read_cases(tmp_path)


def test_no_reference(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no reference\.json"):
        read_cases(tmp_path)


def test_reads_the_references_in_the_repository(repo_root: Path, tmp_path: Path) -> None:
    assert len(read_cases(repo_root / "models" / "hummingbird")) == 8
    shutil.copy(repo_root / "tests" / "parity" / "mixtral" / "reference.json", tmp_path)
    (case,) = read_cases(tmp_path)
    assert case.logits.shape == (4, 256)
    assert len(case.greedy) == 16
