# SPDX-License-Identifier: Apache-2.0
"""Mixtral: grouped-query attention, top-k experts with a softmax over the chosen, SwiGLU experts.

Tensor names in two spellings: one tensor for each matrix of each expert, as published (block_sparse_moe.experts.E.w1
is the gate, w3 up, w2 down), or all experts of a layer in one (mlp.experts.gate_up_proj [experts][2 * width][hidden],
gate first, and mlp.experts.down_proj [experts][hidden][width]), as in the memory of recent transformers versions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from colibri_sdk.convert.architectures import keys
from colibri_sdk.convert.description import ExpertDescription, LayerDescription, ModelDescription, TensorSource
from colibri_sdk.errors import CheckpointError
from colibri_sdk.image.layout import MAX_EOS, MAX_EXPERTS, MAX_LAYERS, RouterKind


def describe(config: Mapping[str, Any], tensors: frozenset[str]) -> ModelDescription:
    """Maps config.json and tensor names to a description."""
    hidden = keys.positive_integer(config, "hidden_size")
    heads = keys.positive_integer(config, "num_attention_heads")
    kv_heads = keys.positive_integer(config, "num_key_value_heads", heads)
    head_dim = keys.positive_integer(config, "head_dim", max(hidden // heads, 1))
    vocab = keys.positive_integer(config, "vocab_size")
    context = keys.positive_integer(config, "max_position_embeddings")
    norm_eps = keys.positive_number(config, "rms_norm_eps", 1e-5)
    keys.only(config, "hidden_act", "silu")
    keys.only(config, "attention_bias", False, None)
    keys.only(config, "quantization_config", None)
    # A window as wide as the context masks nothing.
    if config.get("sliding_window") is not None and keys.positive_integer(config, "sliding_window") < context:
        raise CheckpointError(
            f"config.json has sliding_window = {config['sliding_window']}, less than its {context} positions",
            "Sliding windows are not supported; pack a checkpoint without one.",
            where="sliding_window",
        )
    if heads % kv_heads:
        raise CheckpointError(
            f"config.json has {heads} attention heads for {kv_heads} key/value heads",
            "The first must be a multiple of the second.",
            where="num_key_value_heads",
        )
    if "head_dim" not in config and hidden % heads:
        raise CheckpointError(
            f"config.json has hidden_size = {hidden} and {heads} heads, but no head_dim", where="head_dim"
        )
    if head_dim % 2:
        raise CheckpointError(f"head_dim = {head_dim} is odd; rotary positions need pairs", where="head_dim")
    tied = config.get("tie_word_embeddings", False) is True
    # A tied checkpoint may store the head again; it is then the same matrix and is not needed.
    return ModelDescription(
        architecture="MixtralForCausalLM",
        vocab=vocab,
        hidden=hidden,
        context_max=context,
        rotary_dim=head_dim,
        rope_theta=keys.rope_theta(config, 1e6),
        norm_eps=norm_eps,
        eos=keys.end_tokens(config, vocab, MAX_EOS),
        embedding=TensorSource.matrix("model.embed_tokens.weight", vocab, hidden),
        final_norm=TensorSource.vector("model.norm.weight", hidden),
        head=None if tied else TensorSource.matrix("lm_head.weight", vocab, hidden),
        layers=tuple(
            _layer(f"model.layers.{index}", config, tensors, hidden, heads, kv_heads, head_dim, norm_eps)
            for index in range(keys.positive_integer(config, "num_hidden_layers", largest=MAX_LAYERS))
        ),
        ignored_tensors=(r"lm_head\.weight",) if tied else (),
    )


def _layer(
    prefix: str,
    config: Mapping[str, Any],
    tensors: frozenset[str],
    hidden: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    norm_eps: float,
) -> LayerDescription:
    norm = f"{prefix}.input_layernorm.weight"
    if norm not in tensors:
        # Said before a description of layers without end is made of a wrong num_hidden_layers.
        raise CheckpointError(
            f"{prefix} is missing: config.json has num_hidden_layers = {config['num_hidden_layers']}, "
            f"and the checkpoint has no {norm}",
            "Fetch missing shards, or config.json of the same checkpoint.",
            where=norm,
        )
    attention = f"{prefix}.self_attn"
    mixture = f"{prefix}.mlp" if f"{prefix}.mlp.gate.weight" in tensors else f"{prefix}.block_sparse_moe"
    experts_key = "num_experts" if config.get("num_local_experts") is None else "num_local_experts"
    experts = keys.positive_integer(config, experts_key, largest=MAX_EXPERTS)
    width = keys.positive_integer(config, "intermediate_size")
    top_k = keys.positive_integer(config, "num_experts_per_tok")
    if top_k > experts:
        raise CheckpointError(
            f"config.json chooses {top_k} of {experts} experts", "Fetch config.json again.", where="num_experts_per_tok"
        )
    fused = f"{mixture}.experts.gate_up_proj" in tensors
    one = _fused_expert if fused else _separate_expert
    return LayerDescription(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        attention_scale=head_dim**-0.5,
        norm_eps=norm_eps,
        router_kind=RouterKind.TOPK_SOFTMAX,
        top_k=top_k,
        expert_width=width,
        attention_norm=TensorSource.vector(norm, hidden),
        query=TensorSource.matrix(f"{attention}.q_proj.weight", heads * head_dim, hidden),
        key=TensorSource.matrix(f"{attention}.k_proj.weight", kv_heads * head_dim, hidden),
        value=TensorSource.matrix(f"{attention}.v_proj.weight", kv_heads * head_dim, hidden),
        output=TensorSource.matrix(f"{attention}.o_proj.weight", hidden, heads * head_dim),
        expert_norm=TensorSource.vector(f"{prefix}.post_attention_layernorm.weight", hidden),
        router=TensorSource.matrix(f"{mixture}.gate.weight", experts, hidden),
        experts=tuple(one(f"{mixture}.experts", index, experts, width, hidden) for index in range(experts)),
    )


def _separate_expert(prefix: str, index: int, _experts: int, width: int, hidden: int) -> ExpertDescription:
    return ExpertDescription(
        gate=TensorSource.matrix(f"{prefix}.{index}.w1.weight", width, hidden),
        up=TensorSource.matrix(f"{prefix}.{index}.w3.weight", width, hidden),
        down=TensorSource.matrix(f"{prefix}.{index}.w2.weight", hidden, width),
    )


def _fused_expert(prefix: str, index: int, experts: int, width: int, hidden: int) -> ExpertDescription:
    both = (experts, 2 * width, hidden)
    return ExpertDescription(
        gate=TensorSource(f"{prefix}.gate_up_proj", width, hidden, both, expert=index),
        up=TensorSource(f"{prefix}.gate_up_proj", width, hidden, both, expert=index, first_row=width),
        down=TensorSource(f"{prefix}.down_proj", hidden, width, (experts, hidden, width), expert=index),
    )
