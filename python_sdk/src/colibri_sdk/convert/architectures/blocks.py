# SPDX-License-Identifier: Apache-2.0
"""The parts that architectures are put together from. An architecture file names what is particular; this is the rest.

Tensor names are those of the published checkpoints of the transformers library: model.layers.N.self_attn.q_proj and so
on. Rows of matrices are outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, overload

import numpy as np

from colibri_sdk.convert import rotary
from colibri_sdk.convert.architectures import keys
from colibri_sdk.convert.description import (
    Attention,
    Ffn,
    Floats,
    LayerDescription,
    Linear,
    ModelDescription,
    Rope,
    Router,
    Rows,
    TensorSource,
)
from colibri_sdk.errors import CheckpointError
from colibri_sdk.image.layout import (
    MAX_EOS,
    MAX_EXPERTS,
    MAX_LAYERS,
    MAX_VOCAB,
    MAX_WIDTH,
    TILE_ROWS,
    GroupScore,
    QkNorm,
    RouterScore,
    align_up,
)

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


def from_tiles_on(source: TensorSource, heads: int) -> TensorSource:
    """The same matrix of `heads` heads one below the other with zero rows behind each, so that the next head begins
    with a tile of the image."""
    rows = source.rows // heads
    padded = align_up(rows, TILE_ROWS)
    if padded == rows:
        return source

    def fill(whole: Floats) -> Floats:
        if source.transform is not None:
            whole = source.transform(whole)
        elif source.order is not None:
            whole = whole[source.order]
        made = np.zeros((heads, padded, source.cols), np.float32)
        made[:, :rows] = whole.reshape(heads, rows, source.cols)
        return made.reshape(heads * padded, source.cols)

    return replace(source, rows=heads * padded, order=None, transform=fill)


class Experts(Sequence[Ffn]):
    """The experts of a layer, each described when it is asked for: a number in config.json that lies costs nothing."""

    def __init__(self, count: int, describe: Callable[[int], Ffn]) -> None:
        self._count = count
        self._describe = describe

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Ffn: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Ffn]: ...

    def __getitem__(self, index: int | slice) -> Ffn | Sequence[Ffn]:
        if isinstance(index, slice):
            return [self._describe(one) for one in range(*index.indices(self._count))]
        if not 0 <= index < self._count:
            raise IndexError(index)
        return self._describe(index)


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
    def read(cls, config: Mapping[str, Any], tensors: frozenset[str]) -> Facts:
        """From config.json with the architecture's own defaults for what it leaves out."""
        hidden = keys.positive_integer(config, "hidden_size", largest=MAX_WIDTH)
        heads = keys.positive_integer(config, "num_attention_heads", largest=MAX_WIDTH)
        kv_heads = keys.positive_integer(config, "num_key_value_heads", heads)
        keys.only(config, "hidden_act", "silu", "swish", None)
        if heads % kv_heads:
            raise CheckpointError(
                f"config.json has {heads} attention heads for {kv_heads} key/value heads",
                "The first must be a multiple of the second.",
                where="num_key_value_heads",
            )
        if config.get("head_dim") is None and hidden % heads:
            raise keys.contradiction(
                f"config.json has hidden_size = {hidden} and {heads} heads, but no head_dim", "head_dim"
            )
        return cls(
            config=config,
            tensors=tensors,
            hidden=hidden,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=keys.positive_integer(config, "head_dim", max(hidden // heads, 1), largest=MAX_WIDTH // heads),
            vocab=keys.positive_integer(config, "vocab_size", largest=MAX_VOCAB),
            context=keys.positive_integer(config, "max_position_embeddings"),
            layers=keys.positive_integer(config, "num_hidden_layers", largest=MAX_LAYERS),
            norm_eps=keys.positive_number(config, "rms_norm_eps", 1e-6),
            tied=keys.switch(config, "tie_word_embeddings", False),
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
    ) -> Sequence[Ffn]:
        """The experts below `prefix`, in either spelling: prefix.E.gate_proj.weight for each matrix of each expert, or
        all of a layer in prefix.gate_up_proj [experts][2 width][hidden], gates first, and prefix.down_proj
        [experts][hidden][width]."""
        both, down = (f"{prefix}.{name}" for name in fused)
        if both not in self.tensors:
            return Experts(count, lambda index: self.block(f"{prefix}.{index}", width, names=names, residual=residual))
        shape = (count, 2 * width, self.hidden)
        return Experts(
            count,
            lambda index: Ffn(
                gate=Linear(TensorSource(both, width, self.hidden, shape, expert=index)),
                up=Linear(TensorSource(both, width, self.hidden, shape, expert=index, first_row=width)),
                down=Linear(
                    TensorSource(down, self.hidden, width, (count, self.hidden, width), expert=index, scale=residual)
                ),
            ),
        )

    def router(
        self,
        name: str,
        count: int,
        score: RouterScore,
        *,
        bias: bool = False,
        top_k_names: Sequence[str] = ("num_experts_per_tok",),
        **options: Any,
    ) -> Router:
        """The router whose matrix is name.weight; `options` are fields of Router."""
        key = keys.name_of(self.config, *top_k_names)
        router = Router(
            top_k=keys.positive_integer(self.config, key),
            score=score,
            gate=self.linear(name, count, self.hidden, bias=bias),
            **options,
        )
        _check_choice(router, count, key)
        return router

    def expert_count(self, *names: str, smallest: int = 1) -> int:
        """The number of experts, which config.json has under one of these keys."""
        name = keys.name_of(self.config, *names)
        if self.config.get(name) is None:
            return keys.positive_integer(self.config, name)  # says that it is missing
        return keys.integer(self.config, name, smallest=smallest, largest=MAX_EXPERTS)

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


def _check_choice(router: Router, experts: int, key: str) -> None:
    """Numbers of a router that contradict each other; the engine would refuse them."""
    if router.top_k > experts:
        raise keys.contradiction(f"config.json chooses {router.top_k} of {experts} experts ({key})", key)
    if experts % router.groups:
        raise keys.contradiction(f"config.json has {experts} experts in {router.groups} groups (n_group)", "n_group")
    size = experts // router.groups
    if router.top_groups > router.groups:
        raise keys.contradiction(
            f"config.json opens {router.top_groups} of {router.groups} groups of experts (topk_group)", "topk_group"
        )
    if router.top_k > router.top_groups * size:
        raise keys.contradiction(
            f"config.json chooses {router.top_k} experts ({key}) of {router.top_groups} groups of {size} (topk_group)",
            key,
        )
    if router.group_score is GroupScore.TOP_TWO and size < 2:
        raise keys.contradiction(
            f"config.json has {experts} experts in {router.groups} groups (n_group), of which the two best would count",
            "n_group",
        )


def windows(facts: Facts, *, default: Callable[[int], bool]) -> tuple[int, ...]:
    """Each layer's sliding window, 0 for none: after layer_types where config.json has it, else as `default` says."""
    config = facts.config
    kinds = config.get("layer_types")
    known = ("full_attention", "sliding_attention")
    listed = isinstance(kinds, list) and len(kinds) == facts.layers and all(kind in known for kind in kinds)
    if kinds is not None and not listed:
        raise CheckpointError(
            f"config.json has layer_types = {str(kinds)[:200]}",
            f"One of {', '.join(known)} for each of {facts.layers} layers is expected.",
            where="layer_types",
        )
    width = keys.integer(config, "sliding_window", smallest=1)
    return tuple(
        width if (default(index) if kinds is None else kinds[index] == "sliding_attention") else 0
        for index in range(facts.layers)
    )
