# SPDX-License-Identifier: Apache-2.0
"""The fuzz target of images: a short run from fresh seeds, and damaged images replayed without libFuzzer."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fuzzing import FUZZ, assert_no_finding, compiler
from kernel_programs import FMA, FUSED, HERE, KERNELS, SEPARATE, SPECIFIC, can_fuse
from native import ENGINE, FLAGS

RUNS = 30_000
MUTANTS = 400


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("seeds")
    subprocess.run([sys.executable, FUZZ / "seeds_image.py", directory], check=True, timeout=600)
    return directory


def engine_sources(*without: str) -> list[Path]:
    """The engine, less the self-test, which the target replaces."""
    sources = [*ENGINE.glob("*.c"), *KERNELS.glob("*.c")]
    return sorted(path for path in sources if path.name not in ("selftest.c", *without))


def build_target(compiler: str, sanitize: str, sources: list[Path], out: Path, *flags: str) -> Path:
    sanitizers = [f"-fsanitize={sanitize}", "-fno-sanitize-recover=all"]
    paths = map(str, [FUZZ / "fuzz_image.c", *sources])
    command = [compiler, *FLAGS, "-D_POSIX_C_SOURCE=200809L", *sanitizers, *flags, f"-I{ENGINE}", *paths]
    subprocess.run([*command, "-o", str(out)], check=True, timeout=600)
    return out


@pytest.fixture(scope="module")
def replay(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("replay") / "replay"
    sources = [FUZZ / "standalone" / "replay.c", *engine_sources()]
    return build_target("cc", "address,undefined", sources, out)


def run_replay(program: Path, *paths: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([program, *paths], capture_output=True, text=True, timeout=600, check=False)


def test_seeds_pass(replay: Path, seeds: Path) -> None:
    done = run_replay(replay, seeds)
    assert done.returncode == 0, done.stderr[-4000:]
    assert int(done.stdout.split()[0]) == len(list(seeds.iterdir())) > 10


def test_damaged_images_pass(replay: Path, seeds: Path, tmp_path: Path) -> None:
    """Words of any place replaced by what hurts; cut and lengthened images; the same in every run."""
    rng = np.random.default_rng(11)
    integers, floats = [0, 1, 2, 31, 33, 0xFFFFFFFF], [0x7F800000, 0x7FC00000, 0x7F7FFFFF, 0x7BFF7BFF, 0x80000000]
    words = np.array(integers + floats, np.uint32)
    originals = [np.frombuffer(path.read_bytes(), np.uint8) for path in sorted(seeds.iterdir())]
    for index in range(MUTANTS):
        data = originals[index % len(originals)].copy()
        # Two thirds of the changes go to the first three pages: header, directory, model, layers.
        limit = 3 * 4096 if index % 3 else data.size
        for place in rng.integers(0, limit // 4, rng.integers(1, 4)):
            data.view(np.uint32)[place] = rng.choice(words) if rng.random() < 0.7 else rng.integers(0, 64)
        if index % 20 == 0:
            data = data[: rng.integers(0, data.size)]
        if index % 20 == 1:
            data = np.concatenate([data, np.zeros(4096, np.uint8)])
        (tmp_path / f"{index:04d}").write_bytes(data.tobytes())
    done = run_replay(replay, tmp_path)
    assert done.returncode == 0, done.stderr[-4000:]
    assert int(done.stdout.split()[0]) == MUTANTS


def test_target_notices_a_fused_kernel(seeds: Path, tmp_path: Path) -> None:
    """The comparison of two engines inside the target is no ornament: other bits end it."""
    specific = SPECIFIC.get(HERE)
    if specific is None or not can_fuse(HERE):
        pytest.skip("this machine has one kernel set, or no fused multiply-add")
    fused = tmp_path / "fused.o"
    flags = [flag for flag in FLAGS if flag != SEPARATE]
    command = ["cc", *flags, "-O2", FUSED, *FMA[HERE], f"-I{ENGINE}", "-c", str(KERNELS / specific), "-o", str(fused)]
    subprocess.run(command, check=True, timeout=600)
    sources = [FUZZ / "standalone" / "replay.c", *engine_sources(specific), fused]
    program = build_target("cc", "undefined", sources, tmp_path / "replay")
    assert run_replay(program, seeds).returncode < 0  # abort


@pytest.mark.fuzz
def test_fuzzer_finds_nothing(seeds: Path, tmp_path: Path) -> None:
    program = build_target(compiler(), "fuzzer,address,undefined", engine_sources(), tmp_path / "fuzz_image")
    assert_no_finding(program, seeds, tmp_path, RUNS, "-max_len=131072")
