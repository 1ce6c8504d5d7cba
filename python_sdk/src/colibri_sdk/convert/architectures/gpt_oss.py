# SPDX-License-Identifier: Apache-2.0
"""gpt-oss: biases everywhere, attention sinks, a sliding window in every other layer, clamped SwiGLU, YaRN.

Experts are stored together, gate and up as even and odd outputs: in floats with a row for each input, in MXFP4, as
published, with a row for each output (mxfp4.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from colibri_sdk.convert.architectures import keys
from colibri_sdk.convert.architectures.blocks import Experts, Facts, windows
from colibri_sdk.convert.description import (
    Ffn,
    Floats,
    LayerDescription,
    Linear,
    ModelDescription,
    Rows,
    TensorSource,
)
from colibri_sdk.image.layout import Activation, RouterScore

CLASSES = ("GptOssForCausalLM",)

# What a missing key means ...
_DEFAULTS: Mapping[str, Any] = {
    "num_key_value_heads": 8,
    "head_dim": 64,
    "rms_norm_eps": 1e-5,
    "sliding_window": 128,
}
# ... and what it means to say nothing about rotary positions.
_ROPE: Mapping[str, Any] = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}


def describe(config: Mapping[str, Any], tensors: frozenset[str]) -> ModelDescription:
    config = {**_DEFAULTS, **config}
    if not config.get("rope_scaling") and not config.get("rope_parameters"):
        config["rope_parameters"] = dict(_ROPE)
    facts = Facts.read(config, tensors)
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
            experts=Experts(experts, lambda e: _expert(facts, f"{prefix}.mlp.experts", e, experts, width)),
            activation=Activation.SWIGLU_CLAMPED,
            limit=keys.positive_number(config, "swiglu_limit", 7.0),
            alpha=keys.positive_number(config, "swiglu_alpha", 1.702),
        )

    return facts.model(layer, rope)


def _expert(facts: Facts, prefix: str, index: int, count: int, width: int) -> Ffn:
    """One expert in any of three spellings: a tensor for each matrix of each expert; all experts in one tensor, rows
    being inputs; the same in MXFP4, rows being outputs."""
    hidden = facts.hidden
    if f"{prefix}.{index}.gate_proj.weight" in facts.tensors:
        return facts.block(f"{prefix}.{index}", width, bias=True)
    both, down = f"{prefix}.gate_up_proj", f"{prefix}.down_proj"
    even, odd = np.arange(0, 2 * width, 2), np.arange(1, 2 * width, 2)

    def matrix(name: str, rows: Rows, outputs: int, inputs: int) -> TensorSource:
        """The outputs `rows` of the `outputs` that an expert has in tensor `name`."""
        if f"{name}_blocks" in facts.tensors:
            packed = (count, outputs, inputs)
            return TensorSource(f"{name}_blocks", rows.size, inputs, packed, expert=index, order=rows)

        def turn(whole: Floats) -> Floats:
            return np.ascontiguousarray(whole[:, rows].T)

        return TensorSource(name, rows.size, inputs, (count, inputs, outputs), expert=index, transform=turn)

    def bias(name: str, rows: Rows, outputs: int) -> TensorSource:
        shape = (count, outputs)
        return TensorSource(f"{name}_bias", 1, rows.size, shape, expert=index, order=rows, is_vector=True)

    def linear(name: str, rows: Rows, outputs: int, inputs: int) -> Linear:
        return Linear(matrix(name, rows, outputs, inputs), bias(name, rows, outputs))

    return Ffn(
        gate=linear(both, even, 2 * width, hidden),
        up=linear(both, odd, 2 * width, hidden),
        down=linear(down, np.arange(hidden), hidden, width),
    )
