# SPDX-License-Identifier: Apache-2.0
"""Models on trial that come to a bad end on emulated boards: the board returns to its old model by itself."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from elftools.elf.elffile import ELFFile

from bringup import function_at, symbols
from colibri_sdk import emulator
from colibri_sdk.boards import load_board
from colibri_sdk.build import Firmware
from colibri_sdk.device import Device
from colibri_sdk.emulator import Emulator
from colibri_sdk.errors import DeviceError, DeviceFaultError
from colibri_sdk.flash.volume import BOOT_TRIES, BootResult
from colibri_sdk.image.layout import PAGE
from colibri_sdk.link.frames import Deframer, Frame, Kind
from colibri_sdk.link.messages import FaultBody, Reader
from colibri_sdk.status import Status
from update_bench import TIMEOUT, Bench, answer, on, put_on_trial, renew, status_of

WATCHDOG = 2  # FaultBody.kind

# What the only function that runs for a model on trial alone begins with, in firmware that is to fail then.
TRIAL_ONLY = "boot_check"
UNDEFINED = {"virt-aarch64": bytes(4), "virt-riscv64": bytes(4)}  # UDF #0; c.illegal
ENDLESS = {"virt-aarch64": bytes.fromhex("00000014"), "virt-riscv64": bytes.fromhex("6f000000")}  # B .; J .
RETURN = bytes.fromhex("c0035fd6")  # AArch64's RET

# An instruction takes 64 ns, and while the processor waits for its timer, time jumps there: a watchdog's half minute
# and a minute of fault reports pass in seconds. The board's reset ends QEMU. (Let go on, QEMU 7.2 stands still after a
# reset of virt-riscv64 with -icount, at the first write to mtimecmp.)
HURRIED = ("-icount", "shift=6,sleep=off", "-no-reboot")
HURRIED_SECONDS = 600.0  # a few on an idle machine

# Settings of disks: one that does not make a hurried board wait for this machine's, as its driver's time would run out;
# and one that takes most of a second for an image of 250 KB, so that power fails meanwhile.
QUICK, SLOW = "cache=unsafe", "throttling.bps-total=300000"


@pytest.fixture
def table(name: str, firmware: Callable[[str], Any], images: dict[str, Path], tmp_path: Path) -> Bench:
    return Bench(load_board(name), firmware(name), images["old"], tmp_path / "card.img")


def changed(firmware: Firmware, function: str, code: bytes, directory: Path) -> Firmware:
    """A copy whose function begins with other instructions. For boards that start an ELF."""
    address, size = symbols(firmware.elf)[function]
    assert size >= len(code)
    with firmware.elf.open("rb") as file:
        (offset,) = [
            segment["p_offset"] + address - segment["p_vaddr"]
            for segment in ELFFile(file).iter_segments("PT_LOAD")
            if segment["p_vaddr"] <= address < segment["p_vaddr"] + segment["p_filesz"]
        ]
    content = bytearray(firmware.elf.read_bytes())
    content[offset : offset + len(code)] = code
    copy = directory / "changed.elf"
    copy.write_bytes(content)
    return replace(firmware, elf=copy)


def disk(card: Path, settings: str) -> tuple[str, ...]:
    """QEMU's arguments for it."""
    drive = f"if=none,id=card,format=raw,file={card},{settings}"
    return ("-drive", drive, "-device", "virtio-blk-device,drive=card")


def frames_of(running: Emulator, kind: Kind) -> list[Frame]:
    """What the board has sent since its power is on."""
    frames = Deframer().feed(running.console_output())
    return [frame for frame in frames if isinstance(frame, Frame) and frame.kind == kind]


def starts(running: Emulator) -> int:
    """How often it has started: it says so with a reset of all sessions."""
    return sum(frame.session == 0 for frame in frames_of(running, Kind.RST))


def assert_old_model_runs(device: Device, answers: dict[str, str], result: BootResult, why: int = 0) -> None:
    assert answer(device) == answers["old"]
    status = status_of(device)
    assert (status.running, status.active, status.trial, status.tries_left) == (1, 1, 0, 0)
    assert (status.last_result, status.last_status) == (result, why)


@on("host", "virt-aarch64", "virt-riscv64")
def test_a_model_that_cannot_compute_is_left_in_the_same_start(
    table: Bench, images: dict[str, Path], answers: dict[str, str]
) -> None:
    """It fits, and all its checksums are right. Only a position that is computed shows that its numbers overflow."""
    with table.started() as (device, running):
        with pytest.raises(DeviceError, match="it runs the old model, from slot A") as raised:
            renew(device, images["overflowing"])
        assert raised.value.status == Status.E_NUMERIC
        assert_old_model_runs(device, answers, BootResult.INVALID, Status.E_NUMERIC)
        assert starts(running) == 2
        device.reboot()
        assert_old_model_runs(device, answers, BootResult.INVALID, Status.E_NUMERIC)


@on("virt-aarch64")
def test_a_model_is_not_taken_on_a_board_that_fails_its_self_test(
    table: Bench, images: dict[str, Path], answers: dict[str, str], tmp_path: Path
) -> None:
    """A kernel that computes nothing: its set is not used, and the old model answers as it should with the next best.
    But a model on trial must find all of them right. (A board with the scalar set alone could not run without it.)"""
    table.firmware = changed(table.firmware, "matmul_q8_dotprod", RETURN, tmp_path)
    with table.started() as (device, _):
        assert device.info().kernels in ("neon", "scalar")
        assert answer(device) == answers["old"]
        with pytest.raises(DeviceError, match="it runs the old model, from slot A"):
            renew(device, images["expert"])
        assert_old_model_runs(device, answers, BootResult.INVALID, Status.E_KERNELS_WRONG)


@on("virt-aarch64", "virt-riscv64")
def test_a_trial_that_crashes_in_each_start(
    name: str, table: Bench, images: dict[str, Path], answers: dict[str, str], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """The host hears of it, and where it was, and restarts the device: after two of two tries it runs its old model."""
    table.firmware = changed(table.firmware, TRIAL_ONLY, UNDEFINED[name], tmp_path)
    faults = []
    with table.started() as (device, running):
        assert answer(device) == answers["old"]
        reboot = device.reboot

        def listen() -> None:
            try:
                reboot()
            except DeviceFaultError as fault:
                faults.append(fault)
                raise

        monkeypatch.setattr(device, "reboot", listen)
        with pytest.raises(DeviceError, match="it runs the old model, from slot A"):
            renew(device, images["expert"], tries=2)
        # The second may look like a copy of the first, which a host does not report again.
        assert {(fault.status, fault.symbol.split()[0]) for fault in faults} == {(Status.E_TRAP, TRIAL_ONLY)}
        assert_old_model_runs(device, answers, BootResult.TRIES_USED)
        assert starts(running) == 1 + 2 + 1


@on("virt-aarch64", "virt-riscv64")
def test_a_trial_that_hangs_and_nobody_listens(
    name: str, table: Bench, images: dict[str, Path], answers: dict[str, str], tmp_path: Path
) -> None:
    """The watchdog ends each start, the report of it ends after a minute, and the device resets itself, until it has no
    try left."""
    with table.started() as (device, _):
        put_on_trial(device, images["expert"], tries=2)
    endless = changed(table.firmware, TRIAL_ONLY, ENDLESS[name], tmp_path)
    arguments = (*HURRIED, *disk(table.card, QUICK))
    for tries_left in (1, 0):
        with emulator.start(table.board, firmware=endless, arguments=arguments) as running:
            assert running.wait(HURRIED_SECONDS) == 0  # it was reset
            faults = [FaultBody.read(Reader(frame.payload)) for frame in frames_of(running, Kind.FAULT)]
        assert len(faults) >= 50  # one a second
        assert {(fault.kind, function_at(endless.elf, fault.pc)) for fault in faults} == {(WATCHDOG, TRIAL_ONLY)}
        state = table.boot_state()
        assert (state.trial, state.tries_left, state.last_result) == (1, tries_left, BootResult.ON_TRIAL)
    table.firmware = endless
    with table.started() as (device, _):
        assert_old_model_runs(device, answers, BootResult.TRIES_USED)


def wait_until(happened: Callable[[], bool], running: Emulator) -> None:
    give_up = time.monotonic() + 10 * TIMEOUT
    while not happened():
        assert running.running and time.monotonic() < give_up
        time.sleep(0.002)


@on("virt-aarch64", "virt-riscv64", "rpi3", "hifive-unleashed")
def test_power_fails_in_each_start_of_a_trial(table: Bench, images: dict[str, Path], answers: dict[str, str]) -> None:
    """At the first page of the new model, in its middle, behind its end; and the host says nothing all the while."""
    image = images["expert"].read_bytes()
    with table.started() as (device, _):
        put_on_trial(device, images["expert"])
    assert table.boot_state().tries_left == BOOT_TRIES
    memory, _size = symbols(table.firmware.elf)["hal_memory_start"]
    virtio = table.board.emulator.storage == "virtio"  # SD cards are slow by themselves
    medium: dict[str, Any] = {"arguments": disk(table.card, SLOW)} if virtio else {"storage": table.card}
    for start, there in enumerate((PAGE, len(image) // 2, len(image)), 1):
        with emulator.start(table.board, firmware=table.firmware, **medium) as running:
            wait_until(lambda: running.read_memory(memory, there) == image[:there], running)  # noqa: B023
            assert running.pid is not None
            os.kill(running.pid, signal.SIGKILL)
        state = table.boot_state()
        assert (state.trial, state.tries_left, state.last_result) == (1, BOOT_TRIES - start, BootResult.ON_TRIAL)
    with table.started() as (device, _):
        assert_old_model_runs(device, answers, BootResult.TRIES_USED)
