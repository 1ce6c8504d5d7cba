# SPDX-License-Identifier: Apache-2.0
"""Spending bytes: no plan beats the chosen one, no image is above its budget, and more bytes never cost quality."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

import checkpoints
from colibri_sdk.cli.main import cli as colibri
from colibri_sdk.convert import architectures, budget, pack
from colibri_sdk.convert.budget import CANDIDATES, Choice, Unit, front, parse_bytes, plan_of, unit_bytes, units
from colibri_sdk.convert.description import Role
from colibri_sdk.convert.quantisation import ENCODINGS, LAYER_ROLES, ROLES, parse
from colibri_sdk.errors import UsageError
from colibri_sdk.image.layout import PAGE
from colibri_sdk.image.reader import ImageFile

PARITY = Path(__file__).resolve().parents[1] / "parity"

CHOICES = st.lists(
    st.lists(
        st.builds(Choice, st.just(ENCODINGS["q4"]), st.integers(0, 40), st.floats(0, 10, width=16)),
        min_size=1,
        max_size=4,
    ),
    min_size=1,
    max_size=5,
)


@settings(max_examples=200, deadline=None)
@given(CHOICES)
def test_the_front_is_all_that_nothing_beats(choices: list[list[Choice]]) -> None:
    """Against trying everything."""
    points = front(choices)
    everything = []
    for picked in itertools.product(*[range(len(unit)) for unit in choices]):
        chosen = [unit[index] for unit, index in zip(choices, picked, strict=True)]
        error = 0.0
        for one in chosen:
            error += one.error
        everything.append((sum(one.bytes for one in chosen), error))
    assert points[0].bytes == min(size for size, _ in everything)
    for limit in range(0, 201, 7):
        fits = [error for size, error in everything if size <= limit]
        ours = [point.error for point in points if point.bytes <= limit]
        assert bool(fits) == bool(ours)
        if fits:
            assert min(ours) == min(fits) == ours[-1]
    for point in points:
        chosen = [unit[index] for unit, index in zip(choices, point.choices, strict=True)]
        assert point.bytes == sum(one.bytes for one in chosen)


def test_large_fronts_keep_their_ends_and_their_order() -> None:
    random = np.random.default_rng(0)
    choices = [
        [Choice(ENCODINGS["q4"], int(random.integers(1, 10**7)), float(random.random())) for _ in range(4)]
        for _ in range(40)
    ]
    points = front(choices)
    assert len(points) <= budget._MAX_FRONT + 1
    assert points[0].bytes == sum(min(one.bytes for one in unit) for unit in choices)
    assert all(a.bytes < b.bytes and a.error > b.error for a, b in itertools.pairwise(points))


@pytest.mark.parametrize(
    ("text", "expected"),
    [("2500K", 2_500_000), ("2.5M", 2_500_000), ("2500000", 2_500_000), ("2Mi", 2 << 20), ("1.5KiB", 1536),
     ("1gb", 10**9), (" 7 ", 7), ("0", 0)],
)  # fmt: skip
def test_budgets_are_read(text: str, expected: int) -> None:
    assert parse_bytes(text) == expected


@given(st.text(max_size=12))
def test_other_budgets_are_refused(text: str) -> None:
    try:
        assert parse_bytes(text) >= 0
    except UsageError as error:
        assert "--budget" in str(error)


@pytest.mark.parametrize("name", ["mixtral", "qwen3_moe", "deepseek_v2", "gpt_oss", "llama", "granitemoe"])
def test_units_hold_every_matrix_and_their_bytes_are_right(tmp_path: Path, name: str) -> None:
    """Changing one unit's format changes the image by what unit_bytes says, up to the page that sections end on."""
    source = PARITY / name
    config = json.loads((source / "config.json").read_text())
    pack(source, tmp_path / "f32.colibri", quant="f32", kv="f16", spare=0)
    with ImageFile(tmp_path / "f32.colibri") as image:
        base = image.image_bytes
    from colibri_sdk.convert.packer import Options, describe

    description = describe(source, Options(parse("f32")))
    parts = units(description)
    assert len(set(parts)) == len(parts) and len(config) > 0
    for unit in parts:
        plan = plan_of(parts, {unit: ENCODINGS["q4"]})
        report = pack(source, tmp_path / "one.colibri", quant=plan.text, kv="f16", spare=0)
        saved = unit_bytes(description, unit, ENCODINGS["f32"]) - unit_bytes(description, unit, ENCODINGS["q4"])
        assert abs(base - report.image_bytes - saved) <= 2 * PAGE and saved > 0
    everything = pack(source, tmp_path / "all.colibri", quant="q4,router=f32", kv="f16", spare=0)
    saved = sum(
        unit_bytes(description, unit, ENCODINGS["f32"]) - unit_bytes(description, unit, ENCODINGS["q4"])
        for unit in parts
    )
    assert abs(base - everything.image_bytes - saved) <= 2 * PAGE


def test_many_layers_share_units() -> None:
    settings_ = checkpoints.config(num_hidden_layers=100)
    weights = checkpoints.tensors(settings_)
    description = architectures.describe(settings_, frozenset(weights))
    parts = units(description)
    assert len(parts) <= budget.MAX_UNITS + 4
    for role in (Role.ATTENTION, Role.EXPERTS):
        covered = [
            layer for unit in parts if unit.role is role for layer in range(unit.first or 0, (unit.last or 0) + 1)
        ]
        assert covered == list(range(100))


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_plans_of_units_say_what_was_chosen(data: st.DataObject) -> None:
    parts = [Unit(Role.EMBEDDING), Unit(Role.HEAD)]
    for role in (Role.ATTENTION, Role.EXPERTS):
        parts += [Unit(role, first, first + 1) for first in range(0, 8, 2)]
    chosen = {unit: data.draw(st.sampled_from(CANDIDATES)) for unit in parts if data.draw(st.booleans())}
    plan = parse(plan_of(parts, chosen).text)
    for unit in parts:
        for layer in [None] if unit.first is None else range(unit.first, (unit.last or 0) + 1):
            assert plan.encoding(unit.role, layer) == chosen.get(unit, ENCODINGS["f32"])
    assert set(LAYER_ROLES) < set(ROLES)


# ------------------------------------------------------------------------------------------------------- whole runs


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of several pages in each part, so that budgets differ."""
    settings_ = checkpoints.config(
        hidden_size=64, head_dim=16, intermediate_size=64, vocab_size=200, num_hidden_layers=2, eos_token_id=1
    )
    return checkpoints.write(tmp_path_factory.mktemp("budget") / "m", settings_)


@pytest.fixture(scope="module")
def text(source: Path) -> Path:
    random = np.random.default_rng(8)
    rows = [[int(one) for one in random.integers(2, 200, 20)] for _ in range(6)]
    path = source.parent / "c.jsonl"
    path.write_text("".join(json.dumps({"ids": row}) + "\n" for row in rows))
    return path


def test_budgets_are_kept_and_larger_ones_promise_no_more_error(
    source: Path, text: Path, tmp_path: Path, host_library: Path
) -> None:
    out = tmp_path / "m.colibri"
    with pytest.raises(UsageError, match=r"smallest image of this model has (\d+) bytes") as caught:
        pack(source, out, quant="auto", budget=1, calibrate=text)
    assert not out.exists()
    smallest = int(str(caught.value).split(" has ")[1].split()[0])
    with pytest.raises(UsageError, match=f"has {smallest} bytes"):
        pack(source, out, quant="auto", budget=smallest - 1, calibrate=text)
    largest = pack(source, tmp_path / "f32.colibri", quant="f32").image_bytes
    before: dict[str, Any] | None = None
    plans = set()
    for size in [smallest, *(smallest + (largest - smallest) * k // 7 for k in range(1, 9))]:
        report = pack(source, out, quant="auto", budget=size, calibrate=text)
        assert report.image_bytes <= size and out.stat().st_size == report.image_bytes
        assert report.quality is not None
        with ImageFile(out) as image:
            assert image.card["plan"] == report.plan and image.card["quality"] == report.quality
        if before is not None:
            assert report.quality["kl_predicted"] <= before["kl_predicted"]
        before = dict(report.quality)
        plans.add(report.plan)
    assert before is not None and before["kl_mean"] < 1e-6 and len(plans) >= 4


def test_the_same_budget_gives_the_same_bytes(source: Path, text: Path, tmp_path: Path, host_library: Path) -> None:
    for name in ("a", "b"):
        pack(source, tmp_path / f"{name}.colibri", quant="auto", budget=150_000, calibrate=text)
    assert (tmp_path / "a.colibri").read_bytes() == (tmp_path / "b.colibri").read_bytes()


def test_the_command_takes_a_budget(source: Path, text: Path, tmp_path: Path, host_library: Path) -> None:
    out = tmp_path / "m.colibri"
    arguments = ["pack", str(source), "-o", str(out), "--quant", "auto", "--budget", "150K", "--calibrate", str(text)]
    done = CliRunner().invoke(colibri, [*arguments, "--json"])
    assert done.exit_code == 0, done.output
    answer = json.loads(done.stdout)
    assert answer["image_bytes"] == out.stat().st_size <= 150_000 and "kl_predicted" in answer["quality"]
    assert "embedding=q4: divergence" in done.stderr
    shown = CliRunner().invoke(colibri, ["inspect", str(out)])
    assert f"{answer['quality']['kl_predicted']} nats" in shown.output and answer["plan"] in shown.output


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"quant": "auto"}, "--quant auto needs --budget and --calibrate"),
        ({"quant": "auto", "budget": 10**6}, "--quant auto needs --budget and --calibrate"),
        ({"quant": "q8", "budget": 10**6}, "--budget is for --quant auto, not for q8"),
    ],
)
def test_budgets_need_a_text_and_texts_a_budget(source: Path, tmp_path: Path, options: Any, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        pack(source, tmp_path / "m.colibri", **options)
