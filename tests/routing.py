# SPDX-License-Identifier: Apache-2.0
"""Traces of routing made by hand and at random, for tests."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from colibri_sdk.profiling.trace import RoutingTrace

# layer, tokens, (expert, how many of the tokens chose it) ascending
Step = tuple[int, int, list[tuple[int, int]]]

IMAGE_ID = "00" * 16


def make_trace(experts: list[int], prompts: list[list[Step]]) -> RoutingTrace:
    """A trace of an image with `experts` in its layers; each prompt is a list of steps."""
    steps = [step for prompt in prompts for step in prompt]
    uses = [use for _, _, step in steps for use in step]
    return RoutingTrace(
        image_ids=(IMAGE_ID,),
        model="made by hand",
        batch=16,
        experts=tuple(experts),
        step_layer=np.asarray([layer for layer, _, _ in steps], np.uint32),
        step_tokens=np.asarray([tokens for _, tokens, _ in steps], np.uint32),
        step_first=np.cumsum([0, *(len(step) for _, _, step in steps)]).astype(np.uint64),
        expert=np.asarray([expert for expert, _ in uses], np.uint32),
        expert_tokens=np.asarray([tokens for _, tokens in uses], np.uint32),
        prompt_first=np.cumsum([0, *map(len, prompts)]).astype(np.uint64),
        prompt_tokens=np.asarray([1] * len(prompts), np.uint32),
        answer_tokens=np.asarray([0] * len(prompts), np.uint32),
    )


@st.composite
def traces(draw: st.DrawFn, longest: int = 5) -> RoutingTrace:
    """Up to three layers of up to nine experts, up to three prompts of up to `longest` steps."""
    experts = draw(st.lists(st.integers(1, 9), min_size=1, max_size=3))

    def step(layer: int) -> st.SearchStrategy[Step]:
        chosen = st.lists(st.integers(0, experts[layer] - 1), min_size=1, unique=True).map(sorted)
        return chosen.map(lambda row: (layer, 16, [(expert, 1 + expert % 16) for expert in row]))

    prompt = st.lists(st.integers(0, len(experts) - 1).flatmap(step), min_size=1, max_size=longest)
    return make_trace(experts, draw(st.lists(prompt, min_size=1, max_size=3)))
