# SPDX-License-Identifier: Apache-2.0
"""A GGUF file, or all files of a split one, as a checkpoint."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gguf.constants import GGMLQuantizationType

from colibri_sdk.convert.description import Floats, ModelDescription, Rows, TensorSource
from colibri_sdk.convert.gguf import metadata, names
from colibri_sdk.convert.gguf.cursor import Bytes
from colibri_sdk.convert.gguf.families import ROPE_FACTORS
from colibri_sdk.convert.gguf.header import Entry, Header, read_header
from colibri_sdk.convert.gguf.numbers import READABLE_TYPES, row_bytes, to_blocks, to_floats
from colibri_sdk.convert.gguf.tokenizer import chat_facts, compile_from
from colibri_sdk.convert.quantize import IntegerBlocks
from colibri_sdk.convert.tokenizer import CompiledTokenizer
from colibri_sdk.convert.weights import ChatFacts, StoredTensor, Weights
from colibri_sdk.errors import CheckpointError
from colibri_sdk.image.layout import MAX_WIDTH

_SPLIT = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf")
_SAMPLING = {
    "temperature": "general.sampling.temp",
    "top_k": "general.sampling.top_k",
    "top_p": "general.sampling.top_p",
    "repetition_penalty": "general.sampling.penalty_repeat",
}


class GgufCheckpoint(Weights):
    """An open GGUF file. Its bytes stay mapped until the context is left."""

    dtypes = READABLE_TYPES
    settings = "its metadata"

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.shards = _all_files(path)
        headers = [read_header(shard) for shard in self.shards]
        self._data = {header.path: header.data for header in headers}
        self._stack.callback(self._data.clear)
        entries = _join(headers)
        self._meta = metadata.Metadata(self.shards[0], headers[0].metadata)
        family = metadata.family(self._meta, entries)
        self.config = metadata.to_config(self._meta, family, entries, self._factors(entries))
        self._views = names.views(entries, family, self.config)
        self.tensors = {name: _stored(name, view) for name, view in self._views.items()}
        split = _SPLIT.fullmatch(path.name)
        self.name = self._meta.text("general.name") or (split.group(1) if split else path.stem)

    # ------------------------------------------------------------------------------------------------ what is there

    @property
    def files(self) -> list[Path]:
        return sorted(self.shards)

    @property
    def generation(self) -> Mapping[str, Any]:
        values = {name: self._meta.values.get(key) for name, key in _SAMPLING.items()}
        return {name: value for name, value in values.items() if isinstance(value, (int, float))}

    @property
    def chat(self) -> ChatFacts:
        return chat_facts(self._meta)

    @property
    def licence(self) -> str | None:
        return self._meta.text("general.license")

    def describe(self) -> ModelDescription:
        """As of any checkpoint; where its configuration is at fault, the message names this file."""
        try:
            return super().describe()
        except CheckpointError as error:
            message = error.message.replace("config.json", f"{self.path.name} (read as config.json)")
            raise CheckpointError(
                message, "The file is damaged, or of a kind that cannot be read.", where=error.where
            ) from error

    def tokenizer(self, vocab: int) -> CompiledTokenizer | None:
        return compile_from(self._meta, vocab)

    # ---------------------------------------------------------------------------------------------------- numbers

    def _factors(self, entries: Mapping[str, Entry]) -> list[float] | None:
        """The divisors of rotary frequencies, where a tensor holds them."""
        entry = entries.get(ROPE_FACTORS)
        if entry is None:
            return None
        if entry.type is not GGMLQuantizationType.F32 or len(entry.shape) != 1 or entry.shape[0] > MAX_WIDTH:
            raise CheckpointError(
                f"{entry.path.name}: tensor {ROPE_FACTORS} is of type {entry.type.name} and shape {list(entry.shape)}",
                "A vector of F32 is expected.",
                where=ROPE_FACTORS,
            )
        return [float(one) for one in to_floats(entry.type, self._bytes(entry))[0]]

    def _bytes(self, entry: Entry) -> Bytes:
        """The tensor's bytes [rows][bytes of a row], a view of the file."""
        width = row_bytes(entry.type, entry.shape[-1])
        return self._data[entry.path][entry.offset : entry.offset + entry.bytes].reshape(-1, width)

    def _rows(self, source: TensorSource, rows: slice | Rows | None) -> tuple[GGMLQuantizationType, Bytes]:
        """Stored rows of a matrix."""
        view = self._views[source.name]
        plane = self._bytes(view.entry)[view.first_row : view.first_row + view.rows]
        if view.order is not None:
            plane = plane[view.order if rows is None else view.order[rows]]
        elif rows is not None:
            plane = plane[rows]
        return view.entry.type, plane

    def _floats(self, source: TensorSource, rows: slice | Rows | None) -> Floats:
        if not source.is_vector:
            return to_floats(*self._rows(source, rows))
        view = self._views[source.name]
        numbers = to_floats(view.entry.type, self._bytes(view.entry)[view.first_row : view.first_row + 1])[0]
        numbers = numbers if view.order is None else numbers[view.order]
        picked: Floats = numbers if rows is None else numbers[rows]
        return picked

    def _blocks(self, source: TensorSource, rows: slice | Rows) -> IntegerBlocks | None:
        return to_blocks(*self._rows(source, rows))


def _stored(name: str, view: names.View) -> StoredTensor:
    width = row_bytes(view.entry.type, view.entry.shape[-1])
    begin = view.entry.offset + view.first_row * width
    return StoredTensor(name, view.entry.path, view.entry.type.name, view.shape, begin, begin + view.rows * width)


def _all_files(path: Path) -> tuple[Path, ...]:
    """The file, or, where its name says that it is one of several, all of them."""
    match = _SPLIT.fullmatch(path.name)
    if match is None or int(match.group(3)) < 1:
        return (path,)
    stem, count = match.group(1), int(match.group(3))
    shards = tuple(path.with_name(f"{stem}-{number:05d}-of-{count:05d}.gguf") for number in range(1, count + 1))
    missing = next((shard for shard in shards if not shard.is_file()), None)
    if missing is not None:
        raise CheckpointError(
            f"{missing.name} is missing: {path.name} is one of {count} files", "Fetch all of them.", where=str(missing)
        )
    return shards


def _join(headers: list[Header]) -> dict[str, Entry]:
    """All tensors of all files; split.* of each file must fit."""
    tensors: dict[str, Entry] = {}
    for number, header in enumerate(headers):
        stated = header.metadata.get("split.count", 1), header.metadata.get("split.no", 0)
        if stated[0] in (0, 1):
            stated = (1, stated[1])
        if stated != (len(headers), number):
            raise CheckpointError(
                f"{header.path.name} says that it is file {stated[1]} (from 0) of {stated[0]}; "
                f"its name makes it file {number} of {len(headers)}",
                "Give the files their names back: NAME-00001-of-0000N.gguf.",
                where=str(header.path),
            )
        for name, entry in header.tensors.items():
            if name in tensors:
                raise CheckpointError(
                    f"tensor {name!r} is in {tensors[name].path.name} and again in {header.path.name}",
                    "The files are not of one model: fetch them again.",
                    where=name,
                )
            tensors[name] = entry
    total = headers[0].metadata.get("split.tensors.count", len(tensors))
    if total != len(tensors):
        raise CheckpointError(
            f"{headers[0].path.name} states {total} tensors in all files; {len(tensors)} are there",
            "The files are not of one model: fetch them again.",
            where=str(headers[0].path),
        )
    return tensors
