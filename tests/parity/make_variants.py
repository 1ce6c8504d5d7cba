#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes tests/parity/variants: what the tiny checkpoints of tests/parity do not vary, each as small as it can be.

Options of every architecture, sizes that fill no block and no tile, scalings of rotary positions, spellings of
config.json and of tensor names, number formats, shards, tensors that nobody needs. Each folder is a Hugging Face
checkpoint with a reference.json of the same form as its neighbours', computed by transformers in float32 from the
weights as they are stored. Wherever transformers can read the folder back, it must find the same numbers in it.

The result depends on the versions of torch and transformers alone.

Usage:  make_variants.py [NAME ...]      needs torch and transformers; not run by the test suite
"""

from __future__ import annotations

import json
import math
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

HERE = Path(__file__).resolve().parent / "variants"
PROMPT, LAST, NEW, SEEDS = 24, 4, 16, 200

# Distances from a tie that inputs must keep: of a router's choice, of a greedy token.
ROUTER_GAP, GREEDY_GAP = 2e-3, 0.02

Tensors = dict[str, torch.Tensor]
Config = dict[str, Any]

BASE: Config = {
    "vocab_size": 48, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 128, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1,
    "tie_word_embeddings": False,
}  # fmt: skip
MLA: Config = {
    "num_key_value_heads": 4, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8,
    "intermediate_size": 24, "moe_intermediate_size": 8, "n_routed_experts": 6, "n_shared_experts": 1,
    "num_experts_per_tok": 2, "first_k_dense_replace": 1,
}  # fmt: skip

# Of each architecture: the name of its classes, and what BASE lacks.
ARCHITECTURES: dict[str, tuple[str, Config]] = {
    "llama": ("Llama", {"intermediate_size": 28}),
    "qwen3": ("Qwen3", {"intermediate_size": 28, "head_dim": 10}),
    "mixtral": ("Mixtral", {"intermediate_size": 12, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen2_moe": ("Qwen2Moe", {
        "intermediate_size": 24, "moe_intermediate_size": 8, "shared_expert_intermediate_size": 12, "num_experts": 4,
        "num_experts_per_tok": 2, "mlp_only_layers": [],
    }),
    "qwen3_moe": ("Qwen3Moe", {
        "intermediate_size": 24, "moe_intermediate_size": 8, "num_experts": 4, "num_experts_per_tok": 2, "head_dim": 10,
        "mlp_only_layers": [],
    }),
    "olmoe": ("Olmoe", {"intermediate_size": 8, "num_experts": 5, "num_experts_per_tok": 2}),
    "granitemoe": ("GraniteMoe", {
        "intermediate_size": 8, "num_local_experts": 5, "num_experts_per_tok": 2, "attention_multiplier": 0.3,
    }),
    "deepseek_v2": ("DeepseekV2", {**MLA, "q_lora_rank": None, "topk_method": "greedy"}),
    "deepseek_v3": ("DeepseekV3", {
        **MLA, "q_lora_rank": 12, "n_group": 3, "topk_group": 2, "num_mtp_layers": 0,
    }),
    "gpt_oss": ("GptOss", {
        "intermediate_size": 12, "num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 8, "sliding_window": 6,
    }),
    "glm4_moe": ("Glm4Moe", {
        "intermediate_size": 24, "moe_intermediate_size": 8, "n_routed_experts": 6, "n_shared_experts": 1,
        "num_experts_per_tok": 2, "head_dim": 16, "attention_bias": True, "use_qk_norm": True, "num_mtp_layers": 0,
    }),
    "ernie4_5_moe": ("Ernie4_5_Moe", {
        "intermediate_size": 24, "moe_intermediate_size": 8, "moe_num_experts": 5, "moe_k": 2,
        "moe_num_shared_experts": 1, "tie_word_embeddings": True,
    }),
}  # fmt: skip


@dataclass(frozen=True)
class Variant:
    """One folder. `changes` are options of the configuration class; the rest says how it is written down.

    `rope`: the rotary settings stand in rope_parameters ("new"), in rope_theta and rope_scaling ("old"), in both or in
    neither. `edit` changes config.json, `rename` the tensors; both keep the meaning, or the readers that give it.
    `alone`: transformers cannot read it back.
    """

    architecture: str
    tag: str
    changes: Config = field(default_factory=dict)
    dtype: torch.dtype = torch.bfloat16
    rope: str = "both"
    shards: int = 1
    edit: Callable[[Config], None] | None = None
    rename: Callable[[Tensors, Config], Tensors] | None = None
    alone: bool = False

    @property
    def name(self) -> str:
        return f"{self.architecture}-{self.tag}"


# ---------------------------------------------------------------------------------------------------------- spellings


def rope(kind: str, theta: float = 10000.0, **settings: Any) -> Config:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": theta, **settings}}


def without(*keys: str) -> Callable[[Config], None]:
    def edit(config: Config) -> None:
        for key in keys:
            del config[key]

    return edit


def fused(tensors: Tensors, _config: Config) -> Tensors:
    """Experts in one tensor for each layer, as recent versions of transformers keep them in memory."""
    kept = {name: value for name, value in tensors.items() if not re.search(r"\.experts\.\d+\.", name)}
    parts = ("gate_proj", "up_proj", "down_proj")
    if any("block_sparse_moe" in name for name in tensors):
        parts = ("w1", "w3", "w2")
        kept = {name.replace("block_sparse_moe", "mlp"): value for name, value in kept.items()}
    stems = {match[1] for name in tensors if (match := re.match(r"(.*\.experts)\.\d+\.", name))}
    for stem in sorted(stems):
        count = 1 + max(int(m[1]) for name in tensors if (m := re.match(re.escape(stem) + r"\.(\d+)\.", name)))
        gate, up, down = (torch.stack([tensors[f"{stem}.{e}.{part}.weight"] for e in range(count)]) for part in parts)
        renamed = stem.replace("block_sparse_moe", "mlp")
        kept[f"{renamed}.gate_up_proj"] = torch.cat([gate, up], 1)
        kept[f"{renamed}.down_proj"] = down
    return kept


def renamed(pattern: str, replacement: str) -> Callable[[Tensors, Config], Tensors]:
    def rename(tensors: Tensors, _config: Config) -> Tensors:
        return {re.sub(pattern, replacement, name): value for name, value in tensors.items()}

    return rename


def granite_later(tensors: Tensors, _config: Config) -> Tensors:
    names = {"input_linear.weight": "experts.gate_up_proj", "output_linear.weight": "experts.down_proj"}
    names["router.layer.weight"] = "router.weight"
    return {
        re.sub("|".join(map(re.escape, names)), lambda m: names[m[0]], name): value for name, value in tensors.items()
    }


def with_later_layers(tensors: Tensors, config: Config) -> Tensors:
    """A layer behind the last, which predicts further tokens."""
    last, next_ = config["num_hidden_layers"] - 1, config["num_hidden_layers"]
    prefix = f"model.layers.{next_}"
    more = {
        name.replace(f"model.layers.{last}.", f"{prefix}."): value.clone()
        for name, value in tensors.items()
        if name.startswith(f"model.layers.{last}.")
    }
    hidden, embedding = config["hidden_size"], tensors["model.embed_tokens.weight"]
    more |= {f"{prefix}.{name}.weight": torch.ones(hidden, dtype=embedding.dtype) for name in ("enorm", "hnorm")}
    more |= {f"{prefix}.embed_tokens.weight": embedding.clone(), f"{prefix}.shared_head.head.weight": embedding.clone()}
    more[f"{prefix}.eh_proj.weight"] = torch.ones(hidden, 2 * hidden, dtype=embedding.dtype)
    return tensors | more


def with_mtp(tensors: Tensors, config: Config) -> Tensors:
    """Ernie's parts that predict further tokens."""
    hidden, dtype = config["hidden_size"], tensors["model.norm.weight"].dtype
    more = {f"model.mtp_{name}_norm.0.weight": torch.ones(hidden, dtype=dtype) for name in ("emb", "hidden")}
    more["model.mtp_linear_proj.0.weight"] = torch.ones(hidden, 2 * hidden, dtype=dtype)
    more["model.mtp_block.0.self_attn.q_proj.weight"] = torch.ones(hidden, hidden, dtype=dtype)
    return tensors | more


def mxfp4(tensors: Tensors, _config: Config) -> Tensors:
    """The experts of gpt-oss as they are published; quantise() has made their numbers such that this is exact."""
    made = {}
    for name, value in tensors.items():
        if re.search(r"experts\.(gate_up|down)_proj$", name):
            blocks, scales = pack_mxfp4(value.transpose(1, 2))
            made[f"{name}_blocks"], made[f"{name}_scales"] = blocks, scales
        else:
            made[name] = value
    return made


CODES = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0])


def pack_mxfp4(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[experts][outputs][inputs] as pairs of codes [experts][outputs][blocks][16] and exponents [...][blocks]."""
    blocks = rows.float().unflatten(-1, (-1, 32))
    peak = blocks.abs().amax(-1).clamp(min=2.0**-100)
    exponent = torch.floor(torch.log2(peak)) - 2
    codes = (blocks / 2.0 ** exponent[..., None]).unsqueeze(-1).sub(CODES).abs().argmin(-1).to(torch.uint8)
    return codes[..., 0::2] | (codes[..., 1::2] << 4), (exponent + 127).to(torch.uint8)


def quantise(model: Any) -> None:
    """Rounds gpt-oss's experts to what MXFP4 holds, by transformers' own reading of the packed form."""
    with torch.no_grad():
        for name, value in model.named_parameters():
            if re.search(r"experts\.(gate_up|down)_proj$", name):
                blocks, scales = pack_mxfp4(value.transpose(1, 2))
                value.copy_(convert_moe_packed_tensors(blocks, scales, dtype=torch.float32))


def mxfp4_config(config: Config) -> None:
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}


# ----------------------------------------------------------------------------------------------------------- variants

F32, F16 = torch.float32, torch.float16
ODD: Config = {"vocab_size": 45, "hidden_size": 18, "num_attention_heads": 3, "num_key_value_heads": 1}
YARN: Config = rope("yarn", factor=4.0, original_max_position_embeddings=32)
ODD_MLA: Config = {
    **ODD, "num_key_value_heads": 3, "kv_lora_rank": 25, "qk_nope_head_dim": 7, "qk_rope_head_dim": 6, "v_head_dim": 5,
    "intermediate_size": 19, "moe_intermediate_size": 9, "n_routed_experts": 7, "num_experts_per_tok": 3,
}  # fmt: skip
VARIANTS: list[Variant] = [
    Variant("llama", "odd", {**ODD, "intermediate_size": 37, "num_hidden_layers": 1}, F32),
    Variant("llama", "biases", {"attention_bias": True, "mlp_bias": True}),
    Variant("llama", "tied", {"tie_word_embeddings": True, "num_hidden_layers": 1}, F16),
    Variant("llama", "wide-heads", {"head_dim": 14, "num_hidden_layers": 1}, rope="new"),
    Variant("llama", "linear", rope("linear", factor=3.0), rope="old"),
    Variant("llama", "dynamic", rope("dynamic", factor=2.0), rope="old"),
    Variant("llama", "yarn", YARN, rope="old"),
    Variant("llama", "yarn-settings", {"head_dim": 16, "num_hidden_layers": 1, **rope(
        "yarn", factor=4.0, original_max_position_embeddings=64, beta_fast=16.0, beta_slow=2.0, truncate=False,
        attention_factor=1.3,
    )}, rope="new"),
    Variant("llama", "yarn-mscale", rope(
        "yarn", factor=8.0, original_max_position_embeddings=16, mscale=0.9, mscale_all_dim=0.4), rope="old"),
    # A ramp that ends behind the last dimension, and a context that only max_position_embeddings states.
    Variant("llama", "yarn-low-base", {"max_position_embeddings": 2048, "num_hidden_layers": 1, "head_dim": 16, **rope(
        "yarn", theta=8.0, factor=2.0, original_max_position_embeddings=1024)}, rope="old"),
    Variant("llama", "yarn-no-original", {"num_hidden_layers": 1, **rope("yarn", factor=4.0)}, rope="old",
            edit=lambda config: config["rope_scaling"].pop("original_max_position_embeddings")),
    Variant("llama", "llama3", rope(
        "llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32,
        theta=500000.0), rope="old"),
    Variant("llama", "llama3-new", rope(
        "llama3", factor=4.0, low_freq_factor=1.0, high_freq_factor=2.0, original_max_position_embeddings=64),
        rope="new"),
    # All positions are in the context's first part, or none.
    Variant("llama", "longrope-short", {"max_position_embeddings": 64, "head_dim": 10, **rope(
        "longrope", factor=4.0, original_max_position_embeddings=64, short_factor=[1.0, 1.1, 1.3, 1.7, 2.5],
        long_factor=[1.0, 2.0, 3.0, 4.0, 5.0])}, rope="old"),
    Variant("llama", "longrope-long", {"head_dim": 10, **rope(
        "longrope", original_max_position_embeddings=16, short_factor=[1.0, 1.1, 1.3, 1.7, 2.5],
        long_factor=[1.0, 2.0, 3.0, 4.0, 5.0])}, rope="old"),
    Variant("llama", "longrope-settings", {"head_dim": 10, "num_hidden_layers": 1, **rope(
        "longrope", factor=8.0, attention_factor=1.2, original_max_position_embeddings=16,
        short_factor=[1.0] * 5, long_factor=[1.0, 1.5, 2.5, 4.5, 8.0])}, rope="new"),
    Variant("llama", "shards", {"num_hidden_layers": 3}, shards=3),
    Variant("llama", "kv-heads", {"num_key_value_heads": None}, edit=without("num_key_value_heads", "head_dim")),
    Variant("qwen3", "window", {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
            edit=without("layer_types")),
    Variant("qwen3", "layer-types", {
        "use_sliding_window": True, "sliding_window": 7, "layer_types": ["sliding_attention", "full_attention"]}),
    Variant("qwen3", "bias-tied", {"attention_bias": True, "tie_word_embeddings": True, "rms_norm_eps": 1e-3}),
    Variant("qwen3", "odd", {**ODD, "head_dim": 14, "intermediate_size": 33, "num_hidden_layers": 1}, F32),
    Variant("mixtral", "top-3-of-5", {"num_local_experts": 5, "num_experts_per_tok": 3}),
    Variant("mixtral", "one-expert", {"num_local_experts": 1, "num_experts_per_tok": 1}),
    Variant("mixtral", "all-experts", {"num_local_experts": 3, "num_experts_per_tok": 3}, F16),
    Variant("mixtral", "window-tied", {"sliding_window": 6, "tie_word_embeddings": True}),
    Variant("mixtral", "fused", {"num_hidden_layers": 1}, rename=fused),
    Variant("mixtral", "fused-shards", {}, F16, shards=2, rename=fused),
    Variant("mixtral", "odd", {
        **ODD, "intermediate_size": 7, "num_local_experts": 17, "num_experts_per_tok": 5, "num_hidden_layers": 1}),
    Variant("mixtral", "plain-config", edit=without("num_key_value_heads", "rms_norm_eps", "sliding_window"),
            changes={"hidden_size": 32, "num_attention_heads": 8, "num_key_value_heads": 8, "num_hidden_layers": 1}),
    Variant("qwen2_moe", "normalised", {"norm_topk_prob": True, "num_experts": 6, "num_experts_per_tok": 3}),
    Variant("qwen2_moe", "sparse-step", {"decoder_sparse_step": 2, "num_hidden_layers": 3}),
    Variant("qwen2_moe", "dense-first", {"mlp_only_layers": [0], "qkv_bias": False}),
    Variant("qwen2_moe", "windows", {
        "use_sliding_window": True, "sliding_window": 5, "max_window_layers": 2, "num_hidden_layers": 3},
        edit=without("layer_types")),
    Variant("qwen2_moe", "layer-types", {
        "use_sliding_window": True, "sliding_window": 4, "layer_types": ["full_attention", "sliding_attention"]}),
    Variant("qwen2_moe", "no-experts", {"num_experts": 0, "num_hidden_layers": 1}),
    Variant("qwen2_moe", "fused", {"num_hidden_layers": 1}, rename=fused),
    Variant("qwen2_moe", "no-shared", {"shared_expert_intermediate_size": 0, "num_hidden_layers": 1}),
    Variant("qwen2_moe", "odd", {
        **ODD, "intermediate_size": 21, "moe_intermediate_size": 5, "shared_expert_intermediate_size": 9,
        "num_experts": 9, "num_experts_per_tok": 4}),
    Variant("qwen3_moe", "not-normalised", {"norm_topk_prob": False, "attention_bias": True}),
    Variant("qwen3_moe", "normalised-window", {
        "norm_topk_prob": True, "use_sliding_window": True, "sliding_window": 7}),
    Variant("qwen3_moe", "sparse-step", {"decoder_sparse_step": 2, "norm_topk_prob": True}),
    Variant("qwen3_moe", "fused-yarn", {**YARN, "num_hidden_layers": 1}, rename=fused, rope="old"),
    Variant("qwen3_moe", "odd", {
        **ODD, "head_dim": 14, "moe_intermediate_size": 7, "num_experts": 11, "num_experts_per_tok": 5,
        "num_hidden_layers": 1, "norm_topk_prob": True}),
    Variant("olmoe", "clip", {"clip_qkv": 0.6, "norm_topk_prob": True}),
    Variant("olmoe", "biases", {"attention_bias": True, "num_key_value_heads": 4}),
    Variant("olmoe", "odd", {**ODD, "intermediate_size": 11, "num_experts": 7, "num_experts_per_tok": 7,
                             "num_hidden_layers": 1, "num_key_value_heads": 3}),
    Variant("olmoe", "fused", {"num_hidden_layers": 1, "clip_qkv": 1.5}, F16, rename=fused),
    Variant("granitemoe", "multipliers", {
        "embedding_multiplier": 3.0, "logits_scaling": 2.0, "residual_multiplier": 0.22}),
    Variant("granitemoe", "tied", {
        "embedding_multiplier": 6.0, "logits_scaling": 4.0, "tie_word_embeddings": True, "attention_bias": True}),
    Variant("granitemoe", "later-names", {"num_hidden_layers": 1, "residual_multiplier": 0.5}, rename=granite_later),
    Variant("granitemoe", "odd", {**ODD, "intermediate_size": 9, "num_local_experts": 6, "num_experts_per_tok": 4,
                                  "num_hidden_layers": 1, "logits_scaling": 3.0}),
    Variant("deepseek_v2", "greedy", {"routed_scaling_factor": 2.0}),
    Variant("deepseek_v2", "q-lora", {"q_lora_rank": 12, "first_k_dense_replace": 0, "attention_bias": True}),
    Variant("deepseek_v2", "groups", {
        "topk_method": "group_limited_greedy", "n_group": 3, "topk_group": 2, "n_routed_experts": 9,
        "num_experts_per_tok": 4, "norm_topk_prob": True}),
    Variant("deepseek_v2", "mlp-bias", {"mlp_bias": True, "n_shared_experts": 2}),
    Variant("deepseek_v2", "yarn", rope(
        "yarn", factor=4.0, original_max_position_embeddings=32, mscale=0.707, mscale_all_dim=0.707,
        beta_fast=32, beta_slow=1), rope="old"),
    # Its rotation in transformers needs even strides.
    Variant("deepseek_v2", "no-shared", {"n_shared_experts": 0}),
    Variant("deepseek_v2", "odd", {
        **ODD_MLA, "kv_lora_rank": 26, "qk_nope_head_dim": 10, "first_k_dense_replace": 0, "num_hidden_layers": 1,
    }, F32),
    Variant("deepseek_v2", "dense", {"first_k_dense_replace": 9, "num_hidden_layers": 1}),
    Variant("deepseek_v3", "not-normalised", {
        "norm_topk_prob": False, "n_group": 2, "topk_group": 1, "routed_scaling_factor": 1.0}),
    Variant("deepseek_v3", "no-groups", {"n_group": 1, "topk_group": 1, "num_experts_per_tok": 3}),
    Variant("deepseek_v3", "no-q-lora", {"q_lora_rank": None, "n_shared_experts": 2}),
    Variant("deepseek_v3", "halves", {"rope_interleave": False, "rms_norm_eps": 1e-3}),
    Variant("deepseek_v3", "yarn", rope(
        "yarn", factor=4.0, original_max_position_embeddings=32, mscale=1.0, mscale_all_dim=1.0,
        beta_fast=32, beta_slow=1), rope="old"),
    Variant("deepseek_v3", "later-layers", {"first_k_dense_replace": 0, "num_hidden_layers": 1},
            rename=with_later_layers, edit=lambda config: config.update(num_nextn_predict_layers=1)),
    Variant("deepseek_v3", "fused", {"num_hidden_layers": 1, "first_k_dense_replace": 0, "attention_bias": True},
            rename=fused),
    Variant("deepseek_v3", "no-shared", {"n_shared_experts": 0}),
    Variant("deepseek_v3", "odd", {**ODD_MLA, "q_lora_rank": 11, "n_group": 1, "topk_group": 1}, F32),
    Variant("gpt_oss", "windows", {
        "sliding_window": 4, "num_hidden_layers": 3, "num_local_experts": 6, "num_experts_per_tok": 3}),
    Variant("gpt_oss", "clamped", {"swiglu_limit": 0.8, "swiglu_alpha": 1.3, "num_hidden_layers": 1}),
    Variant("gpt_oss", "full", {"layer_types": ["full_attention", "sliding_attention"]}),
    Variant("gpt_oss", "no-bias", {"attention_bias": False, **rope("default", theta=150000.0)}),
    Variant("gpt_oss", "nothing-of-rope", {"num_hidden_layers": 1}, rope="none"),
    Variant("gpt_oss", "mxfp4", {
        "hidden_size": 32, "intermediate_size": 32, "num_local_experts": 3, "num_hidden_layers": 1,
    }, rename=mxfp4, edit=mxfp4_config, alone=True),
    Variant("gpt_oss", "odd", {
        **ODD, "head_dim": 10, "intermediate_size": 11, "num_local_experts": 5, "num_hidden_layers": 1}, F16),
    Variant("glm4_moe", "groups", {
        "n_group": 3, "topk_group": 2, "norm_topk_prob": False, "num_experts_per_tok": 3}),
    Variant("glm4_moe", "no-norms", {
        "use_qk_norm": False, "attention_bias": False, "first_k_dense_replace": 0, "num_hidden_layers": 1}),
    Variant("glm4_moe", "part", rope("default", partial_rotary_factor=0.25), rope="old"),
    Variant("glm4_moe", "default-part", rope="new", changes={"num_hidden_layers": 1, "first_k_dense_replace": 0},
            edit=lambda config: config["rope_parameters"].pop("partial_rotary_factor", None)),
    Variant("glm4_moe", "later-layers", {"first_k_dense_replace": 0, "num_hidden_layers": 1, "n_shared_experts": 2},
            rename=with_later_layers, edit=lambda config: config.update(num_nextn_predict_layers=1)),
    Variant("glm4_moe", "no-shared", {"n_shared_experts": 0}),
    Variant("glm4_moe", "odd", {
        **ODD, "head_dim": 12, "moe_intermediate_size": 9, "n_routed_experts": 7, "routed_scaling_factor": 1.7,
        "num_hidden_layers": 1, "first_k_dense_replace": 0}),
    Variant("ernie4_5_moe", "interval", {
        "moe_layer_interval": 2, "moe_layer_start_index": 0, "num_hidden_layers": 3, "moe_num_shared_experts": 0}),
    Variant("ernie4_5_moe", "biases", {"use_bias": True}),
    Variant("ernie4_5_moe", "norm-min", {"moe_norm_min": 0.75, "moe_layer_start_index": 0}),
    Variant("ernie4_5_moe", "no-shared", {"moe_num_shared_experts": 0, "moe_layer_start_index": 0}),
    Variant("ernie4_5_moe", "untied", {"tie_word_embeddings": False, "moe_k": 3, "moe_num_shared_experts": 2}),
    Variant("ernie4_5_moe", "ends", {"moe_layer_start_index": 1, "moe_layer_end_index": 1, "num_hidden_layers": 3}),
    Variant("ernie4_5_moe", "mtp", {"num_hidden_layers": 2}, rename=with_mtp),
    Variant("ernie4_5_moe", "later-names", {"moe_layer_start_index": 0, "num_hidden_layers": 1}, F16,
            rename=renamed(r"mlp\.moe_statics", "mlp.gate.moe_statics")),
    Variant("ernie4_5_moe", "odd", {
        **ODD, "moe_intermediate_size": 7, "moe_num_experts": 6, "moe_k": 5, "moe_layer_start_index": 0,
        "num_hidden_layers": 1}, rename=fused),
]  # fmt: skip


# ------------------------------------------------------------------------------------------------------------ weights


def fill(model: Any, seed: int, dtype: torch.dtype) -> None:
    """Weights that make a difference: with those of a fresh model any mistake would drown in the residual.

    They are rounded to `dtype`, so that what is stored is what is computed with.
    """
    random = torch.Generator().manual_seed(seed)
    hidden = model.config.hidden_size
    scaling = getattr(model.config, "logits_scaling", 1.0)
    multiplier = getattr(model.config, "embedding_multiplier", 1.0)
    tensors = dict(model.named_parameters()) | dict(model.named_buffers())
    rules: list[tuple[str, Callable[[torch.Tensor], float], float]] = [
        (r"inv_freq", lambda _: math.nan, 0.0),
        (r"embed_tokens", lambda _: 0.3 if model.config.tie_word_embeddings else 1.0 / multiplier, 0.0),
        (r"lm_head\.weight", lambda _: 2.0 * scaling / math.sqrt(hidden), 0.0),
        (r"e_score_correction_bias", lambda _: 0.05, 0.0),
        (r"sinks", lambda _: 1.0, 0.0),
        (r"norm", lambda _: 0.15, 1.0),
        (r"bias", lambda _: 0.2, 0.0),
        (r"(mlp\.gate|router|block_sparse_moe\.gate)\.weight", lambda _: 2.5 / math.sqrt(hidden), 0.0),
        (r"shared_expert_gate", lambda _: 1.5 / math.sqrt(hidden), 0.0),
        (r"gate_up_proj|down_proj", lambda t: 2.0 / math.sqrt(t.shape[-1]), 0.0),
        (r"", lambda t: 1.2 / math.sqrt(t.shape[-1]), 0.0),
    ]
    done: set[int] = set()
    with torch.no_grad():
        for name in sorted(tensors):
            tensor = tensors[name]
            if tensor.data_ptr() in done or tensor.numel() == 0:
                continue
            done.add(tensor.data_ptr())
            std, mean = next((std(tensor), mean) for pattern, std, mean in rules if re.search(pattern, name))
            if not math.isnan(std):
                tensor.copy_((torch.randn(tensor.shape, generator=random) * std + mean).to(dtype))


# --------------------------------------------------------------------------------------------------------- references


@dataclass
class Answer:
    logits: torch.Tensor
    router: dict[int, dict[str, list[Any]]]
    greedy: list[int]
    router_gap: float
    greedy_gap: float


def gap_of(variant: Variant, module: Any, logits: torch.Tensor, chosen: torch.Tensor) -> float:
    """Smallest distance between the last chosen and the first expert not chosen, by what the choice is made by."""
    scores, size = logits.float(), logits.shape[-1]
    if variant.architecture in ("deepseek_v3", "glm4_moe"):
        scores = scores.sigmoid() + module.e_score_correction_bias
    elif variant.architecture == "ernie4_5_moe":
        scores = scores.softmax(-1) + module.moe_statics.e_score_correction_bias.reshape(-1)
    elif variant.architecture == "deepseek_v2":
        scores = scores.softmax(-1)
    gap, groups = math.inf, getattr(module, "num_group", None) or 1
    if groups > 1 and getattr(module, "topk_method", "") != "greedy":
        members = scores.unflatten(-1, (groups, -1))
        worth = members.amax(-1) if variant.architecture == "deepseek_v2" else members.topk(2, -1)[0].sum(-1)
        order = worth.sort(-1, descending=True)[0]
        if module.topk_group < groups:
            gap = float((order[:, module.topk_group - 1] - order[:, module.topk_group]).min())
        shut = torch.ones_like(worth).scatter_(1, worth.topk(module.topk_group, -1)[1], 0.0).bool()
        scores = scores.masked_fill(shut.repeat_interleave(size // groups, -1), -math.inf)
    mask = torch.zeros_like(scores).scatter_(1, chosen, 1.0).bool()
    rest = scores.masked_fill(mask, -math.inf).amax(-1)
    last = scores.masked_fill(~mask, math.inf).amin(-1)
    if bool((last < rest).any()):
        raise AssertionError(f"{variant.name}: the scores of the choice are understood wrongly")
    return min(gap, float((last - rest).min()))


def watched(variant: Variant, model: Any, ids: list[int]) -> Iterator[tuple[torch.Tensor, dict[int, Any], float]]:
    """Logits, routing of the last position and smallest gap, for ever more greedily chosen tokens."""
    caught: dict[int, tuple[Any, Any]] = {}
    for name, module in model.named_modules():
        if re.search(r"Top[kK]Router$", type(module).__name__):
            layer = int(re.search(r"layers\.(\d+)\.", name)[1])  # type: ignore[index]
            module.register_forward_hook(lambda m, _, out, layer=layer: caught.__setitem__(layer, (m, out)))
    ids = list(ids)
    while True:
        with torch.no_grad():
            logits = model(torch.tensor([ids]), use_cache=False).logits[0].float()
        routed, gap = {}, math.inf
        for layer, (module, (scores, weights, chosen)) in caught.items():
            gap = min(gap, gap_of(variant, module, scores, chosen))
            last, order = weights[-1].float().sort(descending=True)
            routed[layer] = {
                "experts": chosen[-1][order].tolist(), "weights": [round(float(one), 6) for one in last]
            }  # fmt: skip
        yield logits, routed, gap
        ids.append(int(logits[-1].argmax()))


def answer(variant: Variant, model: Any, ids: list[int], count: int) -> Answer:
    greedy: list[int] = []
    first: tuple[torch.Tensor, dict[int, Any]] | None = None
    router_gap = greedy_gap = math.inf
    for logits, routed, gap in watched(variant, model, ids):
        first = first or (logits[-LAST:], routed)
        router_gap = min(router_gap, gap)
        best = logits[-1].topk(2)[0]
        greedy_gap = min(greedy_gap, float(best[0] - best[1]))
        greedy.append(int(logits[-1].argmax()))
        if len(greedy) == count:
            break
    assert first is not None
    for module in model.modules():
        module._forward_hooks.clear()
    return Answer(*first, greedy, router_gap, greedy_gap)


def best_input(variant: Variant, model: Any) -> tuple[list[int], Answer]:
    """Token ids whose routing and greedy tokens are far from ties: the first that are far enough, or the best."""
    best: tuple[float, list[int], Answer] | None = None
    for seed in range(SEEDS):
        random = torch.Generator().manual_seed(seed)
        ids = torch.randint(2, model.config.vocab_size, (PROMPT,), generator=random).tolist()
        found = answer(variant, model, ids, NEW)
        score = min(found.router_gap / ROUTER_GAP, found.greedy_gap / GREEDY_GAP)
        if best is None or score > best[0]:
            best = (score, ids, found)
        if score >= 1 and len(set(found.greedy)) > 3:
            return ids, found
    assert best is not None
    return best[1], best[2]


# -------------------------------------------------------------------------------------------------------------- files


def spell(variant: Variant, config: Config) -> Config:
    """config.json with the rotary settings where the variant wants them."""
    settings = config.pop("rope_parameters")
    if variant.rope in ("new", "both"):
        config["rope_parameters"] = dict(settings)
    if variant.rope in ("old", "both"):
        config["rope_theta"] = settings["rope_theta"]
        more = {key: value for key, value in settings.items() if key not in ("rope_theta", "partial_rotary_factor")}
        if "partial_rotary_factor" in settings:
            config["partial_rotary_factor"] = settings["partial_rotary_factor"]
        if more["rope_type"] != "default":
            if variant.rope == "old":  # as older files have it
                more["type"] = more.pop("rope_type")
            config["rope_scaling"] = more
    if variant.edit is not None:
        variant.edit(config)
    return config


def store(tensors: Mapping[str, torch.Tensor], directory: Path, shards: int) -> None:
    """One file, or several with an index."""
    ready = {name: tensor.contiguous().clone() for name, tensor in tensors.items()}
    if shards == 1:
        save_file(ready, directory / "model.safetensors", metadata={"format": "pt"})
        return
    names = [f"model-{index + 1:05d}-of-{shards:05d}.safetensors" for index in range(shards)]
    place = {name: names[index % shards] for index, name in enumerate(sorted(ready))}
    for file in names:
        part = {name: ready[name] for name in place if place[name] == file}
        save_file(part, directory / file, metadata={"format": "pt"})
    total = sum(tensor.numel() * tensor.element_size() for tensor in ready.values())
    index = {"metadata": {"total_size": total}, "weight_map": place}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index, indent=2, sort_keys=True) + "\n")


def make(variant: Variant) -> None:
    class_name, own = ARCHITECTURES[variant.architecture]
    config = getattr(transformers, f"{class_name}Config")(**{**BASE, **own, **variant.changes})
    config._attn_implementation = config._experts_implementation = "eager"
    model = getattr(transformers, f"{class_name}ForCausalLM")(config).float().eval()
    seed = sum(map(ord, variant.name))
    fill(model, seed, variant.dtype)
    if variant.rename is mxfp4:
        quantise(model)

    directory = HERE / variant.name
    shutil.rmtree(directory, ignore_errors=True)
    model.save_pretrained(directory)
    # save_pretrained has given the tensors their published names; they are stored anew, in the right type.
    tensors = load_file(directory / "model.safetensors")
    (directory / "model.safetensors").unlink()
    (directory / "generation_config.json").unlink(missing_ok=True)
    written = spell(variant, json.loads((directory / "config.json").read_text()))
    written["dtype"] = str(variant.dtype).removeprefix("torch.")
    tensors = variant.rename(tensors, written) if variant.rename else tensors
    tensors = {n: t.to(variant.dtype) if t.is_floating_point() else t for n, t in tensors.items()}
    store(tensors, directory, variant.shards)
    (directory / "config.json").write_text(json.dumps(written, indent=1, sort_keys=True) + "\n")

    ids, found = best_input(variant, model)
    difference = math.nan
    if not variant.alone:
        again = getattr(transformers, f"{class_name}ForCausalLM").from_pretrained(
            directory, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager"
        )
        with torch.no_grad():
            difference = float((again.eval()(torch.tensor([ids])).logits[0, -LAST:] - found.logits).abs().max())
        if not difference < 1e-4:
            raise AssertionError(f"{variant.name}: what is on the disk gives other logits, by {difference}")
    reference = {
        "architecture": config.architectures[0] if config.architectures else f"{class_name}ForCausalLM",
        "seed": seed,
        "transformers": transformers.__version__,
        "dtype": "float32",
        "input_ids": ids,
        "logits_last4": [[round(float(one), 5) for one in row] for row in found.logits],
        "router": {str(layer): routed for layer, routed in sorted(found.router.items())},
        "greedy_ids": found.greedy,
        "margins": {
            "router": round(found.router_gap, 5) if math.isfinite(found.router_gap) else None,
            "greedy": round(found.greedy_gap, 4),
        },
        "logits_std": round(float(found.logits.std()), 3),
    }
    (directory / "reference.json").write_text(json.dumps(reference) + "\n")
    for path in directory.iterdir():
        path.chmod(0o644)
    size = sum(path.stat().st_size for path in directory.iterdir())
    print(
        f"{variant.name:28} {size:7} bytes  logits std {reference['logits_std']:.2f}  gaps {reference['margins']}  "
        f"read back {difference:.1e}"
    )


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(1)
    wanted = sys.argv[1:]
    for variant in VARIANTS:
        if not wanted or variant.name in wanted:
            make(variant)
