# SPDX-License-Identifier: Apache-2.0
"""Does the engine compute what the checkpoint's reference implementation computed?

A checkpoint's directory may hold reference.json, made by another program (transformers, in float32) from the same
weights. Two forms are read:

  with "cases": for several prompts the token ids, the greedy continuation, some logits and the first-ranked expert of
      each layer at the prompt's last token;
  without: one sequence of ids, all logits at its last positions, the chosen experts of each layer at the last one with
      their weights, and the greedy continuation.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from colibri_sdk.errors import CheckpointError

# Largest difference of a logit or of an expert's weight that counts as the same: sums are taken in another order, so
# the last bits differ.
TOLERANCE = 1e-3

Floats = NDArray[np.float32]
# layer -> (expert, weight) of each chosen expert
Routing = Sequence[Sequence[tuple[int, float]]]


class Runner(Protocol):
    """Something that runs a model: the engine on this machine, or a device."""

    def logits(self, ids: Sequence[int], last: int) -> tuple[Floats, Routing]:
        """Logits [last][vocab] of the last positions of `ids`, and the routing at the very last."""

    def greedy(self, ids: Sequence[int], count: int) -> list[int]:
        """The `count` likeliest next tokens, one after the other, whatever they are."""


@dataclass(frozen=True)
class Case:
    """One sequence and what is known about it. `experts` are per layer, the highest weight first, at least one;
    `weights` beside them where they are known."""

    ids: list[int]
    logits: Floats  # [positions][columns], the last positions of ids
    columns: list[int] | None  # token ids of the columns; None: all
    experts: Mapping[int, list[int]]
    ranked_only: bool  # only the first-ranked expert is known
    greedy: list[int]
    weights: Mapping[int, list[float]] = field(default_factory=dict)


@dataclass(frozen=True)
class Parity:
    """The comparison. `router_agreement` is the share of equal decisions, 0 to 1; `max_weight_diff` the largest
    difference of a chosen expert's weight."""

    cases: int
    max_abs_diff: float
    router_agreement: float
    greedy_equal: bool
    max_weight_diff: float = 0.0

    @property
    def ok(self) -> bool:
        numbers = max(self.max_abs_diff, self.max_weight_diff)
        return numbers <= TOLERANCE and self.router_agreement == 1.0 and self.greedy_equal


def read_cases(directory: Path) -> list[Case]:
    """What `directory`/reference.json says. Raises CheckpointError when it is not there or has neither form."""
    path = directory / "reference.json"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        cases = [_short_case(case) for case in content["cases"]] if "cases" in content else [_long_case(content)]
    except FileNotFoundError as error:
        raise CheckpointError(
            f"{directory} has no reference.json to compare with",
            "Parity needs results of a reference.",
            where=str(path),
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"{path} is not a reference that can be read: {error!r}",
            "See docs/cli.md for its two forms.",
            where=str(path),
        ) from error
    if not cases:
        raise CheckpointError(f"{path} holds no case", where=str(path))
    return cases


def _short_case(case: Mapping[str, Any]) -> Case:
    return Case(
        ids=case["prompt_ids"],
        logits=np.asarray([case["logits_last_token"]], np.float32),
        columns=case["logit_ids"],
        experts={layer: [expert] for layer, expert in enumerate(case["top1_experts_last_token"])},
        ranked_only=True,
        greedy=case["completion_ids"],
    )


def _long_case(content: Mapping[str, Any]) -> Case:
    return Case(
        ids=content["input_ids"],
        logits=np.asarray(content["logits_last4"], np.float32),
        columns=None,
        experts={int(layer): chosen["experts"] for layer, chosen in content["router"].items()},
        ranked_only=False,
        greedy=content["greedy_ids"],
        weights={int(layer): chosen["weights"] for layer, chosen in content["router"].items()},
    )


def compare(cases: Iterable[Case], runner: Runner) -> Parity:
    """Runs every case and compares. A wrong shape or a NaN counts as an infinite difference, not as an error."""
    worst, worst_weight, decisions, equal, greedy_equal, count = 0.0, 0.0, 0, 0, True, 0
    for case in cases:
        count += 1
        got, routing = runner.logits(case.ids, len(case.logits))
        if case.columns is not None:
            got = got[:, case.columns]
        worst = max(worst, _largest_difference(got, case.logits))
        for layer, wanted in case.experts.items():
            decisions += 1
            equal += _same_choice(routing[layer], wanted, case.ranked_only)
            if layer in case.weights:
                chosen = dict(zip(wanted, case.weights[layer], strict=True))
                worst_weight = max(worst_weight, _largest_weight_difference(routing[layer], chosen))
        greedy_equal &= runner.greedy(case.ids, len(case.greedy)) == case.greedy
    return Parity(count, worst, equal / decisions if decisions else 1.0, greedy_equal, worst_weight)


def _largest_difference(got: Floats, wanted: Floats) -> float:
    if got.shape != wanted.shape:
        return float("inf")
    difference = float(np.max(np.abs(got - wanted)))
    return difference if np.isfinite(difference) else float("inf")


def _same_choice(chosen: Sequence[tuple[int, float]], wanted: list[int], ranked_only: bool) -> bool:
    ranked = [expert for expert, _ in sorted(chosen, key=lambda pair: -pair[1])]
    # With all of them known, so are their weights, which say more than an order.
    return ranked[:1] == wanted[:1] if ranked_only else sorted(ranked) == sorted(wanted)


def _largest_weight_difference(chosen: Sequence[tuple[int, float]], wanted: Mapping[int, float]) -> float:
    """Over the experts that both chose; one that only one chose is a decision that differs."""
    differences = [abs(weight - wanted[expert]) for expert, weight in chosen if expert in wanted]
    return max(differences, default=0.0) if np.isfinite(differences).all() else float("inf")
