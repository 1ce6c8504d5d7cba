# SPDX-License-Identifier: Apache-2.0
"""The loader: finds the image, refuses what cannot be one, says why and by which numbers, answers meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest

from colibri_sdk.device import Device
from colibri_sdk.errors import DeviceError, ImageError
from colibri_sdk.link.messages import DeviceState, ErrorBody, Info, Reader, Type
from colibri_sdk.status import Status
from link import cards
from link.cards import BLOCK, PAGE
from link.host_process import Start, board_line
from link.scenario import generate
from link.virtual import Damage, World


def open_card(run_host: Start, tmp_path: Path, content: bytes, *options: str) -> Device:
    path = tmp_path / "card"
    path.write_bytes(content)
    return Device.open(board_line(run_host, "--block", str(path), *options, image=False))


@pytest.mark.parametrize(
    "card",
    [
        cards.image(),
        cards.image(50),
        cards.image() + b"\0" * 100 * BLOCK,
        cards.partitioned(cards.image()),
        cards.partitioned(cards.image() + b"more" * 4096),
        cards.partitioned(cards.image(33), first=4096),
    ],
    ids=["raw", "raw, larger", "raw, and space", "partition", "partition, and space", "partition far away"],
)
def test_an_image_is_found(run_host: Start, tmp_path: Path, card: bytes) -> None:
    with open_card(run_host, tmp_path, card) as device:
        info = device.info()
        assert info.state == "ready"
        assert info.loaded_bytes == info.total_bytes == info.image_bytes
        assert info.image_bytes % PAGE == 0
        assert device.tokenize("ab") == [97, 98]


def header_says(size: int) -> bytes:
    return cards.image(4, stated_bytes=size)


@pytest.mark.parametrize(
    ("card", "status", "where", "got", "wanted"),
    [
        (b"", Status.E_STORAGE_EMPTY, "storage", 0, PAGE),
        (bytes(PAGE - BLOCK), Status.E_STORAGE_EMPTY, "storage", PAGE - BLOCK, PAGE),
        (bytes(64 * BLOCK), Status.E_STORAGE_EMPTY, "partition table", 0, 0xAA55),
        (cards.partitioned(cards.image(), kind=0x83), Status.E_STORAGE_EMPTY, "model partition", 0, 1),
        (cards.partitioned(b"\xff" * PAGE), Status.E_STORAGE_EMPTY, "model partition", 1, 1),
        (cards.partitioned(cards.image(), count=0xFFFFFFFF), Status.E_STORAGE_EMPTY, "model partition", 0, 1),
        (cards.partitioned(cards.image(), count=7), Status.E_STORAGE_EMPTY, "model partition", 0, 1),
        (cards.partitioned(cards.image(4), count=24), Status.E_IMAGE_SIZE, "model partition", 3 * PAGE, 4 * PAGE),
        (cards.image(4)[: 3 * PAGE], Status.E_IMAGE_SIZE, "model partition", 3 * PAGE, 4 * PAGE),
        (header_says(0), Status.E_IMAGE_SIZE, "header", 0, PAGE),
        (header_says(PAGE + 1), Status.E_IMAGE_SIZE, "header", PAGE + 1, PAGE),
        (header_says(1 << 63), Status.E_IMAGE_SIZE, "model partition", 4 * PAGE, 1 << 63),
        (header_says((1 << 64) - PAGE), Status.E_IMAGE_SIZE, "model partition", 4 * PAGE, (1 << 64) - PAGE),
    ],
)
def test_what_is_no_image_is_refused(
    run_host: Start, tmp_path: Path, card: bytes, status: Status, where: str, got: int, wanted: int
) -> None:
    with open_card(run_host, tmp_path, card) as device:
        info = device.info()
        assert (info.state, info.status) == ("no model", status)
        assert (info.status_where, info.status_got, info.status_wanted) == (where, got, wanted)
        with pytest.raises((DeviceError, ImageError)) as raised:
            device.tokenize("x")
        assert (raised.value.status, raised.value.got, raised.value.wanted) == (status, got, wanted)
        assert device.selftest().ok  # needs no model


def test_a_damaged_header_is_named(run_host: Start, tmp_path: Path) -> None:
    with open_card(run_host, tmp_path, cards.image(break_crc=True)) as device:
        info = device.info()
        assert (info.status, info.status_where) == (Status.E_IMAGE_CHECKSUM, "header")


def test_memory_limits_are_exact(run_host: Start, tmp_path: Path) -> None:
    """The figure that the device says it needs is enough, and one byte less is not."""
    card = cards.image(20)
    with open_card(run_host, tmp_path, card, "--arena-limit", "140000") as device:
        info = device.info()
        assert (info.status, info.status_where) == (Status.E_MODEL_TOO_LARGE, "memory")
        needed = info.status_got
        assert info.status_wanted == 140000
        assert 20 * PAGE < needed < 20 * PAGE + 80000
    for limit, state in ((needed, "ready"), (needed - 1, "no model")):
        with open_card(run_host, tmp_path, card, "--arena-limit", str(limit)) as device:
            assert device.info().state == state
    with open_card(run_host, tmp_path, card, "--arena-limit", str(10 * PAGE)) as device:
        info = device.info()
        assert (info.status, info.status_where, info.status_got) == (Status.E_MODEL_TOO_LARGE, "image", 20 * PAGE)


def test_a_card_that_is_not_there(run_host: Start, tmp_path: Path) -> None:
    with Device.open(board_line(run_host, "--block", str(tmp_path / "missing"), image=False)) as device:
        info = device.info()
        assert (info.status, info.status_where) == (Status.E_STORAGE, "no card or disk")


@pytest.mark.parametrize("block", [0, 7, 8, 64, 64 + 8, 64 + 31])
def test_each_read_may_fail(sim_library: Path, block: int) -> None:
    """Any block of table, header or image that cannot be read is named by its number, but for gaps never read."""
    card = cards.partitioned(cards.image(4))
    world = World(sim_library, seed=1, damage=Damage(), storage=card, failing_block=block)
    asked = world.ask(Type.INFO)
    world.run()
    info = Info.read(Reader(asked.final[1]))
    if block == 8:  # between table and partition
        assert info.hello.state == DeviceState.READY
        return
    assert (info.hello.state, info.hello.status) == (DeviceState.NO_MODEL, Status.E_STORAGE)
    assert info.where == "storage: no answer"
    assert info.got <= block < info.got + 128


def test_answers_while_loading(sim_library: Path) -> None:
    """40 pages at 20 ms a block: 6.4 s. INFO shows progress, GENERATE is told to wait, and then works."""
    world = World(sim_library, seed=1, damage=Damage(), storage=cards.image(40), block_us=20000)
    for _ in range(3):
        world.ask(Type.INFO)
    refused = world.ask(Type.GENERATE, generate("x", 2))
    world.run()
    infos = [Info.read(Reader(asked.final[1])).hello for asked in world.requests[:3]]
    assert [hello.state for hello in infos] == [DeviceState.LOADING] * 3
    assert 0 < infos[0].loaded < infos[2].loaded < infos[2].total == 40 * PAGE
    error = ErrorBody.read(Reader(refused.final[1]))
    assert (error.status, error.where, error.wanted) == (Status.E_LOADING, "image", 40 * PAGE)
    assert infos[2].loaded <= error.got < 40 * PAGE
