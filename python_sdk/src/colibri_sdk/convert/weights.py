# SPDX-License-Identifier: Apache-2.0
"""What the packer asks of a checkpoint, whatever files it is in: names and shapes first, then numbers in pieces.

Names of tensors and keys of `config` are those of the transformers library; a reader of another format translates.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from colibri_sdk.convert import architectures
from colibri_sdk.convert.description import Floats, ModelDescription, Rows, TensorSource
from colibri_sdk.convert.quantize import IntegerBlocks
from colibri_sdk.convert.tokenizer import CompiledTokenizer
from colibri_sdk.errors import CheckpointError
from colibri_sdk.image.layout import Format

# Some checkpoints store what is computed from the configuration; nobody needs it.
_IGNORED_EVERYWHERE = (r".*rotary_emb\.inv_freq", r".*\.masked_bias", r".*self_attn\.bias")

# Types whose weights are integers times a scale for each block of 32, and the formats of the image that take them over.
BLOCK_TYPES: Mapping[str, tuple[Format, ...]] = {
    "Q8_0": (Format.Q8,),
    "Q4_0": (Format.Q8, Format.Q4),
    "MXFP4": (Format.Q8,),
}


@dataclass(frozen=True)
class StoredTensor:
    """What a file says about one tensor."""

    name: str
    shard: Path
    dtype: str
    shape: tuple[int, ...]
    begin: int  # bytes from the start of the file's data
    end: int

    @property
    def bytes(self) -> int:
        return self.end - self.begin


@dataclass(frozen=True)
class ChatFacts:
    """What the checkpoint says about its chat prompts. Strings are None where it says nothing."""

    template: str | None = None
    tokens: Mapping[str, str] = field(default_factory=dict)  # role, e.g. "bos_token", to the token's text

    def token(self, role: str) -> str:
        return self.tokens.get(role, "")


class Weights(ABC):
    """An open checkpoint. A context manager: its files stay open until it is left."""

    path: Path  # what the user named
    name: str
    config: Mapping[str, Any]
    shards: tuple[Path, ...]  # files with weights
    tensors: Mapping[str, StoredTensor]
    dtypes: tuple[str, ...]  # types whose numbers can be read
    settings: str  # where `config` comes from, for messages

    def __init__(self) -> None:
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    # ------------------------------------------------------------------------------------------------ what is there

    @property
    @abstractmethod
    def files(self) -> list[Path]:
        """The files that an image is made of, in the order of their names."""

    @property
    @abstractmethod
    def generation(self) -> Mapping[str, Any]:
        """Settings for generation, under the keys of generation_config.json."""

    @property
    @abstractmethod
    def chat(self) -> ChatFacts:
        """The chat template and the tokens it may name."""

    @property
    @abstractmethod
    def licence(self) -> str | None:
        """The model's licence as its files state it."""

    @abstractmethod
    def tokenizer(self, vocab: int) -> CompiledTokenizer | None:
        """The tokenizer for a model with so many embeddings; None where there is none."""

    def describe(self) -> ModelDescription:
        """The model that the configuration describes. Raises CheckpointError for what cannot be run, by its name."""
        config = dict(self.config)
        if self.generation.get("eos_token_id") is not None:
            config["eos_token_id"] = self.generation["eos_token_id"]
        return architectures.describe(config, frozenset(self.tensors))

    def check(self, sources: Iterable[TensorSource], ignored: Iterable[str] = ()) -> None:
        """Every source must be there with its shape and a readable type, and nothing else may be left."""
        needed = set()
        for source in sources:
            needed.add(source.name)
            self._check_source(source)
        buffers = re.compile("|".join([*_IGNORED_EVERYWHERE, *ignored]))
        unknown = sorted(name for name in self.tensors.keys() - needed if not buffers.fullmatch(name))
        if unknown:
            listed = ", ".join(unknown[:8]) + (f" and {len(unknown) - 8} more" if len(unknown) > 8 else "")
            raise CheckpointError(
                f"the checkpoint has {len(unknown)} tensor(s) that its architecture does not use: {listed}",
                f"The model is not what its {self.settings} says, or has parts that this version cannot run.",
                where=unknown[0],
            )

    def _check_source(self, source: TensorSource) -> None:
        tensor = self.tensors.get(source.name)
        if tensor is None:
            layer = re.search(r"layers\.(\d+)\.", source.name)
            where = f" of layer {layer.group(1)}" if layer else ""
            raise CheckpointError(
                f"tensor {source.name}{where} is missing",
                f"The checkpoint has {len(self.tensors)} tensors in {len(self.shards)} file(s); "
                f"compare {self.settings} with them, and fetch missing shards.",
                where=source.name,
            )
        if tensor.dtype not in self.dtypes:
            raise CheckpointError(
                f"tensor {source.name} in {tensor.shard.name} is of type {tensor.dtype}",
                f"Types that can be packed are {', '.join(self.dtypes)}.",
                where=source.name,
            )
        if tensor.shape != source.stored_shape:
            raise CheckpointError(
                f"tensor {source.name} has shape {list(tensor.shape)}; "
                f"{self.settings} makes it {list(source.stored_shape)}",
                f"{self.settings} belongs to another checkpoint, or one of the two is damaged.",
                where=source.name,
            )

    # ---------------------------------------------------------------------------------------------------- numbers

    def rows(self, source: TensorSource, rows_at_once: int) -> Iterator[Floats]:
        """The tensor's numbers as float32 [rows_at_once][cols], the last piece shorter; a vector as one [1][cols]."""
        if source.constant is not None:
            yield source.constant.reshape(1, source.cols)
            return
        scale = np.float32(source.scale)
        if source.is_vector:
            vector = self._floats(source, None if source.order is None else source.order)
            vector = vector if source.transform is None else source.transform(vector)
            yield _times(vector.reshape(1, source.cols), scale)
            return
        if source.transform is not None:
            whole = source.transform(self._floats(source, None)).reshape(source.rows, source.cols)
            for start in range(0, source.rows, rows_at_once):
                yield _times(whole[start : start + rows_at_once], scale)
            return
        for piece in _pieces(source, rows_at_once):
            yield _times(self._floats(source, piece), scale)

    def pieces(self, source: TensorSource, rows_at_once: int, fmt: Format) -> Iterator[IntegerBlocks | Floats]:
        """The same rows for format `fmt`: the stored blocks themselves where it takes them over, numbers elsewhere."""
        if not self.keeps(source, fmt):
            yield from self.rows(source, rows_at_once)
            return
        for piece in _pieces(source, rows_at_once):
            yield self._blocks(source, piece) or self._floats(source, piece)

    def keeps(self, source: TensorSource, fmt: Format) -> bool:
        """Whether `fmt` holds the tensor's blocks as they are stored."""
        changed = source.constant is not None or source.transform is not None or source.scale != 1.0
        return not changed and not source.is_vector and fmt in BLOCK_TYPES.get(self.tensors[source.name].dtype, ())

    @abstractmethod
    def _floats(self, source: TensorSource, rows: slice | Rows | None) -> Floats:
        """These rows (None: all) of the source's stored plane as float32 [rows][cols]; of a vector these numbers."""

    @abstractmethod
    def _blocks(self, source: TensorSource, rows: slice | Rows) -> IntegerBlocks | None:
        """The same of a tensor of one of BLOCK_TYPES, or None where its scales do not fit binary16."""


def _times(numbers: Floats, scale: np.float32) -> Floats:
    """numbers x scale. NaN and infinity are refused later, by name, without a warning before."""
    with np.errstate(invalid="ignore", over="ignore"):
        return numbers * scale


def _pieces(source: TensorSource, rows_at_once: int) -> Iterator[slice | Rows]:
    """Which rows of the stored plane make the source's first rows_at_once rows, its next ones, and so on."""
    for start in range(0, source.rows, rows_at_once):
        stop = min(start + rows_at_once, source.rows)
        if source.order is not None:
            yield source.order[start:stop]
        else:
            yield slice(source.first_row + start, source.first_row + stop)
