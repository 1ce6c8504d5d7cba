# SPDX-License-Identifier: Apache-2.0
"""The command `update`, on a board that is played: what it prints, its JSON, its exit codes and advice."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from colibri_sdk import errors
from colibri_sdk.boards import load_board
from colibri_sdk.cli import main, output
from colibri_sdk.cli import update as module
from colibri_sdk.cli.terminated import Terminated
from colibri_sdk.errors import DeviceError
from colibri_sdk.flash import write_card
from colibri_sdk.image.layout import UPDATE
from colibri_sdk.signing import PrivateKey, check_update, new_key, sign_image, verify_image
from colibri_sdk.status import Status, hint
from update_board import Board
from update_images import EXPERT, LAYER, blob

RIGHT = "aa" * 32
PLACE = ("--layer", str(LAYER), "--expert", str(EXPERT))


@pytest.fixture
def board(images: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> Board:
    played = Board(images["old"], probe_sha256=RIGHT)

    @contextmanager
    def open_target(card: Path | None, values: dict[str, Any]) -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(device=played)

    monkeypatch.setattr(module, "open_target", open_target)
    monkeypatch.setattr("colibri_sdk.update.model.host_twin", lambda *_: RIGHT)
    return played


Capture = pytest.CaptureFixture[str]


def run(capsys: Capture, *line: str | Path, code: int = 0) -> tuple[str, str]:
    assert main.run(["update", *map(str, line)]) == code
    out, err = capsys.readouterr()
    return out, err


def test_expert(board: Board, images: dict[str, Path], capsys: Capture) -> None:
    size = len(blob(images["expert"]))
    out, err = run(capsys, "expert", images["expert"], *PLACE)
    assert out.startswith(f"expert {LAYER}/{EXPERT} replaced, generation 1: {output.count(size)} bytes")
    assert "100 % of" in err and "KB/s" in err and "\x1b" not in err  # no bar where there is no terminal
    out, _ = run(capsys, "expert", images["expert"], *PLACE)
    assert out == f"expert {LAYER}/{EXPERT} is that one already, generation 1\n"
    out, err = run(capsys, "expert", images["old"], *PLACE, "--json")
    found = json.loads(out)
    assert (found["layer"], found["expert"], found["generation"]) == (LAYER, EXPERT, 2)
    assert (found["bytes"], found["unchanged"]) == (size, False)
    assert found["sent_bytes"] + found["kept_bytes"] == size


def test_expert_says_how_to_go_on(board: Board, images: dict[str, Path], capsys: Capture) -> None:
    board.cut_after = 1
    out, err = run(capsys, "expert", images["expert"], *PLACE, code=errors.EXIT_TRANSFER)
    assert out == ""
    assert "run the same command again: what has arrived need not travel again" in err
    out, _ = run(capsys, "expert", images["expert"], *PLACE)
    assert "4 096 bytes were there" in out


def test_expert_without_a_place(board: Board, images: dict[str, Path], capsys: Capture) -> None:
    _, err = run(capsys, "expert", images["expert"], code=errors.EXIT_USAGE)
    assert "--layer and --expert" in err


def test_an_expert_of_another_kind_of_model_is_refused(
    board: Board, images: dict[str, Path], tmp_path: Path, capsys: Capture
) -> None:
    """It may have the right length and is still nonsense. A blob alone says nothing of itself, and is taken."""
    board.quantisation = "q4"
    _, err = run(capsys, "expert", images["expert"], *PLACE, code=errors.EXIT_USAGE)
    assert "expert.colibri has quantisation q8, the device's model has q4: their experts cannot be exchanged" in err
    assert board.received == 0
    raw = tmp_path / "blob"
    raw.write_bytes(blob(images["expert"]))
    run(capsys, "expert", raw, *PLACE)


def test_a_signed_update_travels_as_a_file(
    board: Board, images: dict[str, Path], tmp_path: Path, capsys: Capture
) -> None:
    private, _, public = new_key(tmp_path / "keys")
    file = tmp_path / "expert.update"
    line = ("sign", images["expert"], "--base", images["old"], *PLACE, "--key", private, "-o", file)
    out, _ = run(capsys, *line, "--generation", "3", "--counter", "5", "--board", "rpi3")
    terms = f"signed by key {public.key_id.hex()}, counter 5, for board rpi3"
    assert out == f"{file}: expert {LAYER}/{EXPERT} for old.colibri, generation 3, {terms}\n"
    assert json.loads(run(capsys, "expert", file, "--json")[0])["generation"] == 3
    record = np.frombuffer(board.begun, UPDATE)[0]
    check_update(record, public, counter=5, board="rpi3")
    with pytest.raises(errors.ImageError, match="for board rpi3"):
        check_update(record, public, board="host")
    assert bytes(record["image_id"]).hex() == board.info().image_id
    assert board.begun == file.read_bytes()[256:512]


def test_a_signed_update_says_what_it_is_and_is_verified(
    board: Board, images: dict[str, Path], tmp_path: Path, capsys: Capture
) -> None:
    """Without a device: who is handed one could not see whom it is for, nor whether it is right."""
    private, public, key = new_key(tmp_path / "keys")
    file = tmp_path / "expert.update"
    line = ("sign", images["expert"], "--base", images["old"], *PLACE, "-o", file, "--json")
    made = json.loads(run(capsys, *line, "--key", private, "--generation", "3", "--counter", "5", "--board", "rpi3")[0])
    assert made == {
        "update": str(file),
        "layer": LAYER,
        "expert": EXPERT,
        "generation": 3,
        "image_id": board.info().image_id,
        "counter": 5,
        "board": "rpi3",
        "key_id": key.key_id.hex(),
        "signed": True,
    }

    def verify(*options: object, code: int = 0) -> tuple[str, str]:
        assert main.run(["keys", "verify", str(file), *map(str, options)]) == code
        return capsys.readouterr()

    assert json.loads(verify("-k", public, "--json")[0]) == made
    said, _ = verify("-k", public, "--board", "rpi3", "--counter", "5")
    terms = f"signed by key {key.key_id.hex()}, counter 5, for board rpi3"
    assert said == f"{file} is right: expert {LAYER}/{EXPERT} for image {made['image_id']}, generation 3, {terms}\n"
    assert "for board rpi3, not for host" in verify("-k", public, "--board", "host", code=errors.EXIT_IMAGE)[1]
    assert "counter 5, below 6" in verify("-k", public, "--counter", "6", code=errors.EXIT_DEVICE)[1]
    other = new_key(tmp_path / "others")[1]
    assert "update sign" in verify("-k", other, code=errors.EXIT_DEVICE)[1]
    whole = file.read_bytes()
    file.write_bytes(whole[:400] + bytes([whole[400] ^ 1]) + whole[401:])  # of what was signed
    assert "has a signature that is not this key's" in verify("-k", public, code=errors.EXIT_DEVICE)[1]
    file.write_bytes(whole[:-1])
    assert "is damaged" in verify("-k", public, code=errors.EXIT_IMAGE)[1]
    assert "is damaged" in run(capsys, "expert", file, code=errors.EXIT_IMAGE)[1]
    unsigned = json.loads(run(capsys, *line)[0])
    assert (unsigned["key_id"], unsigned["signed"]) == ("", False)
    assert "is not signed" in verify("-k", public, code=errors.EXIT_DEVICE)[1]


def test_a_signed_update_fits_its_place_or_is_refused(
    board: Board, images: dict[str, Path], tmp_path: Path, capsys: Capture
) -> None:
    file = tmp_path / "expert.update"
    out, _ = run(capsys, "sign", images["expert"], "--base", images["old"], *PLACE, "-o", file)
    assert out.endswith("not signed\n")
    _, err = run(capsys, "expert", file, "--layer", "0", code=errors.EXIT_USAGE)
    assert f"is for expert {LAYER}/{EXPERT}" in err
    private, _, _ = new_key(tmp_path / "keys")
    _, err = run(capsys, "expert", file, "--key", private, code=errors.EXIT_USAGE)
    assert "Leave --key out" in err
    short = tmp_path / "blob"
    short.write_bytes(bytes(4096))
    _, err = run(capsys, "sign", short, "--base", images["old"], *PLACE, "-o", file, code=errors.EXIT_USAGE)
    assert "the new one 4096" in err
    _, err = run(capsys, "sign", short, "--base", images["old"], code=errors.EXIT_USAGE)
    assert "--layer and --expert" in err


def test_signing_on_the_way(board: Board, images: dict[str, Path], tmp_path: Path, capsys: Capture) -> None:
    """For the device's kind of board alone, unless it is to be for any; the file itself stays as it is."""
    board.counter = 11
    private, _, public = new_key(tmp_path / "keys")
    line = ("expert", images["expert"], *PLACE, "--key", private)
    run(capsys, *line, "--counter", "12")
    record = np.frombuffer(board.begun, UPDATE)[0]
    check_update(record, public, counter=12, board="fake")
    assert record["counter"] == 12
    with pytest.raises(errors.ImageError, match="for board fake"):
        check_update(record, public, board="rpi3")
    run(capsys, "expert", images["old"], *PLACE, "--key", private, "--counter", "11", "--any-board")
    check_update(np.frombuffer(board.begun, UPDATE)[0], public, counter=11, board="rpi3")
    before = images["new"].read_bytes()
    run(capsys, "model", images["new"], "--key", private, "--counter", "13")
    assert images["new"].read_bytes() == before
    held = tmp_path / "held.colibri"
    held.write_bytes(board.images[1][: len(before)])
    found = verify_image(held, public)
    assert (found.counter, found.board) == (13, "fake")


def test_a_device_does_not_choose_what_is_signed(
    board: Board, images: dict[str, Path], tmp_path: Path, capsys: Capture
) -> None:
    """The counter is that of an image which the key's owner signed, or as given; a device that wants more is told."""
    private, _, public = new_key(tmp_path / "keys")
    stranger, _, _ = new_key(tmp_path / "others")
    own = Path(shutil.copy(images["new"], tmp_path / "own.colibri"))
    sign_image(own, PrivateKey.load(private), counter=5)
    board.counter = 2**64 - 1
    for line in (
        ("expert", own, *PLACE),
        ("expert", images["expert"], *PLACE, "--base", own),
        ("expert", images["expert"], *PLACE, "--model", own),
        ("model", own),
    ):
        _, err = run(capsys, *line, "--key", private, code=errors.EXIT_USAGE)
        assert "wants a security counter of 18446744073709551615 or more, and this would be signed with 5" in err
        assert "--counter" in err
    _, err = run(capsys, "model", own, "--key", stranger, code=errors.EXIT_USAGE)
    assert "would be signed with 0" in err  # another's signature says nothing of what this key's owner has signed
    assert board.asked["begin"] == 0
    board.counter = 5
    run(capsys, "expert", own, *PLACE, "--key", private)
    record = np.frombuffer(board.begun, UPDATE)[0]
    check_update(record, public, board="fake")
    assert record["counter"] == 5


def test_terms_need_a_key_and_a_card_any_board(
    board: Board, images: dict[str, Path], tmp_path: Path, capsys: Capture
) -> None:
    for terms in (("--counter", "1"), ("--base", images["old"])):
        _, err = run(capsys, "expert", images["expert"], *PLACE, *terms, code=errors.EXIT_USAGE)
        assert "Give --key" in err
    _, err = run(capsys, "model", images["new"], "--any-board", code=errors.EXIT_USAGE)
    assert "Give --key" in err
    private, _, _ = new_key(tmp_path / "keys")
    line = ("expert", images["expert"], *PLACE, "--key", private, "--card", images["old"])
    _, err = run(capsys, *line, code=errors.EXIT_USAGE)
    assert "a card does not say which board will get it" in err
    assert board.asked["begin"] == 0


@pytest.mark.parametrize("slots", [1, 2, 0], ids=["one image", "two slots", "no partitions"])
def test_a_card_with_a_signed_model_takes_what_its_key_signed(
    slots: int, board: Board, images: dict[str, Path], tmp_path: Path, capsys: Capture
) -> None:
    """The keyless board that starts a card takes all; the one that gets it would not start again."""
    private, public_file, _ = new_key(tmp_path / "keys")
    stranger, _, _ = new_key(tmp_path / "others")
    old, new = (Path(shutil.copy(images[kind], tmp_path)) for kind in ("old", "new"))
    card = tmp_path / "card.img"

    def write() -> None:
        if slots:
            write_card(load_board("virt-aarch64"), firmware=None, model=old, to=card, slots=slots, force=True)
        else:
            shutil.copy(old, card)

    write()
    package = tmp_path / "expert.update"
    run(capsys, "sign", images["expert"], "--base", old, *PLACE, "-o", package)
    lines = (("expert", images["expert"], *PLACE), ("expert", package), ("model", new))
    run(capsys, *lines[0], "--card", card)  # unsigned on unsigned
    out, _ = run(capsys, "status", "--card", card)
    assert "what the firmware of its board takes" in out and "no public key" not in out
    for key, said in (((), None), (("--public-key", public_file), False)):  # the played board's
        assert json.loads(run(capsys, "status", "--card", card, *key, "--json")[0])["has_key"] is said
    sign_image(old, PrivateKey.load(private))
    write()
    begun = board.asked["begin"]
    for line in lines:
        _, err = run(capsys, *line, "--card", card, code=errors.EXIT_USAGE)
        assert "the model on card.img is signed, and the update is not signed" in err and "--public-key" in err
    other = (*lines[0], "--key", stranger, "--any-board")
    _, err = run(capsys, *other, "--card", card, code=errors.EXIT_USAGE)
    assert "is signed with another key" in err
    assert board.asked["begin"] == begun
    board.experts = board._directory(0)
    for way in (("--force",), ("--public-key", public_file), ("--key", private, "--any-board")):
        run(capsys, *lines[0], *way, "--card", card)
        run(capsys, "expert", images["old"], *PLACE, *way, "--card", card)
    assert board.asked["begin"] == begun + 6
    sign_image(new, PrivateKey.load(private))
    run(capsys, "model", new, "--card", card)
    _, err = run(capsys, *lines[0], "--force", code=errors.EXIT_USAGE)
    assert "--force is for cards" in err


def test_model(board: Board, images: dict[str, Path], capsys: Capture) -> None:
    out, err = run(capsys, "model", images["new"])
    for words in ("slot B, confirmed", "8 experts", "self-test", "the logits are this machine's"):
        assert words in out
    assert "restarting into the new model" in err and "comparing" in err
    out, _ = run(capsys, "model", images["new"])
    assert out.startswith("the device runs that model already, from slot B: ")
    out, _ = run(capsys, "model", images["old"], "--no-confirm", "--tries", "7", "--json")
    found = json.loads(out)
    assert (found["slot"], found["confirmed"], found["unchanged"]) == ("A", False, False)
    assert found["traffic"]["experts_kept"] == 8
    assert [check["ok"] for check in found["checks"]] == [True] * 3
    assert board.tries == 7


def test_status_confirm_and_rollback(board: Board, images: dict[str, Path], capsys: Capture) -> None:
    out, err = run(capsys, "status")
    assert "runs, active" in out and "no model was ever on trial" in out and err == ""
    assert "its firmware has no public key" in out
    run(capsys, "model", images["new"], "--no-confirm")
    out, err = run(capsys, "status")
    assert "runs, on trial" in out and "2 of 3 starts left" in out and "`update confirm` keeps it" in err
    found = json.loads(run(capsys, "status", "--json")[0])
    assert (found["trial"], found["tries_left"], found["last_result"]) == ("B", 2, "on_trial")
    assert found["has_key"] is False
    assert json.loads(run(capsys, "confirm", "--json")[0]) == {"active": "B", "security_counter": 0}
    _, err = run(capsys, "confirm", code=errors.EXIT_DEVICE)
    assert "no model is on trial" in err and "update status" in err
    run(capsys, "model", images["old"], "--no-confirm")
    board.running = board.active  # as when its last start was cut short
    _, err = run(capsys, "confirm", code=errors.EXIT_DEVICE)
    assert "the model on trial does not run" in err and "`update model`" in err
    out, _ = run(capsys, "rollback")
    assert out == f"taken back: the device runs {board.info().image_id}\n"
    assert json.loads(run(capsys, "rollback", "--json")[0])["given_up"] is False


def test_status_lists_replaced_experts(board: Board, images: dict[str, Path], capsys: Capture) -> None:
    """Who signs the next one must know the generation."""
    assert json.loads(run(capsys, "status", "--experts", "--json")[0])["replaced"] == []
    run(capsys, "expert", images["expert"], *PLACE)
    run(capsys, "expert", images["old"], *PLACE)
    out, _ = run(capsys, "status", "--experts")
    assert out.splitlines()[-1].split() == ["expert", f"{LAYER}/{EXPERT}", "generation", "2"]
    found = json.loads(run(capsys, "status", "--experts", "--json")[0])
    assert found["replaced"] == [{"layer": LAYER, "expert": EXPERT, "generation": 2}]
    assert "replaced" not in json.loads(run(capsys, "status", "--json")[0])


def test_a_trial_that_failed_is_explained_afterwards(board: Board, images: dict[str, Path], capsys: Capture) -> None:
    board.selftest_ok = False
    _, err = run(capsys, "model", images["new"], code=errors.EXIT_DEVICE)
    assert "was tried and taken back, the old model runs again: self-test: fake: dot differs at size 32" in err
    out, _ = run(capsys, "status")
    assert "the last model on trial was withdrawn" in out


WRONG_FILES = [
    ("model", "package", "is no Colibri image: it is an update of one expert", errors.EXIT_IMAGE),
    ("model", "empty", "is no Colibri image: it is empty", errors.EXIT_IMAGE),
    ("model", "card", "is no Colibri image: it is a card", errors.EXIT_IMAGE),
    ("model", "directory", "is neither an image nor a checkpoint", errors.EXIT_USAGE),
    ("expert", "empty", "has 0 bytes: neither an image nor an expert's blob", errors.EXIT_USAGE),
    ("expert", "directory", "is neither an image nor a checkpoint", errors.EXIT_USAGE),
    ("expert", "card", "of the device's model has 28672 bytes, the new one 4194304", errors.EXIT_USAGE),
    ("sign", "package", "is an update already", errors.EXIT_USAGE),
    ("sign", "empty", "has 0 bytes", errors.EXIT_USAGE),
    ("base", "package", "is no Colibri image: it is an update of one expert", errors.EXIT_IMAGE),
]


@pytest.mark.parametrize(("command", "kind", "words", "code"), WRONG_FILES)
def test_a_file_of_a_wrong_kind_is_named(
    board: Board,
    images: dict[str, Path],
    tmp_path: Path,
    capsys: Capture,
    command: str,
    kind: str,
    words: str,
    code: int,
) -> None:
    files = {name: tmp_path / name for name in ("package", "empty", "card", "directory")}
    files["empty"].touch()
    files["directory"].mkdir()
    write_card(load_board("virt-aarch64"), firmware=None, model=images["old"], to=files["card"])
    run(capsys, "sign", images["expert"], "--base", images["old"], *PLACE, "-o", files["package"])
    lines: dict[str, tuple[str | Path, ...]] = {
        "model": ("model", files[kind]),
        "expert": ("expert", files[kind], *PLACE),
        "sign": ("sign", files[kind], "--base", images["old"], *PLACE, "-o", tmp_path / "x"),
        "base": ("sign", images["expert"], "--base", files[kind], *PLACE, "-o", tmp_path / "x"),
    }
    out, err = run(capsys, *lines[command], code=code)
    assert out == "" and words in err
    assert len(err.splitlines()) == 2  # and what to try
    assert board.asked["begin"] == 0


def test_an_update_of_a_generation_that_is_there_says_which_to_make(
    board: Board, images: dict[str, Path], tmp_path: Path, capsys: Capture
) -> None:
    """It was told to raise a counter."""
    file = tmp_path / "expert.update"
    run(capsys, "sign", images["expert"], "--base", images["old"], *PLACE, "--generation", "4", "-o", file)
    run(capsys, "expert", file)
    run(capsys, "sign", images["new"], "--base", images["old"], *PLACE, "--generation", "4", "-o", file)
    _, err = run(capsys, "expert", file, code=errors.EXIT_DEVICE)
    assert "update sign --generation 5" in err and "--counter" not in err


def test_an_expert_that_is_not_signed_says_where_to_sign(
    board: Board, images: dict[str, Path], capsys: Capture
) -> None:
    """It was told to sign an image."""
    board.refusals.append(
        DeviceError("unsigned", hint(Status.E_SIGNATURE), status=Status.E_SIGNATURE, where="unsigned")
    )
    _, err = run(capsys, "expert", images["expert"], *PLACE, code=errors.EXIT_DEVICE)
    assert "--key" in err and "update sign" in err and "keys sign" not in err


def test_where_an_update_cannot_be_written_or_is_for_no_board(
    board: Board, images: dict[str, Path], tmp_path: Path, capsys: Capture
) -> None:
    line = ("sign", images["expert"], "--base", images["old"], *PLACE)
    _, err = run(capsys, *line, "-o", tmp_path / "no" / "x", code=errors.EXIT_USAGE)
    assert f"{tmp_path}/no/x cannot be written" in err and "-o" in err
    _, err = run(capsys, *line, "-o", images["old"] / "x", code=errors.EXIT_USAGE)
    assert "cannot be written: Not a directory" in err
    _, err = run(capsys, *line, "--board", "rpi33", code=errors.EXIT_USAGE)
    assert "there is no board 'rpi33'" in err


@pytest.mark.parametrize("end", [KeyboardInterrupt, Terminated])
def test_what_is_interrupted_says_how_to_go_on(
    board: Board, images: dict[str, Path], capsys: Capture, monkeypatch: pytest.MonkeyPatch, end: type[BaseException]
) -> None:
    def interrupted(*_: object) -> bytes:
        raise end

    for line, holds in (
        (("expert", images["expert"], *PLACE), "the device answers with the old expert, or the new one"),
        (("model", images["new"]), "the device runs the old model, or the new one on trial"),
    ):
        for request in ("_status", "_begin", "_crc", "_data", "_commit"):
            with monkeypatch.context() as patch:
                patch.setattr(board, request, interrupted)
                out, err = run(capsys, *line, code=errors.EXIT_INTERRUPTED)
            assert out == "" and "Run the same command again to go on" in err and holds in err
            assert err.splitlines()[-1] == ("interrupted" if end is KeyboardInterrupt else "terminated")
        run(capsys, *line)


def test_a_device_without_a_model_says_why(board: Board, images: dict[str, Path], capsys: Capture) -> None:
    """What lies in a slot was shown as if it ran, and the reason nowhere."""
    board.without_model = Status.E_SIGNATURE
    out, err = run(capsys, "status")
    assert "does not start, active" in out and "runs" not in out.replace("is sent: its", "")
    assert "fake: no model: signature (unsigned)" in err and "keys sign" in err
    found = json.loads(run(capsys, "status", "--json")[0])
    assert found["no_model"] == "fake: no model: signature (unsigned)"
    _, err = run(capsys, "expert", images["expert"], *PLACE, code=errors.EXIT_DEVICE)
    assert "the device: no model: signature" in err
    board.slots, board.images[0] = 0, bytearray()
    _, err = run(capsys, "model", images["new"], code=errors.EXIT_DEVICE)
    assert "the device: no model: signature" in err
    board.without_model = None
    assert json.loads(run(capsys, "status", "--json")[0])["no_model"] is None


@pytest.mark.parametrize(
    "option", [("--port", "/dev/ttyUSB9"), ("--board", "rpi3"), ("--baud", "9600"), ("--memory", "64M")]
)
def test_a_card_is_no_device(option: tuple[str, str], tmp_path: Path, capsys: Capture) -> None:
    card = tmp_path / "card.img"
    card.write_bytes(b"x")
    _, err = run(capsys, "status", "--card", card, *option, code=errors.EXIT_USAGE)
    assert f"--card and {option[0]} do not go together" in err
    _, err = run(capsys, "status", "--card", tmp_path, code=errors.EXIT_USAGE)
    assert "neither a card image nor a disk" in err


@pytest.mark.parametrize("name", ["expert", "sign", "model", "status", "confirm", "rollback"])
def test_every_part_has_help(name: str, capsys: Capture) -> None:
    out, _ = run(capsys, name, "--help")
    assert f"Usage: colibri-sdk update {name}" in out
    assert ("--base" in out) == (name in ("expert", "sign"))  # `model` told of it, and does not have it
