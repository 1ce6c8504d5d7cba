# SPDX-License-Identifier: Apache-2.0
"""Reads a GGUF header's bytes one after the other, never past the end, never allocating what the file merely claims.

Arrays stay where they are: numbers as a view of the mapped file, texts as a place that is decoded when asked for.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import numpy as np
import numpy.typing as npt
from gguf.constants import GGUFValueType

from colibri_sdk.errors import CheckpointError

Bytes = npt.NDArray[np.uint8]

# No vocabulary has so many tokens, no template so many bytes, no name so many.
MAX_ELEMENTS = 1 << 22
MAX_TEXT_BYTES = 64 << 20
MAX_NAME_BYTES = 256
MAX_DEPTH = 2

_DAMAGED = "The file is damaged or was not downloaded to its end: fetch it again."

_SCALARS: dict[GGUFValueType, tuple[str, str]] = {
    GGUFValueType.UINT8: ("<B", "<u1"),
    GGUFValueType.INT8: ("<b", "<i1"),
    GGUFValueType.UINT16: ("<H", "<u2"),
    GGUFValueType.INT16: ("<h", "<i2"),
    GGUFValueType.UINT32: ("<I", "<u4"),
    GGUFValueType.INT32: ("<i", "<i4"),
    GGUFValueType.FLOAT32: ("<f", "<f4"),
    GGUFValueType.BOOL: ("<B", "<u1"),
    GGUFValueType.UINT64: ("<Q", "<u8"),
    GGUFValueType.INT64: ("<q", "<i8"),
    GGUFValueType.FLOAT64: ("<d", "<f8"),
}


@dataclass(frozen=True)
class Texts:
    """An array of texts that lies in the file and was found to be whole; decoded one by one."""

    path: Path
    key: str
    data: Bytes
    start: int
    count: int

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[str]:
        cursor = Cursor(self.path, self.data, self.start)
        for index in range(self.count):
            yield cursor.text(f"{self.key}[{index}]", MAX_TEXT_BYTES)


Value = int | float | bool | str | npt.NDArray[np.generic] | Texts | list["Value"]


class Cursor:
    """A place in the bytes of a file."""

    def __init__(self, path: Path, data: Bytes, at: int = 0) -> None:
        self.path = path
        self.data = data
        self.at = at
        self._elements = 0

    def refuse(self, problem: str, hint: str = _DAMAGED) -> NoReturn:
        raise CheckpointError(f"{self.path.name} {problem}", hint, where=str(self.path))

    @property
    def left(self) -> int:
        return len(self.data) - self.at

    def take(self, count: int, what: str) -> Bytes:
        """The next `count` bytes, as a view."""
        if count > self.left:
            self.refuse(f"ends inside {what}: {count} bytes are needed at byte {self.at} and {self.left} are left")
        start, self.at = self.at, self.at + count
        return self.data[start : self.at]

    def scalar(self, kind: GGUFValueType, what: str) -> int | float | bool:
        """A number. A 32-bit float gives the shortest decimal that rounds to it, which is what its author wrote."""
        code, _ = _SCALARS[kind]
        (value,) = struct.unpack(code, self.take(struct.calcsize(code), what).tobytes())
        if kind is GGUFValueType.BOOL:
            if value > 1:
                self.refuse(f"has {value} where {what} is to be true or false")
            return bool(value)
        if kind is GGUFValueType.FLOAT32:
            return float(str(np.float32(value)))
        return value  # type: ignore[no-any-return]

    def number(self, kind: GGUFValueType, what: str) -> int:
        return int(self.scalar(kind, what))

    def text(self, what: str, limit: int) -> str:
        length = self.number(GGUFValueType.UINT64, f"the length of {what}")
        if length > self.left:
            self.refuse(f"states {length} bytes for {what}, but {self.left} follow")
        if length > limit:
            self.refuse(f"states {length} bytes for {what}; {limit} is the limit")
        try:
            return self.take(length, what).tobytes().decode("utf-8")
        except UnicodeDecodeError:
            self.refuse(f"has {what} that is not UTF-8")

    def name(self, what: str) -> str:
        """A name that is not empty."""
        name = self.text(what, MAX_NAME_BYTES)
        if not name:
            self.refuse(f"has an empty name for {what}")
        return name

    def kind(self, what: str) -> GGUFValueType:
        number = self.number(GGUFValueType.UINT32, f"the type of {what}")
        try:
            return GGUFValueType(number)
        except ValueError:
            self.refuse(f"gives {what} the type {number}, which GGUF does not have")

    def value(self, key: str, depth: int = 0) -> Value:
        """A value of any type, its type before it."""
        return self._value(self.kind(key), key, depth)

    def _value(self, kind: GGUFValueType, key: str, depth: int) -> Value:
        if kind is GGUFValueType.STRING:
            return self.text(key, MAX_TEXT_BYTES)
        if kind is GGUFValueType.ARRAY:
            return self._array(key, depth + 1)
        return self.scalar(kind, key)

    def _array(self, key: str, depth: int) -> Value:
        if depth > MAX_DEPTH:
            self.refuse(f"nests arrays deeper than {MAX_DEPTH} in {key}")
        kind = self.kind(f"the elements of {key}")
        count = self.number(GGUFValueType.UINT64, f"the length of {key}")
        _, dtype = _SCALARS.get(kind, ("", ""))
        # A text takes 8 bytes at least, an array 12.
        smallest = np.dtype(dtype).itemsize if dtype else 8 if kind is GGUFValueType.STRING else 12
        if count * smallest > self.left:
            self.refuse(f"states {count} elements for {key}, but {self.left} bytes follow")
        self._elements += count
        if self._elements > MAX_ELEMENTS:
            self.refuse(f"has more than {MAX_ELEMENTS} elements in arrays, reached with {key}")
        if dtype:
            return self.take(count * smallest, key).view(dtype)
        if kind is GGUFValueType.STRING:
            return self._texts(key, count)
        return [self._value(kind, key, depth) for _ in range(count)]

    def _texts(self, key: str, count: int) -> Texts:
        start = self.at
        for index in range(count):
            length = int.from_bytes(self.take(8, key).tobytes(), "little")
            if length > self.left:
                self.refuse(f"states {length} bytes for {key}[{index}], but {self.left} follow")
            if length > MAX_TEXT_BYTES:
                self.refuse(f"states {length} bytes for {key}[{index}]; {MAX_TEXT_BYTES} is the limit")
            self.at += length
        return Texts(self.path, key, self.data, start, count)
