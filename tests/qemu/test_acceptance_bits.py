# SPDX-License-Identifier: Apache-2.0
"""The same bits everywhere: SHA-256 over the raw logits of 32 generated tokens, for each number format."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from acceptance import GENERATED, PLACES, PROMPT, QUANTS, Place, Run, each, host_run, reference_run

PackModel = Callable[[str], Path]


@pytest.mark.parametrize("quant", QUANTS)
def test_every_kernel_set_of_this_machine(hummingbird: PackModel, quant: str) -> None:
    from colibri_sdk.engine import Library

    image = hummingbird(quant)
    names = Library.load().kernels()
    assert "scalar" in names
    runs = {name: host_run(image, name) for name in names}
    assert set(runs.values()) == {reference_run(image)}


def test_formats_differ_from_each_other(hummingbird: PackModel) -> None:
    """Equal hashes mean something only if other numbers give others."""
    assert len({reference_run(hummingbird(quant)).logits_sha256 for quant in QUANTS}) == len(QUANTS)


def test_f16_keeps_the_weights_of_hummingbird(hummingbird: PackModel) -> None:
    """Its checkpoint is in f16, so an f32 image computes the same numbers once the KV cache is the same, too."""
    from colibri_sdk.engine import Engine, Library

    engine = Engine(Library.load(), hummingbird("f32"), kernels="scalar", kv="f16")
    result = engine.generate(engine.prompt(PROMPT), max_tokens=GENERATED, ignore_eos=True)
    assert result.logits_sha256 == reference_run(hummingbird("f16")).logits_sha256


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
