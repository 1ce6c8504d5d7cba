# SPDX-License-Identifier: Apache-2.0
"""The independent forward pass agrees with transformers, and the engine agrees with it on shapes of every kind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import checkpoints
from colibri_sdk.convert import pack
from colibri_sdk.engine import Engine, Library
from colibri_sdk.image.reader import ImageFile
from parity.reference_mixtral import ReferenceMixtral, Trace


def test_reference_agrees_with_transformers_on_random_weights(repo_root: Path) -> None:
    directory = repo_root / "tests" / "parity" / "mixtral"
    known = json.loads((directory / "reference.json").read_text())
    model, trace = ReferenceMixtral(directory), Trace()
    logits = model.logits(known["input_ids"], trace)
    assert np.abs(logits[-4:] - np.array(known["logits_last4"])).max() < 2e-5
    for layer, routed in known["router"].items():
        assert trace.experts[int(layer)][-1] == routed["experts"]
        assert np.abs(np.array(trace.weights[int(layer)][-1]) - routed["weights"]).max() < 2e-6
    assert model.greedy(known["input_ids"], 16) == known["greedy_ids"]


def test_reference_agrees_with_transformers_on_hummingbird(repo_root: Path) -> None:
    directory = repo_root / "models" / "hummingbird"
    model = ReferenceMixtral(directory)
    for case in json.loads((directory / "reference.json").read_text())["cases"]:
        trace = Trace()
        logits = model.logits(case["prompt_ids"], trace)[-1]
        assert np.abs(logits[case["logit_ids"]] - np.array(case["logits_last_token"])).max() < 2e-5
        assert [layer[-1][0] for layer in trace.experts] == case["top1_experts_last_token"]
    assert model.greedy(case["prompt_ids"], 96, (1,)) == case["completion_ids"]


# What the two models that come with references do not vary: sizes that fill no tile and no block, one expert of three,
# all experts at once, one key/value head for all or one for each, heads of two dimensions, one layer, a tied head.
SHAPES: dict[str, dict[str, Any]] = {
    "odd sizes": {},
    "width of one": {"intermediate_size": 1},
    "hidden size below a block": {"hidden_size": 10, "head_dim": 4},
    "sizes just above a block": {"hidden_size": 33, "head_dim": 8, "intermediate_size": 65, "vocab_size": 57},
    "whole blocks": {"hidden_size": 64, "head_dim": 16, "intermediate_size": 96, "vocab_size": 64},
    "one expert chosen": {"num_experts_per_tok": 1},
    "all experts chosen": {"num_experts_per_tok": 3},
    "a single expert": {"num_local_experts": 1, "num_experts_per_tok": 1},
    "many experts": {"num_local_experts": 37, "num_experts_per_tok": 7, "intermediate_size": 8},
    "one key/value head": {"num_key_value_heads": 1},
    "as many key/value heads as heads": {"num_key_value_heads": 4},
    "one head": {"num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 24},
    "heads of two dimensions": {"head_dim": 2},
    "attention wider than the model": {"head_dim": 34},
    "one layer": {"num_hidden_layers": 1},
    "tied head": {"tie_word_embeddings": True},
    "large rotary base": {"rope_theta": 1e6},
    "large epsilon": {"rms_norm_eps": 0.1},
}
IDS = np.random.default_rng(9).integers(0, 50, 21).tolist()


@pytest.fixture(scope="module")
def library(host_library: Path) -> Library:
    return Library.load()


def loud(settings: dict[str, Any]) -> checkpoints.Tensors:
    """Weights that make a difference: with the small ones of a fresh model any mistake would drown in the residual."""
    weights = checkpoints.tensors(settings, seed=4)
    return {
        name: weight + np.float32(1) if "norm" in name else weight * np.float32(2) for name, weight in weights.items()
    }


@pytest.mark.parametrize("shape", SHAPES)
def test_f32_engine_agrees_with_the_reference(library: Library, tmp_path: Path, shape: str) -> None:
    settings = checkpoints.config(**SHAPES[shape])
    source = checkpoints.write(tmp_path / "m", settings, loud(settings))
    pack(source, tmp_path / "m.colibri", quant="f32", kv="f32")
    trace = Trace()
    wanted = ReferenceMixtral(source).logits(IDS, trace)
    for kernels in library.kernels():
        engine = Engine(library, tmp_path / "m.colibri", kernels=kernels, trace_routing=True)
        got = np.array([engine.prefill(IDS[:7]), *(engine.forward(one) for one in IDS[7:])])
        assert np.abs(got - wanted[6:]).max() < 1e-3 * max(1.0, float(np.abs(wanted).max()))
        for route in engine.routing:
            assert list(route.experts) == sorted(trace.experts[route.layer][route.position])


class SmallIntegers(ReferenceMixtral):
    """Rounds the inputs of products as docs/numeric-contract.md says: blocks of 32, scale amax / 127, half to even."""

    def product(self, x: Any, name: str) -> Any:
        padded = np.zeros((len(x), -(-x.shape[1] // 32) * 32))
        padded[:, : x.shape[1]] = x
        blocks = padded.reshape(len(x), -1, 32)
        scale = np.abs(blocks).max(-1, keepdims=True) / 127
        rounded = np.rint(blocks / np.where(scale == 0, 1, scale)) * scale
        return super().product(rounded.reshape(len(x), -1)[:, : x.shape[1]], name)


@pytest.mark.parametrize("quant", ["f16", "q8", "q4"])
@pytest.mark.parametrize("shape", SHAPES)
def test_quantised_engine_agrees_with_the_reference(library: Library, tmp_path: Path, shape: str, quant: str) -> None:
    """The reference gets the image's own weights and rounds activations as the engine does, but in float64. A value
    that lies between two integers may fall to the other side, and tip a close decision of a router: positions after
    such a one say nothing about the arithmetic and are left out, and the median error is looked at."""
    settings = checkpoints.config(**SHAPES[shape])
    source = checkpoints.write(tmp_path / "m", settings, loud(settings))
    pack(source, tmp_path / "m.colibri", quant=quant, kv="f32")
    reference = ReferenceMixtral(source) if quant == "f16" else SmallIntegers(source)
    with ImageFile(tmp_path / "m.colibri") as image:
        reference.tensors = {k: v.astype(np.float64) for k, v in checkpoints.image_weights(image).items()}
    trace = Trace()
    wanted = reference.logits(IDS, trace)
    engine = Engine(library, tmp_path / "m.colibri", trace_routing=True)
    got = np.array([engine.forward(one) for one in IDS])
    same = np.ones(len(IDS), bool)
    for route in engine.routing:
        if list(route.experts) != sorted(trace.experts[route.layer][route.position]):
            same[route.position :] = False
    assert same.sum() >= 15, "too many decisions tipped to say anything"
    error = np.abs(got - wanted)[same] / np.abs(wanted).max()
    assert np.median(error) < 1e-6 and error.max() < 0.02
