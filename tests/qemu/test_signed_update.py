# SPDX-License-Identifier: Apache-2.0
"""Boards that trust one key: what they take, and what they refuse before a byte is written."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from colibri_sdk.boards import load_board, with_key
from colibri_sdk.build import build
from colibri_sdk.cli.main import run
from colibri_sdk.device import Device
from colibri_sdk.errors import EXIT_DEVICE, EXIT_OK, EXIT_USAGE, DeviceError, ImageError
from colibri_sdk.image.layout import PAGE, SectionKind
from colibri_sdk.signing import PrivateKey, sign_image
from colibri_sdk.status import Status
from colibri_sdk.update.calls import UpdateCalls
from fixed_key import KEY
from forge import Forge
from update_bench import ALL_BOARDS, Bench, answer, begin_model, on, put_on_trial, renew, replace, status_of, update_for
from update_images import EXPERT, LAYER


@dataclass(frozen=True)
class Signed:
    """Images signed with the key (counter 2, for any board), and a card with a board that trusts this key alone."""

    images: dict[str, Path]
    table: Bench


@pytest.fixture
def signed(public_key: Path, images: dict[str, Path], tmp_path: Path) -> Callable[[str], Signed]:
    def make(name: str) -> Signed:
        own = {}
        for kind in ("old", "expert", "new"):
            own[kind] = Path(shutil.copy(images[kind], tmp_path / f"{kind}.colibri"))
            sign_image(own[kind], KEY, counter=2)
        board = with_key(load_board(name), public_key)
        return Signed(own, Bench(board, build(board), own["old"], tmp_path / "card.img"))

    return make


@on(*ALL_BOARDS)
def test_a_board_with_a_key_takes_what_is_signed(
    name: str, signed: Callable[[str], Signed], images: dict[str, Path], answers: dict[str, str]
) -> None:
    """Nothing else: unsigned, neither an expert nor a model; and no model with a lower counter than the last one's."""
    bench = signed(name)
    old, new = bench.images["old"], bench.images["expert"]
    with bench.table.started() as (device, _):
        assert answer(device) == answers["old"]
        unsigned = update_for(new, old, None)
        for send in (lambda: replace(device, new, prepared=unsigned), lambda: renew(device, images["new"])):
            with pytest.raises((DeviceError, ImageError)) as raised:
                send()
            assert (raised.value.status, raised.value.where) == (Status.E_SIGNATURE, "unsigned")
        assert (status_of(device).updates, status_of(device).trial) == (0, 0)
        assert answer(device) == answers["old"]
        prepared = update_for(new, old, KEY, board=device.info().board)
        assert replace(device, new, prepared=prepared).generation == 1
        assert answer(device) == answers["expert"]
        kind = "new" if name == "host" else "expert"  # slow lines: all of it is there
        sign_image(bench.images[kind], KEY, counter=7)
        assert renew(device, bench.images[kind]).confirmed
        assert answer(device) == answers[kind]
        assert (status_of(device).counter, status_of(device).updates) == (7, 0)
        with pytest.raises(DeviceError) as caught:
            renew(device, old)
        error = caught.value
        assert (error.status, error.where, error.got, error.wanted) == (Status.E_COUNTER, "counter", 2, 7)


def test_a_board_with_a_key_refuses_all_else_before_a_byte_is_written(
    signed: Callable[[str], Signed], answers: dict[str, str]
) -> None:
    bench = signed("host")
    old, new = bench.images["old"], bench.images["expert"]
    stranger = PrivateKey.new()
    forged = bytearray(update_for(new, old, KEY))
    forged[150] ^= 1  # in the signature
    lies: list[tuple[bytes, Status, str]] = [
        (update_for(new, old, None), Status.E_SIGNATURE, "unsigned"),
        (update_for(new, old, stranger), Status.E_SIGNATURE, "key"),
        (bytes(forged), Status.E_SIGNATURE, "signature"),
        (update_for(new, old, KEY, counter=1), Status.E_COUNTER, "counter"),
        (update_for(new, old, KEY, board="rpi3"), Status.E_OTHER_BOARD, "rpi3"),
        (update_for(new, new, KEY), Status.E_UPDATE_BASE, "image"),
    ]
    with bench.table.started() as (device, _):
        before = bench.table.card.read_bytes()
        for update, status, where in lies:
            with pytest.raises((DeviceError, ImageError)) as raised:
                replace(device, new, prepared=update)
            assert (raised.value.status, raised.value.where) == (status, where)
        for change, status, where in (
            (lambda path: None, Status.E_COUNTER, "counter"),
            (lambda path: sign_image(path, stranger, counter=2), Status.E_SIGNATURE, "key"),
            (lambda path: sign_image(path, KEY, counter=2, board="rpi3"), Status.E_OTHER_BOARD, "rpi3"),
        ):
            path = bench.images["new"]
            sign_image(path, KEY, counter=1)
            change(path)
            with pytest.raises((DeviceError, ImageError)) as raised:
                renew(device, path)
            assert (raised.value.status, raised.value.where) == (status, where)
        assert bench.table.card.read_bytes() == before
        assert answer(device) == answers["old"]


def lose_boot_state(device: Device, table: Bench) -> None:
    with table.card.open("r+b") as card:
        for page in (1, 2):
            card.seek(table.model_start + page * PAGE)
            card.write(bytes(PAGE))
    device.reboot()


def leave_no_model(device: Device) -> None:
    with pytest.raises(DeviceError):
        device.configure("memory", memory_limit=PAGE)


def bring_to(state: str, device: Device, bench: Signed) -> Path:
    """The image that runs then, or ran before."""
    old, new = bench.images["old"], bench.images["new"]
    if state == "an expert is open":
        UpdateCalls(device).begin_expert(update_for(bench.images["expert"], old, KEY))
    elif state == "a model is open":
        begin_model(device, new)
    elif state.startswith("no boot state"):
        lose_boot_state(device, bench.table)
    if state.endswith("no model"):
        leave_no_model(device)
    if "trial" not in state:
        return old
    put_on_trial(device, new)
    if state == "a trial waits":
        return old
    device.reboot()
    if state == "a withdrawn trial runs":
        UpdateCalls(device).rollback()
    return new


STATES = (
    *("an expert is open", "a model is open", "a trial waits", "a trial runs", "a withdrawn trial runs"),
    *("no boot state", "no model", "no boot state, no model"),
)


@pytest.mark.parametrize("state", STATES)
def test_a_board_with_a_key_refuses_all_else_whatever_it_is_doing(
    state: str, signed: Callable[[str], Signed], images: dict[str, Path]
) -> None:
    """By BEGIN alone, without the SDK's own care."""
    bench = signed("host")
    lies: list[tuple[PrivateKey | None, dict[str, Any], Status]] = [
        (None, {}, Status.E_SIGNATURE),
        (PrivateKey.new(), {"counter": 9}, Status.E_SIGNATURE),
        (KEY, {"counter": 1}, Status.E_COUNTER),
        (KEY, {"counter": 9, "board": "rpi3"}, Status.E_OTHER_BOARD),
    ]
    with bench.table.started() as (device, _):
        base = bring_to(state, device, bench)
        assert status_of(device).counter == 2
        before = bench.table.card.read_bytes()
        for key, terms, status in lies:
            with pytest.raises((DeviceError, ImageError)) as raised:
                UpdateCalls(device).begin_expert(update_for(bench.images["expert"], base, key, **terms))
            assert raised.value.status == (Status.E_NO_MODEL if state.endswith("no model") else status)
            model = Path(shutil.copy(images["new"], bench.images["new"]))
            if key is not None:
                sign_image(model, key, **terms)
            with pytest.raises((DeviceError, ImageError)) as raised:
                begin_model(device, model)
            assert raised.value.status == status
        assert bench.table.card.read_bytes() == before


def test_a_card_is_updated_as_its_board_would(
    signed: Callable[[str], Signed], answers: dict[str, str], public_key: Path, tmp_path: Path
) -> None:
    """With the key all checks are the board's; without it an unsigned update is refused, and written if need be."""
    bench = signed("host")
    secret = tmp_path / "test.private.json"
    KEY.save(secret)
    card = ["--card", str(bench.table.card)]
    line = ["update", "expert", str(bench.images["expert"]), "--layer", str(LAYER), "--expert", str(EXPERT), *card]
    before = bench.table.card.read_bytes()
    assert run(line) == EXIT_USAGE
    assert run([*line, "--public-key", str(public_key)]) == EXIT_DEVICE
    assert run([*line, "--key", str(secret), "--any-board", "--counter", "1"]) == EXIT_USAGE
    assert bench.table.card.read_bytes() == before
    assert run([*line, "--public-key", str(public_key), "--key", str(secret), "--any-board"]) == EXIT_OK
    with bench.table.started() as (device, _):
        assert answer(device) == answers["expert"]
    old = [*line[:2], str(bench.images["old"]), *line[3:]]
    assert run([*old, "--force"]) == EXIT_OK
    with bench.table.started() as (device, _):
        assert device.info().state == "no model"  # which is what it was refused for


def test_what_is_not_what_was_signed_never_starts(
    signed: Callable[[str], Signed], answers: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another weight, all checksums made right for it, and the signature of the image as it was: the commit fails."""
    bench = signed("host")
    path = bench.images["new"]
    forge = Forge(path)
    forge.contents(SectionKind.RESIDENT)[-100] ^= 1
    forge.seal()
    forge.write(path)
    monkeypatch.setattr("colibri_sdk.update.model._check_file", lambda image: None)  # which would find it here
    with bench.table.started() as (device, _):
        with pytest.raises((DeviceError, ImageError)) as raised:
            renew(device, path)
        assert (raised.value.status, raised.value.where) == (Status.E_SIGNATURE, "digest")
        status = status_of(device)
        assert (status.trial, status.image_ids[1]) == (0, "")
        device.reboot()
        assert answer(device) == answers["old"]


def test_a_replaced_expert_raises_the_counter(signed: Callable[[str], Signed], answers: dict[str, str]) -> None:
    """At once, and when the list is read at the next start; what is signed with a lower one is refused then."""
    bench = signed("host")
    old, new = bench.images["old"], bench.images["expert"]
    with bench.table.started() as (device, _):
        places = status_of(device).free_places
        replace(device, new, prepared=update_for(new, old, KEY, counter=5))
        for _start in range(2):
            status = status_of(device)
            assert (status.counter, status.updates) == (5, 1)
            assert status.free_places == places  # the spare one is taken, the packed expert's is free
            with pytest.raises((DeviceError, ImageError)) as raised:
                UpdateCalls(device).begin_expert(update_for(old, old, KEY, counter=4, generation=2))
            assert (raised.value.status, raised.value.where) == (Status.E_COUNTER, "counter")
            device.reboot()
            assert answer(device) == answers["expert"]
        replace(device, old, prepared=update_for(old, old, KEY, counter=6, generation=2))
        assert answer(device) == answers["old"]
        assert (status_of(device).counter, status_of(device).updates) == (6, 1)
