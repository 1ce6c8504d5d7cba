# SPDX-License-Identifier: Apache-2.0
"""Reads an image: header, sections, structs, card, tensors, checksums.

The file is mapped, not loaded. What is read is checked as far as reading needs it, so that a damaged file gives an
ImageError and never a crash; whether an image can be run is the engine's to say (colibri_sdk.engine, `validate`).
"""

from __future__ import annotations

import hashlib
import json
import math
import mmap
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from colibri_sdk.errors import ImageError, UsageError
from colibri_sdk.figures import printable
from colibri_sdk.image.kinds import HEAD_BYTES, require_image, wrong_kind
from colibri_sdk.image.layout import (
    DIGEST_BYTES,
    DIRECTORY_OFFSET,
    EXPERT,
    FORMAT_VERSION,
    HEADER,
    LAYER,
    MAGIC,
    MAX_SECTIONS,
    MODEL,
    PAGE,
    SECTION,
    SELF_CHECKED,
    SIGNATURE,
    UPDATE,
    Format,
    SectionKind,
    align_up,
    tensor_bytes,
)
from colibri_sdk.image.signature import Signature
from colibri_sdk.image.tensors import unpack_tensor
from colibri_sdk.image.updates import read_table
from colibri_sdk.status import Status

Record = Any  # a structured NumPy scalar: fields by name

_PACK_AGAIN = "Pack the model again, or copy the file again: `colibri-sdk inspect --verify` names what is damaged."
_HASH_BYTES = 1 << 20


@dataclass(frozen=True)
class Section:
    """One entry of the section directory. `offset` and `bytes` lie within the file."""

    name: str
    kind: SectionKind
    offset: int
    bytes: int
    crc32: int


@dataclass(frozen=True)
class Place:
    """Where an expert lies that counts now: as packed (generation 0), or as it was replaced. `offset` is from the start
    of the file; `digest` is its BLAKE2b-256."""

    offset: int
    size: int
    crc32: int
    generation: int
    digest: bytes


@dataclass(frozen=True)
class Check:
    """One checksum: what the image states and what its bytes give, in hexadecimal."""

    name: str
    stored: str
    computed: str

    @property
    def ok(self) -> bool:
        return self.stored == self.computed


class ImageFile:
    """An image, mapped for reading. A context manager; arrays taken from it are copies and outlive it."""

    def __init__(self, path: Path, *, start: int | None = None) -> None:
        """`start`: where the image begins on a card, which has more behind it. None: the file is the image."""
        self.path = path
        begin = start or 0
        try:
            with path.open("rb") as file:
                size = max(0, file.seek(0, 2) - begin)
                if size < PAGE:
                    if start is None:
                        require_image(path)
                    raise self._error(Status.E_IMAGE_SIZE, "header", size, PAGE, f"has only {size} bytes")
                if start is not None:
                    file.seek(begin)
                    stated = int(np.frombuffer(file.read(HEADER.itemsize), HEADER)[0]["image_bytes"])
                    size = min(size, max(stated, PAGE))
                before = begin % mmap.ALLOCATIONGRANULARITY
                self._map = mmap.mmap(file.fileno(), before + size, access=mmap.ACCESS_READ, offset=begin - before)
        except OSError as error:
            raise UsageError(f"{path} cannot be read: {error.strerror or error}", "Name a .colibri image.") from error
        self._data = memoryview(self._map)[before:]
        try:
            self.header: Record = self._records(HEADER, 0, 1)[0]
            self.sections = self._read_directory()
            self.model: Record = self._one(SectionKind.MODEL, MODEL)
            self.layers: npt.NDArray[np.void] = self._many(SectionKind.LAYERS, LAYER)
            self.experts: npt.NDArray[np.void] = self._many(SectionKind.EXPERT_DIR, EXPERT)
            self.signature = self._read_signature()
            self.updates_sequence, self.updates = self._read_updates()
            self._replaced = {(int(one["layer"]), int(one["expert"])): one for one in self.updates}
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Unmaps the file."""
        self._data.release()
        self._map.close()

    # ----------------------------------------------------------------------------------------------- what it says

    @property
    def image_bytes(self) -> int:
        return len(self._data)

    @property
    def image_id(self) -> str:
        """32 hexadecimal digits."""
        return bytes(self.header["image_id"]).hex()

    @property
    def model_name(self) -> str:
        return _text(self.header["model_name"])

    @property
    def architecture(self) -> str:
        return _text(self.model["architecture"])

    @property
    def quantisation(self) -> str:
        return _text(self.model["quantisation"])

    @property
    def card(self) -> dict[str, Any]:
        """The model card, as whoever made the image wrote it. Numbers that are not finite are None."""
        text = self.section_bytes(SectionKind.CARD)
        try:
            card = json.loads(text.decode("utf-8"), parse_float=_float, parse_constant=lambda _: None)
        except (ValueError, RecursionError) as error:
            raise self._error(Status.E_IMAGE_SECTION, "card", 0, 0, f"has a card that is not JSON: {error}") from error
        if not isinstance(card, dict):
            raise self._error(Status.E_IMAGE_SECTION, "card", 0, 0, "has a card that is no JSON object")
        return card

    @property
    def signed_bytes(self) -> int:
        """Everything before the signature: what a signature and the image's identity speak of."""
        return self._section(SectionKind.SIGNATURE).offset

    @property
    def slack_bytes(self) -> int:
        """Pages between the card and the signature that a card of the same length would not need."""
        card = self._section(SectionKind.CARD)
        return self.signed_bytes - align_up(card.offset + card.bytes, PAGE)

    @property
    def spare_places(self) -> tuple[int, int]:
        """How many there are for experts, and the bytes of each."""
        if not len(self.experts):
            return 0, 0
        largest = max(1, int(self.experts["bytes"].max()))
        packed = sum(map(int, self.experts["bytes"]))
        return max(0, self._section(SectionKind.EXPERTS).bytes - packed) // largest, largest

    @property
    def experts_of_layers(self) -> tuple[int, ...]:
        """How many each layer has; 0: it has no router."""
        return tuple(int(layer["router"]["experts"]) for layer in self.layers)

    @property
    def pins(self) -> dict[int, list[int]]:
        """Of each layer with pinned experts, these in the order in which they stay cached."""
        pinned = self.experts[self.experts["pin"] > 0]
        ordered = sorted((int(e["layer"]), int(e["pin"]), int(e["expert"])) for e in pinned)
        pins: dict[int, list[int]] = {}
        for layer, _, expert in ordered:
            pins.setdefault(layer, []).append(expert)
        return pins

    def expert_index(self, layer: int, expert: int) -> int:
        """Which entry of the expert directory it is. UsageError when the model has no such expert."""
        if not 0 <= layer < len(self.layers):
            raise UsageError(f"{self.path.name} has {len(self.layers)} layers, none is {layer}", "Count from 0.")
        record = self.layers[layer]
        experts = int(record["router"]["experts"])
        if not 0 <= expert < experts:
            counts = {index: count for index, count in enumerate(self.experts_of_layers) if count}
            raise no_such_expert(self.path.name, counts, layer, expert)
        return int(record["first_expert"]) + expert

    def place(self, index: int) -> Place:
        """The place of entry `index` of the expert directory, after updates."""
        if index >= len(self.experts):
            raise self._error(Status.E_IMAGE_EXPERT, "expert-dir", index, len(self.experts), "lacks experts")
        packed = self.experts[index]
        entry = self._replaced.get((int(packed["layer"]), int(packed["expert"])), packed)
        generation = 0 if entry is packed else int(entry["generation"])
        section = self._section(SectionKind.EXPERTS)
        offset, length = int(entry["offset"]), int(entry["bytes"])
        if offset + length > section.bytes:
            name = f"expert {packed['layer']}/{packed['expert']}"
            raise self._error(
                Status.E_IMAGE_EXPERT, name, offset + length, section.bytes, f"places {name} outside of its section"
            )
        return Place(section.offset + offset, length, int(entry["crc32"]), generation, bytes(entry["digest"]))

    def has(self, kind: SectionKind) -> bool:
        return kind in self.sections

    def section_bytes(self, kind: SectionKind) -> bytes:
        """A copy of one section."""
        section = self._section(kind)
        return self.bytes_at(section.offset, section.bytes)

    def bytes_at(self, offset: int, count: int) -> bytes:
        """A copy of `count` bytes from byte `offset` of the image."""
        return bytes(self._data[offset : offset + count])

    # ---------------------------------------------------------------------------------------------------- numbers

    def resident_tensor(self, tensor: Record) -> npt.NDArray[np.float32]:
        """A tensor of the resident section, e.g. `image.model["embedding"]`, as float32 [rows][cols]."""
        section = self._section(SectionKind.RESIDENT)
        return self._tensor(tensor, section.offset, section.bytes, "resident")

    def expert_tensor(self, layer: int, expert: int, field: str) -> npt.NDArray[np.float32]:
        """`gate`, `up` or `down` of one expert as float32 [rows][cols]."""
        place = self.place(self.expert_index(layer, expert))
        tensor = self.layers[layer]["expert"][field]["weight"]
        return self._tensor(tensor, place.offset, place.size, f"expert {layer}/{expert}")

    def rotary_tables(self) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """Cosines and sines, each [context_max][rotary_dim / 2]."""
        rows, half = int(self.model["context_max"]), int(self.model["rotary_dim"]) // 2
        data = self.section_bytes(SectionKind.ROPE)
        if len(data) != 2 * rows * half * 4:
            raise self._error(
                Status.E_IMAGE_DIMENSION, "rope", len(data), 2 * rows * half * 4, "has rotary tables of the wrong size"
            )
        cosines, sines = np.frombuffer(data, "<f4").reshape(2, rows, half)
        return cosines, sines

    # -------------------------------------------------------------------------------------------------- checksums

    def verify(self) -> Iterator[Check]:
        """Recomputes every checksum of the image; a caller looks at each one's `ok`."""
        page = bytearray(self._data[:PAGE])
        field = HEADER.fields
        assert field is not None
        at = field["header_crc32"][1]
        page[at : at + 4] = bytes(4)
        yield _crc_check("header", int(self.header["header_crc32"]), zlib.crc32(page))
        for section in self.sections.values():
            if section.kind not in SELF_CHECKED:
                yield _crc_check(section.name, section.crc32, self._crc(section.offset, section.bytes))
        for index, entry in enumerate(self.experts):
            place = self.place(index)
            name = f"expert {entry['layer']}/{entry['expert']}"
            yield _crc_check(name, place.crc32, self._crc(place.offset, place.size))
            digest = hashlib.blake2b(self._data[place.offset : place.offset + place.size], digest_size=DIGEST_BYTES)
            yield Check(f"digest of {name}", place.digest.hex(), digest.hexdigest())
        sha = hashlib.sha256()
        for start in range(PAGE, self.signed_bytes, _HASH_BYTES):
            sha.update(self._data[start : min(start + _HASH_BYTES, self.signed_bytes)])
        yield Check("image id", self.image_id, sha.digest()[:16].hex())
        if self.signature.signed:
            yield Check("signed digest", self.signature.digest.hex(), self.signed_digest().hex())

    def require_whole(self) -> None:
        """Raises ImageError with the first checksum that is wrong."""
        wrong = next((check for check in self.verify() if not check.ok), None)
        if wrong is not None:
            raise ImageError(
                f"{self.path.name} is damaged: {wrong.name} is {wrong.computed}, stated as {wrong.stored}",
                "Pack the model again, or copy the file again.",
                status=Status.E_IMAGE_CHECKSUM,
                where=wrong.name,
            )

    def signed_digest(self) -> bytes:
        """BLAKE2b-512 of everything before the signature."""
        digest = hashlib.blake2b()
        for start in range(0, self.signed_bytes, _HASH_BYTES):
            digest.update(self._data[start : min(start + _HASH_BYTES, self.signed_bytes)])
        return digest.digest()

    def _crc(self, offset: int, length: int) -> int:
        crc = 0
        for start in range(offset, offset + length, _HASH_BYTES):
            crc = zlib.crc32(self._data[start : min(start + _HASH_BYTES, offset + length)], crc)
        return crc

    # --------------------------------------------------------------------------------------------------- plumbing

    def _error(self, status: Status, where: str, got: int, wanted: int, problem: str) -> ImageError:
        return ImageError(
            f"{self.path.name} {problem}", _PACK_AGAIN, status=status, where=where, got=got, wanted=wanted
        )

    def _records(self, dtype: np.dtype[np.void], offset: int, count: int) -> npt.NDArray[np.void]:
        return np.frombuffer(self._data[offset : offset + count * dtype.itemsize], dtype, count=count).copy()

    def _read_directory(self) -> dict[SectionKind, Section]:
        magic = bytes(self.header["magic"])
        if magic != MAGIC:
            raise wrong_kind(self.path, bytes(self._data[:HEAD_BYTES]))
        version = int(self.header["format_version"])
        if version != FORMAT_VERSION:
            raise ImageError(
                f"{self.path.name} has image format {version}; this version reads {FORMAT_VERSION}",
                "Pack the model again with this version.",
                status=Status.E_IMAGE_VERSION,
                where="format version",
                got=version,
                wanted=FORMAT_VERSION,
            )
        size, stated = len(self._data), int(self.header["image_bytes"])
        if size != stated:
            raise self._error(
                Status.E_IMAGE_SIZE, "image", size, stated, f"has {size} bytes and says that it has {stated}"
            )
        count = int(self.header["section_count"])
        if not 1 <= count <= MAX_SECTIONS:
            raise self._error(
                Status.E_IMAGE_DIMENSION, "section count", count, MAX_SECTIONS, f"says that it has {count} sections"
            )
        sections: dict[SectionKind, Section] = {}
        for entry in self._records(SECTION, DIRECTORY_OFFSET, count):
            section = self._read_section(entry)
            if section.kind in sections:
                raise self._error(
                    Status.E_IMAGE_SECTION, section.name, 2, 1, f"has section {section.name!r} more than once"
                )
            sections[section.kind] = section
        return sections

    def _read_section(self, entry: Record) -> Section:
        name, kind = _text(entry["name"]), int(entry["kind"])
        offset, length = int(entry["offset"]), int(entry["bytes"])
        if kind not in [known.value for known in SectionKind]:
            raise self._error(
                Status.E_IMAGE_UNSUPPORTED, name, kind, max(SectionKind), f"has a section of unknown kind {kind}"
            )
        if offset < PAGE or offset % PAGE or offset + length > len(self._data):
            raise self._error(
                Status.E_IMAGE_SECTION,
                name,
                offset + length,
                len(self._data),
                f"places section {name!r} at {offset} with {length} bytes, outside of the file or off a page",
            )
        return Section(name, SectionKind(kind), offset, length, int(entry["crc32"]))

    def _section(self, kind: SectionKind) -> Section:
        if kind not in self.sections:
            name = kind.name.lower()
            raise self._error(Status.E_IMAGE_SECTION, name, 0, 1, f"has no section {name!r}")
        return self.sections[kind]

    def _one(self, kind: SectionKind, dtype: np.dtype[np.void]) -> Record:
        section = self._section(kind)
        if section.bytes != dtype.itemsize:
            raise self._error(
                Status.E_IMAGE_DIMENSION,
                section.name,
                section.bytes,
                dtype.itemsize,
                f"has a section {section.name!r} of {section.bytes} bytes, not {dtype.itemsize}",
            )
        return self._records(dtype, section.offset, 1)[0]

    def _many(self, kind: SectionKind, dtype: np.dtype[np.void]) -> npt.NDArray[np.void]:
        if kind not in self.sections:
            return np.zeros(0, dtype)
        section = self.sections[kind]
        if section.bytes % dtype.itemsize:
            raise self._error(
                Status.E_IMAGE_DIMENSION,
                section.name,
                section.bytes,
                align_up(section.bytes, dtype.itemsize),
                f"has a section {section.name!r} of {section.bytes} bytes, no multiple of {dtype.itemsize}",
            )
        return self._records(dtype, section.offset, section.bytes // dtype.itemsize)

    def _read_signature(self) -> Signature:
        try:
            return Signature.decode(self._one(SectionKind.SIGNATURE, SIGNATURE))
        except ValueError as error:
            raise self._error(
                Status.E_IMAGE_SECTION, "signature", 0, 1, f"has a signature that cannot be read: {error}"
            ) from error

    def _read_updates(self) -> tuple[int, npt.NDArray[np.void]]:
        """The sequence of the table of replaced experts, and its entries; 0 and none without experts."""
        if not len(self.experts):
            return 0, np.zeros(0, UPDATE)
        table = read_table(self.section_bytes(SectionKind.UPDATES), bytes(self.header["image_id"]))
        if table is None:
            raise self._error(
                Status.E_IMAGE_SECTION, "updates", 0, 1, "has two tables of replaced experts, and neither is whole"
            )
        return table.sequence, table.entries

    def _tensor(self, tensor: Record, base: int, limit: int, where: str) -> npt.NDArray[np.float32]:
        offset, length, rows, cols = (int(tensor[name]) for name in ("offset", "bytes", "rows", "cols"))
        if int(tensor["format"]) not in [known.value for known in Format]:
            raise self._error(
                Status.E_IMAGE_UNSUPPORTED, where, int(tensor["format"]), max(Format), "has a tensor of unknown format"
            )
        fmt = Format(int(tensor["format"]))
        if length != tensor_bytes(fmt, rows, cols) or offset + length > limit:
            raise self._error(
                Status.E_IMAGE_DIMENSION, where, length, limit, f"has a tensor of {rows} x {cols} that does not fit"
            )
        return unpack_tensor(self._data[base + offset : base + offset + length], fmt, rows, cols)


def no_such_expert(whose: str, counts: Mapping[int, int], layer: int, expert: int) -> UsageError:
    """What there is instead. `counts`: the experts of each layer of `whose` that has any."""
    if not counts:
        return UsageError(f"{whose} has no experts", "Replace the model as a whole: `colibri-sdk update model`.")
    if layer not in counts:
        shown = ", ".join(map(str, sorted(counts)[:8])) + (" …" if len(counts) > 8 else "")
        return UsageError(f"layer {layer} of {whose} has no experts; these have: {shown}", "Count layers from 0.")
    return UsageError(f"layer {layer} of {whose} has {counts[layer]} experts, none is {expert}", "Count from 0.")


def _text(field: bytes) -> str:
    return printable(bytes(field).decode("utf-8", "replace"))


def _float(text: str) -> float | None:
    number = float(text)
    return number if math.isfinite(number) else None


def _crc_check(name: str, stored: int, computed: int) -> Check:
    return Check(name, f"{stored:08x}", f"{computed:08x}")
