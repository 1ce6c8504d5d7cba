# SPDX-License-Identifier: Apache-2.0
"""A device's update requests as calls. Data is sent ahead of its answers, so that a slow line never waits for them."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Protocol

from colibri_sdk.errors import UsageError
from colibri_sdk.link.messages import Reader, Type
from colibri_sdk.update import messages
from colibri_sdk.update.messages import Begun, Confirmed, DirectoryEntry, RolledBack, UpdateState, UpdateStatus, Where

if TYPE_CHECKING:
    from colibri_sdk.convert.progress import Progress

# Unanswered UPDATE_DATA: a device has room for 20 KB of messages (LINK_INBOX), these are 16 KB.
DATA_AHEAD = 4
_POLL_SECONDS = 0.5


class Requests(Protocol):
    """What sends requests: a Device, or in tests something that plays one."""

    def request(self, kind: Type, body: bytes = b"", *, meanwhile: Callable[[], object] | None = None) -> bytes:
        """The body of the request's result; `meanwhile` is called now and then until it comes."""

    def requests(self, kind: Type, bodies: Iterable[bytes], *, ahead: int) -> Iterator[bytes]:
        """The results' bodies, in order; at most `ahead` requests have no answer yet."""


def require_medium(status: UpdateStatus) -> None:
    """UsageError where the device's model does not come from a medium: this machine's board maps a file by itself."""
    if status.slots == 0:
        raise UsageError(
            "the device's model lies on no medium that could be updated",
            "This machine's board takes updates of a card: --card FILE. Emulated boards have one: --board NAME.",
        )


class UpdateCalls:
    """The requests 11 to 19. Each raises what Device raises: DeviceError with the device's reason, LinkLostError."""

    def __init__(self, device: Requests) -> None:
        self._device = device

    def status(self) -> UpdateStatus:
        return UpdateStatus.read(Reader(self._device.request(Type.UPDATE_STATUS)))

    def begin_expert(self, update: bytes) -> Begun:
        """Opens the update of one expert; `update`: its struct col_update."""
        return Begun.read(Reader(self._device.request(Type.UPDATE_BEGIN, messages.pack_begin_expert(update))))

    def begin_model(self, page: bytes, signature: bytes, tries: int = 0) -> Begun:
        """Opens the update of the model; `page` and `signature` are the new image's."""
        body = messages.pack_begin_model(page, signature, tries)
        return Begun.read(Reader(self._device.request(Type.UPDATE_BEGIN, body)))

    def send(self, pieces: Iterable[tuple[int, bytes]]) -> Iterator[int]:
        """Writes (offset, data) into the target; yields the length of each piece when the device has written it."""
        lengths: list[int] = []

        def bodies() -> Iterator[bytes]:
            for offset, data in pieces:
                lengths.append(len(data))
                yield messages.pack_data(offset, data)

        for _ in self._device.requests(Type.UPDATE_DATA, bodies(), ahead=DATA_AHEAD):
            yield lengths.pop(0)

    def copy(self, source: int, target: int, size: int) -> int:
        """Copies from the running image's file into the target; the CRC-32 of the bytes."""
        return Reader(self._device.request(Type.UPDATE_COPY, messages.pack_copy(source, target, size))).number("I")

    def crc(self, offset: int, size: int, where: Where = Where.TARGET) -> int:
        """The CRC-32 of what lies on the medium."""
        return Reader(self._device.request(Type.UPDATE_CRC, messages.pack_crc(where, offset, size))).number("I")

    def commit(self, progress: Progress) -> int:
        """Has the target checked and makes it count; the sequence number of the list or state that changed."""
        result = self._device.request(Type.UPDATE_COMMIT, meanwhile=lambda: self._show_work(progress))
        return Reader(result).number("Q")

    def wait_settled(self, progress: Progress) -> UpdateStatus:
        """The status when the device is no longer at work on a request whose session was lost."""
        while True:
            status = self._show_work(progress)
            if status.state != UpdateState.WORKING:
                return status
            time.sleep(_POLL_SECONDS)

    def _show_work(self, progress: Progress) -> UpdateStatus:
        status = self.status()
        if status.state == UpdateState.WORKING:
            progress.update(status.done, status.total, "checking")
        return status

    def confirm(self) -> Confirmed:
        return Confirmed.read(Reader(self._device.request(Type.UPDATE_CONFIRM)))

    def rollback(self) -> RolledBack:
        return RolledBack.read(Reader(self._device.request(Type.UPDATE_ROLLBACK)))

    def directory(self) -> list[DirectoryEntry]:
        """All experts of the running image, by layer, then by expert; empty for a dense model."""
        found: list[DirectoryEntry] = []
        while True:
            body = self._device.request(Type.DIRECTORY, struct.pack("<I", len(found)))
            total, entries = messages.read_directory(Reader(body))
            found += entries
            if len(found) >= total or not entries:
                return found
