# SPDX-License-Identifier: Apache-2.0
"""Fills the other slot with an image, and lets as little as possible travel.

What of the new image lies in the running one is copied on the medium: any expert with the same digest, and pages of the
rest at the same offset. What lies in the target already, from an interrupted attempt or an older model, stays.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from colibri_sdk.errors import VerifyError
from colibri_sdk.image.layout import PAGE, SectionKind, align_up
from colibri_sdk.image.reader import ImageFile
from colibri_sdk.update.calls import UpdateCalls
from colibri_sdk.update.content import Content, Range, differing, joined, pieces_to_send, without
from colibri_sdk.update.messages import DirectoryEntry, Where

if TYPE_CHECKING:
    from colibri_sdk.convert.progress import Progress

Progressed = Callable[[int], None]  # so many bytes more are settled


@dataclass(frozen=True)
class Traffic:
    """How the image's bytes got to the target. The first page travels beside them, with the request that begins."""

    sent_bytes: int = 0
    copied_bytes: int = 0
    kept_bytes: int = 0
    experts_sent: int = 0
    experts_copied: int = 0
    experts_kept: int = 0


class Transfer:
    """One image on its way into a target that UPDATE_BEGIN has opened.

    directory: the experts of the running image; running_bytes: its length, 0 for none."""

    def __init__(
        self, calls: UpdateCalls, image: ImageFile, directory: list[DirectoryEntry], running_bytes: int
    ) -> None:
        self._calls = calls
        self._image = image
        self._content = Content(image.bytes_at, image.image_bytes)
        self._running = {entry.digest: entry for entry in directory}
        self._running_bytes = running_bytes
        self._missing: list[Range] = []
        self._copied = self._kept = 0
        self._experts = {"sent": 0, "copied": 0, "kept": 0}
        self._settled = 0

    def run(self, progress: Progress) -> Traffic:
        """Compares, copies, sends. May be interrupted and begun anew at any time."""
        front = front_parts(self._image)
        total = sum(part.bytes for part in front) + sum(int(entry["bytes"]) for entry in self._image.experts)

        def settle(count: int) -> None:
            self._settled += count
            progress.update(self._settled, total, "comparing")

        self._place_front(front, settle)
        for index in range(len(self._image.experts)):
            self._place_expert(index, settle)
        return self._send(progress)

    def _there(self, part: Range) -> int:
        return self._calls.crc(part.start, part.bytes)

    def _place_front(self, front: list[Range], settle: Progressed) -> None:
        """All but first page and experts."""
        always = self_checked_pages(self._image)
        self._missing += always
        settle(sum(part.bytes for part in always))
        front = without(front, always)
        within = [Range(part.start, min(part.end, self._running_bytes) - part.start) for part in front]
        comparable = [part for part in within if part.bytes > 0]
        unlike = differing(
            self._content,
            lambda part: self._calls.crc(part.start, part.bytes, Where.RUNNING_IMAGE),
            comparable,
            lambda _: None,
        )
        alike = without(comparable, unlike)
        for part in alike:
            self._copy(part, part.start, self._content.crc(part))
            settle(part.bytes)
        rest = without(joined(front), joined(alike))
        missing = differing(self._content, self._there, rest, settle)
        self._missing += missing
        self._kept += sum(part.bytes for part in rest) - sum(part.bytes for part in missing)

    def _place_expert(self, index: int, settle: Progressed) -> None:
        place = self._image.place(index)
        part = Range(place.offset, place.size)
        running = self._running.get(place.digest)
        if running is not None:
            copied = self._copy(part, running.offset, place.crc32)
            self._experts["copied" if copied else "kept"] += 1
            settle(part.bytes)
            return
        missing = differing(self._content, self._there, [part], settle)
        self._missing += missing
        self._kept += part.bytes - sum(gap.bytes for gap in missing)
        self._experts["sent" if missing else "kept"] += 1

    def _copy(self, part: Range, source: int, crc32: int) -> bool:
        """From byte `source` of the running image, where the target does not hold it yet. True when it was copied."""
        if self._there(part) == crc32:
            self._kept += part.bytes
            return False
        if self._calls.copy(source, part.start, part.bytes) != crc32:
            raise VerifyError(
                f"the device's medium gives other bytes than it has stated, from byte {source} of the running image",
                "Run the command again; if that does not help, the medium is bad: write a new one.",
                where=f"running image+{source}",
            )
        self._copied += part.bytes
        return True

    def _send(self, progress: Progress) -> Traffic:
        missing = joined(self._missing)
        total = sum(part.bytes for part in missing)
        sent = 0
        for count in self._calls.send(pieces_to_send(self._content, missing)):
            sent += count
            progress.update(sent, total, "")
        return Traffic(
            sent_bytes=sent,
            copied_bytes=self._copied,
            kept_bytes=self._kept,
            experts_sent=self._experts["sent"],
            experts_copied=self._experts["copied"],
            experts_kept=self._experts["kept"],
        )


def self_checked_pages(image: ImageFile) -> list[Range]:
    """Pages that are sent whatever their checksum says: signature, and the first of each list of replaced experts.

    They begin with a struct that ends in its own CRC-32. A CRC is linear: that of such a struct as a whole, and of
    anything around it, is the same whatever the struct says."""
    pages = []
    for kind, copies in ((SectionKind.SIGNATURE, 1), (SectionKind.UPDATES, 2)):
        if kind in image.sections:
            section = image.sections[kind]
            pages += [Range(section.offset + copy * (section.bytes // copies), PAGE) for copy in range(copies)]
    return pages


def front_parts(image: ImageFile) -> list[Range]:
    """All pages but the first and the experts', a part for each section, with the zeros behind it."""
    experts = image.sections.get(SectionKind.EXPERTS)
    end = experts.offset if experts else align_up(image.image_bytes, PAGE)
    starts = sorted(section.offset for section in image.sections.values() if PAGE < section.offset < end)
    bounds = [PAGE, *starts, end]
    return [Range(start, stop - start) for start, stop in pairwise(bounds) if stop > start]
