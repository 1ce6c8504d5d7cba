# SPDX-License-Identifier: Apache-2.0
"""Replaces the model of a device with two slots: transfer, restart into the trial, checks, then confirmation or return.

Any of these steps may be interrupted; the same call begun anew finds out where it stands and goes on from there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from colibri_sdk.errors import (
    BuildError,
    DeviceError,
    DeviceFaultError,
    ImageError,
    LinkTimeoutError,
    NoDeviceError,
    ToolMissingError,
)
from colibri_sdk.flash.volume import BOOT_TRIES, SLOT_NAMES, SLOTS
from colibri_sdk.image.layout import PAGE
from colibri_sdk.image.reader import ImageFile
from colibri_sdk.status import Status
from colibri_sdk.targets import require_model
from colibri_sdk.update.calls import UpdateCalls, require_medium
from colibri_sdk.update.messages import UpdateStatus
from colibri_sdk.update.report import last_result
from colibri_sdk.update.transfer import Traffic, Transfer

if TYPE_CHECKING:
    from colibri_sdk.convert.progress import Progress
    from colibri_sdk.device import Device

Log = Callable[[str], None]
# (image, ids, tokens) -> SHA-256 of the logits that a right engine gives, in hexadecimal; None where there is none.
Twin = Callable[[Path, Sequence[int], int], str | None]

# The probe: the logits of this many tokens after these ids, on the device and on this machine.
_PROBE_IDS = (1, 2, 3)
_PROBE_TOKENS = 4


@dataclass(frozen=True)
class Check:
    """One question to a model on trial."""

    name: str
    ok: bool
    found: str


@dataclass(frozen=True)
class ModelUpdate:
    """What became of an update. `slot` is "A" or "B"; `seconds` are those of the transfer."""

    image_id: str
    image_bytes: int
    slot: str
    confirmed: bool
    unchanged: bool  # the device ran that very model, and nothing was done
    traffic: Traffic = field(default_factory=Traffic)
    seconds: float = 0.0
    checks: tuple[Check, ...] = ()


def update_model(
    device: Device,
    path: Path,
    *,
    progress: Progress,
    log: Log,
    tries: int = 0,
    confirm: bool = True,
    twin: Twin | None = None,
) -> ModelUpdate:
    """Writes the image `path` to the slot that does not run, starts it on trial, checks it and confirms it.

    tries: starts after which the device returns to the old model by itself; 0: as many as usual. confirm: False leaves
    the model on trial. twin: what the model must answer; this machine's engine says it unless told otherwise.
    A model that does not start or fails a check is withdrawn, the old one is started again, and DeviceError says why.
    Raises LinkLostError when the line breaks; then the call can be made again.
    """
    with ImageFile(path) as image:
        _check_file(image)
        image_id, image_bytes = image.image_id, image.image_bytes
        calls = UpdateCalls(device)
        status = calls.wait_settled(progress)
        _require_slots(device, status)
        same = device.info().image_id == image_id and not status.updates  # with a replaced expert it is another model
        if same and not status.trial and status.running == status.active:
            return ModelUpdate(image_id, image_bytes, slot_name(status.active), confirmed=True, unchanged=True)
        traffic, start = Traffic(), time.monotonic()
        as_packed = status.trial != status.running or not status.updates
        if status.trial and as_packed and status.image_ids[status.trial - 1] == image_id:
            log(f"{path.name} is on the device already, on trial")
        else:
            _return_to_active(device, status)
            traffic = _transfer(device, calls, image, tries, progress, log)
        seconds = time.monotonic() - start
    checks = try_model(device, path, image_id, log=log, twin=twin or host_twin)
    slot = calls.status().trial
    failed = [check for check in checks if not check.ok]
    if failed:
        withdraw(device)
        reasons = "; ".join(f"{check.name}: {check.found}" for check in failed)
        raise DeviceError(
            f"{path.name} was tried and taken back, the old model runs again: {reasons}",
            "Check the image with `colibri-sdk inspect --verify` and `colibri-sdk run` on this machine.",
        )
    if confirm:
        slot = calls.confirm().active
    return ModelUpdate(
        image_id, image_bytes, slot_name(slot), confirmed=confirm, unchanged=False, traffic=traffic, seconds=seconds,
        checks=tuple(checks),
    )  # fmt: skip


def slot_name(slot: int) -> str:
    """The name of slot 1, 2, ...; empty for 0."""
    return SLOT_NAMES[slot - 1] if slot else ""


def withdraw(device: Device) -> bool:
    """Gives up an open update and a trial, and restarts the device where the old model is not the one that runs. True
    when there was anything to give up."""
    done = UpdateCalls(device).rollback()
    if done.restart:
        device.reboot()
    return done.update or done.trial


def try_model(device: Device, path: Path, image_id: str, *, log: Log, twin: Twin) -> list[Check]:
    """Starts the model on trial, unless it runs, and asks it what a model must answer before it is trusted.

    Raises DeviceError when the device has returned to its old model instead."""
    calls = UpdateCalls(device)
    status = calls.status()
    if status.running != status.trial:
        log("restarting into the new model")
        _restart(device, status.tries or BOOT_TRIES)
        status = calls.status()
    if not status.trial or status.running != status.trial:
        raise DeviceError(
            f"the device does not keep {path.name}: {last_result(status)}; "
            f"it runs the old model, from slot {slot_name(status.running) or '-'}",
            "Check the image with `colibri-sdk inspect --verify`, and whether it fits: `colibri-sdk plan --board`.",
            status=status.last_status,
        )
    log("checking it")
    held = device.info().image_id
    checks = [Check("identity", held == image_id, held)]
    checks.append(_selftest(device))
    checks.append(_probe(device, path, twin))
    return checks


def _restart(device: Device, tries: int) -> None:
    """Restarts until the device answers; a model that makes it crash has used up its tries by then.

    One that hangs is silent first: its watchdog may wait as long as this side. Asked again, it reports the fault."""
    faults, silent = 0, False
    while True:
        try:
            device.reboot()
            return
        except DeviceFaultError:
            faults, silent = faults + 1, False
            if faults > tries:
                raise
        except (LinkTimeoutError, NoDeviceError):
            if silent:
                raise
            silent = True


def _selftest(device: Device) -> Check:
    report = device.selftest()
    found = f"{report.cases} comparisons" if report.ok else f"{report.failed} differs at size {report.failed_size}"
    return Check("self-test", report.ok, f"{report.kernels}: {found}")


def host_twin(path: Path, ids: Sequence[int], tokens: int) -> str | None:
    """This machine's answer; None where the engine's library cannot be built."""
    from colibri_sdk.engine import Engine, Library

    try:
        library = Library.load()
    except (BuildError, ToolMissingError):
        return None
    return Engine(library, path).generate(ids, max_tokens=tokens, ignore_eos=True).logits_sha256


def _probe(device: Device, path: Path, twin: Twin) -> Check:
    """A few tokens; their logits are compared with the twin's, bit by bit."""
    vocab = device.info().vocab
    if vocab == 0:
        return Check("probe", False, "it states a vocabulary of 0 tokens")
    ids = [number % vocab for number in _PROBE_IDS]
    try:
        result = device.generate(ids, max_tokens=_PROBE_TOKENS, ignore_eos=True).result
    except DeviceError as error:
        return Check("probe", False, error.message)
    expected = twin(path, ids, _PROBE_TOKENS)
    if expected is None:
        return Check("probe", True, f"{result.generated_tokens} tokens; not compared: this machine has no library")
    same = expected == result.logits_sha256
    found = "the logits are this machine's" if same else "the logits are not this machine's"
    return Check("probe", same, f"{result.generated_tokens} tokens, {found}")


def _check_file(image: ImageFile) -> None:
    """A file that is damaged here need not travel."""
    if len(image.updates):
        raise ImageError(
            f"{image.path.name} holds {len(image.updates)} experts that were replaced in the field",
            "Give the image as it was packed.",
        )
    image.require_whole()


def _require_slots(device: Device, status: UpdateStatus) -> None:
    if status.slots == 0:
        require_model(device, "the device")  # which says why nothing was found on its medium
        require_medium(status)
    if status.slots != SLOTS:
        raise DeviceError(
            "the device has no second slot for a model",
            "Write its card with `colibri-sdk flash --slots 2`; single experts can be replaced without.",
            status=Status.E_UPDATE_PLACE,
            where="slot",
            got=status.slots,
            wanted=SLOTS,
        )
    if not status.writable:
        raise DeviceError("the device's medium cannot be written", "Move the card's lock.", status=Status.E_READ_ONLY)


def _return_to_active(device: Device, status: UpdateStatus) -> None:
    """The slot that is to be written must not be the one that runs, nor hold another model on trial."""
    if status.trial:
        other = status.image_ids[status.trial - 1]
        if status.trial == status.running and status.updates:
            other += f", of whose experts {status.updates} were replaced"
        raise DeviceError(
            f"another model is on trial in slot {slot_name(status.trial)}: {other}",
            "Decide about it first: `colibri-sdk update confirm` or `colibri-sdk update rollback`.",
            status=Status.E_UPDATE_STATE,
            where="trial",
        )
    if status.running and status.running != status.active:
        device.reboot()


def _transfer(
    device: Device, calls: UpdateCalls, image: ImageFile, tries: int, progress: Progress, log: Log
) -> Traffic:
    """Ends with the model on trial."""
    try:
        begun = calls.begin_model(image.bytes_at(0, PAGE), image.signature.encode(), tries)
    except DeviceError as error:
        if (error.status, error.where) == (Status.E_UPDATE_PLACE, "slot") and error.got > error.wanted:
            error.message = f"{image.path.name} has {error.got} bytes, the device's slot has room for {error.wanted}"
            error.hint = "Pack it smaller, or write the card anew with it: `colibri-sdk flash` makes slots that fit."
        raise
    if begun.resumed:
        log("going on with an update that was interrupted")
    info = device.info()
    runs = info.state == "ready"  # a model that does not load is nothing to copy from
    directory, running_bytes = (calls.directory(), info.image_bytes) if runs else ([], 0)
    traffic = Transfer(calls, image, directory, running_bytes).run(progress)
    log("the device checks what it has got")
    calls.commit(progress)
    return traffic
