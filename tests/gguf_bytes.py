# SPDX-License-Identifier: Apache-2.0
"""GGUF headers byte by byte, as nobody should write them."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any

SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<B", 10: "<Q", 11: "<q", 12: "<d"}
STRING, ARRAY = 8, 9


def text(value: bytes, length: int | None = None) -> bytes:
    """A string, whose stated length can be a lie."""
    return struct.pack("<Q", len(value) if length is None else length) + value


def value(kind: int, content: Any) -> bytes:
    """A value with its type before it; an array is (type, elements) or (type, stated length, elements)."""
    return struct.pack("<I", kind) + bare(kind, content)


def bare(kind: int, content: Any) -> bytes:
    if kind == STRING:
        return text(content)
    if kind == ARRAY:
        inner, *length, elements = content
        count = length[0] if length else len(elements)
        return struct.pack("<IQ", inner, count) + b"".join(bare(inner, one) for one in elements)
    return struct.pack(SCALARS[kind], content)


@dataclass
class Tensor:
    """One entry; offset None is the next free place."""

    name: bytes
    dims: tuple[int, ...] = (4,)
    kind: int = 0
    offset: int | None = None
    name_length: int | None = None
    dim_count: int | None = None


@dataclass
class File:
    """A file. `keys` are whole entries: name and value."""

    magic: bytes = b"GGUF"
    version: int = 3
    keys: list[bytes] = field(default_factory=lambda: [text(b"general.architecture") + value(STRING, b"llama")])
    tensors: list[Tensor] = field(default_factory=lambda: [Tensor(b"a"), Tensor(b"b")])
    tensor_count: int | None = None
    key_count: int | None = None
    data: bytes | None = None
    alignment: int = 32

    def bytes(self) -> bytes:
        tensor_count = len(self.tensors) if self.tensor_count is None else self.tensor_count
        key_count = len(self.keys) if self.key_count is None else self.key_count
        out = self.magic + struct.pack("<IQQ", self.version, tensor_count, key_count) + b"".join(self.keys)
        free = 0
        for tensor in self.tensors:
            offset = free if tensor.offset is None else tensor.offset
            dims = struct.pack(f"<{len(tensor.dims)}Q", *(size % 2**64 for size in tensor.dims))
            count = len(tensor.dims) if tensor.dim_count is None else tensor.dim_count
            out += text(tensor.name, tensor.name_length) + struct.pack("<I", count) + dims
            out += struct.pack("<IQ", tensor.kind, offset)
            free += self.alignment
        out += bytes(-len(out) % self.alignment)
        return out + (bytes(free) if self.data is None else self.data)
