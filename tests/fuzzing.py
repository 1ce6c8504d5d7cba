# SPDX-License-Identifier: Apache-2.0
"""Short runs of the fuzz targets (host_tools/fuzz/), of so many inputs, and the same in every run."""

from __future__ import annotations

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


def assert_no_finding(program: Path, seeds: Path, directory: Path, runs: int, *options: str) -> None:
    """The target takes `runs` inputs, its seeds among them; a finding fails with its input in the report. An input that
    takes a minute is one."""
    corpus, findings = directory / "corpus", directory / "findings"
    corpus.mkdir()
    findings.mkdir()
    limits = [f"-runs={runs}", "-seed=1", "-timeout=60"]
    command = [str(program), *limits, f"-artifact_prefix={findings}/", *options, str(corpus), str(seeds)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200, check=False)
    found = {path.name: path.read_bytes()[:4096].hex() for path in findings.iterdir()}
    assert done.returncode == 0, f"{done.stderr[-4000:]}\n{found}"
    assert f"Done {runs} runs" in done.stderr, done.stderr[-1000:]
