# SPDX-License-Identifier: Apache-2.0
"""Places for experts of two lengths. One spare place was said to be enough; a short expert took it for good."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import checkpoints
from colibri_sdk.boards import load_board
from colibri_sdk.convert import pack
from colibri_sdk.convert.progress import Silent
from colibri_sdk.device import Device
from colibri_sdk.errors import ColibriError
from colibri_sdk.status import Status
from colibri_sdk.update.expert import expert_content, update_expert
from update_bench import Bench, answer, status_of
from update_images import SETTINGS

PLAN = "q8,layers.0.experts=q4"
SHORT, LONG = 0, 1  # layers


def make_images(directory: Path, spare: int) -> list[Path]:
    made = []
    for seed in (1, 2):
        source = checkpoints.write(directory / str(seed), SETTINGS, checkpoints.tensors(SETTINGS, seed=seed))
        made.append(directory / f"{seed}.colibri")
        report = pack(source, made[-1], quant=PLAN, spare=spare)
        assert any("--spare 2 prevents that" in note for note in report.notes) == (spare == 1)
    return made


def replace(device: Device, image: Path, layer: int, expert: int) -> None:
    with expert_content(image, layer, expert) as content:
        assert not update_expert(device, content, layer, expert, progress=Silent()).unchanged


@pytest.mark.parametrize("first", [SHORT, LONG])
def test_a_spare_place_for_each_length_is_enough(firmware: Callable[[str], Any], tmp_path: Path, first: int) -> None:
    """All experts, there and back; the end is the model that it began with."""
    old, new = make_images(tmp_path, spare=2)
    with Bench(load_board("host"), firmware("host"), old, tmp_path / "card.img").started() as (device, _):
        before = answer(device)
        for image in (new, old, new, old):
            for expert in range(4):
                for layer in (first, 1 - first):
                    replace(device, image, layer, expert)
                    assert status_of(device).free_places == 2
        assert answer(device) == before


def test_without_one_the_error_says_what_is_missing(firmware: Callable[[str], Any], tmp_path: Path) -> None:
    old, new = make_images(tmp_path, spare=1)
    with Bench(load_board("host"), firmware("host"), old, tmp_path / "card.img").started() as (device, _):
        replace(device, new, SHORT, 0)
        with pytest.raises(ColibriError, match="no free place") as raised:
            replace(device, new, LONG, 0)
        assert (raised.value.status, raised.value.where) == (Status.E_UPDATE_PLACE, "place")  # type: ignore[attr-defined]
        assert "--spare place for each length" in raised.value.hint
        replace(device, old, SHORT, 0)  # now it fits where it was packed
        replace(device, new, LONG, 0)
