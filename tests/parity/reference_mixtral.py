# SPDX-License-Identifier: Apache-2.0
"""Mixtral's forward pass in NumPy, written from its definition and straight from the checkpoint's tensors.

It shares no code with the packer or the engine and is checked against outputs of the transformers library
(reference.json), so that a test can ask it for logits that reference.json does not have. Everything is in float64
unless told otherwise: it says what is right, not what float32 makes of it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file

Array = npt.NDArray[Any]


@dataclass
class Trace:
    """Routing of one pass: [layer][position] -> (experts, weights), the largest weight first."""

    experts: list[list[list[int]]] = field(default_factory=list)
    weights: list[list[list[float]]] = field(default_factory=list)


class ReferenceMixtral:
    """A checkpoint directory with one model.safetensors, all positions computed anew in each call."""

    def __init__(self, directory: Path, dtype: type[np.floating[Any]] = np.float64) -> None:
        self.config: dict[str, Any] = json.loads((directory / "config.json").read_text())
        self.dtype = dtype
        self.tensors = {k: v.astype(dtype) for k, v in load_file(directory / "model.safetensors").items()}

    def logits(self, ids: list[int], trace: Trace | None = None) -> Array:
        """[len(ids)][vocab]: what follows each position."""
        c = self.config
        x = self.tensors["model.embed_tokens.weight"][ids]
        cos, sin = self._rotary(len(ids))
        for layer in range(c["num_hidden_layers"]):
            prefix = f"model.layers.{layer}."
            x = x + self._attention(prefix, self._norm(x, prefix + "input_layernorm.weight"), cos, sin)
            x = x + self._experts(prefix, self._norm(x, prefix + "post_attention_layernorm.weight"), trace)
        head = "model.embed_tokens.weight" if c.get("tie_word_embeddings") else "lm_head.weight"
        return self.product(self._norm(x, "model.norm.weight"), head)

    def product(self, x: Array, name: str) -> Array:
        """[positions][inputs] times a matrix [outputs][inputs]. The router's product does not come through here, so
        that a subclass may do this one as hardware for small integers would."""
        return x @ self.tensors[name].T

    def cached(self, rows: Array) -> Array:
        """Keys or values [heads][positions][dim] as later positions see them: exact, but for a subclass."""
        return rows

    def greedy(self, ids: list[int], count: int, stop: tuple[int, ...] = ()) -> list[int]:
        """At most `count` further ids, each the one of the largest logit; ends behind one of `stop`."""
        ids, first = list(ids), len(ids)
        while len(ids) - first < count and (len(ids) == first or ids[-1] not in stop):
            ids.append(int(self.logits(ids)[-1].argmax()))
        return ids[first:]

    def _norm(self, x: Array, name: str) -> Array:
        mean_square = (x * x).mean(-1, keepdims=True)
        return x / np.sqrt(mean_square + self.dtype(self.config["rms_norm_eps"])) * self.tensors[name]

    def _head_dim(self) -> int:
        c = self.config
        return int(c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"])

    def _rotary(self, positions: int) -> tuple[Array, Array]:
        dim = self._head_dim()
        theta = self.config.get("rope_theta") or self.config["rope_parameters"]["rope_theta"]
        frequencies = theta ** (-np.arange(0, dim, 2, dtype=np.float64) / dim)
        angles = np.arange(positions)[:, None] * frequencies
        return np.cos(angles).astype(self.dtype), np.sin(angles).astype(self.dtype)

    def _rotate(self, x: Array, cos: Array, sin: Array) -> Array:
        """Pairs (i, i + dim / 2) of each head turn; x is [heads][positions][dim]."""
        a, b = np.split(x, 2, axis=-1)
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)

    def _attention(self, prefix: str, x: Array, cos: Array, sin: Array) -> Array:
        c, dim = self.config, self._head_dim()
        heads, kv_heads = c["num_attention_heads"], c["num_key_value_heads"]

        def project(name: str, count: int) -> Array:
            y = self.product(x, f"{prefix}self_attn.{name}.weight")
            return y.reshape(len(x), count, dim).transpose(1, 0, 2)

        query = self._rotate(project("q_proj", heads), cos, sin)
        key = self.cached(self._rotate(project("k_proj", kv_heads), cos, sin)).repeat(heads // kv_heads, axis=0)
        value = self.cached(project("v_proj", kv_heads)).repeat(heads // kv_heads, axis=0)
        scores = query @ key.transpose(0, 2, 1) / self.dtype(dim) ** self.dtype(0.5)
        scores = np.where(np.tri(len(x), dtype=bool), scores, -np.inf)
        mixed = _softmax(scores) @ value
        flat = mixed.transpose(1, 0, 2).reshape(len(x), heads * dim)
        return self.product(flat, f"{prefix}self_attn.o_proj.weight")

    def _experts(self, prefix: str, x: Array, trace: Trace | None) -> Array:
        moe, top_k = f"{prefix}block_sparse_moe.", self.config["num_experts_per_tok"]
        scores = x @ self.tensors[moe + "gate.weight"].T
        chosen = np.argsort(-scores, axis=-1, kind="stable")[:, :top_k]
        weights = _softmax(np.take_along_axis(scores, chosen, axis=-1))
        if trace is not None:
            trace.experts.append(chosen.tolist())
            trace.weights.append(weights.tolist())
        out = np.zeros_like(x)
        for position in range(len(x)):
            for expert, weight in zip(chosen[position], weights[position], strict=True):
                gate, down, up = (f"{moe}experts.{expert}.w{n}.weight" for n in (1, 2, 3))
                one = x[position : position + 1]
                g = self.product(one, gate)
                hidden = g / (1 + np.exp(-g)) * self.product(one, up)
                out[position] += weight * self.product(hidden, down)[0]
        return out


def _softmax(x: Array) -> Array:
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)
