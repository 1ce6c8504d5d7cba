# SPDX-License-Identifier: Apache-2.0
"""A short run of the tokenizer's fuzzer from fresh seeds."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from native import ENGINE, ROOT
from tokenizer_native import SOURCES

SECONDS = 15


@pytest.mark.fuzz
def test_fuzzer_finds_nothing(tmp_path: Path) -> None:
    compiler = shutil.which("clang") or shutil.which("clang-14")
    if compiler is None:
        pytest.skip("clang is not installed")
    fuzz = ROOT / "host_tools" / "fuzz"
    program = tmp_path / "fuzz_tokenizer"
    sanitize = ["-fsanitize=fuzzer,address,undefined", "-fno-sanitize-recover"]
    sources = [fuzz / "fuzz_tokenizer.c", *(ENGINE / name for name in SOURCES)]
    command = [compiler, "-std=c11", "-O1", "-g", *sanitize, f"-I{ENGINE}", *map(str, sources), "-o", str(program)]
    subprocess.run(command, check=True, timeout=120)
    seeds = tmp_path / "seeds"
    subprocess.run([sys.executable, fuzz / "seeds_tokenizer.py", seeds], check=True, timeout=120)
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    limits = ["-max_len=60000", "-timeout=10", f"-max_total_time={SECONDS}", f"-artifact_prefix={tmp_path}/"]
    done = subprocess.run(
        [program, *limits, corpus, seeds], capture_output=True, text=True, timeout=20 * SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    runs = re.search(r"Done (\d+) runs", done.stderr)
    assert runs is not None and int(runs[1]) > 1000, done.stderr[-1000:]
