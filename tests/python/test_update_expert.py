# SPDX-License-Identifier: Apache-2.0
"""Replacing one expert, on a board that is played (update_board.py): what travels, what is refused, what is resumed."""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from colibri_sdk.convert.progress import Silent
from colibri_sdk.errors import DeviceError, ImageError, LinkLostError, UsageError
from colibri_sdk.image.reader import ImageFile
from colibri_sdk.signing import PrivateKey
from colibri_sdk.status import Status
from colibri_sdk.update import expert as module
from colibri_sdk.update.expert import ExpertUpdate, describe_update, expert_content, update_expert
from colibri_sdk.update.model import update_model
from colibri_sdk.update.signer import GENERATIONS, Signer
from update_board import Board, refuse
from update_images import EXPERT, LAYER, blob

PAGE = 4096


@pytest.fixture
def board(images: dict[str, Path]) -> Board:
    return Board(images["old"], slots=1)


def replace(board: Any, new: Path, layer: int = LAYER, expert: int = EXPERT, **options: Any) -> ExpertUpdate:
    with expert_content(new, layer, expert) as content:
        return update_expert(board, content, layer, expert, progress=Silent(), **options)


def entry_of(board: Board, layer: int = LAYER, expert: int = EXPERT) -> list[Any]:
    return next(entry for entry in board.experts if entry[:2] == [layer, expert])


def test_the_expert_of_an_image(board: Board, images: dict[str, Path]) -> None:
    wanted = blob(images["expert"])
    done = replace(board, images["expert"])
    assert (done.generation, done.bytes, done.sent_bytes, done.kept_bytes) == (1, len(wanted), len(wanted), 0)
    assert not done.unchanged
    assert board.received == len(wanted)
    digest = hashlib.blake2b(wanted, digest_size=32).digest()
    assert entry_of(board)[2:4] + entry_of(board)[6:] == [1, zlib.crc32(wanted), digest]
    back = replace(board, images["old"])
    assert (back.generation, entry_of(board)[2]) == (2, 2)


def test_a_blob_alone(board: Board, images: dict[str, Path], tmp_path: Path) -> None:
    raw = tmp_path / "blob"
    raw.write_bytes(blob(images["expert"]))
    assert replace(board, raw).sent_bytes == raw.stat().st_size
    assert entry_of(board)[6] == hashlib.blake2b(raw.read_bytes(), digest_size=32).digest()


def test_a_damaged_expert_stays_here(board: Board, images: dict[str, Path], tmp_path: Path) -> None:
    """It was sent, and signed, with the checksums of what it had become."""
    data = bytearray(images["expert"].read_bytes())
    with ImageFile(images["expert"]) as image:
        place = image.place(image.expert_index(LAYER, EXPERT))
    data[place.offset + place.size // 2] ^= 1
    damaged = tmp_path / "damaged.colibri"
    damaged.write_bytes(data)
    with pytest.raises(ImageError, match=f"damaged.colibri is damaged: expert {LAYER}/{EXPERT} has another digest"):
        replace(board, damaged)
    assert board.asked["begin"] == 0
    assert replace(board, damaged, 0, 0).unchanged  # another, which is whole


def test_the_same_expert_is_no_work(board: Board, images: dict[str, Path]) -> None:
    done = replace(board, images["old"])
    assert (done.unchanged, done.generation, done.sent_bytes) == (True, 0, 0)
    assert board.asked["begin"] == board.asked["data"] == 0


def test_what_arrived_before_the_line_broke_does_not_travel_again(board: Board, images: dict[str, Path]) -> None:
    size = len(blob(images["expert"]))
    board.cut_after = 3
    with pytest.raises(LinkLostError):
        replace(board, images["expert"])
    assert entry_of(board)[2] == 0  # the old expert is in effect
    done = replace(board, images["expert"])
    assert (done.sent_bytes, done.kept_bytes) == (size - 3 * PAGE, 3 * PAGE)
    assert board.received == size
    assert entry_of(board)[2] == 1


def test_the_update_names_what_it_is_for(images: dict[str, Path]) -> None:
    """struct col_update of image.h, by hand."""
    data = blob(images["expert"])
    with expert_content(images["expert"], LAYER, EXPERT) as content:
        made = describe_update(
            content, LAYER, EXPERT, generation=3, image_id="00112233445566778899aabbccddeeff", counter=9, board="rpi3"
        )
    head = struct.pack("<QQIIIIQ32s", 0, len(data), LAYER, EXPERT, 3, zlib.crc32(data), 9, b"rpi3")
    digest = hashlib.blake2b(data, digest_size=32).digest()
    assert made == (head + bytes.fromhex("00112233445566778899aabbccddeeff") + digest).ljust(256, b"\0")


def test_a_signature_is_put_on_and_a_prepared_update_goes_as_it_is(board: Board, images: dict[str, Path]) -> None:
    board.counter = 7
    replace(board, images["expert"], signer=Signer(PrivateKey.new(), 9))
    assert struct.unpack_from("<Q32s", board.begun, 32) == (9, b"fake".ljust(32, b"\0"))
    assert any(board.begun[120:200])
    with expert_content(images["old"], LAYER, EXPERT) as content:
        prepared = describe_update(content, LAYER, EXPERT, generation=40, image_id=board.info().image_id)
    done = replace(board, images["old"], prepared=prepared)
    assert board.begun == prepared
    assert done.generation == entry_of(board)[2] == 40


@pytest.mark.parametrize(
    ("name", "counter", "words"),
    [
        ("fake", (1 << 64) - 1, "wants a security counter of 18446744073709551615 or more, and .* with 3"),
        ("fake", 4, "wants a security counter of 4 or more"),
        ("", 0, "does not say which board it is"),
    ],
)
def test_nothing_is_signed_on_the_devices_terms(
    name: str, counter: int, words: str, board: Board, images: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signature with the highest counter would lock out every board that trusts the key."""
    board.counter, board.name = counter, name
    monkeypatch.setattr("colibri_sdk.update.signer.sign_update", lambda *_: pytest.fail("it was signed"))
    with pytest.raises(UsageError, match=words):
        replace(board, images["expert"], signer=Signer(PrivateKey.new(), 3))
    assert board.asked["begin"] == 0


def test_a_device_cannot_have_generations_used_up(board: Board, images: dict[str, Path]) -> None:
    """What is signed with the last one could not be followed by anything, on any device with that image."""
    entry_of(board)[2] = GENERATIONS
    with pytest.raises(UsageError, match="has been replaced 65536 times"):
        replace(board, images["expert"], signer=Signer(PrivateKey.new()))
    assert board.asked["begin"] == 0
    entry_of(board)[2] = GENERATIONS - 1
    assert replace(board, images["expert"], signer=Signer(PrivateKey.new())).generation == GENERATIONS


def test_what_the_board_refuses_is_raised(board: Board, images: dict[str, Path], tmp_path: Path) -> None:
    short = tmp_path / "blob"
    short.write_bytes(bytes(PAGE))
    with pytest.raises(UsageError, match=r"has 28672 bytes, the new one 4096"):
        replace(board, short)
    assert board.asked["begin"] == 0
    board.writable = False
    with pytest.raises(DeviceError) as raised:
        replace(board, images["expert"])
    assert raised.value.status == Status.E_READ_ONLY
    assert board.received == 0


@pytest.mark.parametrize(
    ("layer", "expert", "words"),
    [(2, 0, "has 2 layers, none is 2"), (1, 4, "layer 1 of expert.colibri has 4 experts, none is 4")],
)
def test_places_that_the_image_has_not(
    board: Board, images: dict[str, Path], layer: int, expert: int, words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        replace(board, images["expert"], layer, expert)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("llama", r"^llama-q8\.colibri has no experts\n.*as a whole"),
        ("deepseek_v3", r"^layer 0 of deepseek_v3-q8\.colibri has no experts; these have: 1, 2\n"),
    ],
)
def test_layers_without_experts_are_said_to_be_such(
    board: Board, tiny: Callable[[str, str], Path], model: str, words: str
) -> None:
    """It was said that 0 experts are counted from 0."""
    with pytest.raises(UsageError, match=words):
        replace(board, tiny(model, "q8"), 0, 0)


@pytest.mark.parametrize(
    ("layer", "expert", "words"),
    [(5, 0, "layer 5 of the device's model has no experts; these have: 0, 1"), (1, 9, "has 4 experts, none is 9")],
)
def test_places_that_the_device_has_not(
    board: Board, images: dict[str, Path], tmp_path: Path, layer: int, expert: int, words: str
) -> None:
    raw = tmp_path / "blob"
    raw.write_bytes(blob(images["expert"]))
    with pytest.raises(UsageError, match=words):
        replace(board, raw, layer, expert)


def test_a_device_without_a_medium(images: dict[str, Path]) -> None:
    """This machine's board with --model maps the file: it was said to have a model without experts, or one slot."""
    board: Any = Board(images["old"], slots=0)
    with pytest.raises(UsageError, match="lies on no medium that could be updated"):
        replace(board, images["expert"])
    with pytest.raises(UsageError, match="lies on no medium that could be updated"):
        update_model(board, images["new"], progress=Silent(), log=lambda _: None)
    assert board.asked["directory"] == board.asked["begin"] == 0


@pytest.mark.parametrize("size", [0, 1, PAGE + 1])
def test_a_file_that_can_be_no_blob(board: Board, tmp_path: Path, size: int) -> None:
    raw = tmp_path / "blob"
    raw.write_bytes(bytes(size))
    with pytest.raises(UsageError, match=f"has {size} bytes: neither an image nor an expert's blob"):
        replace(board, raw)
    with pytest.raises(UsageError, match="cannot be read"):
        replace(board, tmp_path / "nothing")


def test_the_replacement_before_may_take_a_while(
    board: Board, images: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """COLIBRI_E_BUSY "engine" is waited for; any other refusal is not."""
    monkeypatch.setattr(module, "_EFFECT_POLL_SECONDS", 0.0)
    board.refusals = [refuse(Status.E_BUSY, "engine")] * 3
    assert replace(board, images["expert"]).generation == 1
    assert board.asked["begin"] == 4
    board.refusals = [refuse(Status.E_BUSY, "update")]
    with pytest.raises(DeviceError):
        replace(board, images["old"])
