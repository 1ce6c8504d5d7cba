# SPDX-License-Identifier: Apache-2.0
"""What takes long to make is made once in a run of the tests, also where several processes share the run."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock

LOCK_SECONDS = 1500.0


class MadeOnce:
    """once(name, make) -> a directory that make(directory) has filled, in whichever process came first."""

    def __init__(self, temporary: pytest.TempPathFactory) -> None:
        base = temporary.getbasetemp()  # of this process: one below that of the run where there are several
        self._root = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "made-once"
        self._root.mkdir(exist_ok=True)

    def __call__(self, name: str, make: Callable[[Path], object]) -> Path:
        directory, made = self._root / name, self._root / f"{name}.made"
        with FileLock(self._root / f"{name}.lock", timeout=LOCK_SECONDS):
            if not made.exists():
                shutil.rmtree(directory, ignore_errors=True)  # what somebody failed to make
                directory.mkdir()
                make(directory)
                made.touch()
        return directory
