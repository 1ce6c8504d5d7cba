# SPDX-License-Identifier: Apache-2.0
"""A line with a device at its other end: one thread moves the bytes, any thread sends requests and reads answers.

The thread serves the state machine (peer.py) also while the caller does something else, so that a slow reader of
tokens does not look like a dead host to the device.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from colibri_sdk.errors import ColibriError, LinkLostError, LinkTimeoutError, NoDeviceError, UsageError
from colibri_sdk.link import messages
from colibri_sdk.link.frames import Noise
from colibri_sdk.link.messages import Hello, Reader, Type
from colibri_sdk.link.peer import Event, Fault, Lost, Message, Opened, Peer, State
from colibri_sdk.link.transport import Transport
from colibri_sdk.status import Status, failure, hint

_IDLE_SECONDS = 1.0  # longest sleep of the thread without a reason; others wake it
_CLOSE_SECONDS = 2.0
_LOG_LINES = 1000
_LEVELS = {1: "error", 2: "warning", 3: "info"}

Answer = tuple[int, bytes]  # type and body of an event or of the result


@dataclass
class Call:
    """One request on its way."""

    name: str
    number: int
    answers: queue.SimpleQueue[Answer | ColibriError] = field(default_factory=queue.SimpleQueue)
    started: float = 0.0
    done: threading.Event = field(default_factory=threading.Event)
    abandoned: bool = False  # nobody will read the answer

    def __str__(self) -> str:
        return f"request {self.name} ({self.number})"


class Session:
    """One session at a time over one transport. After LinkLostError `open` may begin another one, as long as
    `usable` says that the transport is whole."""

    def __init__(
        self,
        transport: Transport,
        *,
        timeout: float,
        describe_fault: Callable[[bytes], ColibriError],
    ) -> None:
        self.hello: Hello | None = None
        self.timeout = timeout
        self._transport = transport
        self._describe_fault = describe_fault
        self._peer = Peer(bytes_per_second=transport.bytes_per_second)
        self._lock = threading.Lock()
        self._calls: dict[int, Call] = {}
        self._next_number = 1
        self._opened: queue.SimpleQueue[Hello | ColibriError] = queue.SimpleQueue()
        self._logs: deque[str] = deque(maxlen=_LOG_LINES)
        self._log_ready = threading.Condition(self._lock)
        self._abandoned: deque[Call] = deque()
        self._ended = threading.Event()  # no session is open
        self._ended_by: ColibriError | None = None  # why, where something said so
        self.ended_by_restart = False  # of the device
        self._broken: ColibriError | None = None
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=f"link {transport.name}", daemon=True)
        self._thread.start()

    # ---------------------------------------------------------------------------------------------------- callers

    @property
    def name(self) -> str:
        return self._transport.name

    @property
    def usable(self) -> bool:
        """The transport is whole and the thread runs."""
        return self._broken is None and not self._stopping

    @property
    def is_open(self) -> bool:
        return self._peer.state is State.OPEN

    @property
    def frames_resent(self) -> int:
        return self._peer.frames_resent

    def open(self, timeout: float | None = None) -> Hello:
        """Begins a session. Raises NoDeviceError when nothing answers in time."""
        limit = self.timeout if timeout is None else timeout
        with self._lock:
            self._require_transport()
            self._opened = queue.SimpleQueue()
            self._ended.clear()
            self._ended_by = None
            self.ended_by_restart = False
            self._peer.open(time.monotonic())
        self._transport.wake()
        try:
            answer = self._opened.get(timeout=limit)
        except queue.Empty:
            with self._lock:
                self._peer.close()
            self._transport.wake()
            raise NoDeviceError(
                f"nothing answers at {self.name} within {limit:g} s",
                "Check that the board has power and runs Colibri firmware, and check the baud rate and the cable.",
            ) from None
        if isinstance(answer, ColibriError):
            raise answer
        self.hello = answer
        return answer

    def call(self, kind: Type, body: bytes = b"") -> Call:
        """Sends a request. Raises what ended the session, where it has just been lost (a crash, say), LinkLostError
        where there was none, UsageError when the request is too long."""
        with self._lock:
            self._require_transport()
            if self._peer.state is not State.OPEN:
                raise self._ended_by or LinkLostError(
                    f"{self.name}: there is no session with the device", "Open it again."
                )
            call = Call(kind.name, self._next_number, started=time.monotonic())
            message = messages.join(kind, call.number, body)
            if len(message) > self._peer.max_message:
                raise UsageError(
                    f"the request {kind.name} has {len(message)} bytes, the device takes {self._peer.max_message}",
                    "Shorten the prompt.",
                )
            self._next_number += 1
            self._calls[call.number] = call
            self._peer.expecting = True
            self._peer.send(message, time.monotonic())
        self._transport.wake()
        return call

    def next(self, call: Call) -> Answer:
        """The next event of the request, or its result. Waits as long as the device gives signs of life.

        Raises what the device answered instead of a result, LinkTimeoutError, LinkLostError, DeviceFaultError.
        """
        while True:
            try:
                answer = call.answers.get(timeout=_IDLE_SECONDS)
            except queue.Empty:  # the thread puts an error there when the device is silent for too long
                if not self._thread.is_alive() and call.answers.empty():
                    raise LinkLostError(f"{self.name} is closed; lost: {call}", "Open the device again.") from None
                continue
            if isinstance(answer, ColibriError):
                raise answer
            return answer

    def result(self, call: Call) -> bytes:
        """The body of the result; events before it are skipped."""
        while True:
            kind, body = self.next(call)
            if kind >= Type.RESULT:
                return body

    def ask(self, kind: Type, body: bytes = b"") -> bytes:
        """A request and its result."""
        return self.result(self.call(kind, body))

    def abandon(self, call: Call) -> None:
        """Cancels a request whose answer nobody will read. Takes no lock and does not wait, for destructors."""
        call.abandoned = True
        self._abandoned.append(call)
        self._transport.wake()

    def wait_ended(self, timeout: float) -> bool:
        """Waits until the session has ended, because the device has restarted, say. False when it has not."""
        return self._ended.wait(timeout)

    def take_log(self, wait: float) -> str | None:
        """The next line that the device has logged, None when none comes within `wait` seconds."""
        with self._log_ready:
            if not self._logs:
                self._log_ready.wait(wait)
            return self._logs.popleft() if self._logs else None

    def reboot_crashed(self) -> None:
        """Tells a device that has crashed to reset. It does not answer; `open` finds it when it is up again."""
        with self._lock:
            self._require_transport()
            self._peer.reboot_crashed()
        self._transport.wake()

    def close(self) -> None:
        """Ends the session and closes the line. May be called twice."""
        with self._lock:
            self._peer.close()
            self._stopping = True
            self._log_ready.notify_all()
        self._transport.wake()
        if threading.current_thread() is not self._thread:
            self._thread.join(_CLOSE_SECONDS)
        # The line is closed by the thread. It may be late, and would read what has the descriptor's number by then.

    def _require_transport(self) -> None:
        if self._broken is not None:
            raise LinkLostError(self._broken.message, self._broken.hint)
        if self._stopping:
            raise LinkLostError(f"{self.name} is closed", "Open the device again.")

    # ----------------------------------------------------------------------------------------------------- the thread

    def _run(self) -> None:
        try:
            while self._step():
                pass
        except ColibriError as error:
            self._break(error)
        except Exception as error:  # a bug must not leave callers waiting for ever
            self._break(LinkLostError(f"{self.name}: the link's thread failed: {error!r}", "Please report this."))
            raise
        finally:
            with self._lock:
                self._stopping = True
                if self._calls:
                    names = ", ".join(map(str, self._calls.values()))
                    self._fail(LinkLostError(f"{self.name} was closed; lost: {names}", "Open the device again."))
            with contextlib.suppress(OSError):  # of a port that is gone
                self._transport.close()

    def _break(self, error: ColibriError) -> None:
        with self._lock:
            self._broken = error
            self._peer.close()
            names = ", ".join(map(str, self._calls.values()))
            self._fail(LinkLostError(f"{error.message}; lost: {names}", error.hint) if names else error)

    def _step(self) -> bool:
        now = time.monotonic()
        with self._lock:
            self._cancel_abandoned(now)
            out = b"" if self._transport.pending else self._peer.poll(now)
            deadline = self._peer.deadline()
            stopping = self._stopping
        wait = _IDLE_SECONDS if deadline is None else min(max(deadline - now, 0.0), _IDLE_SECONDS)
        if stopping:
            give_up = now + _CLOSE_SECONDS / 2
            while (out or self._transport.pending) and time.monotonic() < give_up:
                with contextlib.suppress(ColibriError):
                    self._transport.exchange(out, 0.1)
                    out = b""
                    continue
                break
            return False
        data = self._transport.exchange(out, wait)
        with self._lock:
            for event in self._peer.feed(data, time.monotonic()):
                self._handle(event)
            if self._calls:
                self._check_silence(now)  # behind the read: this machine may have stood still, with answers on the line
        return True

    def _cancel_abandoned(self, now: float) -> None:
        while self._abandoned:
            call = self._abandoned.popleft()
            if call.number in self._calls and self._peer.state is State.OPEN:
                number = self._next_number
                self._next_number += 1  # of a request whose result nobody waits for
                self._peer.send(messages.join(Type.CANCEL, number, call.number.to_bytes(4, "little")), now)

    def _check_silence(self, now: float) -> None:
        oldest = min(call.started for call in self._calls.values())
        silent = now - max(self._peer.heard, oldest)
        if silent > self.timeout:
            self._peer.close()
            names = ", ".join(map(str, self._calls.values()))
            self._fail(
                LinkTimeoutError(
                    f"{self.name}: the device has been silent for {silent:.1f} s; lost: {names}",
                    "Check cable and power; the next request opens a new session.",
                    waited_seconds=silent,
                )
            )

    def _handle(self, event: Event) -> None:
        if isinstance(event, Message):
            self._handle_message(event.data)
        elif isinstance(event, Opened):
            try:
                self._opened.put(Hello.read(Reader(event.hello)))
            except ColibriError as error:
                self._peer.close()
                self._fail(error)
        elif isinstance(event, Lost):
            self._lose(event)
        elif isinstance(event, Fault):
            self._fail(self._describe_fault(event.data))
        elif isinstance(event, Noise):
            self._note_noise(event.data)

    def _lose(self, event: Lost) -> None:
        self.ended_by_restart = event.restarted
        if event.status:
            self._fail(
                failure(event.status, event.reason, subject=self.name, where="", got=0, wanted=0)
                if event.status == Status.E_LINK_VERSION
                else LinkLostError(f"{self.name}: {event.reason} (status {event.status})", hint(event.status))
            )
            return
        names = ", ".join(map(str, self._calls.values()))
        lost = f"; lost: {names}" if names else ""
        self._fail(LinkLostError(f"{self.name}: {event.reason}{lost}", "The next request opens a new session."))

    def _handle_message(self, data: bytes) -> None:
        try:
            header, body = messages.split(data)
            if header.type == Type.LOG:
                reader = Reader(body)
                level = reader.number("B")
                self._add_log(f"{_LEVELS.get(level, level)}: {reader.string()}")
                return
            call = self._calls.get(header.request)
            if call is None:
                return
            if header.type < Type.RESULT:
                call.answers.put((header.type, body))
                return
            self._finish(call)
            if header.type == Type.ERROR:
                error = messages.ErrorBody.read(Reader(body))
                call.answers.put(
                    failure(
                        error.status,
                        error.sentence,
                        subject=f"{self.name}, {call}",
                        where=error.where,
                        got=error.got,
                        wanted=error.wanted,
                    )
                )
            else:
                call.answers.put((header.type, body))
        except messages.MalformedError as error:
            self._peer.close()  # which also ends on the device what nobody waits for any more
            self._fail(error)

    def _finish(self, call: Call) -> None:
        self._calls.pop(call.number, None)
        self._peer.expecting = bool(self._calls)
        call.done.set()

    def _fail(self, error: ColibriError) -> None:
        """Ends everything that waits with `error`."""
        for call in list(self._calls.values()):
            self._finish(call)
            call.answers.put(error)
        self._ended_by = error
        self._opened.put(error)
        self._ended.set()
        self._log_ready.notify_all()

    def _add_log(self, line: str) -> None:
        self._logs.append(line)
        self._log_ready.notify_all()

    def _note_noise(self, data: bytes) -> None:
        """What something else prints on the line, a boot loader say, is worth showing; damaged frames are not."""
        text = data.decode("ascii", "replace").strip()
        if len(text) >= 4 and all(character.isprintable() or character.isspace() for character in text):
            for line in text.splitlines():
                self._add_log(f"console: {line}")
