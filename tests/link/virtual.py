# SPDX-License-Identifier: Apache-2.0
"""Host, line and device in virtual time: the SDK's state machine, a line that damages bytes, and the device's C code.

Everything follows from the seed: a run that fails can be repeated to the byte.
"""

from __future__ import annotations

import ctypes
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from colibri_sdk.link import messages
from colibri_sdk.link.messages import Type
from colibri_sdk.link.peer import Lost, Message, Opened, Peer, State

STOP, CRASH = -1, -2
STOPPED = 1
_STEP = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.POINTER(ctypes.c_uint64),
    ctypes.c_uint64,
    ctypes.POINTER(ctypes.c_uint64),
    ctypes.POINTER(ctypes.c_uint8),
    ctypes.c_uint32,
    ctypes.POINTER(ctypes.c_uint8),
    ctypes.c_uint32,
)


@dataclass(frozen=True)
class Damage:
    """Chances for each byte; cuts and delays by their number per second."""

    flip: float = 0.0
    drop: float = 0.0
    double: float = 0.0
    insert: float = 0.0
    delay: float = 0.0  # a piece comes up to 200 ms late; later ones wait behind it
    cut: float = 0.0  # all bytes of up to 300 ms vanish


class Line:
    """One direction."""

    def __init__(self, damage: Damage, rng: random.Random, bytes_per_second: float) -> None:
        self._damage = damage
        self._rng = rng
        self._rate = bytes_per_second
        self._free = 0.0  # when the line has sent all that was put in
        self._cut_until = 0.0
        self._next_cut = self._draw(damage.cut, 0.0)
        self._next_delay = self._draw(damage.delay, 0.0)
        self._pieces: deque[tuple[float, bytes]] = deque()
        self.hurt = 0
        self.calm = False  # no more damage

    def _draw(self, per_second: float, now: float) -> float:
        return now + self._rng.expovariate(per_second) if per_second else float("inf")

    def put(self, data: bytes, now: float) -> None:
        if not data:
            return
        damage, rng = self._damage, self._rng
        out = bytearray()
        while self._next_cut <= now:
            self._cut_until = self._next_cut + rng.uniform(0.001, 0.3)
            self._next_cut = self._draw(damage.cut, self._next_cut)
        for byte in data:
            if self.calm:
                out.append(byte)
                continue
            if now < self._cut_until or rng.random() < damage.drop:
                self.hurt += 1
                continue
            if rng.random() < damage.insert:
                self.hurt += 1
                out.append(rng.choice((0, rng.randrange(256))))
            if rng.random() < damage.flip:
                self.hurt += 1
                byte ^= 1 << rng.randrange(8)
            out.append(byte)
            if rng.random() < damage.double:
                self.hurt += 1
                out.append(byte)
        start = max(now, self._free)
        if not self.calm and self._next_delay <= now:
            self._next_delay = self._draw(damage.delay, now)
            start += rng.uniform(0.0, 0.2)
        self._free = start + len(data) / self._rate
        self._pieces.append((self._free, bytes(out)))

    def get(self, now: float) -> bytes:
        out = bytearray()
        while self._pieces and self._pieces[0][0] <= now:
            out += self._pieces.popleft()[1]
        return bytes(out)

    def next_time(self) -> float | None:
        return self._pieces[0][0] if self._pieces else None


@dataclass
class Asked:
    """A request of the scenario with all that came back: events and the result or error, as (type, body)."""

    kind: int
    body: bytes
    answers: list[tuple[int, bytes]] = field(default_factory=list)
    attempts: int = 0

    @property
    def final(self) -> tuple[int, bytes]:
        return self.answers[-1]


class Hang(AssertionError):
    """Virtual time has run out."""


class World:
    """Runs a scenario to its end."""

    def __init__(
        self,
        library: Path,
        *,
        seed: int,
        damage: Damage,
        back: Damage | None = None,
        bytes_per_second: float = 11520.0,
        back_bytes_per_second: float | None = None,
        baud: int = 115200,
        limit_seconds: float = 900.0,
        crash_at: Sequence[float] = (),
        calm_after: float = float("inf"),
        storage: bytes | None = None,
        block_us: int = 0,
        failing_block: int = (1 << 64) - 1,
    ) -> None:
        self._library = ctypes.CDLL(str(library))
        self._library.sim_run.restype = ctypes.c_int
        self._storage = storage  # the device reads it from here
        self._library.sim_set_storage(
            storage,
            ctypes.c_uint64(len(storage or b"")),
            ctypes.c_uint32(block_us),
            ctypes.c_uint64(failing_block),
        )
        rng = random.Random(seed)
        self.peer = Peer(bytes_per_second=baud / 10 if baud else None, draw=lambda: rng.randrange(1, 1 << 32))
        self.down = Line(damage, rng, bytes_per_second)
        self.up = Line(back or damage, rng, back_bytes_per_second or bytes_per_second)
        self._baud = baud
        self._limit = limit_seconds
        self._crash_at = sorted(crash_at)
        self._calm_after = calm_after
        self.now = 0.0
        self.requests: list[Asked] = []
        self._todo: deque[Asked] = deque()
        self._current: Asked | None = None
        self._number = 0
        self._current_number = 0
        self.sessions = 0
        self.lost = 0
        self.noise_frames = 0
        self.on_sent: Callable[[World], object] | None = None
        self.on_event: Callable[[World, int, bytes], None] | None = None
        self.stray: list[tuple[int, int, bytes]] = []  # answers to requests that are not the current one
        self._error: BaseException | None = None

    def ask(self, kind: int, body: bytes = b"") -> Asked:
        asked = Asked(kind, body)
        self.requests.append(asked)
        self._todo.append(asked)
        return asked

    def inject(self, kind: int, body: bytes) -> int:
        """Sends a request beside the current one; its answers come to `stray`."""
        self._number += 1
        self.peer.send(messages.join(kind, self._number, body), self.now)
        return self._number

    @property
    def current_number(self) -> int:
        return self._current_number

    def run(self) -> None:
        """Runs until all requests have their answer. Raises Hang when that takes too long in virtual time."""
        step = _STEP(self._guarded_step)
        time = ctypes.c_uint64(1)
        self.peer.open(self.now)
        while self._library.sim_run(step, ctypes.byref(time), self._baud) != STOPPED:
            pass
        if self._error is not None:
            raise self._error

    def _guarded_step(self, time, until, quiet, tx, tx_bytes, rx, rx_capacity):  # type: ignore[no-untyped-def]
        try:
            return self._step(time, until, quiet, ctypes.string_at(tx, tx_bytes), rx, rx_capacity)
        except BaseException as error:  # noqa: BLE001 (it must not be lost inside the C call)
            self._error = error
            return STOP

    def _step(self, time, until, quiet, written, rx, rx_capacity):  # type: ignore[no-untyped-def]
        self.now = time[0] / 1e6
        end = until / 1e6
        self.up.put(written, self.now)
        while True:
            if self._finished():
                return STOP
            if self.now > self._limit:
                raise Hang(
                    f"no end after {self._limit} s of virtual time; in request {self._current and self._current.kind}"
                )
            if self.now > self._calm_after:
                self.up.calm = self.down.calm = True
            if self._crash_at and self.now >= self._crash_at[0]:
                self._crash_at.pop(0)
                time[0] = int(self.now * 1e6) + 1
                return CRASH
            self._host()
            data = self.down.get(self.now)
            if data or self.now >= end:
                break
            self.now = max(self.now + 1e-6, min(end, self._next_time()))
        time[0] = max(time[0] + 1, int(self.now * 1e6))
        quiet[0] = int(max(self._next_time(), 0.0) * 1e6)
        data = data[:rx_capacity]
        ctypes.memmove(rx, data, len(data))
        return len(data)

    def _next_time(self) -> float:
        times = [self._limit, self.up.next_time(), self.down.next_time(), self.peer.deadline(), *self._crash_at[:1]]
        return min(t for t in times if t is not None)

    def _finished(self) -> bool:
        return self._current is None and not self._todo

    def _host(self) -> None:
        for event in self.peer.feed(self.up.get(self.now), self.now):
            if isinstance(event, Opened):
                self.sessions += 1
                self._restart_current()
            elif isinstance(event, Message):
                self._take(event.data)
            elif isinstance(event, Lost):
                self.lost += 1
                self.peer.open(self.now)
        if self.peer.state is State.OPEN and self._current is None and self._todo:
            self._current = self._todo.popleft()
            self._send_current()
        if self.peer.state is State.OPEN and self._current is not None and self.now - self.peer.heard > 15.0:
            self.lost += 1
            self.peer.open(self.now)
        self.peer.expecting = self._current is not None
        self.down.put(self.peer.poll(self.now), self.now)

    def _restart_current(self) -> None:
        if self._current is not None:
            self._current.answers.clear()
            self._send_current()

    def _send_current(self) -> None:
        assert self._current is not None
        self._number += 1
        self._current_number = self._number
        self._current.attempts += 1
        self.peer.send(messages.join(self._current.kind, self._number, self._current.body), self.now)
        if self.on_sent is not None:
            self.on_sent(self)

    def _take(self, data: bytes) -> None:
        header, body = messages.split(data)
        if header.type == Type.LOG:
            return
        if self._current is None or header.request != self._current_number:
            self.stray.append((header.request, header.type, body))
            return
        self._current.answers.append((header.type, body))
        if self.on_event is not None:
            self.on_event(self, header.type, body)
        if header.type >= Type.RESULT:
            self._current = None
