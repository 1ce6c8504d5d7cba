# SPDX-License-Identifier: Apache-2.0
"""Checks a GGUF file's header: metadata, and where each tensor lies.

After the GGUF specification, versions 2 and 3. The file is mapped, not read. Whatever a header claims, no more memory
is used than a few objects for each entry that is really there: counts, dimensions and lengths are compared with the
file's before anything is made of them, in integers that do not wrap.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType

from colibri_sdk.convert.gguf.cursor import Bytes, Cursor, Value
from colibri_sdk.errors import CheckpointError

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_SMALLEST_FILE = 24
_DEFAULT_ALIGNMENT = 32
_LARGEST_ALIGNMENT = 1 << 16

# Of the largest models there are, several times over.
MAX_KEYS = 1 << 14
MAX_TENSORS = 1 << 16
MAX_DIMENSIONS = 4

# Bytes of the shortest entries: a key of one letter with one byte, a tensor of one dimension.
_SMALLEST_KEY = 8 + 1 + 4 + 1
_SMALLEST_TENSOR = 8 + 1 + 4 + 8 + 4 + 8


@dataclass(frozen=True)
class Entry:
    """One tensor. `shape` is the NumPy way round: the last dimension is the one whose numbers are neighbours."""

    name: str
    path: Path
    type: GGMLQuantizationType
    shape: tuple[int, ...]
    offset: int  # of the first byte, from the start of the file
    bytes: int


@dataclass(frozen=True)
class Header:
    """A file that is open. `data` are its mapped bytes."""

    path: Path
    data: Bytes
    metadata: Mapping[str, Value]
    tensors: Mapping[str, Entry]


def read_header(path: Path) -> Header:
    """Maps and checks one file. Raises CheckpointError naming the file and, where one is at fault, key or tensor."""
    size = path.stat().st_size
    if size < _SMALLEST_FILE:
        raise CheckpointError(
            f"{path.name} has {size} bytes; a GGUF file has at least {_SMALLEST_FILE}",
            "The file was not downloaded to its end: fetch it again.",
            where=str(path),
        )
    data: Bytes = np.memmap(path, np.uint8, "r").view(np.ndarray)
    cursor = Cursor(path, data)
    tensor_count, key_count = _check_start(cursor)
    metadata = _read_metadata(cursor, key_count)
    alignment = _alignment(cursor, metadata)
    infos = [_read_tensor(cursor, index) for index in range(tensor_count)]
    start = -(-cursor.at // alignment) * alignment
    return Header(path, data, metadata, _place(cursor, infos, start, alignment))


def _check_start(cursor: Cursor) -> tuple[int, int]:
    """Magic, version and counts."""
    magic = cursor.take(4, "the magic number").tobytes()
    if magic != _MAGIC:
        cursor.refuse(f"begins with {magic!r}, not with {_MAGIC!r}", "It is not a GGUF file, or it is damaged.")
    version = cursor.number(GGUFValueType.UINT32, "the version")
    if version & 0xFFFF == 0 and version:
        cursor.refuse("is in big-endian order", "Convert it with gguf-convert-endian, or fetch a little-endian file.")
    if version not in _VERSIONS:
        cursor.refuse(
            f"is of GGUF version {version}; versions {' and '.join(map(str, _VERSIONS))} are read",
            "Fetch a newer file of the same model, or update this SDK.",
        )
    counts = []
    for what, smallest, limit in (("tensors", _SMALLEST_TENSOR, MAX_TENSORS), ("keys", _SMALLEST_KEY, MAX_KEYS)):
        count = cursor.number(GGUFValueType.UINT64, f"the number of {what}")
        if count * smallest > cursor.left:
            cursor.refuse(f"states {count} {what}, which need more than the {cursor.left} bytes that follow")
        if count > limit:
            cursor.refuse(f"states {count} {what}; {limit} is the limit")
        counts.append(count)
    return counts[0], counts[1]


def _read_metadata(cursor: Cursor, count: int) -> dict[str, Value]:
    metadata: dict[str, Value] = {}
    for index in range(count):
        key = cursor.name(f"metadata key {index}")
        if key in metadata:
            cursor.refuse(f"has the metadata key {key!r} twice")
        metadata[key] = cursor.value(key)
    return metadata


def _alignment(cursor: Cursor, metadata: Mapping[str, Value]) -> int:
    value = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= _LARGEST_ALIGNMENT:
        cursor.refuse(f"has general.alignment = {value!r}; a power of two up to {_LARGEST_ALIGNMENT} is expected")
    if value & (value - 1):
        cursor.refuse(f"has general.alignment = {value}, which is no power of two")
    return value


@dataclass(frozen=True)
class _Info:
    """What the header says about a tensor: its place not yet checked against the file."""

    name: str
    type: GGMLQuantizationType
    shape: tuple[int, ...]
    offset: int  # from the start of the data
    bytes: int


def _read_tensor(cursor: Cursor, index: int) -> _Info:
    name = cursor.name(f"tensor {index}")
    count = cursor.number(GGUFValueType.UINT32, f"the number of dimensions of {name!r}")
    if not 1 <= count <= MAX_DIMENSIONS:
        cursor.refuse(f"gives tensor {name!r} {count} dimensions; 1 to {MAX_DIMENSIONS} are possible")
    # The format has them as signed.
    sizes = [cursor.number(GGUFValueType.INT64, f"the dimensions of {name!r}") for _ in range(count)]
    if min(sizes) <= 0:
        cursor.refuse(f"gives tensor {name!r} the dimensions {sizes}; each must be at least 1")
    number = cursor.number(GGUFValueType.UINT32, f"the type of {name!r}")
    try:
        kind = GGMLQuantizationType(number)
    except ValueError:
        cursor.refuse(f"gives tensor {name!r} the type {number}, which is not known", "A newer SDK may know it.")
    offset = cursor.number(GGUFValueType.UINT64, f"the offset of {name!r}")
    block, block_bytes = GGML_QUANT_SIZES[kind]
    if sizes[0] % block:
        cursor.refuse(
            f"gives tensor {name!r} rows of {sizes[0]} numbers, but {kind.name} has them in blocks of {block}"
        )
    numbers = 1
    for size in sizes:
        numbers *= size
    return _Info(name, kind, tuple(reversed(sizes)), offset, numbers // block * block_bytes)


def _place(cursor: Cursor, infos: list[_Info], start: int, alignment: int) -> dict[str, Entry]:
    """Tensors must lie within the file, aligned, apart from each other, each name once."""
    available = max(len(cursor.data) - start, 0)
    tensors: dict[str, Entry] = {}
    for info in infos:
        if info.name in tensors:
            cursor.refuse(f"has the tensor {info.name!r} twice")
        if info.offset % alignment:
            cursor.refuse(f"places tensor {info.name!r} at {info.offset}, which is no multiple of {alignment}")
        if info.offset + info.bytes > available:
            cursor.refuse(
                f"is too short: tensor {info.name!r} takes {info.bytes} bytes at byte {info.offset} of its data, "
                f"which has {available}"
            )
        tensors[info.name] = Entry(info.name, cursor.path, info.type, info.shape, start + info.offset, info.bytes)
    end, before = 0, ""
    for entry in sorted(tensors.values(), key=lambda entry: (entry.offset, entry.bytes)):
        if entry.offset < end:
            cursor.refuse(f"lays tensor {entry.name!r} over {before!r}")
        end, before = entry.offset + entry.bytes, entry.name
    return tensors
