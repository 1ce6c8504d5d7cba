# SPDX-License-Identifier: Apache-2.0
"""The sampler against its definition in NumPy: same choices, same sets, the right distribution, one generator."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from native import Native, shared_object

HUGE = float(np.float32(3e38))
SHIM = r"""
#include "sampler.h"
#include <stdlib.h>
uint32_t shim_sample(const float *logits, uint32_t vocab, const uint32_t *history, uint32_t count, float temperature,
                     float top_p, float penalty, uint32_t top_k, uint64_t seed, uint32_t draws, uint32_t *ids);
uint32_t shim_sample(const float *logits, uint32_t vocab, const uint32_t *history, uint32_t count, float temperature,
                     float top_p, float penalty, uint32_t top_k, uint64_t seed, uint32_t draws, uint32_t *ids)
{
    struct col_sampler sampler;
    struct col_arena measure = {0};
    col_sampler_layout(&sampler, &measure, vocab);
    struct col_arena arena = {.base = aligned_alloc(64, measure.used)};
    col_sampler_layout(&sampler, &arena, vocab);
    const struct colibri_sampling s = {.temperature = temperature, .top_p = top_p, .repetition_penalty = penalty,
                                       .top_k = top_k, .seed = seed};
    uint32_t ok = col_sampling_check(&s) == COLIBRI_OK;
    col_sampler_seed(&sampler, seed);
    for (uint32_t i = 0; ok && i < draws; i++)
        ids[i] = col_sample(&sampler, &s, &col_kernels_scalar, logits, vocab, history, count);
    free(arena.base);
    return ok;
}
"""


class Sampler(Native):
    def draw(
        self, logits: Any, draws: int = 1, *, history: Any = (), temperature: float = 0.0, top_p: float = 0.0,
        penalty: float = 0.0, top_k: int = 0, seed: int = 0,
    ) -> np.ndarray | None:  # fmt: skip
        x = np.ascontiguousarray(logits, np.float32)
        past = np.ascontiguousarray(history, np.uint32)
        ids = np.zeros(draws, np.uint32)
        ok = self.lib.shim_sample(
            self.array("float", x), len(x), self.array("uint32_t", past), len(past), temperature, top_p, penalty,
            top_k, seed, draws, self.array("uint32_t", ids),
        )  # fmt: skip
        return ids if ok else None


@pytest.fixture(scope="module")
def sampler(tmp_path_factory: pytest.TempPathFactory) -> Sampler:
    sources = ["sampler.c", "arena.c", "numeric.c", "kernels/scalar.c"]
    return Sampler(
        shared_object(tmp_path_factory.mktemp("sampler"), sources, SHIM),
        "uint32_t shim_sample(const float *, uint32_t, const uint32_t *, uint32_t, float, float, float, uint32_t,"
        " uint64_t, uint32_t, uint32_t *);",
    )


def splitmix64(seed: int) -> Iterator[int]:
    mask = (1 << 64) - 1
    while True:
        seed = (seed + 0x9E3779B97F4A7C15) & mask
        z = seed
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        yield z ^ (z >> 31)


def test_the_oracle_is_splitmix64() -> None:
    """The published outputs for the seed 1234567."""
    numbers = splitmix64(1234567)
    assert [next(numbers) for _ in range(5)] == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


@pytest.mark.parametrize("seed", [0, 1, 1234567, 2**64 - 1])
def test_draws_follow_the_generator(sampler: Sampler, seed: int) -> None:
    """With equal logits, the token is the draw's place among 4096 equal steps; all sums are exact."""
    vocab = 4096
    ids = sampler.draw(np.zeros(vocab), 200, temperature=1.0, seed=seed)
    numbers = splitmix64(seed)
    assert ids is not None
    assert ids.tolist() == [(next(numbers) >> 40) * vocab >> 24 for _ in range(200)]


logit_rows = st.lists(st.floats(-1e4, 1e4, width=32), min_size=1, max_size=80)


@given(row=logit_rows)
@settings(max_examples=200, deadline=None)
def test_greedy_takes_the_first_largest(sampler: Sampler, row: list[float]) -> None:
    assert sampler.draw(row) == [int(np.argmax(np.float32(row)))]
    assert sampler.draw(row, temperature=0.7, top_k=1) == [int(np.argmax(np.float32(row)))]


@given(row=logit_rows, data=st.data(), penalty=st.floats(0.5, 3.0, width=32))
@settings(max_examples=200, deadline=None)
def test_penalty_counts_each_seen_token_once(
    sampler: Sampler, row: list[float], data: st.DataObject, penalty: float
) -> None:
    seen = data.draw(st.lists(st.integers(0, len(row) - 1), max_size=20))
    x = np.float32(row)
    for i in set(seen):
        x[i] = x[i] / np.float32(penalty) if x[i] > 0 else x[i] * np.float32(penalty)
    assert sampler.draw(row, history=seen, penalty=penalty) == [int(np.argmax(x))]


def allowed(row: np.ndarray, temperature: float, top_k: int, top_p: float) -> np.ndarray:
    """Probabilities after temperature, top-k and top-p, in float64; the rest is 0."""
    scaled = row.astype(np.float64) / temperature
    p = np.exp(scaled - scaled.max())
    order = np.lexsort((np.arange(len(p)), -row))
    if 0 < top_k < len(p):
        p[order[top_k:]] = 0.0
    p /= p.sum()
    if 0.0 < top_p < 1.0:
        before = np.cumsum(p[order]) - p[order]
        p[order[before >= top_p]] = 0.0
    return p / p.sum()


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"),
    [(1.0, 0, 0.0), (0.5, 0, 0.0), (1.5, 5, 0.0), (1.0, 0, 0.8), (1.0, 10, 0.7), (2.0, 3, 0.95), (1.0, 64, 1.0)],
)
def test_distribution(sampler: Sampler, temperature: float, top_k: int, top_p: float) -> None:
    """Frequencies of 40,000 draws, whose seed is fixed, against the exact probabilities."""
    row = np.random.default_rng(7).normal(0, 2, 64).astype(np.float32)
    p = allowed(row, temperature, top_k, top_p)
    draws = 40_000
    ids = sampler.draw(row, draws, temperature=temperature, top_k=top_k, top_p=top_p, seed=99)
    assert ids is not None
    counts = np.bincount(ids, minlength=64)
    assert counts[p == 0.0].sum() == 0
    tolerance = 5.0 * np.sqrt(draws * p * (1.0 - p)) + 1.0
    assert (np.abs(counts - draws * p) <= tolerance).all()


@given(
    row=st.lists(st.floats(-HUGE, HUGE, width=32), min_size=1, max_size=40),
    temperature=st.sampled_from([1e-38, 1e-3, 1.0, 100.0]),
    top_k=st.integers(0, 50),
    top_p=st.sampled_from([0.0, 1e-30, 0.5, 0.999999, 1.0]),
    penalty=st.sampled_from([0.0, 1e-30, 1.3, 100.0]),
    seed=st.integers(0, 2**64 - 1),
)
@settings(max_examples=300, deadline=None)
def test_any_parameters_give_a_token(
    sampler: Sampler, row: list[float], temperature: float, top_k: int, top_p: float, penalty: float, seed: int
) -> None:
    ids = sampler.draw(
        row, 5, history=range(len(row)), temperature=temperature, top_k=top_k, top_p=top_p, penalty=penalty, seed=seed
    )
    assert ids is not None
    assert (ids < len(row)).all()


@pytest.mark.parametrize(
    "bad",
    [
        {"temperature": -0.1}, {"temperature": float("nan")}, {"temperature": float("inf")}, {"temperature": 101.0},
        {"top_p": 1.5}, {"top_p": -1.0}, {"penalty": -2.0}, {"penalty": float("nan")},
    ],
)  # fmt: skip
def test_senseless_parameters_are_refused(sampler: Sampler, bad: dict[str, Any]) -> None:
    assert sampler.draw([0.0, 1.0], **bad) is None
