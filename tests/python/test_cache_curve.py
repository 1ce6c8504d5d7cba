# SPDX-License-Identifier: Apache-2.0
"""What is foretold of each cache size, against a device that counts; the curve's picture, pins, and the commands."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pexpect
import pytest

from colibri_sdk.boards import load_board
from colibri_sdk.cli.main import run
from colibri_sdk.engine import Engine, Library
from colibri_sdk.errors import EXIT_INTERRUPTED, EXIT_OK, EXIT_USAGE, UsageError
from colibri_sdk.image.reader import ImageFile
from colibri_sdk.profiling import pins as pinning
from colibri_sdk.profiling.chart import draw
from colibri_sdk.profiling.curve import LayerReads, Point, curve, thinned
from colibri_sdk.profiling.record import record
from colibri_sdk.profiling.trace import RoutingTrace, load, save
from colibri_sdk.signing import PrivateKey, sign_image
from colibri_sdk.store import StoreChoice
from routing import Step, make_trace

Hummingbird = Callable[[str], Path]

PROMPTS = ["set pump 3 to 40 percent", "please shut valve two in the boiler room right away if you can do it", "hello"]
MAX_TOKENS = 10


@pytest.fixture(scope="module")
def library(host_library: Path) -> Library:
    return Library.load(host_library)


@pytest.fixture(scope="module")
def trace(hummingbird: Hummingbird, library: Library) -> RoutingTrace:
    return record(hummingbird("q8"), PROMPTS, max_tokens=MAX_TOKENS, library=library)


@pytest.fixture(scope="module")
def points(hummingbird: Hummingbird, library: Library, trace: RoutingTrace) -> list[Point]:
    return list(curve(library, hummingbird("q8"), trace, bytes_per_second=1e6))


def counted(device: Any, point: Point) -> tuple[LayerReads, ...]:
    """What the device counts for the prompts with as many slots, from an empty cache."""
    configured = StoreChoice("block", cache_slots=point.slots).configure(device)
    assert (configured.cache_slots, configured.arena_bytes) == (point.slots, point.arena_bytes)
    device.clear_stats()
    for prompt in PROMPTS:
        assert device.generate(prompt, max_tokens=MAX_TOKENS).result.generated_tokens
    stats = device.stats()
    assert stats.arena_peak_bytes == point.arena_bytes
    return tuple(LayerReads(layer.hits, layer.misses, layer.read_bytes) for layer in stats.layers)


# ---------------------------------------------------------------------------------------------- foretold and counted


def test_the_host_board_counts_what_was_foretold(
    emulated: Callable[..., Any], hummingbird: Hummingbird, points: list[Point]
) -> None:
    device = emulated("host", hummingbird("q8"))
    assert [point.slots for point in points] == list(range(1, 9))
    for point in points:
        assert counted(device, point) == point.layers, f"{point.slots} slots"


@pytest.mark.qemu
def test_an_emulated_board_counts_what_was_foretold(
    emulated: Callable[..., Any], hummingbird: Hummingbird, points: list[Point]
) -> None:
    device = emulated("virt-riscv64", hummingbird("q8"))
    for point in (points[2], points[5]):
        assert counted(device, point) == point.layers, f"{point.slots} slots"


def test_pinned_images_are_foretold_too(
    emulated: Callable[..., Any], hummingbird: Hummingbird, library: Library, trace: RoutingTrace, tmp_path: Path
) -> None:
    image = tmp_path / "pinned.colibri"
    image.write_bytes(hummingbird("q8").read_bytes())
    pinned = trace.also_for(pinning.write(image, {0: [7, 2], 2: [0, 1, 3]}))
    (point,) = curve(library, image, pinned, sizes=[3])
    (free,) = curve(library, hummingbird("q8"), trace, sizes=[3])
    assert point.layers != free.layers
    assert counted(emulated("host", image), point) == point.layers


def test_figures_of_a_point_belong_together(
    hummingbird: Hummingbird, library: Library, trace: RoutingTrace, points: list[Point]
) -> None:
    with ImageFile(hummingbird("q8")) as file:
        blob = int(file.experts[0]["bytes"])
    for point in points:
        assert (point.hits, point.misses) == (
            sum(layer.hits for layer in point.layers),
            sum(layer.misses for layer in point.layers),
        )
        assert point.hits + point.misses == len(trace.expert)
        assert point.read_bytes == blob * point.misses
        assert point.slot_bytes == 4 * point.slots * blob
        assert point.arena_bytes == library.plan(hummingbird("q8"), cache_slots=point.slots).arena_bytes
        assert point.bytes_per_token == point.read_bytes / trace.positions
        assert point.seconds_per_answer_token == point.bytes_per_answer_token / 1e6
    assert points[-1].misses == np.count_nonzero(trace.uses())
    assert points[0].bytes_per_answer_token > points[-1].bytes_per_answer_token


def test_only_tokens_that_were_computed_alone_count_for_answers(
    library: Library, hummingbird: Hummingbird, trace: RoutingTrace
) -> None:
    """With one slot a token of an answer reads one or two experts of each of four layers."""
    (point,) = curve(library, hummingbird("q8"), trace, sizes=[1])
    with ImageFile(hummingbird("q8")) as file:
        blob = int(file.experts[0]["bytes"])
    assert 4 * blob <= point.bytes_per_answer_token <= 8 * blob
    (cut,) = curve(library, hummingbird("q8"), replace(trace, step_tokens=trace.step_tokens + np.uint32(1)), sizes=[1])
    assert cut.bytes_per_answer_token == 0


def test_trace_of_another_image_is_refused(hummingbird: Hummingbird, library: Library, trace: RoutingTrace) -> None:
    other = replace(trace, image_ids=("00" * 16,))
    with pytest.raises(UsageError, match="recorded with image 0000"):
        next(curve(library, hummingbird("q8"), other))


# ------------------------------------------------------------------------------------------------------- the picture


def test_picture_is_a_png(points: list[Point], tmp_path: Path) -> None:
    draw(points, tmp_path / "c.png", title="hummingbird")
    data = (tmp_path / "c.png").read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n") and len(data) > 10_000


def test_pictures_that_cannot_be_are_refused(points: list[Point], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"End it in \.png, \.svg or \.pdf"):
        draw(points, tmp_path / "c.xyz", title="hummingbird")
    with pytest.raises(UsageError, match="no is no directory"):
        draw(points, tmp_path / "no" / "c.png", title="hummingbird")
    (tmp_path / "d.png").mkdir()
    with pytest.raises(UsageError, match="cannot be written"):
        draw(points, tmp_path / "d.png", title="hummingbird")


def test_long_curves_are_thinned_to_their_ends(points: list[Point]) -> None:
    many = [replace(points[0], slots=slots) for slots in range(1, 401)]
    few = [point.slots for point in thinned(many, 24)]
    assert len(few) <= 24 + 1 and (few[0], few[-1]) == (1, 400) and few == sorted(set(few))
    assert few[1] - few[0] < few[-1] - few[-2]
    assert thinned(points, 24) == points


# --------------------------------------------------------------------------------------------------------------- pins


def test_pins_are_the_most_used_experts_of_each_layer(trace: RoutingTrace) -> None:
    pins = pinning.most_used(trace, 3)
    uses = trace.uses()
    assert sorted(pins) == [0, 1, 2, 3]
    for layer, experts in pins.items():
        assert len(experts) == 3
        left = [uses[layer, expert] for expert in range(8) if expert not in experts]
        assert [uses[layer, expert] for expert in experts] == sorted(uses[layer, experts], reverse=True)
        assert min(uses[layer, expert] for expert in experts) >= max(left)


def test_as_many_are_pinned_as_pay(library: Library) -> None:
    """Steps need two experts, and every other step expert 0: two slots forget it in between, a pin does not."""

    def prompt(number: int) -> list[Step]:
        others = [[0, 1 + number % 7], sorted({1 + (number + 1) % 7, 1 + (number + 3) % 7})]
        return [(0, 1, [(expert, 1) for expert in step]) for step in others]

    steady = make_trace([8], [prompt(number) for number in range(20)])
    choice = pinning.choose(library, steady, 2)
    assert (choice.slots, choice.count, choice.pins) == (2, 1, {0: [0]})
    assert choice.rate_without is not None and choice.rate_with is not None
    assert choice.rate_with > choice.rate_without


def test_pins_that_do_not_pay_are_not_written(library: Library) -> None:
    """The second half of the prompts needs other experts than the first."""
    half = [[(0, 1, [(expert, 1)]) for expert in (base, base + 1) * 4] for base in (0, 4) for _ in range(10)]
    choice = pinning.choose(library, make_trace([8], half), 2)
    assert choice.count == 0 and choice.pins == {} and choice.rate_with == choice.rate_without


def test_one_prompt_does_not_tell_how_many_pins_pay(library: Library, trace: RoutingTrace) -> None:
    with pytest.raises(UsageError, match="one prompt does not tell"):
        pinning.choose(library, trace.part(0, 1), 4)
    assert pinning.choose(library, trace.part(0, 1), 4, count=2).count == 2


def test_pins_change_the_images_directory_and_nothing_else(
    hummingbird: Hummingbird, library: Library, tmp_path: Path
) -> None:
    image = tmp_path / "m.colibri"
    image.write_bytes(hummingbird("q8").read_bytes())
    image_id = pinning.write(image, {1: [3, 0]})
    library.validate(image)
    with ImageFile(image) as after, ImageFile(hummingbird("q8")) as before:
        assert after.pins == {1: [3, 0]} and before.pins == {}
        assert after.image_id == image_id != before.image_id
        assert all(check.ok for check in after.verify())
        same = [name for name in after.experts.dtype.names or () if name != "pin"]
        assert np.array_equal(after.experts[same], before.experts[same])
    engines = [Engine(library, path) for path in (image, hummingbird("q8"))]
    answers = [engine.generate(engine.prompt(PROMPTS[0])).logits_sha256 for engine in engines]
    assert answers[0] == answers[1]
    pinning.write(image, {})
    assert image.read_bytes() == hummingbird("q8").read_bytes()


@pytest.mark.parametrize("pins", [{4: [0]}, {0: [8]}, {0: [-1]}, {0: [1, 1]}])
def test_impossible_pins_are_refused(hummingbird: Hummingbird, tmp_path: Path, pins: dict[int, list[int]]) -> None:
    image = tmp_path / "m.colibri"
    image.write_bytes(hummingbird("q8").read_bytes())
    with pytest.raises(UsageError, match="cannot pin"):
        pinning.write(image, pins)
    assert image.read_bytes() == hummingbird("q8").read_bytes()


# ----------------------------------------------------------------------------------------------------------- commands


@pytest.fixture
def copy(hummingbird: Hummingbird, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An image that a command may change, and a file of prompts beside it, in the directory that commands run in."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.txt").write_text("\n".join(PROMPTS))
    image = tmp_path / "hb.colibri"
    image.write_bytes(hummingbird("q8").read_bytes())
    return image


def test_profile_then_plan(copy: Path, capsys: pytest.CaptureFixture[str], points: list[Point]) -> None:
    assert run(["profile", "hb.colibri", "--prompts", "p.txt", "--max-tokens", str(MAX_TOKENS), "--json"]) == EXIT_OK
    told = json.loads(capsys.readouterr().out)
    assert (told["trace"], told["prompts"], told["pins"]) == ("hb.trace.npz", 3, None)
    arguments = ["plan", "hb.colibri", "--profile", "hb.trace.npz", "--curve", "c.png", "--read-rate", "1000000"]
    assert run([*arguments, "--json"]) == EXIT_OK
    foretold = json.loads(capsys.readouterr().out)["profile"]
    assert foretold == json.loads(json.dumps([point.as_json() for point in points]))
    assert Path("c.png").stat().st_size > 10_000
    assert run(arguments) == EXIT_OK
    shown, said = capsys.readouterr()
    assert f"{100 * points[3].hit_rate:.2f} %" in shown and "as given" in shown
    assert "--prefetch" not in said
    assert run([*arguments[:4], "--prefetch", "--json"]) == EXIT_OK
    guessed, said = capsys.readouterr()
    assert [point["misses"] for point in json.loads(guessed)["profile"]] == [point["misses"] for point in foretold]
    assert "Reads are foretold without --prefetch" in said


def test_profile_pins_the_image_and_the_trace_follows_it(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["profile", "hb.colibri", "--prompts", "p.txt", "-o", "t.npz", "--pin", "--pins", "2"]) == EXIT_OK
    assert "unsigned" in capsys.readouterr().out
    trace = load(Path("t.npz"))
    with ImageFile(copy) as file:
        assert file.pins == {layer: list(order) for layer, order in pinning.most_used(trace, 2).items()}
        assert trace.image_ids[-1] == file.image_id and len(trace.image_ids) == 2
    assert run(["plan", "hb.colibri", "--profile", "t.npz", "--json"]) == EXIT_OK
    assert len(json.loads(capsys.readouterr().out)["profile"]) == 8


def test_profile_leaves_an_image_alone_that_has_the_pins(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["profile", "hb.colibri", "--prompts", "p.txt", "-o", "t.npz", "--pin", "--pins", "2"]
    assert run(arguments) == EXIT_OK
    sign_image(copy, PrivateKey.new())
    signed = copy.read_bytes()
    capsys.readouterr()
    assert run(arguments) == EXIT_OK
    shown = capsys.readouterr().out
    assert "stays as it is" in shown and "unsigned" not in shown
    assert copy.read_bytes() == signed
    with ImageFile(copy) as file:
        assert load(Path("t.npz")).image_ids == (file.image_id,)


def test_the_recording_comes_before_the_pins(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is kept where no pins can be chosen; where it cannot be kept, the image stays as it is."""
    before = copy.read_bytes()
    arguments = ["profile", "hb.colibri", "--prompts", "p.txt", "--pin"]
    assert run([*arguments, "-o", "one.npz", "--limit", "1"]) == EXIT_USAGE
    assert "one prompt does not tell" in capsys.readouterr().err
    assert load(Path("one.npz")).prompts == 1
    assert run([*arguments, "-o", "nowhere/t.npz", "--pins", "2"]) == EXIT_USAGE
    assert "nowhere is no directory" in capsys.readouterr().err
    assert run([*arguments, "-o", "p.txt/t.npz", "--pins", "2"]) == EXIT_USAGE
    assert "p.txt is no directory" in capsys.readouterr().err
    assert copy.read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["profile", "hb.colibri", "--prompts", "empty.txt"], "has no text"),
        (["profile", "hb.colibri", "--prompts", "p.txt", "--pins", "2"], "about pins"),
        (["plan", "hb.colibri", "--curve", "c.png"], "about a trace"),
        (["plan", "hb.colibri", "--profile", "p.txt"], "is no trace of routing: it is no .npz file\n"),
        (["plan", "hb.colibri", "--profile", "other.npz", "--read-rate", "0"], "--read-rate 0"),
        (["plan", "hb.colibri", "--profile", "other.npz", "--curve", "c.xyz"], "End it in .png"),
        (["plan", "hb.colibri", "--profile", "other.npz", "--curve", "no/c.png"], "no is no directory"),
        (["plan", "hb.colibri", "--store", "memory", "--cache-slots", "2"], "Leave --store out"),
        (["plan", "hb.colibri", "--cache-slots", "0"], "from 1 on or auto, not '0'"),
        (["plan", "hb.colibri", "--cache-slots", "9" * 5000], "from 1 on or auto, not '999"),
        (["plan", "hb.colibri", "--memory-limit", "99999999999999G"], "is more than there can be"),
        (["plan", "hb.colibri", "--memory-limit", "9" * 5000], "is more than there can be"),
        (["profile", "hb.colibri", "--prompts", "half.jsonl"], "half of a surrogate pair"),
        (["profile", "mute.colibri", "--prompts", "p.txt"], "has no tokenizer, and these prompts are text"),
        (["run", "hb.colibri", "hello", "--temperature", "nan"], "nan is no number"),
        (["run", "hb.colibri", "hello", "--timeout", "inf"], "--timeout"),
        (["run", "hb.colibri", "hello", "--max-tokens", "99999999999"], "4294967295"),
        (["plan", "hb.colibri", "--profile", "other.npz"], "recorded with image 0000"),
    ],
)
def test_wrong_uses_are_explained(
    copy: Path, images: dict[str, Path], capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    Path("empty.txt").write_text("\n")
    Path("half.jsonl").write_text('{"prompt": "\\ud800"}\n')
    shutil.copy(images["old"], "mute.colibri")
    save(make_trace([8] * 4, [[(0, 1, [(0, 1)])]]), Path("other.npz"))
    assert run(arguments) == EXIT_USAGE
    assert message in capsys.readouterr().err


def test_checkpoints_cannot_be_pinned(copy: Path, repo_root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = str(repo_root / "models" / "hummingbird")
    assert run(["profile", model, "--prompts", "p.txt", "--pin"]) == EXIT_USAGE
    assert "colibri-sdk pack" in capsys.readouterr().err


def test_top_shows_what_the_device_counts(
    copy: Path, capsys: pytest.CaptureFixture[str], points: list[Point], trace: RoutingTrace
) -> None:
    arguments = ["top", "hb.colibri", "--prompts", "p.txt", "--max-tokens", str(MAX_TOKENS), "--cache-slots", "3"]
    assert run([*arguments, "--json"]) == EXIT_OK
    view = json.loads(capsys.readouterr().out)
    assert (view["prompts"], view["tokens"], view["board"]) == (3, trace.positions, "host")
    assert (view["hits"], view["misses"], view["read_bytes"]) == (
        points[2].hits,
        points[2].misses,
        points[2].read_bytes,
    )
    assert [layer["experts"] for layer in view["layers"]] == trace.tokens().tolist()
    assert run([*arguments, "--once"]) == EXIT_OK
    shown = capsys.readouterr().out
    assert f"hit rate {100 * points[2].hit_rate:.1f} %" in shown.splitlines()[0]


def test_top_draws_while_the_device_answers_until_it_is_interrupted(copy: Path) -> None:
    Path("p.txt").write_text("\n".join(PROMPTS * 30_000))  # for half an hour
    arguments = ["-m", "colibri_sdk", "top", str(copy), "--prompts", "p.txt"]
    child = pexpect.spawn(sys.executable, arguments, encoding="utf-8", timeout=600, dimensions=(30, 120))
    try:
        child.expect(r"prompt \d+ of 90000")
        child.sendintr()
        child.expect("interrupted")
        child.expect(pexpect.EOF)
    finally:
        child.close()
    assert child.exitstatus == EXIT_INTERRUPTED


def test_boards_state_a_rate_only_where_it_was_measured() -> None:
    assert load_board("host").emulator.storage_bytes_per_second == 0
    assert load_board("rpi3").emulator.storage_bytes_per_second > 1_000_000
