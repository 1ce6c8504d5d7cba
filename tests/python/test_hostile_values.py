# SPDX-License-Identifier: Apache-2.0
"""Whatever a device or a file says, the answer is an error of this SDK that names it, or a result: never an exception
of Python's."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import struct
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from colibri_sdk import device as devices
from colibri_sdk.answers import Answer
from colibri_sdk.cli.main import run
from colibri_sdk.conversation import Conversation
from colibri_sdk.convert.progress import Silent
from colibri_sdk.device import Device
from colibri_sdk.errors import EXIT_OK, ColibriError, UsageError
from colibri_sdk.flash import volume
from colibri_sdk.flash.contents import signed_models
from colibri_sdk.image.layout import PAGE, UPDATE
from colibri_sdk.image.reader import ImageFile
from colibri_sdk.image.recard import replace_card
from colibri_sdk.link import messages
from colibri_sdk.link.frames import Frame, Kind, encode
from colibri_sdk.link.messages import MalformedError, Reader, Type
from colibri_sdk.link.peer import MAX_MESSAGE, Lost, Peer, State
from colibri_sdk.profiling import trace
from colibri_sdk.profiling.heatmap import snapshot
from colibri_sdk.profiling.replay import expert_bytes
from colibri_sdk.signing import PrivateKey, PublicKey, verify_image
from colibri_sdk.update import report
from colibri_sdk.update.calls import UpdateCalls
from colibri_sdk.update.expert import expert_content, update_expert
from colibri_sdk.update.messages import Begun, Confirmed, RolledBack, UpdateStatus, read_directory
from colibri_sdk.update.model import update_model
from colibri_sdk.update.package import is_package, open_package
from colibri_sdk.update.signer import Signer, counter_of
from fixed_key import KEY
from forge import Forge
from update_board import Board
from update_images import EXPERT, LAYER

RUN = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
BITS = {"B": 8, "H": 16, "I": 32, "Q": 64}


@st.composite
def numbers(draw: st.DrawFn, layout: str) -> bytes:
    """Those of a struct: small ones, so that some are accepted, and the ends of their ranges."""
    packed = b""
    for letter in re.sub(r"(\d+)(\w)", lambda match: int(match[1]) * match[2], layout):
        if letter == "i":
            packed += struct.pack("<i", draw(st.sampled_from([0, -1, -20, -(2**31), 2**31 - 1])))
            continue
        most = 2 ** BITS[letter] - 1
        packed += struct.pack("<" + letter, draw(st.sampled_from([0, 1, 2, 0, 1, 2, 3, most, most // 2 + 1])))
    return packed


@st.composite
def string(draw: st.DrawFn) -> bytes:
    text = draw(st.sampled_from([b"", b"rpi3", b"\0host", b"\xff\xfe", b"x" * 40, "ünï".encode(), b"[bold]%s{}"]))
    return struct.pack("<H", len(text)) + text


@st.composite
def joined(draw: st.DrawFn, *parts: st.SearchStrategy[bytes]) -> bytes:
    """Mostly whole, sometimes too short or too long."""
    body = b"".join(draw(part) for part in parts)
    cut = draw(st.sampled_from([0, 0, 0, 0, 0, 0, 1, 7]))
    return body[: len(body) - cut] + draw(st.sampled_from([b"", b"", b"", b"\xff" * 9]))


HELLO = (numbers("BBHIBBHiQQ"), st.binary(min_size=16, max_size=16), string(), string())
INFO = joined(*HELLO, numbers("QQ"), *([string()] * 6), numbers("8I4QIHHBBBBIQQQ"))
COUNTS = st.sampled_from([(0, 0), (1, 2), (2, 0), (0, 2**32 - 1), (2**32 - 1, 0), (1, 2**31)]).map(
    lambda pair: struct.pack("<II", *pair)
)
STATS = joined(numbers("8QBBH5I"), string(), COUNTS, numbers("Q" * 13))
STATUS = joined(numbers("8BIIIi6I6Q"), st.binary(min_size=32, max_size=32))
ENTRY = joined(numbers("IIIIQQ"), st.binary(min_size=32, max_size=32))
DIRECTORY = joined(numbers("I"), st.sampled_from([0, 1, 1, 2, 2**32 - 1]).map(lambda n: struct.pack("<I", n)), ENTRY)


# ----------------------------------------------------------------------------------------------------------- messages


@RUN
@given(body=st.one_of(st.binary(max_size=300), INFO, STATS, STATUS, DIRECTORY))
@pytest.mark.parametrize(
    "read",
    [
        *(messages.Hello.read, messages.Info.read, messages.ErrorBody.read, messages.GenerateResult.read),
        *(messages.DeviceStats.read, messages.SelftestReport.read, messages.FaultBody.read, messages.LogitRow.read),
        *(messages.Configured.read, messages.read_tokens, messages.read_routes),
        *(UpdateStatus.read, Begun.read, Confirmed.read, RolledBack.read, read_directory),
    ],
)
def test_any_message_can_be_read_or_is_malformed(read: Any, body: bytes) -> None:
    with contextlib.suppress(MalformedError):
        read(Reader(body))


def test_names_are_no_orders_to_the_terminal() -> None:
    text = b"rpi3\x1b]0;owned\x07\x1b[2J\r\n"
    shown = Reader(struct.pack("<H", len(text)) + text).string()
    assert shown == "rpi3\ufffd]0;owned\ufffd\ufffd[2J\ufffd\ufffd"
    assert Reader(struct.pack("<H", 9) + "Größe 1".encode()).string() == "Größe 1"


class Liar:
    """In a Session's place: a device that answers each request with what `answers` holds for it."""

    name = "liar"
    usable = is_open = True
    answers: dict[Type, list[tuple[int, bytes]]]

    def __init__(self, *_: Any, **__: Any) -> None:
        self.waiting: list[tuple[int, bytes]] = []

    def call(self, kind: Type, body: bytes = b"") -> Any:
        self.waiting = list(self.answers.get(kind, [(Type.RESULT, b"")]))
        return devices.Call(kind.name, 1)

    def next(self, call: Any) -> tuple[int, bytes]:
        return self.waiting.pop(0)

    def result(self, call: Any) -> bytes:
        return self.waiting[-1][1]

    def ask(self, kind: Type, body: bytes = b"") -> bytes:
        return self.result(self.call(kind, body))

    def abandon(self, call: Any) -> None:
        """Nothing goes on here."""

    def close(self) -> None:
        """There is no line."""


@contextlib.contextmanager
def lying(**answers: list[tuple[int, bytes]]) -> Iterator[Device]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(devices, "Session", Liar)
        patch.setattr(Liar, "answers", {Type[name]: given for name, given in answers.items()}, raising=False)
        yield Device(lambda: None, timeout=1.0, elf=None)  # type: ignore[arg-type,return-value]


def printed(value: Any) -> None:
    """As JSON, which every command can be asked for."""
    json.dumps(value, allow_nan=False)


@RUN
@given(info=INFO, stats=STATS)
def test_a_device_may_say_anything_of_itself(info: bytes, stats: bytes) -> None:
    answers = {"INFO": [(Type.RESULT, info)], "STATS": [(Type.RESULT, stats)]}
    with lying(**answers) as device, contextlib.suppress(ColibriError):
        told = device.info()
        counted = device.stats()
        view = snapshot(told, counted)
        printed([view.as_json(), view.warnings])
        result = devices.GenerationResult("", (), (), "eos", "", 0, 0, 2**64 - 1, 2**64 - 1, 0, 0.0, 0.0)
        printed(Answer(told, result, counted).as_json())


ROW = struct.pack("<I", 0) + bytes(8)


@pytest.mark.parametrize(
    "rows", [[], [ROW, ROW + bytes(4)], [ROW[:4], ROW]], ids=["none", "one longer", "one without any"]
)
def test_rows_of_logits_that_are_no_matrix_are_malformed(rows: list[bytes]) -> None:
    answers = [*((int(Type.LOGIT_ROW), row) for row in rows), (int(Type.RESULT), b"")]
    with lying(LOGITS=answers) as device, pytest.raises(MalformedError, match=f"{len(rows)} rows of logits"):
        device.logits([1, 2], last=2)


# --------------------------------------------------------------------------------------------------------------- frames


def opened(payload_max: int, max_message: int = 1000) -> tuple[Peer, list[Any]]:
    peer = Peer(draw=lambda: 7)
    peer.open(0.0)
    hello = struct.pack("<BBHI", 2, 2, payload_max, max_message)
    return peer, peer.feed(encode(Frame(Kind.SYN_ACK, credit=8, session=7, payload=hello)), 1.0)


def test_a_device_that_takes_no_bytes_in_a_frame_is_refused() -> None:
    """Cutting messages for it into pieces of 0 bytes ended as ValueError."""
    peer, events = opened(0)
    assert isinstance(events[0], Lost) and "0 bytes" in events[0].reason
    assert peer.state is State.CLOSED
    assert opened(1)[0].state is State.OPEN


def test_a_message_without_end_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    assert MAX_MESSAGE == 1 << 28
    monkeypatch.setattr("colibri_sdk.link.peer.MAX_MESSAGE", 1000)
    peer, _ = opened(512)
    events: list[Any] = []
    for number in range(3):
        frame = Frame(Kind.MORE, seq=number, session=7, payload=bytes(400))
        events += peer.feed(encode(frame), 2.0)
    assert isinstance(events[-1], Lost) and "more than 1000 bytes" in events[-1].reason
    assert peer.state is State.CLOSED and peer.poll(3.0)  # and the device is told


# -------------------------------------------------------------------------------------------------------------- updates


class LyingBoard(Board):
    """Plays a board, and lies about whatever is set."""

    told: dict[str, bytes]
    about: dict[str, Any]

    def request(self, kind: int, body: bytes = b"", **_: Any) -> bytes:
        from update_board import NAMES

        return self.told.get(NAMES[kind]) or super().request(kind, body)

    def info(self) -> Any:
        found = super().info()
        for name, value in self.about.items():
            setattr(found, name, value)
        return found


ABOUT = st.fixed_dictionaries(
    {},
    optional={
        "vocab": st.sampled_from([0, 1, 2**32 - 1]),
        "image_bytes": st.sampled_from([0, 1, 2**64 - 1]),
        "image_id": st.sampled_from(["", "ff" * 16]),
        "board": st.sampled_from(["", "x" * 40, "\0host", "�" * 20, "host"]),
        "state": st.sampled_from(["loading", "no model", "77"]),
    },
)
ANSWERS = {"status": STATUS, "begin": joined(numbers("QQB")), "list": DIRECTORY, "crc": joined(numbers("I"))}
TOLD = st.fixed_dictionaries({}, optional={**ANSWERS, "commit": joined(numbers("Q")), "copy": joined(numbers("I"))})


@settings(RUN, max_examples=100)
@given(told=TOLD, about=ABOUT, signed=st.booleans())
def test_updates_of_a_lying_device_end_in_words(
    images: dict[str, Path], told: dict[str, bytes], about: dict[str, Any], signed: bool
) -> None:
    board = LyingBoard(images["old"], probe_sha256="aa" * 32)
    board.told, board.about = told, about
    calls = UpdateCalls(board)
    with contextlib.suppress(ColibriError):
        status = calls.status()
        printed([report.as_json(status), report.rows(status), report.advice(status)])
        if status.state == 2:
            return  # at work for ever: Ctrl-C ends it
    with contextlib.suppress(ColibriError), expert_content(images["expert"], LAYER, EXPERT) as content:
        signer = Signer(KEY, 2**64 - 1) if signed else None
        update_expert(board, content, LAYER, EXPERT, progress=Silent(), signer=signer)  # type: ignore[arg-type]
    with contextlib.suppress(ColibriError):
        update_model(
            board,  # type: ignore[arg-type]
            images["new"],
            progress=Silent(),
            log=lambda _: None,
            twin=lambda *_: "aa" * 32,
        )


def test_the_last_generation_of_an_expert_is_said_to_be_that(images: dict[str, Path]) -> None:
    board = Board(images["old"])
    board._entry(LAYER, EXPERT)[2] = 2**32 - 1
    with expert_content(images["expert"], LAYER, EXPERT) as content:
        for signer in (None, Signer(KEY)):
            with pytest.raises(UsageError, match="replaced 4294967295 times") as failed:
                update_expert(board, content, LAYER, EXPERT, progress=Silent(), signer=signer)  # type: ignore[arg-type]
            assert "update model" in failed.value.hint
    assert board.asked["begin"] == 0


def test_an_unsigned_update_states_nothing_that_the_device_chose(images: dict[str, Path]) -> None:
    board = Board(images["old"], counter=2**64 - 1)
    with expert_content(images["expert"], LAYER, EXPERT) as content:
        update_expert(board, content, LAYER, EXPERT, progress=Silent())  # type: ignore[arg-type]
    assert np.frombuffer(board.begun, UPDATE)[0]["counter"] == 0


@pytest.mark.parametrize("name", ["x" * 32, "\0host", "ho\0st"])
def test_nothing_is_signed_for_a_name_that_is_cut_off(images: dict[str, Path], name: str) -> None:
    """NumPy cuts a text to its field's length without a word, and drops zeros at its end."""
    board = Board(images["old"], name=name)
    with expert_content(images["expert"], LAYER, EXPERT) as content:
        with pytest.raises(UsageError, match="is no board's name"):
            update_expert(board, content, LAYER, EXPERT, progress=Silent(), signer=Signer(KEY))  # type: ignore[arg-type]
        assert board.asked["begin"] == 0
        update_expert(board, content, LAYER, EXPERT, progress=Silent(), signer=Signer(KEY, any_board=True))  # type: ignore[arg-type]


# ---------------------------------------------------------------------------------------------------------------- files


def read_all(path: Path) -> None:
    """What commands ask of an image."""
    with ImageFile(path) as image:
        for layer in range(len(image.layers) + 1):
            with contextlib.suppress(ColibriError):
                image.place(image.expert_index(layer, 0))
            with contextlib.suppress(ColibriError):
                image.expert_tensor(layer, 0, "gate")
        for look in (
            lambda: image.card,
            lambda: image.pins,
            lambda: image.spare_places,
            lambda: image.slack_bytes,
            lambda: list(image.verify()),
            lambda: image.rotary_tables(),
            lambda: image.resident_tensor(image.model["embedding"]),
            lambda: (image.image_id, image.model_name, image.architecture, image.quantisation),
        ):
            with contextlib.suppress(ColibriError):
                look()


@settings(RUN, max_examples=150)
@given(data=st.data())
def test_an_image_may_state_anything(images: dict[str, Path], tmp_path: Path, data: st.DataObject) -> None:
    forge = Forge(images["old"])
    places = [forge.header, forge.sections, forge.model, forge.layers, forge.experts, forge.signature]
    for _ in range(data.draw(st.integers(1, 3))):
        struct_bytes = data.draw(st.sampled_from(places)).view(np.uint8)
        width = data.draw(st.sampled_from([1, 2, 4, 8]))
        at = data.draw(st.integers(0, struct_bytes.size - width))
        value = data.draw(st.sampled_from([b"\xff" * 8, bytes(8), b"\x80" + bytes(7), struct.pack("<Q", 1 << 40)]))
        struct_bytes[at : at + width] = np.frombuffer(value[:width], np.uint8)
    with contextlib.suppress(ValueError, IndexError):  # a section that lies outside of the file has no bytes to sum up
        forge.seal_signature()
        forge.seal()
    path = forge.write(tmp_path / "a.colibri")
    for look in (
        lambda: read_all(path),
        lambda: expert_bytes(path),
        lambda: verify_image(path, KEY.public),
        lambda: counter_of([path], KEY.public),
        lambda: signed_models(path),
    ):
        with contextlib.suppress(ColibriError):
            look()


def test_an_image_whose_layers_name_experts_that_it_lacks(images: dict[str, Path], tmp_path: Path) -> None:
    """The directory was asked for an entry that it does not have: IndexError."""
    forge = Forge(images["old"])
    forge.layers["first_expert"][LAYER] = 1 << 20
    forge.seal()
    path = forge.write(tmp_path / "a.colibri")
    with pytest.raises(ColibriError, match="lacks experts"), expert_content(path, LAYER, EXPERT):
        pass
    with pytest.raises(ColibriError, match="lacks experts"):
        expert_bytes(path)


@RUN
@given(update=st.binary(min_size=256, max_size=256), blob=st.binary(max_size=64), version=st.integers(0, 2))
def test_any_bytes_are_an_update_or_not(tmp_path: Path, update: bytes, blob: bytes, version: int) -> None:
    path = tmp_path / "a.update"
    path.write_bytes(struct.pack("<8sI", b"COLIPKG\x1a", version).ljust(256, b"\0") + update + blob)
    assert is_package(path)
    with contextlib.suppress(ColibriError), open_package(path) as package:
        _ = (package.layer, package.expert, package.signed)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
KEY_FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "kind": st.sampled_from(["colibri public key", "colibri private key"]) | JSON,
        "algorithm": st.sampled_from(["eddsa-curve25519-blake2b"]) | JSON,
        "key_id": st.sampled_from([KEY.public.key_id.hex()]) | JSON,
        "public": st.sampled_from([KEY.public.key.hex(), "00" * 32, "zz", "0"]) | JSON,
        "secret": st.sampled_from([KEY.secret.hex(), "00" * 64, "ä"]) | JSON,
    },
)


@RUN
@given(content=st.one_of(st.binary(max_size=40), KEY_FIELDS.map(lambda value: json.dumps(value).encode())))
def test_any_bytes_are_a_key_or_not(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(content)
    for kind in (PublicKey, PrivateKey):
        with contextlib.suppress(UsageError):
            kind.load(path)


@pytest.mark.parametrize("content", [b"[" * 60_000, b"\xff\xfe", b"[1]", b"", b" " * (1 << 17)])
def test_what_is_no_key_file_is_said_to_be_none(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(content)
    with pytest.raises(UsageError, match="is no key file"):
        PublicKey.load(path)


# ---------------------------------------------------------------------------------------------------------------- cards

ERROR_LINES = st.lists(st.lists(JSON, max_size=6) | st.just(["head", "q8", 1024, 0.1, "0.2"]), max_size=2)
CARDS = st.fixed_dictionaries(
    {},
    optional={
        "shape": JSON | st.fixed_dictionaries({}, optional={"experts": JSON, "top_k": JSON}),
        "quality": JSON
        | st.fixed_dictionaries(
            {},
            optional={
                "text": JSON | st.just({"tokens": 7, "sha256": "ab"}),
                "top_agreement": JSON,
                "router": JSON | st.just({"agreement": 1}),
                "tensors": JSON | ERROR_LINES,
            },
        ),
        "parameters": JSON | st.just(1000),
        "active_parameters": JSON | st.just(100),
        "plan": JSON,
        "licence": JSON,
        "chat_template": JSON | st.just("{{ messages[0]['content'] }}{{ bos_token }}"),
        "special_tokens": JSON | st.just({"<s>": 1}),
        "tokens": JSON | st.just({"bos_token": "<s>"}),
        "taking_tokens": JSON | st.just({"1": 2}),
    },
)


@settings(RUN, max_examples=150)
@given(card=CARDS)
def test_a_card_may_say_anything(images: dict[str, Path], tmp_path: Path, card: dict[str, Any]) -> None:
    path = tmp_path / "a.colibri"
    shutil.copyfile(images["old"], path)
    replace_card(path, json.dumps(card).encode())
    for how in (["--report"], ["--json"], ["--card"]):
        assert run(["inspect", str(path), *how]) == EXIT_OK
    with ImageFile(path) as image:
        conversation = Conversation(image.card)
    conversation.add("hello", "Hi.")
    with lying() as device, contextlib.suppress(ColibriError):
        device.generate(conversation.prompt("again"))


def test_what_an_image_says_is_no_order_to_the_terminal(
    images: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    forge = Forge(images["old"])
    forge.header["model_name"] = b"\x1b[2Jmodel"
    forge.seal()
    path = forge.write(tmp_path / "a.colibri")
    replace_card(path, json.dumps({"licence": "\x1b]0;owned\x07", "plan": "\ud800"}).encode())
    assert run(["inspect", str(path)]) == EXIT_OK
    shown = capsys.readouterr().out
    assert "\x1b" not in shown and "\ufffd[2Jmodel" in shown and "\ufffd]0;owned\ufffd" in shown


def test_of_a_file_without_end_no_more_than_a_key_is_read() -> None:
    with pytest.raises(UsageError, match="is no key file"):
        PublicKey.load(Path("/dev/zero"))


@RUN
@given(slots=numbers("QQQQQ"), states=st.tuples(numbers("QIIIIQIi"), numbers("QIIIIQIi")), start=st.integers(0, 1))
def test_a_card_may_state_anything(
    images: dict[str, Path], tmp_path: Path, slots: bytes, states: tuple[bytes, bytes], start: int
) -> None:
    def sealed(sector: bytes) -> bytes:
        return sector.ljust(508, b"\0") + struct.pack("<I", zlib.crc32(sector.ljust(508, b"\0")))

    good = volume.plan(images["old"].stat().st_size)
    card = tmp_path / "card.img"
    with card.open("wb") as file:
        file.write(volume.make_head(good))
        file.seek(good.slot_offsets[0])
        with images["old"].open("rb") as image:
            shutil.copyfileobj(image, file)
        file.truncate(good.bytes)
        if start:
            file.seek(0)
            file.write(sealed(b"COLIVOL\x1a" + struct.pack("<II", 1, 2) + slots))
        for copy, state in enumerate(states):
            file.seek(PAGE * (1 + copy))
            file.write(sealed(b"COLIBOT\x1a" + state))
    with contextlib.suppress(ColibriError):
        signed_models(card)


NPY_HEADERS = [
    f"{{'descr': '<u4', 'fortran_order': False, 'shape': ({shape},), }}"
    for shape in ("99999999999999999999", "1 << 70", "-1", "2**62", "'a'", "1,1")
]


@pytest.mark.parametrize("header", [*NPY_HEADERS, "{", "(" * 5000, "'", "\0", "{'descr': '|O', 'shape': ()}", "1 +"])
def test_an_array_of_a_trace_may_state_anything(tmp_path: Path, header: str) -> None:
    path = tmp_path / "t.npz"
    with zipfile.ZipFile(path, "w") as archive:
        text = header.encode() + b"\n"
        archive.writestr("version.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + bytes(64))
    with pytest.raises(UsageError, match="is no trace of routing"):
        trace.load(path)
