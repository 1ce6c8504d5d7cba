# SPDX-License-Identifier: Apache-2.0
"""Puts another card into an image that is whole: what can only be known of a finished image is written there."""

from __future__ import annotations

from pathlib import Path

from colibri_sdk.image.layout import SectionKind
from colibri_sdk.image.reader import ImageFile
from colibri_sdk.image.writer import ImageWriter

_COPY_BYTES = 1 << 20


def replace_card(path: Path, card: bytes) -> tuple[int, str]:
    """Replaces the card of the image `path`; all else stays, byte for byte, but for page 0.

    Returns the image's new length and identity. As with packing, the image is replaced at once or not at all.
    """
    with ImageFile(path) as image, ImageWriter(path, image.model_name) as writer:
        for section in image.sections.values():
            if section.kind is SectionKind.CARD:
                continue
            with writer.section(section.kind) as stream:
                for start in range(0, section.bytes, _COPY_BYTES):
                    stream.write(image.bytes_at(section.offset + start, min(_COPY_BYTES, section.bytes - start)))
        writer.add(SectionKind.CARD, card)
    return writer.image_bytes, writer.image_id.hex()
