# SPDX-License-Identifier: Apache-2.0
"""A short run of the fuzz target of the link, from its seeds; a finding fails with its input in the report."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from link import native

SECONDS = 20
CLANG = next(filter(shutil.which, ("clang", "clang-14", "clang-15", "clang-16")), None)


@pytest.mark.fuzz
@pytest.mark.skipif(CLANG is None, reason="needs clang with libFuzzer")
def test_short_run(tmp_path: Path) -> None:
    fuzz = native.ROOT / "host_tools" / "fuzz"
    program, seeds, corpus = tmp_path / "fuzz_link", tmp_path / "seeds", tmp_path / "corpus"
    corpus.mkdir()
    flags = ["-std=c11", "-O1", "-g", "-fsanitize=fuzzer,address,undefined", "-fno-sanitize-recover=all"]
    sources = [fuzz / "fuzz_link.c", *native.runtime_sources(), *native.ENGINE_PARTS]
    parts = native.with_monocypher(program, sources, str(CLANG), flags)
    subprocess.run([str(CLANG), *flags, *parts, "-o", str(program)], check=True, timeout=300)
    subprocess.run([sys.executable, fuzz / "seeds_link.py", seeds], check=True, timeout=60)
    done = subprocess.run(
        [program, f"-max_total_time={SECONDS}", "-max_len=4096", "-print_final_stats=1", corpus, seeds],
        capture_output=True,
        text=True,
        timeout=SECONDS + 120,
        cwd=tmp_path,
        check=False,
    )
    findings = {path.name: path.read_bytes().hex() for path in tmp_path.glob("*-*") if path.is_file()}
    assert done.returncode == 0, f"{done.stderr[-4000:]}\n{findings}"
    runs = next(line for line in done.stderr.splitlines() if line.startswith("stat::number_of_executed_units"))
    assert int(runs.split()[-1]) > 1000
