# SPDX-License-Identifier: Apache-2.0
"""Ernie-4.5-MoE: neighbours rotate together, softmax scores with a correction for the choice, shared experts, dense
layers at the ends, tied embeddings. Parts that predict further tokens (MTP) are not run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from colibri_sdk.convert.architectures import keys
from colibri_sdk.convert.architectures.blocks import Facts
from colibri_sdk.convert.description import LayerDescription, ModelDescription, TensorSource
from colibri_sdk.image.layout import RouterScore

CLASSES = ("Ernie4_5_MoeForCausalLM",)

# What a missing key means.
_DEFAULTS: Mapping[str, Any] = {
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "moe_num_shared_experts": 2,
    "moe_layer_start_index": 1,
    "moe_layer_end_index": -1,
}


def describe(config: Mapping[str, Any], tensors: frozenset[str]) -> ModelDescription:
    config = {**_DEFAULTS, **config}
    facts = Facts.read(config, tensors)
    rope = facts.rope(default_theta=500000.0)
    bias = keys.switch(config, "use_bias", False)
    experts = facts.expert_count("moe_num_experts", "num_experts", "num_local_experts")
    width = keys.positive_integer(config, "moe_intermediate_size")
    first = keys.integer(config, "moe_layer_start_index")
    last = keys.integer(config, "moe_layer_end_index", smallest=-1)
    last = facts.layers - 1 if last == -1 else last
    interval = keys.positive_integer(config, "moe_layer_interval", 1)
    shared = keys.integer(config, "moe_num_shared_experts")
    smallest_sum = keys.positive_number(config, "moe_norm_min", 1e-12)

    def layer(prefix: str, index: int) -> LayerDescription:
        attention = facts.attention(prefix, rope, bias=bias, output_bias=bias, neighbours=True)
        norm = facts.post_norm(prefix)
        if (index + 1) % interval or not first <= index <= last:
            dense_width = keys.positive_integer(config, "intermediate_size")
            return LayerDescription(attention, norm, shared=facts.block(f"{prefix}.mlp", dense_width, bias=bias))
        later = f"{prefix}.mlp.gate.moe_statics.e_score_correction_bias"
        correction = later if later in tensors else f"{prefix}.mlp.moe_statics.e_score_correction_bias"
        return LayerDescription(
            attention,
            norm,
            router=facts.router(
                f"{prefix}.mlp.gate",
                experts,
                RouterScore.SOFTMAX,
                top_k_names=("moe_k", "num_experts_per_tok"),
                normalise=True,
                smallest_sum=smallest_sum,
                correction=TensorSource(correction, 1, experts, (1, experts), is_vector=True),
            ),
            experts=facts.experts(f"{prefix}.mlp.experts", experts, width),
            shared=facts.block(f"{prefix}.mlp.shared_experts", width * shared, bias=bias) if shared else None,
        )

    return facts.model(layer, rope, head_bias=bias, ignored=(r".*\bmtp_.*",))
