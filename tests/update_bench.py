# SPDX-License-Identifier: Apache-2.0
"""What tests of updates from end to end share: a card with a board to start on it, updates, and what runs afterwards.

It is asked for the logits of a prompt, which are compared with this machine's engine on the image's file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from colibri_sdk import emulator
from colibri_sdk.boards import Board, load_board
from colibri_sdk.convert.progress import Silent
from colibri_sdk.device import Device
from colibri_sdk.emulator import Emulator
from colibri_sdk.flash import volume, write_card
from colibri_sdk.flash.card import MODEL_TYPE, read_partitions
from colibri_sdk.image.layout import PAGE, UPDATE
from colibri_sdk.image.reader import ImageFile
from colibri_sdk.link.session import Session
from colibri_sdk.signing import PrivateKey, sign_update
from colibri_sdk.update.calls import UpdateCalls
from colibri_sdk.update.expert import ExpertUpdate, describe_update, expert_content, update_expert
from colibri_sdk.update.messages import UpdateStatus
from colibri_sdk.update.model import ModelUpdate, host_twin, update_model
from colibri_sdk.update.transfer import Transfer
from update_images import EXPERT, LAYER

ALL_BOARDS = ("host", "virt-aarch64", "virt-riscv64", "rpi3", "hifive-unleashed")
PROMPT = (3, 1, 4, 1, 5, 9, 2, 6)
TOKENS = 6
TIMEOUT = 60.0


def on(*names: str) -> Any:
    """The test runs on each of these boards, as its argument `name`. This machine's runs all tests; emulated ones those
    that other processors, slow lines, or drivers of media could break."""
    boards = [name if name == "host" else pytest.param(name, marks=pytest.mark.qemu) for name in names]
    return pytest.mark.parametrize("name", boards)


class Bench:
    """A card with `image`, and a board that is started on it as often as asked."""

    def __init__(self, board: Board, firmware: Any, image: Path, card: Path, *, slots: int = 2) -> None:
        self.board, self.firmware, self.card = board, firmware, card
        layout = load_board("virt-aarch64") if board.is_host else board  # this machine's board takes any layout
        write_card(layout, firmware=firmware, model=image, to=card, slots=slots)

    @contextmanager
    def started(self, *arguments: str) -> Iterator[tuple[Device, Emulator]]:
        """A device on the board's line, and what emulates it. `arguments` go to the emulator."""
        host = self.board.is_host
        options: dict[str, Any] = {"storage": None if host else self.card}
        words = ["--block", str(self.card), *arguments] if host else list(arguments)
        with (
            emulator.start(self.board, firmware=self.firmware, arguments=words, **options) as running,
            Device.open(running, timeout=TIMEOUT) as device,
        ):
            yield device, running

    @property
    def model_start(self) -> int:
        """The card's byte at which its model partition begins."""
        (start,) = [part.start for part in read_partitions(self.card) if part.type == MODEL_TYPE]
        return start

    def boot_state(self) -> volume.BootState:
        """As the card has it at this moment, while a board runs too."""
        with self.card.open("rb") as file:
            found = volume.read(file, self.model_start, str(self.card))
        assert found is not None
        return found[1]


def expected_answers(images: Mapping[str, Path]) -> dict[str, str]:
    """What each image must answer, by this machine's engine."""
    found = {name: host_twin(images[name], PROMPT, TOKENS) for name in ("old", "expert", "new")}
    assert None not in found.values() and len(set(found.values())) == len(found)
    return {name: answer for name, answer in found.items() if answer is not None}


def answer(device: Device) -> str:
    return device.generate(PROMPT, max_tokens=TOKENS, ignore_eos=True).result.logits_sha256


def replace(device: Device, image: Path, **options: Any) -> ExpertUpdate:
    """The one expert that differs between the images."""
    with expert_content(image, LAYER, EXPERT) as content:
        return update_expert(device, content, LAYER, EXPERT, **{"progress": Silent(), **options})


def renew(device: Device, image: Path, **options: Any) -> ModelUpdate:
    return update_model(device, image, **{"progress": Silent(), "log": lambda _: None, **options})


def update_for(image: Path, base: Path, key: PrivateKey | None, **terms: Any) -> bytes:
    """The struct col_update of the one expert that differs, from `image`, for devices that run `base`: generation 1 and
    counter 2, unless `terms` say otherwise."""
    with ImageFile(base) as file, expert_content(image, LAYER, EXPERT) as content:
        made = describe_update(
            content, LAYER, EXPERT, **{"generation": 1, "image_id": file.image_id, "counter": 2, **terms}
        )
    return made if key is None else sign_update(np.frombuffer(made, UPDATE)[0], key)


def begin_model(device: Device, image: Path, *, tries: int = 0) -> UpdateCalls:
    """Opens the update of a model, of which nothing is sent yet."""
    calls = UpdateCalls(device)
    with ImageFile(image) as file:
        calls.begin_model(file.bytes_at(0, PAGE), file.signature.encode(), tries)
    return calls


def put_on_trial(device: Device, image: Path, *, tries: int = 0) -> None:
    """Writes a model and puts it on trial. It is not started."""
    calls = begin_model(device, image, tries=tries)
    with ImageFile(image) as file:
        Transfer(calls, file, calls.directory(), device.info().image_bytes).run(Silent())
    calls.commit(Silent())


@contextmanager
def leaving_together(session: Session) -> Iterator[None]:
    """The requests that are made meanwhile are sent behind it, in one piece."""
    with pytest.MonkeyPatch.context() as held:
        held.setattr(session._peer, "poll", lambda _: b"")
        yield
    session._transport.wake()


def status_of(device: Device) -> UpdateStatus:
    return UpdateCalls(device).status()
