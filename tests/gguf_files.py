# SPDX-License-Identifier: Apache-2.0
"""GGUF files made from Hugging Face checkpoints by the gguf package: its writer, its names of tensors, its quantisers.

What the package leaves to its caller is here, after llama.cpp's converter: which keys an architecture has, experts of a
layer stacked, the order of rows in queries and keys of llama and granitemoe, kv_b_proj of DeepSeek taken apart.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from gguf.quants import quantize
from safetensors.numpy import load_file

Array = npt.NDArray[Any]
Type = gguf.GGMLQuantizationType
ARCHITECTURES = {
    "LlamaForCausalLM": gguf.MODEL_ARCH.LLAMA,
    "MixtralForCausalLM": gguf.MODEL_ARCH.LLAMA,
    "Qwen3ForCausalLM": gguf.MODEL_ARCH.QWEN3,
    "Qwen2MoeForCausalLM": gguf.MODEL_ARCH.QWEN2MOE,
    "Qwen3MoeForCausalLM": gguf.MODEL_ARCH.QWEN3MOE,
    "OlmoeForCausalLM": gguf.MODEL_ARCH.OLMOE,
    "GraniteMoeForCausalLM": gguf.MODEL_ARCH.GRANITE_MOE,
    "DeepseekV2ForCausalLM": gguf.MODEL_ARCH.DEEPSEEK2,
    "DeepseekV3ForCausalLM": gguf.MODEL_ARCH.DEEPSEEK2,
    "GptOssForCausalLM": gguf.MODEL_ARCH.GPT_OSS,
    "Glm4MoeForCausalLM": gguf.MODEL_ARCH.GLM4_MOE,
    "Ernie4_5_MoeForCausalLM": gguf.MODEL_ARCH.ERNIE4_5_MOE,
}

# A tensor's type by its name and numbers.
Choose = Callable[[str, Array], Type]


def plain(_name: str, _array: Array) -> Type:
    return Type.F32


def matrices(kind: Type) -> Choose:
    """`kind` for matrices whose rows divide into its blocks and that are no routers, as llama.cpp quantises."""
    block, _ = gguf.GGML_QUANT_SIZES[kind]

    def choose(name: str, array: Array) -> Type:
        whole = array.ndim > 1 and array.shape[-1] % block == 0 and "ffn_gate_inp" not in name
        return kind if whole else Type.F32

    return choose


def write(
    source: Path,
    out: Path,
    *,
    choose: Choose = plain,
    change: Callable[[gguf.GGUFWriter], None] | None = None,
    older: bool = False,
    tokenizer: bool = False,
    split: int = 0,
    encode: Callable[[Array, Type], Array] = quantize,
) -> dict[str, Array]:
    """The checkpoint in `source` as GGUF file(s) `out`; returns the arrays that were written, by GGUF's names.

    `older`: the spellings of files from before DeepSeek's kv_b_proj was taken apart. `split`: tensors in each file.
    """
    config = json.loads((source / "config.json").read_text())
    arch = ARCHITECTURES[config["architectures"][0]]
    writer = gguf.GGUFWriter(out, gguf.MODEL_ARCH_NAMES[arch], split_max_tensors=split)
    _metadata(writer, arch, config, older)
    tensors = dict(_tensors(arch, config, load_file(source / "model.safetensors"), older))
    if tokenizer:
        _tokenizer(writer, source)
    if change is not None:
        change(writer)
    for name, array in tensors.items():
        kind = choose(name, array)
        if kind is Type.F32:
            writer.add_tensor(name, np.ascontiguousarray(array, np.float32))
        else:
            data = encode(np.ascontiguousarray(array, np.float32), kind)
            writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tensors


def _rotary(config: Mapping[str, Any]) -> Mapping[str, Any]:
    plain = {"rope_type": "default", "rope_theta": config.get("rope_theta")}
    return config.get("rope_parameters") or config.get("rope_scaling") or plain


def _metadata(writer: gguf.GGUFWriter, arch: gguf.MODEL_ARCH, config: Mapping[str, Any], older: bool) -> None:
    A = gguf.MODEL_ARCH
    heads, hidden = config["num_attention_heads"], config["hidden_size"]
    latent = arch is A.DEEPSEEK2
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(hidden)
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config["num_key_value_heads"] if not latent or older else 1)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    eos = config["eos_token_id"]
    writer.add_eos_token_id(eos)
    experts = next(
        (
            config[key]
            for key in ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
            if key in config
        ),
        None,
    )
    if experts is not None:
        writer.add_expert_count(experts)
        writer.add_expert_used_count(config.get("num_experts_per_tok") or config["moe_k"])
    head_dim = config.get("head_dim")
    if latent:
        rank, turning = config["kv_lora_rank"], config["qk_rope_head_dim"]
        keys, values = config["qk_nope_head_dim"] + turning, config["v_head_dim"]
        writer.add_kv_lora_rank(rank)
        if config["q_lora_rank"] is not None:
            writer.add_q_lora_rank(config["q_lora_rank"])
        writer.add_key_length(keys if older else rank + turning)
        writer.add_value_length(values if older else rank)
        if not older:
            writer.add_key_length_mla(keys)
            writer.add_value_length_mla(values)
        writer.add_rope_dimension_count(turning)
    elif head_dim is not None:
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    rotary = _rotary(config)
    if not latent and arch in (A.LLAMA, A.GRANITE_MOE, A.GLM4_MOE):
        part = rotary.get("partial_rotary_factor", 1.0)
        writer.add_rope_dimension_count(int((head_dim or hidden // heads) * part))
    writer.add_rope_freq_base(rotary["rope_theta"])
    if rotary["rope_type"] in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(rotary["rope_type"]))
        writer.add_rope_scaling_factor(rotary["factor"])
    if rotary["rope_type"] == "yarn":
        writer.add_rope_scaling_orig_ctx_len(rotary["original_max_position_embeddings"])
        if "beta_fast" in rotary:
            writer.add_rope_scaling_yarn_beta_fast(rotary["beta_fast"])
            writer.add_rope_scaling_yarn_beta_slow(rotary["beta_slow"])
        if latent and "mscale_all_dim" in rotary:
            writer.add_rope_scaling_yarn_log_mul(0.1 * rotary["mscale_all_dim"])
    if config.get("sliding_window") and arch in (A.GPT_OSS, A.LLAMA):
        writer.add_sliding_window(config["sliding_window"])
    if "moe_intermediate_size" in config:
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    if arch is A.GPT_OSS:
        writer.add_expert_feed_forward_length(config["intermediate_size"])
    if arch is A.QWEN2MOE:
        writer.add_expert_shared_feed_forward_length(config["shared_expert_intermediate_size"])
    if arch in (A.QWEN2MOE, A.QWEN3MOE, A.OLMOE) and config["norm_topk_prob"] is (arch is not A.QWEN3MOE):
        writer.add_expert_weights_norm(config["norm_topk_prob"])
    if config.get("clip_qkv") is not None:
        writer.add_clamp_kqv(config["clip_qkv"])
    if arch is A.GRANITE_MOE:
        writer.add_attention_scale(config["attention_multiplier"])
        writer.add_embedding_scale(config["embedding_multiplier"])
        writer.add_residual_scale(config["residual_multiplier"])
        writer.add_logit_scale(config["logits_scaling"])
    if arch in (A.DEEPSEEK2, A.GLM4_MOE):
        sigmoid = arch is A.GLM4_MOE or config["architectures"][0] == "DeepseekV3ForCausalLM"
        kinds = gguf.ExpertGatingFuncType
        writer.add_expert_gating_func(kinds.SIGMOID if sigmoid else kinds.SOFTMAX)
        writer.add_leading_dense_block_count(config["first_k_dense_replace"])
        writer.add_expert_shared_count(config["n_shared_experts"])
        writer.add_expert_weights_scale(config["routed_scaling_factor"])
        if config["norm_topk_prob"]:
            writer.add_expert_weights_norm(True)
        if config.get("topk_method") != "greedy":
            writer.add_expert_group_count(config["n_group"])
            writer.add_expert_group_used_count(config["topk_group"])
    if arch is A.ERNIE4_5_MOE:
        writer.add_interleave_moe_layer_step(config["moe_layer_interval"])
        writer.add_leading_dense_block_count(config["moe_layer_start_index"])
        writer.add_expert_shared_count(config["moe_num_shared_experts"])
        writer.add_expert_shared_feed_forward_length(config["intermediate_size"] // config["num_key_value_heads"])


def _sorted(rows: Array, heads: int) -> Array:
    """Row i of a head's first half, then row i of its second, for each i."""
    first, second = np.split(rows.reshape(heads, -1, *rows.shape[1:]), 2, axis=1)
    return np.stack([first, second], axis=2).reshape(rows.shape)


def _tensors(
    arch: gguf.MODEL_ARCH, config: Mapping[str, Any], stored: Mapping[str, Array], older: bool
) -> Iterator[tuple[str, Array]]:
    names = gguf.get_tensor_name_map(arch, config["num_hidden_layers"])

    def named(name: str) -> str:
        found = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if found is None:  # dense layers among others in Qwen's, which the package's table does not foresee
            dense = re.fullmatch(r"model\.layers\.(\d+)\.mlp\.(gate|up|down)_proj\.weight", name)
            assert dense is not None, name
            return f"blk.{dense[1]}.ffn_{dense[2]}.weight"
        return found

    stacks: dict[str, dict[int, Array]] = {}
    rotary = _rotary(config)
    if rotary["rope_type"] == "llama3":
        yield "rope_freqs.weight", _llama3_factors(config, rotary)
    for name, array in stored.items():
        array = np.asarray(array, np.float32)
        expert = re.fullmatch(r"(.*experts)\.(\d+)\.(\w+)\.weight", name)
        if name == "lm_head.weight" and config["tie_word_embeddings"]:
            continue
        if expert:
            stacks.setdefault(f"{expert[1]}.{expert[3]}.weight", {})[int(expert[2])] = array
        elif re.search(r"self_attn\.[qk]_proj\.", name) and arch in (
            gguf.MODEL_ARCH.LLAMA,
            gguf.MODEL_ARCH.GRANITE_MOE,
        ):
            heads = config["num_attention_heads" if ".q_proj" in name else "num_key_value_heads"]
            yield named(name), _sorted(array, heads)
        elif name.endswith("kv_b_proj.weight") and not older:
            each = config["qk_nope_head_dim"] + config["v_head_dim"]
            planes = array.reshape(-1, each, array.shape[1])
            yield named(name.replace("kv_b", "k_b")), planes[:, : config["qk_nope_head_dim"]].transpose(0, 2, 1)
            yield named(name.replace("kv_b", "v_b")), planes[:, config["qk_nope_head_dim"] :]
        elif arch is gguf.MODEL_ARCH.GPT_OSS and ".mlp.experts." in name:
            yield from _gpt_oss(named, name, array)
        elif re.search(r"experts\.gate_up_proj$|input_linear\.weight$", name):
            gate, up = np.split(array, 2, axis=1)
            layer = int(name.split(".")[2])
            yield f"blk.{layer}.ffn_gate_exps.weight", gate
            yield f"blk.{layer}.ffn_up_exps.weight", up
        elif re.search(r"experts\.down_proj$|output_linear\.weight$", name):
            yield f"blk.{int(name.split('.')[2])}.ffn_down_exps.weight", array
        elif name.endswith("e_score_correction_bias"):
            yield f"blk.{int(name.split('.')[2])}.exp_probs_b.bias", array.reshape(-1)
        elif name.endswith("sinks"):
            yield named(name) + ".weight", array
        else:
            yield named(name), array[0] if name.endswith("shared_expert_gate.weight") else array
    for name, planes in stacks.items():
        yield named(name), np.stack([planes[index] for index in range(len(planes))])


def _gpt_oss(named: Callable[[str], str], name: str, array: Array) -> Iterator[tuple[str, Array]]:
    if name.endswith("_bias"):
        kind, name = ".bias", name.removesuffix("_bias")
    else:
        kind, array = ".weight", array.transpose(0, 2, 1)
    if name.endswith("gate_up_proj"):
        yield named(name.replace("gate_up", "gate") + kind), array[:, 0::2]
        yield named(name.replace("gate_up", "up") + kind), array[:, 1::2]
    else:
        yield named(name + kind), array


def _llama3_factors(config: Mapping[str, Any], rotary: Mapping[str, Any]) -> Array:
    dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    low, high, factor = rotary["low_freq_factor"], rotary["high_freq_factor"], rotary["factor"]
    original = rotary["original_max_position_embeddings"]
    factors = []
    for index in range(0, dim, 2):
        length = 2 * np.pi * rotary["rope_theta"] ** (index / dim)
        smooth = (original / length - low) / (high - low)
        factors.append(1.0 if smooth > 1 else factor if smooth < 0 else 1 / ((1 - smooth) / factor + smooth))
    return np.array(factors, np.float32)


def _tokenizer(writer: gguf.GGUFWriter, source: Path) -> None:
    document = json.loads((source / "tokenizer.json").read_text())
    settings = json.loads((source / "tokenizer_config.json").read_text())
    vocabulary = dict(document["model"]["vocab"])
    special = {entry["content"]: entry["id"] for entry in document["added_tokens"]}
    by_id = {token: text for text, token in (vocabulary | special).items()}
    count = json.loads((source / "config.json").read_text())["vocab_size"]
    kinds = gguf.TokenType
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([by_id.get(index, f"[PAD{index}]") for index in range(count)])
    writer.add_token_types(
        [
            kinds.UNUSED if index not in by_id else kinds.CONTROL if by_id[index] in special else kinds.NORMAL
            for index in range(count)
        ]
    )
    merges = document["model"]["merges"]
    writer.add_token_merges([one if isinstance(one, str) else " ".join(one) for one in merges])
    template = settings.get("chat_template")
    if template is None and (source / "chat_template.jinja").is_file():
        template = (source / "chat_template.jinja").read_text()
    writer.add_chat_template(template)
    for role, add in (("bos_token", writer.add_bos_token_id), ("pad_token", writer.add_pad_token_id)):
        if isinstance(settings.get(role), str):
            add(special[settings[role]])
