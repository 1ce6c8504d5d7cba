# SPDX-License-Identifier: Apache-2.0
"""Configurations that cannot be run: each is refused by the name of what is wrong, before any weight is read.

What is not refused is packed and accepted by the engine: there is nothing between the two.
"""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from colibri_sdk.convert import pack
from colibri_sdk.convert.architectures import ARCHITECTURES as SUPPORTED
from colibri_sdk.convert.architectures import describe
from colibri_sdk.convert.architectures.refused import REASONS
from colibri_sdk.convert.gguf import ARCHITECTURES as GGUF_SUPPORTED
from colibri_sdk.engine import Library
from colibri_sdk.errors import CheckpointError
from refused_checkpoint import refusal

PARITY = Path(__file__).resolve().parents[1] / "parity"
ARCHITECTURES = sorted(path.parent.name for path in PARITY.glob("*/reference.json"))

# The smallest checkpoint of each architecture.
SMALL = {
    "deepseek_v2": "groups", "deepseek_v3": "not-normalised", "ernie4_5_moe": "untied", "glm4_moe": "groups",
    "gpt_oss": "full", "granitemoe": "multipliers", "llama": "yarn", "mixtral": "top-3-of-5", "olmoe": "clip",
    "qwen2_moe": "layer-types", "qwen3": "layer-types", "qwen3_moe": "not-normalised",
}  # fmt: skip


@pytest.fixture(scope="module")
def library(host_library: Path) -> Library:
    return Library.load(host_library)


def copied(name: str, directory: Path, changes: dict[str, Any]) -> Path:
    """The small checkpoint of an architecture with other settings; `...` takes a key away."""
    source = PARITY / "variants" / f"{name}-{SMALL[name]}"
    target = directory / name
    if not target.is_dir():
        shutil.copytree(source, target)
    config: dict[str, Any] = json.loads((source / "config.json").read_text())
    for key, value in changes.items():
        if value is ...:
            config.pop(key, None)
        else:
            config[key] = value
    (target / "config.json").write_text(json.dumps(config))
    return target


BAD: list[tuple[str, dict[str, Any], str]] = [
    # Options that these architectures have and this version has not, or that belong to others.
    ("llama", {"architectures": ["LlamaForSequenceClassification"]}, "LlamaForSequenceClassification is not supported"),
    ("llama", {"architectures": ["Llama4ForCausalLM"]}, "Llama4ForCausalLM is not supported: its routers weigh"),
    ("mixtral", {"architectures": ["PhimoeForCausalLM"]}, "LayerNorm with biases in the place of RMSNorm, and sparse"),
    ("mixtral", {"architectures": ["JambaForCausalLM"]}, "JambaForCausalLM is not supported: its Mamba layers"),
    ("mixtral", {"architectures": ["MixtralForCausalLM", "LlamaForCausalLM"]}, "one class name"),
    ("llama", {"hidden_act": "gelu_pytorch_tanh"}, "hidden_act = 'gelu_pytorch_tanh'"),
    ("llama", {"rope_scaling": {"rope_type": "longrope", "factor": 4}, "rope_parameters": ...}, "short_factor = None"),
    ("llama", {"rope_scaling": {"type": "su"}, "rope_parameters": ...}, "'su'"),
    ("llama", {"rope_scaling": {"type": ["yarn"]}}, "['yarn']"),
    ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5"),
    ("mixtral", {"attention_bias": True}, "attention_bias = True"),
    ("qwen3_moe", {"quantization_config": {"quant_method": "gptq", "bits": 4}}, "quant_method = 'gptq'"),
    ("deepseek_v3", {"quantization_config": {"quant_method": "fp8"}}, "quant_method = 'fp8'"),
    ("deepseek_v3", {"scoring_func": "softmax"}, "scoring_func = 'softmax'"),
    ("deepseek_v3", {"topk_method": "group_limited_greedy"}, "topk_method = 'group_limited_greedy'"),
    ("deepseek_v2", {"scoring_func": "sigmoid"}, "scoring_func = 'sigmoid'"),
    ("deepseek_v2", {"topk_method": "noaux_tc"}, "topk_method = 'noaux_tc'"),
    ("ernie4_5_moe", {"moe_norm_min": 0.0}, "moe_norm_min = 0.0"),
    ("qwen3", {"layer_types": ["chunked_attention", "full_attention"]}, "chunked_attention"),
    ("gpt_oss", {"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "for each kind of layer"),
    # Numbers that contradict each other.
    ("llama", {"num_attention_heads": 6, "num_key_value_heads": 4}, "6 attention heads for 4 key/value heads"),
    ("llama", {"head_dim": ..., "num_attention_heads": 5, "num_key_value_heads": 5}, "no head_dim"),
    ("llama", {"head_dim": 7}, "7 of 7 dimensions of a head would rotate"),
    ("glm4_moe", {"rope_parameters": {"partial_rotary_factor": 0.2}, "partial_rotary_factor": ...}, "3 of 16"),
    ("llama", {"rope_theta": 5e5, "rope_parameters": {"rope_theta": 1e4}}, "in another place, as 500000.0"),
    ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 2.0}}, "in another place, as 'linear'"),
    ("llama", {"rope_scaling": {"rope_type": "yarn", "type": "linear", "factor": 2.0}}, "as 'linear'"),
    ("llama", {"rope_scaling": {"type": "llama3", "factor": 8.0, "low_freq_factor": 4.0, "high_freq_factor": 1.0}},
     "low_freq_factor = 4.0 and high_freq_factor = 1.0"),
    ("llama", {"rope_scaling": {"type": "llama3", "factor": 8.0}}, "low_freq_factor = None"),
    ("llama", {"rope_theta": 1.0}, "give no numbers"),
    ("qwen3", {"layer_types": ["full_attention"]}, "layer_types"),
    ("qwen3", {"layer_types": "full_attention"}, "layer_types"),
    ("mixtral", {"num_experts_per_tok": 6}, "6 of 5 experts"),
    ("mixtral", {"num_experts": 4}, "num_local_experts = 5 and num_experts = 4"),
    ("ernie4_5_moe", {"num_experts_per_tok": 4}, "moe_k = 3 and num_experts_per_tok = 4"),
    ("deepseek_v3", {"n_group": 4}, "6 experts in 4 groups"),
    ("deepseek_v3", {"n_group": 2, "topk_group": 3}, "3 of 2 groups"),
    ("deepseek_v3", {"num_experts_per_tok": 4}, "of 1 groups of 3"),
    ("deepseek_v3", {"n_group": 6, "topk_group": 6}, "6 experts in 6 groups"),
    ("deepseek_v2", {"n_group": 4}, "9 experts in 4 groups"),
    ("glm4_moe", {"topk_group": 4}, "4 of 3 groups"),
    ("mixtral", {"num_local_experts": 6}, "shape"),
    ("mixtral", {"num_local_experts": 4}, "5"),
    ("mixtral", {"num_hidden_layers": 3}, "model.layers.2 is missing"),
    ("mixtral", {"num_hidden_layers": 1}, "tensor(s) that its architecture does not use"),
    ("deepseek_v2", {"q_lora_rank": 12}, "q_a_"),
    ("deepseek_v2", {"kv_lora_rank": 17}, "shape"),
    ("qwen2_moe", {"qkv_bias": False}, "q_proj.bias"),
    ("gpt_oss", {"attention_bias": False}, "bias"),
    ("olmoe", {"attention_bias": True}, "q_proj.bias"),
    ("qwen3_moe", {"mlp_only_layers": [0]}, "mlp.gate_proj.weight"),
    ("glm4_moe", {"first_k_dense_replace": 0}, "layers.0.mlp.gate"),
    # Numbers that are none, or far too large.
    ("mixtral", {"num_local_experts": 65537}, "num_local_experts = 65537"),
    ("mixtral", {"num_local_experts": 65536}, "makes it [65536, 24]"),
    ("mixtral", {"hidden_size": 2**20 + 1}, "hidden_size = 1048577"),
    ("mixtral", {"vocab_size": 2**22 + 1}, "vocab_size = 4194305"),
    ("mixtral", {"num_attention_heads": 2**20, "num_key_value_heads": 2**20, "head_dim": 2}, "head_dim = 2"),
    ("mixtral", {"max_position_embeddings": 2**23}, "context is 8388608"),
    ("deepseek_v3", {"num_nextn_predict_layers": 65}, "num_nextn_predict_layers = 65"),
    ("deepseek_v3", {"kv_lora_rank": 2**20}, "kv_lora_rank = 1048576"),
    ("qwen2_moe", {"decoder_sparse_step": 0}, "decoder_sparse_step = 0"),
    ("qwen2_moe", {"mlp_only_layers": [0.5]}, "mlp_only_layers = [0.5]"),
    ("granitemoe", {"logits_scaling": 0}, "logits_scaling = 0"),
    ("granitemoe", {"residual_multiplier": float("inf")}, "residual_multiplier = inf"),
    ("gpt_oss", {"swiglu_limit": -7.0}, "swiglu_limit = -7.0"),
    ("gpt_oss", {"sliding_window": 0}, "sliding_window = 0"),
    ("olmoe", {"clip_qkv": -1.0}, "clip_qkv = -1.0"),
    ("ernie4_5_moe", {"moe_layer_end_index": -2}, "moe_layer_end_index = -2"),
    ("llama", {"mlp_bias": "yes"}, "mlp_bias = 'yes'"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "changes", "expected"), BAD, ids=[f"{one[0]}-{i}" for i, one in enumerate(BAD)])
def test_refused_by_name(tmp_path: Path, name: str, changes: dict[str, Any], expected: str) -> None:
    error = refusal(copied(name, tmp_path, changes), tmp_path / "m.colibri")
    assert expected in error.message, error.message
    assert error.hint


def test_reasons_are_for_what_is_refused() -> None:
    """No name in the table is one that can be packed, and a reason's advice names those."""
    assert not set(REASONS) & {*SUPPORTED, *GGUF_SUPPORTED}
    for name, reason in REASONS.items():
        with pytest.raises(CheckpointError) as caught:
            describe({"architectures": [name]}, frozenset())
        assert caught.value.message == f"architecture {name} is not supported: {reason}"
        assert caught.value.hint.startswith("No option changes that") and "MixtralForCausalLM" in caught.value.hint
    with pytest.raises(CheckpointError) as caught:
        describe({"architectures": ["MambaForCausalLM"]}, frozenset())
    assert caught.value.message == "architecture MambaForCausalLM is not supported"
    assert caught.value.hint.startswith("Supported: ")


def keys_of(name: str) -> Iterator[str]:
    config = json.loads((PARITY / "variants" / f"{name}-{SMALL[name]}" / "config.json").read_text())
    yield from (key for key in config if key not in ("architectures", "model_type", "transformers_version", "dtype"))


NONSENSE: list[Any] = [..., None, 0, -1, 3, 2**31, 1e300, float("nan"), "x", [1, "x"], {"a": 1}]


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_any_value_of_any_key(library: Library, tmp_path: Path, name: str) -> None:
    """A CheckpointError that says something, or an image that the engine accepts; no warning, no other exception."""
    out = tmp_path / "m.colibri"
    accepted = 0
    for key in keys_of(name):
        for value in NONSENSE:
            source = copied(name, tmp_path, {key: value})
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("error")
                    pack(source, out, quant="q8", context=2)
            except CheckpointError as error:
                assert len(error.message) > 20 and len(error.message) < 2000, error.message
            else:
                library.validate(out)
                accepted += 1
    assert accepted > 0
