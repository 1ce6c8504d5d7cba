# SPDX-License-Identifier: Apache-2.0
"""Checks a safetensors file's header before the safetensors library opens it.

The library refuses damaged files too, but says neither which shard nor by how many bytes. This check never allocates
more than the header's own length, which it first compares with the file's.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

from colibri_sdk.convert.weights import StoredTensor
from colibri_sdk.errors import CheckpointError

# As in the safetensors library: a longer header is refused, whatever the file's size.
MAX_HEADER_BYTES = 100_000_000

# A tensor has about ten; the largest models have some ten thousand tensors in all their files together.
_MAX_HEADER_PARTS = 2_000_000

# Floating-point types that checkpoints carry and the packer reads: bytes per number.
READABLE_DTYPES: dict[str, int] = {"F32": 4, "F16": 2, "BF16": 2}

# Bytes per number of the other types of the format, so that their extent can be checked all the same.
_OTHER_DTYPES: dict[str, int] = {
    "F64": 8, "I64": 8, "U64": 8, "I32": 4, "U32": 4, "I16": 2, "U16": 2, "I8": 1, "U8": 1, "BOOL": 1,
    "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1,
}  # fmt: skip

_DOWNLOAD_AGAIN = "The file is damaged or was not downloaded to its end: fetch it again."


def read_header(path: Path) -> dict[str, StoredTensor]:
    """The tensors of one safetensors file, checked against the file's length and against each other.

    Raises CheckpointError naming the file, and the tensor where one is at fault.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        prefix = file.read(8)
        if len(prefix) < 8:
            raise _error(path, f"has {size} bytes; a safetensors file has at least 10", _DOWNLOAD_AGAIN)
        (length,) = struct.unpack("<Q", prefix)
        if length > MAX_HEADER_BYTES:
            raise _error(
                path,
                f"states a header of {length} bytes, more than the {MAX_HEADER_BYTES} that the format allows",
                "It is not a safetensors file, or it is damaged.",
            )
        if length > size - 8:
            raise _error(path, f"states a header of {length} bytes, but only {size - 8} bytes follow", _DOWNLOAD_AGAIN)
        text = file.read(length)
    return _check_extents(path, _parse(path, text), size - 8 - length)


def _error(path: Path, problem: str, hint: str) -> CheckpointError:
    return CheckpointError(f"{path.name} {problem}", hint, where=str(path))


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    seen: dict[str, Any] = {}
    for key, value in pairs:
        if key in seen:
            raise ValueError(f"{key!r} occurs twice")
        seen[key] = value
    return seen


def _parse(path: Path, text: bytes) -> dict[str, Any]:
    # What these characters separate becomes objects, of which a few million bytes can make very many.
    parts = sum(text.count(character) for character in (b"{", b"[", b","))
    if parts > _MAX_HEADER_PARTS:
        raise _error(path, f"has a header of {parts} parts; {_MAX_HEADER_PARTS} are possible", "It may be damaged.")
    try:
        header = json.loads(text.decode("utf-8"), object_pairs_hook=_refuse_duplicates)
    except (ValueError, RecursionError) as error:
        raise _error(path, f"has a header that is not JSON: {error}", _DOWNLOAD_AGAIN) from error
    if not isinstance(header, dict):
        raise _error(path, "has a header that is no JSON object", "It is not a safetensors file.")
    header.pop("__metadata__", None)
    return header


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def _tensor(path: Path, name: str, entry: Any) -> StoredTensor:
    """One header entry as a StoredTensor; its own fields must make sense and agree."""
    if not name:
        raise _error(path, "has a tensor with an empty name", _DOWNLOAD_AGAIN)
    shape = entry.get("shape") if isinstance(entry, dict) else None
    offsets = entry.get("data_offsets") if isinstance(entry, dict) else None
    dtype = entry.get("dtype") if isinstance(entry, dict) else None
    if (
        not isinstance(dtype, str)
        or not isinstance(shape, list)
        or not isinstance(offsets, list)
        or len(offsets) != 2
        or not all(_is_count(value) for value in [*shape, *offsets])
    ):
        raise _error(path, f"describes tensor {name!r} wrongly: {str(entry)[:200]}", _DOWNLOAD_AGAIN)
    if len(shape) > 8:
        raise _error(path, f"gives tensor {name!r} {len(shape)} dimensions", _DOWNLOAD_AGAIN)
    width = READABLE_DTYPES.get(dtype) or _OTHER_DTYPES.get(dtype)
    begin, end = offsets
    if width is not None:
        numbers = 1
        for dimension in shape:
            numbers *= dimension
        if end - begin != numbers * width:
            raise _error(
                path,
                f"gives tensor {name!r} {end - begin} bytes, but {shape} numbers of {dtype} take {numbers * width}",
                _DOWNLOAD_AGAIN,
            )
    return StoredTensor(name, path, dtype, tuple(shape), begin, end)


def _check_extents(path: Path, header: dict[str, Any], data_bytes: int) -> dict[str, StoredTensor]:
    """Tensors must lie within the file, cover it without gaps and not overlap."""
    tensors = {name: _tensor(path, name, entry) for name, entry in header.items()}
    wanted = max((tensor.end for tensor in tensors.values()), default=0)
    if wanted > data_bytes:
        last = max(tensors.values(), key=lambda tensor: tensor.end)
        raise _error(
            path,
            f"is truncated: its tensors need {wanted} bytes of data and {data_bytes} are there "
            f"({wanted - data_bytes} missing, the last of them of {last.name!r})",
            _DOWNLOAD_AGAIN,
        )
    if wanted < data_bytes:
        raise _error(path, f"has {data_bytes - wanted} bytes behind its last tensor", _DOWNLOAD_AGAIN)
    at, before = 0, ""
    for tensor in sorted(tensors.values(), key=lambda tensor: (tensor.begin, tensor.end)):
        if tensor.begin < at:
            raise _error(path, f"lays tensor {tensor.name!r} over {before!r}", _DOWNLOAD_AGAIN)
        if tensor.begin > at:
            raise _error(path, f"leaves {tensor.begin - at} bytes unused before {tensor.name!r}", _DOWNLOAD_AGAIN)
        if tensor.end < tensor.begin:
            raise _error(path, f"ends tensor {tensor.name!r} before it begins", _DOWNLOAD_AGAIN)
        at, before = tensor.end, tensor.name
    return tensors
