# SPDX-License-Identifier: Apache-2.0
"""Does an integer router decide as the float router does? Measured with the engine, on equal inputs.

One layer at a time routes in integers and all others in floats: everything that this layer's router depends on was
computed by float routers, now and at earlier positions, so that it gets the very inputs that the float router gets.
"""

from __future__ import annotations

import shutil
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from colibri_sdk.convert import calibration
from colibri_sdk.convert.calibration import Passage
from colibri_sdk.convert.measure import Routes, compare_routes, gather_routes
from colibri_sdk.engine import Engine, Library
from colibri_sdk.image.layout import DIRECTORY_OFFSET, HEADER, PAGE, SECTION, SectionKind
from colibri_sdk.image.reader import ImageFile

# Each layer costs a run over the text, and so many tokens are enough for all of them together.
_TOKENS = 1 << 18


@dataclass(frozen=True)
class RouterAgreement:
    """Of `decisions` (tokens times layers with routers), `same` chose the same experts; of these, the weights differ
    by `weight_mean` and at most `weight_max`."""

    decisions: int
    same: int
    weight_mean: float
    weight_max: float

    @property
    def share(self) -> float:
        return self.same / self.decisions if self.decisions else 1.0


def integer_agreement(
    library: Library, floats: Path, integers: Path, passages: Sequence[Passage], room: Path
) -> RouterAgreement:
    """Compares `integers` with `floats`, two images of the same weights but for the routers' arithmetic.

    `room` is a directory for a copy.
    """
    with ImageFile(floats) as one, ImageFile(integers) as other:
        float_layers, integer_layers = one.layers, other.layers
        page = other.bytes_at(0, PAGE)
        at = other.sections[SectionKind.LAYERS].offset
    routed = [index for index, layer in enumerate(integer_layers) if int(layer["router"]["experts"])]
    passages = calibration.sample(tuple(passages), max(1, _TOKENS // max(1, len(routed))))
    wanted = _routes(library, floats, passages)
    copy = room / "forced.colibri"
    shutil.copyfile(integers, copy)
    decisions, same, total, count, largest = 0, 0, 0.0, 0, 0.0
    for index in routed:
        layers = _only(index, integer_layers, float_layers).tobytes()
        with copy.open("r+b") as file:
            file.write(_page(page, layers))
            file.seek(at)
            file.write(layers)
        got = _routes(library, copy, passages)
        parts = compare_routes({index: wanted[index]}, {index: got[index]})
        decisions, same, total, count = decisions + parts[0], same + parts[1], total + parts[2], count + parts[3]
        largest = max(largest, parts[4])
    return RouterAgreement(decisions, same, total / count if count else 0.0, largest)


def _only(index: int, integers: npt.NDArray[np.void], floats: npt.NDArray[np.void]) -> npt.NDArray[np.void]:
    """The layers of an integer image with all routers but one as in the float image."""
    layers = integers.copy()
    for other, layer in enumerate(layers):
        router: Any = layer["router"]
        if other == index or not int(router["experts"]):
            continue
        router["score"] = floats[other]["router"]["score"]
        router["normalise"] = floats[other]["router"]["normalise"]
        router["integer_scale"], router["integer_shift"] = 0, 0
        router["integer_table"] = np.zeros((), router["integer_table"].dtype)
    return layers


def _page(page: bytes, layers: bytes) -> bytes:
    """Page 0 with the checksum of another layers section, and with its own."""
    new = np.frombuffer(page, np.uint8).copy()
    header = new[:DIRECTORY_OFFSET].view(HEADER)
    end = DIRECTORY_OFFSET + int(header["section_count"][0]) * SECTION.itemsize
    sections = new[DIRECTORY_OFFSET:end].view(SECTION)
    sections["crc32"][sections["kind"] == SectionKind.LAYERS] = zlib.crc32(layers)
    header["header_crc32"] = 0
    header["header_crc32"] = zlib.crc32(new.tobytes())
    return new.tobytes()


def _routes(library: Library, image: Path, passages: Sequence[Passage]) -> dict[int, Routes]:
    """All decisions over the passages."""
    longest = max(len(one.ids) for one in passages)
    engine = Engine(library, image, context=longest, trace_routing=True, skip_content_check=True)
    parts: dict[int, list[Routes]] = {}
    for passage in passages:
        engine.reset()
        engine.routing.clear()
        engine.prefill(passage.ids)
        gather_routes(engine.routing, parts)
    return {layer: Routes.joined(each) for layer, each in parts.items()}
