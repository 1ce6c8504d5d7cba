# SPDX-License-Identifier: Apache-2.0
"""A short run of the fuzz target of the link, from its seeds; a finding fails with its input in the report."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fuzzing import FUZZ, assert_no_finding
from link import native

RUNS = 40_000


@pytest.mark.fuzz
def test_short_run(tmp_path: Path) -> None:
    program, seeds = tmp_path / "fuzz_link", tmp_path / "seeds"
    sources = [FUZZ / "fuzz_link.c", *native.runtime_sources(), *native.ENGINE_PARTS]
    native.compile_fuzz_target(program, sources)
    subprocess.run([sys.executable, FUZZ / "seeds_link.py", seeds], check=True, timeout=60)
    assert_no_finding(program, seeds, tmp_path, RUNS, "-max_len=4096")
