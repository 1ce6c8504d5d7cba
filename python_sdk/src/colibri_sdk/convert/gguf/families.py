# SPDX-License-Identifier: Apache-2.0
"""What GGUF calls an architecture and its tensors, and what the transformers library calls them: data, no code.

Facts of llama.cpp's converter and loaders. What no table shows: llama.cpp rotates neighbouring dimensions in some
architectures ("norm") and halves in others ("neox"); for llama and granitemoe, whose checkpoints rotate halves, its
converter sorts the rows of queries and keys (`sorted_rows`). deepseek2 and ernie4_5-moe have neighbours in both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Family:
    """One value of general.architecture. Suffixes are metadata keys without the architecture before them."""

    hf_class: str
    router: str = "mlp.gate"  # below a layer's prefix, as all names here
    experts: str = "mlp.experts"
    projections: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")
    shared: str = "mlp.shared_experts"
    correction: str = "mlp.gate.e_score_correction_bias"
    sorted_rows: bool = False
    # Keys of config.json to suffixes of integers, numbers and switches; taken where they are there.
    integers: Mapping[str, str] = field(default_factory=dict)
    numbers: Mapping[str, str] = field(default_factory=dict)
    switches: Mapping[str, str] = field(default_factory=dict)
    # Keys of config.json that are true when layer 0 has this tensor.
    present: Mapping[str, str] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    # Suffixes that may be there with one of these values only, because the architecture means nothing else.
    expected: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)


SOFTMAX, SIGMOID, SOFTMAX_OF_CHOSEN = 1, 2, 3  # expert_gating_func

_CHOSEN = {"num_experts_per_tok": "expert_used_count"}
_WIDTH = {"intermediate_size": "feed_forward_length"}
_EXPERT_WIDTH = {"moe_intermediate_size": "expert_feed_forward_length"}
# What it means that a file of DeepSeek's kind leaves these out; a config.json that does would mean the larger numbers.
_NOTHING_MORE = {
    "first_k_dense_replace": 0,
    "n_shared_experts": 0,
    "n_group": 1,
    "topk_group": 1,
    "q_lora_rank": None,
    "num_nextn_predict_layers": 0,
}
_PLAIN_SOFTMAX = {"expert_gating_func": (SOFTMAX,), "expert_weights_scale": (1.0, 0.0)}

_LLAMA = Family(
    "LlamaForCausalLM",
    sorted_rows=True,
    integers=_WIDTH,
    present={"attention_bias": "attn_output.bias", "mlp_bias": "ffn_down.bias"},
    expected={"expert_count": (0,), "expert_used_count": (0,)},
)
MIXTRAL = Family(
    "MixtralForCausalLM",
    router="block_sparse_moe.gate",
    experts="block_sparse_moe.experts",
    projections=("w1", "w3", "w2"),
    sorted_rows=True,
    integers={
        **_WIDTH, **_CHOSEN, "num_local_experts": "expert_count", "sliding_window": "attention.sliding_window"
    },
    expected={
        "expert_gating_func": (SOFTMAX, SOFTMAX_OF_CHOSEN),
        "expert_weights_norm": (True,),
        "expert_weights_scale": (1.0, 0.0),
    },
)  # fmt: skip
DEEPSEEK_V3 = Family(
    "DeepseekV3ForCausalLM",
    integers={
        **_WIDTH, **_CHOSEN, **_EXPERT_WIDTH,
        "n_routed_experts": "expert_count",
        "n_shared_experts": "expert_shared_count",
        "n_group": "expert_group_count",
        "topk_group": "expert_group_used_count",
        "first_k_dense_replace": "leading_dense_block_count",
        "num_nextn_predict_layers": "nextn_predict_layers",
        "q_lora_rank": "attention.q_lora_rank",
        "kv_lora_rank": "attention.kv_lora_rank",
    },
    numbers={"routed_scaling_factor": "expert_weights_scale"},
    switches={"norm_topk_prob": "expert_weights_norm"},
    fixed={
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
        "norm_topk_prob": False,
        "routed_scaling_factor": 1.0,
        **_NOTHING_MORE,
    },
    present={"attention_bias": "attn_kv_a_mqa.bias"},
    expected={"expert_gating_func": (SIGMOID,)},
)  # fmt: skip

FAMILIES: Mapping[str, Family] = {
    "llama": _LLAMA,  # with experts: MIXTRAL
    "qwen3": Family(
        "Qwen3ForCausalLM",
        integers=_WIDTH,
        present={"attention_bias": "attn_q.bias"},
    ),
    "qwen2moe": Family(
        "Qwen2MoeForCausalLM",
        shared="mlp.shared_expert",
        integers={
            **_WIDTH,
            **_CHOSEN,
            **_EXPERT_WIDTH,
            "num_experts": "expert_count",
            "shared_expert_intermediate_size": "expert_shared_feed_forward_length",
        },
        switches={"norm_topk_prob": "expert_weights_norm"},
        present={"qkv_bias": "attn_q.bias"},
        expected=_PLAIN_SOFTMAX,
    ),
    "qwen3moe": Family(
        "Qwen3MoeForCausalLM",
        integers={**_WIDTH, **_CHOSEN, **_EXPERT_WIDTH, "num_experts": "expert_count"},
        switches={"norm_topk_prob": "expert_weights_norm"},
        present={"attention_bias": "attn_q.bias"},
        # llama.cpp divides the weights by their sum in this architecture without being told.
        fixed={"norm_topk_prob": True},
        expected=_PLAIN_SOFTMAX,
    ),
    "olmoe": Family(
        "OlmoeForCausalLM",
        integers={**_WIDTH, **_CHOSEN, "num_experts": "expert_count"},
        numbers={"clip_qkv": "attention.clamp_kqv"},
        switches={"norm_topk_prob": "expert_weights_norm"},
        present={"attention_bias": "attn_q.bias"},
        expected=_PLAIN_SOFTMAX,
    ),
    "granitemoe": Family(
        "GraniteMoeForCausalLM",
        router="block_sparse_moe.router.layer",
        experts="block_sparse_moe",
        sorted_rows=True,
        integers={**_WIDTH, **_CHOSEN, "num_local_experts": "expert_count"},
        numbers={
            "attention_multiplier": "attention.scale",
            "embedding_multiplier": "embedding_scale",
            "residual_multiplier": "residual_scale",
            "logits_scaling": "logit_scale",
        },
        present={"attention_bias": "attn_q.bias"},
        expected={
            "expert_gating_func": (SOFTMAX, SOFTMAX_OF_CHOSEN),
            "expert_weights_norm": (True,),
            "expert_weights_scale": (1.0, 0.0),
        },
    ),
    "deepseek2": Family(  # with sigmoid scores: DEEPSEEK_V3
        "DeepseekV2ForCausalLM",
        integers=DEEPSEEK_V3.integers,
        numbers=DEEPSEEK_V3.numbers,
        present=DEEPSEEK_V3.present,
        fixed={"scoring_func": "softmax", "norm_topk_prob": False, **_NOTHING_MORE},
        expected={"expert_gating_func": (SOFTMAX,), "expert_weights_norm": (False,)},
    ),
    "glm4moe": Family(
        "Glm4MoeForCausalLM",
        integers={
            **_WIDTH,
            **_CHOSEN,
            **_EXPERT_WIDTH,
            "n_routed_experts": "expert_count",
            "n_shared_experts": "expert_shared_count",
            "n_group": "expert_group_count",
            "topk_group": "expert_group_used_count",
            "first_k_dense_replace": "leading_dense_block_count",
            "num_nextn_predict_layers": "nextn_predict_layers",
        },
        numbers={"routed_scaling_factor": "expert_weights_scale"},
        switches={"norm_topk_prob": "expert_weights_norm"},
        present={"attention_bias": "attn_q.bias", "use_qk_norm": "attn_q_norm.weight"},
        fixed={"norm_topk_prob": False, **_NOTHING_MORE},
        expected={"expert_gating_func": (SIGMOID,)},
    ),
    "gpt-oss": Family(
        "GptOssForCausalLM",
        router="mlp.router",
        integers={
            **_CHOSEN,
            "intermediate_size": "expert_feed_forward_length",
            "num_local_experts": "expert_count",
            "sliding_window": "attention.sliding_window",
        },
        present={"attention_bias": "attn_q.bias"},
        expected={"expert_gating_func": (SOFTMAX_OF_CHOSEN,), "feed_forward_length": ()},
    ),
    "ernie4_5-moe": Family(
        "Ernie4_5_MoeForCausalLM",
        correction="mlp.moe_statics.e_score_correction_bias",
        integers={
            **_WIDTH,
            **_EXPERT_WIDTH,
            "moe_k": "expert_used_count",
            "moe_num_experts": "expert_count",
            "moe_num_shared_experts": "expert_shared_count",
            "moe_layer_interval": "interleave_moe_layer_step",
            "moe_layer_start_index": "leading_dense_block_count",
        },
        present={"use_bias": "attn_q.bias"},
        fixed={"moe_num_shared_experts": 0, "moe_layer_start_index": 0},
        # Its converter writes a width for the shared experts that nobody can rely on: it divides by a number of heads.
        expected={
            "expert_gating_func": (SOFTMAX,),
            "expert_weights_norm": (True,),
            "expert_weights_scale": (1.0, 0.0),
            "expert_shared_feed_forward_length": (),
        },
    ),
}

# Tensors of a layer that are called the same in all architectures, without ".weight" or ".bias".
LAYER_TENSORS: Mapping[str, str] = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_q_a": "self_attn.q_a_proj",
    "attn_q_b": "self_attn.q_b_proj",
    "attn_q_a_norm": "self_attn.q_a_layernorm",
    "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
    "attn_kv_a_norm": "self_attn.kv_a_layernorm",
    "attn_kv_b": "self_attn.kv_b_proj",
    "attn_k_b": "self_attn.k_b_proj",
    "attn_v_b": "self_attn.v_b_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
}

MODEL_TENSORS: Mapping[str, str] = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
    "output.bias": "lm_head.bias",
}

ROPE_FACTORS = "rope_freqs.weight"
IGNORED = ("attn_rot_embd.weight",)  # below a layer: computed from the metadata
