# SPDX-License-Identifier: Apache-2.0
"""Packs a Hugging Face checkpoint into an image.

Everything that can be decided from names and shapes is decided first: the layout of the whole image, before the first
weight is read. Then the weights stream through, a few rows at a time, in the order in which they lie in the image.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from colibri_sdk import __version__
from colibri_sdk.convert import architectures, rotary
from colibri_sdk.convert.card import ChatFacts, build_card, chat_facts, encode_card, hash_files, source_files
from colibri_sdk.convert.checkpoint import Checkpoint, read_json
from colibri_sdk.convert.description import LayerDescription, ModelDescription, Role, TensorSource
from colibri_sdk.convert.progress import Progress, Silent
from colibri_sdk.convert.quantize import pack_tensor
from colibri_sdk.convert.template import compile_template
from colibri_sdk.convert.tokenizer import compile_tokenizer
from colibri_sdk.errors import CheckpointError, InternalError, UsageError
from colibri_sdk.image.layout import (
    EXPERT,
    LAYER,
    MAX_CONTEXT,
    MAX_EXPERTS,
    MAX_LAYERS,
    MAX_TOP_K,
    MAX_VOCAB,
    MAX_WIDTH,
    MODEL,
    PAGE,
    SECTION_NAMES,
    TENSOR,
    TENSOR_ALIGN,
    TILE_ROWS,
    Format,
    KvFormat,
    SectionKind,
    align_up,
    tensor_bytes,
)
from colibri_sdk.image.writer import ImageWriter, SectionStream, short_utf8

KV_FORMATS: Mapping[str, KvFormat] = {"f16": KvFormat.F16, "f32": KvFormat.F32, "q8": KvFormat.Q8}

# Numbers in memory at once while a matrix is packed. The search for 4-bit scales holds several copies of them.
_PIECE_NUMBERS = 1 << 18


def _plan(matrix: Format, router: Format) -> Mapping[Role, Format]:
    plan = dict.fromkeys(Role, matrix)
    return plan | {Role.ROUTER: router, Role.VECTOR: Format.F32_VECTOR}


# Formats by the role of a tensor. A router's few rows decide which experts run: its rounding errors cost more and its
# bytes less than any others'. So it stays in float32 where the rest is in integers.
QUANTISATIONS: Mapping[str, Mapping[Role, Format]] = {
    "q8": _plan(Format.Q8, Format.F32),
    "q4": _plan(Format.Q4, Format.F32),
    "f16": _plan(Format.F16, Format.F16),
    "f32": _plan(Format.F32, Format.F32),
}


@dataclass(frozen=True)
class PackReport:
    """What was packed. `sections` maps names to bytes."""

    image: Path
    image_bytes: int
    image_id: str
    name: str
    architecture: str
    quantisation: str
    kv_format: str
    context: int
    parameters: int
    active_parameters: int
    source_bytes: int
    has_tokenizer: bool
    sections: Mapping[str, int]


@dataclass(frozen=True)
class _Placed:
    """A tensor with its place in the resident section or in an expert's blob."""

    source: TensorSource
    format: Format
    offset: int

    @property
    def bytes(self) -> int:
        return tensor_bytes(self.format, self.source.rows, self.source.cols)

    def entry(self) -> np.ndarray[Any, np.dtype[np.void]]:
        record = np.zeros((), TENSOR)
        record["offset"], record["bytes"] = self.offset, self.bytes
        record["rows"], record["cols"] = self.source.rows, self.source.cols
        record["format"] = self.format
        return record


class _Shelf:
    """Gives places, one after the other."""

    def __init__(self) -> None:
        self.placed: list[_Placed] = []
        self._end = 0

    def place(self, source: TensorSource, fmt: Format) -> _Placed:
        tensor = _Placed(source, fmt, align_up(self._end, TENSOR_ALIGN))
        self._end = tensor.offset + tensor.bytes
        self.placed.append(tensor)
        return tensor


def _set(record: Any, path: tuple[str, ...], entry: Any) -> None:
    """record[path[0]][path[1]]... = entry"""
    for field in path[:-1]:
        record = record[field]
    record[path[-1]] = entry


class _Meter:
    """Adds up bytes for a Progress."""

    def __init__(self, progress: Progress, total: int) -> None:
        self._progress = progress
        self._total = total
        self._done = 0

    def advance(self, count: int, what: str) -> None:
        self._done += count
        self._progress.update(min(self._done, self._total), self._total, what)


def pack(
    source: Path,
    out: Path,
    *,
    quant: str = "q8",
    kv: str = "f16",
    context: int | None = None,
    progress: Progress | None = None,
) -> PackReport:
    """Packs the checkpoint directory `source` into the image `out`, which is replaced only by a whole image.

    `quant` is q8, q4, f16 or f32; `kv` the format of the KV cache, f16 or f32; `context` the largest number of
    positions, by default what the model was made for. The same checkpoint and options give the same bytes. Raises
    UsageError for a wrong option and CheckpointError naming what is wrong in the checkpoint.
    """
    if quant not in QUANTISATIONS:
        raise UsageError(f"unknown quantisation {quant!r}", f"Choose one of {', '.join(QUANTISATIONS)}.")
    if kv not in KV_FORMATS:
        raise UsageError(f"unknown KV cache format {kv!r}", f"Choose one of {', '.join(KV_FORMATS)}.")
    try:
        return _pack(source, out, quant, kv, context, progress or Silent())
    except OSError as error:
        # The image's writer explains its own errors: this is a file of the checkpoint.
        raise CheckpointError(
            f"{error.filename or source} cannot be read: {error.strerror or error}",
            "Check that the file is there and may be read.",
            where=str(error.filename or source),
        ) from error


def _pack(source: Path, out: Path, quant: str, kv: str, context: int | None, progress: Progress) -> PackReport:
    with Checkpoint(source) as checkpoint:
        generation = read_json(source / "generation_config.json", required=False)
        config = dict(checkpoint.config)
        if generation.get("eos_token_id") is not None:
            config["eos_token_id"] = generation["eos_token_id"]
        description = architectures.describe(config, frozenset(checkpoint.tensors))
        _check_limits(description)
        checkpoint.check(description.sources(), description.ignored_tensors)
        return _Job(checkpoint, _limit_context(description, context), out, quant, kv, progress).run()


def _check_limits(description: ModelDescription) -> None:
    """Refuses what the engine would refuse later."""
    sizes = [
        ("vocabulary", description.vocab, MAX_VOCAB),
        ("hidden size", description.hidden, MAX_WIDTH),
        ("context", description.context_max, MAX_CONTEXT),
        ("number of layers", len(description.layers), MAX_LAYERS),
    ]
    for layer in description.layers:
        sizes += [
            ("attention width", layer.attention.heads * layer.attention.head_dim, MAX_WIDTH),
            ("expert width", layer.expert_width, MAX_WIDTH),
            ("number of experts", len(layer.experts), MAX_EXPERTS),
            ("number of chosen experts", layer.top_k, MAX_TOP_K),
        ]
    for what, size, limit in sizes:
        if size > limit:
            raise CheckpointError(
                f"the model's {what} is {size}; the engine allows {limit}", "config.json may be damaged.", where=what
            )


def _limit_context(description: ModelDescription, context: int | None) -> ModelDescription:
    if context is None:
        return description
    if not 1 <= context <= description.context_limit:
        raise UsageError(
            f"a context of {context} positions is not possible with this model",
            f"Choose 1 to {description.context_limit}, which its config.json allows.",
        )
    return replace(description, context_max=context)


class _Job:
    """One run of the packer: the layout first, then the bytes."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        description: ModelDescription,
        out: Path,
        quant: str,
        kv: str,
        progress: Progress,
    ) -> None:
        self._checkpoint = checkpoint
        self._description = description
        self._out = out
        self._quant = quant
        self._kv = kv
        self._formats = QUANTISATIONS[quant]
        self._name = checkpoint.directory.resolve().name or "model"
        self._files = source_files(checkpoint)
        weights = sum(tensor.bytes for tensor in checkpoint.tensors.values())
        self._source_bytes = weights
        self._meter = _Meter(progress, weights + sum(path.stat().st_size for path in self._files))
        self._resident = _Shelf()
        self._expert_shelves: list[list[_Shelf]] = []
        self._model, self._layers = self._lay_out()

    # --------------------------------------------------------------------------------------------------- layout

    def _lay_out(self) -> tuple[Any, Any]:
        """Places every tensor; returns the MODEL record and the LAYER records."""
        what = self._description
        model = np.zeros((), MODEL)
        model["architecture"] = short_utf8(what.architecture, 39)
        model["quantisation"] = short_utf8(self._quant, 23)
        model["vocab"], model["hidden"], model["layers"] = what.vocab, what.hidden, len(what.layers)
        model["context_max"], model["rotary_dim"] = what.context_max, what.rope.dim
        model["kv_format"] = KV_FORMATS[self._kv]
        model["norm_eps"] = what.norm_eps
        model["eos_count"] = len(what.eos)
        model["eos"][: len(what.eos)] = what.eos
        embedding = self._resident.place(what.embedding, self._formats[Role.EMBEDDING])
        model["embedding"] = embedding.entry()
        model["final_norm"] = self._resident.place(what.final_norm, Format.F32_VECTOR).entry()
        if what.head is None:
            model["head"]["weight"] = embedding.entry()
        else:
            for path, source, role in what.head.tensors("head", Role.HEAD):
                _set(model, path, self._resident.place(source, self._formats[role]).entry())
        layers = np.zeros(len(what.layers), LAYER)
        first_expert = 0
        for record, layer in zip(layers, what.layers, strict=True):
            self._lay_out_layer(record, layer, first_expert)
            first_expert += len(layer.experts)
        return model, layers

    def _lay_out_layer(self, record: Any, layer: LayerDescription, first_expert: int) -> None:
        for field, value in layer.attention.numbers().items():
            record["attention"][field] = value
        if layer.router is not None:
            record["router"]["experts"] = len(layer.experts)
            for field, value in layer.router.numbers().items():
                record["router"][field] = value
            record["first_expert"] = first_expert
        record["activation"], record["limit"], record["alpha"] = layer.activation, layer.limit, layer.alpha
        record["shared_width"] = 0 if layer.shared is None else layer.shared.width
        record["expert_width"] = layer.expert_width
        for path, source, role in layer.resident():
            _set(record, path, self._resident.place(source, self._formats[role]).entry())
        shelves = []
        for expert in layer.experts:
            shelf = _Shelf()
            for path, source, role in expert.tensors(Role.EXPERTS):
                # All experts of a layer have one layout, so each sets the same record.
                _set(record, ("expert", *path), shelf.place(source, self._formats[role]).entry())
            shelves.append(shelf)
        if shelves:
            last = shelves[0].placed[-1]
            record["expert_bytes"] = align_up(last.offset + last.bytes, PAGE)
        self._expert_shelves.append(shelves)

    # ---------------------------------------------------------------------------------------------------- bytes

    def run(self) -> PackReport:
        what = self._description
        directory = self._checkpoint.directory
        chat = chat_facts(directory)
        tokenizer, template, special = _compile_text(directory, what.vocab, chat)
        card = build_card(
            self._checkpoint,
            what,
            name=self._name,
            packer=f"colibri-sdk {__version__}",
            quantisation=self._quant,
            kv=self._kv,
            context=what.context_max,
            digests=hash_files(self._files, self._meter.advance),
            special_tokens=special,
            chat=chat,
        )
        sizes: dict[str, int] = {}
        with ImageWriter(self._out, self._name) as writer:

            def add(kind: SectionKind, data: bytes) -> None:
                writer.add(kind, data)
                sizes[SECTION_NAMES[kind]] = len(data)

            add(SectionKind.MODEL, self._model.tobytes())
            add(SectionKind.LAYERS, self._layers.tobytes())
            if tokenizer:
                add(SectionKind.TOKENIZER, tokenizer)
                add(SectionKind.TEMPLATE, template)
            with writer.section(SectionKind.ROPE) as stream:
                for piece in rotary.tables(what.rope, what.context_max):
                    stream.write(piece)
                sizes[SECTION_NAMES[SectionKind.ROPE]] = stream.written
            with writer.section(SectionKind.RESIDENT) as stream:
                self._write_tensors(stream, self._resident, 0)
                sizes[SECTION_NAMES[SectionKind.RESIDENT]] = stream.written
            directory_entries = np.zeros(sum(len(shelves) for shelves in self._expert_shelves), EXPERT)
            if directory_entries.size:
                add(SectionKind.EXPERT_DIR, directory_entries.tobytes())
                with writer.section(SectionKind.EXPERTS) as stream:
                    self._write_experts(stream, directory_entries)
                    sizes[SECTION_NAMES[SectionKind.EXPERTS]] = stream.written
                writer.rewrite(SectionKind.EXPERT_DIR, directory_entries.tobytes())
            add(SectionKind.CARD, encode_card(card))
        return PackReport(
            image=self._out,
            image_bytes=writer.image_bytes,
            image_id=writer.image_id.hex(),
            name=self._name,
            architecture=what.architecture,
            quantisation=self._quant,
            kv_format=self._kv,
            context=what.context_max,
            parameters=what.parameters(),
            active_parameters=what.active_parameters(),
            source_bytes=self._source_bytes,
            has_tokenizer=bool(tokenizer),
            sections=sizes,
        )

    def _write_tensors(self, stream: SectionStream, shelf: _Shelf, start: int) -> None:
        """The tensors of one shelf, whose byte 0 is byte `start` of the section."""
        for tensor in shelf.placed:
            stream.align(TENSOR_ALIGN, start)
            if stream.written - start != tensor.offset:
                raise InternalError(
                    f"tensor {tensor.source.title} lies at {stream.written - start}, not {tensor.offset}"
                )
            self._write_tensor(stream, tensor)

    def _write_tensor(self, stream: SectionStream, tensor: _Placed) -> None:
        source = tensor.source
        width = 0
        if source.constant is None:
            stored = self._checkpoint.tensors[source.name]
            width = stored.bytes // max(1, int(np.prod(stored.shape, dtype=np.int64)))
        at_once = max(TILE_ROWS, _PIECE_NUMBERS // source.cols // TILE_ROWS * TILE_ROWS)
        for piece in self._checkpoint.rows(source, at_once):
            stream.write(pack_tensor(piece, tensor.format, source.title))
            self._meter.advance(piece.size * width, source.title)

    def _write_experts(self, stream: SectionStream, entries: Any) -> None:
        """Every expert's blob, and its entry of the directory."""
        position = 0
        for layer_index, shelves in enumerate(self._expert_shelves):
            for expert_index, shelf in enumerate(shelves):
                start = stream.written
                stream.take_crc()
                self._write_tensors(stream, shelf, start)
                stream.align(PAGE)
                entry = entries[position]
                entry["offset"], entry["bytes"] = start, stream.written - start
                entry["crc32"] = stream.take_crc()
                entry["layer"], entry["expert"] = layer_index, expert_index
                position += 1


def _compile_text(directory: Path, vocab: int, chat: ChatFacts) -> tuple[bytes, bytes, Mapping[str, int]]:
    """The tokenizer and template sections and the special tokens; nothing for a checkpoint without a tokenizer."""
    tokenizer_json = directory / "tokenizer.json"
    if not tokenizer_json.is_file():
        other = [name for name in ("tokenizer.model", "vocab.json", "vocab.txt") if (directory / name).is_file()]
        if other:
            raise CheckpointError(
                f"the checkpoint has a tokenizer in {other[0]}, which cannot be read",
                "Save it as tokenizer.json with the transformers library.",
                where=other[0],
            )
        return b"", b"", {}
    tokenizer = compile_tokenizer(tokenizer_json, vocab)
    template = compile_template(chat.template, tokenizer, chat.token("bos_token"), chat.token("eos_token"))
    return tokenizer.section, template, tokenizer.special
