# SPDX-License-Identifier: Apache-2.0
"""Bodies of the update requests, against bytes made by hand from PROTOCOL.md, and the calls that send them."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from colibri_sdk.link.messages import MalformedError, Reader, Type
from colibri_sdk.update import messages
from colibri_sdk.update.calls import UpdateCalls
from colibri_sdk.update.messages import (
    Begun,
    Confirmed,
    RolledBack,
    UpdateKind,
    UpdateState,
    UpdateStatus,
    Where,
    read_directory,
)

RUNTIME = Path(__file__).resolve().parents[2] / "firmware" / "runtime"


def test_status() -> None:
    body = struct.pack("<8B", 2, 1, 2, 1, 1, 1, 2, 0)
    body += struct.pack("<IIIi", 1, 3, 5, -20)
    body += struct.pack("<6I", 4, 14, 1, 7, 9, 0)
    body += struct.pack("<6Q", 11, 12, 13, 14, 15, 16)
    body += bytes(range(16)) + bytes(16)
    assert UpdateStatus.read(Reader(body)) == UpdateStatus(
        state=UpdateState.WORKING,
        kind=UpdateKind.EXPERT,
        slots=2,
        writable=True,
        running=1,
        active=1,
        trial=2,
        tries_left=1,
        tries=3,
        last_result=5,
        last_status=-20,
        updates=4,
        updates_max=14,
        free_places=1,
        layer=7,
        expert=9,
        updates_sequence=11,
        counter=12,
        target_bytes=13,
        done=14,
        total=15,
        slot_bytes=16,
        image_ids=(bytes(range(16)).hex(), ""),
    )
    for cut in range(len(body)):
        with pytest.raises(MalformedError):
            UpdateStatus.read(Reader(body[:cut]))


def test_results() -> None:
    assert Begun.read(Reader(struct.pack("<QQ8B", 8192, 4096, 1, *[0] * 7))) == Begun(8192, 4096, True)
    assert Confirmed.read(Reader(struct.pack("<8BQ", 2, *[0] * 7, 9))) == Confirmed(2, 9)
    assert RolledBack.read(Reader(bytes([1, 0, 1, 0, 0, 0, 0, 0]))) == RolledBack(True, False, True)
    entry = struct.pack("<4I2Q", 1, 2, 3, 4, 5 << 32, 6) + bytes(range(32))
    total, (found,) = read_directory(Reader(struct.pack("<II", 70, 1) + entry))
    assert (total, found.layer, found.expert, found.generation, found.crc32) == (70, 1, 2, 3, 4)
    assert (found.offset, found.size, found.digest) == (5 << 32, 6, bytes(range(32)))


def test_requests() -> None:
    assert messages.pack_begin_expert(b"u" * 256) == struct.pack("<II", 1, 0) + b"u" * 256
    begin = messages.pack_begin_model(b"p" * 4096, b"s" * 256, 5)
    assert begin == struct.pack("<II", 2, 5) + b"p" * 4096 + b"s" * 256
    assert messages.pack_data(1 << 40, b"data") == struct.pack("<Q", 1 << 40) + b"data"
    assert messages.pack_copy(1, 2, 3) == struct.pack("<QQQ", 1, 2, 3)
    assert messages.pack_crc(Where.RUNNING_IMAGE, 1 << 33, 512) == struct.pack("<IIQQ", 1, 0, 1 << 33, 512)


@pytest.mark.parametrize(
    ("enum", "prefix"),
    [(UpdateKind, "UPDATE_"), (UpdateState, "UPDATE_"), (Where, "UPDATE_")],
    ids=["update_kind", "update_state", "update_where"],
)
def test_numbers_are_those_of_the_firmware(
    enum: type[UpdateKind] | type[UpdateState] | type[Where], prefix: str, request: pytest.FixtureRequest
) -> None:
    text = (RUNTIME / "messages.h").read_text()
    body = re.search(rf"enum {request.node.callspec.id} {{([^}}]*)}}", text)
    assert body is not None
    stated = dict(re.findall(r"(\w+) = (\d+)", body.group(1)))
    assert stated == {prefix + one.name: str(one.value) for one in enum}


class Recorder:
    """Answers as told, and keeps what it was asked."""

    def __init__(self, *answers: bytes) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[int, bytes]] = []
        self.ahead = 0

    def request(self, kind: Type, body: bytes = b"", *, meanwhile: Callable[[], object] | None = None) -> bytes:
        self.asked.append((kind, body))
        return self.answers.pop(0)

    def requests(self, kind: Type, bodies: Iterable[bytes], *, ahead: int) -> Iterator[bytes]:
        """As a Device: some are on the way before the first answer comes."""
        self.ahead = ahead
        waiting = 0
        for body in bodies:
            if waiting == ahead:
                yield b""
                waiting -= 1
            self.asked.append((kind, body))
            waiting += 1
        yield from [b""] * waiting


def test_data_is_sent_ahead_of_its_answers_and_counted_as_it_is_answered() -> None:
    recorder = Recorder()
    pieces = [(4096 * index, bytes([index]) * (512 + index)) for index in range(10)]
    assert list(UpdateCalls(recorder).send(pieces)) == [len(data) for _, data in pieces]
    assert recorder.asked == [(13, struct.pack("<Q", offset) + data) for offset, data in pieces]
    # One message is 4,120 bytes in the device's inbox of 20,552 (link.h); more than its room would only wait.
    assert 1 < recorder.ahead <= 20_552 // (4096 + 8 + 8 + 8)


def test_the_directory_is_asked_for_until_it_is_whole() -> None:
    def part(total: int, *experts: int) -> bytes:
        entries = [struct.pack("<4I2Q", 0, expert, 0, 0, 0, 4096) + bytes(32) for expert in experts]
        return struct.pack("<II", total, len(experts)) + b"".join(entries)

    recorder = Recorder(part(3, 0, 1), part(3, 2))
    assert [entry.expert for entry in UpdateCalls(recorder).directory()] == [0, 1, 2]
    assert recorder.asked == [(17, struct.pack("<I", first)) for first in (0, 2)]
    assert UpdateCalls(Recorder(part(0))).directory() == []
    assert len(UpdateCalls(Recorder(part(9, 0), part(9))).directory()) == 1  # no endless asking
