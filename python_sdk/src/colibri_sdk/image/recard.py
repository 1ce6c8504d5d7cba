# SPDX-License-Identifier: Apache-2.0
"""Puts other sections into an image that is whole: what can only be known of a finished image, as its card or the
experts to keep cached."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from colibri_sdk.errors import UsageError
from colibri_sdk.image.layout import SectionKind
from colibri_sdk.image.reader import ImageFile
from colibri_sdk.image.writer import ImageWriter

_COPY_BYTES = 1 << 20


def replace_card(path: Path, card: bytes) -> tuple[int, str]:
    """Replaces the card of the image `path`; see replace_sections."""
    return replace_sections(path, {SectionKind.CARD: card})


def replace_sections(path: Path, contents: Mapping[SectionKind, bytes]) -> tuple[int, str]:
    """Replaces sections of the image `path`. The others stay, byte for byte, but for page 0, and but for the signature,
    which no longer fits: the image must be signed again.

    Returns the image's new length and identity. As with packing, the image is replaced at once or not at all. An image
    with experts that were replaced in the field is refused, because they belong to the old identity.
    """
    with ImageFile(path) as image:
        if len(image.updates):
            raise UsageError(
                f"{path.name} holds {len(image.updates)} experts that were replaced in the field, and would lose them",
                "Use the image that was packed.",
            )
        with ImageWriter(path, image.model_name) as writer:
            for section in image.sections.values():
                if section.kind is SectionKind.SIGNATURE:
                    writer.add_own_sections(len(image.experts))
                elif section.kind in contents:
                    writer.add(section.kind, contents[section.kind])
                elif section.kind is not SectionKind.UPDATES:
                    with writer.section(section.kind) as stream:
                        for start in range(0, section.bytes, _COPY_BYTES):
                            stream.write(
                                image.bytes_at(section.offset + start, min(_COPY_BYTES, section.bytes - start))
                            )
    return writer.image_bytes, writer.image_id.hex()
