# SPDX-License-Identifier: Apache-2.0
"""A model in neutral terms: what an architecture file fills in and what the packer writes.

Nothing here knows the name of an architecture. Shapes are [rows][cols] = [outputs][inputs], as in image.h.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from colibri_sdk.image.layout import RouterKind


@dataclass(frozen=True)
class TensorSource:
    """Where a tensor's numbers lie in the checkpoint.

    `stored_shape` is the shape of the checkpoint's tensor `name`. `expert` picks one plane of a three-dimensional
    tensor that holds all experts; `first_row` is where the wanted rows start in a matrix that holds several.
    """

    name: str
    rows: int
    cols: int
    stored_shape: tuple[int, ...]
    expert: int | None = None
    first_row: int = 0

    @classmethod
    def matrix(cls, name: str, rows: int, cols: int) -> TensorSource:
        """A whole two-dimensional tensor of shape [rows][cols]."""
        return cls(name, rows, cols, (rows, cols))

    @classmethod
    def vector(cls, name: str, cols: int) -> TensorSource:
        """A whole one-dimensional tensor of `cols` numbers."""
        return cls(name, 1, cols, (cols,))

    @property
    def is_vector(self) -> bool:
        return len(self.stored_shape) == 1

    @property
    def title(self) -> str:
        """The tensor's name for messages, with the part that is meant."""
        return self.name if self.expert is None else f"{self.name}[{self.expert}]"


@dataclass(frozen=True)
class ExpertDescription:
    """One SwiGLU expert: down(silu(gate(x)) * up(x))."""

    gate: TensorSource  # [expert_width][hidden]
    up: TensorSource  # [expert_width][hidden]
    down: TensorSource  # [hidden][expert_width]

    def tensors(self) -> tuple[TensorSource, TensorSource, TensorSource]:
        """In the order in which they lie in the expert's blob."""
        return self.gate, self.up, self.down


@dataclass(frozen=True)
class LayerDescription:
    """One transformer layer: grouped-query attention, then a router and its experts."""

    heads: int
    kv_heads: int
    head_dim: int
    attention_scale: float
    norm_eps: float
    router_kind: RouterKind
    top_k: int
    expert_width: int
    attention_norm: TensorSource
    query: TensorSource
    key: TensorSource
    value: TensorSource
    output: TensorSource
    expert_norm: TensorSource
    router: TensorSource
    experts: tuple[ExpertDescription, ...]

    def resident(self) -> tuple[tuple[str, TensorSource], ...]:
        """Tensors that every token uses, with their field in struct col_layer, in the order of the image."""
        return (
            ("attention_norm", self.attention_norm),
            ("query", self.query),
            ("key", self.key),
            ("value", self.value),
            ("output", self.output),
            ("expert_norm", self.expert_norm),
            ("router", self.router),
        )


@dataclass(frozen=True)
class ModelDescription:
    """A whole model. `head` is None when the output head is the embedding (tied)."""

    architecture: str
    vocab: int
    hidden: int
    context_max: int
    rotary_dim: int
    rope_theta: float
    norm_eps: float
    eos: tuple[int, ...]
    embedding: TensorSource
    final_norm: TensorSource
    head: TensorSource | None
    layers: tuple[LayerDescription, ...]
    # Names of tensors that checkpoints of this architecture carry and that no one needs, as regular expressions.
    ignored_tensors: tuple[str, ...] = ()

    def sources(self) -> Iterator[TensorSource]:
        """Every tensor of the checkpoint that the image needs, each part once, in the order of the image."""
        yield self.embedding
        yield self.final_norm
        if self.head is not None:
            yield self.head
        for layer in self.layers:
            for _, source in layer.resident():
                yield source
        for layer in self.layers:
            for expert in layer.experts:
                yield from expert.tensors()

    def parameters(self) -> int:
        """Number of weights, a tied head counted once."""
        return sum(source.rows * source.cols for source in self.sources())

    def active_parameters(self) -> int:
        """Number of weights that take part in one token: the resident ones and top_k experts of each layer."""
        idle = 0
        for layer in self.layers:
            each = sum(t.rows * t.cols for t in layer.experts[0].tensors()) if layer.experts else 0
            idle += each * (len(layer.experts) - layer.top_k)
        return self.parameters() - idle
