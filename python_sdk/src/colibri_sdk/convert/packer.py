# SPDX-License-Identifier: Apache-2.0
"""Packs a checkpoint, a Hugging Face directory or a GGUF file, into an image.

Everything that can be decided from names and shapes is decided first: the layout of the whole image, before the first
weight is read. Then the weights stream through, a few rows at a time, in the order in which they lie in the image.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from colibri_sdk import __version__
from colibri_sdk.convert import rotary
from colibri_sdk.convert.card import build_card, encode_card, hash_files
from colibri_sdk.convert.checkpoint import Checkpoint
from colibri_sdk.convert.description import Floats, LayerDescription, ModelDescription, Role, TensorSource
from colibri_sdk.convert.origins import Origin, OriginMeter, fates
from colibri_sdk.convert.progress import Progress
from colibri_sdk.convert.quantisation import Encoding, Plan, default_kv
from colibri_sdk.convert.quantize import IntegerBlocks, min_max_scale, pack_blocks, pack_tensor
from colibri_sdk.convert.routing import ExpertMap, IntegerScale, reroute
from colibri_sdk.convert.stored_plan import stored_plan
from colibri_sdk.convert.template import compile_template
from colibri_sdk.convert.tensor_errors import ErrorMeter, TensorError
from colibri_sdk.convert.weights import Weights
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

# No number in a card is longer than these.
_LONGEST = -2.2250738585072014e-308
_LONGEST_COUNT = 1 << 63

# Numbers in memory at once while a matrix is packed. The search for 4-bit scales holds several copies of them.
_PIECE_NUMBERS = 1 << 18


@dataclass(frozen=True)
class Options:
    """How a checkpoint is packed. `kv` None: after the plan; `context` None: what the model was made for.

    `router` and `expert_map` are as in routing.reroute, `scales` those of integer routers, one for each layer.
    `measure`: compare what is packed with the checkpoint, tensor by tensor. `spare`: places for experts that are
    replaced in the field.
    """

    plan: Plan
    kv: str | None = None
    context: int | None = None
    router: str = "float"
    expert_map: ExpertMap | None = None
    scales: tuple[IntegerScale | None, ...] = ()
    measure: bool = False
    spare: int = 1

    @property
    def kv_format(self) -> str:
        return self.kv or default_kv(self.plan)


@dataclass(frozen=True)
class PackReport:
    """What was packed. `sections` maps names to bytes; `plan` is the whole plan, `quantisation` its short name.

    `origins` says what became of the numbers in the checkpoint. `errors` has a line for each matrix where they
    were measured; `quality` is the certificate in the card, where a text was given; `notes` are sentences that whoever
    packs should read.
    """

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
    plan: str
    origins: tuple[Origin, ...] = ()
    errors: tuple[TensorError, ...] = ()
    quality: Mapping[str, Any] | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Placed:
    """A tensor with its place in the resident section or in an expert's blob."""

    source: TensorSource
    encoding: Encoding
    offset: int
    label: str  # of its line in a report, the same for all experts of a layer
    expert: int | None

    @property
    def format(self) -> Format:
        return self.encoding.format

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

    def place(self, source: TensorSource, encoding: Encoding, *label: object, expert: int | None = None) -> _Placed:
        tensor = _Placed(source, encoding, align_up(self._end, TENSOR_ALIGN), ".".join(map(str, label)), expert)
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


def write_image(source: Path, out: Path, options: Options, progress: Progress) -> PackReport:
    """Packs `source`, a checkpoint directory or a GGUF file, into the image `out`, which only a whole image replaces.

    The same checkpoint and options give the same bytes. Raises UsageError for a wrong option and CheckpointError naming
    what is wrong in the checkpoint.
    """
    with _described(source, options) as (checkpoint, description):
        return _Job(checkpoint, description, out, options, progress).run()


@contextmanager
def _opened(source: Path) -> Iterator[Weights]:
    try:
        with _open(source) as checkpoint:
            yield checkpoint
    except OSError as error:
        # The image's writer explains its own errors: this is a file of the checkpoint.
        raise CheckpointError(
            f"{error.filename or source} cannot be read: {error.strerror or error}",
            "Check that the file is there and may be read.",
            where=str(error.filename or source),
        ) from error


def _open(source: Path) -> Weights:
    if source.suffix == ".gguf" and source.is_file():
        # Only here: the gguf package is slow to import.
        from colibri_sdk.convert.gguf import GgufCheckpoint

        return GgufCheckpoint(source)
    return Checkpoint(source)


def describe(source: Path, options: Options) -> ModelDescription:
    """The model that write_image would write. Raises what it would raise before it reads a weight."""
    with _described(source, options) as (_, description):
        return description


def keeping_plan(source: Path, router: str = "float") -> Plan:
    """The plan that gives each matrix the format nearest to the one it is stored in.

    `router` as in routing.reroute: a checkpoint for hashed routers need not have any stored.
    """
    with _opened(source) as checkpoint:
        description = reroute(checkpoint.describe(), router)
        checkpoint.check(description.sources(), description.ignored_tensors)
        return stored_plan(checkpoint, description)


@contextmanager
def _described(source: Path, options: Options) -> Iterator[tuple[Weights, ModelDescription]]:
    if options.kv_format not in KV_FORMATS:
        raise UsageError(f"unknown KV cache format {options.kv!r}", f"Choose one of {', '.join(KV_FORMATS)}.")
    with _opened(source) as checkpoint:
        description = checkpoint.describe()
        _check_limits(description)
        options.plan.check(description)
        description = reroute(description, options.router, options.expert_map, options.scales)
        checkpoint.check(description.sources(), description.ignored_tensors)
        yield checkpoint, _limit_context(description, options.context)


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
        checkpoint: Weights,
        description: ModelDescription,
        out: Path,
        options: Options,
        progress: Progress,
    ) -> None:
        self._checkpoint = checkpoint
        self._description = description
        self._out = out
        self._options = options
        self._plan = options.plan
        self._errors = ErrorMeter() if options.measure else None
        self._origins = OriginMeter()
        self._name = checkpoint.name
        self._files = checkpoint.files
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
        model["quantisation"] = short_utf8(self._plan.name, 23)
        model["vocab"], model["hidden"], model["layers"] = what.vocab, what.hidden, len(what.layers)
        model["context_max"], model["rotary_dim"] = what.context_max, what.rope.dim
        model["kv_format"] = KV_FORMATS[self._options.kv_format]
        model["norm_eps"] = what.norm_eps
        model["eos_count"] = len(what.eos)
        model["eos"][: len(what.eos)] = what.eos
        plan = self._plan
        embedding = self._resident.place(what.embedding, plan.encoding(Role.EMBEDDING), "embedding")
        model["embedding"] = embedding.entry()
        model["final_norm"] = self._resident.place(what.final_norm, plan.encoding(Role.VECTOR)).entry()
        if what.head is None:
            model["head"]["weight"] = embedding.entry()
        else:
            for path, source, role in what.head.tensors("head", Role.HEAD):
                _set(model, path, self._resident.place(source, plan.encoding(role), "head").entry())
        layers = np.zeros(len(what.layers), LAYER)
        first_expert = 0
        for index, (record, layer) in enumerate(zip(layers, what.layers, strict=True)):
            self._lay_out_layer(record, layer, index, first_expert)
            first_expert += len(layer.experts)
        return model, layers

    def _lay_out_layer(self, record: Any, layer: LayerDescription, index: int, first_expert: int) -> None:
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
            named = [part for part in path if part != "weight"]
            placed = self._resident.place(source, self._plan.encoding(role, index), "layers", index, *named)
            _set(record, path, placed.entry())
        shelves = []
        for number, expert in enumerate(layer.experts):
            shelf = _Shelf()
            for path, source, role in expert.tensors(Role.EXPERTS):
                # All experts of a layer have one layout, so each sets the same record.
                encoding = self._plan.encoding(role, index)
                placed = shelf.place(source, encoding, "layers", index, "experts", path[0], expert=number)
                _set(record, ("expert", *path), placed.entry())
            shelves.append(shelf)
        if shelves:
            last = shelves[0].placed[-1]
            record["expert_bytes"] = align_up(last.offset + last.bytes, PAGE)
        self._expert_shelves.append(shelves)

    # ---------------------------------------------------------------------------------------------------- bytes

    def run(self) -> PackReport:
        what = self._description
        chat = self._checkpoint.chat
        tokenizer, template, special, taking = _compile_text(self._checkpoint, what.vocab)
        self._card = build_card(
            self._checkpoint,
            what,
            name=self._name,
            packer=f"colibri-sdk {__version__}",
            plan=self._plan,
            kv=self._options.kv_format,
            router=self._options.router,
            context=what.context_max,
            digests=hash_files(self._files, self._meter.advance),
            special_tokens=special,
            taking_tokens=taking,
            chat=chat,
        )
        with ImageWriter(self._out, self._name) as writer:
            writer.add(SectionKind.MODEL, self._model.tobytes())
            writer.add(SectionKind.LAYERS, self._layers.tobytes())
            if tokenizer:
                writer.add(SectionKind.TOKENIZER, tokenizer)
                writer.add(SectionKind.TEMPLATE, template)
            with writer.section(SectionKind.ROPE) as stream:
                for piece in rotary.tables(what.rope, what.context_max):
                    stream.write(piece)
            with writer.section(SectionKind.RESIDENT) as stream:
                self._write_tensors(stream, self._resident, 0)
            entries = np.zeros(sum(len(shelves) for shelves in self._expert_shelves), EXPERT)
            if entries.size:
                writer.add(SectionKind.EXPERT_DIR, entries.tobytes())
                writer.reserve(SectionKind.CARD, len(self._longest_card()))
            else:
                writer.add(SectionKind.CARD, self._whole_card())
            writer.add_own_sections(len(entries))
            if entries.size:
                with writer.section(SectionKind.EXPERTS) as stream:
                    self._write_experts(stream, entries)
                writer.rewrite(SectionKind.EXPERT_DIR, entries.tobytes())
                writer.fill(SectionKind.CARD, self._whole_card())
        return PackReport(
            image=self._out,
            image_bytes=writer.image_bytes,
            image_id=writer.image_id.hex(),
            name=self._name,
            architecture=what.architecture,
            quantisation=self._plan.name,
            kv_format=self._options.kv_format,
            context=what.context_max,
            parameters=what.parameters(),
            active_parameters=what.active_parameters(),
            source_bytes=self._source_bytes,
            has_tokenizer=bool(tokenizer),
            sections=writer.sizes,
            plan=self._plan.text,
            origins=self._origins.results(),
            errors=self._errors.results() if self._errors else (),
        )

    def _whole_card(self) -> bytes:
        """The card, when everything has been packed."""
        return self._encoded(self._origins.results(), self._errors.summary() if self._errors is not None else ())

    def _longest_card(self) -> bytes:
        """A card that is at least as long: it stands before the experts, which must be packed to know what is in it."""
        origins = OriginMeter()
        errors: dict[str, TensorError] = {}
        shelves = itertools.chain([self._resident], *self._expert_shelves)
        for tensor in (tensor for shelf in shelves for tensor in shelf.placed):
            source, encoding = tensor.source, tensor.encoding
            if encoding.format is Format.F32_VECTOR:
                continue
            errors[tensor.label] = TensorError(tensor.label, encoding.name, _LONGEST_COUNT, _LONGEST, _LONGEST)
            if source.constant is None:
                stored = self._checkpoint.tensors[source.name].dtype
                for fate in fates(source, stored, encoding):
                    origins.count(tensor.label, source, stored, encoding, fate)
        return self._encoded(origins.results(), tuple(errors.values()))

    def _encoded(self, origins: Iterable[Origin], errors: Iterable[TensorError]) -> bytes:
        card = self._card | {"origins": [astuple(origin) for origin in origins]}
        if self._errors is not None:
            card["quality"] = {"tensors": [astuple(error) for error in errors]}
        return encode_card(card)

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
        scale: np.float16 | None = None
        pieces: Iterator[IntegerBlocks | Floats] = self._checkpoint.pieces(source, at_once, tensor.format)
        if tensor.encoding.one_scale:
            scale = min_max_scale(self._checkpoint.rows(source, at_once), source.title)
            pieces = self._checkpoint.rows(source, at_once)
        whole_blocks = source.constant is None
        for piece in pieces:
            whole_blocks = whole_blocks and isinstance(piece, IntegerBlocks)
            if isinstance(piece, IntegerBlocks):
                packed = pack_blocks(piece, tensor.format, source.title)
            else:
                packed = pack_tensor(piece, tensor.format, source.title, scale)
            stream.write(packed)
            if self._errors is not None:
                self._errors.add(tensor.label, tensor.expert, tensor.encoding, piece, packed)
            self._meter.advance(piece.size * width, source.title)
        if source.constant is None:
            stored_as = self._checkpoint.tensors[source.name].dtype
            self._origins.add(tensor.label, source, stored_as, tensor.encoding, whole_blocks)

    def _write_experts(self, stream: SectionStream, entries: Any) -> None:
        """Every expert's blob, and its entry of the directory; then the spare places."""
        position = 0
        for layer_index, shelves in enumerate(self._expert_shelves):
            for expert_index, shelf in enumerate(shelves):
                start = stream.written
                stream.begin_part()
                self._write_tensors(stream, shelf, start)
                stream.align(PAGE)
                entry = entries[position]
                entry["offset"], entry["bytes"] = start, stream.written - start
                entry["crc32"], digest = stream.end_part()
                entry["digest"] = np.void(digest)
                entry["layer"], entry["expert"] = layer_index, expert_index
                position += 1
        stream.skip(self._options.spare * int(self._layers["expert_bytes"].max()))


def _compile_text(checkpoint: Weights, vocab: int) -> tuple[bytes, bytes, Mapping[str, int], Mapping[int, int]]:
    """The tokenizer and template sections, the special tokens, and which of these take white space; nothing for a
    checkpoint without a tokenizer."""
    tokenizer = checkpoint.tokenizer(vocab)
    if tokenizer is None:
        return b"", b"", {}, {}
    chat = checkpoint.chat
    template = compile_template(chat.template, tokenizer, chat.token("bos_token"), chat.token("eos_token"))
    return tokenizer.section, template, tokenizer.special, tokenizer.taking
