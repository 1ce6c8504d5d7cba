# SPDX-License-Identifier: Apache-2.0
"""Writes a checkpoint of Mixtral's shape with random weights: of any size, for models that no memory holds.

    python tests/make_random_moe.py OUT --layers 8 --experts 420 --hidden 256 --width 512
    colibri-sdk pack OUT -o big.colibri

A layer's experts are one shard, so that the memory needed is that of a few experts. The tokenizer is the demo model's;
what the model says means nothing, but it is the same everywhere.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

HUMMINGBIRD = Path(__file__).resolve().parents[1] / "models" / "hummingbird"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")
_POOL = 1 << 20

Halves = NDArray[np.float16]


@dataclass(frozen=True)
class Shape:
    """Of the model; widths are multiples of 32."""

    layers: int = 8
    experts: int = 420
    top_k: int = 2
    hidden: int = 256
    width: int = 512
    heads: int = 4
    kv_heads: int = 2
    context: int = 256
    seed: int = 1

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads


def configuration(shape: Shape, vocab: int) -> dict[str, object]:
    return {
        "architectures": ["MixtralForCausalLM"],
        "model_type": "mixtral",
        "vocab_size": vocab,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.width,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": shape.context,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "num_local_experts": shape.experts,
        "num_experts_per_tok": shape.top_k,
        "sliding_window": None,
        "tie_word_embeddings": False,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 1,
        "torch_dtype": "float16",
    }


class _Weights:
    """Normally distributed numbers. Drawn once and then cut out at random places: a billion of them are made at the
    speed of copying."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self._pool = self._random.standard_normal(_POOL).astype(np.float32)

    def matrix(self, rows: int, cols: int) -> Halves:
        """[rows][cols], scaled so that a product keeps the size of its input."""
        scaled = (self._pool / np.sqrt(cols)).astype(np.float16)
        out = np.empty(rows * cols, np.float16)
        for at in range(0, out.size, _POOL // 2):
            piece = out[at : at + _POOL // 2]
            start = int(self._random.integers(0, _POOL - piece.size + 1))
            piece[:] = scaled[start : start + piece.size]
        return out.reshape(rows, cols)


def _attention(weights: _Weights, shape: Shape, layer: int) -> dict[str, Halves]:
    name = f"model.layers.{layer}"
    kv = shape.kv_heads * shape.head_dim
    return {
        f"{name}.input_layernorm.weight": np.ones(shape.hidden, np.float16),
        f"{name}.post_attention_layernorm.weight": np.ones(shape.hidden, np.float16),
        f"{name}.self_attn.q_proj.weight": weights.matrix(shape.hidden, shape.hidden),
        f"{name}.self_attn.k_proj.weight": weights.matrix(kv, shape.hidden),
        f"{name}.self_attn.v_proj.weight": weights.matrix(kv, shape.hidden),
        f"{name}.self_attn.o_proj.weight": weights.matrix(shape.hidden, shape.hidden),
        f"{name}.block_sparse_moe.gate.weight": weights.matrix(shape.experts, shape.hidden),
    }


def _experts(weights: _Weights, shape: Shape, layer: int) -> dict[str, Halves]:
    tensors = {}
    for expert in range(shape.experts):
        name = f"model.layers.{layer}.block_sparse_moe.experts.{expert}"
        tensors[f"{name}.w1.weight"] = weights.matrix(shape.width, shape.hidden)
        tensors[f"{name}.w2.weight"] = weights.matrix(shape.hidden, shape.width)
        tensors[f"{name}.w3.weight"] = weights.matrix(shape.width, shape.hidden)
    return tensors


def _shards(shape: Shape, vocab: int) -> Iterator[dict[str, Halves]]:
    weights = _Weights(shape.seed)
    common = {
        "model.embed_tokens.weight": weights.matrix(vocab, shape.hidden) * np.float16(np.sqrt(shape.hidden)),
        "model.norm.weight": np.ones(shape.hidden, np.float16),
        "lm_head.weight": weights.matrix(vocab, shape.hidden),
    }
    for layer in range(shape.layers):
        common |= _attention(weights, shape, layer)
    yield common
    for layer in range(shape.layers):
        yield _experts(weights, shape, layer)


def make(out: Path, shape: Shape) -> Path:
    """Writes the checkpoint's directory and returns it."""
    from safetensors.numpy import save_file

    out.mkdir(parents=True, exist_ok=True)
    vocab = json.loads((HUMMINGBIRD / "config.json").read_text("utf-8"))["vocab_size"]
    (out / "config.json").write_text(json.dumps(configuration(shape, vocab), indent=1) + "\n", "utf-8")
    for name in TOKENIZER_FILES:
        shutil.copyfile(HUMMINGBIRD / name, out / name)
    weight_map = {}
    count = shape.layers + 1
    for number, shard in enumerate(_shards(shape, vocab), 1):
        name = f"model-{number:05}-of-{count:05}.safetensors"
        save_file(shard, out / name)
        weight_map |= dict.fromkeys(shard, name)
    index = {"metadata": {}, "weight_map": weight_map}
    (out / "model.safetensors.index.json").write_text(json.dumps(index) + "\n", "utf-8")
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    for name, value in vars(Shape()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=value, help=f"default: {value}")
    values = vars(parser.parse_args())
    print(make(values.pop("out"), Shape(**values)))


if __name__ == "__main__":
    main()
