# SPDX-License-Identifier: Apache-2.0
"""Updates of cards on this machine, `--card`: as files, and as disks of both sizes of sectors; who else may have them.

Disks are loop devices, for which a test must be root."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from colibri_sdk import errors
from colibri_sdk.boards import load_board
from colibri_sdk.cli import main
from colibri_sdk.errors import FlashError
from colibri_sdk.flash import write_card
from colibri_sdk.flash.claim import claimed
from update_images import EXPERT, LAYER

MIB = 1 << 20
PLACE = ("--layer", str(LAYER), "--expert", str(EXPERT))
Capture = pytest.CaptureFixture[str]
Disk = Callable[..., Path]


def run(capsys: Capture, *line: str | Path, code: int = 0) -> tuple[str, str]:
    capsys.readouterr()
    assert main.run([*map(str, line)]) == code
    out, err = capsys.readouterr()
    return out, err


@pytest.fixture
def card(images: dict[str, Path], tmp_path: Path) -> Path:
    path = tmp_path / "card.img"
    write_card(load_board("virt-aarch64"), firmware=None, model=images["old"], to=path, slots=2)
    return path


@pytest.fixture
def disk() -> Iterator[Disk]:
    """disk(file, *options of losetup) -> the loop device that has the file's content."""
    if os.geteuid() != 0 or shutil.which("losetup") is None or not Path("/dev/loop-control").exists():
        pytest.skip("loop devices are root's")
    with ExitStack() as made:

        def attach(file: Path, *options: str) -> Path:
            line = ["losetup", "--find", "--show", *options, str(file)]
            done = subprocess.run(line, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                pytest.skip(f"no loop device: {done.stderr}")
            device = Path(done.stdout.strip())
            made.callback(subprocess.run, ["losetup", "--detach", str(device)], check=True)
            return device

        yield attach


@pytest.mark.parametrize("sector", ["512", "4096"])
def test_a_disk_is_written_and_updated(
    sector: str, disk: Disk, images: dict[str, Path], tmp_path: Path, capsys: Capture
) -> None:
    file = tmp_path / "disk"
    with file.open("wb") as empty:
        empty.truncate(16 * MIB)
    device = disk(file, "--sector-size", sector)
    run(capsys, "flash", "--board", "virt-aarch64", "--model", images["old"], "--to", device, "--force")
    out, _ = run(capsys, "update", "expert", images["expert"], *PLACE, "--card", device, "--json")
    assert json.loads(out)["generation"] == 1
    out, _ = run(capsys, "update", "model", images["new"], "--card", device, "--json")
    assert (json.loads(out)["slot"], json.loads(out)["confirmed"]) == ("B", True)
    found = json.loads(run(capsys, "update", "status", "--card", device, "--json")[0])
    assert (found["running"], found["active"], found["trial"], found["no_model"]) == ("B", "B", None, None)


def test_looking_at_a_card_with_a_trial_says_what_it_costs(
    images: dict[str, Path], tmp_path: Path, capsys: Capture
) -> None:
    """The card is started for it, and after the last start the trial is over."""
    card = tmp_path / "card.img"
    run(capsys, "flash", "--board", "virt-aarch64", "--model", images["old"], "--to", card)
    look = ("update", "status", "--card", card)
    assert "starts" not in "".join(json.loads(run(capsys, *look, "--json")[0])["advice"])
    run(capsys, "update", "model", images["new"], "--card", card, "--no-confirm")
    for left in (1, 0):
        found = json.loads(run(capsys, *look, "--json")[0])
        assert (found["trial"], found["tries_left"]) == ("B", left)
        assert (
            found["advice"][-1]
            == f"Each look at a card starts it: {left} of the trial's starts are left after this one."
        )
    assert json.loads(run(capsys, *look, "--json")[0])["last_result"] == "tries_used"


def test_a_disk_that_cannot_be_written_or_is_too_small(
    disk: Disk, card: Path, images: dict[str, Path], tmp_path: Path, capsys: Capture
) -> None:
    locked = disk(card, "--read-only")
    line = ("update", "expert", images["expert"], *PLACE, "--card")
    _, err = run(capsys, *line, locked, code=errors.EXIT_TRANSFER)
    assert f"{locked} is write-protected" in err
    before = card.read_bytes()
    small = disk(card, "--sizelimit", str(2 * MIB))
    _, err = run(capsys, *line, small, code=errors.EXIT_TRANSFER)
    assert f"{small.name} has 2,097,152 bytes, and its volume ends at byte" in err
    _, err = run(capsys, "update", "status", "--card", small)
    assert "host: no model: storage empty (model partition: 0, wanted 1)" in err
    assert card.read_bytes() == before


def test_a_disk_that_is_mounted_is_left_alone(disk: Disk, tmp_path: Path, capsys: Capture) -> None:
    if shutil.which("mkfs.ext4") is None:
        pytest.skip("mkfs.ext4 is not installed")
    file, place = tmp_path / "disk", tmp_path / "mounted"
    with file.open("wb") as empty:
        empty.truncate(8 * MIB)
    subprocess.run(["mkfs.ext4", "-q", str(file)], check=True)
    device = disk(file)
    place.mkdir()
    if subprocess.run(["mount", str(device), str(place)], capture_output=True, check=False).returncode != 0:
        pytest.skip("nothing can be mounted here")
    try:
        _, err = run(capsys, "update", "status", "--card", device, code=errors.EXIT_TRANSFER)
        assert f"is in use: {device.name} mounted on {place}" in err and f"umount {place}" in err
        with pytest.raises(FlashError, match="is in use"), claimed(device):  # if it is mounted after the check
            pass
    finally:
        subprocess.run(["umount", str(place)], check=True)


def test_a_disk_that_is_being_updated_cannot_be_flashed(
    disk: Disk, card: Path, images: dict[str, Path], capsys: Capture
) -> None:
    device = disk(card)
    with claimed(device):
        line = ("flash", "--board", "virt-aarch64", "--model", images["old"], "--to", device, "--force")
        _, err = run(capsys, *line, code=errors.EXIT_TRANSFER)
    assert f"{device}: Device or resource busy" in err


# --------------------------------------------------------------------------------------------------------- card images


def test_a_card_has_one_writer(card: Path, images: dict[str, Path], capsys: Capture) -> None:
    """Two boards that write the same card would each spoil what the other wrote."""
    line = ("update", "expert", images["expert"], *PLACE, "--card", card)
    before = card.read_bytes()
    with claimed(card):
        _, err = run(capsys, *line, code=errors.EXIT_TRANSFER)
        assert f"{card} is in use by another program" in err
        assert card.read_bytes() == before
        card.open("rb").close()  # which ends a lock of another kind
        with pytest.raises(FlashError, match="in use"), claimed(card):
            pass
    run(capsys, *line)
    assert card.read_bytes() != before


@pytest.mark.qemu
def test_a_card_in_an_emulator_is_in_use(
    card: Path, firmware: Callable[[str], object], images: dict[str, Path], capsys: Capture
) -> None:
    from colibri_sdk import emulator

    board = load_board("virt-aarch64")
    with emulator.start(board, firmware=firmware("virt-aarch64"), storage=card):  # type: ignore[arg-type]
        _, err = run(capsys, "update", "status", "--card", card, code=errors.EXIT_TRANSFER)
    assert f"{card} is in use by another program: an emulator" in err
    run(capsys, "update", "status", "--card", card)


def test_a_file_system_without_locks_is_no_hindrance(card: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.fcntl", refuse)
    with claimed(card):
        pass


def test_a_card_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FlashError, match="cannot be opened: No such file"), claimed(tmp_path / "card.img"):
        pass
