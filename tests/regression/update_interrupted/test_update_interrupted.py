# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C at any moment of an update of the model: nothing is lost, and the same call goes on.

The interruption comes where the update calls back, so at each step and while the device is at work, and the line is
closed then, as the command does. Whatever the device was doing goes on, or ends.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from colibri_sdk import emulator
from colibri_sdk.boards import load_board
from colibri_sdk.device import Device
from colibri_sdk.flash import write_card
from colibri_sdk.image.reader import ImageFile
from colibri_sdk.link.messages import Type
from colibri_sdk.link.session import Call, Session
from colibri_sdk.update.calls import UpdateCalls
from colibri_sdk.update.model import update_model


class Interrupting:
    """The progress and the log of an update: counts their words, and is Ctrl-C at the word `at`."""

    def __init__(self, at: int | str = -1) -> None:
        self.at = at  # or at the first word that begins so
        self.words: list[str] = []

    def update(self, done_bytes: int, total_bytes: int, what: str = "") -> None:
        self(f"{what or 'sending'} {done_bytes} of {total_bytes}")

    def __call__(self, word: str) -> None:
        self.words.append(word)
        if self.at in (len(self.words) - 1, word.partition(" ")[0]):
            raise KeyboardInterrupt


def started(firmware: Any, card: Path) -> emulator.Emulator:
    return emulator.start(load_board("host"), firmware=firmware, arguments=["--block", str(card)])


def identities(images: dict[str, Path]) -> dict[str, str]:
    found = {}
    for name in ("old", "new"):
        with ImageFile(images[name]) as image:
            found[name] = image.image_id
    return found


def update(device: Device, image: Path, said: Interrupting) -> Any:
    return update_model(device, image, progress=said, log=said, twin=lambda *_: None)


@pytest.mark.parametrize("restarts", [False, True], ids=["the device goes on", "the device restarts too"])
def test_the_same_call_goes_on(
    restarts: bool,
    firmware: Callable[[str], Any],
    images: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # How often it is asked how far it has checked depends on its speed; each attempt is to say the same words.
    monkeypatch.setattr("colibri_sdk.device._MEANWHILE_SECONDS", 3600.0)
    built, card = firmware("host"), tmp_path / "card.img"
    ids = identities(images)

    def fresh() -> None:
        write_card(load_board("virt-aarch64"), firmware=None, model=images["old"], to=card, slots=2, force=True)

    fresh()
    said = Interrupting()
    with started(built, card) as running, Device.open(running, timeout=60.0) as device:
        update(device, images["new"], said)
    logged = [at for at, word in enumerate(said.words) if " of " not in word]
    assert [said.words[at] for at in logged] == [
        *("the device checks what it has got", "restarting into the new model", "checking it")
    ]
    count = len(said.words)
    moments = sorted({*range(0, count, 1 + count // 8), *logged, *(at + 1 for at in logged if at + 1 < count)})
    sent = []
    for at in moments:
        fresh()
        with started(built, card) as running:
            with Device.open(running, timeout=60.0) as device, pytest.raises(KeyboardInterrupt):
                update(device, images["new"], Interrupting(at))
            if not restarts:
                sent.append(go_on(running, ids, images["new"]))
        if restarts:
            with started(built, card) as running:
                sent.append(go_on(running, ids, images["new"]))
    assert min(sent) == 0 and max(sent) > 0  # before the transfer all of it travels, after it nothing


def go_on(running: emulator.Emulator, ids: dict[str, str], new: Path) -> int:
    """Bytes that still had to travel."""
    with Device.open(running, timeout=60.0) as device:
        status = UpdateCalls(device).status()
        assert device.info().state == "ready" and device.info().image_id in ids.values()
        assert device.info().image_id == ids["old"] or status.trial == status.running
        done = update(device, new, Interrupting())
        assert done.confirmed and done.image_id == ids["new"] == device.info().image_id
        status = UpdateCalls(device).status()
        assert (status.trial, status.state, status.active) == (0, 0, status.running)
        return int(done.traffic.sent_bytes)


def hold_commit_for_status(monkeypatch: pytest.MonkeyPatch) -> None:
    """COMMIT leaves together with the STATUS behind it: the device is still at work then, however late this side is."""
    ask = Session.call

    def call(self: Session, kind: Type, body: bytes = b"") -> Call:
        if kind == Type.UPDATE_COMMIT:
            vars(self._peer)["poll"] = lambda _: b""
        made = ask(self, kind, body)
        if kind == Type.UPDATE_STATUS:
            vars(self._peer).pop("poll", None)
            self._transport.wake()
        return made

    monkeypatch.setattr(Session, "call", call)


def test_while_the_device_checks_what_it_has_got(
    firmware: Callable[[str], Any], images: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request that makes the model count is cancelled with the rest of it, or has been carried out."""
    monkeypatch.setattr("colibri_sdk.device._MEANWHILE_SECONDS", 0.0)
    hold_commit_for_status(monkeypatch)
    card = tmp_path / "card.img"
    write_card(load_board("virt-aarch64"), firmware=None, model=images["old"], to=card, slots=2)
    said = Interrupting("checking")
    with started(firmware("host"), card) as running:
        with Device.open(running, timeout=60.0) as device, pytest.raises(KeyboardInterrupt):
            update(device, images["new"], said)
        assert " of " in said.words[-1]
        assert go_on(running, identities(images), images["new"]) == 0
