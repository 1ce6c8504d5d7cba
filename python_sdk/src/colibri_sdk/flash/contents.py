# SPDX-License-Identifier: Apache-2.0
"""What a written card holds, found as a board's firmware finds it (firmware/runtime/volume.c, boot.c)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from colibri_sdk.errors import ImageError, UsageError
from colibri_sdk.flash import volume
from colibri_sdk.flash.card import MODEL_TYPE, read_partitions
from colibri_sdk.image.layout import MAGIC
from colibri_sdk.image.reader import ImageFile


@dataclass(frozen=True)
class Signed:
    """Who signed something (16 bytes), and with which security counter."""

    key_id: bytes
    counter: int


def signed_models(card: Path) -> list[Signed]:
    """Of the images that the next start may choose, the active one and one on trial, those that are signed. `counter`
    is the lowest that a board still takes: the highest of the image, its replaced experts and the boot state.

    FlashError when it cannot be told what is on the card."""
    found = []
    starts, confirmed = _starts(card)
    for start in starts:
        try:
            with ImageFile(card, start=start) as image:
                if image.signature.signed:
                    counters = [confirmed, image.signature.counter, *(int(one["counter"]) for one in image.updates)]
                    found.append(Signed(image.signature.key_id, max(counters)))
        except ImageError:  # no start is possible from there
            continue
    return found


def _starts(card: Path) -> tuple[list[int], int]:
    """Where these images begin, bytes from the start of the card; and the boot state's security counter."""
    try:
        with card.open("rb") as file:
            magic = file.read(len(MAGIC))
            start = 0
            if magic not in (MAGIC, volume.VOLUME_MAGIC):
                parts = [part.start for part in read_partitions(card) if part.type == MODEL_TYPE]
                if not parts:
                    return [], 0
                start = parts[0]
            slots = volume.read(file, start, card.name)
    except OSError as error:
        raise UsageError(f"{card} cannot be read: {error.strerror or error}", "Name a card image or a disk.") from error
    if slots is None:
        return [start], 0
    places, state = slots
    chosen = [state.active] if state.trial is None else [state.active, state.trial]
    return [start + places.slot_offsets[slot] for slot in chosen], state.counter
