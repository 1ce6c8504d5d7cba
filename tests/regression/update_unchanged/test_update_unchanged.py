# SPDX-License-Identifier: Apache-2.0
"""A device with a replaced expert was said to run the packed model already: the image's identity does not change by a
replacement."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from colibri_sdk.convert.progress import Silent
from colibri_sdk.update.expert import expert_content, update_expert
from colibri_sdk.update.model import update_model
from update_board import Board
from update_images import EXPERT, LAYER, make_images


def test_the_packed_model_replaces_the_one_with_another_expert(tmp_path: Path) -> None:
    images = make_images(tmp_path)
    board = Board(images["old"], probe_sha256="aa" * 32)
    device = cast(Any, board)
    packed = [entry[6] for entry in board.experts]
    with expert_content(images["expert"], LAYER, EXPERT) as content:
        update_expert(device, content, LAYER, EXPERT, progress=Silent())
    assert [entry[6] for entry in board.experts] != packed
    done = update_model(
        device, images["old"], progress=Silent(), log=lambda _: None, twin=lambda path, ids, tokens: "aa" * 32
    )
    assert (done.unchanged, done.confirmed, done.slot) == (False, True, "B")
    assert [entry[6] for entry in board.experts] == packed
