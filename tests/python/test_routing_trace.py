# SPDX-License-Identifier: Apache-2.0
"""Routing that is recorded on this machine: what it says, and files that are not such a recording."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from colibri_sdk.engine import Engine, Library, Route
from colibri_sdk.errors import ColibriError, UsageError
from colibri_sdk.profiling.prompts import read_prompts
from colibri_sdk.profiling.record import record, steps_of
from colibri_sdk.profiling.trace import RoutingTrace, load, save
from routing import make_trace, traces

PROMPTS = ["set pump 3 to 40 percent", "hello", "please shut valve two in the boiler room right away if you can do it"]


def same(one: RoutingTrace, other: RoutingTrace) -> bool:
    return all(np.array_equal(getattr(one, field.name), getattr(other, field.name)) for field in fields(one))


# ------------------------------------------------------------------------------------------------------- recording


@pytest.fixture(scope="module")
def recorded(hummingbird: Callable[[str], Path], host_library: Path) -> RoutingTrace:
    return record(hummingbird("q8"), PROMPTS, max_tokens=12, library=Library.load(host_library))


def test_counts_what_the_engine_counts(
    recorded: RoutingTrace, hummingbird: Callable[[str], Path], host_library: Path
) -> None:
    engine = Engine(Library.load(host_library), hummingbird("q8"))
    for prompt in PROMPTS:
        engine.generate(engine.prompt(prompt), max_tokens=12)
    stats = engine.stats()
    assert np.array_equal(recorded.tokens(), stats.expert_tokens)
    assert recorded.positions == stats.tokens
    assert recorded.image_ids == (engine.info.image_id,)


def test_steps_are_the_batches_of_each_layer(recorded: RoutingTrace) -> None:
    assert recorded.prompts == len(PROMPTS) and recorded.experts == (8, 8, 8, 8)
    for prompt in range(recorded.prompts):
        part = recorded.part(prompt, prompt + 1)
        assert part.step_layer.tolist() == [0, 1, 2, 3] * (part.steps // 4)
        per_batch = part.step_tokens.reshape(-1, 4)
        assert (per_batch == per_batch[:, :1]).all()
        prompt_tokens, answer_tokens = int(part.prompt_tokens[0]), int(part.answer_tokens[0])
        full, rest = divmod(prompt_tokens, part.batch)
        assert per_batch[:, 0].tolist() == [16] * full + [rest] * (rest > 0) + [1] * answer_tokens
        chosen = np.add.reduceat(part.expert_tokens, part.step_first[:-1].astype(np.int64))
        assert (chosen == 2 * part.step_tokens).all()  # top-2


def test_longest_prompt_needs_two_batches(recorded: RoutingTrace) -> None:
    assert recorded.prompt_tokens.max() > recorded.batch


def test_layers_that_cannot_be_told_apart_are_cut_at_batches_and_tokens() -> None:
    """A model with one routed layer: 18 tokens of a prompt in batches of 16, then two tokens of the answer."""
    routes = [Route(3, position, (position % 5,), (1.0,)) for position in range(20)]
    steps = steps_of(routes, 16, [18, 19, 20])
    assert [[route.position for route in step] for step in steps] == [list(range(16)), [16, 17], [18], [19]]


def test_dense_model_has_nothing_to_record(tiny: Callable[[str, str], Path], host_library: Path) -> None:
    with pytest.raises(UsageError, match="has no experts"):
        record(tiny("llama", "q8"), [(1, 2)], library=Library.load(host_library))


def test_no_prompts_are_refused(hummingbird: Callable[[str], Path], host_library: Path) -> None:
    with pytest.raises(UsageError, match="no prompts to record"):
        record(hummingbird("q8"), [], library=Library.load(host_library))


@pytest.mark.parametrize("prompt", ["pump " * 1000, (1, 99999999)], ids=["too long", "no token"])
def test_a_prompt_that_cannot_be_answered_is_named(
    hummingbird: Callable[[str], Path], host_library: Path, prompt: str | tuple[int, ...]
) -> None:
    """Of a file of hundreds it was said only that one of them is wrong."""
    with pytest.raises(ColibriError, match=r"^prompt 2 of 3: "):
        record(hummingbird("q8"), [(1, 2), prompt, (1, 3)], max_tokens=1, library=Library.load(host_library))


# ----------------------------------------------------------------------------------------------------------- files


@settings(max_examples=30, deadline=None)
@given(trace=traces())
def test_file_gives_back_the_trace(trace: RoutingTrace, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("trace") / "t.npz"
    save(trace, path)
    assert same(load(path), trace)


def test_recorded_trace_survives_its_file(recorded: RoutingTrace, tmp_path: Path) -> None:
    save(recorded.also_for("ab" * 16), tmp_path / "t.npz")
    again = load(tmp_path / "t.npz")
    assert same(again, recorded.also_for("ab" * 16)) and again.image_ids[1] == "ab" * 16


GOOD = make_trace([3, 2], [[(0, 2, [(0, 1), (2, 2)]), (1, 2, [(1, 2)])], [(0, 1, [(1, 1)])]])


def _damaged(tmp_path: Path, **changes: Any) -> Path:
    """GOOD's file with other arrays; None takes one away."""
    path = tmp_path / "t.npz"
    save(GOOD, path)
    with np.load(path) as arrays:
        contents = {name: arrays[name] for name in arrays.files}
    contents.update(changes)
    np.savez(path, **{name: array for name, array in contents.items() if array is not None})
    return path


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": np.uint32(2)}, "version 2; this version of the SDK reads 1"),
        ({"version": None}, "has no version"),
        ({"version": np.float32(1)}, "has no version"),
        ({"image_id": np.zeros((0, 16), np.uint8)}, "names no image"),
        ({"image_id": np.zeros((1, 15), np.uint8)}, "names no image"),
        ({"model": np.uint32(1)}, "has model of type"),
        ({"experts": np.zeros(0, np.uint32)}, "impossible layers"),
        ({"experts": np.full(2, 65537, np.uint32)}, "impossible layers"),
        ({"step_layer": None}, "has no step_layer"),
        ({"step_layer": np.array([0, 2, 0], np.uint32)}, "a layer that is not there"),
        ({"step_layer": np.array([0, -1, 0])}, "has step_layer of type int64"),
        ({"step_layer": np.array([[0, 1, 0]], np.uint32)}, "shape"),
        ({"step_tokens": np.array([2, 2], np.uint32)}, "lacks tokens of steps"),
        ({"step_first": np.array([0, 2, 3, 9], np.uint64)}, "among steps wrongly"),
        ({"step_first": np.array([0, 3, 2, 4], np.uint64)}, "among steps wrongly"),
        ({"step_first": np.array([0, 2, 4], np.uint64)}, "among steps wrongly"),
        ({"expert": np.array([0, 3, 1, 1], np.uint32)}, "an expert that is not there"),
        ({"expert": np.array([0, 2, 2, 1], np.uint32)}, "an expert that is not there"),
        ({"expert": np.array([2, 0, 1, 1], np.uint32)}, "do not ascend"),
        ({"expert": np.array([2, 2, 1, 1], np.uint32)}, "do not ascend"),
        ({"expert_tokens": np.array([1, 2, 2], np.uint32)}, "lacks tokens of experts"),
        ({"expert_tokens": np.array([1, 3, 2, 1], np.uint32)}, "more tokens of an expert"),
        ({"prompt_first": np.array([0, 3], np.uint64)}, "among prompts wrongly"),
        ({"prompt_tokens": np.zeros(0, np.uint32)}, "has no prompts"),
        ({"answer_tokens": np.zeros(1, np.uint32)}, "has no prompts"),
        ({name: np.zeros(2, np.uint32) for name in ("prompt_tokens", "answer_tokens")}, "computed no tokens"),
    ],
)
def test_wrong_files_are_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message) as failed:
        load(_damaged(tmp_path, **changes))
    assert "colibri-sdk profile" in failed.value.hint


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.npz"
    with pytest.raises(UsageError, match="cannot be read"):
        load(path)
    path.write_bytes(b"")
    with pytest.raises(UsageError, match="is no trace"):
        load(path)
    path.write_text("not an archive")
    with pytest.raises(UsageError, match="is no trace"):
        load(path)
    np.savez(path, version=np.uint32(1), pickled=np.array([{}], object))
    with pytest.raises(UsageError, match="is no trace"):
        load(path)
    with path.open("wb") as file:
        np.save(file, np.zeros(3))
    with pytest.raises(UsageError, match="is no trace"):
        load(path)


@settings(max_examples=60, deadline=None)
@given(at=st.integers(0, 10_000), value=st.integers(0, 255), cut=st.booleans())
def test_damaged_bytes_give_a_trace_or_an_error(
    tmp_path_factory: pytest.TempPathFactory, at: int, value: int, cut: bool
) -> None:
    path = tmp_path_factory.mktemp("trace") / "t.npz"
    save(GOOD, path)
    data = bytearray(path.read_bytes())
    at %= len(data)
    data[at] = value
    path.write_bytes(data[:at] if cut else data)
    try:
        load(path)
    except UsageError:
        pass


def test_trace_of_another_image_is_refused() -> None:
    GOOD.also_for("ab" * 16).require_image("ab" * 16, GOOD.experts, "x.colibri")
    with pytest.raises(UsageError, match="recorded with image 0000") as failed:
        GOOD.require_image("ab" * 16, GOOD.experts, "x.colibri")
    assert "x.colibri is abab" in failed.value.message


# --------------------------------------------------------------------------------------------------------- prompts


def test_prompts_are_lines_or_json(tmp_path: Path) -> None:
    plain, lines = tmp_path / "p.txt", tmp_path / "p.jsonl"
    plain.write_text("first\n\n  second  \n", "utf-8")
    lines.write_text('{"prompt": "ä", "answer": "1"}\n{"ids": [3, 4]}\n', "utf-8")
    assert read_prompts(plain) == ["first", "second"]
    assert read_prompts(plain, limit=1) == ["first"]
    assert read_prompts(lines) == ["ä", (3, 4)]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("p.txt", "\n \n", "has no text"),
        ("p.jsonl", "\n", "has no text"),
        ("p.jsonl", '{"text": "a"}', "prompt 1 is neither a text nor ids"),
        ("p.jsonl", '{"ids": []}', "prompt 1 is neither a text nor ids"),
        ("p.jsonl", "{", "line 1: not JSON"),
    ],
)
def test_files_without_prompts_are_refused(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(UsageError, match=message):
        read_prompts(tmp_path / name)
