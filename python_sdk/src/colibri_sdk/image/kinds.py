# SPDX-License-Identifier: Apache-2.0
"""What a file is that was given in an image's place, by its first bytes: errors name it, and the command it is for."""

from __future__ import annotations

from pathlib import Path

from colibri_sdk.errors import ImageError, UsageError
from colibri_sdk.image.layout import MAGIC
from colibri_sdk.status import Status

HEAD_BYTES = 512
_MARK = slice(510, 512)  # of a partition table

PACKAGE_MAGIC = b"COLIPKG\x1a"  # update/package.py
VOLUME_MAGIC = b"COLIVOL\x1a"  # flash/volume.py
_CARD = "Name the image that was written to it; `colibri-sdk update … --card` takes a card."
_SEND = "Send it with `colibri-sdk update expert`; `colibri-sdk keys verify` says what it is."
_OTHERS = (
    (PACKAGE_MAGIC, "an update of one expert", _SEND),
    (VOLUME_MAGIC, "the content of a card's model partition", _CARD),
    (b"GGUF", "a GGUF file", "Let its name end in .gguf, or pack it: `colibri-sdk pack`."),
    (b"PK\x03\x04", "a ZIP archive, as traces are", "A trace is for `colibri-sdk plan IMAGE --profile`."),
)


def wrong_kind(path: Path, head: bytes) -> ImageError:
    """The error for a file that is no image; `head`: its first HEAD_BYTES, or all."""
    what, hint = f"it begins with {head[:8]!r}", "Make one with `colibri-sdk pack`."
    status = Status.E_IMAGE_MAGIC
    if not head:
        what, status = "it is empty", Status.E_IMAGE_SIZE
    elif head[_MARK] == b"\x55\xaa":
        what, hint = "it is a card or disk with partitions", _CARD
    for magic, kind, advice in _OTHERS:
        if head.startswith(magic):
            what, hint = f"it is {kind}", advice
    return ImageError(f"{path.name} is no Colibri image: {what}", hint, status=status, where="header")


def require_image(path: Path) -> None:
    """Looks at the first bytes alone. ImageError when it is another kind of file, UsageError when it cannot be read."""
    try:
        with path.open("rb") as file:
            head = file.read(HEAD_BYTES)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}", "Name a .colibri image.") from error
    if not head.startswith(MAGIC):
        raise wrong_kind(path, head)
