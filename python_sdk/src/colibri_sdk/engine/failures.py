# SPDX-License-Identifier: Apache-2.0
"""From the engine's status codes to exceptions."""

from __future__ import annotations

from colibri_sdk.errors import ColibriError, DeviceError, ImageError
from colibri_sdk.status import Status, hint

_IMAGE = range(Status.E_IMAGE_UNSUPPORTED, Status.E_IMAGE_SIZE + 1)


def failure(status: int, sentence: str, *, subject: str, where: str, got: int, wanted: int) -> ColibriError:
    """The exception of a negative status: ImageError where the image is at fault, DeviceError where the engine refuses.

    `subject` names what was worked on; `where`, `got` and `wanted` are the engine's struct colibri_detail.
    """
    message = f"{subject}: {sentence}"
    if where:
        message += f" ({where}: {got}, wanted {wanted})"
    kind = ImageError if status in _IMAGE else DeviceError
    return kind(message, hint(status), status=status, where=where, got=got, wanted=wanted)
