# SPDX-License-Identifier: Apache-2.0
"""GLM-4-MoE: part of each head rotates, biases, sigmoid scores with a correction, groups, a shared expert, dense first
layers. Layers behind the last that predict further tokens (MTP) are not run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from colibri_sdk.convert.architectures import keys
from colibri_sdk.convert.architectures.blocks import Facts
from colibri_sdk.convert.architectures.deepseek import corrected_router, empty_block, later_layers, shared_block
from colibri_sdk.convert.description import LayerDescription, ModelDescription
from colibri_sdk.image.layout import QkNorm

CLASSES = ("Glm4MoeForCausalLM",)

# What a missing key means.
_DEFAULTS: Mapping[str, Any] = {
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5,
    "first_k_dense_replace": 1,
    "n_shared_experts": 1,
}


def describe(config: Mapping[str, Any], tensors: frozenset[str]) -> ModelDescription:
    config = {**_DEFAULTS, **config}
    facts = Facts.read(config, tensors)
    rope = facts.rope(default_part=0.5)
    bias = keys.switch(config, "attention_bias", False)
    qk_norm = QkNorm.HEAD if keys.switch(config, "use_qk_norm", False) else QkNorm.NONE
    experts = facts.expert_count("n_routed_experts", "num_local_experts")
    width = keys.positive_integer(config, "moe_intermediate_size")
    dense = keys.integer(config, "first_k_dense_replace")

    def layer(prefix: str, index: int) -> LayerDescription:
        attention = facts.attention(prefix, rope, bias=bias, qk_norm=qk_norm)
        norm = facts.post_norm(prefix)
        if index < dense:
            dense_width = keys.positive_integer(config, "intermediate_size")
            return LayerDescription(attention, norm, shared=facts.block(f"{prefix}.mlp", dense_width))
        return LayerDescription(
            attention,
            norm,
            router=corrected_router(facts, prefix, experts),
            experts=facts.experts(f"{prefix}.mlp.experts", experts, width),
            shared=shared_block(facts, prefix, width),
        )

    return facts.model(layer, rope, ignored=(*later_layers(facts), *empty_block(facts)))
