# SPDX-License-Identifier: Apache-2.0
"""Storages for engines on the host: where experts are read from when they are not used where they lie."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from colibri_sdk.engine.library import Library
from colibri_sdk.status import Status

PENDING = 1  # COLIBRI_PENDING
Digest = bytes  # in Read, `bytes` is a number


@dataclass(frozen=True)
class Read:
    """One read of an expert (struct colibri_read). `to` is the slot, as long as the read is under way."""

    offset: int
    bytes: int
    to: memoryview
    layer: int
    expert: int
    generation: int
    digest: Digest | None


class Storage(Protocol):
    """struct colibri_storage in Python. Statuses are 0 for success, PENDING, or negative."""

    depth: int

    def start(self, read: int, what: Read) -> int:
        """Begins read number `read`, which is below `depth` and not under way."""

    def check(self, read: int) -> tuple[int, int]:
        """Moves the read on: its status and, when that is 0, the CRC-32 of the bytes in the slot."""


def connect(library: Library, config: Any, storage: Storage, failed: Callable[[BaseException], None]) -> list[Any]:
    """Lets an engine of `config` read from `storage`; what it returns must live as long as the engine.

    An exception of the storage goes to `failed`, and the engine sees a failed read.
    """
    ffi = library.ffi

    def start(_user: Any, read: int, what: Any) -> int:
        try:
            digest = None if what.digest == ffi.NULL else bytes(ffi.buffer(what.digest, 32))
            to = memoryview(ffi.buffer(what.to, what.bytes))
            one = Read(what.offset, what.bytes, to, what.layer, what.expert, what.generation, digest)
            return storage.start(read, one)
        except BaseException as error:  # noqa: BLE001  (an exception cannot pass through C: it is raised later)
            failed(error)
            return Status.E_STORAGE

    def check(_user: Any, read: int, crc32: Any) -> int:
        try:
            status, crc32[0] = storage.check(read)
            return status
        except BaseException as error:  # noqa: BLE001  (an exception cannot pass through C: it is raised later)
            failed(error)
            return Status.E_STORAGE

    # Assigning a callback to a struct does not keep it alive.
    callbacks = [
        ffi.callback("colibri_status(void *, uint32_t, const struct colibri_read *)", start),
        ffi.callback("colibri_status(void *, uint32_t, uint32_t *)", check),
    ]
    config.storage.depth = storage.depth
    config.storage.start, config.storage.check = callbacks
    return callbacks
