# SPDX-License-Identifier: Apache-2.0
"""The host's end of sessions and reliability (PROTOCOL.md, sections 2 and 3) as a pure state machine.

It neither reads nor writes nor looks at a clock: bytes and times come in, bytes, events and the next deadline come
out. So it can be tested in virtual time, and one thread can serve it (session.py).
"""

from __future__ import annotations

import secrets
import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from colibri_sdk.link.frames import PAYLOAD_MAX, VERSION, Deframer, Frame, Kind, Noise, encode
from colibri_sdk.status import Status

WINDOW = 8
CREDIT = 32  # frames that we take at once; everything is taken, so any number up to 127 would do
MAX_MESSAGE = 1 << 28
UNKNOWN_BYTES_PER_SECOND = 5000.0  # slower than any line in use: an emulated UART takes 7 KB/s
SYN_REPEAT = 0.25
RESEND = 0.3
RESEND_MAX = 4.0
NAK_SPACING = 0.1
PING_AFTER = 1.0
STALE_FAULT = 0.4  # a device that has crashed answers each SYN; what comes earlier was on the line before
_SYN = struct.Struct("<BBHI")
_RST = struct.Struct("<iBB")
_HELLO_LIMITS = struct.Struct("<BBHI")


class State(Enum):
    CLOSED = "closed"
    OPENING = "opening"
    OPEN = "open"


@dataclass(frozen=True)
class Opened:
    """The device has accepted the session. `hello` is HELLO's result body."""

    hello: bytes


@dataclass(frozen=True)
class Message:
    """A whole message."""

    data: bytes


@dataclass(frozen=True)
class Lost:
    """The session has ended. `status` is the device's reason, 0 for none."""

    reason: str
    status: int = 0
    restarted: bool = False  # by a device that has just started


@dataclass(frozen=True)
class Fault:
    """The device has crashed. `data` is the payload of its FAULT frame."""

    data: bytes


Event = Opened | Message | Lost | Fault | Noise


@dataclass(frozen=True)
class _Piece:
    kind: Kind
    payload: bytes


def _draw_session() -> int:
    return secrets.randbelow(0xFFFFFFFF) + 1


class Peer:
    """The state machine. Not safe to be used by two threads at once."""

    def __init__(self, *, bytes_per_second: float | None = None, draw: Callable[[], int] = _draw_session) -> None:
        self.state = State.CLOSED
        self.expecting = False  # a request has no answer yet: look after the line
        self.heard = 0.0  # when the last valid frame came
        self.frames_resent = 0
        self._bytes_per_second = bytes_per_second or UNKNOWN_BYTES_PER_SECOND
        self._draw = draw
        self._session = 0
        self._deframer = Deframer()
        self._urgent: list[bytes] = []  # frames to go out before all others
        self._wrote = 0.0
        self._syn_time = float("-inf")
        self._open_time = 0.0
        self._max_message = 0
        self._payload_max = PAYLOAD_MAX
        self._clear()

    def _clear(self) -> None:
        self._expected = 0
        self._parts: list[bytes] = []
        self._parts_bytes = 0
        self._ack_due = False
        self._nak_due = False
        self._nak_sent = float("-inf")
        self._base = 0  # counts on and on; modulo 256 on the line
        self._sent = 0
        self._fresh = 0
        self._queue: deque[_Piece] = deque()  # from _base on
        self._credit = 0
        self._backoff = 0
        self._went_back = False  # a NAK was obeyed since _base moved or the timer ran out
        self._timer = 0.0

    # ------------------------------------------------------------------------------------------------ from above

    @property
    def session(self) -> int:
        return self._session

    @property
    def max_message(self) -> int:
        """Longest message that the device takes, in bytes; 0 before the first session."""
        return self._max_message

    def open(self, now: float) -> None:
        """Begins a new session; Opened or Lost will follow."""
        self._clear()
        self._session = self._draw()
        self.state = State.OPENING
        self._open_time = now
        self._syn_time = float("-inf")
        self.heard = now

    def close(self) -> None:
        """Ends the session; the next output says so to the device."""
        if self.state is not State.CLOSED:
            payload = _RST.pack(0, VERSION, VERSION)
            self._urgent.append(encode(Frame(Kind.RST, session=self._session, payload=payload)))
        self.state = State.CLOSED
        self._clear()

    def reboot_crashed(self) -> None:
        """Asks a device that has sent a FAULT to reset."""
        self._urgent.append(encode(Frame(Kind.REBOOT)))

    def send(self, message: bytes, now: float) -> None:
        """Queues a message. The session must be open and the message within the device's limit."""
        if self.state is not State.OPEN or len(message) > self._max_message:
            raise ValueError("no open session, or a message longer than the device takes")
        if not self._queue:
            self._timer = now
        size = self._payload_max
        pieces = [message[at : at + size] for at in range(0, len(message), size)]
        self._queue.extend(_Piece(Kind.MORE, piece) for piece in pieces[:-1])
        self._queue.append(_Piece(Kind.DATA, pieces[-1]))

    # ---------------------------------------------------------------------------------------------- from the line

    def feed(self, data: bytes, now: float) -> list[Event]:
        events: list[Event] = []
        for item in self._deframer.feed(data):
            if isinstance(item, Noise):
                self._nak_due = self.state is State.OPEN
                events.append(item)
            else:
                self._take(item, now, events)
        return events

    def _take(self, frame: Frame, now: float, events: list[Event]) -> None:
        if frame.kind == Kind.RST:
            self._take_reset(frame, events)
            return
        if frame.version != VERSION:
            return
        if frame.kind == Kind.FAULT:
            if self.state is State.CLOSED or (self.state is State.OPENING and now - self._open_time < STALE_FAULT):
                return
            self.state = State.CLOSED
            self._clear()
            events.append(Fault(frame.payload))
        elif frame.session == self._session and frame.kind == Kind.SYN_ACK:
            self._take_syn_ack(frame, now, events)
        elif frame.session == self._session and self.state is State.OPEN:
            self.heard = now
            if Kind.DATA <= frame.kind <= Kind.PING:
                self._take_acknowledgement(frame, now)
            if frame.kind in (Kind.DATA, Kind.MORE):
                self._take_numbered(frame, events)
            elif frame.kind == Kind.PING:
                self._ack_due = True

    def _take_reset(self, frame: Frame, events: list[Event]) -> None:
        if len(frame.payload) < _RST.size:
            return
        status, oldest, newest = _RST.unpack_from(frame.payload)
        if self.state is State.OPENING and frame.session == 0:
            self._syn_time = float("-inf")  # it has just started: no need to wait
        elif self.state is State.OPENING and frame.session == self._session and status != 0:
            self.state = State.CLOSED
            reason = "the device refuses the session"
            if status == Status.E_LINK_VERSION:
                reason = f"the device speaks protocol versions {oldest} to {newest}, this SDK speaks {VERSION}"
            events.append(Lost(reason, status))
        elif self.state is State.OPEN and frame.session in (0, self._session):
            self.state = State.CLOSED
            self._clear()
            reason = "the device has restarted" if frame.session == 0 else "the device has ended the session"
            events.append(Lost(reason, status, restarted=frame.session == 0))

    def _take_syn_ack(self, frame: Frame, now: float, events: list[Event]) -> None:
        self.heard = now
        if self.state is not State.OPENING or len(frame.payload) < _HELLO_LIMITS.size:
            return
        _, _, payload_max, self._max_message = _HELLO_LIMITS.unpack_from(frame.payload)
        if payload_max == 0:
            self.state = State.CLOSED
            events.append(Lost("the device takes frames of 0 bytes", Status.E_REQUEST))
            return
        self._payload_max = min(PAYLOAD_MAX, payload_max)
        self._credit = frame.credit
        self.state = State.OPEN
        events.append(Opened(frame.payload))

    def _take_acknowledgement(self, frame: Frame, now: float) -> None:
        taken = (frame.ack - self._base) % 256
        if taken > self._fresh - self._base:
            return
        for _ in range(taken):
            self._queue.popleft()
        self._base += taken
        self._sent = max(self._sent, self._base)
        self._credit = frame.credit
        if taken:
            self._backoff = max(self._backoff - 1, 0)  # not to 0 at once: the line may be slower than it says
            self._timer = now
            self._went_back = False
        # Once: on a line with long buffers the next NAKs are older than what was sent again.
        if frame.kind == Kind.NAK and self._sent != self._base and not self._went_back:
            self._went_back = True
            self._sent = self._base
            self._timer = now

    def _take_numbered(self, frame: Frame, events: list[Event]) -> None:
        behind = (self._expected - frame.seq) % 256
        if behind:
            if behind <= 128:
                self._ack_due = True
            else:
                self._nak_due = True
            return
        self._ack_due = True
        self._expected = (self._expected + 1) % 256
        self._nak_sent = float("-inf")
        self._parts.append(frame.payload)
        self._parts_bytes += len(frame.payload)
        if self._parts_bytes > MAX_MESSAGE:
            self.close()
            events.append(Lost(f"the device sends a message of more than {MAX_MESSAGE} bytes", Status.E_REQUEST))
        elif frame.kind == Kind.DATA:
            events.append(Message(b"".join(self._parts)))
            self._parts.clear()
            self._parts_bytes = 0

    # ------------------------------------------------------------------------------------------------ to the line

    def poll(self, now: float) -> bytes:
        """The bytes to be written now. Not to be called while earlier ones wait to be written: then no timer runs."""
        out = self._urgent
        self._urgent = []
        if self.state is State.OPENING and now - self._syn_time >= SYN_REPEAT:
            self._syn_time = now
            payload = _SYN.pack(VERSION, VERSION, PAYLOAD_MAX, MAX_MESSAGE)
            out.append(encode(Frame(Kind.SYN, credit=CREDIT, session=self._session, payload=payload)))
        elif self.state is State.OPEN:
            self._poll_numbered(now, out)
            self._poll_control(now, out)
        if out:
            self._wrote = now
        return b"".join(out)

    def _frame(self, kind: Kind, seq: int = 0, payload: bytes = b"") -> bytes:
        self._ack_due = False
        return encode(Frame(kind, seq, self._expected, CREDIT, self._session, payload))

    def _resend_after(self) -> float:
        outstanding = sum(len(self._queue[i].payload) + 17 for i in range(self._sent - self._base))
        wait = RESEND + outstanding / self._bytes_per_second
        return max(wait, min(wait * float(2**self._backoff), RESEND_MAX))

    def _poll_numbered(self, now: float, out: list[bytes]) -> None:
        if self._queue and now - self._timer >= self._resend_after():
            if self._sent == self._base and self._credit == 0:
                out.append(self._frame(Kind.PING))  # there was no room; the ACK will say whether there is now
            self._sent = self._base
            self._went_back = False
            self._timer = now
            self._backoff = min(self._backoff + 1, 8)
        window = min(WINDOW, self._credit)
        while self._sent - self._base < min(window, len(self._queue)):
            if self._sent == self._base:
                self._timer = now
            piece = self._queue[self._sent - self._base]
            if self._sent < self._fresh:
                self.frames_resent += 1
            out.append(self._frame(piece.kind, self._sent % 256, piece.payload))
            self._sent += 1
            self._fresh = max(self._fresh, self._sent)

    def _poll_control(self, now: float, out: list[bytes]) -> None:
        if self._nak_due and now - self._nak_sent >= NAK_SPACING:
            self._nak_sent = now
            out.append(self._frame(Kind.NAK))
        self._nak_due = False
        if self._ack_due:
            out.append(self._frame(Kind.ACK))
        if self.expecting and not out and now - self._wrote >= PING_AFTER:
            out.append(self._frame(Kind.PING))

    def deadline(self) -> float | None:
        """When poll has something to do at the latest, if nothing happens before; None: never."""
        times: list[float] = []
        if self.state is State.OPENING:
            times.append(self._syn_time + SYN_REPEAT)
        elif self.state is State.OPEN:
            if self._queue:
                times.append(self._timer + self._resend_after())
            if self.expecting:
                times.append(self._wrote + PING_AFTER)
        return min(times, default=None)
