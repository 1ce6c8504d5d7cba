# SPDX-License-Identifier: Apache-2.0
"""Granite-MoE: multipliers on embedding, attention, residuals and logits; experts in fused tensors.

The multipliers go into the weights: the embedding is stored multiplied, attention's output and the experts' down
matrices carry the residual's, and the head is stored divided. Only attention's own one is a field of the description.
Published names are block_sparse_moe.input_linear.weight and router.layer.weight; later ones experts.gate_up_proj and
router.weight.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from colibri_sdk.convert.architectures import keys
from colibri_sdk.convert.architectures.blocks import Facts
from colibri_sdk.convert.description import LayerDescription, ModelDescription
from colibri_sdk.image.layout import RouterScore

CLASSES = ("GraniteMoeForCausalLM",)

_PUBLISHED = ("input_linear.weight", "output_linear.weight")
_RENAMED = ("experts.gate_up_proj", "experts.down_proj")


def describe(config: Mapping[str, Any], tensors: frozenset[str]) -> ModelDescription:
    facts = Facts.read(config, tensors)
    rope = facts.rope()
    bias = keys.switch(config, "attention_bias", False)
    residual = keys.positive_number(config, "residual_multiplier", 1.0)
    experts = facts.expert_count("num_local_experts", "num_experts")
    width = keys.positive_integer(config, "intermediate_size")

    def layer(prefix: str, _index: int) -> LayerDescription:
        mixture = f"{prefix}.block_sparse_moe"
        renamed = f"{mixture}.router.weight" in tensors
        fused = _RENAMED if renamed else _PUBLISHED
        return LayerDescription(
            attention=facts.attention(
                prefix,
                rope,
                bias=bias,
                output_bias=bias,
                scale=keys.positive_number(config, "attention_multiplier", 1.0),
                residual=residual,
            ),
            norm=facts.post_norm(prefix),
            router=facts.router(f"{mixture}.{'router' if renamed else 'router.layer'}", experts, RouterScore.LOGIT),
            experts=facts.experts(mixture, experts, width, fused=fused, residual=residual),
        )

    return facts.model(
        layer,
        rope,
        embedding_scale=keys.positive_number(config, "embedding_multiplier", 1.0),
        head_scale=1.0 / keys.positive_number(config, "logits_scaling", 1.0),
    )
