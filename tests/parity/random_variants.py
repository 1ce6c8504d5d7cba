#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes checkpoints with drawn parameters, for more values of each than tests/parity/variants holds.

Each folder is a checkpoint with its reference.json, made like those (make_variants.py). What transformers itself
refuses is said and left out. The same seed gives the same folders.

Usage:  random_variants.py DIRECTORY FIRST_SEED COUNT [ARCHITECTURE ...]
        then, for each folder:  colibri-sdk parity FOLDER
Needs torch and transformers; not run by the test suite.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import make_variants
import torch

Draw = random.Random
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def sizes(draw: Draw) -> dict[str, Any]:
    """Heads, widths and depth that any architecture takes."""
    kv = draw.choice([1, 2, 3])
    heads = kv * draw.choice([1, 2, 3])
    return {
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "hidden_size": heads * draw.choice([4, 6, 8]),
        "num_hidden_layers": draw.choice([1, 2, 3]),
        "vocab_size": draw.randrange(40, 70),
        "rms_norm_eps": draw.choice([1e-6, 1e-5, 1e-3]),
        "tie_word_embeddings": draw.random() < 0.3,
    }


def experts(draw: Draw, count: str, top: str) -> dict[str, Any]:
    total = draw.randrange(2, 20)
    return {count: total, top: draw.randrange(1, min(total, 8) + 1)}


def windows(draw: Draw, layers: int) -> dict[str, Any]:
    if draw.random() < 0.5:
        return {}
    return {
        "use_sliding_window": True,
        "sliding_window": draw.randrange(2, 12),
        "max_window_layers": draw.randrange(0, layers + 1),
    }


def latent(draw: Draw) -> dict[str, Any]:
    """DeepSeek's attention; its groups of experts are of equal size."""
    groups = draw.choice([1, 2, 4])
    members = draw.choice([2, 3, 5])
    open_groups = draw.randrange(1, groups + 1)
    heads = draw.choice([2, 3, 4])
    return {
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "hidden_size": draw.choice([16, 20, 36]),
        "kv_lora_rank": draw.choice([8, 18, 40]),
        "qk_nope_head_dim": draw.choice([4, 8, 12]),
        "qk_rope_head_dim": draw.choice([4, 8]),
        "v_head_dim": draw.choice([4, 8, 12]),
        "q_lora_rank": draw.choice([None, 10, 16]),
        "n_routed_experts": groups * members,
        "n_group": groups,
        "topk_group": open_groups,
        "num_experts_per_tok": draw.randrange(1, min(open_groups * members, 6) + 1),
        "n_shared_experts": draw.choice([1, 2, 3]),
        "moe_intermediate_size": draw.choice([4, 7, 12]),
        "first_k_dense_replace": draw.choice([0, 1, 2]),
        "routed_scaling_factor": draw.choice([1.0, 1.7, 2.5]),
        "norm_topk_prob": draw.random() < 0.5,
    }


def parameters(architecture: str, draw: Draw) -> dict[str, Any]:
    base = sizes(draw)
    layers = base["num_hidden_layers"]
    width = draw.choice([5, 12, 33])
    chance = draw.random
    sparse = {
        "decoder_sparse_step": draw.choice([1, 1, 2]),
        "mlp_only_layers": sorted(draw.sample(range(layers), draw.choice([0, 0, 1]))),
    }
    match architecture:
        case "llama":
            own: dict[str, Any] = {
                "intermediate_size": width,
                "attention_bias": chance() < 0.3,
                "mlp_bias": chance() < 0.3,
            }
        case "qwen3":
            own = {
                "intermediate_size": width,
                "head_dim": draw.choice([4, 10, 16]),
                "attention_bias": chance() < 0.3,
                **windows(draw, layers),
            }
        case "mixtral":
            own = {
                "intermediate_size": width,
                "sliding_window": draw.choice([None, 4, 9]),
                **experts(draw, "num_local_experts", "num_experts_per_tok"),
            }
        case "qwen2_moe":
            own = {
                "moe_intermediate_size": width,
                "shared_expert_intermediate_size": draw.choice([4, 11]),
                "norm_topk_prob": chance() < 0.5,
                **sparse,
                **windows(draw, layers),
                **experts(draw, "num_experts", "num_experts_per_tok"),
            }
        case "qwen3_moe":
            own = {
                "moe_intermediate_size": width,
                "head_dim": draw.choice([4, 10, 16]),
                "norm_topk_prob": chance() < 0.5,
                "attention_bias": chance() < 0.3,
                **sparse,
                **windows(draw, layers),
                **experts(draw, "num_experts", "num_experts_per_tok"),
            }
        case "olmoe":
            own = {
                "intermediate_size": width,
                "norm_topk_prob": chance() < 0.5,
                "clip_qkv": draw.choice([None, 0.3, 2.0]),
                "attention_bias": chance() < 0.3,
                **experts(draw, "num_experts", "num_experts_per_tok"),
            }
        case "granitemoe":
            own = {
                "intermediate_size": width,
                "embedding_multiplier": draw.choice([1.0, 5.0]),
                "logits_scaling": draw.choice([1.0, 3.0]),
                "residual_multiplier": draw.choice([1.0, 0.4]),
                "attention_multiplier": draw.choice([0.1, 0.5]),
                "attention_bias": chance() < 0.3,
                **experts(draw, "num_local_experts", "num_experts_per_tok"),
            }
        case "deepseek_v2":
            method = draw.choice(["greedy", "group_limited_greedy"])
            own = {**latent(draw), "topk_method": method, "intermediate_size": width}
        case "deepseek_v3":
            own = {**latent(draw), "intermediate_size": width}
        case "gpt_oss":
            own = {
                "intermediate_size": width,
                "head_dim": draw.choice([4, 8, 16]),
                "sliding_window": draw.randrange(2, 12),
                "swiglu_limit": draw.choice([0.5, 7.0]),
                **experts(draw, "num_local_experts", "num_experts_per_tok"),
            }
        case "glm4_moe":
            groups = draw.choice([1, 2])
            own = {
                "intermediate_size": width,
                "moe_intermediate_size": draw.choice([5, 8]),
                "n_routed_experts": groups * 4,
                "n_group": groups,
                "topk_group": draw.randrange(1, groups + 1),
                "num_experts_per_tok": draw.randrange(1, 5),
                "head_dim": draw.choice([8, 16]),
                "partial_rotary_factor": draw.choice([0.5, 0.25, 1.0]),
                "use_qk_norm": chance() < 0.5,
                "attention_bias": chance() < 0.5,
                "norm_topk_prob": chance() < 0.5,
                "first_k_dense_replace": draw.choice([0, 1]),
                "routed_scaling_factor": draw.choice([1.0, 2.5]),
                "n_shared_experts": draw.choice([1, 2]),
            }
        case "ernie4_5_moe":
            own = {
                "intermediate_size": width,
                "moe_intermediate_size": draw.choice([5, 8]),
                "moe_num_shared_experts": draw.choice([0, 1, 2]),
                "moe_layer_start_index": draw.choice([0, 1]),
                "moe_layer_interval": draw.choice([1, 2]),
                "use_bias": chance() < 0.3,
                **experts(draw, "moe_num_experts", "moe_k"),
            }
        case _:
            raise SystemExit(f"{architecture}: not one of {', '.join(make_variants.ARCHITECTURES)}")
    return {**base, **own}


def main(directory: Path, first: int, count: int, names: list[str]) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    make_variants.HERE = directory
    make_variants.SEEDS = 30
    directory.mkdir(parents=True, exist_ok=True)
    for name in names or list(make_variants.ARCHITECTURES):
        for seed in range(first, first + count):
            draw = random.Random(f"{name} {seed}")
            changes = parameters(name, draw)
            dtype = draw.choice(DTYPES)
            variant = make_variants.Variant(
                name, f"random-{seed}", changes, dtype, rope=draw.choice(["old", "new", "both"])
            )
            try:
                make_variants.make(variant)
            except (ValueError, RuntimeError, IndexError, AssertionError) as error:
                print(f"{variant.name:28} not made, {changes}: {type(error).__name__}: {error}")


if __name__ == "__main__":
    if len(sys.argv) < 4:
        raise SystemExit(__doc__)
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
