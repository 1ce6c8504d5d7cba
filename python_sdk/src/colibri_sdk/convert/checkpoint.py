# SPDX-License-Identifier: Apache-2.0
"""Reads a Hugging Face checkpoint directory: config.json and safetensors, in one file or in shards with an index.

Numbers are read in pieces, so that memory never holds more than a few rows of one tensor. Every error names the file or
the tensor at fault.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  (teaches NumPy bfloat16, for which the safetensors library asks by name)
import numpy as np
from safetensors import SafetensorError, safe_open

from colibri_sdk.convert.description import Floats, Rows, TensorSource
from colibri_sdk.convert.mxfp4 import BLOCK, Mxfp4
from colibri_sdk.convert.quantize import IntegerBlocks
from colibri_sdk.convert.safetensors_header import READABLE_DTYPES, read_header
from colibri_sdk.convert.sentencepiece_model import compile_model
from colibri_sdk.convert.tokenizer import CompiledTokenizer, compile_tokenizer
from colibri_sdk.convert.weights import ChatFacts, StoredTensor, Weights
from colibri_sdk.errors import CheckpointError

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"

# JSON files of a checkpoint that are read whole; anything larger is no configuration.
_MAX_JSON_BYTES = 256 << 20

_SMALL_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer.model",
    "spiece.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    INDEX_NAME,
)
_SENTENCEPIECE_FILES = ("tokenizer.model", "spiece.model")
_TOKEN_ROLES = ("bos_token", "eos_token", "pad_token", "unk_token")

# gpt-oss publishes its experts in MXFP4, as two tensors of bytes: NAME_blocks and NAME_scales.
_PACKED, _SCALES = "_blocks", "_scales"


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


class Checkpoint(Weights):
    """An open checkpoint directory. The shards stay mapped until the context is left."""

    dtypes = (*READABLE_DTYPES, "MXFP4")
    settings = "config.json"

    def __init__(self, directory: Path) -> None:
        super().__init__()
        if not directory.is_dir():
            raise CheckpointError(
                f"{directory} is no directory",
                "Name the directory of a Hugging Face checkpoint, with config.json and *.safetensors in it.",
                where=str(directory),
            )
        self.path = directory
        self.name = directory.resolve().name or "model"
        self.config = read_json(directory / "config.json")
        self.shards = self._find_shards()
        self._stored = self._read_headers()
        self.tensors = _join_mxfp4(self._stored)
        self._open: dict[Path, Any] = {}
        self._stack.callback(self._open.clear)

    # ------------------------------------------------------------------------------------------------ what is there

    def _find_shards(self) -> tuple[Path, ...]:
        index = self.path / INDEX_NAME
        single = self.path / SINGLE_NAME
        if index.is_file():
            names = self._weight_map().values()
            shards = tuple(self.path / name for name in sorted(set(names)))
            for shard in shards:
                if not shard.is_file():
                    raise CheckpointError(
                        f"{shard.name}, which {INDEX_NAME} names, is missing", "Fetch the shard.", where=str(shard)
                    )
            return shards
        if single.is_file():
            return (single,)
        others = sorted(path.name for path in self.path.glob("*") if path.suffix in {".bin", ".pt", ".gguf"})
        hint = "It needs safetensors weights."
        if others:
            gguf = [name for name in others if name.endswith(".gguf")]
            hint = f"{others[0]} cannot be read." if not gguf else f"Name the GGUF file itself: {gguf[0]}."
        raise CheckpointError(f"{self.path} has neither {SINGLE_NAME} nor {INDEX_NAME}", hint, where=str(self.path))

    def _weight_map(self) -> dict[str, str]:
        path = self.path / INDEX_NAME
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
        if (self.path / INDEX_NAME).is_file():
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

    # --------------------------------------------------------------------------------------------- what lies beside

    @property
    def files(self) -> list[Path]:
        small = [self.path / name for name in _SMALL_FILES]
        return sorted([path for path in small if path.is_file()] + list(self.shards))

    @property
    def generation(self) -> Mapping[str, Any]:
        return read_json(self.path / "generation_config.json", required=False)

    @property
    def chat(self) -> ChatFacts:
        """From tokenizer_config.json, special_tokens_map.json and chat_template.jinja, all of them optional."""
        settings = read_json(self.path / "special_tokens_map.json", required=False)
        settings |= read_json(self.path / "tokenizer_config.json", required=False)
        tokens = {}
        for role in _TOKEN_ROLES:
            value = settings.get(role)
            content = value.get("content") if isinstance(value, dict) else value
            if isinstance(content, str):
                tokens[role] = content
        return ChatFacts(_template(self.path, settings), tokens)

    @property
    def licence(self) -> str | None:
        """The licence that README.md states in its front matter, where it has one."""
        readme = self.path / "README.md"
        if not readme.is_file():
            return None
        front = re.match(r"---\r?\n(.*?)\r?\n---", readme.read_text("utf-8", "replace"), re.DOTALL)
        line = front and re.search(r"^licen[cs]e:[ \t]*(\S.*)$", front.group(1), re.MULTILINE)
        return line.group(1).strip().strip("'\"") if line else None

    def tokenizer(self, vocab: int) -> CompiledTokenizer | None:
        path = self.path / "tokenizer.json"
        if path.is_file():
            return compile_tokenizer(path, vocab)
        for name in _SENTENCEPIECE_FILES:
            if (self.path / name).is_file():
                return self._sentencepiece(self.path / name, vocab)
        other = [name for name in ("vocab.json", "vocab.txt") if (self.path / name).is_file()]
        if other:
            raise CheckpointError(
                f"the checkpoint has a tokenizer in {other[0]}, which cannot be read",
                "Save it as tokenizer.json with the transformers library.",
                where=other[0],
            )
        return None

    def _sentencepiece(self, path: Path, vocab: int) -> CompiledTokenizer:
        """Tokens that were added to the file's, and whether texts begin with its bos token, are in the settings."""
        settings = read_json(self.path / "tokenizer_config.json", required=False)
        added = settings.get("added_tokens_decoder", {})
        if not isinstance(added, dict) or not all(key.isdecimal() and isinstance(added[key], dict) for key in added):
            raise CheckpointError(
                "tokenizer_config.json: added_tokens_decoder is no object with an object for each id",
                "Download the file again.",
                where="tokenizer_config.json",
            )
        entries = [{**entry, "id": int(token)} for token, entry in added.items()]
        return compile_model(path, vocab, entries, bos=settings.get("add_bos_token", True) is not False)

    # ---------------------------------------------------------------------------------------------------- numbers

    def _floats(self, source: TensorSource, rows: slice | Rows | None) -> Floats:
        if self.tensors[source.name].dtype == "MXFP4":
            return self._mxfp4(source, slice(None) if rows is None else rows).floats()
        numbers: Floats = self._numbers(source, source.name, rows).astype(np.float32)
        return numbers

    def _blocks(self, source: TensorSource, rows: slice | Rows) -> IntegerBlocks | None:
        return self._mxfp4(source, rows).integers()

    def _mxfp4(self, source: TensorSource, rows: slice | Rows) -> Mxfp4:
        scales = source.name.removesuffix(_PACKED) + _SCALES
        return Mxfp4.from_pairs(self._numbers(source, scales, rows), self._numbers(source, source.name, rows))

    def _numbers(self, source: TensorSource, name: str, rows: slice | Rows | None) -> Any:
        """The rows of tensor `name`, which is the source's or belongs to it, as they are stored."""
        shard = self._stored[name].shard
        try:
            view = self._shard(shard).get_slice(name)
            if isinstance(rows, slice):
                return np.asarray(view[rows] if source.expert is None else view[source.expert, rows])
            plane = np.asarray(view[:] if source.expert is None else view[source.expert])
            return plane if rows is None else plane[rows]
        except SafetensorError as error:
            raise CheckpointError(
                f"{shard.name} cannot be read at tensor {name}: {error}", "Fetch the file again.", where=name
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


def _join_mxfp4(stored: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """Each pair NAME_blocks [..][blocks][16] and NAME_scales [..][blocks] as one MXFP4 tensor NAME_blocks of shape
    [..][32 blocks]; all other tensors as they are."""
    tensors = dict(stored)
    for name, data in stored.items():
        scales = stored.get(name.removesuffix(_PACKED) + _SCALES) if name.endswith(_PACKED) else None
        if scales is None or data.dtype != "U8" or scales.dtype != "U8" or not scales.shape:
            continue
        if data.shape == (*scales.shape, BLOCK // 2):
            del tensors[scales.name]
            shape = (*scales.shape[:-1], BLOCK * scales.shape[-1])
            tensors[name] = replace(data, dtype="MXFP4", shape=shape)
    return tensors


def _template(directory: Path, settings: Mapping[str, Any]) -> str | None:
    alone = directory / "chat_template.jinja"
    if alone.is_file():
        return alone.read_text("utf-8")
    template = settings.get("chat_template")
    if isinstance(template, list):
        # Several templates with names; the one for plain chat is called "default".
        named = {one.get("name"): one.get("template") for one in template if isinstance(one, dict)}
        template = named.get("default")
    return template if isinstance(template, str) else None
