# SPDX-License-Identifier: Apache-2.0
"""Messages of the link protocol (PROTOCOL.md, section 4): dataclasses <-> bytes.

A body that does not fit its type raises MalformedError: after a right CRC that can only be a difference of versions.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum, IntFlag

import numpy as np
import numpy.typing as npt

from colibri_sdk.errors import TransferError
from colibri_sdk.figures import printable
from colibri_sdk.finish import Finish as Finish
from colibri_sdk.image.layout import MAX_EXPERTS, MAX_LAYERS

Logits = npt.NDArray[np.float32]
HEADER = struct.Struct("<HHI")
TEXT_ENCODING_ERRORS = "surrogateescape"  # bytes that are no UTF-8 go to the device as they are


class Type(IntEnum):
    HELLO = 1
    INFO = 2
    GENERATE = 3
    CANCEL = 4
    STATS = 5
    SELFTEST = 6
    LOGITS = 7
    TOKENIZE = 8
    REBOOT = 9
    PROVOKE = 10
    UPDATE_STATUS = 11
    UPDATE_BEGIN = 12
    UPDATE_DATA = 13
    UPDATE_COMMIT = 14
    UPDATE_CONFIRM = 15
    UPDATE_ROLLBACK = 16
    DIRECTORY = 17
    UPDATE_COPY = 18
    UPDATE_CRC = 19
    CONFIGURE = 20
    TOKEN = 64
    ROUTE = 65
    LOGIT_ROW = 66
    LOG = 67
    RESULT = 128
    ERROR = 255


class GenerateFlag(IntFlag):
    TEMPLATE = 1
    IGNORE_EOS = 2
    TRACE_LOGITS = 4
    TRACE_ROUTING = 8
    SLIDE = 16


class DeviceState(IntEnum):
    LOADING = 1
    READY = 2
    NO_MODEL = 3


class StoreMode(IntEnum):
    """How the device reaches the experts (runtime.h)."""

    AUTO = 0
    MEMORY = 1
    BLOCK = 2
    MAPPED = 3


class Provoke(IntEnum):
    ILLEGAL = 1
    ACCESS = 2
    HANG = 3


class MalformedError(TransferError):
    """A message of the device cannot be read."""


_VERSIONS = "Firmware and SDK may be of different versions: build and flash the firmware again."


def bounded(what: str, value: int, most: int) -> int:
    """The value; MalformedError when it is above `most`. For numbers that something is counted to, or looked up by."""
    if value > most:
        raise MalformedError(f"the device states {what} {value}, and {most} is the most there can be", _VERSIONS)
    return value


class Reader:
    """Reads a body field by field."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def take(self, count: int) -> bytes:
        if count > self.left:
            raise MalformedError(
                f"a message of the device ends after {len(self._data)} bytes, {count - self.left} too early",
                _VERSIONS,
            )
        self._at += count
        return self._data[self._at - count : self._at]

    def numbers(self, layout: str) -> tuple[int, ...]:
        packed = struct.Struct("<" + layout)
        return packed.unpack(self.take(packed.size))

    def number(self, layout: str) -> int:
        return self.numbers(layout)[0]

    def string(self) -> str:
        """A text to be shown."""
        return printable(self.take(self.number("H")).decode("utf-8", "replace"))

    def floats(self, count: int) -> Logits:
        return np.frombuffer(self.take(4 * count), np.dtype("<f4")).astype(np.float32)

    def ids(self, count: int) -> tuple[int, ...]:
        return self.numbers(f"{count}I") if count <= self.left // 4 else self.numbers(f"{self.left // 4 + 1}I")


@dataclass(frozen=True)
class Header:
    type: int
    request: int


def split(message: bytes) -> tuple[Header, bytes]:
    if len(message) < HEADER.size:
        raise MalformedError(f"a message of the device has only {len(message)} bytes")
    kind, _, request = HEADER.unpack_from(message)
    return Header(kind, request), message[HEADER.size :]


def join(kind: int, request: int, body: bytes) -> bytes:
    return HEADER.pack(kind, 0, request) + body


def _string(text: bytes) -> bytes:
    return struct.pack("<H", len(text)) + text


# ---------------------------------------------------------------------------------------------------- from the device


@dataclass(frozen=True)
class Hello:
    version_min: int
    version_max: int
    max_payload: int
    max_message: int
    state: int
    busy: bool
    status: int
    loaded: int
    total: int
    image_id: str  # hexadecimal; empty when no model is loaded
    board: str
    firmware: str

    @classmethod
    def read(cls, reader: Reader) -> Hello:
        oldest, newest, payload, message, state, busy, _, status, loaded, total = reader.numbers("BBHIBBHiQQ")
        image_id = reader.take(16)
        return cls(
            oldest,
            newest,
            payload,
            message,
            state,
            bool(busy),
            status,
            loaded,
            total,
            image_id.hex() if any(image_id) else "",
            reader.string(),
            reader.string(),
        )


@dataclass(frozen=True)
class StoreInfo:
    """How the experts are reached, and what is known of the medium. Zeros without a model."""

    mode: int  # a StoreMode; 0 without a model
    has_key: bool
    slot: int  # of the volume: 1 A, 2 B, 0 none
    trial: bool
    cache_slots: int
    slot_bytes: int
    updates_sequence: int
    security_counter: int

    @classmethod
    def read(cls, reader: Reader) -> StoreInfo:
        mode, has_key, slot, trial, slots, slot_bytes, sequence, counter = reader.numbers("BBBBIQQQ")
        return cls(mode, bool(has_key), slot, bool(trial), slots, slot_bytes, sequence, counter)


@dataclass(frozen=True)
class Info:
    hello: Hello
    got: int
    wanted: int
    where: str
    architecture: str
    model: str
    model_architecture: str
    quantisation: str
    kernels: str
    vocab: int
    hidden: int
    layers: int
    max_experts: int
    max_top_k: int
    context: int
    max_text_bytes: int
    kv_format: int
    memory_bytes: int
    image_bytes: int
    arena_bytes: int
    ticks_per_second: int
    baud: int
    api_version: tuple[int, int]
    store: StoreInfo

    @classmethod
    def read(cls, reader: Reader) -> Info:
        hello = Hello.read(reader)
        got, wanted = reader.numbers("QQ")
        where, architecture, model, model_architecture, quantisation, kernels = (reader.string() for _ in range(6))
        vocab, hidden, layers, max_experts, max_top_k, context, max_text_bytes, kv_format = reader.numbers("8I")
        memory_bytes, image_bytes, arena_bytes, ticks_per_second, baud = reader.numbers("4QI")
        major, minor = reader.numbers("HH")
        return cls(
            hello=hello,
            got=got,
            wanted=wanted,
            where=where,
            architecture=architecture,
            model=model,
            model_architecture=model_architecture,
            quantisation=quantisation,
            kernels=kernels,
            vocab=vocab,
            hidden=hidden,
            layers=bounded("layers", layers, MAX_LAYERS),
            max_experts=bounded("experts", max_experts, MAX_EXPERTS),
            max_top_k=max_top_k,
            context=context,
            max_text_bytes=max_text_bytes,
            kv_format=kv_format,
            memory_bytes=memory_bytes,
            image_bytes=image_bytes,
            arena_bytes=arena_bytes,
            ticks_per_second=ticks_per_second,
            baud=baud,
            api_version=(major, minor),
            store=StoreInfo.read(reader),
        )


@dataclass(frozen=True)
class ErrorBody:
    status: int
    got: int
    wanted: int
    where: str
    sentence: str

    @classmethod
    def read(cls, reader: Reader) -> ErrorBody:
        status, got, wanted = reader.numbers("iQQ")
        return cls(status, got, wanted, reader.string(), reader.string())


@dataclass(frozen=True)
class TokenBody:
    id: int
    index: int
    position: int
    text: bytes


def read_tokens(reader: Reader) -> list[TokenBody]:
    tokens = []
    while reader.left:
        token, index, position, count = reader.numbers("IIIH")
        tokens.append(TokenBody(token, index, position, reader.take(count)))
    return tokens


@dataclass(frozen=True)
class RouteBody:
    layer: int
    position: int
    experts: tuple[int, ...]
    weights: tuple[float, ...]


def read_routes(reader: Reader) -> list[RouteBody]:
    routes = []
    while reader.left:
        layer, position, count = reader.numbers("III")
        experts = reader.ids(count)
        routes.append(RouteBody(layer, position, experts, tuple(float(w) for w in reader.floats(count))))
    return routes


@dataclass(frozen=True)
class LogitRow:
    position: int
    logits: Logits

    @classmethod
    def read(cls, reader: Reader) -> LogitRow:
        return cls(reader.number("I"), reader.floats(reader.left // 4))


@dataclass(frozen=True)
class GenerateResult:
    finish: int
    prompt_tokens: int
    generated_tokens: int
    logits_sha256: bytes
    prefill_ticks: int
    decode_ticks: int
    ticks_per_second: int
    prompt_ids: tuple[int, ...]

    @classmethod
    def read(cls, reader: Reader) -> GenerateResult:
        finish, prompt, generated = reader.numbers("III")
        digest = reader.take(32)
        prefill, decode, second, count = reader.numbers("QQQI")
        return cls(finish, prompt, generated, digest, prefill, decode, second, reader.ids(count))


@dataclass(frozen=True)
class LayerStats:
    """Ticks that a layer has taken since the statistics were cleared, and what its experts cost to fetch: zeros where
    they are used where they lie. `stall_ticks` are part of `expert_ticks`."""

    attention_ticks: int
    router_ticks: int
    expert_ticks: int
    hits: int = 0
    misses: int = 0
    read_bytes: int = 0
    stall_ticks: int = 0
    prefetched: int = 0
    prefetch_used: int = 0


@dataclass(frozen=True)
class ExpertStats:
    """How often an expert was chosen, and the ticks it has taken."""

    tokens: int
    ticks: int


@dataclass(frozen=True)
class LinkStats:
    """The device's frames since it started."""

    frames_received: int
    frames_damaged: int
    frames_repeated: int
    frames_sent: int
    frames_resent: int


@dataclass(frozen=True)
class DeviceStats:
    """What the device counts. Ticks are of its clock, `ticks_per_second` of them."""

    arena_bytes: int
    arena_peak_bytes: int
    tokens: int
    head_ticks: int
    sampler_ticks: int
    tokenizer_ticks: int
    ticks_per_second: int
    uptime_ticks: int
    canary_intact: bool  # nothing was written behind the arena
    link: LinkStats
    kernels: str
    layers: list[LayerStats] = field(default_factory=list)
    experts: list[list[ExpertStats]] = field(default_factory=list)  # [layer][expert]

    @classmethod
    def read(cls, reader: Reader) -> DeviceStats:
        arena, peak, tokens, head, sampler, tokenizer, second, uptime = reader.numbers("8Q")
        canary, *_ = reader.numbers("BBH")
        link = LinkStats(*reader.numbers("5I"))
        kernels = reader.string()
        layers, experts = reader.numbers("II")
        per_layer = [LayerStats(*reader.numbers("9Q")) for _ in range(layers)]
        per_expert = [[ExpertStats(*reader.numbers("QQ")) for _ in range(experts)] for _ in range(layers)]
        return cls(
            arena_bytes=arena,
            arena_peak_bytes=peak,
            tokens=tokens,
            head_ticks=head,
            sampler_ticks=sampler,
            tokenizer_ticks=tokenizer,
            ticks_per_second=second,
            uptime_ticks=uptime,
            canary_intact=bool(canary),
            link=link,
            kernels=kernels,
            layers=per_layer,
            experts=per_expert,
        )


@dataclass(frozen=True)
class SelftestReport:
    """struct colibri_selftest_report: the kernel set, and the first operation that differed (empty: none)."""

    kernels: str
    failed: str
    cases: int
    failures: int
    failed_size: int
    status: int = 0

    @property
    def ok(self) -> bool:
        return self.status == 0 and self.failures == 0

    @classmethod
    def read(cls, reader: Reader) -> SelftestReport:
        status, cases, failures, size = reader.numbers("iIII")
        return cls(reader.string(), reader.string(), cases, failures, size, status)


@dataclass(frozen=True)
class FaultBody:
    """struct hal_fault, and the request that was running (0: none)."""

    kind: int
    request: int
    pc: int
    sp: int
    cause: int
    address: int
    status: int
    registers: tuple[int, ...]
    board: str

    @classmethod
    def read(cls, reader: Reader) -> FaultBody:
        kind, request, pc, sp, cause, address, status, count, _ = reader.numbers("IIQQQQQII")
        registers = tuple(reader.number("Q") for _ in range(count))
        return cls(kind, request, pc, sp, cause, address, status, registers, reader.string())


# ------------------------------------------------------------------------------------------------------ to the device


@dataclass(frozen=True)
class TextSegment:
    text: bytes

    def pack(self) -> bytes:
        return struct.pack("<BI", 1, len(self.text)) + self.text


@dataclass(frozen=True)
class IdSegment:
    ids: Sequence[int]

    def pack(self) -> bytes:
        return struct.pack(f"<BI{len(self.ids)}I", 2, len(self.ids), *self.ids)


@dataclass(frozen=True)
class GenerateRequest:
    segments: Sequence[TextSegment | IdSegment]
    flags: GenerateFlag
    max_tokens: int = 0
    top_k: int = 0
    temperature: float = 0.0
    top_p: float = 0.0
    repetition_penalty: float = 0.0
    seed: int = 0
    stop: Sequence[bytes] = ()
    slide_keep: int = 0

    def pack(self) -> bytes:
        head = struct.pack(
            "<HHHHIIfffQ",
            self.flags,
            len(self.segments),
            len(self.stop),
            self.slide_keep,
            self.max_tokens,
            self.top_k,
            self.temperature,
            self.top_p,
            self.repetition_penalty,
            self.seed,
        )
        return head + b"".join(map(_string, self.stop)) + b"".join(segment.pack() for segment in self.segments)


def pack_logits(ids: Sequence[int], last: int) -> bytes:
    return struct.pack(f"<II{len(ids)}I", last, len(ids), *ids)


@dataclass(frozen=True)
class Configured:
    """How the device has set its model up anew: what it answers to CONFIGURE."""

    mode: int  # a StoreMode
    prefetch: bool
    cache_slots: int  # experts that each layer keeps; 0 where all are addressable
    arena_bytes: int
    loaded_bytes: int  # of the image: the whole, or its front

    @classmethod
    def read(cls, reader: Reader) -> Configured:
        mode, prefetch, _, slots, arena, loaded = reader.numbers("BBHIQQ")
        return cls(mode, bool(prefetch), slots, arena, loaded)


def pack_configure(mode: StoreMode, *, prefetch: bool, cache_slots: int, memory_limit: int) -> bytes:
    return struct.pack("<BBHIQ", mode, prefetch, 0, cache_slots, memory_limit)


def pack_tokenize(text: bytes, *, template: bool) -> bytes:
    return bytes([template]) + text
