# SPDX-License-Identifier: Apache-2.0
"""Reads a Hugging Face checkpoint directory: config.json and safetensors, in one file or in shards with an index.

Numbers are read in pieces, so that memory never holds more than a few rows of one tensor. Every error names the file or
the tensor at fault.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from colibri_sdk.convert.description import TensorSource
from colibri_sdk.convert.safetensors_header import READABLE_DTYPES, StoredTensor, read_header
from colibri_sdk.errors import CheckpointError

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"

# JSON files of a checkpoint that are read whole; anything larger is no configuration.
_MAX_JSON_BYTES = 256 << 20

# Some checkpoints store what is computed from the configuration; nobody needs it.
_IGNORED_EVERYWHERE = (r".*rotary_emb\.inv_freq", r".*\.masked_bias", r".*self_attn\.bias")


def read_json(path: Path, *, required: bool = True) -> dict[str, Any]:
    """A JSON object from `path`; {} when it is missing and not required."""
    if not path.is_file():
        if not required:
            return {}
        raise CheckpointError(
            f"{path.parent} has no {path.name}",
            "Name the directory of a Hugging Face checkpoint, with config.json and *.safetensors in it.",
            where=str(path),
        )
    if path.stat().st_size > _MAX_JSON_BYTES:
        raise CheckpointError(f"{path.name} has {path.stat().st_size} bytes, too many to be one", where=str(path))
    try:
        value = json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{path.name} is not valid JSON: {error}", "Fetch the file again.", where=str(path)
        ) from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path.name} is no JSON object", "Fetch the file again.", where=str(path))
    return value


class Checkpoint:
    """An open checkpoint directory. A context manager: the shards stay mapped until it is left."""

    def __init__(self, directory: Path) -> None:
        if not directory.is_dir():
            raise CheckpointError(
                f"{directory} is no directory",
                "Name the directory of a Hugging Face checkpoint, with config.json and *.safetensors in it.",
                where=str(directory),
            )
        self.directory = directory
        self.config = read_json(directory / "config.json")
        self.shards = self._find_shards()
        self.tensors = self._read_headers()
        self._stack = ExitStack()
        self._open: dict[Path, Any] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.clear()
        self._stack.close()

    # ------------------------------------------------------------------------------------------------ what is there

    def _find_shards(self) -> tuple[Path, ...]:
        index = self.directory / INDEX_NAME
        single = self.directory / SINGLE_NAME
        if index.is_file():
            names = self._weight_map().values()
            shards = tuple(self.directory / name for name in sorted(set(names)))
            for shard in shards:
                if not shard.is_file():
                    raise CheckpointError(
                        f"{shard.name}, which {INDEX_NAME} names, is missing", "Fetch the shard.", where=str(shard)
                    )
            return shards
        if single.is_file():
            return (single,)
        others = sorted(path.name for path in self.directory.glob("*") if path.suffix in {".bin", ".pt", ".gguf"})
        hint = f"{', '.join(others[:4])}: only safetensors are read." if others else "It needs safetensors weights."
        raise CheckpointError(
            f"{self.directory} has neither {SINGLE_NAME} nor {INDEX_NAME}", hint, where=str(self.directory)
        )

    def _weight_map(self) -> dict[str, str]:
        path = self.directory / INDEX_NAME
        weights = read_json(path).get("weight_map")
        if not isinstance(weights, dict) or not weights:
            raise CheckpointError(f"{INDEX_NAME} has no weight_map", "Fetch the file again.", where=str(path))
        for tensor, name in weights.items():
            # A name with a directory in it could lead anywhere on this machine.
            if not isinstance(name, str) or Path(name).name != name or not name.endswith(".safetensors"):
                raise CheckpointError(
                    f"{INDEX_NAME} places tensor {tensor!r} in {name!r}, which is no file name of a shard",
                    "Fetch the file again.",
                    where=str(path),
                )
        return weights

    def _read_headers(self) -> dict[str, StoredTensor]:
        tensors: dict[str, StoredTensor] = {}
        for shard in self.shards:
            for name, tensor in read_header(shard).items():
                if name in tensors:
                    raise CheckpointError(
                        f"tensor {name} is in {tensors[name].shard.name} and again in {shard.name}",
                        "Remove the stale shard, or fetch the checkpoint again.",
                        where=name,
                    )
                tensors[name] = tensor
        if (self.directory / INDEX_NAME).is_file():
            for name, shard_name in self._weight_map().items():
                found = tensors.get(name)
                if found is None or found.shard.name != shard_name:
                    place = "it is not there" if found is None else f"it is in {found.shard.name}"
                    raise CheckpointError(
                        f"{INDEX_NAME} places tensor {name} in {shard_name}, but {place}",
                        "Fetch the shards and their index again, all of the same revision.",
                        where=name,
                    )
        return tensors

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
                "The model is not what its config.json says, or has parts that this version cannot run.",
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
                "compare config.json with them, and fetch missing shards.",
                where=source.name,
            )
        if tensor.dtype not in READABLE_DTYPES:
            raise CheckpointError(
                f"tensor {source.name} in {tensor.shard.name} is of type {tensor.dtype}",
                f"Types that can be packed are {', '.join(READABLE_DTYPES)}.",
                where=source.name,
            )
        if tensor.shape != source.stored_shape:
            raise CheckpointError(
                f"tensor {source.name} has shape {list(tensor.shape)}; "
                f"config.json makes it {list(source.stored_shape)}",
                "config.json belongs to another checkpoint, or one of the two is damaged.",
                where=source.name,
            )

    # ---------------------------------------------------------------------------------------------------- numbers

    def rows(self, source: TensorSource, rows_at_once: int) -> Iterator[npt.NDArray[np.float32]]:
        """The tensor's numbers as float32 [rows_at_once][cols], the last piece shorter; a vector as one [1][cols]."""
        if source.constant is not None:
            yield source.constant.reshape(1, source.cols)
            return
        tensor = self.tensors[source.name]
        scale = np.float32(source.scale)
        try:
            view = self._shard(tensor.shard).get_slice(source.name)
            if source.is_vector or source.transform is not None:
                whole = np.asarray(view[:] if source.expert is None else view[source.expert]).astype(np.float32)
                if source.transform is not None:
                    whole = source.transform(whole)
                whole = whole.reshape(source.rows, source.cols)
                for start in range(0, source.rows, rows_at_once):
                    yield whole[start : start + rows_at_once] * scale
                return
            for start in range(0, source.rows, rows_at_once):
                stop = min(start + rows_at_once, source.rows)
                first, last = source.first_row + start, source.first_row + stop
                piece = view[first:last] if source.expert is None else view[source.expert, first:last]
                yield np.asarray(piece).astype(np.float32).reshape(stop - start, source.cols) * scale
        except SafetensorError as error:
            raise CheckpointError(
                f"{tensor.shard.name} cannot be read at tensor {source.name}: {error}",
                "Fetch the file again.",
                where=source.name,
            ) from error

    def _shard(self, path: Path) -> Any:
        if path not in self._open:
            try:
                self._open[path] = self._stack.enter_context(safe_open(path, framework="numpy"))
            except (SafetensorError, OSError) as error:
                raise CheckpointError(
                    f"{path.name} cannot be opened: {error}", "Fetch the file again.", where=str(path)
                ) from error
        return self._open[path]
