# SPDX-License-Identifier: Apache-2.0
"""Memory for the engine: images mapped from files, and arenas with a guard behind them."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

from cffi import FFI

from colibri_sdk.errors import UsageError

_GUARD_BYTES = 4096
_GUARD = bytes([0xA5]) * _GUARD_BYTES


class MappedImage:
    """An image file mapped for reading: page-aligned, and only the pages that are touched are loaded."""

    def __init__(self, ffi: FFI, path: Path) -> None:
        try:
            with path.open("rb") as file:
                self.bytes = file.seek(0, 2)
                # An empty file cannot be mapped; the engine then gets one page of zeros and the length 0.
                self._map = (
                    mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if self.bytes else mmap.mmap(-1, mmap.PAGESIZE)
                )
        except OSError as error:
            raise UsageError(
                f"{path} cannot be read: {error.strerror or error}",
                "Name an image that `colibri-sdk pack` made.",
            ) from error
        self.path = path
        self.pointer: Any = ffi.from_buffer(self._map)


class Arena:
    """Page-aligned memory of `size` bytes, moved up by `offset`, with a guard behind its last byte."""

    def __init__(self, ffi: FFI, size: int, offset: int = 0) -> None:
        self._map = mmap.mmap(-1, max(offset + size, 1) + _GUARD_BYTES)
        self._end = offset + size
        self._map[self._end : self._end + _GUARD_BYTES] = _GUARD
        self.bytes = size
        self.pointer: Any = ffi.from_buffer(self._map) + offset

    def guard_intact(self) -> bool:
        """Nobody wrote behind the arena's end."""
        return self._map[self._end : self._end + _GUARD_BYTES] == _GUARD
