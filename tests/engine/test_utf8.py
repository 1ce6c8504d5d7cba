# SPDX-License-Identifier: Apache-2.0
"""UTF-8 against Python's decoder."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from native import Native

INVALID = 0xFFFFFFFF


def decode_all(native: Native, data: bytes) -> list[int]:
    """Code points; an invalid byte as the surrogate by which Python escapes it."""
    length = native.ffi.new("uint32_t *")
    points, at = [], 0
    kept = native.ffi.from_buffer(data)
    while at < len(data):
        point = native.lib.col_utf8_decode(native.ffi.cast("const uint8_t *", kept) + at, len(data) - at, length)
        if point == INVALID:
            assert length[0] == 1
            point = 0xDC00 + data[at]
        points.append(point)
        at += length[0]
    assert at == len(data)
    return points


def test_every_code_point(native: Native) -> None:
    points = [point for point in range(0x110000) if not 0xD800 <= point < 0xE000]
    assert decode_all(native, "".join(map(chr, points)).encode()) == points


# Bytes near the edges of UTF-8's table, so that almost-right sequences are the rule.
EDGES = [0x00, 0x41, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xC1, 0xC2, 0xDF, 0xE0, 0xE1, 0xEC, 0xED, 0xEE,
         0xEF, 0xF0, 0xF1, 0xF3, 0xF4, 0xF5, 0xFF]  # fmt: skip
mixed_bytes = st.one_of(st.binary(max_size=40), st.lists(st.sampled_from(EDGES), max_size=12).map(bytes))


@settings(max_examples=1000, deadline=None)
@given(data=mixed_bytes)
def test_arbitrary_bytes(native: Native, data: bytes) -> None:
    expected = [ord(character) for character in data.decode("utf-8", "surrogateescape")]
    assert decode_all(native, data) == expected


# Every beginning of an encoded character that is not yet the whole one.
UNFINISHED = {
    encoded[:cut]
    for point in range(0x80, 0x110000)
    if not 0xD800 <= point < 0xE000
    for encoded in [chr(point).encode()]
    for cut in range(1, len(encoded))
}


@settings(max_examples=1000, deadline=None)
@given(data=st.one_of(mixed_bytes, st.text(max_size=8).map(str.encode)))
def test_complete_holds_back_what_more_bytes_could_finish(native: Native, data: bytes) -> None:
    for end in range(len(data) + 1):
        held_back = next((back for back in (3, 2, 1) if back <= end and data[end - back : end] in UNFINISHED), 0)
        assert native.lib.col_utf8_complete(data[:end], end) == end - held_back
