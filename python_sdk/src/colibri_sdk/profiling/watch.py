# SPDX-License-Identifier: Apache-2.0
"""Lets a device answer prompts while its statistics are asked for again and again."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from colibri_sdk.errors import ColibriError
from colibri_sdk.profiling.prompts import Prompt, named

if TYPE_CHECKING:
    from colibri_sdk.device import Device, DeviceStats
    from colibri_sdk.link.generation import Generation


@dataclass(frozen=True)
class Moment:
    """The device's statistics while, or just after, it answers prompt `number`, from 0. `text` is the answer so far."""

    stats: DeviceStats
    number: int
    prompt: Prompt
    text: str
    finished: bool  # the answer is whole


class _Answer(threading.Thread):
    """Takes the tokens of a generation as they come."""

    def __init__(self, generation: Generation) -> None:
        super().__init__(name="answer", daemon=True)
        self._generation = generation
        self.text = ""
        self.error: ColibriError | None = None

    def run(self) -> None:
        try:
            for token in self._generation:
                self.text += token.text
        except ColibriError as error:
            self.error = error


def watch(
    device: Device,
    prompts: Sequence[Prompt],
    *,
    max_tokens: int = 0,
    every_seconds: float = 0.25,
) -> Iterator[Moment]:
    """Clears the statistics, asks the prompts one after the other, and yields a moment about every `every_seconds` and
    at the end of each answer. Leaving the iteration cancels what runs. Raises the device's error when an answer fails.
    """
    device.clear_stats()
    for number, prompt in enumerate(prompts):
        with named(number, len(prompts)):
            generation = device.generate(prompt if isinstance(prompt, str) else list(prompt), max_tokens=max_tokens)
        answer = _Answer(generation)
        answer.start()
        try:
            while answer.is_alive():
                yield Moment(device.stats(), number, prompt, answer.text, False)
                answer.join(every_seconds)
        finally:
            if answer.is_alive():
                generation.cancel()
            answer.join()
        if answer.error is not None:
            with named(number, len(prompts)):
                raise answer.error
        yield Moment(device.stats(), number, prompt, answer.text, True)
