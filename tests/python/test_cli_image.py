# SPDX-License-Identifier: Apache-2.0
"""pack, inspect, plan, build, boards and flash: what they print, and what they print for machines."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from colibri_sdk.cli import main
from colibri_sdk.errors import EXIT_IMAGE
from colibri_sdk.targets import image_for

PackModel = Callable[[str], Path]


@pytest.fixture
def colibri(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    def run(*line: object, code: int = 0) -> str:
        """stdout of a command that ends with `code`."""
        capsys.readouterr()
        ended = main.run([str(word) for word in line])
        out, err = capsys.readouterr()
        assert ended == code, err
        return out

    return run


def test_pack_then_inspect(colibri: Callable[..., str], repo_root: Path, tmp_path: Path) -> None:
    image = tmp_path / "hb.colibri"
    packed = json.loads(
        colibri("pack", repo_root / "models/hummingbird", "-o", image, "--quant", "q4", "--context", 128, "--json")
    )
    assert packed["image"] == str(image)
    assert packed["image_bytes"] == image.stat().st_size
    seen = json.loads(colibri("inspect", image, "--verify", "--json"))
    assert (seen["image_id"], seen["image_bytes"]) == (packed["image_id"], packed["image_bytes"])
    assert (seen["quantisation"], seen["card"]["context"], seen["verified"]) == ("q4", 128, True)
    assert [section["name"] for section in seen["sections"]] == list(packed["sections"])
    assert json.loads(colibri("inspect", image, "--card"))["name"] == "hummingbird"
    for word in ("hummingbird", "MixtralForCausalLM", "tokenizer", "experts", packed["image_id"]):
        assert word in colibri("inspect", image)


@pytest.mark.parametrize(
    ("model", "words"),
    [("llama", "none: every token takes every weight"), ("deepseek_v3", "0/8/8 per layer, 0/3/3 chosen")],
)
def test_inspect_of_layers_that_differ(
    colibri: Callable[..., str], repo_root: Path, tmp_path: Path, model: str, words: str
) -> None:
    """A dense model, and one whose first layer has no router."""
    colibri("pack", repo_root / "tests" / "parity" / model, "-o", tmp_path / "m.colibri")
    assert words in colibri("inspect", tmp_path / "m.colibri", "--verify")


def test_pack_for_people_and_in_a_log(
    colibri: Callable[..., str], repo_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "3 609 728" in colibri("pack", repo_root / "models/hummingbird")
    assert (tmp_path / "hummingbird-q8.colibri").is_file()


@pytest.mark.parametrize("context", ["0", "513"])
def test_pack_refuses_a_context_that_the_model_does_not_have(
    colibri: Callable[..., str], repo_root: Path, tmp_path: Path, context: str
) -> None:
    image = tmp_path / "hb.colibri"
    colibri("pack", repo_root / "models/hummingbird", "-o", image, "--context", context, code=2)
    assert not image.exists()


def test_pack_of_what_is_no_checkpoint(colibri: Callable[..., str], tmp_path: Path) -> None:
    assert colibri("pack", tmp_path, "-o", tmp_path / "x.colibri", "--json", code=7) == ""


def test_inspect_of_what_is_no_image(colibri: Callable[..., str], tmp_path: Path) -> None:
    path = tmp_path / "x.colibri"
    path.write_bytes(bytes(8192))
    assert colibri("inspect", path, "--json", code=7) == ""


def test_plan_adds_up(colibri: Callable[..., str], hummingbird: PackModel) -> None:
    image = hummingbird("q8")
    plan = json.loads(colibri("plan", image, "--board", "virt-riscv64", "--json"))
    assert plan["fits"] is True
    assert plan["available_bytes"] == plan["needed_bytes"] + plan["free_bytes"]
    assert plan["image_bytes"] == image.stat().st_size
    last = plan["regions"][-1]
    assert last["offset"] + last["bytes"] == plan["arena_bytes"]
    smaller = json.loads(colibri("plan", image, "--board", "virt-riscv64", "--context", 64, "--json"))
    assert smaller["arena_bytes"] < plan["arena_bytes"]
    text = colibri("plan", image, "--board", "virt-riscv64")
    assert "kv cache" in text and "FITS" in text


def test_plan_says_by_how_much_it_does_not_fit_and_what_would_help(
    colibri: Callable[..., str], hummingbird: PackModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A board that leaves exactly one byte too few."""
    from colibri_sdk import planning
    from colibri_sdk.engine import Library

    def one_byte_short(board: Any, image: Path, **options: Any) -> planning.MemoryMap:
        whole = planning.memory_map(board, image, 1 << 30, Library.load(), **options)
        return planning.memory_map(board, image, whole.needed_bytes - 1, Library.load(), **options)

    monkeypatch.setattr(planning, "plan_board", one_byte_short)
    image = hummingbird("q8")
    plan = json.loads(colibri("plan", image, "--board", "rpi3", "--store", "memory", "--json", code=7))
    assert (plan["fits"], plan["short_bytes"]) == (False, 1)
    assert any("--quant q4" in remedy["text"] for remedy in plan["remedies"])
    assert all(remedy["needed_bytes"] <= plan["available_bytes"] for remedy in plan["remedies"])
    text = colibri("plan", image, "--board", "rpi3", "--store", "memory", code=7)
    assert "DOES NOT FIT" in text and "1 bytes more than there are" in text and "--context" in text


def test_boards(colibri: Callable[..., str]) -> None:
    boards = {board["name"]: board for board in json.loads(colibri("boards", "--json"))}
    assert boards.keys() >= {"host", "rpi3", "virt-aarch64", "virt-riscv64", "hifive-unleashed"}
    assert boards["rpi3"]["emulated"] is True
    text = colibri("boards")
    assert all(name in text for name in boards)


def test_board_that_does_not_exist_names_those_that_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["build", "rpi9"]) == 2
    assert "rpi3" in capsys.readouterr().err


def test_build(colibri: Callable[..., str]) -> None:
    (host,) = json.loads(colibri("build", "--json"))
    assert Path(host["library"]).is_file()
    (board,) = json.loads(colibri("build", "virt-riscv64", "--json"))
    assert board["board"] == "virt-riscv64"
    assert Path(board["elf"]).is_file() and Path(board["binary"]).is_file()
    assert 0 < board["engine_text"] <= 64 << 10
    assert board["stack_worst"] < board["stack_bytes"]
    assert "left for model and arena" in colibri("build", "virt-riscv64")


def test_flash_writes_a_card_file_once(colibri: Callable[..., str], hummingbird: PackModel, tmp_path: Path) -> None:
    card = tmp_path / "card.img"
    line = ("flash", "--board", "virt-riscv64", "--model", hummingbird("q8"), "--to", card, "--json")
    assert json.loads(colibri(*line))["board"] == "virt-riscv64"
    assert hummingbird("q8").read_bytes() in card.read_bytes()
    assert colibri(*line, code=6) == ""
    colibri(*line, "--force")


def test_a_damaged_model_is_not_put_on_a_card(
    hummingbird: PackModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The card was said to be ready, and the board then refused the model."""
    data = bytearray(hummingbird("q8").read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / "damaged.colibri").write_bytes(data)
    line = ["flash", "--board", "virt-riscv64", "--model", tmp_path / "damaged.colibri", "--to", tmp_path / "card.img"]
    assert main.run([str(word) for word in line]) == EXIT_IMAGE
    assert "damaged.colibri is damaged: expert " in capsys.readouterr().err
    assert not (tmp_path / "card.img").exists()


def test_packed_image_is_kept_until_the_checkpoint_changes(
    repo_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLIBRI_BUILD_DIR", str(tmp_path / "build"))
    source = tmp_path / "tiny"
    shutil.copytree(repo_root / "tests" / "parity" / "mixtral", source)
    said: list[str] = []
    image = image_for(source, log=said.append)
    assert image_for(source, log=said.append) == image
    assert len(said) == 1
    os.utime(source / "config.json", (1, 1))
    assert image_for(source, log=said.append) == image
    assert len(said) == 2


def test_image_stands_for_itself(hummingbird: PackModel) -> None:
    assert image_for(hummingbird("q4")) == hummingbird("q4")
