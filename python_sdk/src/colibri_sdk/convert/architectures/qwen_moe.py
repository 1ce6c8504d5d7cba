# SPDX-License-Identifier: Apache-2.0
"""Qwen2-MoE and Qwen3-MoE: softmax over all experts, then the choice; dense layers among the others.

Qwen2-MoE has biases on queries, keys and values, and a shared expert behind a sigmoid gate; Qwen3-MoE normalises
queries and keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from colibri_sdk.convert.architectures import keys
from colibri_sdk.convert.architectures.blocks import Facts, windows
from colibri_sdk.convert.description import LayerDescription, ModelDescription, TensorSource
from colibri_sdk.image.layout import QkNorm, RouterScore

CLASSES = ("Qwen2MoeForCausalLM", "Qwen3MoeForCausalLM")


def describe(config: Mapping[str, Any], tensors: frozenset[str]) -> ModelDescription:
    facts = Facts.read(config, tensors)
    rope = facts.rope()
    older = config["architectures"][0] == "Qwen2MoeForCausalLM"
    bias = keys.switch(config, "qkv_bias", True) if older else keys.switch(config, "attention_bias", False)
    experts = facts.expert_count("num_experts", "num_local_experts")
    width = keys.positive_integer(config, "moe_intermediate_size")
    step = keys.positive_integer(config, "decoder_sparse_step", 1)
    dense = keys.integers(config, "mlp_only_layers")
    window = (0,) * facts.layers
    if keys.switch(config, "use_sliding_window", False):
        first = keys.integer(config, "max_window_layers", 28)
        # The older one alternates below max_window_layers, the newer one has the window everywhere.
        window = windows(facts, default=lambda index: (index + 1) % 2 == 1 and index < first if older else True)

    def layer(prefix: str, index: int) -> LayerDescription:
        attention = facts.attention(
            prefix,
            rope,
            bias=bias,
            output_bias=bias and not older,
            qk_norm=QkNorm.NONE if older else QkNorm.HEAD,
            window=window[index],
        )
        norm = facts.post_norm(prefix)
        if index in dense or (index + 1) % step:
            dense_width = keys.positive_integer(config, "intermediate_size")
            return LayerDescription(attention, norm, shared=facts.block(f"{prefix}.mlp", dense_width))
        shared_width = keys.positive_integer(config, "shared_expert_intermediate_size") if older else 0
        shared = facts.block(f"{prefix}.mlp.shared_expert", shared_width) if older else None
        gate = TensorSource.matrix(f"{prefix}.mlp.shared_expert_gate.weight", 1, facts.hidden) if older else None
        return LayerDescription(
            attention,
            norm,
            router=facts.router(
                f"{prefix}.mlp.gate",
                experts,
                RouterScore.SOFTMAX,
                normalise=keys.switch(config, "norm_topk_prob", False),
            ),
            experts=facts.experts(f"{prefix}.mlp.experts", experts, width),
            shared=shared,
            shared_gate=gate,
        )

    return facts.model(layer, rope)
