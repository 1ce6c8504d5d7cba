# SPDX-License-Identifier: Apache-2.0
"""What packing costs a model: its predictions beside those of the same model in float32.

The engine runs both images over the same passages; logits and routing are recorded, and compared in float64.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from colibri_sdk.convert.calibration import Passage
from colibri_sdk.engine import Engine, Library
from colibri_sdk.engine.session import Route

Doubles = npt.NDArray[np.float64]

# Logits that are compared at once.
_CHUNK = 1 << 22


@dataclass(frozen=True)
class Routes:
    """The decisions of one layer in the order of its tokens: experts ascending, [decisions][top_k]."""

    experts: npt.NDArray[np.uint32]
    weights: npt.NDArray[np.float32]

    @classmethod
    def joined(cls, parts: Sequence[Routes]) -> Routes:
        return cls(np.concatenate([p.experts for p in parts]), np.concatenate([p.weights for p in parts]))


@dataclass(frozen=True)
class Recording:
    """One image's run. `logits` [scored positions][vocab] lie in a file; `routes` are by layer."""

    logits: npt.NDArray[np.float32]
    targets: npt.NDArray[np.int64]
    routes: dict[int, Routes]


@dataclass(frozen=True)
class Comparison:
    """A recording beside the reference's, over `tokens` predictions.

    Perplexities are exp(mean negative log-likelihood) of the text. The divergence is Kullback and Leibler's,
    sum p log(p / q) over the vocabulary, in nats, p the reference's probabilities. `top_agreement` is the share of
    positions with the same likeliest token. `decisions` counts tokens times layers with routers, `same_experts` those
    with the same set of experts; of the weights of these, `weight_mean` and `weight_max` are the differences.
    """

    tokens: int
    perplexity: float
    reference_perplexity: float
    kl_mean: float
    kl_max: float
    top_agreement: float
    decisions: int
    same_experts: int
    weight_mean: float
    weight_max: float

    @property
    def routing_agreement(self) -> float:
        """0 to 1; 1 without routers."""
        return self.same_experts / self.decisions if self.decisions else 1.0


def record(library: Library, image: Path, passages: Sequence[Passage], file: Path, *, kv: str = "image") -> Recording:
    """Runs `image` over `passages`. `file` is created and holds the logits."""
    engine = Engine(library, image, kv=kv, context=max(len(one.ids) for one in passages), trace_routing=True)
    shape = (sum(one.scored for one in passages), engine.info.vocab)
    logits = np.memmap(file, np.float32, "w+", shape=shape)
    parts: dict[int, list[Routes]] = {}
    row = 0
    for passage in passages:
        engine.reset()
        engine.routing.clear()
        logits[row] = engine.prefill(passage.ids[: passage.first])
        for id_ in passage.ids[passage.first : -1]:
            row += 1
            logits[row] = engine.forward(id_)
        row += 1
        gather_routes(engine.routing, parts)
    targets = np.array([id_ for one in passages for id_ in one.ids[one.first :]], np.int64)
    return Recording(logits, targets, {layer: Routes.joined(each) for layer, each in parts.items()})


def gather_routes(routing: Sequence[Route], parts: dict[int, list[Routes]]) -> None:
    """Appends what an engine recorded to `parts`, by layer, as arrays: these take a small part of the memory."""
    by_layer: dict[int, list[Route]] = {}
    for route in routing:
        by_layer.setdefault(route.layer, []).append(route)
    for layer, routes in by_layer.items():
        experts = np.array([route.experts for route in routes], np.uint32)
        weights = np.array([route.weights for route in routes], np.float32)
        parts.setdefault(layer, []).append(Routes(experts, weights))


def compare(reference: Recording, other: Recording) -> Comparison:
    """`other` beside `reference`, both of the same passages."""
    loss = reference_loss = kl_sum = kl_max = 0.0
    same_top = 0
    for rows in _chunks(reference.logits.shape):
        wanted, got = log_softmax(reference.logits[rows]), log_softmax(other.logits[rows])
        targets = reference.targets[rows, np.newaxis]
        reference_loss -= float(np.take_along_axis(wanted, targets, 1).sum())
        loss -= float(np.take_along_axis(got, targets, 1).sum())
        # A sum that is 0 in truth may come out below it by a rounding error.
        divergence = np.maximum(0.0, (np.exp(wanted) * (wanted - got)).sum(axis=1))
        kl_sum += float(divergence.sum())
        kl_max = max(kl_max, float(divergence.max()))
        same_top += int((wanted.argmax(axis=1) == got.argmax(axis=1)).sum())
    tokens = len(reference.targets)
    decisions, same, weight_sum, weight_count, weight_max = compare_routes(reference.routes, other.routes)
    return Comparison(
        tokens=tokens,
        perplexity=float(np.exp(loss / tokens)),
        reference_perplexity=float(np.exp(reference_loss / tokens)),
        kl_mean=kl_sum / tokens,
        kl_max=kl_max,
        top_agreement=same_top / tokens,
        decisions=decisions,
        same_experts=same,
        weight_mean=weight_sum / weight_count if weight_count else 0.0,
        weight_max=weight_max,
    )


def log_softmax(logits: npt.NDArray[np.float32]) -> Doubles:
    """Over the last axis, in float64."""
    x = logits.astype(np.float64)
    x -= x.max(axis=-1, keepdims=True)
    x -= np.log(np.exp(x).sum(axis=-1, keepdims=True))
    return x


def _chunks(shape: tuple[int, ...]) -> Iterator[slice]:
    step = max(1, _CHUNK // shape[1])
    for start in range(0, shape[0], step):
        yield slice(start, min(start + step, shape[0]))


def compare_routes(reference: Mapping[int, Routes], other: Mapping[int, Routes]) -> tuple[int, int, float, int, float]:
    """Decisions, equal ones, then of these the sum, number and largest of the weights' differences."""
    decisions, same, total, count, largest = 0, 0, 0.0, 0, 0.0
    for layer, wanted in reference.items():
        got = other[layer]
        equal = (wanted.experts == got.experts).all(axis=1)
        decisions += equal.size
        same += int(equal.sum())
        difference = np.abs(wanted.weights[equal].astype(np.float64) - got.weights[equal])
        if difference.size:
            total += float(difference.sum())
            count += difference.size
            largest = max(largest, float(difference.max()))
    return decisions, same, total, count, largest


def largest_distances(recording: Recording) -> dict[int, float]:
    """For each layer the largest distance between the logits of two experts chosen together.

    The weights are a softmax of these logits, so that the distance is the logarithm of their ratio; infinite where a
    weight vanished.
    """
    distances = {}
    for layer, routes in recording.routes.items():
        weights = np.abs(routes.weights.astype(np.float64))
        with np.errstate(divide="ignore"):
            ratios = np.log(weights.max(axis=1)) - np.log(weights.min(axis=1))
        distances[layer] = float(ratios.max())
    return distances
