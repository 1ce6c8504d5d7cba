# SPDX-License-Identifier: Apache-2.0
"""Replaces one expert of the model that a device runs, while it goes on answering."""

from __future__ import annotations

import contextlib
import mmap
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from colibri_sdk.errors import DeviceError, ImageError, UsageError
from colibri_sdk.image.kinds import PACKAGE_MAGIC
from colibri_sdk.image.layout import MAGIC, PAGE, UPDATE
from colibri_sdk.image.reader import ImageFile, no_such_expert
from colibri_sdk.signing import check_board_name
from colibri_sdk.status import Status
from colibri_sdk.update.calls import UpdateCalls, require_medium
from colibri_sdk.update.content import Content, Range, differing, pieces_to_send
from colibri_sdk.update.messages import Begun, DirectoryEntry

if TYPE_CHECKING:
    from colibri_sdk.convert.progress import Progress
    from colibri_sdk.device import Device
    from colibri_sdk.update.signer import Signer

# The highest generation that an expert can have.
MAX_GENERATION = 2**32 - 1
# How long the replacement before this one may take to come into effect: a token, on the slowest board.
_EFFECT_SECONDS = 60.0
_EFFECT_POLL_SECONDS = 0.2


@dataclass(frozen=True)
class ExpertUpdate:
    """What became of an update. Of the blob's `bytes`, `sent_bytes` travelled and `kept_bytes` lay there already."""

    layer: int
    expert: int
    generation: int
    image_id: str
    bytes: int
    sent_bytes: int
    kept_bytes: int
    seconds: float
    unchanged: bool  # the device held that very expert, and nothing was done


@contextlib.contextmanager
def expert_content(path: Path, layer: int, expert: int) -> Iterator[Content]:
    """The blob in `path`: of an image the expert of that place, any other file as a whole.

    UsageError when it cannot be read, has no such expert, or is no whole number of pages; ImageError when the expert is
    not what its image states: whoever gets it would check it against what it was sent as."""
    try:
        with path.open("rb") as file:
            magic = file.read(len(MAGIC))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", "Name an image or a file with a blob.") from error
    if magic == PACKAGE_MAGIC:
        raise UsageError(
            f"{path} is an update already, made by `update sign`", "Send it as it is, or give what it was made of."
        )
    if magic == MAGIC:
        with ImageFile(path) as image:
            place = image.place(image.expert_index(layer, expert))
            content = Content(lambda at, count: image.bytes_at(place.offset + at, count), place.size)
            if content.digest != place.digest:
                name = f"expert {layer}/{expert}"
                raise ImageError(
                    f"{path.name} is damaged: {name} has another digest than is stated",
                    "Pack the model again, or copy the file again.",
                    status=Status.E_IMAGE_CHECKSUM,
                    where=name,
                )
            yield content
        return
    size = path.stat().st_size
    if size == 0 or size % PAGE:
        raise UsageError(
            f"{path} has {size} bytes: neither an image nor an expert's blob, which has whole pages of {PAGE}",
            "Give an image whose expert is to be taken: pack one with `colibri-sdk pack`.",
        )
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        yield Content(lambda at, count: data[at : at + count], size)


def check_relation(path: Path, *, architecture: str, quantisation: str, hidden: int, whose: str) -> None:
    """An expert of another kind of model may have the right length and is still nonsense: UsageError then.

    `path`: what `expert_content` takes; a blob alone says nothing of itself. The rest is of `whose` model."""
    with path.open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            return
    with ImageFile(path) as image:
        found = {
            "architecture": (image.architecture, architecture),
            "quantisation": (image.quantisation, quantisation),
            "hidden size": (int(image.model["hidden"]), hidden),
        }
    for what, (given, wanted) in found.items():
        if given != wanted:
            raise UsageError(
                f"{path.name} has {what} {given}, {whose} has {wanted}: their experts cannot be exchanged",
                "Pack the checkpoint as that model was packed.",
            )


def describe_update(
    content: Content, layer: int, expert: int, *, generation: int, image_id: str, counter: int = 0, board: str = ""
) -> bytes:
    """The struct col_update of a blob, unsigned. `image_id`: of the image it is made for, hexadecimal."""
    check_board_name(board)
    record = np.zeros((), UPDATE)
    record["bytes"] = content.bytes
    record["layer"], record["expert"], record["generation"] = layer, expert, generation
    record["crc32"] = content.crc(Range(0, content.bytes))
    record["counter"], record["board"] = counter, board.encode()
    record["image_id"] = np.void(bytes.fromhex(image_id))
    record["digest"] = np.void(content.digest)
    return record.tobytes()


def update_expert(
    device: Device,
    content: Content,
    layer: int,
    expert: int,
    *,
    progress: Progress,
    signer: Signer | None = None,
    prepared: bytes | None = None,
) -> ExpertUpdate:
    """Sends `content` as the expert of that place and has it take effect, between two tokens.

    signer: signs the update on its own terms, for boards that ask for that; UsageError where the device wants others.
    prepared: a struct col_update that was made elsewhere, signed or not; it is sent as it is.
    With neither the update is unsigned and has counter 0: only boards without a key take it, which look at no counter.
    What an earlier, interrupted attempt has brought does not travel again. Raises DeviceError with the device's reason,
    LinkLostError when the line breaks; the old expert is in effect then.
    """
    start = time.monotonic()
    calls = UpdateCalls(device)
    status, info = calls.wait_settled(progress), device.info()
    require_medium(status)
    entry = find_expert(calls.directory(), layer, expert)
    if signer is not None:
        signer.check(info.board, status.counter)
    if prepared is None:
        if entry.generation >= MAX_GENERATION:
            raise UsageError(
                f"the device says that expert {layer}/{expert} has been replaced {entry.generation} times: there is no "
                "generation left",
                "Replace the model as a whole: `colibri-sdk update model`, or `flash`.",
            )
        update = describe_update(content, layer, expert, generation=entry.generation + 1, image_id=info.image_id)
        update = signer.update(update, info.board) if signer else update
    else:
        update = prepared
    record = np.frombuffer(update, UPDATE)[0]
    generation, image_id = int(record["generation"]), bytes(record["image_id"]).hex()

    def result(sent: int, *, unchanged: bool = False) -> ExpertUpdate:
        kept = content.bytes - sent
        return ExpertUpdate(
            layer=layer,
            expert=expert,
            generation=entry.generation if unchanged else generation,
            image_id=image_id,
            bytes=content.bytes,
            sent_bytes=sent,
            kept_bytes=kept,
            seconds=time.monotonic() - start,
            unchanged=unchanged,
        )

    if bytes(record["digest"]) == entry.digest:
        return result(0, unchanged=True)
    if content.bytes != entry.size:
        raise UsageError(
            f"expert {layer}/{expert} of the device's model has {entry.size} bytes, the new one {content.bytes}",
            "Pack the checkpoint as that model was packed.",
        )
    begun = _begin(calls, update)
    if begun.target_bytes != content.bytes:
        raise UsageError(
            f"the update is for a blob of {begun.target_bytes} bytes, the file has {content.bytes}",
            "Give the file that the update was made for.",
        )
    missing = differing(
        content, lambda part: calls.crc(part.start, part.bytes), [Range(0, content.bytes)], lambda _: None
    )
    total = sum(part.bytes for part in missing)
    sent = 0
    for count in calls.send(pieces_to_send(content, missing)):
        sent += count
        progress.update(sent, total, "")
    calls.commit(progress)
    return result(sent)


def find_expert(directory: list[DirectoryEntry], layer: int, expert: int) -> DirectoryEntry:
    """The entry of that place. UsageError says what there is."""
    for entry in directory:
        if (entry.layer, entry.expert) == (layer, expert):
            return entry
    raise no_such_expert("the device's model", Counter(entry.layer for entry in directory), layer, expert)


def _begin(calls: UpdateCalls, update: bytes) -> Begun:
    """Waits while the replacement before this one has not come into effect."""
    give_up = time.monotonic() + _EFFECT_SECONDS
    while True:
        try:
            return calls.begin_expert(update)
        except DeviceError as error:
            # The usual advice is about counters, and about images.
            if error.status == Status.E_COUNTER and error.where == "generation":
                error.hint = f"Make it anew, with `colibri-sdk update sign --generation {error.wanted}` or higher."
            elif error.status == Status.E_SIGNATURE:
                error.hint = "Sign it on the way, with --key, or where the key is: `colibri-sdk update sign --key`."
            if error.status != Status.E_BUSY or error.where != "engine" or time.monotonic() > give_up:
                raise
        time.sleep(_EFFECT_POLL_SECONDS)
