# SPDX-License-Identifier: Apache-2.0
"""Replacing the model, on a board that is played (update_board.py): what travels, and all ways that a trial can end."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from colibri_sdk.convert.progress import Silent
from colibri_sdk.errors import ColibriError, DeviceError, ImageError, LinkLostError, LinkTimeoutError, NoDeviceError
from colibri_sdk.image.layout import SectionKind
from colibri_sdk.image.reader import ImageFile
from colibri_sdk.link.messages import Reader
from colibri_sdk.status import Status
from colibri_sdk.update import report
from colibri_sdk.update.calls import UpdateCalls
from colibri_sdk.update.expert import expert_content, update_expert
from colibri_sdk.update.messages import UpdateStatus
from colibri_sdk.update.model import ModelUpdate, update_model, withdraw
from update_board import CONFIRMED, INVALID, ON_TRIAL, TRIES_USED, WITHDRAWN, Board
from update_images import EXPERT, LAYER, blob, front_pages_to_send

PAGE = 4096
RIGHT = "aa" * 32


@pytest.fixture
def board(images: dict[str, Path]) -> Board:
    return Board(images["old"], probe_sha256=RIGHT)


def update(board: Any, image: Path, **options: Any) -> ModelUpdate:
    def twin(path: Path, ids: Sequence[int], tokens: int) -> str:
        assert path == image and len(ids) == 3 and tokens == 4
        return RIGHT

    defaults = {"progress": Silent(), "log": lambda _: None, "twin": twin}
    return update_model(board, image, **{**defaults, **options})


def image_id(path: Path) -> str:
    with ImageFile(path) as image:
        return image.image_id


def assert_held(board: Board, slot: int, image: Path) -> None:
    """The slot holds the file, but for spare places, whose bytes mean nothing."""
    with ImageFile(image) as file:
        spare, size = file.spare_places
    data = image.read_bytes()
    assert bytes(board.images[slot - 1][: len(data) - spare * size]) == data[: len(data) - spare * size]


def test_only_what_differs_travels(board: Board, images: dict[str, Path]) -> None:
    old, new = images["old"], images["expert"]
    expert_bytes, front_pages = len(blob(new)), front_pages_to_send(old, new)
    done = update(board, new)
    assert front_pages <= 5  # expert directory, card, signature, list of updates: by comparing the files
    assert done.traffic.sent_bytes == board.received == expert_bytes + PAGE * front_pages
    assert (done.traffic.experts_sent, done.traffic.experts_copied, done.traffic.experts_kept) == (1, 7, 0)
    assert done.traffic.copied_bytes == board.copied
    with ImageFile(new) as image:
        spare, size = image.spare_places
        settled = done.traffic.sent_bytes + done.traffic.copied_bytes + done.traffic.kept_bytes
        assert settled == image.image_bytes - PAGE - spare * size
    assert (done.slot, done.confirmed, done.unchanged) == ("B", True, False)
    assert (board.active, board.running, board.last_result) == (2, 2, CONFIRMED)
    assert [check.name for check in done.checks] == ["identity", "self-test", "probe"]
    assert_held(board, 2, new)


def test_another_model_travels_whole(board: Board, images: dict[str, Path]) -> None:
    done = update(board, images["new"])
    assert done.traffic.experts_sent == 8
    assert done.traffic.sent_bytes > 8 * len(blob(images["new"]))
    assert_held(board, 2, images["new"])


def test_the_same_model_is_no_work(board: Board, images: dict[str, Path]) -> None:
    done = update(board, images["old"])
    assert (done.unchanged, done.slot, done.confirmed) == (True, "A", True)
    assert set(board.asked) == {"status"}


def test_a_checksum_cannot_tell_structs_with_their_own(board: Board, images: dict[str, Path]) -> None:
    """The lists of replaced experts of two images differ, and their CRC-32 does not: such pages must always travel."""
    pages = []
    for path in (images["old"], images["new"]):
        with ImageFile(path) as file:
            pages.append(file.bytes_at(file.sections[SectionKind.UPDATES].offset, PAGE))
    assert pages[0] != pages[1]
    assert zlib.crc32(pages[0]) == zlib.crc32(pages[1])


def test_back_and_forth_uses_what_the_other_slot_still_holds(board: Board, images: dict[str, Path]) -> None:
    update(board, images["new"])
    done = update(board, images["old"])
    assert (done.slot, done.traffic.sent_bytes) == ("A", 3 * PAGE)  # the rest is there
    assert done.traffic.experts_kept == 8
    assert image_id(images["old"]) == board.info().image_id


def test_a_broken_line_costs_no_more_than_what_was_on_it(board: Board, images: dict[str, Path]) -> None:
    whole = Board(images["old"], probe_sha256=RIGHT)
    total = update(whole, images["new"]).traffic.sent_bytes
    for after in (0, 1, 20, 30):
        board.cut_after = after
        with pytest.raises(LinkLostError):
            update(board, images["new"])
        assert (board.active, board.trial) == (1, 0)
    done = update(board, images["new"])
    again = 3 * PAGE  # the pages with a checksum of their own, by each attempt after the one that brought them first
    assert board.received == total + 2 * again
    assert done.traffic.sent_bytes == total - 51 * PAGE + 2 * again
    assert_held(board, 2, images["new"])


def test_a_restart_of_the_board_in_between_costs_nothing_more(board: Board, images: dict[str, Path]) -> None:
    board.cut_after = 20
    with pytest.raises(LinkLostError):
        update(board, images["new"])
    board.reboot()
    assert board.open is None
    done = update(board, images["new"])
    assert board.received == 20 * PAGE + done.traffic.sent_bytes
    assert board.info().image_id == image_id(images["new"])


def test_work_of_a_lost_session_is_waited_for_and_shown(
    board: Board, images: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("colibri_sdk.update.calls._POLL_SECONDS", 0.0)
    board.working = 3
    seen: list[tuple[int, int, str]] = []

    class Recorder:
        def update(self, done_bytes: int, total_bytes: int, what: str) -> None:
            seen.append((done_bytes, total_bytes, what))

    update(board, images["expert"], progress=Recorder())
    assert seen[:3] == [(33, 100, "checking"), (50, 100, "checking"), (100, 100, "checking")]
    assert seen[-1] == (100, 100, "checking")  # the commit
    phases = [what for _, _, what in seen]
    assert [what for index, what in enumerate(phases) if phases[index - 1] != what or index == 0] == [
        *("checking", "comparing", "", "checking")
    ]
    sending = [(done, total) for done, total, what in seen if what == ""]
    assert sending[-1] == (board.received, board.received)
    comparing = [(done, total) for done, total, what in seen if what == "comparing"]
    assert comparing[-1][0] == comparing[-1][1]


def test_left_on_trial_then_confirmed_by_the_same_command(board: Board, images: dict[str, Path]) -> None:
    done = update(board, images["new"], confirm=False, tries=5)
    assert (done.confirmed, done.slot) == (False, "B")
    assert (board.trial, board.running, board.active, board.tries_left, board.last_result) == (2, 2, 1, 4, ON_TRIAL)
    received = board.received
    done = update(board, images["new"])
    assert (done.confirmed, board.active, board.trial) == (True, 2, 0)
    assert board.received == received
    assert board.tries_left == 4  # it ran: no further start


def test_interrupted_between_writing_and_restarting(board: Board, images: dict[str, Path]) -> None:
    update(board, images["new"], confirm=False)
    board.running = 1  # as after a commit whose restart never came
    assert update(board, images["new"]).confirmed
    assert board.active == 2


def test_a_model_that_does_not_load_is_explained(board: Board, images: dict[str, Path]) -> None:
    board.refuses_trial = Status.E_MODEL_TOO_LARGE
    with pytest.raises(DeviceError, match="refused: model too large; it runs the old model, from slot A") as raised:
        update(board, images["new"])
    assert raised.value.status == Status.E_MODEL_TOO_LARGE
    assert (board.running, board.active, board.trial, board.last_result) == (1, 1, 0, INVALID)
    assert "last model on trial was refused: model too large" in str(status_rows(board))


def test_a_model_that_crashes_uses_up_its_tries(board: Board, images: dict[str, Path]) -> None:
    board.crashes = 9
    with pytest.raises(DeviceError, match="started 2 times and was not confirmed; it runs the old model"):
        update(board, images["new"], tries=2)
    assert (board.running, board.active, board.trial, board.last_result) == (1, 1, 0, TRIES_USED)
    assert board.crashes == 7


@pytest.mark.parametrize("silence", [LinkTimeoutError, NoDeviceError])
def test_a_model_that_hangs_uses_up_its_tries(
    board: Board, images: dict[str, Path], silence: type[ColibriError]
) -> None:
    """As long as the watchdog waits the device says nothing, and that is no cut cable."""
    board.hangs, board.silence = 9, silence
    with pytest.raises(DeviceError, match="started 2 times and was not confirmed; it runs the old model"):
        update(board, images["new"], tries=2)
    assert (board.running, board.active, board.trial, board.last_result) == (1, 1, 0, TRIES_USED)
    assert board.hangs == 7


def test_a_device_that_stays_silent_is_given_up(
    board: Board, images: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def nobody() -> None:
        asked.append(board.trial)
        raise NoDeviceError("nothing answers")

    monkeypatch.setattr(board, "reboot", nobody)
    with pytest.raises(NoDeviceError):
        update(board, images["new"])
    assert asked == [2, 2]


@pytest.mark.parametrize("what", ["self-test", "probe"])
def test_a_model_that_fails_a_check_is_taken_back(board: Board, images: dict[str, Path], what: str) -> None:
    if what == "probe":
        board.probe_sha256 = "bb" * 32
    board.selftest_ok = what != "self-test"
    with pytest.raises(DeviceError, match=rf"new\.colibri was tried and taken back.*{what}: "):
        update(board, images["new"])
    assert (board.running, board.active, board.trial, board.last_result) == (1, 1, 0, WITHDRAWN)
    assert board.info().image_id == image_id(images["old"])


def test_without_a_library_the_probe_only_counts_tokens(board: Board, images: dict[str, Path]) -> None:
    done = update(board, images["new"], twin=lambda *_: None)
    assert done.confirmed
    assert "not compared" in done.checks[-1].found


def test_another_trial_comes_first(board: Board, images: dict[str, Path]) -> None:
    update(board, images["new"], confirm=False)
    with pytest.raises(DeviceError, match=f"another model is on trial in slot B: {image_id(images['new'])}"):
        update(board, images["expert"])
    assert withdraw(board) is True  # type: ignore[arg-type]
    assert (board.running, board.trial) == (1, 0)
    assert withdraw(board) is False  # type: ignore[arg-type]
    assert update(board, images["expert"]).confirmed


def test_a_trial_with_a_replaced_expert_is_another_model(board: Board, images: dict[str, Path]) -> None:
    """Its probe may not need the expert: it was confirmed as what the file holds."""
    update(board, images["new"], confirm=False)
    with expert_content(images["expert"], LAYER, EXPERT) as content:
        update_expert(board, content, LAYER, EXPERT, progress=Silent())  # type: ignore[arg-type]
    with pytest.raises(DeviceError, match=f"slot B: {image_id(images['new'])}, of whose experts 1 were replaced"):
        update(board, images["new"])
    assert (board.running, board.active, board.trial) == (2, 1, 2)


def test_a_withdrawn_model_that_still_runs_is_left_first(board: Board, images: dict[str, Path]) -> None:
    update(board, images["new"], confirm=False)
    UpdateCalls(board).rollback()
    assert (board.running, board.active) == (2, 1)
    assert update(board, images["expert"]).slot == "B"


def test_what_can_not_be_done_is_said_before_anything_travels(images: dict[str, Path], tmp_path: Path) -> None:
    single = Board(images["old"], slots=1)
    with pytest.raises(DeviceError, match="no second slot") as raised:
        update(single, images["new"])
    assert raised.value.status == Status.E_UPDATE_PLACE
    with pytest.raises(DeviceError, match="cannot be written"):
        update(Board(images["old"], writable=False), images["new"])
    small = Board(images["old"], slot_bytes=images["old"].stat().st_size - PAGE)
    size = images["new"].stat().st_size
    words = rf"new\.colibri has {size} bytes, the device's slot has room for {size - PAGE}\n"
    with pytest.raises(DeviceError, match=words) as raised:
        update(small, images["new"])
    assert "--spare" not in raised.value.hint  # which is about experts
    assert (raised.value.status, raised.value.where) == (Status.E_UPDATE_PLACE, "slot")
    damaged = tmp_path / "damaged.colibri"
    data = bytearray(images["new"].read_bytes())
    data[20_000] ^= 1
    damaged.write_bytes(data)
    untouched = Board(images["old"])
    with pytest.raises(ImageError, match=r"damaged\.colibri is damaged: resident"):
        update(untouched, damaged)
    assert not untouched.asked
    assert single.received == small.received == 0


def status_of(board: Board) -> UpdateStatus:
    return UpdateCalls(board).status()


def status_rows(board: Board) -> dict[str, str]:
    return dict(report.rows(status_of(board)))  # type: ignore[arg-type]


def test_status_in_words(board: Board, images: dict[str, Path]) -> None:
    old, new = image_id(images["old"]), image_id(images["new"])
    rows = status_rows(board)
    assert (rows["slot A"], rows["slot B"]) == (f"{old}  runs, active", "empty")
    assert report.advice(status_of(board)) == []
    update(board, images["new"], confirm=False)
    rows = status_rows(board)
    assert (rows["slot A"], rows["slot B"]) == (f"{old}  active", f"{new}  runs, on trial")
    assert rows["trial"] == "2 of 3 starts left"
    assert any("`update confirm` keeps it" in line for line in report.advice(status_of(board)))
    machine = report.as_json(status_of(board))
    assert (machine["running"], machine["active"], machine["trial"], machine["last_result"]) == (
        "B",
        "A",
        "B",
        "on_trial",
    )
    assert machine["images"] == {"A": old, "B": new}
    single = report.as_json(status_of(Board(images["old"], slots=1)))
    assert (single["slots"], single["running"], single["open"]) == (1, None, None)


def test_advice_for_an_open_update(board: Board, images: dict[str, Path]) -> None:
    board.cut_after = 0
    with pytest.raises(LinkLostError):
        update(board, images["new"])
    rows = status_rows(board)
    assert rows["open update"].startswith("model, ")
    assert "run its command again" in report.advice(status_of(board))[0]
    assert isinstance(UpdateStatus.read(Reader(board._status(b""))), UpdateStatus)
