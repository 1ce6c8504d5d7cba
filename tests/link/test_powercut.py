# SPDX-License-Identifier: Apache-2.0
"""Power that is cut at each half sector of each write: host_tools/powercut, with a small model.

All cuts with the optimised program, a sample with the updating code under ASan and UBSan. By hand, with updates tried
after every cut and with every write failing: scons build/host/powercut && build/host/powercut OLD NEW 1

And a short run of the fuzz target of updates, which has the simulator's device.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import checkpoints
from colibri_sdk import paths
from colibri_sdk.build import run_scons
from colibri_sdk.convert import pack
from fuzzing import FUZZ, assert_no_finding
from link import native

SETTINGS = checkpoints.config(
    vocab_size=32, hidden_size=32, intermediate_size=32, num_local_experts=4, max_position_embeddings=16
)
SCENARIO = re.compile(r"^(.+): (\d+) sectors written, (\d+) cuts, (\d+) wrong$", re.MULTILINE)
TOTAL = re.compile(r"^(\d+) cuts tried, updates after (\d+) of them, (\d+) wrong$", re.MULTILINE)
FAULTS = re.compile(r"^(\d+) writes failed or were not what was written$", re.MULTILINE)
BAD_READS = re.compile(r"^(\d+) reads of starts failed, (\d+) boot states were lost$", re.MULTILINE)
SCENARIOS = 10
HALVES = 3  # before a sector, half of it and old, half of it and garbage; a fourth cut where others of its write follow
FUZZ_RUNS = 2_000
SCRIPTS, SCRIPT_BYTES = 50, 400  # that the fuzzer begins with
SIMULATOR = native.ROOT / "host_tools" / "powercut"
# What updates a device, and chooses what starts.
UPDATING = ("boot", "loader", "trust", "update", "update_expert", "update_list", "update_model", "volume")


@dataclass(frozen=True)
class Report:
    """What the program said; `wrong` by scenario."""

    status: int
    text: str

    @property
    def scenarios(self) -> list[tuple[int, int]]:
        """Sectors and cuts of each."""
        return [(int(sectors), int(cuts)) for _, sectors, cuts, _ in SCENARIO.findall(self.text)]

    @property
    def wrong(self) -> dict[str, int]:
        return {name: int(wrong) for name, _, _, wrong in SCENARIO.findall(self.text)}

    @property
    def total(self) -> tuple[int, int, int]:
        """Cuts, cuts after which updates were tried, wrong ones."""
        ((cuts, updates, wrong),) = TOTAL.findall(self.text)
        return int(cuts), int(updates), int(wrong)

    @property
    def faults(self) -> int:
        (found,) = FAULTS.findall(self.text)
        return int(found)

    @property
    def tried(self) -> dict[str, int]:
        cuts, updates, wrong = self.total
        reads, states = self.bad_reads
        return {
            "cuts": cuts,
            "updates_after_cuts": updates,
            "writes_that_went_wrong": self.faults,
            "reads_that_failed": reads,
            "lost_boot_states": states,
            "wrong_answers": wrong,
        }

    @property
    def bad_reads(self) -> tuple[int, int]:
        """And lost boot states."""
        ((reads, states),) = BAD_READS.findall(self.text)
        return int(reads), int(states)


def built(name: str) -> Path:
    path = paths.build_dir() / "host" / name
    return path.relative_to(paths.repo_root()) if path.is_relative_to(paths.repo_root()) else path


@pytest.fixture(scope="module")
def optimised() -> Path:
    run_scons([str(built("powercut")), str(built("powercut-keyed")), str(built("libcolibri.a"))])
    return paths.repo_root() / built("powercut")


@pytest.fixture(scope="module")
def sanitized(optimised: Path, build_directory: Path) -> Path:
    """With the engine as it is; tests/parity has that under the sanitizers."""
    sources = [*sorted(SIMULATOR.glob("*.c"))]
    sources += [native.RUNTIME / f"{name}.c" for name in UPDATING]
    engine = optimised.parent / "libcolibri.a"
    return native.compile_c(build_directory / "powercut", [*sources, engine], native.SANITIZE)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    directory = tmp_path_factory.mktemp("powercut")
    made = []
    for seed in (1, 2):
        out = directory / f"{seed}.colibri"
        pack(
            checkpoints.write(directory / str(seed), SETTINGS, checkpoints.tensors(SETTINGS, seed=seed)),
            out,
            quant="q8",
        )
        made.append(out)
    return made


def run(program: Path, images: list[Path], *words: str) -> Report:
    command = [str(program), *map(str, images), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200, check=False)
    assert done.stderr == ""
    return Report(done.returncode, done.stdout)


def test_no_cut_leaves_anything_but_the_old_or_the_new(
    optimised: Path, images: list[Path], tried: Callable[..., None]
) -> None:
    report = run(optimised, images, "128")
    tried(**report.tried)
    assert (report.status, report.total[2]) == (0, 0), report.text
    assert len(report.scenarios) == SCENARIOS
    assert all(HALVES * sectors < cuts < (HALVES + 1) * sectors for sectors, cuts in report.scenarios)
    assert report.total[0] == sum(cuts for _, cuts in report.scenarios) > 2500
    assert report.total[1] > 400
    assert report.faults > 400
    assert report.bad_reads[0] > 100 and report.bad_reads[1] > 50


def test_no_cut_locks_out_what_is_signed(optimised: Path, images: list[Path], tried: Callable[..., None]) -> None:
    """A device with a key, which refuses to start what is older than its counter says. One write in 16."""
    report = run(optimised.with_name("powercut-keyed"), images, "128", "16")
    tried(**report.tried)
    assert (report.status, report.total[2]) == (0, 0), report.text
    assert len(report.scenarios) == SCENARIOS
    assert report.total[0] > 150 and report.faults > 100


def test_no_cut_makes_the_updating_code_err_in_c(
    sanitized: Path, images: list[Path], tried: Callable[..., None]
) -> None:
    """One write in 16, the last of each step always."""
    report = run(sanitized, images, "16", "16")
    tried(**report.tried)
    assert (report.status, report.total[2]) == (0, 0), report.text
    assert len(report.scenarios) == SCENARIOS
    assert report.total[0] >= HALVES * sum(sectors // 16 for sectors, _ in report.scenarios) > 150
    assert report.total[1] > 100
    assert report.faults > 100


def test_a_medium_that_changes_the_order_is_found_out(optimised: Path, images: list[Path]) -> None:
    """The switch before what it switches to. A model on trial that is not whole is left by itself; an expert is not."""
    report = run(optimised, images, "1000000", "4", "reordered")
    assert report.status == 1, report.text
    assert sum(name.startswith("experts") for name in report.wrong) == 3
    assert all(count > 0 for name, count in report.wrong.items() if name.startswith("experts")), report.text
    assert report.total[2] == sum(report.wrong.values())


@pytest.mark.fuzz
def test_whatever_is_sent_the_device_starts(
    optimised: Path, images: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, seeds = tmp_path / "fuzz_update", tmp_path / "seeds"
    sources = [FUZZ / "fuzz_update.c", *(SIMULATOR / f"{name}.c" for name in ("device", "disk", "scenario", "sign"))]
    sources += [native.RUNTIME / f"{name}.c" for name in UPDATING]
    native.compile_fuzz_target(program, sources, optimised.parent / "libcolibri.a")
    seeds.mkdir()
    random = np.random.default_rng(1)
    for number in range(SCRIPTS):
        (seeds / str(number)).write_bytes(random.bytes(SCRIPT_BYTES))
    for name, image in zip(("FUZZ_OLD", "FUZZ_NEW"), images, strict=True):
        monkeypatch.setenv(name, str(image))
    assert_no_finding(program, seeds, tmp_path, FUZZ_RUNS, f"-max_len={2 * SCRIPT_BYTES}")
