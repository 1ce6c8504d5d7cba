# SPDX-License-Identifier: Apache-2.0
"""DeepSeek-V2 and -V3: latent attention, shared experts, dense first layers, groups of experts.

Latent attention is stored for its compressed cache: of kv_b_proj, which expands a latent to the keys and values of all
heads, the keys' part is turned round, head by head, so that it brings queries into the latent space (`absorb`), and the
values' part brings attended latents back (`expand`). Rotating dimensions come first in every head, neighbours sorted
into halves.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from colibri_sdk.convert import rotary
from colibri_sdk.convert.architectures import keys
from colibri_sdk.convert.architectures.blocks import Facts, all_heads, from_tiles_on, pair_halves
from colibri_sdk.convert.description import (
    Attention,
    Ffn,
    Floats,
    LayerDescription,
    ModelDescription,
    Rope,
    Router,
    Rows,
    TensorSource,
)
from colibri_sdk.image.layout import MAX_WIDTH, GroupScore, QkNorm, RouterScore

CLASSES = ("DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM")

# The norms of the low-rank parts have this one, whatever rms_norm_eps says.
_RANK_EPS = 1e-6


# What a missing key means.
_SECOND: Mapping[str, Any] = {"first_k_dense_replace": 0, "n_shared_experts": 2, "q_lora_rank": 1536}
_THIRD: Mapping[str, Any] = {
    "first_k_dense_replace": 3,
    "n_shared_experts": 1,
    "q_lora_rank": 1536,
    "n_group": 8,
    "topk_group": 4,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
}


def describe(config: Mapping[str, Any], tensors: frozenset[str]) -> ModelDescription:
    third = config["architectures"][0] == "DeepseekV3ForCausalLM"
    config = {**(_THIRD if third else _SECOND), **config, "head_dim": config.get("qk_rope_head_dim")}
    facts = Facts.read(config, tensors)
    rope = facts.rope()
    # Only the second one reads these two keys, and only the third lets its rotating dimensions be halves.
    bias = not third and keys.switch(config, "mlp_bias", False)
    pairs = not third or keys.switch(config, "rope_interleave", True)
    experts = facts.expert_count("n_routed_experts", "num_local_experts")
    width = keys.positive_integer(config, "moe_intermediate_size")
    dense = keys.integer(config, "first_k_dense_replace")
    step = keys.positive_integer(config, "moe_layer_freq", 1)

    def layer(prefix: str, index: int) -> LayerDescription:
        attention = _latent_attention(facts, prefix, rope, pairs)
        norm = facts.post_norm(prefix)
        if index < dense or index % step:
            dense_width = keys.positive_integer(config, "intermediate_size")
            return LayerDescription(attention, norm, shared=facts.block(f"{prefix}.mlp", dense_width, bias=bias))
        return LayerDescription(
            attention,
            norm,
            router=corrected_router(facts, prefix, experts) if third else _softmax_router(facts, prefix, experts),
            experts=facts.experts(f"{prefix}.mlp.experts", experts, width),
            shared=shared_block(facts, prefix, width, bias=bias),
        )

    return facts.model(layer, rope, ignored=(*later_layers(facts), *empty_block(facts)))


def later_layers(facts: Facts) -> tuple[str, ...]:
    """Tensors of layers behind the last: they predict further tokens and are not run."""
    name = keys.name_of(facts.config, "num_nextn_predict_layers", "num_mtp_layers")
    count = keys.integer(facts.config, name, 1, largest=64)
    return tuple(rf"model\.layers\.{facts.layers + index}\..*" for index in range(count))


def shared_block(facts: Facts, prefix: str, width: int, *, bias: bool = False) -> Ffn | None:
    """The shared experts, which are one block of their joint width."""
    count = keys.integer(facts.config, "n_shared_experts")
    return facts.block(f"{prefix}.mlp.shared_experts", width * count, bias=bias) if count else None


def empty_block(facts: Facts) -> tuple[str, ...]:
    """Matrices without numbers, which checkpoints without shared experts hold all the same."""
    none = keys.integer(facts.config, "n_shared_experts") == 0
    return (r".*\.mlp\.shared_experts\.\w+\.weight",) if none else ()


def corrected_router(facts: Facts, prefix: str, experts: int) -> Router:
    """Sigmoid scores, a correction that takes part in the choice only, groups worth the sum of their two best."""
    config = facts.config
    keys.only(config, "scoring_func", "sigmoid", None)
    keys.only(config, "topk_method", "noaux_tc", None)
    groups = keys.positive_integer(config, "n_group", 1)
    return facts.router(
        f"{prefix}.mlp.gate",
        experts,
        RouterScore.SIGMOID,
        normalise=keys.switch(config, "norm_topk_prob", True),
        scale=keys.positive_number(config, "routed_scaling_factor", 1.0),
        groups=groups,
        top_groups=keys.positive_integer(config, "topk_group", 1),
        group_score=GroupScore.TOP_TWO if groups > 1 else None,
        correction=TensorSource.vector(f"{prefix}.mlp.gate.e_score_correction_bias", experts),
    )


def _softmax_router(facts: Facts, prefix: str, experts: int) -> Router:
    """Softmax scores; as in the transformers library, norm_topk_prob changes nothing."""
    config = facts.config
    keys.only(config, "scoring_func", "softmax", None)
    keys.only(config, "topk_method", "greedy", "group_limited_greedy")
    grouped = config.get("topk_method") == "group_limited_greedy"
    groups = keys.positive_integer(config, "n_group", 1) if grouped else 1
    return facts.router(
        f"{prefix}.mlp.gate",
        experts,
        RouterScore.SOFTMAX,
        scale=keys.positive_number(config, "routed_scaling_factor", 1.0),
        groups=groups,
        top_groups=keys.positive_integer(config, "topk_group", 1) if groups > 1 else 1,
        group_score=GroupScore.MAX if groups > 1 else None,
    )


def _latent_attention(facts: Facts, prefix: str, rope: Rope, pairs: bool) -> Attention:
    """`pairs`: rotating dimensions are neighbours."""
    config, hidden, heads, own = facts.config, facts.hidden, facts.heads, f"{prefix}.self_attn"
    widest = MAX_WIDTH // heads
    nope = keys.positive_integer(config, "qk_nope_head_dim", largest=widest)
    turning = keys.positive_integer(config, "qk_rope_head_dim", largest=widest)
    latent = keys.positive_integer(config, "kv_lora_rank", largest=widest)
    values = keys.positive_integer(config, "v_head_dim", largest=widest)
    bias = keys.switch(config, "attention_bias", False)
    low = config.get("q_lora_rank")
    rank = hidden if low is None else keys.positive_integer(config, "q_lora_rank")
    each = nope + values

    # Stored: the part that does not rotate, then the one that does, whose neighbours rotate together.
    sorted_pairs: Rows = pair_halves(turning, turning) if pairs else np.arange(turning)
    query_order = np.concatenate([nope + sorted_pairs, np.arange(nope)])
    key_order = np.concatenate([latent + sorted_pairs, np.arange(latent)])

    def absorb(whole: Floats) -> Floats:
        keys_part = whole.reshape(heads, each, latent)[:, :nope]
        return np.ascontiguousarray(keys_part.transpose(0, 2, 1)).reshape(heads * latent, nope)

    if f"{own}.k_b_proj.weight" in facts.tensors:  # taken apart and turned round already
        absorbing = TensorSource.matrix(f"{own}.k_b_proj.weight", heads * latent, nope)
        expanding = TensorSource.matrix(f"{own}.v_b_proj.weight", heads * values, latent)
    else:
        expansion, shape = f"{own}.kv_b_proj.weight", (heads * each, latent)
        absorbing = TensorSource(expansion, heads * latent, nope, shape, transform=absorb)
        value_rows = all_heads(np.arange(nope, each), heads, each)
        expanding = TensorSource(expansion, heads * values, latent, shape, order=value_rows)
    query = f"{own}.q_proj" if low is None else f"{own}.q_b_proj"
    return Attention(
        heads=heads,
        kv_heads=1,
        query_dim=turning + nope,
        head_dim=turning + latent,
        value_dim=latent,
        output_dim=values,
        rotary_dim=turning,
        scale=(turning + nope) ** -0.5 * _temperature(config),
        norm_eps=facts.norm_eps,
        qk_norm_eps=_RANK_EPS,
        qk_norm=QkNorm.LATENT,
        norm=TensorSource.vector(f"{prefix}.input_layernorm.weight", hidden),
        query_down=None if low is None else facts.linear(f"{own}.q_a_proj", rank, hidden, bias=bias),
        query_down_norm=None if low is None else TensorSource.vector(f"{own}.q_a_layernorm.weight", rank),
        query=facts.linear(query, heads * (turning + nope), rank, order=all_heads(query_order, heads)),
        key=facts.linear(f"{own}.kv_a_proj_with_mqa", turning + latent, hidden, bias=bias, order=key_order),
        value=None,
        key_norm=TensorSource.vector(f"{own}.kv_a_layernorm.weight", latent),
        absorb=from_tiles_on(absorbing, heads),
        expand=from_tiles_on(expanding, heads),
        output=facts.linear(f"{own}.o_proj", hidden, heads * values, bias=bias),
    )


def _temperature(config: Mapping[str, Any]) -> float:
    """YaRN's factor on attention scores, where the checkpoint applies it to all dimensions."""
    settings = rotary.rope_settings(config)
    weight = settings.get("mscale_all_dim") or 0.0
    if settings["rope_type"] == "default" or not weight:
        return 1.0
    return rotary.mscale(rotary.yarn_factor(config), float(weight)) ** 2
