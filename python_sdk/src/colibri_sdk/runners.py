# SPDX-License-Identifier: Apache-2.0
"""One face for what can run a model: the engine on this machine, or a device behind the link."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from colibri_sdk.errors import UsageError
from colibri_sdk.parity import Floats, Routing

if TYPE_CHECKING:
    from colibri_sdk.device import Device
    from colibri_sdk.engine import Engine


def open_engine(image: Path, *, kernels: str | None = None) -> Engine:
    """An engine for `image` on this machine that records its routing."""
    from colibri_sdk.engine import Engine, Library

    return Engine(Library.load(), image, kernels=kernels, trace_routing=True)


class EngineRunner:
    """The engine on this machine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def logits(self, ids: Sequence[int], last: int) -> tuple[Floats, Routing]:
        """Logits [last][vocab] of the last positions, and the routing at the very last, per layer."""
        engine = self._engine
        engine.reset()
        engine.routing.clear()
        engine.expect(len(ids))
        first = len(ids) - last + 1
        rows = [engine.prefill(ids[:first]), *(engine.forward(one) for one in ids[first:])]
        routing: list[list[tuple[int, float]]] = [[] for _ in range(engine.info.layers)]
        for route in engine.routing:
            if route.position == len(ids) - 1:
                routing[route.layer] = list(zip(route.experts, route.weights, strict=True))
        return np.stack(rows), routing

    def greedy(self, ids: Sequence[int], count: int) -> list[int]:
        return list(self._engine.generate(ids, max_tokens=count, ignore_eos=True).token_ids)

    def answer(self, prompt: str, max_tokens: int = 0) -> str:
        """The text that the model answers to one chat prompt, greedily."""
        return self._engine.generate(self._engine.prompt(prompt), max_tokens=max_tokens).text


class DeviceRunner:
    """A device behind the link."""

    def __init__(self, device: Device) -> None:
        self._device = device

    def logits(self, ids: Sequence[int], last: int) -> tuple[Floats, Routing]:
        """Logits [last][vocab] of the last positions, and the routing at the very last, per layer."""
        result = self._device.logits(ids, last=last)
        return result.logits, result.routing[-1]

    def greedy(self, ids: Sequence[int], count: int) -> list[int]:
        generation = self._device.generate(ids, max_tokens=count, ignore_eos=True)
        return [token.id for token in generation]

    def answer(self, prompt: str, max_tokens: int = 0) -> str:
        """The text that the device answers to one chat prompt, greedily."""
        generation = self._device.generate(prompt, max_tokens=max_tokens)
        for _ in generation:
            pass
        return generation.result.text


def require_image(device: Device, image: Path) -> None:
    """Raises UsageError when the device holds another image than `image`."""
    from colibri_sdk.image.reader import ImageFile

    with ImageFile(image) as file:
        wanted = file.image_id
    held = device.info().image_id
    if held != wanted:
        raise UsageError(
            f"the device holds image {held or 'none'}, {image} is {wanted}",
            "Write it to the card with `colibri-sdk flash`, or name the image that the device holds.",
        )
