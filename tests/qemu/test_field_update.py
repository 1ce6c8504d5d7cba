# SPDX-License-Identifier: Apache-2.0
"""Updates from end to end: the SDK on one side, firmware with a card on the other (update_bench.py)."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from colibri_sdk.boards import load_board
from colibri_sdk.emulator import Emulator
from colibri_sdk.errors import DeviceError, TransferError
from colibri_sdk.flash.volume import BootResult
from colibri_sdk.status import Status
from colibri_sdk.update.calls import DATA_AHEAD, UpdateCalls
from colibri_sdk.update.model import withdraw
from update_bench import ALL_BOARDS, PROMPT, Bench, answer, on, renew, replace, status_of
from update_images import EXPERT, LAYER, blob, front_pages_to_send

PAGE = 4096


@pytest.fixture
def bench(firmware: Callable[[str], Any], images: dict[str, Path], tmp_path: Path) -> Callable[..., Bench]:
    def make(name: str, slots: int = 2) -> Bench:
        return Bench(load_board(name), firmware(name), images["old"], tmp_path / "card.img", slots=slots)

    return make


# ------------------------------------------------------------------------------------------------------------ experts


@on(*ALL_BOARDS)
def test_expert(name: str, bench: Callable[..., Bench], images: dict[str, Path], answers: dict[str, str]) -> None:
    """The expert is in effect at once, and after a restart; only its blob travelled."""
    table = bench(name)
    with table.started() as (device, _):
        assert answer(device) == answers["old"]
        done = replace(device, images["expert"])
        assert (done.sent_bytes, done.generation) == (len(blob(images["expert"])), 1)
        assert answer(device) == answers["expert"]
        status = status_of(device)
        assert (status.updates, status.slots, status.state) == (1, 2, 0)
        device.reboot()
        assert answer(device) == answers["expert"]
        assert replace(device, images["expert"]).unchanged


STORES = pytest.mark.parametrize("store", ["memory", "block"])  # all loaded; two slots for each layer's four experts


@STORES
def test_experts_of_a_medium_with_a_single_image(
    bench: Callable[..., Bench], images: dict[str, Path], answers: dict[str, str], store: str
) -> None:
    """Again and again: each replacement finds a place, and the old image comes back bit by bit."""
    table = bench("host", slots=1)
    with table.started() as (device, _):
        device.configure(store, cache_slots=2 if store == "block" else 0)
        for generation, name in enumerate(("expert", "old", "expert", "old"), 1):
            assert replace(device, images[name]).generation == generation
            assert answer(device) == answers[name]
        with pytest.raises(DeviceError, match="no second slot"):
            renew(device, images["new"])
    with table.started() as (device, _):
        assert answer(device) == answers["old"]


def test_expert_while_the_device_answers(
    bench: Callable[..., Bench], images: dict[str, Path], answers: dict[str, str]
) -> None:
    table = bench("host")
    with table.started() as (device, _):
        generation = device.generate(PROMPT, max_tokens=0, ignore_eos=True, slide=True)
        tokens = iter(generation)
        next(tokens)
        assert replace(device, images["expert"]).generation == 1
        assert device.cancel()  # it was still running
        assert generation.result.finish_reason == "cancelled"
        assert answer(device) == answers["expert"]


# ------------------------------------------------------------------------------------------------------------- models


@on(*ALL_BOARDS)
def test_model(name: str, bench: Callable[..., Bench], images: dict[str, Path], answers: dict[str, str]) -> None:
    """One expert differs: it and the changed pages travel; the new model is tried, checked, confirmed, and stays."""
    old, new = images["old"], images["expert"]
    table = bench(name)
    with table.started() as (device, _):
        done = renew(device, new)
        assert done.traffic.sent_bytes == len(blob(new)) + PAGE * front_pages_to_send(old, new)
        assert (done.traffic.experts_sent, done.traffic.experts_copied) == (1, 7)
        assert (done.slot, done.confirmed) == ("B", True)
        assert all(check.ok for check in done.checks) and "this machine's" in done.checks[-1].found
        assert answer(device) == answers["expert"]
        device.reboot()
        assert answer(device) == answers["expert"]
        status = status_of(device)
        assert (status.running, status.active, status.trial) == (2, 2, 0)
        assert status.last_result == BootResult.CONFIRMED
    assert (table.boot_state().active, table.boot_state().trial) == (1, None)


@STORES
def test_replaced_experts_do_not_outlive_their_model(
    bench: Callable[..., Bench], images: dict[str, Path], answers: dict[str, str], store: str
) -> None:
    with bench("host").started() as (device, _):
        device.configure(store, cache_slots=2 if store == "block" else 0)
        replace(device, images["expert"])
        done = renew(device, images["expert"])  # its expert lies in the running image, as a replacement
        assert (done.traffic.experts_sent, done.traffic.experts_copied) == (0, 8)
        assert answer(device) == answers["expert"]
        assert status_of(device).updates == 0
        assert renew(device, images["old"]).traffic.experts_sent == 0  # slot A holds them all
        assert answer(device) == answers["old"]


def test_a_damaged_model_is_replaced(
    bench: Callable[..., Bench], images: dict[str, Path], answers: dict[str, str]
) -> None:
    """A device whose model does not load has nothing to copy from, and takes a new one all the same."""
    table = bench("host")
    with table.card.open("r+b") as file:
        file.seek(table.model_start + (1 << 20) + 20_000)  # in slot A, in the resident weights
        file.write(b"damage")
    with table.started() as (device, _):
        assert device.info().status == Status.E_IMAGE_CHECKSUM
        done = renew(device, images["old"])
        assert (done.slot, done.traffic.experts_sent, done.traffic.copied_bytes) == ("B", 8, 0)
        assert answer(device) == answers["old"]


class CutAfter:
    """A cable that is pulled when so many bytes have been acknowledged. Up to DATA_AHEAD pages more are on it then, and
    may arrive, be written and be acknowledged: what ends within those was not cut."""

    def __init__(self, running: Emulator, count: int) -> None:
        self.running, self.count = running, count

    def update(self, done_bytes: int, total_bytes: int, what: str) -> None:
        if what == "" and done_bytes >= self.count:
            self.running.transport().close()  # takes the line over; the one who had it is cut off


@on("host", "virt-aarch64", "rpi3")
def test_a_cut_cable_and_the_same_command_again(
    name: str, bench: Callable[..., Bench], images: dict[str, Path], answers: dict[str, str]
) -> None:
    """Of an expert and, on this machine, of a model; with the old one in effect in between."""
    new = images["expert"]
    size = len(blob(new))
    assert size > (2 + DATA_AHEAD) * PAGE
    with bench(name).started() as (device, running):
        with pytest.raises(TransferError):
            replace(device, new, progress=CutAfter(running, 2 * PAGE))
        assert answer(device) == answers["old"]  # the device's own next request opens the line again
        done = replace(device, new)
        assert 2 * PAGE <= done.kept_bytes < size
        assert done.sent_bytes + done.kept_bytes == size
        assert answer(device) == answers["expert"]
        if name == "host":
            with pytest.raises(TransferError):
                renew(device, images["new"], progress=CutAfter(running, 100_000))
            device.reboot()  # and the power fails too
            assert answer(device) == answers["expert"]
            model = renew(device, images["new"])
            assert model.confirmed and model.traffic.kept_bytes >= 90_000
            assert answer(device) == answers["new"]


# ------------------------------------------------------------------------------------------------- trials that end ill


@on("host", "virt-aarch64", "rpi3", "hifive-unleashed")
def test_unconfirmed_it_is_taken_back(
    name: str, bench: Callable[..., Bench], images: dict[str, Path], answers: dict[str, str]
) -> None:
    with bench(name).started() as (device, _):
        assert not renew(device, images["expert"], confirm=False, tries=2).confirmed
        assert answer(device) == answers["expert"]
        device.reboot()
        assert (answer(device), status_of(device).tries_left) == (answers["expert"], 0)
        device.reboot()
        assert answer(device) == answers["old"]
        status = status_of(device)
        assert (status.running, status.active, status.trial) == (1, 1, 0)
        assert status.last_result == BootResult.TRIES_USED


def test_rollback_on_the_hosts_word(
    bench: Callable[..., Bench], images: dict[str, Path], answers: dict[str, str]
) -> None:
    with bench("host").started() as (device, _):
        renew(device, images["new"], confirm=False)
        assert withdraw(device)
        assert answer(device) == answers["old"]
        assert status_of(device).last_result == BootResult.WITHDRAWN
        assert not withdraw(device)
        with pytest.raises(DeviceError) as raised:
            UpdateCalls(device).confirm()
        assert raised.value.status == Status.E_UPDATE_STATE


def test_a_model_that_does_not_fit_is_left_at_once(
    bench: Callable[..., Bench], images: dict[str, Path], answers: dict[str, str]
) -> None:
    """It is written and checked like any other; that it needs more memory than there is, only its start shows."""
    with bench("host").started("--arena-limit", "2000000") as (device, _):
        with pytest.raises(DeviceError, match="refused: model too large; it runs the old model, from slot A") as raised:
            renew(device, images["large"])
        assert raised.value.status == Status.E_MODEL_TOO_LARGE
        assert answer(device) == answers["old"]
        status = status_of(device)
        assert (status.trial, status.last_result) == (0, BootResult.INVALID)
        assert status.last_status == Status.E_MODEL_TOO_LARGE


# ----------------------------------------------------------------------------------------------- the command, on a card


def colibri(*line: str | Path) -> str:
    """stdout of a command that must end well."""
    command = [sys.executable, "-m", "colibri_sdk", *map(str, line)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_card_in_this_machines_reader(
    bench: Callable[..., Bench], images: dict[str, Path], answers: dict[str, str]
) -> None:
    """Each command starts the card anew; the board that gets it afterwards runs what was confirmed."""
    table = bench("host")
    place: Sequence[str] = ("--layer", str(LAYER), "--expert", str(EXPERT))

    def update(*line: str | Path) -> Any:
        return json.loads(colibri("update", *line, "--card", table.card, "--json"))

    assert update("expert", images["expert"], *place)["generation"] == 1
    done = update("model", images["new"], "--no-confirm", "--tries", "5")
    assert (done["slot"], done["confirmed"]) == ("B", False)
    status = update("status")
    assert (status["trial"], status["tries_left"]) == ("B", 3)  # two starts: within the command before, and this one
    assert update("confirm")["active"] == "B"
    with table.started() as (device, _):
        assert answer(device) == answers["new"]
