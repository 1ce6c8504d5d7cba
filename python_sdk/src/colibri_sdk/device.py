# SPDX-License-Identifier: Apache-2.0
"""A device: open it, ask it, read its tokens.

    with Device.open("/dev/ttyUSB0") as device:
        for token in device.generate("set pump 3 to 40 percent"):
            print(token.text, end="", flush=True)

All waits end: when the device is silent for `timeout` seconds, when the line breaks, when the device crashes. A request
that is lost raises LinkLostError (or LinkTimeoutError, DeviceFaultError) and names itself; the next request opens a new
session, and the port too where the cable was out.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import numpy as np

from colibri_sdk.errors import ColibriError, DeviceFaultError, LinkLostError, LinkTimeoutError, UsageError
from colibri_sdk.link import messages
from colibri_sdk.link.generation import Generation, GenerationResult, LogitsResult, Routes, Routing, Token
from colibri_sdk.link.messages import (
    Configured,
    DeviceState,
    DeviceStats,
    FaultBody,
    GenerateFlag,
    Info,
    Provoke,
    Reader,
    SelftestReport,
    StoreMode,
    Type,
)
from colibri_sdk.link.prompts import Prompt, generate_request
from colibri_sdk.link.session import Call, Session
from colibri_sdk.link.symbols import Symbols, register_names
from colibri_sdk.link.transport import Transport, from_socket, open_transport
from colibri_sdk.status import Status, hint

__all__ = [
    "Device",
    "DeviceInfo",
    "DeviceStats",
    "Generation",
    "GenerationResult",
    "LogitsResult",
    "Routing",
    "SelftestReport",
    "Token",
]

_MODE_NAMES = {0: "", StoreMode.MEMORY: "memory", StoreMode.BLOCK: "block", StoreMode.MAPPED: "mapped"}
_SLOT_NAMES = {0: "", 1: "A", 2: "B"}
_STATE_NAMES: dict[int, str] = {
    DeviceState.LOADING: "loading",
    DeviceState.READY: "ready",
    DeviceState.NO_MODEL: "no model",
}
_LOAD_POLL_SECONDS = 0.1
_MEANWHILE_SECONDS = 0.5
_FAULT_KINDS = {1: "the processor trapped", 2: "the watchdog fired: no progress in time"}


class HasTransport(Protocol):
    """An emulator, say: knows how to reach its device."""

    def transport(self) -> Any: ...


@dataclass(frozen=True)
class DeviceInfo:
    """What the device says of itself. Texts are empty and numbers 0 where they need a model and there is none."""

    board: str
    architecture: str  # of the processor
    firmware: str
    protocol: int
    state: str  # "loading", "ready", "no model"
    model: str
    model_architecture: str
    image_id: str  # hexadecimal
    quantisation: str
    kernels: str
    vocab: int
    hidden: int
    layers: int
    max_experts: int
    top_k: int
    context: int
    max_text_bytes: int
    memory_bytes: int
    image_bytes: int
    arena_bytes: int
    ticks_per_second: int
    baud: int
    loaded_bytes: int
    total_bytes: int
    store: str  # how experts are reached: "memory", "block" (read when they are needed) or "mapped"
    cache_slots: int  # block: experts that each layer keeps in memory
    slot_bytes: int  # all slots of all layers
    has_key: bool  # takes only what is signed
    slot: str  # of a volume with two: "A" or "B"
    trial: bool  # the running model is on trial
    updates_sequence: int
    security_counter: int
    status: int  # why there is no model: a Status
    status_where: str
    status_got: int
    status_wanted: int


def _opener(target: Any, baud: int | None, timeout: float, name: str = "socket") -> Callable[[], Transport]:
    """How to reach `target`, now and again after the line broke. `name` is what errors call a socket."""
    if isinstance(target, str | Path):
        return lambda: open_transport(target, baud=baud, timeout=timeout)
    if isinstance(target, Transport | socket.socket):
        once = [target]

        def take() -> Transport:
            if not once:
                raise LinkLostError("the line is broken and cannot be opened again", "Open the device by its name.")
            line = once.pop()
            return line if isinstance(line, Transport) else from_socket(name, line)

        return take
    if hasattr(target, "transport"):
        emulated = str(getattr(target, "name", name))
        return lambda: _opener(target.transport(), baud, timeout, emulated)()
    raise UsageError(f"{target!r} is nothing that a device can be opened on", "Give a port, a URL or an emulator.")


def _elf_of(target: Any) -> Path | None:
    """The firmware's ELF, where an emulator knows it."""
    elf = getattr(target, "elf", None) or getattr(getattr(target, "firmware", None), "elf", None)
    return elf if isinstance(elf, Path) else None


class Device:
    """A device behind a line. Made by Device.open; closed by close() or as a context manager."""

    def __init__(self, opener: Callable[[], Transport], *, timeout: float, elf: Path | None) -> None:
        self._opener = opener
        self._timeout = timeout
        self._elf = elf
        self._symbols: Symbols | None = None
        self._architecture = ""
        self._crashed = False
        self._closed = False
        self._current: Call | None = None
        self._info: Info | None = None
        self._session = Session(opener(), timeout=timeout, describe_fault=self._describe_fault)

    @classmethod
    def open(
        cls,
        target: str | Path | Transport | socket.socket | HasTransport,
        timeout: float = 10.0,
        baud: int | None = None,
        *,
        elf: Path | None = None,
        wait_for_model: bool = True,
        reboot_crashed: bool = False,
    ) -> Device:
        """Opens the line and a session with the device at its end.

        target: a serial port or pseudo-terminal, "unix:PATH", "socket://HOST:PORT", "fd:N", an emulator, a Transport
            or a connected socket.
        timeout: seconds of silence after which a wait fails.
        baud: of a serial port; 115200 unless given.
        elf: the firmware's ELF file, for the names of functions in faults; an emulator brings its own.
        wait_for_model: return when the device has loaded its model, or has failed to (info() says why).
        reboot_crashed: restart a device that reports a fault, instead of raising DeviceFaultError.

        Raises NoDeviceError, PortPermissionError, PortBusyError, LinkTimeoutError, DeviceFaultError.
        """
        device = cls(_opener(target, baud, timeout), timeout=timeout, elf=elf or _elf_of(target))
        try:
            try:
                device._connect()
            except DeviceFaultError:
                if not reboot_crashed:
                    raise
                device._restart_crashed()
            if wait_for_model:
                device.wait_for_model()
        except BaseException:
            device.close()
            raise
        return device

    def __enter__(self) -> Device:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the session and closes the line; a running request is cancelled. May be called twice."""
        self._closed = True
        self._session.close()

    # ------------------------------------------------------------------------------------------------------- session

    def _connect(self) -> None:
        if not self._session.usable:
            self._session.close()
            self._session = Session(self._opener(), timeout=self._timeout, describe_fault=self._describe_fault)
        crashed, self._crashed = self._crashed, False  # not behind `open`: the next crash may come at any moment
        try:
            self._session.open()
        except BaseException:
            self._crashed = self._crashed or crashed
            raise
        self._read_info()

    def _read_info(self) -> Info:
        self._info = Info.read(Reader(self._session.ask(Type.INFO)))
        self._architecture = self._info.architecture
        return self._info

    def _ready(self) -> Session:
        """The session, opened again where it was lost."""
        if self._closed:
            raise LinkLostError(f"{self._session.name} is closed", "Open the device again.")
        if not self._session.usable or not self._session.is_open:
            self._connect()
        return self._session

    def _alone(self) -> Session:
        """The same, after a request that was abandoned has ended on the device."""
        session = self._ready()
        call = self._current
        if call is not None and call.abandoned and not call.done.wait(self._timeout):
            raise LinkTimeoutError(
                f"{session.name}: {call} was cancelled and does not end",
                "Restart the device.",
                waited_seconds=self._timeout,
            )
        return session

    @contextlib.contextmanager
    def _request(self, kind: Type, body: bytes = b"") -> Iterator[tuple[Session, Call]]:
        """A request that is cancelled on the device when its answer is not waited for to the end (Ctrl-C)."""
        session = self._alone()
        call = session.call(kind, body)
        if self._current is None or self._current.done.is_set():  # else this one is refused, and that one stays
            self._current = call
        try:
            yield session, call
        except BaseException:
            if not call.done.is_set():
                self._current = call
                session.abandon(call)
            raise

    def _ask(self, kind: Type, body: bytes = b"") -> bytes:
        """The body of such a request's result."""
        with self._request(kind, body) as (session, call):
            return session.result(call)

    def request(self, kind: Type, body: bytes = b"", *, meanwhile: Callable[[], object] | None = None) -> bytes:
        """The body of a request's result, for requests that have no method here (colibri_sdk.update).

        meanwhile: called now and then while the result has not come; may ask what is answered beside the request."""
        with self._request(kind, body) as (session, call):
            while meanwhile is not None and not call.done.wait(_MEANWHILE_SECONDS):
                meanwhile()
            return session.result(call)

    def requests(self, kind: Type, bodies: Iterable[bytes], *, ahead: int) -> Iterator[bytes]:
        """The same for many requests of one kind, in their order. At most `ahead` of them have no answer yet.

        After an error those that were sent ahead may still take effect."""
        session = self._alone()
        waiting: deque[Call] = deque()
        for body in bodies:
            if len(waiting) == ahead:
                yield session.result(waiting.popleft())
            waiting.append(session.call(kind, body))
        while waiting:
            yield session.result(waiting.popleft())

    def _describe_fault(self, data: bytes) -> ColibriError:
        self._crashed = True
        try:
            body = FaultBody.read(Reader(data))
        except messages.MalformedError as error:
            return error
        names = register_names(self._architecture, len(body.registers))
        registers = {"pc": body.pc, "sp": body.sp, "cause": body.cause, "address": body.address, "status": body.status}
        registers |= dict(zip(names, body.registers, strict=True))
        symbol = self._symbol(body.pc)
        lost = f"; lost: request {body.request}" if body.request else ""
        what = _FAULT_KINDS.get(body.kind, f"fault {body.kind}")
        status = Status.E_WATCHDOG if body.kind == 2 else Status.E_TRAP
        return DeviceFaultError(
            f"{body.board}: {what} at pc {body.pc:#x}{f' in {symbol}' if symbol else ''}, cause {body.cause:#x}, "
            f"address {body.address:#x}{lost}",
            hint(status) + " `Device.reboot()` restarts it.",
            status=status,
            registers=registers,
            symbol=symbol,
        )

    def _symbol(self, address: int) -> str:
        if self._elf is None:
            return ""
        if self._symbols is None:
            with contextlib.suppress(OSError):
                self._symbols = Symbols(self._elf)
        return self._symbols.describe(address) if self._symbols else ""

    # ------------------------------------------------------------------------------------------------------- requests

    def info(self) -> DeviceInfo:
        """What the device is and holds, asked anew."""
        self._ready()
        info = self._read_info()
        hello = info.hello
        return DeviceInfo(
            board=hello.board,
            architecture=info.architecture,
            firmware=hello.firmware,
            protocol=hello.version_max,
            state=_STATE_NAMES.get(hello.state, str(hello.state)),
            model=info.model,
            model_architecture=info.model_architecture,
            image_id=hello.image_id,
            quantisation=info.quantisation,
            kernels=info.kernels,
            vocab=info.vocab,
            hidden=info.hidden,
            layers=info.layers,
            max_experts=info.max_experts,
            top_k=info.max_top_k,
            context=info.context,
            max_text_bytes=info.max_text_bytes,
            memory_bytes=info.memory_bytes,
            image_bytes=info.image_bytes,
            arena_bytes=info.arena_bytes,
            ticks_per_second=info.ticks_per_second,
            baud=info.baud,
            loaded_bytes=hello.loaded,
            total_bytes=hello.total,
            store=_MODE_NAMES.get(info.store.mode, str(info.store.mode)),
            cache_slots=info.store.cache_slots,
            slot_bytes=info.store.slot_bytes,
            has_key=info.store.has_key,
            slot=_SLOT_NAMES.get(info.store.slot, str(info.store.slot)),
            trial=info.store.trial,
            updates_sequence=info.store.updates_sequence,
            security_counter=info.store.security_counter,
            status=hello.status,
            status_where=info.where,
            status_got=info.got,
            status_wanted=info.wanted,
        )

    def wait_for_model(self) -> None:
        """Waits while the device loads its model. Raises LinkTimeoutError when it makes no progress for `timeout`."""
        loaded, since = -1, time.monotonic()
        while True:
            self._ready()
            hello = self._read_info().hello
            if hello.state != DeviceState.LOADING:
                return
            if hello.loaded != loaded:
                loaded, since = hello.loaded, time.monotonic()
            if time.monotonic() - since > self._timeout:
                raise LinkTimeoutError(
                    f"{self._session.name}: the model is not loaded: {loaded} of {hello.total} bytes, no progress for "
                    f"{self._timeout:g} s",
                    "Check the card, or give a longer timeout.",
                    waited_seconds=self._timeout,
                )
            time.sleep(_LOAD_POLL_SECONDS)

    def generate(
        self,
        prompt: Prompt,
        *,
        chat: bool = True,
        max_tokens: int = 0,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 0.0,
        repetition_penalty: float = 0.0,
        seed: int = 0,
        stop: str | Sequence[str] = (),
        ignore_eos: bool = False,
        slide: bool = False,
        slide_keep: int = 0,
        trace_routing: bool = False,
        trace_logits: bool = False,
    ) -> Generation:
        """Starts a generation; iterate over what it returns.

        prompt: a text, wrapped in the image's chat template when `chat`; or token ids; or segments of both.
        max_tokens: 0 for as many as the context holds. The sampling parameters' zeros mean greedy and off.
        stop: up to 4 texts of up to 64 bytes that end the answer.
        slide: a full context does not end the answer; the device forgets the older half of what lies behind the first
        `slide_keep` tokens, computes the rest anew and goes on. With max_tokens 0 only the model or a cancel ends it.
        """
        flags = GenerateFlag.IGNORE_EOS if ignore_eos else GenerateFlag(0)
        if slide:
            flags |= GenerateFlag.SLIDE
        if trace_logits:
            flags |= GenerateFlag.TRACE_LOGITS
        if trace_routing:
            flags |= GenerateFlag.TRACE_ROUTING
        body = generate_request(
            prompt,
            chat=chat,
            max_tokens=max_tokens,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            repetition_penalty=repetition_penalty,
            seed=seed,
            stop=stop,
            slide_keep=slide_keep,
            flags=flags,
        )
        session = self._alone()
        call = session.call(Type.GENERATE, body)
        self._current = call
        return Generation(session, call, self._info.layers if self._info else 0, flags)

    def cancel(self) -> bool:
        """Stops the running generation, from any thread. True when one was running; its iterator then ends.

        A running `logits` is stopped as well, and raises DeviceError with Status.E_CANCELLED.
        """
        call = self._current
        if call is None or call.done.is_set():
            return False
        return self._session.ask(Type.CANCEL, struct.pack("<I", call.number)) == b"\x01"

    def stats(self) -> DeviceStats:
        """Time per layer, use of experts, memory, line; since the start or the last clear_stats."""
        return DeviceStats.read(Reader(self._ask(Type.STATS, b"\0")))

    def clear_stats(self) -> None:
        self._ask(Type.STATS, b"\x01")

    def configure(
        self, mode: str = "auto", *, prefetch: bool = False, cache_slots: int = 0, memory_limit: int = 0
    ) -> Configured:
        """The device sets its model up anew: how it reaches the experts, and in how much memory.

        mode: "memory" (all of them loaded, or mapped), "block" (read when they are needed, into slots of the arena), or
            "auto": in memory when everything fits.
        prefetch: block: guess the next layer's experts, and read them ahead.
        cache_slots: block: experts that each layer keeps; 0 for as many as the memory takes.
        memory_limit: bytes for image, arena and prompt; 0 for what the board has.

        No result depends on any of these. Raises DeviceError when it does not fit; the device is without a model then,
        until it is configured again.
        """
        wanted = {"auto": StoreMode.AUTO, "memory": StoreMode.MEMORY, "block": StoreMode.BLOCK}.get(mode)
        if wanted is None:
            raise UsageError(f"there is no store '{mode}'", "It is auto, memory or block.")
        try:
            body = messages.pack_configure(
                wanted, prefetch=prefetch, cache_slots=cache_slots, memory_limit=memory_limit
            )
        except struct.error as error:
            raise UsageError(
                f"a number of slots or bytes is out of range: {error}", "Slots are 0 to 2^32 - 1, bytes 0 to 2^64 - 1."
            ) from error
        configured = Configured.read(Reader(self._ask(Type.CONFIGURE, body)))
        self._read_info()
        return configured

    def selftest(self) -> SelftestReport:
        """The device compares its kernels with the scalar reference, bit by bit."""
        return SelftestReport.read(Reader(self._ask(Type.SELFTEST)))

    def logits(self, ids: Sequence[int], last: int = 4) -> LogitsResult:
        """Logits at the last positions of a prompt of token ids, and the routing of all of them."""
        try:
            body = messages.pack_logits(ids, last)
        except struct.error as error:
            raise UsageError(f"a token id or a count is out of range: {error}", "They are 0 to 2^32 - 1.") from error
        routes, rows = Routes(), []
        with self._request(Type.LOGITS, body) as (session, call):
            while True:
                kind, answer = session.next(call)
                if kind == Type.ROUTE:
                    routes.take(answer)
                elif kind == Type.LOGIT_ROW:
                    rows.append(messages.LogitRow.read(Reader(answer)).logits)
                elif kind >= Type.RESULT:
                    break
        if len({len(row) for row in rows}) != 1:
            raise messages.MalformedError(f"the device gives {len(rows)} rows of logits, and not all of one length")
        layers = self._info.layers if self._info else 0
        return LogitsResult(np.stack(rows), [routes.at(position, layers) for position in range(len(ids))])

    def tokenize(self, text: str, *, chat: bool = False) -> list[int]:
        """The device's token ids of a text; with `chat`, of the text in the image's chat template."""
        body = messages.pack_tokenize(text.encode("utf-8", messages.TEXT_ENCODING_ERRORS), template=chat)
        reader = Reader(self._ask(Type.TOKENIZE, body))
        return list(reader.ids(reader.number("I")))

    @property
    def logs(self) -> Iterator[str]:
        """Lines that the device logs, as they come, without end; opens a new session where the device restarts."""
        while not self._closed:
            session = self._ready()
            line = session.take_log(1.0)
            if line is not None:
                yield line

    def reboot(self) -> None:
        """Restarts the device, a crashed one too, and waits until it answers again and has loaded its model."""
        if self._crashed:
            self._restart_crashed()
        else:
            session = self._ready()
            try:
                session.ask(Type.REBOOT)
            except LinkLostError:
                if not session.ended_by_restart:  # else only its answer was lost
                    raise
            session.wait_ended(self._timeout)
            self._connect()
        self.wait_for_model()

    def _restart_crashed(self) -> None:
        """The device repeats its FAULT until it has heard us: copies still on the line must not end the attempt."""
        give_up = time.monotonic() + self._timeout
        while True:
            try:
                self._session.reboot_crashed()
                self._connect()
                return
            except DeviceFaultError:
                if time.monotonic() > give_up:
                    raise

    def provoke_fault(self, kind: int | Provoke = Provoke.ILLEGAL) -> None:
        """Makes the device crash on purpose, for tests of fault reports: raises DeviceFaultError when it did.

        kind: 1 illegal instruction, 2 access to memory that is not there, 3 hang until the watchdog fires.
        """
        self._ready().ask(Type.PROVOKE, struct.pack("<I", kind))
