# SPDX-License-Identifier: Apache-2.0
"""One engine on the host: the reference that every board is a twin of."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from colibri_sdk.engine.library import Library, Plan, kv_name
from colibri_sdk.engine.memory import Arena, MappedImage
from colibri_sdk.engine.storage import Storage, connect
from colibri_sdk.errors import UsageError
from colibri_sdk.finish import Finish as Finish
from colibri_sdk.status import Status

Logits = npt.NDArray[np.float32]


@dataclass(frozen=True)
class EngineInfo:
    """struct colibri_info."""

    model: str
    architecture: str
    quantisation: str
    kernels: str
    image_id: str
    vocab: int
    hidden: int
    layers: int
    max_experts: int
    max_top_k: int
    context: int
    max_text_bytes: int
    kv_format: str


@dataclass(frozen=True)
class Route:
    """One routing decision; experts ascending, `weights` beside them."""

    layer: int
    position: int
    experts: tuple[int, ...]
    weights: tuple[float, ...]


@dataclass(frozen=True)
class Token:
    """One generated token. `text` holds whole UTF-8 characters, often none; `logits` only where asked for."""

    id: int
    index: int
    position: int
    text: bytes
    logits: Logits | None


@dataclass(frozen=True)
class Result:
    """Outcome of a generation. Ticks are nanoseconds."""

    finish: Finish
    token_ids: tuple[int, ...]
    text: str
    prompt_tokens: int
    generated_tokens: int
    logits_sha256: str
    prefill_ticks: int
    decode_ticks: int


@dataclass(frozen=True)
class EngineStats:
    """struct colibri_stats. Arrays: those of struct colibri_layer_stats [layers], expert tokens and ticks
    [layers][max_experts]."""

    arena_bytes: int
    arena_peak_bytes: int
    tokens: int
    head_ticks: int
    sampler_ticks: int
    tokenizer_ticks: int
    ticks_per_second: int
    attention_ticks: npt.NDArray[np.uint64]
    router_ticks: npt.NDArray[np.uint64]
    expert_ticks: npt.NDArray[np.uint64]
    hits: npt.NDArray[np.uint64]
    misses: npt.NDArray[np.uint64]
    read_bytes: npt.NDArray[np.uint64]
    stall_ticks: npt.NDArray[np.uint64]
    prefetched: npt.NDArray[np.uint64]
    prefetch_used: npt.NDArray[np.uint64]
    expert_tokens: npt.NDArray[np.uint64]
    expert_ticks_each: npt.NDArray[np.uint64]


@dataclass
class _Calls:
    """What the engine calls back into, and the first exception that happened there."""

    keep: list[Any] = field(default_factory=list)
    error: BaseException | None = None
    poll: Callable[[], bool] | None = None
    on_token: Callable[[Token], bool | None] | None = None


class Engine:
    """An engine for one image, with its arena.

    `kernels` names a kernel set (default: the best); `context`, `batch`, `kv` and `max_text` are as in Library.plan.
    `trace_routing` fills `routing`. `poll` is asked often; True stops the running call. `arena_bytes` and
    `arena_offset` hand the engine another arena than the plan asks for, to see it refused.

    With a `storage` experts are read from it on demand, each layer keeps `cache_slots` (0: as many as `arena_limit`
    allows), and the engine sees of the image only what stands before the experts.
    """

    def __init__(
        self,
        library: Library,
        image: Path,
        *,
        kernels: str | None = None,
        context: int = 0,
        batch: int = 0,
        kv: str = "image",
        max_text: int = 0,
        skip_content_check: bool = False,
        trace_routing: bool = False,
        poll: Callable[[], bool] | None = None,
        arena_bytes: int | None = None,
        arena_offset: int = 0,
        storage: Storage | None = None,
        cache_slots: int = 0,
        arena_limit: int = 0,
        prefetch: bool = False,
    ) -> None:
        self.library = library
        self.routing: list[Route] = []
        self._ffi, self._lib = library.ffi, library.lib
        self._calls = _Calls(poll=poll)
        self._image = MappedImage(self._ffi, image)
        config, keep = library.config(
            context=context,
            batch=batch,
            kv=kv,
            max_text=max_text,
            kernels=kernels,
            skip_content_check=skip_content_check,
            cache_slots=None if storage is None else cache_slots,
            arena_limit=arena_limit,
            prefetch=prefetch,
        )
        self._calls.keep += keep
        if storage is not None:
            self._calls.keep += connect(library, config, storage, self._storage_failed)
        self._set_hooks(config.hooks, trace_routing)
        self.plan: Plan = library.plan_mapped(self._image, config)
        self.arena = Arena(self._ffi, self.plan.arena_bytes if arena_bytes is None else arena_bytes, arena_offset)
        handle, detail = self._ffi.new("struct colibri **"), library.detail()
        addressed = self._image.bytes if storage is None else self.plan.front_bytes
        status = self._lib.colibri_init(
            handle, self._image.pointer, addressed, config, self.arena.pointer, self.arena.bytes, detail
        )
        self._raise_callback_error()
        library.check(status, detail, subject=image.name)
        self._handle = handle[0]
        self.info = self._read_info()

    # --------------------------------------------------------------------------------------------------------- text

    def tokenize(self, text: str | bytes, *, begins: bool = True) -> list[int]:
        """Plain text to ids. `begins`: no other tokens stand before it; some tokenizers then put a space in front."""
        return self._encode(self._lib.colibri_tokenize if begins else self._lib.colibri_tokenize_next, text)

    def prompt(self, text: str | bytes) -> list[int]:
        """The ids of the chat prompt with `text` as its one user turn."""
        return self._encode(self._lib.colibri_prompt, text)

    def detokenize(self, ids: Sequence[int]) -> bytes:
        """Ids to bytes; special tokens give none."""
        array = self._ids(ids)
        count = self._ffi.new("size_t *")
        status = self._lib.colibri_detokenize(self._handle, array, len(ids), self._ffi.NULL, 0, count)
        if status == self._lib.COLIBRI_OK:
            return b""
        if status != self._lib.COLIBRI_E_BUFFER_SIZE:
            self.library.check(status, None, subject="detokenize")
        text = self._ffi.new("char[]", count[0])
        status = self._lib.colibri_detokenize(self._handle, array, len(ids), text, count[0], count)
        self.library.check(status, None, subject="detokenize")
        return bytes(self._ffi.buffer(text, count[0]))

    def _encode(self, function: Any, text: str | bytes) -> list[int]:
        data = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
        buffer = self._ffi.from_buffer("char[]", data)
        count = self._ffi.new("size_t *")
        # One id per byte is enough for the text; the template adds few. A second call follows where it is not.
        capacity = len(data) + 64
        for _ in range(2):
            ids = self._ffi.new("uint32_t[]", capacity)
            status = function(self._handle, buffer, len(data), ids, capacity, count)
            if status != self._lib.COLIBRI_E_BUFFER_SIZE:
                break
            capacity = count[0]
        self.library.check(status, None, subject=f"a text of {len(data)} bytes")
        return list(ids[0 : count[0]])

    def _ids(self, ids: Sequence[int]) -> Any:
        for one in ids:
            if not 0 <= one < 2**32:
                raise UsageError(f"{one} is no token id", f"Ids are 0 to {self.info.vocab - 1}.")
        return self._ffi.new("uint32_t[]", list(ids))

    # ------------------------------------------------------------------------------------------------------ forward

    @property
    def position(self) -> int:
        """Positions computed since the last reset."""
        return int(self._lib.colibri_position(self._handle))

    def reset(self) -> None:
        """Forgets all positions."""
        self._lib.colibri_reset(self._handle)

    def expect(self, prompt_tokens: int) -> None:
        """States the length of a prompt that comes in parts, for models whose expert map follows it."""
        self._lib.colibri_expect(self._handle, prompt_tokens)

    def prefill(self, ids: Sequence[int]) -> Logits:
        """Computes further positions; the logits [vocab] of the last one."""
        logits = self._ffi.new("float **")
        status = self._lib.colibri_prefill(self._handle, self._ids(ids), len(ids), logits)
        self._raise_callback_error()
        self._check(status, f"{len(ids)} tokens")
        return self._logits(logits[0])

    def forward(self, id_: int) -> Logits:
        """Computes one further position; its logits [vocab]."""
        logits = self._ffi.new("float **")
        self._ids([id_])
        status = self._lib.colibri_forward(self._handle, id_, logits)
        self._raise_callback_error()
        self._check(status, f"token {id_}")
        return self._logits(logits[0])

    def _logits(self, pointer: Any) -> Logits:
        buffer = self._ffi.buffer(pointer, 4 * self.info.vocab)
        return np.frombuffer(buffer, "<f4").copy()

    # --------------------------------------------------------------------------------------------------- generation

    def generate(
        self,
        prompt: Sequence[int],
        *,
        max_tokens: int = 0,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 0.0,
        repetition_penalty: float = 0.0,
        seed: int = 0,
        stop: Sequence[str] = (),
        keep_context: bool = False,
        ignore_eos: bool = False,
        slide: bool = False,
        slide_keep: int = 0,
        trace_logits: bool = False,
        on_token: Callable[[Token], bool | None] | None = None,
    ) -> Result:
        """Continues `prompt`. `on_token` sees each token as it comes; returning False cancels. With `slide` a full
        context forgets its middle, never its first `slide_keep` tokens, and goes on.

        The parameters are those of struct colibri_request and struct colibri_sampling.
        """
        request = self._ffi.new("struct colibri_request *")
        ids = self._ids(prompt)
        request.prompt, request.prompt_count, request.max_tokens = ids, len(prompt), max_tokens
        request.sampling.temperature, request.sampling.top_p = temperature, top_p
        request.sampling.repetition_penalty, request.sampling.top_k = repetition_penalty, top_k
        request.sampling.seed = seed
        request.keep_context, request.ignore_eos = keep_context, ignore_eos
        request.slide, request.slide_keep = slide, slide_keep
        if len(stop) > len(request.stop):
            raise UsageError(f"{len(stop)} stop texts are too many", f"At most {len(request.stop)} are possible.")
        stops = [self._ffi.new("char[]", text.encode()) for text in stop]
        request.stop_count = len(stops)
        for index, text in enumerate(stops):
            request.stop[index], request.stop_bytes[index] = text, len(text) - 1
        token_ids: list[int] = []
        pieces: list[bytes] = []

        def seen(_user: Any, token: Any) -> bool:
            try:
                text = bytes(self._ffi.buffer(token.text, token.text_bytes)) if token.text_bytes else b""
                token_ids.append(token.id)
                pieces.append(text)
                logits = self._logits(token.logits) if trace_logits else None
                one = Token(token.id, token.index, token.position, text, logits)
                return on_token is None or on_token(one) is not False
            except BaseException as error:  # noqa: BLE001  (an exception cannot pass through C: it is raised below)
                self._calls.error = error
                return False

        callback = self._ffi.callback("bool(void *, const struct colibri_token *)", seen)
        request.on_token = callback
        result = self._ffi.new("struct colibri_result *")
        status = self._lib.colibri_generate(self._handle, request, result)
        self._raise_callback_error()
        self._check(status, f"a prompt of {len(prompt)} tokens")
        return Result(
            finish=Finish(result.finish),
            token_ids=tuple(token_ids),
            text=b"".join(pieces).decode("utf-8", "replace"),
            prompt_tokens=result.prompt_tokens,
            generated_tokens=result.generated_tokens,
            logits_sha256=bytes(result.logits_sha256).hex(),
            prefill_ticks=result.prefill_ticks,
            decode_ticks=result.decode_ticks,
        )

    # ------------------------------------------------------------------------------------------------- expert store

    def replace_expert(
        self, layer: int, expert: int, *, offset: int, crc32: int, generation: int, digest: bytes | None = None
    ) -> None:
        """Lets an expert be read from `offset` in the image, from the next call or the next generated token on.

        Raises DeviceError when too many replacements wait already, or for a place or a generation that cannot be.
        """
        replacement = self._ffi.new("struct colibri_replacement *")
        replacement.offset, replacement.crc32, replacement.generation = offset, crc32, generation
        if digest is not None:
            self._calls.keep.append(self._ffi.new("uint8_t[]", digest))
            replacement.digest = self._calls.keep[-1]
        status = self._lib.colibri_replace_expert(self._handle, layer, expert, replacement)
        self.library.check(status, None, subject=f"layer {layer} expert {expert}")

    def _storage_failed(self, error: BaseException) -> None:
        self._calls.error = error

    def _check(self, status: int, subject: str) -> None:
        """Raises the exception of a failed call; one of the storage names layer and expert."""
        detail = None
        if status in (Status.E_STORAGE, Status.E_EXPERT_CHECKSUM, Status.E_SIGNATURE):
            detail = self.library.detail()
            self._lib.colibri_get_fault(self._handle, detail)
        self.library.check(status, detail, subject=subject)

    # --------------------------------------------------------------------------------------------------- statistics

    def stats(self) -> EngineStats:
        """Counters since the start or the last clear_stats."""
        stats = self._ffi.new("struct colibri_stats *")
        self._lib.colibri_get_stats(self._handle, stats)
        layers, experts = stats.layers, stats.max_experts
        layer = np.frombuffer(self._ffi.buffer(stats.layer, layers * 72), "<u8").reshape(layers, 9).copy()
        each = np.frombuffer(self._ffi.buffer(stats.expert, layers * experts * 16), "<u8")
        each = each.reshape(layers, experts, 2).copy()
        return EngineStats(
            arena_bytes=stats.arena_bytes,
            arena_peak_bytes=stats.arena_peak_bytes,
            tokens=stats.tokens,
            head_ticks=stats.head_ticks,
            sampler_ticks=stats.sampler_ticks,
            tokenizer_ticks=stats.tokenizer_ticks,
            ticks_per_second=stats.ticks_per_second,
            attention_ticks=layer[:, 0],
            router_ticks=layer[:, 1],
            expert_ticks=layer[:, 2],
            hits=layer[:, 3],
            misses=layer[:, 4],
            read_bytes=layer[:, 5],
            stall_ticks=layer[:, 6],
            prefetched=layer[:, 7],
            prefetch_used=layer[:, 8],
            expert_tokens=each[:, :, 0],
            expert_ticks_each=each[:, :, 1],
        )

    def clear_stats(self) -> None:
        self._lib.colibri_clear_stats(self._handle)

    # ----------------------------------------------------------------------------------------------------- plumbing

    def _read_info(self) -> EngineInfo:
        info = self._ffi.new("struct colibri_info *")
        self._lib.colibri_get_info(self._handle, info)

        def text(pointer: Any) -> str:
            return bytes(self._ffi.string(pointer)).decode("utf-8", "replace")

        return EngineInfo(
            model=text(info.model),
            architecture=text(info.architecture),
            quantisation=text(info.quantisation),
            kernels=text(info.kernels),
            image_id=bytes(self._ffi.buffer(info.image_id, 16)).hex(),
            vocab=info.vocab,
            hidden=info.hidden,
            layers=info.layers,
            max_experts=info.max_experts,
            max_top_k=info.max_top_k,
            context=info.context,
            max_text_bytes=info.max_text_bytes,
            kv_format=kv_name(info.kv_format),
        )

    def _set_hooks(self, hooks: Any, trace_routing: bool) -> None:
        calls, ffi = self._calls, self._ffi

        def now(_user: Any) -> int:
            return time.perf_counter_ns()

        def poll(_user: Any) -> bool:
            try:
                return calls.error is not None or (calls.poll is not None and bool(calls.poll()))
            except BaseException as error:  # noqa: BLE001  (an exception cannot pass through C: it is raised later)
                calls.error = error
                return True

        def route(_user: Any, layer: int, position: int, count: int, experts: Any, weights: Any) -> None:
            self.routing.append(Route(layer, position, tuple(experts[0:count]), tuple(weights[0:count])))

        # Assigning a callback to a struct does not keep it alive: `keep` does.
        callbacks: dict[str, Any] = {"now": ffi.callback("uint64_t(void *)", now)}
        hooks.ticks_per_second = 1_000_000_000
        if calls.poll is not None:
            callbacks["poll"] = ffi.callback("bool(void *)", poll)
        if trace_routing:
            route_type = "void(void *, uint32_t, uint32_t, uint32_t, const uint32_t *, const float *)"
            callbacks["route"] = ffi.callback(route_type, route)
        for name, callback in callbacks.items():
            setattr(hooks, name, callback)
        calls.keep += callbacks.values()

    def _raise_callback_error(self) -> None:
        error, self._calls.error = self._calls.error, None
        if error is not None:
            raise error
