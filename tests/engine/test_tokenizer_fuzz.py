# SPDX-License-Identifier: Apache-2.0
"""A short run of the tokenizer's fuzzer from fresh seeds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fuzzing import FUZZ, assert_no_finding, compiler
from native import ENGINE
from tokenizer_native import SOURCES

RUNS = 20_000


@pytest.mark.fuzz
def test_fuzzer_finds_nothing(tmp_path: Path) -> None:
    program, seeds = tmp_path / "fuzz_tokenizer", tmp_path / "seeds"
    sanitize = ["-fsanitize=fuzzer,address,undefined", "-fno-sanitize-recover"]
    sources = [FUZZ / "fuzz_tokenizer.c", *(ENGINE / name for name in SOURCES)]
    command = [compiler(), "-std=c11", "-O1", "-g", *sanitize, f"-I{ENGINE}", *map(str, sources), "-o", str(program)]
    subprocess.run(command, check=True, timeout=600)
    subprocess.run([sys.executable, FUZZ / "seeds_tokenizer.py", seeds], check=True, timeout=600)
    assert_no_finding(program, seeds, tmp_path, RUNS, "-max_len=60000")
