# SPDX-License-Identifier: Apache-2.0
"""Mixtral: top-k experts with a softmax over the chosen, SwiGLU experts.

Published names are block_sparse_moe.experts.E.w1 (gate), w3 (up), w2 (down); later ones mlp.experts.*.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from colibri_sdk.convert.architectures import keys
from colibri_sdk.convert.architectures.blocks import Facts
from colibri_sdk.convert.description import LayerDescription, ModelDescription
from colibri_sdk.image.layout import RouterScore

CLASSES = ("MixtralForCausalLM",)

# What a missing key means.
_DEFAULTS: Mapping[str, Any] = {"num_key_value_heads": 8, "rms_norm_eps": 1e-5}


def describe(config: Mapping[str, Any], tensors: frozenset[str]) -> ModelDescription:
    config = {**_DEFAULTS, **config}
    facts = Facts.read(config, tensors)
    keys.only(config, "attention_bias", False, None)
    rope = facts.rope(default_theta=1e6)
    experts = facts.expert_count("num_local_experts", "num_experts")
    width = keys.positive_integer(config, "intermediate_size")
    window = keys.integer(config, "sliding_window", smallest=1)

    def layer(prefix: str, _index: int) -> LayerDescription:
        renamed = f"{prefix}.mlp.gate.weight" in tensors
        mixture = f"{prefix}.mlp" if renamed else f"{prefix}.block_sparse_moe"
        return LayerDescription(
            attention=facts.attention(prefix, rope, window=window),
            norm=facts.post_norm(prefix),
            router=facts.router(f"{mixture}.gate", experts, RouterScore.LOGIT),
            experts=facts.experts(f"{mixture}.experts", experts, width, names=("w1", "w3", "w2")),
        )

    return facts.model(layer, rope)
