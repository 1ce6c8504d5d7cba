# SPDX-License-Identifier: Apache-2.0
"""What a device's update state means, in words."""

from __future__ import annotations

from typing import Any

from colibri_sdk.figures import count
from colibri_sdk.flash.volume import SLOT_NAMES, BootResult
from colibri_sdk.status import hint, status_name
from colibri_sdk.update.messages import UpdateKind, UpdateState, UpdateStatus


def last_result(status: UpdateStatus) -> str:
    """What became of the last model that was on trial."""
    match status.last_result:
        case BootResult.NONE:
            return "no model was ever on trial"
        case BootResult.ON_TRIAL:
            return "it is on trial"
        case BootResult.CONFIRMED:
            return "the last model on trial was confirmed"
        case BootResult.WITHDRAWN:
            return "the last model on trial was withdrawn"
        case BootResult.TRIES_USED:
            return f"the last model on trial started {status.tries} times and was not confirmed"
        case BootResult.INVALID:
            return f"the last model on trial was refused: {status_name(status.last_status)}"
        case other:
            return f"result {other}"


def advice(status: UpdateStatus) -> list[str]:
    """What a person may want to do next."""
    lines = []
    if status.state != UpdateState.IDLE:
        lines.append("An update is open: run its command again to go on, or `update rollback` to give it up.")
    if status.trial and status.running == status.trial:
        lines.append("The running model is on trial: `update confirm` keeps it, `update rollback` takes it back.")
    elif status.trial:
        lines.append("A model is on trial and does not run: run its `update model` again, or `update rollback`.")
    if status.running and not status.trial and status.running != status.active:
        lines.append("The running model was withdrawn: restart the device, or run `update rollback`.")
    if status.last_result == BootResult.INVALID and (what := hint(status.last_status)):
        lines.append(what)
    if status.slots == 0:
        lines.append("There is no image on a medium, and so nothing to update.")
    if status.slots == 1:
        lines.append("There is no second slot: a model can only be replaced by `colibri-sdk flash`, experts can.")
    if status.slots and not status.writable:
        lines.append("The medium cannot be written.")
    return lines


def rows(status: UpdateStatus, *, starts: bool = True) -> list[list[str]]:
    """The state as a table of two columns. `starts` False: the device has no model, whatever lies in the slots."""
    found = [[f"slot {name}", _slot(status, index, starts)] for index, name in enumerate(SLOT_NAMES[: status.slots])]
    if status.slots == 1:
        found = [["image", status.image_ids[0] or "none"]]
    if status.trial:
        found.append(["trial", f"{status.tries_left} of {status.tries} starts left"])
    if status.slots > 1:
        found.append(["last trial", last_result(status)])
    found.append(["security counter", str(status.counter)])
    if status.updates_max:
        places = f"{status.free_places} place{'' if status.free_places == 1 else 's'} free"
        found.append(["replaced experts", f"{status.updates} of at most {status.updates_max}; {places}"])
    if status.state != UpdateState.IDLE:
        found.append(["open update", _open(status)])
    return found


def takes(has_key: bool | None) -> str:
    """What a device runs and lets replace its model, by whether its firmware has a public key; None: of a card."""
    if has_key is None:
        return "what the firmware of its board takes, which this machine does not see"
    return "only what its key's owner signed" if has_key else "whatever it is sent: its firmware has no public key"


def as_json(status: UpdateStatus) -> dict[str, Any]:
    """The state for machines; slots by their names, null for none."""

    def name(slot: int) -> str | None:
        return SLOT_NAMES[slot - 1] if slot else None

    try:
        result = BootResult(status.last_result).name.lower()
    except ValueError:
        result = str(status.last_result)
    return {
        "slots": status.slots,
        "writable": status.writable,
        "running": name(status.running),
        "active": name(status.active),
        "trial": name(status.trial),
        "tries_left": status.tries_left,
        "tries": status.tries,
        "last_result": result,
        "last_status": status.last_status,
        "images": {SLOT_NAMES[index]: image_id or None for index, image_id in enumerate(status.image_ids)},
        "slot_bytes": status.slot_bytes,
        "security_counter": status.counter,
        "updates": status.updates,
        "updates_max": status.updates_max,
        "updates_sequence": status.updates_sequence,
        "free_places": status.free_places,
        "open": None if status.state == UpdateState.IDLE or not status.kind else UpdateKind(status.kind).name.lower(),
        "target_bytes": status.target_bytes,
        "advice": advice(status),
    }


def _slot(status: UpdateStatus, index: int, starts: bool) -> str:
    runs = "runs" if starts else "does not start"
    marks = [
        word
        for word, slot in ((runs, status.running), ("active", status.active), ("on trial", status.trial))
        if slot == index + 1
    ]
    image_id = status.image_ids[index]
    return f"{image_id or 'empty'}{'  ' if marks else ''}{', '.join(marks)}"


def _open(status: UpdateStatus) -> str:
    what = f"expert {status.layer}/{status.expert}" if status.kind == UpdateKind.EXPERT else "model"
    at_work = ""
    if status.state == UpdateState.WORKING:
        at_work = f", at work: {count(status.done)} of {count(status.total)} bytes"
    return f"{what}, {count(status.target_bytes)} bytes{at_work}"
