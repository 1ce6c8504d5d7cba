# SPDX-License-Identifier: Apache-2.0
"""What a caller may give as a prompt, and its form on the line."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from colibri_sdk.errors import UsageError
from colibri_sdk.link import messages
from colibri_sdk.link.messages import GenerateFlag, GenerateRequest, IdSegment, TextSegment
from colibri_sdk.segments import Segment

MAX_STOPS = 4
MAX_STOP_BYTES = 64

Prompt = str | Sequence[int] | Sequence[Segment]


def _encoded(text: str) -> bytes:
    try:
        return text.encode("utf-8", messages.TEXT_ENCODING_ERRORS)
    except UnicodeEncodeError as error:
        raise UsageError(
            f"character {error.start} of a text is half of a surrogate pair, which is no character",
            "Write both halves.",
        ) from error


def _segments(prompt: Prompt, chat: bool) -> tuple[list[TextSegment | IdSegment], GenerateFlag]:
    """Text that follows text is one segment, and so are ids that follow ids."""
    if isinstance(prompt, str):
        flag = GenerateFlag.TEMPLATE if chat else GenerateFlag(0)
        return [TextSegment(_encoded(prompt))], flag
    made: list[bytearray | list[int]] = []
    for piece in prompt:
        token = piece.token if isinstance(piece, Segment) else int(piece)
        if token is None:
            if not made or not isinstance(made[-1], bytearray):
                made.append(bytearray())
            made[-1] += piece.text_bytes  # type: ignore[operator, union-attr]
        else:
            if not made or isinstance(made[-1], bytearray):
                made.append([])
            made[-1].append(token)
    segments = [TextSegment(bytes(part)) if isinstance(part, bytearray) else IdSegment(part) for part in made]
    return segments or [IdSegment([])], GenerateFlag(0)


def _stops(stop: str | Sequence[str]) -> list[bytes]:
    texts = [_encoded(text) for text in ([stop] if isinstance(stop, str) else stop)]
    if len(texts) > MAX_STOPS or any(not 1 <= len(text) <= MAX_STOP_BYTES for text in texts):
        raise UsageError(
            f"at most {MAX_STOPS} stop strings of 1 to {MAX_STOP_BYTES} bytes each", "Use fewer or shorter ones."
        )
    return texts


def generate_request(
    prompt: Prompt,
    *,
    chat: bool,
    max_tokens: int,
    temperature: float,
    top_k: int,
    top_p: float,
    repetition_penalty: float,
    seed: int,
    stop: str | Sequence[str],
    slide_keep: int,
    flags: GenerateFlag,
) -> bytes:
    """The body of GENERATE. Raises UsageError for what no device could take."""
    segments, template = _segments(prompt, chat)
    try:
        return GenerateRequest(
            segments,
            flags | template,
            max_tokens,
            top_k,
            temperature,
            top_p,
            repetition_penalty,
            seed,
            _stops(stop),
            slide_keep,
        ).pack()
    except (struct.error, OverflowError) as error:
        raise UsageError(
            f"a parameter or a token id is out of range: {error}",
            "Counts and ids are 0 to 2^32 - 1, the seed is 0 to 2^64 - 1.",
        ) from error
