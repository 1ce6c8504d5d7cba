# SPDX-License-Identifier: Apache-2.0
"""A GGUF file's metadata as the config.json that the architectures read.

A key that is not known is refused by its name, because it may change what the model computes. 32-bit floats come as
the shortest decimals that round to them, so that a model gives the same image from either kind of file.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from colibri_sdk.convert.architectures.refused import advice, because
from colibri_sdk.convert.gguf.cursor import Texts, Value
from colibri_sdk.convert.gguf.families import DEEPSEEK_V3, FAMILIES, MIXTRAL, SIGMOID, Family
from colibri_sdk.convert.gguf.header import Entry
from colibri_sdk.errors import CheckpointError
from colibri_sdk.image.layout import MAX_LAYERS

ARCHITECTURES: tuple[str, ...] = tuple(FAMILIES)

# Suffixes that say nothing about what is computed, or say again what tensors do.
_WITHOUT_EFFECT = frozenset(
    ("vocab_size", "tensor_data_layout", "rope.scaling.finetuned", "attention.layer_norm_epsilon")
)  # fmt: skip
_EXPECTED_EVERYWHERE: Mapping[str, tuple[Any, ...]] = {
    "attention.causal": (True,),
    "use_parallel_residual": (False,),
    "expert_group_count": (0, 1),
    "expert_group_used_count": (0, 1),
    "expert_shared_count": (0,),
    "nextn_predict_layers": (0,),
    "attention.key_length_mla": (0,),
    "attention.value_length_mla": (0,),
}
_END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")


class Metadata:
    """Typed access, which remembers what was asked for."""

    def __init__(self, path: Path, values: Mapping[str, Value]) -> None:
        self.path = path
        self.values = values
        self.architecture = self.text("general.architecture") or self.refuse("has no general.architecture")
        self._asked: set[str] = set()

    def refuse(self, problem: str, hint: str = "The file is damaged, or of a kind that cannot be read.") -> NoReturn:
        raise CheckpointError(f"{self.path.name} {problem}", hint, where=str(self.path))

    def text(self, key: str) -> str | None:
        value = self.values.get(key)
        if value is not None and not isinstance(value, str):
            self.refuse(f"has {key} = {_shown(value)}; a text is expected")
        return value

    def texts(self, key: str) -> Texts | None:
        value = self.values.get(key)
        if value is not None and not isinstance(value, Texts):
            self.refuse(f"has {key} = {_shown(value)}; a list of texts is expected")
        return value

    def token(self, key: str) -> int | None:
        """tokenizer.ggml.KEY, an id."""
        value = self.values.get(f"tokenizer.ggml.{key}")
        if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
            self.refuse(f"has tokenizer.ggml.{key} = {_shown(value)}; a token id is expected")
        return value

    def switch(self, key: str) -> bool | None:
        value = self.values.get(key)
        if value is not None and not isinstance(value, bool):
            self.refuse(f"has {key} = {_shown(value)}; true or false is expected")
        return value

    # -------------------------------------------------------------------------------- keys of the architecture

    def get(self, suffix: str) -> Value | None:
        self._asked.add(suffix)
        return self.values.get(f"{self.architecture}.{suffix}")

    def integer(self, suffix: str) -> int | None:
        """An integer, or one for each layer where all are the same."""
        value = self.get(suffix)
        if isinstance(value, np.ndarray) and value.size and value.dtype.kind in "iu" and (value == value[0]).all():
            value = int(value[0])
        if value is None or (isinstance(value, int) and not isinstance(value, bool)):
            return value
        return self.refuse(
            f"has {self.architecture}.{suffix} = {_shown(value)}; one integer for all layers is expected"
        )

    def word(self, suffix: str) -> str | None:
        value = self.get(suffix)
        if value is None or isinstance(value, str):
            return value
        return self.refuse(f"has {self.architecture}.{suffix} = {_shown(value)}; a text is expected")

    def needed(self, suffix: str) -> int:
        value = self.integer(suffix)
        return self.refuse(f"has no {self.architecture}.{suffix}") if value is None else value

    def number(self, suffix: str) -> float | None:
        value = self.get(suffix)
        if value is None or (isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)):
            return value
        return self.refuse(f"has {self.architecture}.{suffix} = {_shown(value)}; a finite number is expected")

    def expect(self, suffix: str, allowed: tuple[Any, ...]) -> None:
        """Refuses any other value; nothing allowed means that no value matters."""
        value = self.get(suffix)
        if value is not None and allowed and not any(_same(value, one) for one in allowed):
            known = " or ".join(str(one) for one in allowed)
            self.refuse(f"has {self.architecture}.{suffix} = {_shown(value)}, which is not supported", f"{known} is.")

    def was_asked_for(self, suffix: str) -> bool:
        return suffix in self._asked

    def check_all_known(self) -> None:
        prefix = f"{self.architecture}."
        suffixes = {key.removeprefix(prefix) for key in self.values if key.startswith(prefix)}
        unknown = sorted(suffixes - self._asked - _WITHOUT_EFFECT)
        if unknown:
            self.refuse(
                f"has the metadata key {prefix}{unknown[0]} = {_shown(self.values[prefix + unknown[0]])}, "
                "which is not known for this architecture",
                "It may change what the model computes. Pack the model's safetensors instead.",
            )


def _same(value: object, allowed: object) -> bool:
    return bool(value == allowed) if isinstance(value, (int, float, str)) else False


def _shown(value: Value) -> str:
    """A value in a message, never a long one."""
    if isinstance(value, Texts):
        return f"{len(value)} texts"
    if isinstance(value, np.ndarray) and value.size > 8:
        return f"{value.size} numbers"
    text = repr(value.tolist() if isinstance(value, np.ndarray) else value)
    return text if len(text) <= 80 else text[:77] + "..."


def family(meta: Metadata, tensors: Mapping[str, Entry]) -> Family:
    """The names and keys of this file's architecture."""
    found = FAMILIES.get(meta.architecture)
    if found is None:
        meta.refuse(
            f"is of the architecture {meta.architecture!r}, which is not supported{because(meta.architecture)}",
            advice(meta.architecture, ", ".join(ARCHITECTURES)),
        )
    if meta.architecture == "llama" and (meta.integer("expert_count") or 0) > 0:
        return MIXTRAL
    if meta.architecture == "deepseek2":
        corrected = any(name.endswith(".exp_probs_b.bias") for name in tensors)
        if corrected or meta.integer("expert_gating_func") == SIGMOID:
            return DEEPSEEK_V3
    return found


def to_config(
    meta: Metadata, known: Family, tensors: Mapping[str, Entry], factors: list[float] | None
) -> dict[str, Any]:
    """config.json of the model in this file; `factors` are the divisors of rotary frequencies that a tensor holds."""
    layers = meta.needed("block_count")
    if "nextn_predict_layers" in known.integers.values():
        layers -= meta.integer("nextn_predict_layers") or 0
    if not 1 <= layers <= MAX_LAYERS:
        meta.refuse(f"has {layers} layers; 1 to {MAX_LAYERS} are possible")
    config: dict[str, Any] = {
        "architectures": [known.hf_class],
        "hidden_act": "silu",
        "vocab_size": _vocab(meta, tensors),
        "hidden_size": meta.needed("embedding_length"),
        "num_hidden_layers": layers,
        "num_attention_heads": meta.needed("attention.head_count"),
        "max_position_embeddings": meta.needed("context_length"),
        "rms_norm_eps": meta.number("attention.layer_norm_rms_epsilon"),
        "tie_word_embeddings": "output.weight" not in tensors,
        **known.fixed,
    }
    config |= {key: f"blk.0.{tensor}" in tensors for key, tensor in known.present.items()}
    for read, wanted in ((meta.integer, known.integers), (meta.number, known.numbers), (meta.get, known.switches)):
        for key, suffix in wanted.items():
            value = read(suffix)
            if value is not None:
                config[key] = value
    config |= _latent_dims(meta) if meta.architecture == "deepseek2" else _head_dims(meta, config)
    config |= _rotary(meta, config, factors)
    config |= _layer_kinds(meta, layers, tensors)
    ends = [meta.token(key) for key in _END_KEYS]
    config["eos_token_id"] = sorted({token for token in ends if token is not None})
    for suffix, allowed in known.expected.items():
        meta.expect(suffix, allowed)
    for suffix, allowed in _EXPECTED_EVERYWHERE.items():
        if not meta.was_asked_for(suffix):
            meta.expect(suffix, allowed)
    meta.check_all_known()
    return config


def _vocab(meta: Metadata, tensors: Mapping[str, Entry]) -> int:
    embedding = tensors.get("token_embd.weight")
    if embedding is None:
        meta.refuse("has no tensor token_embd.weight")
    return embedding.shape[0]


def _head_dims(meta: Metadata, config: Mapping[str, Any]) -> dict[str, Any]:
    heads = config["num_attention_heads"]
    kv_heads = meta.integer("attention.head_count_kv")
    length = meta.integer("attention.key_length")
    values = meta.integer("attention.value_length")
    if values not in (None, length):
        meta.refuse(f"has keys of {length} and values of {values} dimensions; they must be the same here")
    found: dict[str, Any] = {"num_key_value_heads": heads if kv_heads is None else kv_heads}
    return found if length is None else found | {"head_dim": length}


def _latent_dims(meta: Metadata) -> dict[str, Any]:
    """DeepSeek's dimensions: newer files call the cache's own ones key and value, and these here mla."""
    turning = meta.needed("rope.dimension_count")
    keys, values = meta.integer("attention.key_length"), meta.integer("attention.value_length")
    keys = meta.integer("attention.key_length_mla") or keys
    values = meta.integer("attention.value_length_mla") or values
    meta.integer("attention.head_count_kv")  # 1 or the number of heads: the same cache either way
    if keys is None or values is None or keys <= turning:
        meta.refuse(f"has keys of {keys} and values of {values} dimensions, of which {turning} rotate")
    return {"qk_nope_head_dim": keys - turning, "qk_rope_head_dim": turning, "v_head_dim": values}


def _layer_kinds(meta: Metadata, layers: int, tensors: Mapping[str, Entry]) -> dict[str, Any]:
    """Which layers have no experts, where metadata do not say so."""
    routed = [index for index in range(layers) if f"blk.{index}.ffn_gate_inp.weight" in tensors]
    match meta.architecture:
        case "qwen2moe" | "qwen3moe":
            return {"mlp_only_layers": [index for index in range(layers) if index not in routed]}
        case "ernie4_5-moe":
            return {"moe_layer_end_index": routed[-1] if routed else layers - 1}
        case "deepseek2":
            groups = meta.integer("expert_group_count") or 1
            return {"topk_method": "group_limited_greedy" if groups > 1 else "greedy"} if _is_second(meta) else {}
        case _:
            return {}


def _is_second(meta: Metadata) -> bool:
    return meta.integer("expert_gating_func") != SIGMOID


def _rotary(meta: Metadata, config: Mapping[str, Any], factors: list[float] | None) -> dict[str, Any]:
    """Rotary settings under rope_parameters."""
    settings: dict[str, Any] = {
        "rope_type": "default",
        "rope_theta": meta.number("rope.freq_base") or 10000.0,
        "partial_rotary_factor": 1.0,
    }
    kind, factor = meta.word("rope.scaling.type"), meta.number("rope.scaling.factor")
    older = meta.number("rope.scale_linear")
    if older not in (None, 0.0, 1.0):
        kind, factor = "linear", older
    original = meta.integer("rope.scaling.original_context_length")
    yarn = {
        name: meta.number(f"rope.scaling.{suffix}")
        for name, suffix in (
            ("attention_factor", "yarn_attn_factor"),
            ("beta_fast", "yarn_beta_fast"),
            ("beta_slow", "yarn_beta_slow"),
        )
    }
    multiplier = meta.number("rope.scaling.yarn_log_multiplier")
    meta.expect("rope.scaling.yarn_ext_factor", (1.0, -1.0))
    meta.expect("rope.scaling.attn_factor", (1.0,))
    if kind == "longrope":
        meta.refuse("scales rotary positions by 'longrope', which is not supported in GGUF files; take the checkpoint")
    if kind not in (None, "none"):
        settings |= {"rope_type": kind, "factor": factor}
    if kind == "yarn":
        settings |= {name: value for name, value in yarn.items() if value is not None}
        settings["original_max_position_embeddings"] = original
        if multiplier:  # a tenth of DeepSeek's mscale_all_dim; mscale is the same in all its models
            settings["mscale"] = settings["mscale_all_dim"] = round(10 * multiplier, 6)
        if meta.architecture == "gpt-oss":
            settings["truncate"] = False
    if factors is not None and any(one != 1.0 for one in factors):
        if settings["rope_type"] != "default":
            meta.refuse(f"scales rotary positions by {kind} and by a tensor of factors; one of the two is expected")
        settings |= {"rope_type": "factors", "factors": factors}
    dims = meta.integer("rope.dimension_count")
    if dims is not None and meta.architecture != "deepseek2":
        head = config.get("head_dim") or max(config["hidden_size"] // max(config["num_attention_heads"], 1), 1)
        if not 0 < dims <= head:
            meta.refuse(f"rotates {dims} of {head} dimensions of a head")
        settings["partial_rotary_factor"] = _fraction(dims, head)
    return {"rope_parameters": settings}


def _fraction(part: int, whole: int) -> float:
    """part / whole, such that whole times it, rounded down, is part."""
    fraction = part / whole
    return fraction if int(whole * fraction) == part else math.nextafter(fraction, 1.0)
