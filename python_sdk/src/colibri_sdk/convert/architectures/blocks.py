# SPDX-License-Identifier: Apache-2.0
"""The parts that architectures are put together from. An architecture file names what is particular; this is the rest.

Tensor names are those of the published checkpoints of the transformers library: model.layers.N.self_attn.q_proj and so
on. Rows of matrices are outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from colibri_sdk.convert import rotary
from colibri_sdk.convert.architectures import keys
from colibri_sdk.convert.description import (
    Attention,
    Ffn,
    LayerDescription,
    Linear,
    ModelDescription,
    Rope,
    Router,
    Rows,
    TensorSource,
)
from colibri_sdk.errors import CheckpointError
from colibri_sdk.image.layout import MAX_EOS, MAX_EXPERTS, MAX_LAYERS, QkNorm, RouterScore

# Names of gate, up and down in a feed-forward block.
PROJECTIONS = ("gate_proj", "up_proj", "down_proj")


def pair_halves(dim: int, rotary_dim: int) -> Rows:
    """The order of a head's rows in which neighbours 2i and 2i + 1, which a checkpoint rotates together, stand in the
    two halves that the engine rotates together; rows that do not rotate stay."""
    return np.concatenate([np.arange(0, rotary_dim, 2), np.arange(1, rotary_dim, 2), np.arange(rotary_dim, dim)])


def all_heads(order: Rows, heads: int, rows: int | None = None) -> Rows:
    """The same order in each of `heads` heads that stand below each other, each of `rows` rows, by default as many as
    `order` takes."""
    height = order.size if rows is None else rows
    return np.concatenate([order + head * height for head in range(heads)])


@dataclass(frozen=True)
class Facts:
    """What nearly every config.json says, read once and checked."""

    config: Mapping[str, Any]
    tensors: frozenset[str]
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    context: int
    layers: int
    norm_eps: float
    tied: bool

    @classmethod
    def read(cls, config: Mapping[str, Any], tensors: frozenset[str], *, tied: bool = False) -> Facts:
        """`tied` is what a missing tie_word_embeddings means for this architecture."""
        hidden = keys.positive_integer(config, "hidden_size")
        heads = keys.positive_integer(config, "num_attention_heads")
        kv_heads = keys.positive_integer(config, "num_key_value_heads", heads)
        keys.only(config, "hidden_act", "silu")
        if heads % kv_heads:
            raise CheckpointError(
                f"config.json has {heads} attention heads for {kv_heads} key/value heads",
                "The first must be a multiple of the second.",
                where="num_key_value_heads",
            )
        if config.get("head_dim") is None and hidden % heads:
            raise CheckpointError(
                f"config.json has hidden_size = {hidden} and {heads} heads, but no head_dim", where="head_dim"
            )
        return cls(
            config=config,
            tensors=tensors,
            hidden=hidden,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=keys.positive_integer(config, "head_dim", max(hidden // heads, 1)),
            vocab=keys.positive_integer(config, "vocab_size"),
            context=keys.positive_integer(config, "max_position_embeddings"),
            layers=keys.positive_integer(config, "num_hidden_layers", largest=MAX_LAYERS),
            norm_eps=keys.positive_number(config, "rms_norm_eps", 1e-6),
            tied=keys.switch(config, "tie_word_embeddings", tied),
        )

    # ------------------------------------------------------------------------------------------------------ parts

    def linear(
        self, name: str, rows: int, cols: int, *, bias: bool = False, order: Rows | None = None, scale: float = 1.0
    ) -> Linear:
        """name.weight and, with `bias`, name.bias; rows in `order`, all times `scale`."""
        return Linear(
            TensorSource(f"{name}.weight", rows, cols, (rows, cols), order=order, scale=scale),
            TensorSource(f"{name}.bias", 1, rows, (rows,), order=order, scale=scale, is_vector=True) if bias else None,
        )

    def attention(
        self,
        prefix: str,
        rope: Rope,
        *,
        bias: bool = False,
        output_bias: bool = False,
        qk_norm: QkNorm = QkNorm.NONE,
        window: int = 0,
        neighbours: bool = False,
        scale: float | None = None,
        residual: float = 1.0,
        clip: float = 0.0,
        sinks: bool = False,
    ) -> Attention:
        """Grouped-query attention of the layer `prefix`.

        `neighbours`: the checkpoint rotates dimensions 2i and 2i + 1 together. `residual` multiplies what is added to
        the residual stream.
        """
        own = f"{prefix}.self_attn"
        query, key = self.heads * self.head_dim, self.kv_heads * self.head_dim
        order = pair_halves(self.head_dim, rope.dim)
        query_order, key_order = (all_heads(order, n) if neighbours else None for n in (self.heads, self.kv_heads))
        full = qk_norm is QkNorm.FULL

        def norm(name: str, heads: int) -> TensorSource | None:
            if qk_norm is QkNorm.NONE:
                return None
            return TensorSource.vector(f"{own}.{name}.weight", heads * self.head_dim if full else self.head_dim)

        return Attention(
            heads=self.heads,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            value_dim=self.head_dim,
            rotary_dim=rope.dim,
            scale=self.head_dim**-0.5 if scale is None else scale,
            norm_eps=self.norm_eps,
            window=0 if window >= self.context else window,
            qk_norm=qk_norm,
            clip=clip,
            norm=TensorSource.vector(f"{prefix}.input_layernorm.weight", self.hidden),
            query=self.linear(f"{own}.q_proj", query, self.hidden, bias=bias, order=query_order),
            key=self.linear(f"{own}.k_proj", key, self.hidden, bias=bias, order=key_order),
            value=self.linear(f"{own}.v_proj", key, self.hidden, bias=bias),
            query_norm=norm("q_norm", self.heads),
            key_norm=norm("k_norm", self.kv_heads),
            sinks=TensorSource.vector(f"{own}.sinks", self.heads) if sinks else None,
            output=self.linear(f"{own}.o_proj", self.hidden, query, bias=output_bias, scale=residual),
        )

    def block(
        self,
        prefix: str,
        width: int,
        *,
        names: Sequence[str] = PROJECTIONS,
        bias: bool = False,
        residual: float = 1.0,
    ) -> Ffn:
        """A feed-forward block with one tensor for each matrix."""
        gate, up, down = names
        return Ffn(
            gate=self.linear(f"{prefix}.{gate}", width, self.hidden, bias=bias),
            up=self.linear(f"{prefix}.{up}", width, self.hidden, bias=bias),
            down=self.linear(f"{prefix}.{down}", self.hidden, width, bias=bias, scale=residual),
        )

    def experts(
        self,
        prefix: str,
        count: int,
        width: int,
        *,
        names: Sequence[str] = PROJECTIONS,
        fused: tuple[str, str] = ("gate_up_proj", "down_proj"),
        residual: float = 1.0,
    ) -> tuple[Ffn, ...]:
        """The experts below `prefix`, in either spelling: prefix.E.gate_proj.weight for each matrix of each expert, or
        all of a layer in prefix.gate_up_proj [experts][2 width][hidden], gates first, and prefix.down_proj
        [experts][hidden][width]."""
        both, down = (f"{prefix}.{name}" for name in fused)
        if both not in self.tensors:
            return tuple(
                self.block(f"{prefix}.{index}", width, names=names, residual=residual) for index in range(count)
            )
        shape = (count, 2 * width, self.hidden)
        return tuple(
            Ffn(
                gate=Linear(TensorSource(both, width, self.hidden, shape, expert=index)),
                up=Linear(TensorSource(both, width, self.hidden, shape, expert=index, first_row=width)),
                down=Linear(
                    TensorSource(down, self.hidden, width, (count, self.hidden, width), expert=index, scale=residual)
                ),
            )
            for index in range(count)
        )

    def router(self, name: str, count: int, score: RouterScore, *, bias: bool = False, **options: Any) -> Router:
        """The router whose matrix is name.weight; `options` are fields of Router."""
        top_k = keys.positive_integer(self.config, options.pop("top_k_key", "num_experts_per_tok"))
        if top_k > count:
            raise CheckpointError(
                f"config.json chooses {top_k} of {count} experts",
                "Fetch config.json again.",
                where="num_experts_per_tok",
            )
        return Router(top_k=top_k, score=score, gate=self.linear(name, count, self.hidden, bias=bias), **options)

    def expert_count(self, *names: str) -> int:
        """The number of experts, under the first of these keys that config.json has."""
        name = next((one for one in names if self.config.get(one) is not None), names[0])
        return keys.positive_integer(self.config, name, largest=MAX_EXPERTS)

    def post_norm(self, prefix: str) -> TensorSource:
        """The norm before the feed-forward part."""
        return TensorSource.vector(f"{prefix}.post_attention_layernorm.weight", self.hidden)

    # ------------------------------------------------------------------------------------------------- the whole

    def rope(self, *, default_theta: float = 10000.0, default_part: float | None = None) -> Rope:
        """The rotary tables for the model's heads. `default_part` is the share of a head that rotates where config.json
        does not say; None for architectures whose heads rotate whole."""
        return rotary.from_config(self.config, self.head_dim, default_theta, default_part)

    def model(
        self,
        layer: Callable[[str, int], LayerDescription],
        rope: Rope,
        *,
        embedding_scale: float = 1.0,
        head_scale: float = 1.0,
        head_bias: bool = False,
        ignored: Sequence[str] = (),
    ) -> ModelDescription:
        """The whole model; `layer` describes the layer with a prefix and an index."""
        classes = self.config["architectures"]
        embedding = TensorSource.matrix("model.embed_tokens.weight", self.vocab, self.hidden, scale=embedding_scale)
        head: Linear | None = self.linear("lm_head", self.vocab, self.hidden, bias=head_bias, scale=head_scale)
        unneeded = list(ignored)
        if self.tied:
            # A tied checkpoint may store the head again; it is then the same matrix.
            unneeded.append(r"lm_head\.weight")
            same = embedding_scale == head_scale and not head_bias
            stored = TensorSource.matrix(embedding.name, self.vocab, self.hidden, scale=head_scale)
            head = None if same else Linear(stored, None if head is None else head.bias)
        return ModelDescription(
            architecture=classes[0],
            vocab=self.vocab,
            hidden=self.hidden,
            context_max=self.context,
            context_limit=rotary.longest_context(self.config, self.context),
            rope=rope,
            norm_eps=self.norm_eps,
            eos=keys.end_tokens(self.config, self.vocab, MAX_EOS),
            embedding=embedding,
            final_norm=TensorSource.vector("model.norm.weight", self.hidden),
            head=head,
            layers=tuple(layer(self._known(index), index) for index in range(self.layers)),
            ignored_tensors=tuple(unneeded),
        )

    def _known(self, index: int) -> str:
        """The layer's prefix, known to exist: said before layers without end are described."""
        prefix = f"model.layers.{index}"
        norm = f"{prefix}.input_layernorm.weight"
        if norm not in self.tensors:
            raise CheckpointError(
                f"{prefix} is missing: config.json has num_hidden_layers = {self.layers}, "
                f"and the checkpoint has no {norm}",
                "Fetch missing shards, or config.json of the same checkpoint.",
                where=norm,
            )
        return prefix


def windows(facts: Facts, *, default: Callable[[int], bool]) -> tuple[int, ...]:
    """Each layer's sliding window, 0 for none: after layer_types where config.json has it, else as `default` says."""
    config = facts.config
    width = config.get("sliding_window")
    kinds = config.get("layer_types")
    known = {"sliding_attention", "full_attention"}
    fits = isinstance(kinds, list) and len(kinds) == facts.layers and all(kind in known for kind in map(str, kinds))
    if kinds is not None and not fits:
        raise CheckpointError(
            f"config.json has layer_types = {kinds!r}",
            f"One of {', '.join(sorted(known))} for each of {facts.layers} layers is expected.",
            where="layer_types",
        )
    if width is None:
        return (0,) * facts.layers
    width = keys.positive_integer(config, "sliding_window")
    return tuple(
        width if (default(index) if kinds is None else kinds[index] == "sliding_attention") else 0
        for index in range(facts.layers)
    )
