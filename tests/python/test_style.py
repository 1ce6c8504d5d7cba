# SPDX-License-Identifier: Apache-2.0
"""Types and style hold in the whole repository, and each source file says its licence."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    "arguments", [["ruff", "check", "--no-cache", "python_sdk", "tests"], ["mypy"]], ids=["ruff", "mypy"]
)
def test_tool_finds_nothing(repo_root: Path, arguments: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", *arguments], cwd=repo_root, capture_output=True, text=True, timeout=1200, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_source_names_its_licence(repo_root: Path) -> None:
    tops = ("firmware", "host_tools", "python_sdk/src", "tests", "toolchains", "site_scons")
    suffixes = {".c", ".h", ".S", ".py"}
    files = [
        file
        for top in tops
        for file in (repo_root / top).rglob("*")
        if file.suffix in suffixes and file.stat().st_size and "make_arch" not in file.name
    ]
    assert len(files) > 50
    lacking = [
        str(file.relative_to(repo_root))
        for file in files
        if "SPDX-License-Identifier: Apache-2.0" not in file.read_text()[:300]
    ]
    assert lacking == []
