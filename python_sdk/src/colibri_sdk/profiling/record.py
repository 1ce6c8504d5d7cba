# SPDX-License-Identifier: Apache-2.0
"""Records routing on this machine's engine, which routes as every board does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from colibri_sdk.engine import Engine, Library, Route, Token
from colibri_sdk.errors import UsageError
from colibri_sdk.image.layout import SectionKind
from colibri_sdk.image.reader import ImageFile
from colibri_sdk.profiling.prompts import Prompt, named
from colibri_sdk.profiling.trace import RoutingTrace

# (prompts done, prompts, a word about the last)
Progress = Callable[[int, int, str], None]


@dataclass
class _Steps:
    """Steps as they are found; the names are those of the trace."""

    layer: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    first: list[int] = field(default_factory=lambda: [0])
    expert: list[int] = field(default_factory=list)
    expert_tokens: list[int] = field(default_factory=list)

    def add(self, routes: Sequence[Route]) -> None:
        """One step: the routes of one layer for the tokens of one batch."""
        counts: dict[int, int] = {}
        for route in routes:
            for expert in route.experts:
                counts[expert] = counts.get(expert, 0) + 1
        self.layer.append(routes[0].layer)
        self.tokens.append(len(routes))
        for expert in sorted(counts):
            self.expert.append(expert)
            self.expert_tokens.append(counts[expert])
        self.first.append(len(self.expert))


def steps_of(routes: Sequence[Route], batch: int, tokens_at: Sequence[int]) -> list[Sequence[Route]]:
    """Cuts the routes of one generation into steps.

    The engine routes layer by layer, and in each layer token by token. A step ends where the layer changes, where the
    batch is full, and where a token was sampled: `tokens_at` are the numbers of routes that were there each time. (A
    model with one routed layer shows no change of layer.)
    """
    steps: list[Sequence[Route]] = []
    ends = set(tokens_at)
    start = 0
    for at in range(1, len(routes) + 1):
        last = at == len(routes)
        if last or at in ends or at - start == batch or routes[at].layer != routes[start].layer:
            steps.append(routes[start:at])
            start = at
    return steps


def record(
    image: Path,
    prompts: Sequence[Prompt],
    *,
    max_tokens: int = 0,
    library: Library | None = None,
    progress: Progress | None = None,
) -> RoutingTrace:
    """Answers the prompts greedily, each in an empty context, and records the routing of all tokens.

    max_tokens: of each answer; 0: until the model ends it. The batch is that of a device: the default of colibri.h.
    Raises UsageError without prompts, for texts without a tokenizer, and for a model without a router.
    """
    if not prompts:
        raise UsageError("no prompts to record", "Give a file with at least one.")
    with ImageFile(image) as file:
        experts = file.experts_of_layers
        image_id, model = file.image_id, file.model_name
        has_tokenizer = file.has(SectionKind.TOKENIZER)
    if not any(experts):
        raise UsageError(f"{image.name} has no experts: every token takes the same way", "Profile a MoE model.")
    if not has_tokenizer and any(isinstance(prompt, str) for prompt in prompts):
        raise UsageError(
            f"{image.name} has no tokenizer, and these prompts are text",
            'Give a .jsonl file whose lines are {"ids": [NUMBERS]}.',
        )
    engine = Engine(library or Library.load(), image, trace_routing=True)
    batch = engine.plan.batch
    steps = _Steps()
    prompt_first, prompt_tokens, answer_tokens = [0], [], []
    for number, prompt in enumerate(prompts):
        tokens_at: list[int] = []
        before = engine.stats().tokens
        engine.routing.clear()

        def on_token(_: Token, tokens_at: list[int] = tokens_at) -> None:
            tokens_at.append(len(engine.routing))

        with named(number, len(prompts)):
            ids = engine.prompt(prompt) if isinstance(prompt, str) else list(prompt)
            engine.generate(ids, max_tokens=max_tokens, on_token=on_token)
        for step in steps_of(engine.routing, batch, tokens_at):
            steps.add(step)
        prompt_first.append(len(steps.layer))
        prompt_tokens.append(len(ids))
        answer_tokens.append(engine.stats().tokens - before - len(ids))
        if progress is not None:
            progress(number + 1, len(prompts), "")
    return RoutingTrace(
        image_ids=(image_id,),
        model=model,
        batch=batch,
        experts=experts,
        step_layer=np.asarray(steps.layer, np.uint32),
        step_tokens=np.asarray(steps.tokens, np.uint32),
        step_first=np.asarray(steps.first, np.uint64),
        expert=np.asarray(steps.expert, np.uint32),
        expert_tokens=np.asarray(steps.expert_tokens, np.uint32),
        prompt_first=np.asarray(prompt_first, np.uint64),
        prompt_tokens=np.asarray(prompt_tokens, np.uint32),
        answer_tokens=np.asarray(answer_tokens, np.uint32),
    )
