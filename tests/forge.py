# SPDX-License-Identifier: Apache-2.0
"""Images that lie: takes a good one, changes a field, and makes the checksums right again."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import numpy as np

from colibri_sdk.engine import Library
from colibri_sdk.image.layout import (
    DIRECTORY_OFFSET,
    EXPERT,
    HEADER,
    LAYER,
    MODEL,
    PAGE,
    SECTION,
    SELF_CHECKED,
    SIGNATURE,
    UPDATE,
    UPDATE_HEAD,
    SectionKind,
)


class Forge:
    """An image in memory whose structs can be written through NumPy views."""

    def __init__(self, image: Path) -> None:
        self.data = np.fromfile(image, np.uint8)

    @property
    def header(self) -> Any:
        return self.data[: HEADER.itemsize].view(HEADER)

    @property
    def sections(self) -> Any:
        count = int(self.header["section_count"][0])
        return self.data[DIRECTORY_OFFSET : DIRECTORY_OFFSET + count * SECTION.itemsize].view(SECTION)

    def section(self, kind: SectionKind) -> Any:
        return self.sections[self.sections["kind"] == kind]

    def contents(self, kind: SectionKind) -> Any:
        """The section's bytes, writable."""
        entry = self.section(kind)
        start = int(entry["offset"][0])
        return self.data[start : start + int(entry["bytes"][0])]

    @property
    def model(self) -> Any:
        return self.contents(SectionKind.MODEL).view(MODEL)

    @property
    def layers(self) -> Any:
        return self.contents(SectionKind.LAYERS).view(LAYER)

    @property
    def experts(self) -> Any:
        return self.contents(SectionKind.EXPERT_DIR).view(EXPERT)

    @property
    def signature(self) -> Any:
        return self.contents(SectionKind.SIGNATURE).view(SIGNATURE)

    def update_head(self, copy: int = 0) -> Any:
        """The head of one copy of the table of replaced experts."""
        return self._copy(copy)[: UPDATE_HEAD.itemsize].view(UPDATE_HEAD)

    def updates(self, count: int, copy: int = 0) -> Any:
        """The first `count` entries of that copy."""
        start = UPDATE_HEAD.itemsize
        return self._copy(copy)[start : start + count * UPDATE.itemsize].view(UPDATE)

    def _copy(self, copy: int) -> Any:
        section = self.contents(SectionKind.UPDATES)
        length = section.size // 2
        return section[copy * length : (copy + 1) * length]

    def seal(self, *, sections: bool = True) -> None:
        """Recomputes every checksum whose range lies in the file, so that only the lie itself can be found."""
        whole = self.data.size
        if sections:
            for entry in self.sections:
                start, size = int(entry["offset"]), int(entry["bytes"])
                if entry["kind"] not in SELF_CHECKED and start + size <= whole:
                    entry["crc32"] = zlib.crc32(self.data[start : start + size])
        self.header["header_crc32"] = 0
        self.header["header_crc32"] = zlib.crc32(self.data[:PAGE])

    def seal_experts(self) -> None:
        """Recomputes the experts' checksums in the directory; seal() afterwards."""
        start = int(self.section(SectionKind.EXPERTS)["offset"][0])
        for entry in self.experts:
            first = start + int(entry["offset"])
            entry["crc32"] = zlib.crc32(self.data[first : first + int(entry["bytes"])])

    def seal_signature(self) -> None:
        """Recomputes the checksum of the signature's fields. It still signs nothing."""
        self.signature["crc32"] = zlib.crc32(self.signature.view(np.uint8)[: SIGNATURE.itemsize - 4])

    def seal_updates(self, copy: int = 0) -> None:
        """Recomputes the checksums of one copy of the table of replaced experts."""
        head = self.update_head(copy)
        entries = self.updates(min(int(head["count"][0]), 14), copy)
        head["entries_crc32"] = zlib.crc32(entries.view(np.uint8))
        head["crc32"] = zlib.crc32(head.view(np.uint8)[: UPDATE_HEAD.itemsize - 4])

    def write(self, path: Path) -> Path:
        self.data.tofile(path)
        return path

    def verdict(self, library: Library, length: int | None = None) -> tuple[int, str]:
        """What colibri_validate says of the first `length` bytes, by default all: the status, and the name of what is
        wrong. Without a file, for many forgeries."""
        align = library.constants["COLIBRI_ARENA_ALIGN"]
        size = self.data.size if length is None else length
        memory = np.zeros(size + align, np.uint8)
        start = -memory.ctypes.data % align
        image = memory[start : start + size]
        image[:] = self.data[:size]
        detail = library.detail()
        status = library.lib.colibri_validate(library.ffi.from_buffer(image), image.size, detail)
        return int(status), library.ffi.string(detail.where).decode()
