# SPDX-License-Identifier: Apache-2.0
"""A model in neutral terms: what an architecture file fills in and what the packer writes.

Nothing here knows the name of an architecture. The classes mirror the structs of image.h, with a source in the
checkpoint in the place of each tensor. Shapes are [rows][cols] = [outputs][inputs].
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt

from colibri_sdk.image.layout import Activation, GroupScore, QkNorm, RouterScore

Floats = npt.NDArray[np.float32]
Rows = npt.NDArray[np.int64]


class Role(Enum):
    """What a tensor is for: quantisation plans speak of roles."""

    EMBEDDING = "embedding"
    HEAD = "head"
    ATTENTION = "attention"
    ROUTER = "router"
    SHARED = "shared"
    EXPERTS = "experts"
    VECTOR = "vector"  # norms, biases and the like: always float32


@dataclass(frozen=True)
class TensorSource:
    """Where a tensor's numbers lie in the checkpoint.

    `stored_shape` is the shape of the checkpoint's tensor `name`. `expert` picks one plane of a three-dimensional (or
    one row of a two-dimensional) tensor that holds all experts; `first_row` is where the wanted rows start in a matrix
    that holds several. `order` names the wanted rows of the stored plane (or the numbers of a vector) one by one, where
    they have to be sorted or picked: rows stay whole, so their quantised blocks can be taken over. `transform` makes
    the wanted [rows][cols] out of the whole stored plane where even that does not do. `scale` multiplies every number.
    `constant` are numbers that stand in no checkpoint.
    """

    name: str
    rows: int
    cols: int
    stored_shape: tuple[int, ...]
    expert: int | None = None
    first_row: int = 0
    order: Rows | None = None
    transform: Callable[[Floats], Floats] | None = None
    scale: float = 1.0
    is_vector: bool = False
    constant: Floats | None = None

    @classmethod
    def matrix(cls, name: str, rows: int, cols: int, *, scale: float = 1.0) -> TensorSource:
        """A whole two-dimensional tensor of shape [rows][cols]."""
        return cls(name, rows, cols, (rows, cols), scale=scale)

    @classmethod
    def vector(cls, name: str, cols: int, *, scale: float = 1.0) -> TensorSource:
        """A whole one-dimensional tensor of `cols` numbers."""
        return cls(name, 1, cols, (cols,), is_vector=True, scale=scale)

    @property
    def title(self) -> str:
        """The tensor's name for messages, with the part that is meant."""
        return self.name if self.expert is None else f"{self.name}[{self.expert}]"


# The tensors of a part: the path of fields below its struct, its source, its role.
Parts = Iterator[tuple[tuple[str, ...], TensorSource, Role]]


@dataclass(frozen=True)
class Linear:
    """weight x + bias (struct col_linear)."""

    weight: TensorSource
    bias: TensorSource | None = None

    def tensors(self, field: str, role: Role) -> Parts:
        """The weight, then the bias where there is one."""
        yield (field, "weight"), self.weight, role
        if self.bias is not None:
            yield (field, "bias"), self.bias, Role.VECTOR


def _linear(field: str, linear: Linear | None, role: Role) -> Parts:
    if linear is not None:
        yield from linear.tensors(field, role)


def _tensor(path: tuple[str, ...], source: TensorSource | None, role: Role) -> Parts:
    if source is not None:
        yield path, source, role


@dataclass(frozen=True)
class Attention:
    """struct col_attention. With `absorb` and `expand`, latent attention: then there is no `value`."""

    heads: int
    kv_heads: int
    head_dim: int  # per head, of the cached key
    value_dim: int  # per head, of the cached value
    rotary_dim: int
    scale: float
    norm_eps: float
    norm: TensorSource
    query: Linear
    key: Linear
    value: Linear | None
    output: Linear
    query_dim: int = 0  # 0: head_dim
    output_dim: int = 0  # 0: value_dim
    window: int = 0
    qk_norm: QkNorm = QkNorm.NONE
    qk_norm_eps: float = 0.0  # 0: norm_eps
    clip: float = 0.0
    query_down: Linear | None = None
    query_down_norm: TensorSource | None = None
    query_norm: TensorSource | None = None
    key_norm: TensorSource | None = None
    sinks: TensorSource | None = None
    absorb: TensorSource | None = None
    expand: TensorSource | None = None

    def numbers(self) -> dict[str, int | float]:
        """The struct's fields that are no tensors."""
        return {
            "heads": self.heads,
            "kv_heads": self.kv_heads,
            "query_dim": self.query_dim or self.head_dim,
            "head_dim": self.head_dim,
            "value_dim": self.value_dim,
            "output_dim": self.output_dim or self.value_dim,
            "rotary_dim": self.rotary_dim,
            "window": self.window,
            "qk_norm": self.qk_norm,
            "scale": self.scale,
            "norm_eps": self.norm_eps,
            "qk_norm_eps": self.qk_norm_eps or self.norm_eps,
            "clip": self.clip,
        }

    def tensors(self) -> Parts:
        """In the order of the image."""
        yield ("norm",), self.norm, Role.VECTOR
        yield from _linear("query_down", self.query_down, Role.ATTENTION)
        yield from _tensor(("query_down_norm",), self.query_down_norm, Role.VECTOR)
        yield from _linear("query", self.query, Role.ATTENTION)
        yield from _linear("key", self.key, Role.ATTENTION)
        yield from _linear("value", self.value, Role.ATTENTION)
        yield from _tensor(("query_norm",), self.query_norm, Role.VECTOR)
        yield from _tensor(("key_norm",), self.key_norm, Role.VECTOR)
        yield from _tensor(("sinks",), self.sinks, Role.VECTOR)
        yield from _tensor(("absorb",), self.absorb, Role.ATTENTION)
        yield from _tensor(("expand",), self.expand, Role.ATTENTION)
        yield from _linear("output", self.output, Role.ATTENTION)


@dataclass(frozen=True)
class Router:
    """struct col_router."""

    top_k: int
    score: RouterScore
    gate: Linear | None
    normalise: bool = False
    smallest_sum: float = 0.0  # that weights are divided by, with normalise; 0: the engine's own
    scale: float = 1.0
    groups: int = 1
    top_groups: int = 1
    group_score: GroupScore | None = None  # with more than one group
    map_first: int = 0
    map_tokens: int = 0
    integer_scale: float = 0.0
    integer_shift: int = 0
    correction: TensorSource | None = None
    integer_table: TensorSource | None = None

    def numbers(self) -> dict[str, int | float]:
        """The struct's fields that are no tensors, without the number of experts."""
        return {
            "top_k": self.top_k,
            "score": self.score,
            "normalise": int(self.normalise),
            "scale": self.scale,
            "groups": self.groups,
            "top_groups": self.top_groups,
            "group_score": self.group_score or 0,
            "map_first": self.map_first,
            "map_tokens": self.map_tokens,
            "integer_scale": self.integer_scale,
            "integer_shift": self.integer_shift,
            "smallest_sum": self.smallest_sum,
        }

    def tensors(self) -> Parts:
        """In the order of the image."""
        yield from _linear("gate", self.gate, Role.ROUTER)
        yield from _tensor(("correction",), self.correction, Role.VECTOR)
        yield from _tensor(("integer_table",), self.integer_table, Role.VECTOR)


@dataclass(frozen=True)
class Ffn:
    """One feed-forward block (struct col_ffn): down(activation(gate(x), up(x)))."""

    gate: Linear  # [width][hidden]
    up: Linear  # [width][hidden]
    down: Linear  # [hidden][width]

    @property
    def width(self) -> int:
        return self.gate.weight.rows

    def tensors(self, role: Role) -> Parts:
        """In the order in which they lie in the image."""
        yield from _linear("gate", self.gate, role)
        yield from _linear("up", self.up, role)
        yield from _linear("down", self.down, role)


@dataclass(frozen=True)
class LayerDescription:
    """struct col_layer: attention, then a block that every token takes, a router with experts, or both."""

    attention: Attention
    norm: TensorSource
    router: Router | None = None
    experts: Sequence[Ffn] = ()
    shared: Ffn | None = None
    shared_gate: TensorSource | None = None
    activation: Activation = Activation.SWIGLU
    limit: float = 0.0
    alpha: float = 0.0

    @property
    def top_k(self) -> int:
        return 0 if self.router is None else self.router.top_k

    @property
    def expert_width(self) -> int:
        return self.experts[0].width if self.experts else 0

    def resident(self) -> Parts:
        """Tensors that every token uses, in the order of the image, with their path in struct col_layer."""
        for path, source, role in self.attention.tensors():
            yield ("attention", *path), source, role
        yield ("norm",), self.norm, Role.VECTOR
        if self.router is not None:
            for path, source, role in self.router.tensors():
                yield ("router", *path), source, role
        yield from _tensor(("shared_gate",), self.shared_gate, Role.ROUTER)
        if self.shared is not None:
            for path, source, role in self.shared.tensors(Role.SHARED):
                yield ("shared", *path), source, role


@dataclass(frozen=True)
class Rope:
    """The rotary tables. `frequencies` gives, for a context of so many positions, [dim / 2] radians per position;
    cosines and sines are multiplied by `factor`."""

    dim: int
    frequencies: Callable[[int], Floats]
    factor: float = 1.0


@dataclass(frozen=True)
class ModelDescription:
    """A whole model. `head` is None when the output head is the embedding (tied)."""

    architecture: str
    vocab: int
    hidden: int
    context_max: int  # positions that the image has by default ...
    context_limit: int  # ... and that it can have at most
    rope: Rope
    norm_eps: float
    eos: tuple[int, ...]
    embedding: TensorSource
    final_norm: TensorSource
    head: Linear | None
    layers: tuple[LayerDescription, ...]
    # Names of tensors that checkpoints of this architecture carry and that no one needs, as regular expressions.
    ignored_tensors: tuple[str, ...] = ()

    def sources(self) -> Iterator[TensorSource]:
        """Every tensor of the checkpoint that the image needs, each part once, in the order of the image."""
        yield self.embedding
        yield self.final_norm
        if self.head is not None:
            yield from (source for _, source, _ in _linear("head", self.head, Role.HEAD))
        for layer in self.layers:
            yield from (source for _, source, _ in layer.resident() if source.constant is None)
        for layer in self.layers:
            for expert in layer.experts:
                yield from (source for _, source, _ in expert.tensors(Role.EXPERTS))

    def parameters(self) -> int:
        """Number of weights, a tied head counted once."""
        return sum(source.rows * source.cols for source in self.sources())

    def active_parameters(self) -> int:
        """Number of weights that take part in one token: the resident ones and top_k experts of each layer."""
        idle = 0
        for layer in self.layers:
            if layer.experts:
                each = sum(source.rows * source.cols for _, source, _ in layer.experts[0].tensors(Role.EXPERTS))
                idle += each * (len(layer.experts) - layer.top_k)
        return self.parameters() - idle
