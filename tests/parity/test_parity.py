# SPDX-License-Identifier: Apache-2.0
"""The engine computes what the reference implementation computed, on this machine and on an emulated board.

The references (models/hummingbird/reference.json, tests/parity/*/reference.json) were made with transformers in
float32. This goes through the command line, as a user would; test_architectures.py looks closer, on this machine.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from colibri_sdk.cli import main

ROOT = Path(__file__).resolve().parents[2]
DIRECTORIES = ["models/hummingbird", "tests/parity/mixtral"]
ARCHITECTURES = sorted(str(path.parent.relative_to(ROOT)) for path in ROOT.glob("tests/parity/*/reference.json"))


def parity(capsys: pytest.CaptureFixture[str], *line: str) -> tuple[int, dict[str, object]]:
    code = main.run(["parity", "--json", *line])
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("kernels", ["best", "scalar"])
@pytest.mark.parametrize("directory", DIRECTORIES)
def test_host(
    repo_root: Path, host_library: Path, capsys: pytest.CaptureFixture[str], directory: str, kernels: str
) -> None:
    choice = [] if kernels == "best" else ["--kernels", kernels]
    code, result = parity(capsys, str(repo_root / directory), *choice)
    assert (code, result["ok"]) == (0, True), result
    assert isinstance(result["max_abs_diff"], float) and result["max_abs_diff"] < 1e-3
    assert result["router_agreement"] == 1.0
    assert result["greedy_equal"] is True


@pytest.mark.qemu
@pytest.mark.parametrize("board", ["virt-aarch64", "virt-riscv64"])
@pytest.mark.parametrize("directory", ["models/hummingbird", *ARCHITECTURES])
def test_emulated_board(repo_root: Path, capsys: pytest.CaptureFixture[str], directory: str, board: str) -> None:
    code, result = parity(capsys, str(repo_root / directory), "--board", board)
    assert (code, result["ok"]) == (0, True), result


def test_a_different_model_is_found_out(
    repo_root: Path, host_library: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The comparison would not pass with other numbers: one config value is changed, the weights are the same."""
    changed = tmp_path / "mixtral"
    shutil.copytree(repo_root / "tests" / "parity" / "mixtral", changed)
    config = json.loads((changed / "config.json").read_text())
    config["rms_norm_eps"] = 0.05
    (changed / "config.json").write_text(json.dumps(config))
    code, result = parity(capsys, str(changed))
    assert code == 1
    assert result["ok"] is False
