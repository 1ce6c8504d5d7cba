# SPDX-License-Identifier: Apache-2.0
"""What must travel: every page that differs, and few others; against a comparison page by page."""

from __future__ import annotations

import hashlib
import random
import zlib

from hypothesis import given
from hypothesis import strategies as st

from colibri_sdk.update.content import Content, Range, differing, joined, pieces_to_send, without

PAGE = 4096


def content_of(data: bytes) -> Content:
    return Content(lambda at, count: data[at : at + count], len(data))


def compare(new: bytes, there: bytes, parts: list[Range]) -> tuple[list[Range], int, int]:
    """The missing parts, how often a checksum was asked for, and how many bytes were reported as settled."""
    asked = settled = 0

    def crc_there(part: Range) -> int:
        nonlocal asked
        asked += 1
        return zlib.crc32(there[part.start : part.end])

    def settle(count: int) -> None:
        nonlocal settled
        settled += count

    return differing(content_of(new), crc_there, parts, settle), asked, settled


def pages(parts: list[Range]) -> set[int]:
    return {page for part in parts for page in range(part.start // PAGE, part.end // PAGE)}


@given(st.integers(1, 700), st.data())
def test_each_page_that_differs_is_found(count: int, data: st.DataObject) -> None:
    changed = data.draw(st.sets(st.integers(0, count - 1), max_size=8))
    cuts = sorted(data.draw(st.sets(st.integers(1, count), max_size=3)) | {count})
    old = bytes(count * PAGE)
    new = bytearray(old)
    for page in changed:
        new[page * PAGE + page % PAGE] = 1
    parts = [Range(a * PAGE, (b - a) * PAGE) for a, b in zip([0, *cuts], cuts, strict=False)]
    missing, _, settled = compare(bytes(new), old, parts)
    assert changed <= pages(missing)
    assert settled == count * PAGE
    assert missing == joined(missing) == sorted(missing)
    # Too much is sent only where all three samples of a long part differ.
    if len(changed) < 3:
        assert pages(missing) == changed


def test_one_changed_page_of_a_megabyte_costs_few_questions() -> None:
    new = bytearray(1 << 20)
    new[300_000] = 1
    missing, asked, _ = compare(bytes(new), bytes(1 << 20), [Range(0, 1 << 20)])
    assert missing == [Range(300_000 // PAGE * PAGE, PAGE)]
    assert asked <= 1 + 16 + 16 + 3


def test_what_is_all_new_is_not_looked_at_page_by_page() -> None:
    new = random.Random(1).randbytes(1 << 20)
    missing, asked, _ = compare(new, bytes(1 << 20), [Range(0, 1 << 20)])
    assert missing == [Range(0, 1 << 20)]
    assert asked == 1 + 3 + 3  # the whole, three pieces, three pages of the first


def test_an_interrupted_transfer_goes_on_where_it_stopped() -> None:
    """What was sent in order is a beginning that is right; the rest, from the page that was cut, is missing."""
    new = random.Random(2).randbytes(1 << 20)
    for arrived in (0, 1, PAGE, 77 * PAGE, 77 * PAGE + 512, (1 << 20) - 1):
        missing, _, _ = compare(new, new[:arrived].ljust(1 << 20, b"\0"), [Range(0, 1 << 20)])
        start = arrived // PAGE * PAGE
        assert missing == [Range(start, (1 << 20) - start)]


def test_equal_parts_cost_one_question_each() -> None:
    data = random.Random(3).randbytes(64 * PAGE)
    missing, asked, settled = compare(data, data, [Range(0, 10 * PAGE), Range(10 * PAGE, 54 * PAGE)])
    assert (missing, asked, settled) == ([], 2, 64 * PAGE)


@given(st.sets(st.integers(0, 40)), st.sets(st.integers(0, 40)), st.booleans())
def test_without_is_the_difference_of_sets(whole: set[int], taken: set[int], apart: bool) -> None:
    """Gaps may reach over several parts, and beyond them."""
    parts = sorted(Range(page * PAGE, PAGE) for page in whole)
    gaps = joined([Range(page * PAGE, PAGE) for page in taken])
    left = without(parts if apart else joined(parts), gaps)
    assert pages(left) == whole - taken
    assert sum(part.bytes for part in left) == PAGE * len(whole - taken)


def test_pieces_have_the_size_of_a_request() -> None:
    data = random.Random(4).randbytes(20 * PAGE)
    pieces = list(pieces_to_send(content_of(data), [Range(PAGE, 3 * PAGE), Range(10 * PAGE, PAGE)]))
    assert [offset for offset, _ in pieces] == [PAGE, 2 * PAGE, 3 * PAGE, 10 * PAGE]
    assert all(piece == data[offset : offset + PAGE] for offset, piece in pieces)


def test_checksums_of_content_are_those_of_its_bytes() -> None:
    data = random.Random(5).randbytes((1 << 20) + 3 * PAGE)
    content = content_of(data)
    assert content.crc(Range(PAGE, len(data) - PAGE)) == zlib.crc32(data[PAGE:])
    assert content.digest == hashlib.blake2b(data, digest_size=32).digest()
