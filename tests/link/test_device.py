# SPDX-License-Identifier: Apache-2.0
"""Device and the host board, with the fake engine, in real time: everything a caller can do or suffer."""

from __future__ import annotations

import gc
import hashlib
import itertools
import os
import re
import socket
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from colibri_sdk.device import Device
from colibri_sdk.errors import (
    DeviceError,
    DeviceFaultError,
    LinkLostError,
    LinkTimeoutError,
    NoDeviceError,
    UsageError,
)
from colibri_sdk.link import messages
from colibri_sdk.link.frames import Deframer, Frame, Kind, encode
from colibri_sdk.link.messages import Type
from colibri_sdk.link.session import Answer, Call, Session
from colibri_sdk.segments import Segment
from colibri_sdk.status import Status

Start = Callable[..., subprocess.Popen[bytes]]
BOS = 256


@pytest.fixture
def line(run_host: Start) -> socket.socket:
    """The far end of a fresh host board's line."""
    ours, theirs = socket.socketpair()
    with theirs:
        run_host("--fd", str(theirs.fileno()), pass_fds=[theirs.fileno()])
    return ours


@pytest.fixture
def device(line: socket.socket, fake_host: Path) -> Iterator[Device]:
    with Device.open(line, elf=fake_host) as opened:
        yield opened


# ------------------------------------------------------------------------------------------------------- answers


def test_info(device: Device) -> None:
    info = device.info()
    assert (info.board, info.model, info.state, info.kernels) == ("host", "fake", "ready", "fake")
    assert bytes.fromhex(info.image_id) == b"fake image id 1\0"
    assert (info.vocab, info.layers, info.max_experts, info.top_k, info.context) == (259, 2, 4, 2, 2048)
    assert (info.image_bytes, info.arena_bytes, info.status) == (8192, 8192, 0)
    assert info.memory_bytes == 2 << 30


def test_generate(device: Device) -> None:
    generation = device.generate("hello", max_tokens=20, ignore_eos=True)
    tokens = list(generation)
    result = generation.result
    assert [token.index for token in tokens] == list(range(20))
    assert [token.position for token in tokens] == list(range(6, 26))
    assert result.token_ids == tuple(token.id for token in tokens)
    assert result.text == "".join(token.text for token in tokens)
    assert result.prompt_ids == (BOS, *b"hello")
    assert (result.prompt_tokens, result.generated_tokens, result.finish_reason) == (6, 20, "length")
    assert 0 < result.wall_first_token_seconds <= result.wall_seconds


def test_a_character_of_two_tokens_comes_whole(device: Device) -> None:
    tokens = list(device.generate("hello", max_tokens=300, ignore_eos=True))
    halves = [index for index, token in enumerate(tokens) if token.id == 0xC3][:-1]
    assert halves
    assert all((tokens[i].text, tokens[i + 1].text) == ("", "é") for i in halves)


def test_traces(device: Device) -> None:
    """The logits that come are those of the digest; routing is that of the position before the token."""
    generation = device.generate("hello", max_tokens=7, trace_logits=True, trace_routing=True)
    digest = hashlib.sha256()
    for token in generation:
        assert token.logits is not None
        assert token.logits.shape == (259,)
        digest.update(token.logits.astype("<f4").tobytes())
        assert token.routing is not None
        assert [[expert for expert, _ in layer] for layer in token.routing] == [
            [first, first + 1] for first in (layer[0][0] for layer in token.routing)
        ]
        assert [weight for layer in token.routing for _, weight in layer] == [0.75, 0.25] * 2
    assert digest.hexdigest() == generation.result.logits_sha256


def test_logits_are_those_of_the_generation(device: Device) -> None:
    generation = device.generate([1, 2, 3], max_tokens=1, trace_logits=True)
    (token,) = generation
    found = device.logits([1, 2, 3], last=2)
    assert found.logits.shape == (2, 259)
    assert token.logits is not None
    assert np.array_equal(found.logits[1], token.logits)
    assert len(found.routing) == 3
    assert all(len(layers) == 2 for layers in found.routing)


def test_prompt_forms(device: Device) -> None:
    def prompt_ids(prompt: object, chat: bool = True) -> tuple[int, ...]:
        return device.generate(prompt, chat=chat, max_tokens=1).result.prompt_ids  # type: ignore[arg-type]

    assert prompt_ids("ab") == (BOS, 97, 98)
    assert prompt_ids("ab", chat=False) == (97, 98)
    assert prompt_ids([5, 6]) == (5, 6)
    assert prompt_ids([Segment(257), Segment(text="a"), Segment(text="é"), Segment(258)]) == (257, 97, 0xC3, 0xA9, 258)
    assert prompt_ids("\udcff") == (BOS, 0xFF)
    assert device.tokenize("aé") == [97, 0xC3, 0xA9]
    assert device.tokenize("a", chat=True) == [BOS, 97]
    assert device.tokenize("") == []


def test_a_prompt_as_long_as_it_may_be(device: Device) -> None:
    ids = [i % 256 for i in range(2048)]
    generation = device.generate(ids, max_tokens=5, ignore_eos=True)
    assert (generation.result.finish_reason, generation.result.generated_tokens) == ("context", 1)
    assert generation.result.prompt_ids == tuple(ids)


@pytest.mark.parametrize(
    ("prompt", "status", "got", "wanted"),
    [
        ([0] * 2049, Status.E_CONTEXT_FULL, 2049, 2048),
        ("x" * 2048, Status.E_CONTEXT_FULL, 2049, 2048),
        ("x" * 4097, Status.E_TEXT_SIZE, 4097, 4096),
        ([259], Status.E_TOKEN_RANGE, 259, 259),
        ([], Status.E_NO_PROMPT, 0, 0),
    ],
)
def test_prompts_that_do_not_fit(device: Device, prompt: object, status: Status, got: int, wanted: int) -> None:
    with pytest.raises(DeviceError) as raised:
        _ = device.generate(prompt, max_tokens=1).result  # type: ignore[arg-type]
    assert (raised.value.status, raised.value.got, raised.value.wanted) == (status, got, wanted)
    assert "GENERATE" in str(raised.value)
    assert device.generate("next", max_tokens=1).result.generated_tokens == 1


def test_a_message_too_long_for_the_device(device: Device) -> None:
    with pytest.raises(UsageError, match="16384"):
        device.generate([0] * 5000)


def test_sampling_is_checked_by_the_device(device: Device) -> None:
    with pytest.raises(DeviceError) as raised:
        _ = device.generate("x", temperature=101.0).result
    assert raised.value.status == Status.E_ARGUMENT
    with pytest.raises(DeviceError) as raised:
        _ = device.generate("x", temperature=float("nan")).result
    assert raised.value.status == Status.E_REQUEST


def test_stop_strings(device: Device) -> None:
    whole = device.generate("hello", max_tokens=200, ignore_eos=True).result.text
    stop = whole[40:43]
    result = device.generate("hello", max_tokens=200, ignore_eos=True, stop=["never seen", stop]).result
    assert result.finish_reason == "stop"
    assert whole.startswith(result.text)
    assert len(result.text) < 43


def test_stats(device: Device) -> None:
    device.clear_stats()
    result = device.generate("hello", max_tokens=10, ignore_eos=True).result
    stats = device.stats()
    computed = result.prompt_tokens + result.generated_tokens - 1
    assert stats.tokens == computed
    assert [sum(expert.tokens for expert in layer) for layer in stats.experts] == [2 * computed] * 2
    assert (stats.arena_bytes, stats.canary_intact, stats.kernels) == (8192, True, "fake")
    assert stats.link.frames_received > 0
    assert stats.link.frames_damaged == 0
    device.clear_stats()
    assert device.stats().tokens == 0


def test_requests_ahead_of_their_answers(device: Device) -> None:
    """Results come in the order of the requests; an error comes in its turn, and the next request works."""
    texts = [b"a" * (count + 1) for count in range(40)]
    answers = device.requests(Type.TOKENIZE, (messages.pack_tokenize(text, template=False) for text in texts), ahead=4)
    assert [struct.unpack_from("<I", body)[0] for body in answers] == [len(text) for text in texts]
    assert device.request(Type.TOKENIZE, messages.pack_tokenize(b"ab", template=False))[:4] == b"\2\0\0\0"
    answers = device.requests(Type.STATS, [b"\0", b"\x02", b"\0"], ahead=3)
    assert next(answers)
    with pytest.raises(DeviceError) as raised:
        next(answers)
    assert raised.value.status == Status.E_REQUEST
    assert device.stats().tokens >= 0


def test_selftest(device: Device) -> None:
    report = device.selftest()
    assert (report.kernels, report.cases, report.ok) == ("fake", 7, True)


def test_logs(device: Device) -> None:
    assert next(device.logs).startswith("info: fake: image 8192 bytes, arena 8192 bytes, kernels fake")


# -------------------------------------------------------------------------------------------------- stopping early


def test_cancel_from_another_thread(device: Device) -> None:
    generation = device.generate("hello", ignore_eos=True)
    cancelled: list[bool] = []
    worker: threading.Thread | None = None
    for token in generation:
        if token.index == 5:
            worker = threading.Thread(target=lambda: cancelled.append(device.cancel()))
            worker.start()
    assert worker is not None
    worker.join(10)
    assert generation.result.finish_reason in ("cancelled", "context")  # it may have been the faster one
    assert cancelled == [generation.result.finish_reason == "cancelled"]
    assert device.cancel() is False


def test_leaving_the_loop_cancels(device: Device) -> None:
    generation = device.generate("hello", ignore_eos=True)
    for token in generation:
        if token.index == 3:
            break
    assert device.generate("again", max_tokens=2, ignore_eos=True).result.generated_tokens == 2
    assert generation.result.finish_reason in ("cancelled", "context")


def test_dropping_a_generation_cancels(device: Device) -> None:
    device.generate("hello", ignore_eos=True)
    gc.collect()
    assert device.generate("again", max_tokens=2, ignore_eos=True).result.generated_tokens == 2


def test_an_interrupt_cancels_and_the_session_goes_on(device: Device) -> None:
    generation = device.generate("hello", ignore_eos=True)
    with pytest.raises(KeyboardInterrupt):
        for token in generation:
            if token.index == 3:
                raise KeyboardInterrupt
    assert device.generate("again", max_tokens=2, ignore_eos=True).result.generated_tokens == 2


@pytest.mark.parametrize("ask", [lambda d: d.logits([1] * 2000), Device.selftest, Device.stats, Device.clear_stats])
def test_an_interrupt_while_a_single_answer_is_awaited_cancels(
    device: Device, ask: Callable[[Device], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next request comes when the device has ended that one, and is not refused as busy."""

    def interrupted(_session: Session, call: Call) -> Answer:
        calls.append(call)
        raise KeyboardInterrupt

    calls: list[Call] = []
    with monkeypatch.context() as patch:
        patch.setattr(Session, "next", interrupted)
        with pytest.raises(KeyboardInterrupt):
            ask(device)
    assert calls[0].abandoned or calls[0].done.is_set()
    assert device.generate("again", max_tokens=2, ignore_eos=True).result.generated_tokens == 2
    assert calls[0].done.is_set()


def test_cancel_stops_logits(device: Device) -> None:
    """From another thread, as soon as the device has begun."""
    answers: list[bool] = []
    read_routes = messages.read_routes

    def cancel_at_first(reader: messages.Reader) -> object:
        if not answers:
            worker = threading.Thread(target=lambda: answers.append(device.cancel()))
            worker.start()
            worker.join(20)
        return read_routes(reader)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(messages, "read_routes", cancel_at_first)
        try:
            device.logits([1] * 2000)
            status = Status.OK
        except DeviceError as error:
            status = Status(error.status)
    assert (answers, status) in (([True], Status.E_CANCELLED), ([False], Status.OK))  # it may have been the faster one
    assert device.generate("again", max_tokens=2, ignore_eos=True).result.generated_tokens == 2


def test_a_second_request_is_refused(line: socket.socket) -> None:
    """By hand, for Device waits for its own: the second request comes while the first one runs for sure."""
    host = ByHand(line)
    host.open()
    host.send(Type.GENERATE, generate_body(tokens=0), request=1)
    host.send(Type.GENERATE, generate_body(tokens=1), request=2)
    host.send(Type.STATS, b"\1", request=3)  # which clears
    host.send(Type.HELLO, b"", request=4)
    host.send(Type.STATS, b"\0", request=6)
    host.send(Type.CANCEL, struct.pack("<I", 1), request=5)
    answers = host.answers({1, 2, 3, 4, 5, 6})
    assert answers[6][0] == Type.RESULT + Type.STATS
    for number in (2, 3):
        assert answers[number][0] == Type.ERROR
        assert struct.unpack_from("<i", answers[number][1])[0] == Status.E_BUSY
    assert answers[4][0] == Type.RESULT + Type.HELLO
    assert answers[4][1][9] == 1  # busy
    assert answers[5] == (Type.RESULT + Type.CANCEL, b"\x01")
    assert struct.unpack_from("<I", answers[1][1])[0] == 5  # finish: cancelled


# ----------------------------------------------------------------------------------------------- hosts that misbehave


def generate_body(tokens: int) -> bytes:
    head = struct.pack("<HHHHIIfffQ", 2, 1, 0, 0, tokens, 0, 0.0, 0.0, 0.0, 0)
    return head + struct.pack("<BI", 1, 2) + b"hi"


class ByHand:
    """A host that sends what the test says, frame by frame."""

    def __init__(self, line: socket.socket) -> None:
        self.line = line
        self.line.settimeout(20)
        self.session = 0x1234
        self.seq = 0
        self.expected = 0
        self._deframer = Deframer()
        self._parts: list[bytes] = []

    def put(
        self, kind: int, payload: bytes = b"", *, seq: int = 0, version: int = 2, session: int | None = None
    ) -> None:
        chosen = self.session if session is None else session
        self.line.sendall(encode(Frame(kind, seq, self.expected, 32, chosen, payload, version)))

    def syn(self, *, version: int = 2, oldest: int = 2, newest: int = 2, payload: int = 512) -> None:
        self.put(Kind.SYN, struct.pack("<BBHI", oldest, newest, payload, 1 << 20), version=version)

    def open(self) -> Frame:
        self.syn()
        return self.wait_for(Kind.SYN_ACK)

    def frames(self) -> Iterator[Frame]:
        while True:
            data = self.line.recv(65536)
            assert data, "the device has hung up"
            for item in self._deframer.feed(data):
                assert isinstance(item, Frame), item
                yield item

    def wait_for(self, kind: Kind) -> Frame:
        return next(frame for frame in self.frames() if frame.kind == kind)

    def send(self, kind: int, body: bytes, request: int = 1) -> None:
        message = struct.pack("<HHI", kind, 0, request) + body
        for at in range(0, len(message), 512):
            last = at + 512 >= len(message)
            self.put(Kind.DATA if last else Kind.MORE, message[at : at + 512], seq=self.seq)
            self.seq = (self.seq + 1) % 256

    def answers(self, wanted: set[int]) -> dict[int, tuple[int, bytes]]:
        """Results and errors of these requests; events are skipped."""
        found: dict[int, tuple[int, bytes]] = {}
        for frame in self.frames():
            if frame.kind not in (Kind.DATA, Kind.MORE) or frame.seq != self.expected:
                continue
            self.expected = (self.expected + 1) % 256
            self.put(Kind.ACK)
            self._parts.append(frame.payload)
            if frame.kind == Kind.MORE:
                continue
            message = b"".join(self._parts)
            self._parts.clear()
            kind, _, number = struct.unpack_from("<HHI", message)
            if kind >= Type.RESULT:
                assert number not in found, "a second answer"
                found[number] = (kind, message[8:])
            if wanted <= set(found):
                return found
        raise AssertionError

    def status_of(self, kind: int, body: bytes) -> int:
        self.number = getattr(self, "number", 0) + 1
        self.send(kind, body, self.number)
        answer, content = self.answers({self.number})[self.number]
        status: int = struct.unpack_from("<i", content)[0] if answer == Type.ERROR else 0
        return status


def test_requests_that_are_wrong_get_one_error_each(line: socket.socket) -> None:
    host = ByHand(line)
    host.open()
    good = generate_body(tokens=1)
    assert host.status_of(Type.GENERATE, good) == 0
    for cut in range(len(good)):
        assert host.status_of(Type.GENERATE, good[:cut]) == Status.E_REQUEST
    assert host.status_of(Type.GENERATE, good + b"x") == Status.E_REQUEST
    assert host.status_of(Type.GENERATE, b"\xff\xff" + good[2:]) == Status.E_REQUEST
    for kind in (0, 21, 40, 63):
        assert host.status_of(kind, b"any") == Status.E_REQUEST_UNKNOWN
    assert host.status_of(Type.HELLO, b"x") == Status.E_REQUEST
    assert host.status_of(Type.STATS, b"") == Status.E_REQUEST
    assert host.status_of(Type.STATS, b"\x02") == Status.E_REQUEST
    assert host.status_of(Type.CANCEL, b"\0") == Status.E_REQUEST
    assert host.status_of(Type.PROVOKE, struct.pack("<I", 4)) == Status.E_REQUEST
    assert host.status_of(Type.LOGITS, struct.pack("<III", 2, 1, 5)) == Status.E_REQUEST
    assert host.status_of(Type.LOGITS, struct.pack("<II", 1, 0xFFFFFFFF)) == Status.E_REQUEST
    assert host.status_of(Type.TOKENIZE, b"\x01" + b"x" * 20000) == Status.E_REQUEST
    assert host.status_of(Type.TOKENIZE, b"\x00" + b"x" * 4096) == Status.E_CONTEXT_FULL
    assert host.status_of(Type.INFO, b"") == 0


def test_messages_that_are_no_requests_are_dropped(line: socket.socket) -> None:
    host = ByHand(line)
    host.open()
    host.send(Type.INFO, b"", request=0)
    host.send(Type.TOKEN, b"", request=1)
    host.send(Type.RESULT, b"", request=2)
    host.put(Kind.DATA, b"\x02\0\0", seq=host.seq)
    host.seq += 1
    host.send(Type.INFO, b"", request=3)
    assert set(host.answers({3})) == {3}


@pytest.mark.parametrize("how", [{"version": 1, "oldest": 1, "newest": 1}, {"oldest": 3, "newest": 9}])
def test_another_protocol_version_is_told(line: socket.socket, how: dict[str, int]) -> None:
    host = ByHand(line)
    host.syn(**how)
    frames = (frame for frame in host.frames() if frame.kind == Kind.RST and frame.session == host.session)
    assert struct.unpack("<iBB", next(frames).payload) == (Status.E_LINK_VERSION, 2, 2)
    assert host.open().session == host.session  # and with the right one it works


def test_a_device_of_another_version_is_named() -> None:
    ours, theirs = socket.socketpair()
    refusal = Frame(Kind.RST, session=0, payload=struct.pack("<iBB", Status.E_LINK_VERSION, 3, 4))

    def refuse() -> None:
        for frame in Deframer().feed(theirs.recv(65536)):
            assert isinstance(frame, Frame)
            theirs.sendall(encode(Frame(Kind.RST, session=frame.session, payload=refusal.payload, version=3)))

    worker = threading.Thread(target=refuse)
    worker.start()
    with pytest.raises(DeviceError, match="versions 3 to 4") as raised:
        Device.open(ours)
    assert raised.value.status == Status.E_LINK_VERSION
    worker.join(10)
    theirs.close()


def test_unknown_sessions_are_reset(line: socket.socket) -> None:
    host = ByHand(line)
    host.put(Kind.PING, session=77)
    frames = (frame for frame in host.frames() if frame.kind == Kind.RST and frame.session == 77)
    assert next(frames).payload[:4] == b"\0\0\0\0"
    host.open()
    host.put(Kind.DATA, b"x" * 20, session=78)
    frames = (frame for frame in host.frames() if frame.kind == Kind.RST and frame.session == 78)
    next(frames)
    assert host.status_of(Type.INFO, b"") == 0


def test_a_flood_of_garbage(line: socket.socket) -> None:
    """Half a megabyte of noise with and without delimiters, in the middle of a session: the next request works."""
    host = ByHand(line)
    host.open()
    noise = np.random.default_rng(7).integers(0, 256, 1 << 19, dtype=np.uint8).tobytes()

    def flood() -> None:
        line.sendall(noise)
        line.sendall(b"\xaa" * 100000)
        line.sendall(b"\0" * 1000)
        host.put(Kind.PING)

    worker = threading.Thread(target=flood)
    worker.start()
    host.wait_for(Kind.ACK)
    worker.join(20)
    assert host.status_of(Type.INFO, b"") == 0


# ------------------------------------------------------------------------------------------------ crashes and restarts


@pytest.mark.parametrize(("kind", "status"), [(1, Status.E_TRAP), (2, Status.E_TRAP), (3, Status.E_WATCHDOG)])
def test_a_fault_is_reported_and_survived(device: Device, kind: int, status: Status) -> None:
    with pytest.raises(DeviceFaultError) as raised:
        device.provoke_fault(kind)
    error = raised.value
    assert error.status == status
    assert {"pc", "sp", "cause", "address"} <= set(error.registers)
    expected = "answer_provoke" if kind == 3 else "hal_provoke_fault"
    assert re.match(rf"{expected}(\+0x[0-9a-f]+)? \((service|faults)\.c:\d+\)", error.symbol)
    assert "lost: request" in error.message
    device.reboot()
    assert device.generate("x", max_tokens=2, ignore_eos=True).result.generated_tokens == 2


def test_a_fault_ends_a_generation(device: Device) -> None:
    generation = device.generate("hello", ignore_eos=True)
    iterator = iter(generation)
    next(iterator)
    with pytest.raises(DeviceFaultError):
        device.provoke_fault(2)
    with pytest.raises(DeviceFaultError):
        for _ in iterator:
            pass
    with pytest.raises(DeviceFaultError):
        _ = generation.result


def test_a_crashed_device_says_so_to_whoever_comes(run_host: Start, tmp_path: Path) -> None:
    path = tmp_path / "line"
    listening(run_host("--listen", f"unix:{path}", stdout=subprocess.PIPE))
    with Device.open(f"unix:{path}") as device, pytest.raises(DeviceFaultError):
        device.provoke_fault(1)
    with pytest.raises(DeviceFaultError):
        Device.open(f"unix:{path}")
    with Device.open(f"unix:{path}", reboot_crashed=True) as device:
        assert device.info().state == "ready"
    with Device.open(f"unix:{path}") as device:
        assert device.info().state == "ready"


def test_reboot(device: Device) -> None:
    assert device.generate("x", max_tokens=3).result.generated_tokens > 0
    device.reboot()
    assert device.stats().tokens == 0
    assert device.info().state == "ready"


# ------------------------------------------------------------------------------------------------------ lines and cuts


def listening(process: subprocess.Popen[bytes]) -> str:
    """What the host board says it listens on."""
    assert process.stdout is not None
    word, _, where = process.stdout.readline().decode().strip().partition(" ")
    assert word == "listening"
    return where


def test_unix_socket_for_one_client_after_the_other(run_host: Start, tmp_path: Path) -> None:
    path = tmp_path / "line"
    assert listening(run_host("--listen", f"unix:{path}", stdout=subprocess.PIPE)) == f"unix:{path}"
    texts = set()
    for _ in range(3):
        with Device.open(f"unix:{path}") as device:
            texts.add(device.generate("hello", max_tokens=9, ignore_eos=True).result.text)
    assert len(texts) == 1


def test_tcp(run_host: Start) -> None:
    where = listening(run_host("--listen", "tcp:127.0.0.1:0", stdout=subprocess.PIPE))
    _, host, port = where.split(":")
    for name in (f"socket://{host}:{port}", f"tcp:{host}:{port}"):
        with Device.open(name) as device:
            assert device.info().board == "host"


def test_pseudo_terminal(run_host: Start) -> None:
    where = listening(run_host("--pty", stdout=subprocess.PIPE))
    for _ in range(2):
        with Device.open(where.removeprefix("pty:")) as device:
            assert device.generate("hello", max_tokens=9, ignore_eos=True).result.generated_tokens == 9


def test_pipes(run_host: Start) -> None:
    from colibri_sdk.link.transport import DescriptorTransport

    process = run_host("--stdio", stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    line = DescriptorTransport("pipes", process.stdout.fileno(), process.stdin.fileno(), close=process.stdin.close)
    with Device.open(line) as device:
        assert device.info().board == "host"
    assert process.wait(10) == 0  # its line is gone, nobody could reach it
    process.stdin = None  # closed with the line


def test_a_cut_names_the_lost_request_and_the_next_one_reconnects(run_host: Start, tmp_path: Path) -> None:
    """A proxy in between is the cable: it closes both ends in the middle of an answer."""
    path, outside = tmp_path / "device", tmp_path / "cable"
    listening(run_host("--listen", f"unix:{path}", stdout=subprocess.PIPE))
    with Cable(outside, path) as cable, Device.open(f"unix:{outside}") as device:
        generation = device.generate("hello", ignore_eos=True)
        with pytest.raises(LinkLostError, match=r"lost: request GENERATE"):
            for token in generation:
                if token.index == 3:
                    cable.cut()
        with pytest.raises(LinkLostError):
            _ = generation.result
        assert device.generate("again", max_tokens=2, ignore_eos=True).result.generated_tokens == 2


def test_a_line_that_cannot_be_opened_again(line: socket.socket, run_host: Start) -> None:
    with Device.open(line) as device:
        device.info()
        line.shutdown(socket.SHUT_RDWR)
        with pytest.raises(LinkLostError):
            device.info()
        with pytest.raises(LinkLostError, match="cannot be opened again"):
            device.info()


def test_a_silent_line() -> None:
    ours, theirs = socket.socketpair()
    with theirs, pytest.raises(NoDeviceError, match="nothing answers"):
        Device.open(ours, timeout=0.5)


def test_a_device_that_falls_silent(line: socket.socket) -> None:
    """The line stays open, but nothing comes any more: the request fails after the timeout and is named."""
    ours, middle = socket.socketpair()
    stop = threading.Event()

    def relay(source: socket.socket, target: socket.socket) -> None:
        source.settimeout(0.05)
        while not stop.is_set():
            try:
                data = source.recv(4096)
            except TimeoutError:
                continue
            if not data:
                return
            target.sendall(data)

    workers = [threading.Thread(target=relay, args=pair) for pair in ((middle, line), (line, middle))]
    for worker in workers:
        worker.start()
    try:
        with Device.open(ours, timeout=1.0) as device:
            device.info()
            stop.set()
            for worker in workers:
                worker.join(10)
            with pytest.raises(LinkTimeoutError, match="STATS") as raised:
                device.stats()
            assert raised.value.waited_seconds >= 1.0
    finally:
        stop.set()


def test_closed(device: Device) -> None:
    generation = device.generate("hello", ignore_eos=True)
    device.close()
    with pytest.raises(LinkLostError):
        _ = generation.result
    with pytest.raises(LinkLostError, match="closed"):
        device.info()
    device.close()


class Cable:
    """Relays between a listening Unix socket and a device's; `cut` closes both ends, then it can be used again."""

    def __init__(self, outside: Path, device: Path) -> None:
        self._device = device
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(outside))
        self._listener.listen()
        self._ends: list[socket.socket] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)

    def __enter__(self) -> Cable:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            device = socket.socket(socket.AF_UNIX)
            device.connect(str(self._device))
            self._ends += [client, device]
            for pair in itertools.permutations((client, device)):
                threading.Thread(target=self._relay, args=pair, daemon=True).start()

    @staticmethod
    def _relay(source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                target.sendall(data)
        except OSError:
            pass

    def cut(self) -> None:
        for end in self._ends:
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            end.close()
        self._ends.clear()


# ------------------------------------------------------------------------------------------------- the program itself


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "usage"),
        (["--listen", "nonsense"], "unix:PATH or tcp:HOST:PORT"),
        (["--context", "many", "image"], "--context takes a number"),
        (["--arena-limit", "-1", "image"], "--arena-limit takes a number"),
        (["/nowhere/model.colibri"], "/nowhere/model.colibri"),
        (["--block", "x", "image"], "usage"),
        (["--listen", "unix:" + "x" * 200, "IMAGE"], "at most 107 bytes"),
    ],
)
def test_wrong_options(fake_host: Path, fake_image: Path, arguments: list[str], message: str) -> None:
    command = [str(fake_host), *(str(fake_image) if word == "IMAGE" else word for word in arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, stdin=subprocess.DEVNULL, check=False)
    assert done.returncode == 2
    assert message in done.stderr


def test_an_idle_device_sleeps(run_host: Start) -> None:
    """Processor time, not wall time: a device that waits in poll(2) uses next to none."""
    ours, theirs = socket.socketpair()
    with theirs:
        process = run_host("--fd", str(theirs.fileno()), pass_fds=[theirs.fileno()])
    with Device.open(ours) as device:
        device.info()
        before = cpu_ticks(process.pid)
        assert device._session.take_log(0.0) is not None  # "ready"
        assert device._session.take_log(1.0) is None  # a second passes
        assert cpu_ticks(process.pid) - before < os.sysconf("SC_CLK_TCK") // 5


def cpu_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return int(fields[11]) + int(fields[12])
