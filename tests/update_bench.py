# SPDX-License-Identifier: Apache-2.0
"""What tests of updates from end to end share: a card with a board to start on it, updates, and what runs afterwards.

It is asked for the logits of a prompt, which are compared with this machine's engine on the image's file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from colibri_sdk import emulator
from colibri_sdk.boards import Board, load_board
from colibri_sdk.convert.progress import Silent
from colibri_sdk.device import Device
from colibri_sdk.emulator import Emulator
from colibri_sdk.flash import write_card
from colibri_sdk.update.calls import UpdateCalls
from colibri_sdk.update.expert import ExpertUpdate, expert_content, update_expert
from colibri_sdk.update.messages import UpdateStatus
from colibri_sdk.update.model import ModelUpdate, host_twin, update_model
from update_images import EXPERT, LAYER

# This machine runs all tests; emulated boards, whose lines are slow, what other processors or drivers could break.
BOARDS = [
    "host",
    pytest.param("virt-aarch64", marks=pytest.mark.qemu),
    pytest.param("virt-riscv64", marks=pytest.mark.qemu),
]
PROMPT = (3, 1, 4, 1, 5, 9, 2, 6)
TOKENS = 6
TIMEOUT = 60.0


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


def status_of(device: Device) -> UpdateStatus:
    return UpdateCalls(device).status()
