# SPDX-License-Identifier: Apache-2.0
"""Frames: the SDK and the device against independent vectors, and against each other on arbitrary bytes."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from colibri_sdk.link.frames import PAYLOAD_MAX, Deframer, Frame, Noise, decode, encode
from link.line_tool import LineTool, hexed

# The tool keeps no state between lines, so one serves all examples.
shared_tool = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)

frames = st.builds(
    Frame,
    kind=st.integers(1, 10),
    seq=st.integers(0, 255),
    ack=st.integers(0, 255),
    credit=st.integers(0, 127),
    session=st.integers(0, 0xFFFFFFFF),
    payload=st.binary(max_size=PAYLOAD_MAX),
)


def on_device(text: str) -> list[Frame | None]:
    """What the tool's `decode` has printed; None for a damaged run."""
    found: list[Frame | None] = []
    for word in text.split():
        if word == "damaged":
            found.append(None)
            continue
        version, kind, seq, ack, credit, session, payload = word.split(",")
        data = b"" if payload == "-" else bytes.fromhex(payload)
        found.append(Frame(int(kind), int(seq), int(ack), int(credit), int(session), data, int(version)))
    return found


def in_python(stream: bytes) -> list[Frame | None]:
    return [None if isinstance(item, Noise) else item for item in Deframer().feed(stream)]


def frame_of(vector: dict[str, Any]) -> Frame:
    payload = bytes.fromhex(vector["payload"])
    return Frame(vector["kind"], vector["seq"], vector["ack"], vector["credit"], vector["session"], payload)


def test_stuffing_vectors_on_the_device(vectors: dict[str, Any], line_tool: LineTool) -> None:
    for case in vectors["cobs"]:
        assert line_tool.ask("encode", case["raw"] or "-") == case["encoded"]
        assert line_tool.ask("uncobs", case["encoded"]) == (case["raw"] or "-")


def test_frame_vectors(vectors: dict[str, Any], line_tool: LineTool) -> None:
    for case in vectors["frames"]:
        frame = frame_of(case)
        assert encode(frame).hex() == case["wire"]
        assert in_python(bytes.fromhex(case["wire"])) == [frame]
        made = line_tool.ask(
            "frame", frame.kind, frame.seq, frame.ack, frame.credit, frame.session, hexed(frame.payload)
        )
        assert made == case["wire"]
        assert on_device(line_tool.ask("decode", case["wire"])) == [frame]


def test_damaged_vectors(vectors: dict[str, Any], line_tool: LineTool) -> None:
    good = vectors["frames"][0]
    for case in vectors["damaged"]:
        assert decode(bytes.fromhex(case["between_delimiters"])) is None, case["name"]
        stream = "00" + case["between_delimiters"] + "00" + good["wire"]
        assert in_python(bytes.fromhex(stream)) == [None, frame_of(good)], case["name"]
        assert on_device(line_tool.ask("decode", stream)) == [None, frame_of(good)], case["name"]


@shared_tool
@given(frame=frames)
def test_both_sides_make_the_same_bytes(line_tool: LineTool, frame: Frame) -> None:
    wire = encode(frame)
    made = line_tool.ask("frame", frame.kind, frame.seq, frame.ack, frame.credit, frame.session, hexed(frame.payload))
    assert made == wire.hex()
    assert on_device(line_tool.ask("decode", wire.hex())) == [frame] == in_python(wire)


@shared_tool
@given(stream=st.lists(st.one_of(st.binary(max_size=40), frames.map(encode), st.just(b"\0"))).map(b"".join))
def test_both_sides_read_any_stream_alike(line_tool: LineTool, stream: bytes) -> None:
    assert on_device(line_tool.ask("decode", hexed(stream))) == in_python(stream)


@shared_tool
@given(
    first=frames,
    second=frames,
    data=st.data(),
)
def test_damage_never_makes_another_frame(
    line_tool: LineTool, first: Frame, second: Frame, data: st.DataObject
) -> None:
    """One frame is damaged at any place in any way: it is lost or whole, and the next one always arrives."""
    wire = bytearray(encode(first))
    at = data.draw(st.integers(1, len(wire) - 2))
    how = data.draw(st.sampled_from(["flip", "drop", "double", "insert"]))
    if how == "flip":
        wire[at] ^= data.draw(st.integers(1, 255))
    elif how == "drop":
        del wire[at]
    else:
        wire.insert(at, wire[at] if how == "double" else data.draw(st.integers(0, 255)))
    stream = bytes(wire) + encode(second)
    for found in (in_python(stream), on_device(line_tool.ask("decode", stream.hex()))):
        assert found[-1] == second
        assert all(frame is None or frame == first for frame in found[:-1])


def test_noise_without_end_does_not_fill_the_memory() -> None:
    deframer = Deframer()
    for _ in range(1000):
        assert list(deframer.feed(b"x" * 1000)) == []
    good = Frame(3, ack=1)
    noise, frame = deframer.feed(encode(good))
    assert isinstance(noise, Noise)
    assert len(noise.data) < 5000
    assert frame == good


@shared_tool
@given(data=st.binary(max_size=60), layout=st.text("bhwqfs", min_size=1, max_size=12))
def test_cursors_stay_inside_the_body(line_tool: LineTool, data: bytes, layout: str) -> None:
    """What was read and written again is a prefix of the body; "whole" exactly when it is all of it."""
    verdict, again = line_tool.ask("body", layout, hexed(data)).split()
    written = b"" if again == "-" else bytes.fromhex(again)
    if verdict == "whole":
        assert written == data
    elif verdict == "long":
        assert data.startswith(written)
        assert len(written) < len(data)


def test_bodies_on_the_device(vectors: dict[str, Any], line_tool: LineTool) -> None:
    for name, case in vectors["bodies"].items():
        if "layout" in case:
            assert line_tool.ask("body", case["layout"], case["bytes"]) == f"whole {case['bytes']}", name
            assert line_tool.ask("body", case["layout"], case["bytes"] + "00").startswith("long"), name
            assert line_tool.ask("body", case["layout"], case["bytes"][:-2]).startswith("short"), name


def test_floats_must_be_finite(line_tool: LineTool) -> None:
    for bits in ("0000807f", "000080ff", "0000c07f", "010080ff"):
        assert line_tool.ask("body", "f", bits).startswith("short")
    assert line_tool.ask("body", "f", "ffff7f7f") == "whole ffff7f7f"
