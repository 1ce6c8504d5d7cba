# SPDX-License-Identifier: Apache-2.0
"""A host that stood still for a while, suspended or short of processor time: it said that the device had been silent,
with the answer on the line; and it closed a line that its own thread was still about to read."""

from __future__ import annotations

import struct
import threading
import time
from collections import deque
from types import SimpleNamespace

import pytest

from colibri_sdk.errors import LinkLostError, LinkTimeoutError
from colibri_sdk.link import session as sessions
from colibri_sdk.link.frames import Deframer, Frame, Kind, encode
from colibri_sdk.link.messages import Type
from colibri_sdk.link.session import Session
from colibri_sdk.link.transport import Transport

TIMEOUT = 60.0
HELLO = struct.pack("<BBHIBBHiQQ16s", 2, 2, 512, 4096, 1, 0, 0, 0, 0, 0, b"") + b"\4\0fake" + b"\1\0" + b"1"


class Answering(Transport):
    """A device that answers each request with its body. The host stands still when it has sent one."""

    name = "played"

    def __init__(self) -> None:
        self.stands_still = lambda: None
        self._deframer = Deframer()
        self._answers: deque[bytes] = deque()
        self._woken = threading.Event()
        self._sent = 0

    def exchange(self, out: bytes, timeout: float) -> bytes:
        there = self._answers.popleft() if self._answers else b""
        for frame in self._deframer.feed(out):
            assert isinstance(frame, Frame)
            self._take(frame)
        if not out and not there:
            self._woken.wait(min(timeout, 0.01))
            self._woken.clear()
        return there

    def _take(self, frame: Frame) -> None:
        if frame.kind == Kind.SYN:
            self._answers.append(encode(Frame(Kind.SYN_ACK, credit=8, session=frame.session, payload=HELLO)))
        elif frame.kind == Kind.DATA:
            kind, _, number = struct.unpack_from("<HHI", frame.payload)
            if kind != Type.STATS:  # which it never answers
                answer = struct.pack("<HHI", Type.RESULT + kind, 0, number) + frame.payload[8:]
                self._answers.append(encode(Frame(Kind.DATA, self._sent, frame.seq + 1, 8, frame.session, answer)))
                self._sent += 1
            self.stands_still()

    @property
    def pending(self) -> int:
        return 0

    def wake(self) -> None:
        self._woken.set()

    def close(self) -> None:
        pass


def test_an_answer_that_came_meanwhile_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    stood_still = 0.0

    def stand_still() -> None:
        nonlocal stood_still
        stood_still += 10 * TIMEOUT

    monkeypatch.setattr(sessions, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + stood_still))
    line = Answering()
    session = Session(line, timeout=TIMEOUT, describe_fault=lambda _: LinkLostError("none"))
    session.open()
    line.stands_still = stand_still
    assert session.ask(Type.TOKENIZE, b"one") == b"one"
    assert session.ask(Type.TOKENIZE, b"two") == b"two"
    with pytest.raises(LinkTimeoutError, match="STATS"):
        session.ask(Type.STATS)
    session.close()


class Late(Transport):
    """Its thread is late: it reads until it is let go."""

    name = "late"

    def __init__(self) -> None:
        self.go, self.reads = threading.Event(), threading.Event()
        self.closed = False
        self.read_when_closed = False

    def exchange(self, out: bytes, timeout: float) -> bytes:
        self.reads.set()
        self.go.wait()
        self.read_when_closed |= self.closed
        return b""

    @property
    def pending(self) -> int:
        return 0

    def wake(self) -> None:
        """It does not come in time."""

    def close(self) -> None:
        self.closed = True


def test_a_line_is_not_closed_while_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its descriptors' numbers may be those of another file by then."""
    monkeypatch.setattr(sessions, "_CLOSE_SECONDS", 0.01)
    line = Late()
    session = Session(line, timeout=TIMEOUT, describe_fault=lambda _: LinkLostError("none"))
    line.reads.wait()
    session.close()
    line.go.set()
    session._thread.join()
    assert line.closed and not line.read_when_closed
