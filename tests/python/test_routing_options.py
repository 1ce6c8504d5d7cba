# SPDX-License-Identifier: Apache-2.0
"""Routers as packing may change them: what they choose then, by rules written a second time here."""

from __future__ import annotations

import json
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

import checkpoints
from colibri_sdk.convert import architectures, pack
from colibri_sdk.convert.description import ModelDescription, Router, TensorSource
from colibri_sdk.convert.routing import ExpertMap, IntegerScale, integer_scale, integer_table, reroute
from colibri_sdk.engine import Engine, Library
from colibri_sdk.engine.session import Route
from colibri_sdk.errors import CheckpointError, UsageError
from colibri_sdk.image.layout import GroupScore, RouterScore
from colibri_sdk.image.reader import ImageFile

PARITY = Path(__file__).resolve().parents[1] / "parity"
sys.path.insert(0, str(PARITY))
from reference_mixtral import Array, ReferenceMixtral, Trace  # noqa: E402

TINY = PARITY / "mixtral"
IDS = [int(one) for one in np.random.default_rng(3).integers(4, 256, 40)]


@pytest.fixture(scope="module")
def library(host_library: Path) -> Library:
    return Library.load()


def routes(library: Library, image: Path, ids: list[int]) -> list[Route]:
    engine = Engine(library, image, trace_routing=True)
    engine.prefill(ids)
    return engine.routing


class RouterLogits(ReferenceMixtral):
    """The reference that also keeps its routers' logits, [layer][position][expert]."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.router_logits: list[Array] = []

    def _experts(self, prefix: str, x: Array, trace: Trace | None) -> Array:
        self.router_logits.append(x @ self.tensors[f"{prefix}block_sparse_moe.gate.weight"].T)
        return super()._experts(prefix, x, trace)


# --------------------------------------------------------------------------------------------------------- integers


@given(st.none() | st.floats(0, 1e6))
def test_scales_cover_what_was_seen(distance: float | None) -> None:
    scale = integer_scale(distance)
    vanishing = np.log(65536)
    assert scale.range >= min(vanishing, vanishing if distance is None else distance) * (1 - 1e-6)
    assert 8192 <= scale.steps < 2 * 8192 + 1e-3 and float(np.float32(scale.steps)) == scale.steps
    assert 256 * scale.steps < 1 << 22  # the engine counts up to 2^22 steps
    table = integer_table(scale)
    assert (
        table.shape == (256,) and table[0] == 65536 and (np.diff(table) <= 0).all() and (table == np.rint(table)).all()
    )


def integer_rule(logits: Array, scale: IntegerScale, top_k: int) -> tuple[list[int], list[float]]:
    """image.h's COL_SCORE_INTEGER for one token, in Python's integers."""
    table = [round(65536 * float(np.exp(-i * 2**scale.shift / scale.steps))) for i in range(256)]
    below = [round(float(max(logits) - one) * scale.steps) for one in logits]
    chosen = sorted(sorted(range(len(below)), key=lambda e: (below[e], e))[:top_k])
    shares = []
    for e in chosen:
        i, part = divmod(below[e], 2**scale.shift)
        entry = table[255] if i >= 255 else (table[i] * (2**scale.shift - part) + table[i + 1] * part) / 2**scale.shift
        shares.append(int(entry + 0.5))
    return chosen, [share * 65536 // sum(shares) / 65536 for share in shares]


@pytest.mark.parametrize("steep", [1.0, 40.0, 4000.0])
def test_integer_routers_follow_their_rule(library: Library, tmp_path: Path, steep: float) -> None:
    """With the checkpoint's own router, whose logits lie close together, and with one that leaves the table's range."""
    source = shutil.copytree(TINY, tmp_path / "m")
    weights = load_file(source / "model.safetensors")
    for name in weights:
        if name.endswith("gate.weight"):
            weights[name] = weights[name] * np.float32(steep)
    save_file(weights, source / "model.safetensors")
    pack(source, tmp_path / "m.colibri", quant="f32", router="integer")
    with ImageFile(tmp_path / "m.colibri") as image:
        scales = [
            IntegerScale(float(layer["router"]["integer_scale"]), int(layer["router"]["integer_shift"]))
            for layer in image.layers
        ]
        assert image.card["router"] == "integer"
        table = image.resident_tensor(image.layers[0]["router"]["integer_table"])
    assert np.array_equal(table[0], integer_table(scales[0]))
    reference = RouterLogits(source)
    reference.logits(IDS)
    different = 0
    for route in routes(library, tmp_path / "m.colibri", IDS):
        wanted, weight = integer_rule(reference.router_logits[route.layer][route.position], scales[route.layer], 2)
        # A weight of 0 takes no part, whichever expert has it: beyond 2^22 steps all are equally far away.
        different += list(route.experts) != wanted and min(weight) > 0
        if list(route.experts) == wanted:
            # The reference is in float64: the last bit of a logit moves its step at most by one.
            assert np.allclose(route.weights, weight, rtol=0, atol=3 / scales[route.layer].steps)
            assert all(one * 65536 == int(one * 65536) for one in route.weights)
    assert different <= 1


def test_a_softmax_that_is_normalised_is_a_softmax_over_the_chosen(library: Library, tmp_path: Path) -> None:
    """Qwen3-MoE scores all experts and normalises: the integer router gives these weights."""
    ids = json.loads((PARITY / "qwen3_moe" / "reference.json").read_text())["input_ids"]
    found = []
    for mode in ("float", "integer"):
        pack(PARITY / "qwen3_moe", tmp_path / "q.colibri", quant="f32", router=mode)
        found.append(routes(library, tmp_path / "q.colibri", ids))
    for wanted, got in zip(*found, strict=True):
        assert wanted.experts == got.experts and np.allclose(wanted.weights, got.weights, atol=2e-4)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("qwen2_moe", "softmax over all experts"),
        ("deepseek_v3", "sigmoid scores"),
        ("glm4_moe", "sigmoid scores"),
    ],
)
def test_routers_without_an_integer_form_are_refused(tmp_path: Path, name: str, reason: str) -> None:
    with pytest.raises(UsageError, match=rf"--router integer: the router of layer \d+ has .*{reason}"):
        pack(PARITY / name, tmp_path / "m.colibri", router="integer")
    assert not list(tmp_path.iterdir())


def described() -> ModelDescription:
    weights = checkpoints.tensors(checkpoints.config())
    return architectures.describe(checkpoints.config(), frozenset(weights))


def with_router(**changes: object) -> ModelDescription:
    what = described()
    first = what.layers[0]
    assert isinstance(first.router, Router)
    return replace(what, layers=(replace(first, router=replace(first.router, **changes)), *what.layers[1:]))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"groups": 3, "top_groups": 2, "group_score": GroupScore.MAX}, "layer 0 has 3 groups"),
        ({"correction": TensorSource.vector("bias", 3)}, "layer 0 has a correction"),
        ({"score": RouterScore.SOFTMAX}, "layer 0 has weights that are a softmax over all"),
    ],
)
def test_what_integers_cannot_do_is_named(changes: dict[str, object], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        reroute(with_router(**changes), "integer")


def test_models_without_routers_have_nothing_to_choose(tmp_path: Path) -> None:
    for options in ({"router": "integer"}, {"router": "hash"}, {"expert_map": "2:8"}):
        with pytest.raises(UsageError, match="the model has no router"):
            pack(PARITY / "llama", tmp_path / "m.colibri", **options)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="unknown router mode 'fast'"):
        pack(TINY, tmp_path / "m.colibri", router="fast")


# ------------------------------------------------------------------------------------------------------------- hash


def murmur(id_: int, choice: int) -> int:
    """The finaliser of MurmurHash3 over id and choice, as image.h says."""
    h = (id_ + choice * 0x9E3779B9) % 2**32
    h = (h ^ h >> 16) * 0x85EBCA6B % 2**32
    h = (h ^ h >> 13) * 0xC2B2AE35 % 2**32
    return h ^ h >> 16


@pytest.mark.parametrize("has_router", [True, False])
def test_hash_routing_follows_its_rule(library: Library, tmp_path: Path, has_router: bool) -> None:
    """From a checkpoint with a router, which is left out, and from one that never had any."""
    source = shutil.copytree(TINY, tmp_path / "m")
    if not has_router:
        weights = load_file(source / "model.safetensors")
        save_file({k: v for k, v in weights.items() if "gate.weight" not in k}, source / "model.safetensors")
        with pytest.raises(CheckpointError, match="gate"):
            pack(source, tmp_path / "m.colibri", quant="f32")
    report = pack(source, tmp_path / "m.colibri", quant="f32", router="hash")
    assert any("trained so" in note for note in report.notes)
    found = routes(library, tmp_path / "m.colibri", IDS)
    assert len(found) == 2 * len(IDS)
    for route in found:
        wanted: list[int] = []
        for choice in range(2):
            expert = (murmur(IDS[route.position], choice) % 4 ^ route.layer) % 4
            while expert in wanted:
                expert = (expert + 1) % 4
            wanted.append(expert)
        assert list(route.experts) == sorted(wanted) and route.weights == (0.5, 0.5)


@pytest.mark.parametrize("has_router", [True, False])
def test_hash_routing_of_weights_as_they_are_stored(library: Library, tmp_path: Path, has_router: bool) -> None:
    """The stored formats are looked up without the router, which need not be there."""
    source = shutil.copytree(TINY, tmp_path / "m")
    weights = load_file(source / "model.safetensors")
    if not has_router:
        weights = {name: array for name, array in weights.items() if "gate.weight" not in name}
    halves = {name: array.astype(np.float16) if array.ndim > 1 else array for name, array in weights.items()}
    save_file(halves, source / "model.safetensors")
    kept = pack(source, tmp_path / "kept.colibri", quant="keep", router="hash")
    assert kept.plan == "f16"
    assert kept.image_id == pack(source, tmp_path / "f16.colibri", quant="f16", router="hash").image_id
    assert {route.weights for route in routes(library, tmp_path / "kept.colibri", IDS)} == {(0.5, 0.5)}
    with pytest.raises(UsageError, match="--router hash: the model has no router"):
        pack(PARITY / "llama", tmp_path / "m.colibri", quant="keep", router="hash")
    assert not (tmp_path / "m.colibri").exists()


# -------------------------------------------------------------------------------------------------------------- map


def test_the_map_opens_experts_with_the_prompt(library: Library, tmp_path: Path) -> None:
    pack(TINY, tmp_path / "m.colibri", quant="f32", expert_map="2:8")
    plain = tmp_path / "plain.colibri"
    pack(TINY, plain, quant="f32")
    for count in (1, 7, 8, 15, 16, 40):
        in_use = min(4, 2 + count // 8)
        found = {expert for route in routes(library, tmp_path / "m.colibri", IDS[:count]) for expert in route.experts}
        assert found <= set(range(in_use))
        if in_use == 4:
            assert routes(library, tmp_path / "m.colibri", IDS[:count]) == routes(library, plain, IDS[:count])


@given(st.text(max_size=20) | st.from_regex(re.compile(r"-?[0-9]{1,12}:-?[0-9]{1,12}", re.ASCII), fullmatch=True))
def test_maps_are_two_positive_numbers(text: str) -> None:
    try:
        found = ExpertMap.parse(text)
    except UsageError as error:
        assert "FIRST:TOKENS" in str(error)
    else:
        first, tokens = text.strip().split(":")
        assert found == ExpertMap(int(first), int(tokens)) and found.first > 0 and found.tokens > 0


@pytest.mark.parametrize("expert_map", ["1:8", "5:8"])
def test_maps_leave_enough_experts(tmp_path: Path, expert_map: str) -> None:
    with pytest.raises(UsageError, match=r"layer 0, which has 4 and chooses 2\nStart with 2 to 4"):
        pack(TINY, tmp_path / "m.colibri", expert_map=expert_map)


def test_maps_do_not_count_across_groups(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="groups of experts"):
        pack(PARITY / "deepseek_v3", tmp_path / "m.colibri", expert_map="8:8")
