# SPDX-License-Identifier: Apache-2.0
"""What a written card holds, found as a board's firmware finds it (firmware/runtime/volume.c, boot.c)."""

from __future__ import annotations

from pathlib import Path

from colibri_sdk.errors import ImageError, UsageError
from colibri_sdk.flash import volume
from colibri_sdk.flash.card import MODEL_TYPE, read_partitions
from colibri_sdk.image.layout import MAGIC
from colibri_sdk.image.reader import ImageFile
from colibri_sdk.image.signature import Signature


def signatures(card: Path) -> list[Signature]:
    """Those of the images that the next start may choose: the active one, and one on trial. Without a signature they
    are in the list too, unreadable ones are not. FlashError when it cannot be told which are on the card."""
    found = []
    for start in _starts(card):
        try:
            with ImageFile(card, start=start) as image:
                found.append(image.signature)
        except ImageError:  # no start is possible from there
            continue
    return found


def _starts(card: Path) -> list[int]:
    """Where these images begin; bytes from the start of the card."""
    try:
        with card.open("rb") as file:
            magic = file.read(len(MAGIC))
            start = 0
            if magic not in (MAGIC, volume.VOLUME_MAGIC):
                parts = [part.start for part in read_partitions(card) if part.type == MODEL_TYPE]
                if not parts:
                    return []
                start = parts[0]
            slots = volume.read(file, start, card.name)
    except OSError as error:
        raise UsageError(f"{card} cannot be read: {error.strerror or error}", "Name a card image or a disk.") from error
    if slots is None:
        return [start]
    places, state = slots
    chosen = [state.active] if state.trial is None else [state.active, state.trial]
    return [start + places.slot_offsets[slot] for slot in chosen]
