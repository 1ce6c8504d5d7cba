# SPDX-License-Identifier: Apache-2.0
"""Writes an image, section after section, without ever holding it in memory.

The image grows in a partial file beside its target and takes the target's name only when it is whole and on the disk,
so that a target is never half an image. Page 0 with its checksum is written last.

An image that is written is unsigned and has no replaced experts, whatever it was made from.
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
    DIGEST_BYTES,
    DIRECTORY_OFFSET,
    FORMAT_VERSION,
    HEADER,
    MAGIC,
    NUMERIC_VERSION,
    PAGE,
    SECTION,
    SECTION_NAMES,
    SELF_CHECKED,
    UPDATE,
    Prng,
    SectionKind,
    align_up,
)
from colibri_sdk.image.signature import Signature
from colibri_sdk.image.updates import copy_bytes, encode_copy

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
        self._part_digest: hashlib.blake2b | None = None

    @property
    def written(self) -> int:
        """Bytes of this section so far."""
        return self._section.bytes

    def write(self, data: bytes | memoryview) -> None:
        self._file.write(data)
        self._section.bytes += len(data)
        self._section.crc32 = zlib.crc32(data, self._section.crc32)
        if self._part_digest is not None:
            self._part_crc = zlib.crc32(data, self._part_crc)
            self._part_digest.update(data)

    def align(self, step: int, start: int = 0) -> None:
        """Zeros up to the next multiple of `step`, counted from byte `start` of the section."""
        length = self.written - start
        self.write(_ZEROS[: align_up(length, step) - length])

    def skip(self, count: int) -> None:
        """`count` bytes whose value does not matter: zeros, and a hole in the file where the system knows such."""
        self._file.seek(count, os.SEEK_CUR)
        self._section.bytes += count

    def begin_part(self) -> None:
        """A blob with checksums of its own begins here."""
        self._part_crc, self._part_digest = 0, hashlib.blake2b(digest_size=DIGEST_BYTES)

    def end_part(self) -> tuple[int, bytes]:
        """CRC-32 and BLAKE2b-256 of what was written since begin_part."""
        if self._part_digest is None:
            raise InternalError("a part ends that did not begin")
        digest, self._part_digest = self._part_digest.digest(), None
        return self._part_crc, digest


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

    @property
    def sizes(self) -> dict[str, int]:
        """The bytes of each section so far, by name."""
        return {SECTION_NAMES[section.kind]: section.bytes for section in self._sections}

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

    def add_own_sections(self, experts: int) -> None:
        """Those that every image gets behind its card: signature, and the table of updates if there are `experts`."""
        self.add(SectionKind.SIGNATURE, Signature().encode())
        if experts:
            self.add(SectionKind.UPDATES, bytes(2 * copy_bytes(experts)))

    def reserve(self, kind: SectionKind, room: int) -> None:
        """A section whose bytes are known later, at most `room` of them: `fill` brings them."""
        self.add(kind, bytes(room))

    def fill(self, kind: SectionKind, data: bytes) -> None:
        """The bytes of a section that was reserved. What is left of its room stays zero and belongs to no section."""
        section = self._find(kind)
        if len(data) > section.bytes:
            raise InternalError(f"section {kind.name} has room for {section.bytes} bytes and gets {len(data)}")
        section.bytes = len(data)
        self.rewrite(kind, data)

    def rewrite(self, kind: SectionKind, data: bytes) -> None:
        """Replaces a section that was written with a placeholder of the same length."""
        section = self._find(kind)
        if len(data) != section.bytes:
            raise InternalError(f"section {kind.name} had {section.bytes} bytes and is rewritten with {len(data)}")
        self._file.seek(section.offset)
        self._file.write(data)
        self._file.seek(0, os.SEEK_END)
        section.crc32 = zlib.crc32(data)

    def _find(self, kind: SectionKind) -> _Section:
        return next(one for one in self._sections if one.kind is kind)

    def _has(self, kind: SectionKind) -> bool:
        return any(one.kind is kind for one in self._sections)

    def _complete(self) -> None:
        self.image_bytes = align_up(self._end, PAGE)
        self._file.write(_ZEROS[: self.image_bytes - self._end])
        self._file.truncate(self.image_bytes)
        self.image_id = self._digest()[:16]
        if self._has(SectionKind.UPDATES):
            length = self._find(SectionKind.UPDATES).bytes // 2
            empty = encode_copy(np.zeros(0, UPDATE), 1, self.image_id, length)
            self.rewrite(SectionKind.UPDATES, empty + bytes(length))
        self._file.seek(0)
        self._file.write(self._page0())
        self._file.flush()
        os.fsync(self._file.fileno())

    def _digest(self) -> bytes:
        """SHA-256 over everything from byte 4096 to the signature."""
        end = self._find(SectionKind.SIGNATURE).offset if self._has(SectionKind.SIGNATURE) else self.image_bytes
        sha = hashlib.sha256()
        self._file.flush()
        self._file.seek(PAGE)
        while piece := self._file.read(min(_COPY_BYTES, end - self._file.tell())):
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
            entry["crc32"] = 0 if section.kind in SELF_CHECKED else section.crc32
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
