# SPDX-License-Identifier: Apache-2.0
"""A generation as its caller sees it: an iterator of tokens, then a result."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from colibri_sdk.errors import ColibriError
from colibri_sdk.link import messages
from colibri_sdk.link.messages import Finish, GenerateFlag, Logits, Reader, Type
from colibri_sdk.link.session import Call, Session

# One position: per layer, the chosen experts with their weights, experts ascending.
Routing = list[list[tuple[int, float]]]


@dataclass(frozen=True)
class Token:
    """One generated token. `text` is whole characters that are ready to be shown, often none; `logits` is what the
    token was chosen from, `routing` that of the position before it, where they were asked for."""

    id: int
    index: int
    position: int
    text: str
    logits: Logits | None = None
    routing: Routing | None = None


@dataclass(frozen=True)
class GenerationResult:
    """A finished answer. `finish_reason` is one of eos, length, context, stop, cancelled. Ticks are of the device's
    clock; wall times are this machine's, from sending the request on."""

    text: str
    token_ids: tuple[int, ...]
    prompt_ids: tuple[int, ...]
    finish_reason: str
    logits_sha256: str
    prompt_tokens: int
    generated_tokens: int
    prefill_ticks: int
    decode_ticks: int
    ticks_per_second: int
    wall_first_token_seconds: float
    wall_seconds: float


@dataclass(frozen=True)
class LogitsResult:
    """`logits` is [last][vocab]; `routing` has one entry for each position of the prompt."""

    logits: Logits
    routing: list[Routing]


class Routes:
    """Collects ROUTE events by position."""

    def __init__(self) -> None:
        self._positions: dict[int, dict[int, list[tuple[int, float]]]] = {}

    def take(self, body: bytes) -> None:
        for route in messages.read_routes(Reader(body)):
            layers = self._positions.setdefault(route.position, {})
            layers[route.layer] = list(zip(route.experts, route.weights, strict=True))

    def at(self, position: int, layers: int) -> Routing:
        """Layers that have no router give an empty list."""
        found = self._positions.get(position, {})
        return [found.get(layer, []) for layer in range(layers)]


class Generation:
    """A running generation: iterate over its tokens, then read `result`.

    Leaving the iteration early (break, an exception, Ctrl-C) cancels it on the device, and so does dropping the object.
    """

    def __init__(self, session: Session, call: Call, layers: int, flags: GenerateFlag) -> None:
        self._session = session
        self._call = call
        self._layers = layers
        self._flags = flags
        self._routes = Routes()
        self._row: Logits | None = None
        self._ids: list[int] = []
        self._text = bytearray()
        self._started = time.monotonic()
        self._first = 0.0
        self._result: GenerationResult | None = None
        self._error: ColibriError | None = None

    def __iter__(self) -> Iterator[Token]:
        try:
            while not self._over:
                yield from self._step()
        finally:
            if not self._over:
                self.cancel()

    def __del__(self) -> None:
        if not self._over and not self._call.abandoned:
            self.cancel()

    @property
    def _over(self) -> bool:
        return self._result is not None or self._error is not None

    @property
    def result(self) -> GenerationResult:
        """The result; waits for the end of the generation and takes what tokens are left."""
        while not self._over:
            self._step()
        if self._error is not None:
            raise self._error
        assert self._result is not None
        return self._result

    def cancel(self) -> None:
        """Stops the generation on the device. Does not wait: its result, with finish_reason "cancelled", follows."""
        self._session.abandon(self._call)

    def _step(self) -> list[Token]:
        try:
            kind, body = self._session.next(self._call)
            if kind == Type.ROUTE:
                self._routes.take(body)
            elif kind == Type.LOGIT_ROW:
                self._row = messages.LogitRow.read(Reader(body)).logits
            elif kind == Type.TOKEN:
                return [self._token(token) for token in messages.read_tokens(Reader(body))]
            elif kind >= Type.RESULT:
                self._finish(messages.GenerateResult.read(Reader(body)))
        except ColibriError as error:
            self._error = error
            raise
        return []

    def _token(self, body: messages.TokenBody) -> Token:
        self._first = self._first or time.monotonic()
        self._ids.append(body.id)
        self._text += body.text
        routing = None
        if GenerateFlag.TRACE_ROUTING in self._flags:
            routing = self._routes.at(body.position - 1, self._layers)
        row, self._row = self._row, None
        return Token(body.id, body.index, body.position, body.text.decode("utf-8", "replace"), row, routing)

    def _finish(self, body: messages.GenerateResult) -> None:
        now = time.monotonic()
        try:
            finish = Finish(body.finish).name.lower()
        except ValueError:
            finish = str(body.finish)
        self._result = GenerationResult(
            text=self._text.decode("utf-8", "replace"),
            token_ids=tuple(self._ids),
            prompt_ids=body.prompt_ids,
            finish_reason=finish,
            logits_sha256=body.logits_sha256.hex(),
            prompt_tokens=body.prompt_tokens,
            generated_tokens=body.generated_tokens,
            prefill_ticks=body.prefill_ticks,
            decode_ticks=body.decode_ticks,
            ticks_per_second=body.ticks_per_second,
            wall_first_token_seconds=(self._first or now) - self._started,
            wall_seconds=now - self._started,
        )
