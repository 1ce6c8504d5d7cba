# SPDX-License-Identifier: Apache-2.0
"""What can be chosen about routers when packing: integer arithmetic, hashing, a dynamic expert map."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from colibri_sdk.convert.description import LayerDescription, ModelDescription, Router, TensorSource
from colibri_sdk.errors import UsageError
from colibri_sdk.image.layout import MAX_INTEGER_SHIFT, RouterScore

MODES = ("float", "integer", "hash")

# Entries of the exponential table, and the distance at which an entry is 1: 65536 exp(-11.09) = 1.
TABLE = 256
_LAST = TABLE - 1
_FULL_RANGE = float(np.log(65536.0))

# Steps per unit of logit are doubled until there are so many. The engine counts up to 2^22 steps below the largest
# logit, that is further than 256, and two logits fall into one step about once in 100,000 choices.
_STEPS = 8192


@dataclass(frozen=True)
class IntegerScale:
    """`steps` per unit of logit; the table's entries are 2^shift steps apart."""

    steps: float
    shift: int

    @property
    def range(self) -> float:
        """The distance below the largest logit that the table covers."""
        return _LAST * 2.0**self.shift / self.steps


def integer_scale(largest_distance: float | None) -> IntegerScale:
    """The scale for a router whose chosen logits lie up to `largest_distance` apart, None where that is not known.

    The finer the table, the more exact the weights; it must reach as far as the distances do. Distances beyond 11.09,
    where a weight vanishes in 16 bits, need no entry. An eighth is added for texts other than the one measured.
    """
    reach = _FULL_RANGE if largest_distance is None else min(_FULL_RANGE, max(0.5, 1.125 * largest_distance))
    steps, shift = np.float32(_LAST / reach), 0
    while steps < _STEPS and shift < MAX_INTEGER_SHIFT:
        steps, shift = steps * np.float32(2), shift + 1
    return IntegerScale(float(steps), shift)


def integer_table(scale: IntegerScale) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    """[256]: entry i is 65536 exp(-i 2^shift / steps), rounded."""
    distance = np.arange(TABLE, dtype=np.float64) * (2.0**scale.shift / scale.steps)
    return np.rint(65536.0 * np.exp(-distance)).astype(np.float32)


@dataclass(frozen=True)
class ExpertMap:
    """With a prompt of n tokens, experts 0 to first + n // tokens - 1 are in use."""

    first: int
    tokens: int

    @classmethod
    def parse(cls, text: str) -> ExpertMap:
        """FIRST:TOKENS. Raises UsageError."""
        match = re.fullmatch(r"(\d{1,9}):(\d{1,9})", text.strip(), re.ASCII)
        if match is None or int(match[1]) < 1 or int(match[2]) < 1:
            raise UsageError(
                f"--expert-map {text[:40]!r} is not FIRST:TOKENS",
                "4:16 starts with 4 experts and adds one for every 16 tokens of the prompt.",
            )
        return cls(int(match[1]), int(match[2]))


def reroute(
    description: ModelDescription,
    mode: str,
    expert_map: ExpertMap | None = None,
    scales: Sequence[IntegerScale | None] = (),
) -> ModelDescription:
    """The model with its routers in `mode` and with `expert_map`.

    `scales`, one for each layer, are those of integer routers; without, the table covers all distances. Raises
    UsageError, with the layer, for a router that the mode or the map cannot stand for, and for a model without any.
    """
    if mode not in MODES:
        raise UsageError(f"unknown router mode {mode!r}", f"Choose one of {', '.join(MODES)}.")
    if mode == "float" and expert_map is None:
        return description
    if not any(layer.router for layer in description.layers):
        asked = "--expert-map" if mode == "float" else f"--router {mode}"
        raise UsageError(f"{asked}: the model has no router", "Leave the option out: every token takes all of it.")
    ignored: list[str] = []
    layers = []
    for index, layer in enumerate(description.layers):
        router = layer.router
        if router is not None:
            given = scales[index] if index < len(scales) else None
            if mode == "integer":
                router = _integer(router, index, given or integer_scale(None))
            elif mode == "hash":
                ignored += [re.escape(source.name) for _, source, _ in router.tensors()]
                router = _hash(router)
            if expert_map is not None:
                router = _mapped(router, layer, index, expert_map)
        layers.append(replace(layer, router=router))
    return replace(description, layers=tuple(layers), ignored_tensors=(*description.ignored_tensors, *ignored))


def _integer(router: Router, index: int, scale: IntegerScale) -> Router:
    """A softmax over the chosen, whichever way the float router gets there; nothing else has an integer form."""
    softmax = router.score is RouterScore.SOFTMAX and router.normalise
    reason = ""
    if router.score is not RouterScore.LOGIT and not softmax:
        reason = (
            "weights that are a softmax over all experts" if router.score is RouterScore.SOFTMAX else "sigmoid scores"
        )
    elif router.groups > 1:
        reason = f"{router.groups} groups of experts"
    elif router.correction is not None:
        reason = "a correction of its scores"
    if reason:
        raise UsageError(
            f"--router integer: the router of layer {index} has {reason}",
            "Integer routers take a softmax over the chosen experts. Pack with --router float.",
        )
    table = TensorSource(
        f"integer table of layer {index}", 1, TABLE, (TABLE,), is_vector=True, constant=integer_table(scale)
    )
    return replace(
        router,
        score=RouterScore.INTEGER,
        normalise=False,
        integer_scale=scale.steps,
        integer_shift=scale.shift,
        integer_table=table,
    )


def _hash(router: Router) -> Router:
    return replace(
        router,
        score=RouterScore.HASH,
        gate=None,
        correction=None,
        normalise=False,
        groups=1,
        top_groups=1,
        group_score=None,
    )


def _mapped(router: Router, layer: LayerDescription, index: int, expert_map: ExpertMap) -> Router:
    if router.groups > 1:
        raise UsageError(
            f"--expert-map: the router of layer {index} has {router.groups} groups of experts",
            "A map counts experts from 0 up, across groups. Leave --expert-map out.",
        )
    if not router.top_k <= expert_map.first <= len(layer.experts):
        raise UsageError(
            f"--expert-map: {expert_map.first} experts to start with in layer {index}, "
            f"which has {len(layer.experts)} and chooses {router.top_k}",
            f"Start with {router.top_k} to {len(layer.experts)}.",
        )
    return replace(router, map_first=expert_map.first, map_tokens=expert_map.tokens)
