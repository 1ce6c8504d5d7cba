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

# What a missing key means.
_QWEN2: Mapping[str, Any] = {
    "num_key_value_heads": 16,
    "qkv_bias": True,
    "sliding_window": 4096,
    "max_window_layers": 28,
    "shared_expert_intermediate_size": 5632,
}
_QWEN3: Mapping[str, Any] = {"num_key_value_heads": 4, "sliding_window": 4096}


def describe(config: Mapping[str, Any], tensors: frozenset[str]) -> ModelDescription:
    older = config["architectures"][0] == "Qwen2MoeForCausalLM"
    config = {**(_QWEN2 if older else _QWEN3), **config}
    facts = Facts.read(config, tensors)
    rope = facts.rope()
    bias = keys.switch(config, "qkv_bias" if older else "attention_bias", False)
    experts = facts.expert_count("num_experts", "num_local_experts", smallest=0)
    step = keys.positive_integer(config, "decoder_sparse_step", 1)
    shared_width = keys.integer(config, "shared_expert_intermediate_size") if older else 0
    dense = keys.integers(config, "mlp_only_layers")
    window = _windows(facts, older) if keys.switch(config, "use_sliding_window", False) else (0,) * facts.layers

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
        if experts == 0 or index in dense or (index + 1) % step:
            dense_width = keys.positive_integer(config, "intermediate_size")
            return LayerDescription(attention, norm, shared=facts.block(f"{prefix}.mlp", dense_width))
        return LayerDescription(
            attention,
            norm,
            router=facts.router(
                f"{prefix}.mlp.gate",
                experts,
                RouterScore.SOFTMAX,
                normalise=keys.switch(config, "norm_topk_prob", False),
            ),
            experts=facts.experts(
                f"{prefix}.mlp.experts", experts, keys.positive_integer(config, "moe_intermediate_size")
            ),
            shared=facts.block(f"{prefix}.mlp.shared_expert", shared_width) if shared_width else None,
            shared_gate=TensorSource.matrix(f"{prefix}.mlp.shared_expert_gate.weight", 1, facts.hidden)
            if shared_width
            else None,
        )

    # A shared expert of width 0 has matrices without numbers, and a gate that multiplies nothing.
    empty = older and shared_width == 0
    return facts.model(layer, rope, ignored=(r".*\.mlp\.shared_expert(_gate|\.\w+)\.weight",) if empty else ())


def _windows(facts: Facts, older: bool) -> tuple[int, ...]:
    """Qwen2-MoE has windows in every other layer below max_window_layers, Qwen3-MoE in all layers, whatever
    layer_types says."""
    if not older:
        return (keys.integer(facts.config, "sliding_window", smallest=1),) * facts.layers
    first = keys.integer(facts.config, "max_window_layers")
    return windows(facts, default=lambda index: index % 2 == 0 and index < first)
