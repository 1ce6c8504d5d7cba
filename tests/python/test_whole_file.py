# SPDX-License-Identifier: Apache-2.0
"""Files that commands write for people: the new one, whole, or what was there; and nothing beside it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from colibri_sdk.errors import UsageError
from colibri_sdk.image.layout import UPDATE
from colibri_sdk.profiling.chart import draw
from colibri_sdk.profiling.curve import Point
from colibri_sdk.profiling.trace import save
from colibri_sdk.update.content import Content
from colibri_sdk.update.package import write_package
from colibri_sdk.whole_file import whole_file
from routing import make_trace

POINTS = [Point(slots, 1, 1, 4096, 1.0, 1.0, None, 4096, 8192, ()) for slots in (1, 2)]
CONTENT = Content(lambda _, count: bytes(count), 4096)
WRITERS: dict[str, Callable[[Path], None]] = {
    "t.npz": lambda path: save(make_trace([8], [[(0, 1, [(0, 1)])]]), path),
    "c.png": lambda path: draw(POINTS, path, title=""),
    "e.update": lambda path: write_package(path, bytes(UPDATE.itemsize), CONTENT),
}


@pytest.mark.parametrize("before", [None, b"the old one"], ids=["new", "replaced"])
@pytest.mark.parametrize("problem", [KeyboardInterrupt(), OSError(28, "No space left on device")], ids=repr)
@pytest.mark.parametrize("name", WRITERS)
def test_what_is_interrupted_leaves_what_was_there(
    name: str, problem: BaseException, before: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / name
    if before is not None:
        path.write_bytes(before)

    def stop(*_: Any, **__: Any) -> Any:
        assert [one.suffix for one in tmp_path.iterdir() if one != path] == [".partial"]
        raise problem

    monkeypatch.setattr(np, "savez_compressed", stop)
    monkeypatch.setattr(Figure, "savefig", stop)
    monkeypatch.setattr(Content, "chunks", stop)
    with pytest.raises(KeyboardInterrupt if isinstance(problem, KeyboardInterrupt) else UsageError):
        WRITERS[name](path)
    assert [(one.name, one.read_bytes()) for one in tmp_path.iterdir()] == ([(name, before)] if before else [])


@pytest.mark.parametrize("name", WRITERS)
def test_what_is_not_interrupted_takes_the_name(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"the old one")
    WRITERS[name](tmp_path / name)
    (only,) = tmp_path.iterdir()
    assert only.name == name and only.stat().st_size > 256


def test_advice_is_the_callers(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="x cannot be written") as failed, whole_file(tmp_path / "no" / "x", "Try y."):
        pass
    assert failed.value.hint == "Try y."
