# SPDX-License-Identifier: Apache-2.0
"""Device and the host board, with the fake engine, in real time: what a caller asks, and stopping early."""

from __future__ import annotations

import gc
import hashlib
import socket
import struct
import threading
from collections.abc import Callable

import numpy as np
import pytest

from colibri_sdk.device import Device
from colibri_sdk.errors import DeviceError, UsageError
from colibri_sdk.link import messages
from colibri_sdk.link.messages import Type
from colibri_sdk.link.session import Answer, Call, Session
from colibri_sdk.segments import Segment
from colibri_sdk.status import Status
from link.by_hand import ByHand, generate_body

BOS = 256


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
    generation = device.generate("hello", ignore_eos=True, slide=True)  # without end
    cancelled: list[bool] = []
    worker: threading.Thread | None = None
    for token in generation:
        if token.index == 5:
            worker = threading.Thread(target=lambda: cancelled.append(device.cancel()))
            worker.start()
    assert worker is not None
    worker.join()
    assert (cancelled, generation.result.finish_reason) == ([True], "cancelled")
    assert device.cancel() is False


def test_leaving_the_loop_cancels(device: Device) -> None:
    generation = device.generate("hello", ignore_eos=True, slide=True)  # without end
    for token in generation:
        if token.index == 3:
            break
    assert device.generate("again", max_tokens=2, ignore_eos=True).result.generated_tokens == 2
    assert generation.result.finish_reason == "cancelled"


def test_dropping_a_generation_cancels(device: Device) -> None:
    device.generate("hello", ignore_eos=True, slide=True)  # without end
    gc.collect()
    assert device.generate("again", max_tokens=2, ignore_eos=True).result.generated_tokens == 2


def test_an_interrupt_cancels_and_the_session_goes_on(device: Device) -> None:
    generation = device.generate("hello", ignore_eos=True, slide=True)  # without end
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
