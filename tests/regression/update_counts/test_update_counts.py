# SPDX-License-Identifier: Apache-2.0
"""Counts that decide what is newer, and that could be made to end, or to go down."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from colibri_sdk.boards import load_board, with_key
from colibri_sdk.build import build
from colibri_sdk.convert.progress import Silent
from colibri_sdk.device import Device
from colibri_sdk.errors import ColibriError
from colibri_sdk.image.layout import PAGE
from colibri_sdk.signing import sign_image
from colibri_sdk.status import Status
from colibri_sdk.update.calls import UpdateCalls
from fixed_key import KEY
from forge import Forge
from update_bench import Bench, begin_model, renew, replace, status_of, update_for


def send(device: Device, image: Path) -> UpdateCalls:
    """All of a model, up to COMMIT."""
    data, calls = image.read_bytes(), begin_model(device, image)
    list(calls.send((at, data[at : at + PAGE]) for at in range(PAGE, len(data), PAGE)))
    return calls


@pytest.mark.parametrize("sequence", [2, 2**64 - 1])
def test_a_list_that_has_counted_already_is_refused(
    firmware: Callable[[str], Any], images: dict[str, Path], tmp_path: Path, sequence: int
) -> None:
    """The list is not signed, and was taken with any count. Behind the highest came 0, which no list may have: an
    expert was said to be replaced, and was the old one again after the next start."""
    path = Path(shutil.copy(images["new"], tmp_path / "new.colibri"))
    forge = Forge(path)
    forge.update_head()["sequence"] = sequence
    forge.seal_updates()
    forge.write(path)
    bench = Bench(load_board("host"), firmware("host"), images["old"], tmp_path / "card.img")
    with bench.started() as (device, _):
        calls = send(device, path)
        with pytest.raises(ColibriError) as raised:
            calls.commit(Silent())
        assert (raised.value.status, raised.value.where) == (Status.E_IMAGE_SECTION, "updates")  # type: ignore[attr-defined]
        device.reboot()
        assert status_of(device).running == 1
        assert renew(device, images["new"]).confirmed


def test_the_security_counter_does_not_rise_behind_a_trial(
    images: dict[str, Path], public_key: Path, tmp_path: Path
) -> None:
    """A model that was taken while the counter was 2 started and was confirmed after an expert had raised it to 7: then
    what was signed with 2 was accepted once more."""
    board = with_key(load_board("host"), public_key)
    own = {kind: Path(shutil.copy(images[kind], tmp_path / f"{kind}.colibri")) for kind in ("old", "new", "expert")}
    for path in own.values():
        sign_image(path, KEY, counter=2)
    bench = Bench(board, build(board), own["old"], tmp_path / "card.img")

    def update(kind: str, counter: int, generation: int) -> bytes:
        return update_for(own[kind], own["old"], KEY, counter=counter, generation=generation)

    with bench.started() as (device, _):
        send(device, own["new"]).commit(Silent())
        with pytest.raises(ColibriError) as raised:
            replace(device, own["expert"], prepared=update("expert", 7, 1))
        error = raised.value
        assert (error.status, error.where, error.got, error.wanted) == (Status.E_UPDATE_STATE, "trial", 7, 2)  # type: ignore[attr-defined]
        assert replace(device, own["expert"], prepared=update("expert", 2, 1)).generation == 1  # that is no rise
        assert UpdateCalls(device).rollback().trial
        replace(device, own["old"], prepared=update("old", 7, 2))
        assert status_of(device).counter == 7
        with pytest.raises(ColibriError) as raised:
            send(device, own["new"])
        assert (raised.value.status, raised.value.where) == (Status.E_COUNTER, "counter")  # type: ignore[attr-defined]


def test_the_security_counter_does_not_fall_when_nothing_runs(
    images: dict[str, Path], public_key: Path, tmp_path: Path
) -> None:
    """With too little memory for its model, which CONFIGURE can give it, a device knew the boot state's counter alone:
    somebody on the line could install what is older than the image and its replaced experts."""
    board = with_key(load_board("host"), public_key)
    own = {kind: Path(shutil.copy(images[kind], tmp_path / f"{kind}.colibri")) for kind in ("old", "new", "expert")}
    for kind, counter in (("old", 5), ("new", 2), ("expert", 5)):
        sign_image(own[kind], KEY, counter=counter)
    bench = Bench(board, build(board), own["old"], tmp_path / "card.img")
    with bench.started() as (device, _):
        replace(device, own["expert"], prepared=update_for(own["expert"], own["old"], KEY, counter=7))
        assert (status_of(device).counter, bench.boot_state().counter) == (7, 0)
        for _ in range(2):  # nor by way of another failure
            with pytest.raises(ColibriError):
                device.configure("memory", memory_limit=PAGE)
            assert status_of(device).counter == 7
            with pytest.raises(ColibriError) as raised:
                send(device, own["new"])
            error = raised.value
            assert (error.status, error.where, error.got, error.wanted) == (Status.E_COUNTER, "counter", 2, 7)  # type: ignore[attr-defined]
        device.configure("block", cache_slots=2)
        assert status_of(device).counter == 7
