# SPDX-License-Identifier: Apache-2.0
"""The same bits everywhere: SHA-256 over the raw logits of 32 generated tokens, for each number format."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from acceptance import BOARDS, GENERATED, PLACES, PROMPT, QUANTS, Place, Run, each, host_run, reference_run

PackModel = Callable[[str], Path]


@pytest.mark.parametrize("quant", QUANTS)
def test_every_kernel_set_of_this_machine(hummingbird: PackModel, quant: str) -> None:
    from colibri_sdk.engine import Library

    image = hummingbird(quant)
    names = Library.load().kernels()
    assert "scalar" in names
    runs = {name: host_run(image, name) for name in names}
    assert set(runs.values()) == {reference_run(image)}


def test_formats_differ_from_each_other(hummingbird: PackModel, repo_root: Path, tmp_path: Path) -> None:
    """Equal hashes mean something only if other numbers give others. f16 keeps hummingbird's weights as they are, and
    differs from f32 by the cache alone."""
    from colibri_sdk.convert import pack

    hashes = {quant: reference_run(hummingbird(quant)).logits_sha256 for quant in QUANTS}
    assert len(set(hashes.values())) == 4
    pack(repo_root / "models" / "hummingbird", tmp_path / "same.colibri", quant="f16", kv="f32")
    assert reference_run(tmp_path / "same.colibri").logits_sha256 == hashes["f32"]


CHOSEN: dict[str, dict[str, str]] = {
    "integer": {"quant": "experts=q4,head=i8,layers.1.attention=f16", "router": "integer", "kv": "q8"},
    "hash": {"quant": "q8", "router": "hash", "kv": "f32", "expert_map": "2:8"},
}


@pytest.fixture(scope="module", params=CHOSEN)
def chosen(request: pytest.FixtureRequest, repo_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from colibri_sdk.convert import pack

    image = tmp_path_factory.mktemp("chosen") / "chosen.colibri"
    pack(repo_root / "models" / "hummingbird", image, **CHOSEN[request.param])  # type: ignore[arg-type]
    return image


@each(BOARDS)
def test_what_packing_can_choose(chosen: Path, emulated: Callable[..., Any], place: Place) -> None:
    """Plans, routers, maps and the q8 cache."""
    device = emulated(place.board, chosen, **place.options)
    generation = device.generate(PROMPT, max_tokens=GENERATED, ignore_eos=True)
    ids = tuple(token.id for token in generation)
    assert Run(ids, generation.result.logits_sha256) == reference_run(chosen)


@each(PLACES)
@pytest.mark.parametrize("quant", QUANTS)
def test_board(hummingbird: PackModel, emulated: Callable[..., Any], place: Place, quant: str) -> None:
    image = hummingbird(quant)
    device = emulated(place.board, image, **place.options)
    generation = device.generate(PROMPT, max_tokens=GENERATED, ignore_eos=True)
    ids = tuple(token.id for token in generation)
    assert generation.result.finish_reason == "length"
    assert len(ids) == GENERATED
    assert Run(ids, generation.result.logits_sha256) == reference_run(image)


def test_the_hash_is_of_the_logits_that_the_device_sends(hummingbird: PackModel, emulated: Callable[..., Any]) -> None:
    image = hummingbird("q8")
    device = emulated("host", image)
    generation = device.generate(PROMPT, max_tokens=GENERATED, ignore_eos=True, trace_logits=True)
    rows = [token.logits for token in generation]
    assert len(rows) == GENERATED
    raw = b"".join(np.asarray(row, "<f4").tobytes() for row in rows)
    assert hashlib.sha256(raw).hexdigest() == generation.result.logits_sha256
    assert [int(np.argmax(row)) for row in rows] == list(generation.result.token_ids)


def test_a_context_that_slides(hummingbird: PackModel, emulated: Callable[..., Any]) -> None:
    """More tokens than there are positions, through the link, are those of the engine alone."""
    from colibri_sdk.engine import Engine, Library

    image, more = hummingbird("q8"), 600
    engine = Engine(Library.load(), image)
    wanted = engine.generate(engine.prompt(PROMPT), max_tokens=more, ignore_eos=True, slide=True, slide_keep=4)
    device = emulated("host", image)
    generation = device.generate(PROMPT, max_tokens=more, ignore_eos=True, slide=True, slide_keep=4)
    assert tuple(token.id for token in generation) == wanted.token_ids
    assert generation.result.logits_sha256 == wanted.logits_sha256
    assert generation.result.finish_reason == "length"
    ended = device.generate(PROMPT, max_tokens=more, ignore_eos=True)
    assert len(list(ended)) < more
    assert ended.result.finish_reason == "context"


@each(PLACES)
def test_sampling_with_a_seed(hummingbird: PackModel, emulated: Callable[..., Any], place: Place) -> None:
    """The sampler's integer generator draws the same tokens, too."""
    from colibri_sdk.engine import Engine, Library

    image = hummingbird("q8")
    sampling = {"temperature": 3.0, "top_k": 40, "top_p": 0.95, "repetition_penalty": 1.1, "seed": 20240229}
    engine = Engine(Library.load(), image, kernels="scalar")
    wanted = engine.generate(engine.prompt(PROMPT), max_tokens=24, ignore_eos=True, **sampling)
    device = emulated(place.board, image, **place.options)
    generation = device.generate(PROMPT, max_tokens=24, ignore_eos=True, **sampling)
    assert tuple(token.id for token in generation) == wanted.token_ids
    assert generation.result.logits_sha256 == wanted.logits_sha256
    assert wanted.token_ids != reference_run(image).token_ids[:24]
