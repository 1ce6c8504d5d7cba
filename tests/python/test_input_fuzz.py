# SPDX-License-Identifier: Apache-2.0
"""A short coverage-guided run over each kind of file that is packed, the same in every run."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

# A tokenizer takes a hundred times as long as a header: it is compiled.
RUNS = {"safetensors": 2000, "gguf": 2000, "config": 2000, "tokenizer": 150}


@pytest.mark.fuzz
@pytest.mark.skipif(find_spec("atheris") is None, reason="atheris has no wheel for this Python or system")
@pytest.mark.parametrize("target", RUNS)
def test_fuzzer_finds_nothing(repo_root: Path, tmp_path: Path, target: str) -> None:
    script = repo_root / "host_tools" / "fuzz" / "fuzz_inputs.py"
    options = [f"-runs={RUNS[target]}", "-seed=1", "-timeout=60", f"-artifact_prefix={tmp_path}/"]
    command = [sys.executable, script, target, tmp_path / "seeds", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert f"Done {RUNS[target]} runs" in done.stderr
    coverage = re.findall(r"cov: (\d+)", done.stderr)
    assert coverage and int(coverage[-1]) > 40, "the code under test was not instrumented"
