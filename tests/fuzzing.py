# SPDX-License-Identifier: Apache-2.0
"""Short runs of the fuzz targets (host_tools/fuzz/)."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from native import ROOT

FUZZ = ROOT / "host_tools" / "fuzz"


def compiler() -> str:
    """One with libFuzzer; the test that asks is skipped where there is none."""
    found = next(filter(shutil.which, ("clang", "clang-14", "clang-15", "clang-16")), None)
    if found is None:
        pytest.skip("clang is not installed")
    return found


def runs_without_a_finding(program: Path, seeds: Path, directory: Path, seconds: int, *options: str) -> int:
    """How many inputs the target took; a finding fails with its input in the report."""
    corpus, findings = directory / "corpus", directory / "findings"
    corpus.mkdir()
    findings.mkdir()
    command = [str(program), f"-max_total_time={seconds}", f"-artifact_prefix={findings}/", *options]
    done = subprocess.run(
        [*command, str(corpus), str(seeds)], capture_output=True, text=True, timeout=20 * seconds, check=False
    )
    found = {path.name: path.read_bytes()[:4096].hex() for path in findings.iterdir()}
    assert done.returncode == 0, f"{done.stderr[-4000:]}\n{found}"
    runs = re.search(r"Done (\d+) runs", done.stderr)
    assert runs is not None, done.stderr[-1000:]
    return int(runs[1])
