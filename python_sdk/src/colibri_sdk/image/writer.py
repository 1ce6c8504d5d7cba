# SPDX-License-Identifier: Apache-2.0
"""Writes an image, section after section, without ever holding it in memory.

The image grows in a partial file beside its target and takes the target's name only when it is whole and on the disk,
so that a target is never half an image. Page 0 with its checksum is written last.
"""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

import numpy as np

from colibri_sdk.errors import InternalError, UsageError
from colibri_sdk.image.layout import (
    DIRECTORY_OFFSET,
    FORMAT_VERSION,
    HEADER,
    MAGIC,
    NUMERIC_VERSION,
    PAGE,
    SECTION,
    SECTION_NAMES,
    Prng,
    SectionKind,
    align_up,
)

_COPY_BYTES = 1 << 20
_ZEROS = bytes(PAGE)


@dataclass
class _Section:
    kind: SectionKind
    offset: int
    bytes: int = 0
    crc32: int = 0


class SectionStream:
    """Takes the bytes of one section in order. Checksums are computed on the way."""

    def __init__(self, file: BinaryIO, section: _Section) -> None:
        self._file = file
        self._section = section
        self._part_crc = 0

    @property
    def written(self) -> int:
        """Bytes of this section so far."""
        return self._section.bytes

    def write(self, data: bytes | memoryview) -> None:
        self._file.write(data)
        self._section.bytes += len(data)
        self._section.crc32 = zlib.crc32(data, self._section.crc32)
        self._part_crc = zlib.crc32(data, self._part_crc)

    def align(self, step: int, start: int = 0) -> None:
        """Zeros up to the next multiple of `step`, counted from byte `start` of the section."""
        length = self.written - start
        self.write(_ZEROS[: align_up(length, step) - length])

    def take_crc(self) -> int:
        """The CRC-32 of what was written since the section's start or the last call."""
        crc, self._part_crc = self._part_crc, 0
        return crc


class ImageWriter:
    """A context manager: leaving it without an error completes the image, leaving it with one removes the partial
    file."""

    def __init__(self, path: Path, model_name: str) -> None:
        self._path = path
        self._partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
        self._model_name = short_utf8(model_name, 47)
        self._sections: list[_Section] = []
        self._end = PAGE
        self.image_id = bytes(16)
        self.image_bytes = 0

    def __enter__(self) -> Self:
        try:
            self._file = self._partial.open("x+b")
        except OSError as error:
            raise self._cannot_write(error) from error
        self._file.write(_ZEROS)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            with self._file:
                if error is None:
                    self._complete()
            if error is None:
                self._partial.replace(self._path)
                _sync_directory(self._path.parent)
        except OSError as problem:
            raise self._cannot_write(problem) from problem
        finally:
            self._partial.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:
            # Only writes to the open partial file fail without a name, a full disk above all.
            raise self._cannot_write(error) from error

    def _cannot_write(self, error: OSError) -> UsageError:
        return UsageError(
            f"{self._path} cannot be written: {error.strerror or error}",
            "Choose another place with --output, or make room there.",
        )

    @contextmanager
    def section(self, kind: SectionKind) -> Iterator[SectionStream]:
        """The next section. Kinds must ascend."""
        if self._sections and kind <= self._sections[-1].kind:
            raise InternalError(f"section {kind.name} is written after {self._sections[-1].kind.name}")
        start = align_up(self._end, PAGE)
        self._file.write(_ZEROS[: start - self._end])
        section = _Section(kind, start)
        self._sections.append(section)
        yield SectionStream(self._file, section)
        self._end = start + section.bytes

    def add(self, kind: SectionKind, data: bytes) -> None:
        """A whole section at once."""
        with self.section(kind) as stream:
            stream.write(data)

    def rewrite(self, kind: SectionKind, data: bytes) -> None:
        """Replaces a section that was written with a placeholder of the same length."""
        section = next(one for one in self._sections if one.kind is kind)
        if len(data) != section.bytes:
            raise InternalError(f"section {kind.name} had {section.bytes} bytes and is rewritten with {len(data)}")
        self._file.seek(section.offset)
        self._file.write(data)
        self._file.seek(0, os.SEEK_END)
        section.crc32 = zlib.crc32(data)

    def _complete(self) -> None:
        self.image_bytes = align_up(self._end, PAGE)
        self._file.write(_ZEROS[: self.image_bytes - self._end])
        self.image_id = self._digest()[:16]
        self._file.seek(0)
        self._file.write(self._page0())
        self._file.flush()
        os.fsync(self._file.fileno())

    def _digest(self) -> bytes:
        """SHA-256 over everything from byte 4096 on."""
        sha = hashlib.sha256()
        self._file.flush()
        self._file.seek(PAGE)
        while piece := self._file.read(_COPY_BYTES):
            sha.update(piece)
        return sha.digest()

    def _page0(self) -> bytes:
        header = np.zeros((), HEADER)
        header["magic"] = np.void(MAGIC)
        header["format_version"] = FORMAT_VERSION
        header["numeric_version"] = NUMERIC_VERSION
        header["image_bytes"] = self.image_bytes
        header["page_bytes"] = PAGE
        header["section_count"] = len(self._sections)
        header["image_id"] = np.void(self.image_id)
        header["model_name"] = self._model_name
        header["prng"] = Prng.SPLITMIX64
        directory = np.zeros(len(self._sections), SECTION)
        for entry, section in zip(directory, self._sections, strict=True):
            entry["name"] = SECTION_NAMES[section.kind].encode()
            entry["kind"] = section.kind
            # Each expert has its own checksum, so that one can be replaced without reading all others.
            entry["crc32"] = 0 if section.kind is SectionKind.EXPERTS else section.crc32
            entry["offset"] = section.offset
            entry["bytes"] = section.bytes
        page = bytearray(_ZEROS)
        page[:DIRECTORY_OFFSET] = header.tobytes()
        page[DIRECTORY_OFFSET : DIRECTORY_OFFSET + directory.nbytes] = directory.tobytes()
        header["header_crc32"] = zlib.crc32(page)
        page[:DIRECTORY_OFFSET] = header.tobytes()
        return bytes(page)


def short_utf8(text: str, limit: int) -> bytes:
    """`text` as UTF-8 of at most `limit` bytes, cut between characters, without NUL."""
    return text.replace("\0", "").encode("utf-8", "replace")[:limit].decode("utf-8", "ignore").encode()


def _sync_directory(directory: Path) -> None:
    """Makes a rename in `directory` last through a power cut."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
