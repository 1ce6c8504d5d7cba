# SPDX-License-Identifier: Apache-2.0
"""Chat templates: compiled for the device (one user turn), and rendered for a host that holds the conversation.

Both give special tokens as ids and everything else as text, and both cut the rendered chat at special tokens only where
the template itself wrote them. What a user typed is text, whatever it spells.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import numpy as np

from colibri_sdk.convert.chat_environment import chat_renderer
from colibri_sdk.convert.tokenizer import CompiledTokenizer
from colibri_sdk.errors import CheckpointError, UsageError
from colibri_sdk.image.layout import (
    SEGMENT,
    TEMPLATE,
    TEMPLATE_MAX_TEXT,
    TOKEN_TAKES_AFTER,
    TOKEN_TAKES_BEFORE,
    USER_AFTER_TAKER,
    USER_BEFORE_TAKER,
    USER_BEGINS,
    USER_TRIM,
    SegmentKind,
)
from colibri_sdk.segments import Segment

_PRIVATE_USE = range(0xE000, 0xF900)

# Texts that a template must pass on untouched: quotes and brackets for filters that escape, case, digits, line ends
# inside, other scripts, combining marks in both orders, something long.
_PROBES = (
    "a",
    "0",
    "Mixed CASE, twice  spaced\tand\nbroken\r\nlines",
    "<b>\"quoted\" & 'apostrophes'</b> \\n {{ braces }} {% percent %} 100%",
    "a\u0301 \u00e1 \u5b57\u5b57 \U0001f469\u200d\U0001f52c \u0660\u0661",
    "long " * 1000 + "end",
)


def compile_template(
    chat_template: str | None,
    tokenizer: CompiledTokenizer,
    bos_token: str = "",
    eos_token: str = "",
    *,
    now: datetime | None = None,
) -> bytes:
    """The template section of an image: struct col_template of firmware/engine/image.h.

    The template is rendered for one message of the role "user", with the generation prompt; a default system text
    that it brings along stays in. Without a template the prompt is what the tokenizer puts before every text, e.g. a
    bos token, then the user's text.

    Raises CheckpointError for a template that fails, that uses the user's text never or twice, or that changes it
    other than by stripping white space from both ends."""
    if chat_template is None:
        user = USER_BEGINS if tokenizer.prefix else 0
        return _section([Segment(token) for token in tokenizer.prefix], [], user, tokenizer.taking)
    render = chat_renderer(chat_template, {"bos_token": bos_token, "eos_token": eos_token}, now)

    def turn(text: str) -> str:
        return render([{"role": "user", "content": text}], True)

    mark = next(_unused([chat_template, *tokenizer.special]))
    sentinel = f"{mark}text{mark}"
    pieces = turn(sentinel).split(sentinel)
    if len(pieces) != 2:
        raise _refusal(f"uses the user's text {len(pieces) - 1} times" if pieces[1:] else "leaves out the user's text")
    head, tail = pieces
    for probe in _PROBES:
        if turn(probe) != head + probe + tail:
            raise _refusal(f"changes the user's text, e.g. {probe[:60]!r}, or says other things because of it")
    padded = f" \n\t\u2003{sentinel}\u3000\x1f\r\n "
    match turn(padded):
        case same if same == head + padded + tail:
            trim = False
        case stripped if stripped == head + sentinel + tail:
            trim = True
        case _:
            raise _refusal("strips some white space from the user's text and leaves some")
    special = tokenizer.special
    user = USER_TRIM if trim else 0
    return _section(list(_split(head, special)), list(_split(tail, special)), user, tokenizer.taking)


def render_chat(
    chat_template: str | None,
    messages: Sequence[Mapping[str, Any]],
    special: Mapping[str, int],
    variables: Mapping[str, str] | None = None,
    *,
    taking: Mapping[int, int] | None = None,
    add_generation_prompt: bool = True,
    now: datetime | None = None,
) -> list[Segment]:
    """A conversation as special tokens and texts; two texts never follow each other.

    `messages` are mappings with "role" and "content" as templates expect them; `special`, `variables` and `taking` are
    "special_tokens", "tokens" and "taking_tokens" of an image's card. The template sees the real contents, so that it
    may strip them or look into them, but for one thing: a character at which a special token could begin is another one
    while the template runs. So no content, nor two contents side by side, can become a special token.

    Raises CheckpointError where the template fails, UsageError for roles that are no plain word or a model that has
    no template."""
    if chat_template is None:
        raise UsageError("this model has no chat template", "Send it plain text instead of a conversation.")
    for message in messages:
        if not re.fullmatch(r"[A-Za-z][A-Za-z_-]*", str(message.get("role", ""))):
            raise UsageError(f"{message.get('role')!r} is no role", "Use system, user or assistant.")
    guard = _Guard(special, [chat_template, *(variables or {}).values(), *special, *_strings(messages)])
    guarded = [
        {key: value if key == "role" else guard.apply(value) for key, value in message.items()} for message in messages
    ]
    rendered = chat_renderer(chat_template, variables or {}, now)(guarded, add_generation_prompt)
    segments = [
        segment if segment.token is not None else Segment(text=guard.remove(str(segment.text)))
        for segment in _split(rendered, special)
    ]
    return _without_taken(segments, taking or {})


def _refusal(complaint: str) -> CheckpointError:
    return CheckpointError(
        f"the chat template {complaint}",
        "The device puts the user's text into one fixed place; see docs/tokenizer.md for what a template may do.",
        where="chat_template",
    )


def _unused(texts: Iterable[str]) -> Iterator[str]:
    """Private-use characters that occur in none of the texts."""
    used = set("".join(texts))
    return (chr(code_point) for code_point in _PRIVATE_USE if chr(code_point) not in used)


def _strings(value: Any) -> Iterator[str]:
    """Every string in messages, keys left out."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _strings(item)
    elif isinstance(value, Sequence) and not isinstance(value, bytes):
        for item in value:
            yield from _strings(item)


class _Guard:
    """Puts private-use characters where a special token could begin in a content, and takes them out again."""

    def __init__(self, special: Mapping[str, int], texts: Iterable[str]) -> None:
        self._special = [name for name in special if name]
        self._anywhere = re.compile("(?=" + "|".join(map(re.escape, self._special)) + ")") if self._special else None
        self._free = _unused(texts)
        self._stand_in: dict[str, str] = {}

    def apply(self, value: Any) -> Any:
        """A copy of a message's field, all strings in it guarded."""
        if isinstance(value, str):
            characters = list(value)
            for position in self._positions(value):
                characters[position] = self._replacement(characters[position])
            return "".join(characters)
        if isinstance(value, Mapping):
            return {key: self.apply(item) for key, item in value.items()}
        if isinstance(value, Sequence) and not isinstance(value, bytes):
            return [self.apply(item) for item in value]
        return value

    def remove(self, text: str) -> str:
        return text.translate({ord(stand_in): character for character, stand_in in self._stand_in.items()})

    def _replacement(self, character: str) -> str:
        if character not in self._stand_in:
            stand_in = next(self._free, None)
            if stand_in is None:
                raise UsageError("the conversation uses every private-use character of Unicode", "Shorten it.")
            self._stand_in[character] = stand_in
        return self._stand_in[character]

    def _positions(self, text: str) -> set[int]:
        """Where a special token begins, inside the text or together with what the template puts beside it. The text's
        ends are also those after stripping, which templates do."""
        if self._anywhere is None or not text:
            return set()
        positions = {match.start() for match in self._anywhere.finditer(text)}
        first = len(text) - len(text.lstrip())
        last = len(text.rstrip())
        for name in self._special:
            for cut in range(1, len(name)):
                head, tail = name[:cut], name[cut:]
                # the template's own text could come before: "<|" and here "user|>"
                positions |= {start for start in range(min(first + 1, len(text))) if text.startswith(tail, start)}
                # or after: here "<|us" and then "er|>"
                positions |= {
                    end - len(head) for end in {last, len(text)} if end >= len(head) and text.endswith(head, 0, end)
                }
            for part in (text, text.strip()):
                if part and part in name:  # or on both sides
                    positions.add(first if part != text else 0)
        return positions


def _split(rendered: str, special: Mapping[str, int]) -> Iterator[Segment]:
    """Cuts at special tokens, the leftmost first and of these the longest, as the tokenizers library does."""
    names = sorted((name for name in special if name), key=len, reverse=True)
    if not names:
        parts = [rendered]
    else:
        parts = re.split("(" + "|".join(map(re.escape, names)) + ")", rendered)
    for index, part in enumerate(parts):
        if index % 2 == 1:
            yield Segment(special[part])
        elif part:
            yield Segment(text=part)


def _without_taken(segments: list[Segment], taking: Mapping[int, int]) -> list[Segment]:
    """White space that special tokens beside a text take is not tokenised."""
    kept: list[Segment] = []
    for index, segment in enumerate(segments):
        if segment.token is not None:
            kept.append(segment)
            continue
        before = segments[index - 1].token if index else None
        after = segments[index + 1].token if index + 1 < len(segments) else None
        text = str(segment.text)
        if before is not None and taking.get(before, 0) & TOKEN_TAKES_AFTER:
            text = text.lstrip(_WHITE_SPACE)
        if after is not None and taking.get(after, 0) & TOKEN_TAKES_BEFORE:
            text = text.rstrip(_WHITE_SPACE)
        if text:
            kept.append(Segment(text=text))
    return kept


# White_Space, without the separators that str.strip() knows besides.
_WHITE_SPACE = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))


def _taken_from_user(head: list[Segment], tail: list[Segment], taking: Mapping[int, int]) -> int:
    """USER_*_TAKER: whether the text that the user's becomes part of begins behind a token that takes white space, or
    ends before one."""

    def flags(segments: list[Segment], side: int) -> bool:
        beside = segments[0] if segments else None
        if beside is not None and beside.token is None:
            beside = segments[1] if len(segments) > 1 else None
        return beside is not None and bool(taking.get(beside.token or 0, 0) & side)

    before = USER_AFTER_TAKER if flags(head[::-1], TOKEN_TAKES_AFTER) else 0
    return before | (USER_BEFORE_TAKER if flags(tail, TOKEN_TAKES_BEFORE) else 0)


def _section(head: list[Segment], tail: list[Segment], user: int, taking: Mapping[int, int]) -> bytes:
    """struct col_template, its segments, then the texts."""
    user |= _taken_from_user(head, tail, taking)
    marker = Segment(text="\ue000")  # the user's text, of which nothing is taken here
    head = _without_taken([*head, marker], taking)
    tail = _without_taken([marker, *tail], taking)
    head, tail = head[:-1], tail[1:]
    table = np.zeros(len(head) + 1 + len(tail), SEGMENT)
    texts = bytearray()
    start = TEMPLATE.itemsize + table.nbytes
    for row, segment in zip(table, [*head, None, *tail], strict=True):
        if segment is None:
            row["kind"] = SegmentKind.USER
            row["value"] = user
        elif segment.token is not None:
            row["kind"] = SegmentKind.TOKEN
            row["value"] = segment.token
        else:
            text = segment.text_bytes
            if len(text) > TEMPLATE_MAX_TEXT:
                raise _refusal(f"has {len(text)} bytes of text in one piece; {TEMPLATE_MAX_TEXT} is the limit")
            row["kind"] = SegmentKind.TEXT
            row["value"] = start + len(texts)
            row["bytes"] = len(text)
            texts.extend(text)
    header = np.zeros((), TEMPLATE)
    header["segment_count"] = len(table)
    return header.tobytes() + table.tobytes() + bytes(texts)
