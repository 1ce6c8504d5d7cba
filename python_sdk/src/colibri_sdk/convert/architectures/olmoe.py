# SPDX-License-Identifier: Apache-2.0
"""OLMoE: queries and keys normalised over their full width, optionally clipped; softmax over all experts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from colibri_sdk.convert.architectures import keys
from colibri_sdk.convert.architectures.blocks import Facts
from colibri_sdk.convert.description import LayerDescription, ModelDescription
from colibri_sdk.image.layout import QkNorm, RouterScore

CLASSES = ("OlmoeForCausalLM",)

# What a missing key means.
_DEFAULTS: Mapping[str, Any] = {"rms_norm_eps": 1e-5}


def describe(config: Mapping[str, Any], tensors: frozenset[str]) -> ModelDescription:
    config = {**_DEFAULTS, **config}
    facts = Facts.read(config, tensors)
    rope = facts.rope()
    bias = keys.switch(config, "attention_bias", False)
    clip = 0.0 if config.get("clip_qkv") is None else keys.positive_number(config, "clip_qkv")
    experts = facts.expert_count("num_experts", "num_local_experts")
    width = keys.positive_integer(config, "intermediate_size")

    def layer(prefix: str, _index: int) -> LayerDescription:
        return LayerDescription(
            attention=facts.attention(prefix, rope, bias=bias, output_bias=bias, qk_norm=QkNorm.FULL, clip=clip),
            norm=facts.post_norm(prefix),
            router=facts.router(
                f"{prefix}.mlp.gate",
                experts,
                RouterScore.SOFTMAX,
                normalise=keys.switch(config, "norm_topk_prob", False),
            ),
            experts=facts.experts(f"{prefix}.mlp.experts", experts, width),
        )

    return facts.model(layer, rope)
