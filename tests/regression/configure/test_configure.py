# SPDX-License-Identifier: Apache-2.0
"""CONFIGURE, and what it must not leave behind."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from colibri_sdk.boards import load_board
from colibri_sdk.errors import ColibriError
from colibri_sdk.image.layout import PAGE
from colibri_sdk.link.messages import StoreMode, Type, pack_configure
from update_bench import Bench, leaving_together, put_on_trial, status_of


@pytest.fixture
def bench(firmware: Callable[[str], Any], images: dict[str, Path], tmp_path: Path) -> Bench:
    return Bench(load_board("host"), firmware("host"), images["old"], tmp_path / "card.img")


def test_a_trial_outlives_a_cancelled_configure(bench: Bench, images: dict[str, Path], tmp_path: Path) -> None:
    """A card that comes after the device has started is looked at by CONFIGURE, which starts what is on trial. Ctrl-C,
    or a line that was cut, was taken for a model that cannot compute: the trial was over."""
    with bench.started() as (device, _):
        put_on_trial(device, images["new"])
    card = bench.card.rename(tmp_path / "elsewhere.img")
    with bench.started() as (device, _):
        assert device.info().state == "no model"
        card.rename(bench.card)
        session = device._session
        with leaving_together(session):
            body = pack_configure(StoreMode.AUTO, prefetch=False, cache_slots=0, memory_limit=0)
            configure = session.call(Type.CONFIGURE, body)
            cancel = session.call(Type.CANCEL, struct.pack("<I", configure.number))
        assert session.result(cancel) == b"\x01"
        assert session.result(configure)
        status = status_of(device)
        assert (status.running, status.trial, status.tries_left) == (2, 2, 2)


def test_a_model_that_runs_again_has_no_reason_not_to(bench: Bench) -> None:
    """HELLO and INFO went on saying why there had been none."""
    with bench.started() as (device, _):
        with pytest.raises(ColibriError):
            device.configure("memory", memory_limit=PAGE)
        info = device.info()
        assert (info.state, info.status_where, info.status_wanted) == ("no model", "image", PAGE) and info.status != 0
        device.configure("memory")
        info = device.info()
        assert (info.state, info.status, info.status_where) == ("ready", 0, "")
        assert (info.status_got, info.status_wanted) == (0, 0)
