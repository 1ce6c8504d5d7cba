# SPDX-License-Identifier: Apache-2.0
"""The device's side of updates, over the link, on this machine's board: wrong orders, missing parts, and what a
generation sees.

Signatures: tests/qemu/test_signed_update.py; from end to end: tests/qemu/test_field_update.py."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from colibri_sdk.boards import load_board
from colibri_sdk.convert.progress import Silent
from colibri_sdk.device import Device
from colibri_sdk.engine import Engine, Library
from colibri_sdk.errors import ColibriError
from colibri_sdk.image.layout import UPDATE
from colibri_sdk.image.reader import ImageFile
from colibri_sdk.link.messages import Type
from colibri_sdk.status import Status
from colibri_sdk.update.calls import UpdateCalls
from colibri_sdk.update.expert import describe_update, expert_content
from colibri_sdk.update.messages import Where, pack_crc
from update_bench import PROMPT, Bench, leaving_together
from update_images import EXPERT, LAYER, blob

SECTOR, PAGE = 512, 4096


@pytest.fixture
def table(firmware: Callable[[str], Any], images: dict[str, Path], tmp_path: Path) -> Bench:
    return Bench(load_board("host"), firmware("host"), images["old"], tmp_path / "card.img")


@pytest.fixture
def device(table: Bench) -> Iterator[Device]:
    with table.started() as (device, _):
        yield device


def described(image: Path, device: Device, generation: int = 1, **changes: Any) -> bytes:
    with expert_content(image, LAYER, EXPERT) as content:
        record = np.frombuffer(
            describe_update(content, LAYER, EXPERT, generation=generation, image_id=device.info().image_id), UPDATE
        ).copy()
    for field, value in changes.items():
        record[field] = value
    return record.tobytes()


def refused(call: Callable[[], object]) -> tuple[Status, str]:
    with pytest.raises(ColibriError) as raised:
        call()
    return Status(raised.value.status), str(raised.value.where)  # type: ignore[attr-defined]


def pieces(data: bytes, size: int) -> list[tuple[int, bytes]]:
    return [(at, data[at : at + size]) for at in range(0, len(data), size)]


@pytest.mark.parametrize(
    ("changes", "status", "where"),
    [
        ({"image_id": np.void(bytes(16))}, Status.E_UPDATE_BASE, None),
        ({"layer": 2}, Status.E_IMAGE_EXPERT, "layer"),
        ({"layer": 0xFFFFFFFF}, Status.E_IMAGE_EXPERT, "layer"),
        ({"expert": 4}, Status.E_IMAGE_EXPERT, "expert"),
        ({"bytes": PAGE}, Status.E_IMAGE_EXPERT, "bytes"),
        ({"bytes": 1 << 63}, Status.E_IMAGE_EXPERT, "bytes"),
        ({"generation": 0}, Status.E_COUNTER, "generation"),
    ],
)
def test_what_does_not_fit_is_refused_before_a_byte_is_written(
    device: Device, table: Bench, images: dict[str, Path], changes: dict[str, Any], status: Status, where: str | None
) -> None:
    before = table.card.read_bytes()
    calls = UpdateCalls(device)
    found = refused(lambda: calls.begin_expert(described(images["expert"], device, **changes)))
    assert found[0] == status and where in (None, found[1])
    assert refused(lambda: list(calls.send([(0, bytes(SECTOR))]))) == (Status.E_UPDATE_STATE, "update")
    assert calls.status().state == 0
    assert table.card.read_bytes() == before


def test_data_in_any_order_and_what_is_missing(device: Device, table: Bench, images: dict[str, Path]) -> None:
    """Backwards, twice, a part left out: COMMIT says so and changes nothing; then the part is sent."""
    calls, data = UpdateCalls(device), blob(images["expert"])
    old = device.logits(PROMPT, last=len(PROMPT)).logits
    begun = calls.begin_expert(described(images["expert"], device))
    parts = pieces(data, 3 * SECTOR)
    list(calls.send([*reversed(parts[1:]), *parts[2:4]]))
    assert refused(lambda: calls.commit(Silent())) == (Status.E_EXPERT_CHECKSUM, "crc32")
    assert np.array_equal(device.logits(PROMPT, last=len(PROMPT)).logits, old)
    for offset, size in ((1, SECTOR), (len(data), SECTOR), (len(data) - SECTOR, 2 * SECTOR), (1 << 63, SECTOR)):
        assert refused(lambda o=offset, s=size: list(calls.send([(o, bytes(s))]))) == (Status.E_UPDATE_STATE, "offset")
    assert calls.begin_expert(described(images["expert"], device)).resumed
    list(calls.send(parts[:1]))
    assert calls.commit(Silent()) > 0
    assert not np.array_equal(device.logits(PROMPT, last=len(PROMPT)).logits, old)
    assert calls.directory()[LAYER * 4 + EXPERT].offset == begun.place
    again = described(images["expert"], device)
    assert refused(lambda: calls.begin_expert(again)) == (Status.E_COUNTER, "generation")


def test_a_rollback_gives_up_what_is_open(device: Device, table: Bench, images: dict[str, Path]) -> None:
    calls = UpdateCalls(device)
    calls.begin_expert(described(images["expert"], device))
    undone = calls.rollback()
    assert undone.update and not undone.trial and not undone.restart
    assert refused(lambda: calls.commit(Silent())) == (Status.E_UPDATE_STATE, "update")
    assert not calls.rollback().update


def test_a_first_page_is_held_back_until_the_end(device: Device, table: Bench, images: dict[str, Path]) -> None:
    calls, new = UpdateCalls(device), images["new"].read_bytes()
    with ImageFile(images["new"]) as file:
        at = next(s.offset for kind, s in file.sections.items() if kind.name == "SIGNATURE")
    signature = new[at : at + 256]
    calls.begin_model(new[:PAGE], signature)
    assert refused(lambda: list(calls.send([(0, new[:PAGE])]))) == (Status.E_UPDATE_STATE, "offset")
    list(calls.send(pieces(new, PAGE)[1:-1]))  # the last page is a spare place: nobody asks for it
    assert calls.crc(0, PAGE) != 0
    calls.commit(Silent())
    assert calls.status().trial == 2
    assert refused(calls.confirm) == (Status.E_UPDATE_STATE, "running")
    assert refused(lambda: calls.begin_model(new[:PAGE], signature)) == (Status.E_UPDATE_STATE, "trial")


def test_a_request_that_works_is_alone(firmware: Callable[[str], Any], images: dict[str, Path], tmp_path: Path) -> None:
    """The CRC-32 of a whole image beside a generation, a page at each of its polls; what comes behind is refused."""
    with Bench(load_board("host"), firmware("host"), images["large"], tmp_path / "card.img").started() as (device, _):
        tokens = iter(device.generate(PROMPT, ignore_eos=True, slide=True))  # without end
        next(tokens)
        session, size = device._session, device.info().image_bytes
        with leaving_together(session):
            crc = session.call(Type.UPDATE_CRC, pack_crc(Where.RUNNING_IMAGE, 0, size))
            behind = [session.call(kind) for kind in (Type.UPDATE_CONFIRM, Type.UPDATE_COMMIT)]
        for call in behind:
            assert refused(lambda c=call: session.result(c)) == (Status.E_BUSY, "update")
        assert int.from_bytes(session.result(crc), "little") == zlib.crc32(images["large"].read_bytes())
        assert device.cancel()


MORE = 50  # tokens behind the change: of any few tokens one needs the expert


def twin_rows(image: Path, where: tuple[int, int], ids: list[int], switch: int | None = None) -> Iterator[bytes]:
    """The logits before each of `ids` when the expert is replaced before those of number `switch`, by this machine's
    engine. `where`: the new blob's offset in the image's file, and its CRC-32."""
    twin = Engine(Library.load(), image, context=len(ids) + len(PROMPT))
    for index in range(len(ids)):
        if index == switch:
            twin.replace_expert(LAYER, EXPERT, offset=where[0], crc32=where[1], generation=1)
        row = twin.prefill(PROMPT) if index == 0 else twin.forward(ids[index - 1])
        yield row.astype("<f4").tobytes()


@pytest.mark.parametrize("store", ["memory", "block"])
def test_a_generation_sees_the_old_expert_and_then_the_new_one(
    firmware: Callable[[str], Any], images: dict[str, Path], tmp_path: Path, store: str
) -> None:
    """COMMIT in the middle of a generation: up to one token its logits are the old model's, and from that one on those
    of an engine that changes the expert just there. The generation is stopped behind it, however many tokens that
    takes; the context has room for minutes."""
    base, donor = images["large"], images["old"]  # the one with room for a long answer
    with Bench(load_board("host"), firmware("host"), base, tmp_path / "card.img").started() as (device, _):
        device.configure(store, cache_slots=2 if store == "block" else 0)
        calls = UpdateCalls(device)
        update = np.frombuffer(described(donor, device), UPDATE)[0]
        begun = calls.begin_expert(update.tobytes())
        list(calls.send(pieces(blob(donor), PAGE)))
        device.clear_stats()
        generation = device.generate(PROMPT, ignore_eos=True, trace_logits=True, temperature=100.0, seed=1)
        tokens = iter(generation)
        seen = [next(tokens)]
        calls.commit(Silent())
        enough = device.stats().tokens - len(PROMPT) + MORE
        while len(seen) < enough:
            seen.append(next(tokens))
        assert device.cancel()
        seen += tokens
    ids = [token.id for token in seen]
    rows = [token.logits.astype("<f4").tobytes() for token in seen if token.logits is not None]
    assert len(rows) == len(ids)
    whole = bytearray(base.read_bytes())
    whole[begun.place : begun.place + begun.target_bytes] = blob(donor)
    image = tmp_path / "with-the-new-blob.colibri"
    image.write_bytes(whole)
    where = begun.place, int(update["crc32"])
    old = twin_rows(image, where, ids)
    switch = next(index for index, (row, before) in enumerate(zip(rows, old, strict=True)) if row != before)
    print(f"switched before token {switch} of {len(ids)}")
    assert switch > 0
    assert list(twin_rows(image, where, ids, switch)) == rows
