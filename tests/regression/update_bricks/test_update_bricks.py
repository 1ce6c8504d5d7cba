# SPDX-License-Identifier: Apache-2.0
"""Updates that a device accepted, and after which it did not start any more, or stopped at once."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from colibri_sdk import emulator
from colibri_sdk.boards import Board, load_board, with_key
from colibri_sdk.build import build
from colibri_sdk.convert.progress import Silent
from colibri_sdk.device import Device
from colibri_sdk.errors import ColibriError
from colibri_sdk.flash import write_card
from colibri_sdk.image.layout import PAGE, UPDATE, SectionKind
from colibri_sdk.image.reader import ImageFile
from colibri_sdk.signing import sign_image, sign_update
from colibri_sdk.status import Status
from colibri_sdk.update.calls import UpdateCalls
from colibri_sdk.update.expert import describe_update, expert_content, update_expert
from colibri_sdk.update.model import update_model
from fixed_key import KEY
from forge import Forge
from update_images import EXPERT, LAYER, blob


@contextmanager
def started(board: Board, firmware: Any, card: Path) -> Iterator[Device]:
    with (
        emulator.start(board, firmware=firmware, storage=None, arguments=["--block", str(card)]) as running,
        Device.open(running, timeout=60.0) as device,
    ):
        yield device


def make_card(firmware: Any, image: Path, card: Path) -> Path:
    write_card(load_board("virt-aarch64"), firmware=firmware, model=image, to=card, slots=2)
    return card


def update_of(image: Path, base: Path, **terms: Any) -> bytes:
    with ImageFile(base) as file, expert_content(image, LAYER, EXPERT) as content:
        return describe_update(content, LAYER, EXPERT, **{"generation": 1, "image_id": file.image_id, **terms})


def test_a_trial_whose_expert_has_a_higher_counter_starts_after_it_was_confirmed(
    images: dict[str, Path], public_key: Path, tmp_path: Path
) -> None:
    """The confirmation raised the security counter to that of the expert: above that of the image."""
    board = with_key(load_board("host"), public_key)
    firmware = build(board)
    own = {kind: Path(shutil.copy(images[kind], tmp_path / f"{kind}.colibri")) for kind in ("old", "new", "expert")}
    for path in own.values():
        sign_image(path, KEY, counter=2)
    card = make_card(firmware, own["old"], tmp_path / "card.img")
    with started(board, firmware, card) as device:
        done = update_model(device, own["new"], progress=Silent(), log=lambda _: None, confirm=False)
        assert not done.confirmed
        update = update_of(own["expert"], own["new"], counter=7)
        prepared = sign_update(np.frombuffer(update, UPDATE)[0], KEY)
        with expert_content(own["expert"], LAYER, EXPERT) as content:
            update_expert(device, content, LAYER, EXPERT, progress=Silent(), prepared=prepared)
        UpdateCalls(device).confirm()
        device.reboot()
        info = device.info()
        assert (info.state, info.image_id) == ("ready", done.image_id)


@pytest.mark.parametrize("name", [b"\0host", b"x" * 32], ids=["behind its end", "without an end"])
def test_a_board_name_that_no_list_may_hold_is_refused(
    name: bytes, firmware: Callable[[str], Any], images: dict[str, Path], tmp_path: Path
) -> None:
    """It was written to the list of replaced experts, and an image with such a list does not start."""
    board, built = load_board("host"), firmware("host")
    card = make_card(built, images["old"], tmp_path / "card.img")
    record = np.frombuffer(update_of(images["expert"], images["old"]), UPDATE).copy()
    record["board"] = name
    with started(board, built, card) as device:
        with pytest.raises(ColibriError) as raised:
            UpdateCalls(device).begin_expert(record.tobytes())
        assert getattr(raised.value, "where", None) == "board or reserved"
        assert getattr(raised.value, "status", None) == Status.E_REQUEST
        device.reboot()
        assert device.info().state == "ready"


def test_a_list_of_a_single_byte_is_refused(
    firmware: Callable[[str], Any], images: dict[str, Path], tmp_path: Path
) -> None:
    """Its copies have no bytes at all: the remainder by their length stopped the processor."""
    board, built = load_board("host"), firmware("host")
    card = make_card(built, images["old"], tmp_path / "card.img")
    path = Path(shutil.copy(images["new"], tmp_path / "new.colibri"))
    forge = Forge(path)
    forge.contents(SectionKind.UPDATES)[:] = 0
    forge.sections["bytes"][forge.sections["kind"] == SectionKind.UPDATES] = 1
    forge.seal()
    data = forge.data.tobytes()
    with ImageFile(images["new"]) as image:
        signature = image.signature.encode()
    with started(board, built, card) as device:
        calls = UpdateCalls(device)
        calls.begin_model(data[:PAGE], signature)
        pieces = ((at, data[at : at + PAGE]) for at in range(PAGE, len(data), PAGE))
        assert sum(calls.send(pieces)) == len(data) - PAGE
        with pytest.raises(ColibriError) as raised:
            calls.commit(Silent())
        assert getattr(raised.value, "status", None) == Status.E_IMAGE_DIMENSION
        assert getattr(raised.value, "where", None) == "updates"


def test_an_expert_with_numbers_that_are_none_is_refused(
    firmware: Callable[[str], Any], images: dict[str, Path], tmp_path: Path
) -> None:
    """Where experts are in memory, the start looks at their numbers: there was no model behind the next restart, and
    without one no expert that could be replaced."""
    board, built = load_board("host"), firmware("host")
    card = make_card(built, images["old"], tmp_path / "card.img")
    wrong = tmp_path / "wrong.blob"
    wrong.write_bytes(b"\xff" * len(blob(images["old"])))
    with started(board, built, card) as device:
        with expert_content(wrong, LAYER, EXPERT) as content, pytest.raises(ColibriError) as raised:
            update_expert(device, content, LAYER, EXPERT, progress=Silent())
        assert getattr(raised.value, "status", None) == Status.E_IMAGE_NUMBER
        assert getattr(raised.value, "where", None) == "gate"
        with expert_content(images["expert"], LAYER, EXPERT) as content:
            assert update_expert(device, content, LAYER, EXPERT, progress=Silent()).generation == 1
        device.reboot()
        assert device.info().state == "ready"
