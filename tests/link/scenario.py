# SPDX-License-Identifier: Apache-2.0
"""A day of a device in a few requests, and what of the answers must not depend on the line."""

from __future__ import annotations

from colibri_sdk.link.messages import GenerateFlag, Type, pack_logits, pack_tokenize
from colibri_sdk.link.prompts import generate_request
from link.virtual import Asked, World

NO_FLAGS = GenerateFlag(0)
TRACE = GenerateFlag.TRACE_LOGITS | GenerateFlag.TRACE_ROUTING
# In a GENERATE result: finish, counts and digest come first, then three tick values, then the prompt's ids.
_TICKS = slice(44, 68)
_BAUD_AND_API = slice(-40, -32)


def generate(prompt: str, tokens: int, flags: GenerateFlag = NO_FLAGS) -> bytes:
    return generate_request(
        prompt,
        chat=True,
        max_tokens=tokens,
        temperature=0.0,
        top_k=0,
        top_p=0.0,
        repetition_penalty=0.0,
        seed=1,
        stop=(),
        slide_keep=0,
        flags=flags | GenerateFlag.IGNORE_EOS,
    )


def ask_all(world: World, *, long: bool = True) -> None:
    """Short and long requests, short and long answers. Without `long`, none that needs full frames."""
    world.ask(Type.INFO)
    world.ask(Type.GENERATE, generate("hello", 30))
    world.ask(50)  # no such request
    world.ask(Type.TOKENIZE, pack_tokenize(b"short", template=True))
    if long:
        world.ask(Type.TOKENIZE, pack_tokenize(b"x" * 3000, template=False))
        world.ask(Type.GENERATE, generate("hello world " * 40, 6, TRACE))
        world.ask(Type.LOGITS, pack_logits([1, 2, 3, 4, 5], 3))
    world.ask(Type.STATS, b"\0")
    world.ask(Type.GENERATE, generate("goodbye", 5))


def essence(asked: Asked) -> object:
    """The answer without clocks and counters of the line."""
    *events, (kind, body) = asked.answers
    if asked.kind == Type.STATS:
        return events, kind
    if asked.kind == Type.INFO:
        return events, kind, body[: _BAUD_AND_API.start], body[_BAUD_AND_API.stop :]
    if asked.kind == Type.GENERATE and kind == Type.RESULT + Type.GENERATE:
        return events, kind, body[: _TICKS.start], body[_TICKS.stop :]
    return events, kind, body


def essences(world: World) -> list[object]:
    return [essence(asked) for asked in world.requests]
