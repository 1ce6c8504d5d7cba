# SPDX-License-Identifier: Apache-2.0
"""Text on its way out: stop strings never show, characters stay whole, nothing is lost."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from native import Native, shared_object

SHIM = r"""
#include "stream.h"
#include <stdlib.h>
#include <string.h>
/* Feeds `count` tokens; writes what is shown after each, with its length, until a stop string appears. */
int shim_stream(const uint8_t *text, const uint32_t *bytes, uint32_t count, const char *stops,
                const uint32_t *stop_bytes, uint32_t stop_count, uint32_t capacity, uint8_t *out, uint32_t *shown);
int shim_stream(const uint8_t *text, const uint32_t *bytes, uint32_t count, const char *stops,
                const uint32_t *stop_bytes, uint32_t stop_count, uint32_t capacity, uint8_t *out, uint32_t *shown)
{
    struct colibri_request request = {.stop_count = stop_count};
    for (uint32_t i = 0; i < stop_count; i++) {
        request.stop[i] = stops;
        request.stop_bytes[i] = stop_bytes[i];
        stops += stop_bytes[i];
    }
    struct col_stream stream = {0};
    struct col_arena arena = {0};
    col_stream_layout(&stream, &arena, capacity);
    stream.text = malloc(stream.capacity); /* exact, so that the sanitizer sees a byte too many */
    col_stream_reset(&stream);
    int stopped = 0;
    for (uint32_t i = 0; i < count && !stopped; i++) {
        stopped = col_stream_add(&stream, &request, text, bytes[i], i + 1u == count);
        memcpy(out, stream.text, stream.shown);
        out += stream.shown;
        shown[i] = stream.shown;
        text += bytes[i];
    }
    free(stream.text);
    return stopped;
}
"""


@pytest.fixture(scope="module")
def stream(tmp_path_factory: pytest.TempPathFactory) -> Native:
    sources = ["stream.c", "arena.c", "compare.c", "utf8.c"]
    return Native(
        shared_object(tmp_path_factory.mktemp("stream"), sources, SHIM),
        "int shim_stream(const uint8_t *, const uint32_t *, uint32_t, const char *, const uint32_t *, uint32_t,"
        " uint32_t, uint8_t *, uint32_t *);",
    )


def feed(stream: Native, pieces: Sequence[bytes], stops: Sequence[bytes]) -> tuple[bool, list[bytes]]:
    ffi = stream.ffi
    out = ffi.new("uint8_t[]", sum(map(len, pieces)) + 1)
    shown = ffi.new("uint32_t[]", len(pieces))
    stopped = stream.lib.shim_stream(
        b"".join(pieces), ffi.new("uint32_t[]", [len(p) for p in pieces]), len(pieces), b"".join(stops),
        ffi.new("uint32_t[]", [len(s) for s in stops]), len(stops), max(map(len, pieces)), out, shown,
    )  # fmt: skip
    parts, at = [], 0
    for n in shown:
        parts.append(bytes(out[at : at + n]))
        at += n
    return bool(stopped), parts


def cut(data: bytes, places: Sequence[int]) -> list[bytes]:
    edges = [0, *sorted({p % (len(data) + 1) for p in places}), len(data)]
    return [data[a:b] for a, b in pairwise(edges)]


def expected(text: bytes, pieces: Sequence[bytes], stops: Sequence[bytes]) -> tuple[bool, bytes]:
    """The first moment at which a stop string is complete ends the text, before the leftmost one then complete."""
    sofar = b""
    for piece in pieces:
        sofar += piece
        found = [at for s in stops if (at := sofar.find(s)) >= 0]
        if found:
            return True, sofar[: min(found)]
    return False, text


texts = st.one_of(
    st.text(max_size=60).map(str.encode),
    st.text("ab", max_size=40).map(str.encode),
    st.text("aé€😀", max_size=30).map(str.encode),
    st.binary(max_size=40),
)


stop_texts = st.one_of(st.text("abé", min_size=1, max_size=5).map(str.encode), st.binary(min_size=1, max_size=4))


@given(
    text=texts,
    places=st.lists(st.integers(0, 10_000), max_size=40),
    stops=st.lists(stop_texts, max_size=4),
)
@settings(max_examples=600, deadline=None)
def test_shown_text(stream: Native, text: bytes, places: list[int], stops: list[bytes]) -> None:
    pieces = cut(text, places)
    stopped, parts = feed(stream, pieces, stops)
    assert (stopped, b"".join(parts)) == expected(text, pieces, stops)


@given(text=st.text("aé€😀\U0001f468‍", min_size=1, max_size=40), places=st.lists(st.integers(0, 10_000), max_size=60))
@settings(max_examples=300, deadline=None)
def test_characters_stay_whole(stream: Native, text: str, places: list[int]) -> None:
    _, parts = feed(stream, cut(text.encode(), places), [])
    assert "".join(part.decode("utf-8") for part in parts) == text


def test_stop_string_of_the_longest_length(stream: Native) -> None:
    stop = b"x" * 64
    pieces = [b"y", *[b"x"] * 63, b"z", *[b"x"] * 64, b"never"]
    stopped, parts = feed(stream, pieces, [stop])
    assert stopped
    assert b"".join(parts) == b"y" + b"x" * 63 + b"z"
