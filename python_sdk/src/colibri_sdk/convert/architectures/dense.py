# SPDX-License-Identifier: Apache-2.0
"""Dense Llama and Qwen3: one feed-forward block in each layer and no router. Qwen3 normalises queries and keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from colibri_sdk.convert.architectures import keys
from colibri_sdk.convert.architectures.blocks import Facts, windows
from colibri_sdk.convert.description import LayerDescription, ModelDescription
from colibri_sdk.image.layout import QkNorm

CLASSES = ("LlamaForCausalLM", "Qwen3ForCausalLM")

# What a missing key means.
_LLAMA: Mapping[str, Any] = {}
_QWEN3: Mapping[str, Any] = {
    "num_key_value_heads": 32,
    "head_dim": 128,
    "sliding_window": 4096,
    "max_window_layers": 28,
}


def describe(config: Mapping[str, Any], tensors: frozenset[str]) -> ModelDescription:
    qwen = config["architectures"][0] == "Qwen3ForCausalLM"
    config = {**(_QWEN3 if qwen else _LLAMA), **config}
    facts = Facts.read(config, tensors)
    rope = facts.rope()
    bias = keys.switch(config, "attention_bias", False)
    mlp_bias = not qwen and keys.switch(config, "mlp_bias", False)
    width = keys.positive_integer(config, "intermediate_size")
    window = (0,) * facts.layers
    if qwen and keys.switch(config, "use_sliding_window", False):
        first = keys.integer(config, "max_window_layers")
        window = windows(facts, default=lambda index: index >= first)

    def layer(prefix: str, index: int) -> LayerDescription:
        return LayerDescription(
            attention=facts.attention(
                prefix,
                rope,
                bias=bias,
                output_bias=bias,
                qk_norm=QkNorm.HEAD if qwen else QkNorm.NONE,
                window=window[index],
            ),
            norm=facts.post_norm(prefix),
            shared=facts.block(f"{prefix}.mlp", width, bias=mlp_bias),
        )

    return facts.model(layer, rope)
