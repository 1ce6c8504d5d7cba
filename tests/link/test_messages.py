# SPDX-License-Identifier: Apache-2.0
"""Bodies of messages against the independent vectors."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colibri_sdk.errors import UsageError
from colibri_sdk.link import messages
from colibri_sdk.link.messages import (
    ErrorBody,
    GenerateFlag,
    GenerateRequest,
    Hello,
    IdSegment,
    MalformedError,
    Reader,
    TextSegment,
    Type,
)
from colibri_sdk.link.prompts import generate_request
from colibri_sdk.segments import Segment

SAMPLING: dict[str, Any] = {
    "max_tokens": 0,
    "temperature": 0.0,
    "top_k": 0,
    "top_p": 0.0,
    "repetition_penalty": 0.0,
    "seed": 0,
    "stop": (),
    "slide_keep": 0,
    "flags": GenerateFlag(0),
}


def body(vectors: dict[str, Any], name: str) -> tuple[bytes, dict[str, Any]]:
    case = vectors["bodies"][name]
    return bytes.fromhex(case["bytes"]), case["fields"]


def test_hello(vectors: dict[str, Any]) -> None:
    data, fields = body(vectors, "hello")
    hello = Hello.read(Reader(data))
    assert {name: getattr(hello, name) for name in fields} == fields


def test_error(vectors: dict[str, Any]) -> None:
    data, fields = body(vectors, "error")
    assert vars(ErrorBody.read(Reader(data))) == fields


def test_generate(vectors: dict[str, Any]) -> None:
    data, fields = body(vectors, "generate")
    segments = [TextSegment(bytes.fromhex(v)) if kind == "text" else IdSegment(v) for kind, v in fields["segments"]]
    request = GenerateRequest(
        segments,
        GenerateFlag.IGNORE_EOS | GenerateFlag.TRACE_ROUTING,
        fields["max_tokens"],
        fields["top_k"],
        fields["temperature"],
        fields["top_p"],
        fields["repetition_penalty"],
        fields["seed"],
        [text.encode() for text in fields["stop"]],
    )
    assert request.pack() == data


def test_tokens_and_routes(vectors: dict[str, Any]) -> None:
    data, fields = body(vectors, "tokens")
    tokens = [[t.id, t.index, t.position, t.text.decode()] for t in messages.read_tokens(Reader(data))]
    assert tokens == fields["tokens"]
    data, fields = body(vectors, "routes")
    routes = [[r.layer, r.position, list(r.experts), list(r.weights)] for r in messages.read_routes(Reader(data))]
    assert routes == fields["routes"]


@given(data=st.binary(max_size=200))
def test_arbitrary_bodies_are_refused_or_read(data: bytes) -> None:
    """A body of another version may be anything: MalformedError, or a value; never another exception."""
    readers = [
        Hello.read,
        messages.Info.read,
        ErrorBody.read,
        messages.GenerateResult.read,
        messages.DeviceStats.read,
        messages.SelftestReport.read,
        messages.FaultBody.read,
        messages.read_tokens,
        messages.read_routes,
    ]
    for read in readers:
        try:
            read(Reader(data))
        except MalformedError:
            pass


def test_counts_that_lie_allocate_nothing() -> None:
    lying = b"\0" * 12 + (0xFFFFFFFF).to_bytes(4, "little")
    with pytest.raises(MalformedError):
        messages.GenerateResult.read(Reader(lying[:12] + b"\0" * 56 + b"\xff" * 4))
    with pytest.raises(MalformedError):
        messages.read_routes(Reader(b"\0" * 8 + b"\xff" * 4))


def test_prompt_forms() -> None:
    text = generate_request("hi", chat=True, **SAMPLING)
    assert text == GenerateRequest([TextSegment(b"hi")], GenerateFlag.TEMPLATE).pack()
    plain = generate_request("hi", chat=False, **SAMPLING)
    assert plain == GenerateRequest([TextSegment(b"hi")], GenerateFlag(0)).pack()
    ids = generate_request([1, 2, 3], chat=True, **SAMPLING)
    assert ids == GenerateRequest([IdSegment([1, 2, 3])], GenerateFlag(0)).pack()
    mixed = [Segment(7), Segment(8), Segment(text="a"), Segment(text="b\udcff"), Segment(9)]
    wanted = [IdSegment([7, 8]), TextSegment(b"ab\xff"), IdSegment([9])]
    assert generate_request(mixed, chat=True, **SAMPLING) == GenerateRequest(wanted, GenerateFlag(0)).pack()


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_tokens": -1},
        {"seed": 1 << 64},
        {"temperature": 1e300},
        {"stop": ["x"] * 5},
        {"stop": [""]},
        {"stop": "x" * 65},
    ],
)
def test_what_no_device_could_take_is_refused_here(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        generate_request("hi", chat=True, **{**SAMPLING, **wrong})
    with pytest.raises(UsageError):
        generate_request([-1], chat=True, **SAMPLING)


def test_header() -> None:
    header, rest = messages.split(messages.join(Type.INFO, 0x01020304, b"xy"))
    assert (header.type, header.request, rest) == (2, 0x01020304, b"xy")
    with pytest.raises(MalformedError):
        messages.split(b"\0" * 7)
