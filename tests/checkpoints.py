# SPDX-License-Identifier: Apache-2.0
"""Small random Mixtral checkpoints in every spelling that published ones have."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file

from colibri_sdk.image.reader import ImageFile

Tensors = dict[str, npt.NDArray[Any]]

CONFIG: Mapping[str, Any] = {
    "architectures": ["MixtralForCausalLM"],
    "model_type": "mixtral",
    "vocab_size": 50,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 6,
    "num_local_experts": 3,
    "num_experts_per_tok": 2,
    "hidden_act": "silu",
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "eos_token_id": 1,
}
DTYPES = {"F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16}


def config(**changes: Any) -> dict[str, Any]:
    """The configuration with other values; None as a value stays null, `...` takes the key away."""
    return {key: value for key, value in {**CONFIG, **changes}.items() if value is not ...}


def tensors(settings: Mapping[str, Any], *, dtype: str = "F32", fused: bool = False, seed: int = 0) -> Tensors:
    """Random weights for a configuration, which is read here by its own rules, not by the packer's."""
    random = np.random.default_rng(seed)
    hidden, width = settings["hidden_size"], settings["intermediate_size"]
    heads, experts = settings["num_attention_heads"], settings["num_local_experts"]
    dim = settings.get("head_dim") or hidden // heads
    kv = settings.get("num_key_value_heads") or heads
    made: Tensors = {}

    def add(name: str, *shape: int) -> None:
        made[name] = (random.standard_normal(shape, np.float32) / np.float32(4)).astype(DTYPES[dtype])

    add("model.embed_tokens.weight", settings["vocab_size"], hidden)
    add("model.norm.weight", hidden)
    if not settings.get("tie_word_embeddings"):
        add("lm_head.weight", settings["vocab_size"], hidden)
    for layer in range(settings["num_hidden_layers"]):
        prefix = f"model.layers.{layer}"
        add(f"{prefix}.input_layernorm.weight", hidden)
        add(f"{prefix}.post_attention_layernorm.weight", hidden)
        add(f"{prefix}.self_attn.q_proj.weight", heads * dim, hidden)
        add(f"{prefix}.self_attn.k_proj.weight", kv * dim, hidden)
        add(f"{prefix}.self_attn.v_proj.weight", kv * dim, hidden)
        add(f"{prefix}.self_attn.o_proj.weight", hidden, heads * dim)
        add(f"{prefix}.block_sparse_moe.gate.weight", experts, hidden)
        for expert in range(experts):
            for name, rows, cols in (("w1", width, hidden), ("w2", hidden, width), ("w3", width, hidden)):
                add(f"{prefix}.block_sparse_moe.experts.{expert}.{name}.weight", rows, cols)
    return _fuse(made, settings) if fused else made


def _fuse(made: Tensors, settings: Mapping[str, Any]) -> Tensors:
    """The same weights in the names and shapes that recent transformers versions keep them in."""
    out = {name: value for name, value in made.items() if "block_sparse_moe" not in name}
    for layer in range(settings["num_hidden_layers"]):
        old, new = f"model.layers.{layer}.block_sparse_moe", f"model.layers.{layer}.mlp"

        def stack(part: str, old: str = old) -> npt.NDArray[Any]:
            each = range(settings["num_local_experts"])
            return np.stack([made[f"{old}.experts.{expert}.{part}.weight"] for expert in each])

        out[f"{new}.gate.weight"] = made[f"{old}.gate.weight"]
        out[f"{new}.experts.gate_up_proj"] = np.concatenate([stack("w1"), stack("w3")], axis=1)
        out[f"{new}.experts.down_proj"] = stack("w2")
    return out


def write(
    directory: Path, settings: Mapping[str, Any] | None = None, weights: Tensors | None = None, *, shards: int = 1
) -> Path:
    """A checkpoint directory: one file, or `shards` files with an index, tensors dealt out in turn."""
    settings = config() if settings is None else settings
    weights = tensors(settings) if weights is None else weights
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(settings))
    if shards == 1:
        save_file(weights, directory / "model.safetensors")
        return directory
    names = [f"model-{index + 1:05d}-of-{shards:05d}.safetensors" for index in range(shards)]
    place = {tensor: names[index % shards] for index, tensor in enumerate(weights)}
    for name in names:
        save_file({tensor: weights[tensor] for tensor in weights if place[tensor] == name}, directory / name)
    index = {"metadata": {"total_size": sum(w.nbytes for w in weights.values())}, "weight_map": place}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    return directory


def image_weights(image: ImageFile) -> dict[str, npt.NDArray[np.float32]]:
    """Every weight of an image, as the exact values that its tiles stand for, under its published Mixtral name."""
    model = image.model
    found = {
        "model.embed_tokens.weight": image.resident_tensor(model["embedding"]),
        "model.norm.weight": image.resident_tensor(model["final_norm"])[0],
        "lm_head.weight": image.resident_tensor(model["head"]["weight"]),
    }
    for index, layer in enumerate(image.layers):
        prefix, attention = f"model.layers.{index}", layer["attention"]
        found[f"{prefix}.input_layernorm.weight"] = image.resident_tensor(attention["norm"])[0]
        found[f"{prefix}.post_attention_layernorm.weight"] = image.resident_tensor(layer["norm"])[0]
        for field, name in (("query", "q"), ("key", "k"), ("value", "v"), ("output", "o")):
            found[f"{prefix}.self_attn.{name}_proj.weight"] = image.resident_tensor(attention[field]["weight"])
        mixture = f"{prefix}.block_sparse_moe"
        found[f"{mixture}.gate.weight"] = image.resident_tensor(layer["router"]["gate"]["weight"])
        for expert in range(int(layer["router"]["experts"])):
            for field, name in (("gate", "w1"), ("up", "w3"), ("down", "w2")):
                found[f"{mixture}.experts.{expert}.{name}.weight"] = image.expert_tensor(index, expert, field)
    return found
