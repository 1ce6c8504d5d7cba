# SPDX-License-Identifier: Apache-2.0
"""Status codes: `enum colibri_status` of colibri.h, what to try at each, and the exception that stands for it.

A test holds the numbers against the enum in the compiled library's debug information.
"""

from __future__ import annotations

from enum import IntEnum

from colibri_sdk.errors import DeviceError, ImageError


class Status(IntEnum):
    """enum colibri_status, without its prefix."""

    OK = 0
    E_INTERNAL = -1
    E_ARGUMENT = -2
    E_ARENA_SIZE = -3
    E_ARENA_ALIGN = -4
    E_IMAGE_SIZE = -5
    E_IMAGE_MAGIC = -6
    E_IMAGE_VERSION = -7
    E_IMAGE_CHECKSUM = -8
    E_IMAGE_SECTION = -9
    E_IMAGE_DIMENSION = -10
    E_IMAGE_NUMBER = -11
    E_IMAGE_EXPERT = -12
    E_IMAGE_TOKENIZER = -13
    E_IMAGE_UNSUPPORTED = -14
    E_CONTEXT_FULL = -15
    E_TOKEN_RANGE = -16
    E_TEXT_SIZE = -17
    E_NUMERIC = -18
    E_CANCELLED = -19
    E_KERNELS_UNKNOWN = -20
    E_KERNELS_WRONG = -21
    E_BUFFER_SIZE = -22
    E_NO_PROMPT = -23
    E_NO_MODEL = -40
    E_MODEL_TOO_LARGE = -41
    E_STORAGE = -42
    E_STORAGE_EMPTY = -43
    E_BUSY = -44
    E_REQUEST = -45
    E_REQUEST_UNKNOWN = -46
    E_LINK_VERSION = -47
    E_TRAP = -48
    E_WATCHDOG = -49
    E_LOADING = -50
    E_EXPERT_CHECKSUM = -51
    E_SIGNATURE = -52
    E_COUNTER = -53
    E_OTHER_BOARD = -54
    E_UPDATE_STATE = -55
    E_UPDATE_PLACE = -56
    E_UPDATE_BASE = -57
    E_READ_ONLY = -58


_PACK_AGAIN = "Pack the model again with `colibri-sdk pack`, and write it again."
_VERSIONS = "Build and flash the firmware again, so that both sides are of one version."
_BUG = "This is a bug: please report it, with the image's name and the request."

_HINTS = {
    Status.E_INTERNAL: _BUG,
    Status.E_ARGUMENT: "Check the sampling parameters: temperature 0 to 100, top-p 0 to 1, repetition penalty >= 0.",
    Status.E_ARENA_SIZE: "Ask `colibri-sdk plan` for the size, and give that much.",
    Status.E_ARENA_ALIGN: "Align the arena and the image to 64 bytes.",
    Status.E_IMAGE_SIZE: _PACK_AGAIN,
    Status.E_IMAGE_MAGIC: "Make an image from a checkpoint with `colibri-sdk pack`.",
    Status.E_IMAGE_VERSION: "Pack the model again with this SDK, and flash firmware of the same version.",
    Status.E_IMAGE_CHECKSUM: "The file or the card is damaged: copy or flash the image again.",
    Status.E_IMAGE_SECTION: _PACK_AGAIN,
    Status.E_IMAGE_DIMENSION: _PACK_AGAIN,
    Status.E_IMAGE_NUMBER: "The checkpoint holds a NaN or an infinity: check its weights.",
    Status.E_IMAGE_EXPERT: _PACK_AGAIN,
    Status.E_IMAGE_TOKENIZER: _PACK_AGAIN,
    Status.E_IMAGE_UNSUPPORTED: _VERSIONS,
    Status.E_CONTEXT_FULL: "Shorten the prompt, or pack the model with a larger --context.",
    Status.E_TOKEN_RANGE: "Use token ids of this model's tokenizer.",
    Status.E_TEXT_SIZE: "Shorten the text.",
    Status.E_NUMERIC: "The weights may be damaged: check the image with `colibri-sdk inspect --verify`.",
    Status.E_CANCELLED: "Ask again.",
    Status.E_KERNELS_UNKNOWN: "Leave the kernels' choice to the device, or use `scalar`, which every build has.",
    Status.E_KERNELS_WRONG: "Use `scalar` kernels, and report the processor and the failed operation.",
    Status.E_BUFFER_SIZE: "Give a larger buffer.",
    Status.E_NO_PROMPT: "Give a prompt.",
    Status.E_NO_MODEL: "Write a model to the device with `colibri-sdk flash`.",
    Status.E_MODEL_TOO_LARGE: "Read experts from the card (--store block), keep fewer (--cache-slots), raise "
    "--memory-limit, or pack with a smaller --quant or --context: `colibri-sdk plan --board` says what fits.",
    Status.E_STORAGE: "Check the card or disk: is it inserted, and does it work elsewhere?",
    Status.E_STORAGE_EMPTY: "Write a card with `colibri-sdk flash`.",
    Status.E_BUSY: "Finish, cancel or close the running request first.",
    Status.E_REQUEST: _VERSIONS,
    Status.E_REQUEST_UNKNOWN: _VERSIONS,
    Status.E_LINK_VERSION: _VERSIONS,
    Status.E_TRAP: "Restart the device; report the address and the registers.",
    Status.E_WATCHDOG: "Restart the device; report the address and the registers.",
    Status.E_LOADING: "Wait until the model is loaded: `Device.info().state` says so.",
    Status.E_EXPERT_CHECKSUM: "Ask again; if it comes back, the card is damaged there: write that expert again with "
    "`colibri-sdk update expert`, or the whole image with `colibri-sdk flash`.",
    Status.E_SIGNATURE: "Sign it with `colibri-sdk keys sign` and the key that belongs to the firmware's public key.",
    Status.E_COUNTER: "Sign it again with a higher --counter; `colibri-sdk update status` shows the device's.",
    Status.E_OTHER_BOARD: "Sign it again with this board's name as --board, or without --board for any board.",
    Status.E_UPDATE_STATE: "Ask `colibri-sdk update status` what the device is doing, and start the update again.",
    Status.E_UPDATE_PLACE: "Pack with a --spare place for each length of experts; for models, flash with --slots 2.",
    Status.E_UPDATE_BASE: "Make the update for the image that the device runs: `colibri-sdk update status` names it.",
    Status.E_READ_ONLY: "Take off the card's write protection, or write it elsewhere with `colibri-sdk flash`.",
}

# With these `where` says it all: got is no, wanted yes.
_YES_OR_NO = {Status.E_SIGNATURE, Status.E_OTHER_BOARD, Status.E_UPDATE_BASE, Status.E_UPDATE_STATE}


def status_name(status: int) -> str:
    """A status as people read it: "image checksum"."""
    try:
        return Status(status).name.removeprefix("E_").lower().replace("_", " ")
    except ValueError:
        return f"status {status}"


def hint(status: int) -> str:
    """What to try when this status comes; empty for OK and for codes that this version does not know."""
    try:
        return _HINTS.get(Status(status), "")
    except ValueError:
        return ""


def failure(status: int, sentence: str, *, subject: str, where: str, got: int, wanted: int) -> DeviceError | ImageError:
    """The exception of a negative status: ImageError where the image is at fault or for another board, DeviceError
    where the device refuses.

    `subject` names what was worked on; `where`, `got` and `wanted` are the device's struct colibri_detail.
    """
    advice = hint(status)
    if status == Status.E_IMAGE_UNSUPPORTED and not where:  # what an image holds, all else, is named
        sentence, advice = (
            "the model has no tokenizer, and a text needs one",
            "Give token ids, or pack one with its own.",
        )
    message = f"{subject}: {sentence}"
    if where:
        message += f" ({where}{_numbers(status, got, wanted)})"
    of_image = Status.E_IMAGE_UNSUPPORTED <= status <= Status.E_IMAGE_SIZE or status == Status.E_OTHER_BOARD
    kind = ImageError if of_image else DeviceError
    return kind(message, advice, status=status, where=where, got=got, wanted=wanted)


def _numbers(status: int, got: int, wanted: int) -> str:
    if status in _YES_OR_NO and (got, wanted) == (0, 1):
        return ""
    if status == Status.E_MODEL_TOO_LARGE:
        return f": {got} bytes, of {wanted} that may be used"
    return f": {got}, wanted {wanted}"
