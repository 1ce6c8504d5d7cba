# SPDX-License-Identifier: Apache-2.0
"""gpt-oss: biases everywhere, attention sinks, a sliding window in every other layer, clamped SwiGLU, YaRN.

Experts are stored the other way round, [experts][inputs][outputs], gate and up as even and odd outputs. Where they are
in MXFP4, as published, mxfp4.py widens them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from colibri_sdk.convert.architectures import keys
from colibri_sdk.convert.architectures.blocks import Facts, windows
from colibri_sdk.convert.description import Ffn, Floats, LayerDescription, Linear, ModelDescription, TensorSource
from colibri_sdk.image.layout import Activation, RouterScore

CLASSES = ("GptOssForCausalLM",)


def describe(config: Mapping[str, Any], tensors: frozenset[str]) -> ModelDescription:
    facts = Facts.read({"rms_norm_eps": 1e-5} | dict(config), tensors)
    rope = facts.rope(default_theta=150000.0)
    bias = keys.switch(config, "attention_bias", True)
    experts = facts.expert_count("num_local_experts", "num_experts")
    width = keys.positive_integer(config, "intermediate_size")
    window = windows(facts, default=lambda index: index % 2 == 0)

    def layer(prefix: str, index: int) -> LayerDescription:
        return LayerDescription(
            attention=facts.attention(prefix, rope, bias=bias, output_bias=bias, window=window[index], sinks=True),
            norm=facts.post_norm(prefix),
            router=facts.router(f"{prefix}.mlp.router", experts, RouterScore.LOGIT, bias=True),
            experts=tuple(_expert(f"{prefix}.mlp.experts", e, experts, width, facts.hidden) for e in range(experts)),
            activation=Activation.SWIGLU_CLAMPED,
            limit=keys.positive_number(config, "swiglu_limit", 7.0),
            alpha=keys.positive_number(config, "swiglu_alpha", 1.702),
        )

    return facts.model(layer, rope)


def _turned(part: slice) -> Any:
    def transform(whole: Floats) -> Floats:
        return np.ascontiguousarray(whole[:, part].T)

    return transform


def _expert(prefix: str, index: int, count: int, width: int, hidden: int) -> Ffn:
    both, down = f"{prefix}.gate_up_proj", f"{prefix}.down_proj"

    def half(part: slice) -> Linear:
        def pick(whole: Floats) -> Floats:
            return np.ascontiguousarray(whole[part])

        shape = (count, hidden, 2 * width)
        return Linear(
            TensorSource(both, width, hidden, shape, expert=index, transform=_turned(part)),
            TensorSource(f"{both}_bias", 1, width, (count, 2 * width), expert=index, transform=pick, is_vector=True),
        )

    return Ffn(
        gate=half(slice(0, None, 2)),
        up=half(slice(1, None, 2)),
        down=Linear(
            TensorSource(down, hidden, width, (count, width, hidden), expert=index, transform=_turned(slice(None))),
            TensorSource(f"{down}_bias", 1, hidden, (count, hidden), expert=index, is_vector=True),
        ),
    )
