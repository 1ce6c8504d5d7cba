# SPDX-License-Identifier: Apache-2.0
"""Plans: what is written is what is packed, and what is wrongly written is refused by its entry."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import checkpoints
from colibri_sdk.convert import QUANTISATIONS, pack
from colibri_sdk.convert.description import Role
from colibri_sdk.convert.quantisation import ENCODINGS, LAYER_ROLES, ROLES, Plan, default_kv, parse
from colibri_sdk.convert.quantize import min_max_scale, pack_tensor
from colibri_sdk.errors import CheckpointError, UsageError
from colibri_sdk.image.layout import TILE_Q8, Format, KvFormat
from colibri_sdk.image.reader import ImageFile
from colibri_sdk.image.tensors import unpack_tensor

LAYERS = 6
NAMES = st.sampled_from(list(ENCODINGS))


@st.composite
def entries(draw: st.DrawFn) -> list[str]:
    """The entries of a right plan, in any order."""
    found = [draw(NAMES)] if draw(st.booleans()) else []
    for role in draw(st.lists(st.sampled_from(ROLES), unique=True)):
        found.append(f"{role.value}={draw(NAMES)}")
    for role in draw(st.lists(st.sampled_from(LAYER_ROLES), unique=True)):
        cuts = draw(st.lists(st.integers(0, LAYERS - 1), min_size=2, max_size=4, unique=True).map(sorted))
        for first, after in zip(cuts[::2], cuts[1::2], strict=False):
            last = draw(st.integers(first, after - 1))
            span = str(first) if first == last and draw(st.booleans()) else f"{first}-{last}"
            found.append(f"layers.{span}.{role.value}={draw(NAMES)}")
    return draw(st.permutations(found)) or ["q8"]


def told(plan: list[str], role: str, layer: int) -> str:
    """What a plan's entries say of a role in a layer, by their own words."""
    default, of_role, of_layer = "q8", None, None
    for entry in plan:
        left, _, fmt = entry.rpartition("=")
        if not left:
            default = fmt
        elif left == role:
            of_role = fmt
        elif left.startswith("layers.") and left.endswith(f".{role}"):
            first, _, last = left.split(".")[1].partition("-")
            if int(first) <= layer <= int(last or first):
                of_layer = fmt
    by_default = {"f16": "f16"}.get(default, "f32") if role == "router" else default
    return of_layer or of_role or by_default


@settings(max_examples=200, deadline=None)
@given(entries())
def test_a_plan_is_what_its_entries_say(written: list[str]) -> None:
    plan = parse(",".join(written))
    again = parse(plan.text)
    for role in ROLES:
        for layer in range(LAYERS):
            assert plan.encoding(role, layer).name == told(written, role.value, layer)
            assert again.encoding(role, layer) == plan.encoding(role, layer)
    assert plan.encoding(Role.VECTOR, 0).format is Format.F32_VECTOR
    assert again.text == plan.text and len(plan.name.encode()) <= 23 and len(plan.file_name) < 64
    assert not set(plan.file_name) & set("/\\,: \0")


@settings(max_examples=100, deadline=None)
@given(entries(), entries())
def test_other_plans_have_other_file_names(one: list[str], other: list[str]) -> None:
    a, b = parse(",".join(one)), parse(",".join(other))
    assert (a.file_name == b.file_name) == (a.text == b.text)


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=40) | st.text(alphabet="layers.experts=q48,-0f ", max_size=40))
def test_any_text_is_a_plan_or_a_usage_error(text: str) -> None:
    try:
        assert isinstance(parse(text), Plan)
    except UsageError as error:
        assert "--quant entry" in str(error) and "router" in error.hint and "q4" in error.hint


@pytest.mark.parametrize(
    ("text", "entry", "reason"),
    [
        ("q5", "'q5'", "no format 'q5'"),
        ("", "''", "empty"),
        ("q8,,experts=q4", "''", "empty"),
        ("experts=q5", "'experts=q5'", "no format 'q5'"),
        ("expert=q4", "'expert=q4'", "no role 'expert'"),
        ("vector=q4", "'vector=q4'", "no role 'vector'"),
        ("EXPERTS=Q4", "'EXPERTS=Q4'", "no format"),
        ("q8,q4", "'q4'", "q8 already"),
        ("experts=q4,experts=q4", "'experts=q4'", "experts is q4 already"),
        ("layers.1.embedding=q4", "'layers.1.embedding=q4'", "belongs to no layer"),
        ("layers.3-1.experts=q4", "'layers.3-1.experts=q4'", "no layers"),
        ("layers.0-2.experts=q4,layers.2.experts=q8", "'layers.2.experts=q8'", "same layer"),
        ("layers.99999.experts=q4", "'layers.99999.experts=q4'", "no layers"),
        ("layers.-1.experts=q4", "'layers.-1.experts=q4'", "no role"),
        ("layers.٣.experts=q4", "'layers.٣.experts=q4'", "no role"),
        ("layers." + "9" * 5000 + ".experts=q4", "'layers.999", "no role"),
        ("experts==q4", "'experts==q4'", "no format '=q4'"),
        ("experts=", "'experts='", "no format ''"),
    ],
)
def test_wrong_entries_are_named(text: str, entry: str, reason: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(text)
    message = str(caught.value)
    assert entry in message and reason in message and len(message) < 800


def formats(path: Path) -> dict[str, list[Format]]:
    """The formats that an image's structs state, by role: of the whole model, or by layer."""

    def of(tensor: Any) -> Format:
        return Format(int(tensor["format"]))

    with ImageFile(path) as image:
        layers = image.layers
        return {
            "embedding": [of(image.model["embedding"])],
            "head": [of(image.model["head"]["weight"])],
            "attention": [of(layer["attention"][name]["weight"]) for layer in layers for name in ("query", "output")],
            "router": [of(layer["router"]["gate"]["weight"]) for layer in layers],
            "experts": [of(layer["expert"][name]["weight"]) for layer in layers for name in ("gate", "up", "down")],
        }


def test_each_role_is_packed_as_planned(tmp_path: Path) -> None:
    source = checkpoints.write(tmp_path / "m")
    out = tmp_path / "m.colibri"
    written = "head=f16,attention=q8,router=f16,experts=q4,embedding=f32,layers.1.experts=i8"
    report = pack(source, out, quant=written)
    assert formats(out) == {
        "embedding": [Format.F32],
        "head": [Format.F16],
        "attention": [Format.Q8] * 4,
        "router": [Format.F16] * 2,
        "experts": [Format.Q4] * 3 + [Format.Q8] * 3,
    }
    with ImageFile(out) as image:
        assert image.quantisation == report.quantisation == "mixed"
        assert image.card["plan"] == report.plan == parse(written).text
    pack(source, out, quant="q8,experts=q4")
    with ImageFile(out) as image:
        assert image.quantisation == image.card["plan"] == "q8,experts=q4"


@pytest.mark.parametrize("quant", QUANTISATIONS)
def test_short_names_keep_their_meaning(tmp_path: Path, quant: str) -> None:
    pack(checkpoints.write(tmp_path / "m"), tmp_path / "m.colibri", quant=quant)
    found = formats(tmp_path / "m.colibri")
    expected = ENCODINGS[quant].format
    assert found["router"] == [Format.F16 if quant == "f16" else Format.F32] * 2
    assert {fmt for role, each in found.items() if role != "router" for fmt in each} == {expected}


def test_layers_that_are_not_there_are_refused(tmp_path: Path) -> None:
    source = checkpoints.write(tmp_path / "m")
    with pytest.raises(UsageError, match=r"'layers\.0-2\.experts=q4': the model has 2 layers"):
        pack(source, tmp_path / "m.colibri", quant="layers.0-2.experts=q4")
    assert not (tmp_path / "m.colibri").exists()


def test_kv_follows_the_plan(tmp_path: Path) -> None:
    """f32 means f32 all through; everything else halves the cache, whose rounding is far below the weights'."""
    source = checkpoints.write(tmp_path / "m")
    assert {name: default_kv(plan) for name, plan in QUANTISATIONS.items()} == {
        "q8": "f16", "q4": "f16", "i8": "f16", "f16": "f16", "f32": "f32",
    }  # fmt: skip
    for quant, kv, expected in (("f32", None, "f32"), ("q8", None, "f16"), ("f32", "q8", "q8"), ("q4", "f32", "f32")):
        assert pack(source, tmp_path / "m.colibri", quant=quant, kv=kv).kv_format == expected
        with ImageFile(tmp_path / "m.colibri") as image:
            assert KvFormat(int(image.model["kv_format"])).name.lower() == expected == image.card["kv_format"]


# ------------------------------------------------------------------------------------------ int8 with one scale


@settings(max_examples=100, deadline=None)
@given(
    arrays.arrays(
        np.float32,
        st.tuples(st.integers(1, 20), st.integers(1, 70)),
        elements=st.floats(-1e5, 1e5, width=32, allow_nan=False),
        fill=st.nothing(),
    )
)
def test_i8_errs_by_at_most_half_its_one_scale(matrix: np.ndarray[Any, np.dtype[np.float32]]) -> None:
    scale = min_max_scale([matrix[:8], matrix[8:]] if len(matrix) > 8 else [matrix], "t")
    data = pack_tensor(matrix, Format.Q8, "t", scale)
    back = unpack_tensor(data, Format.Q8, *matrix.shape)
    assert (np.abs(back.astype(np.float64) - matrix) <= float(scale) * (0.5 + 2.0**-14)).all()
    tiles = np.frombuffer(data, TILE_Q8)
    assert set(np.unique(tiles["scale"])) <= {np.float16(0), scale}
    used = matrix.shape[0] * -(-matrix.shape[1] // 32)
    assert (tiles["scale"] != 0).sum() == (used if scale else 0)


def test_i8_scale_comes_from_minimum_and_maximum() -> None:
    """-128 reaches further down than 127 up, and a matrix whose minimum is its largest weight makes use of it."""
    low = np.array([[-128.0, 3.0, 100.0]], np.float32)
    high = np.array([[-100.0, 3.0, 127.0]], np.float32)
    for matrix in (low, high):
        assert min_max_scale([matrix], "t") == 1
        assert np.array_equal(
            unpack_tensor(pack_tensor(matrix, Format.Q8, "t", np.float16(1)), Format.Q8, 1, 3), matrix
        )
    assert min_max_scale([np.zeros((3, 4), np.float32)], "t") == 0


def test_i8_names_what_does_not_fit() -> None:
    with pytest.raises(CheckpointError, match=r"tensor some\.weight has a weight of magnitude 9e\+06, which i8"):
        min_max_scale([np.full((1, 4), 9e6, np.float32)], "some.weight")


def test_each_expert_has_its_own_scale(tmp_path: Path) -> None:
    weights = checkpoints.tensors(checkpoints.config())
    for expert in range(3):
        weights[f"model.layers.0.block_sparse_moe.experts.{expert}.w1.weight"] *= np.float32(2.0**expert)
    pack(checkpoints.write(tmp_path / "m", weights=weights), tmp_path / "m.colibri", quant="experts=i8")
    with ImageFile(tmp_path / "m.colibri") as image:
        for expert in range(3):
            wanted = weights[f"model.layers.0.block_sparse_moe.experts.{expert}.w1.weight"]
            got = image.expert_tensor(0, expert, "gate")
            step = max(wanted.max() / 127, -wanted.min() / 128)
            assert 0 < np.abs(got - wanted).max() <= step * 0.501
            assert np.abs(got / step - np.rint(got / step)).max() < 0.07  # binary16 rounds the scale itself
