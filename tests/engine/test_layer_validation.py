# SPDX-License-Identifier: Apache-2.0
"""Descriptions that lie: every field of every struct of the model and its layers is checked, and by its own check.

Checksums are right throughout, so only the check of the field can find a lie. What is possible is written down here
once more, by the rules of docs/image-format.md, and must be accepted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from colibri_sdk.engine import Library
from colibri_sdk.image.layout import (
    LAYER,
    MAX_TOP_K,
    MODEL,
    TENSOR,
    Format,
    QkNorm,
    RouterScore,
    SectionKind,
    member,
    tensor_bytes,
    tensor_paths,
)
from colibri_sdk.status import Status
from forge import Forge

Tiny = Callable[[str, str], Path]
Field = tuple[str, ...]

# Between them these have every part of the description: grouped and latent attention, a low-rank query, biases, both
# norms of queries and keys, sinks and windows, groups and corrections, shared blocks with and without a gate, layers
# without a router, the clamped activation.
MODELS = ["mixtral", "deepseek_v3", "gpt_oss", "qwen2_moe", "olmoe", "glm4_moe"]

# As 32 bits: of a float, the third and fourth are NaN and minus zero, the first ones zero and the smallest numbers.
NONSENSE = [0, 1, 3, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF]
POSITIVE_FLOATS = {1, 3}
ZERO_FLOATS = {0, 0x80000000}

REFUSALS = {
    Status.E_IMAGE_SECTION,
    Status.E_IMAGE_DIMENSION,
    Status.E_IMAGE_NUMBER,
    Status.E_IMAGE_EXPERT,
    Status.E_IMAGE_UNSUPPORTED,
    Status.E_IMAGE_TOKENIZER,
}


@pytest.fixture(scope="module")
def library(host_library: Path) -> Library:
    return Library.load(host_library)


def scalar_paths(dtype: np.dtype[Any]) -> Iterator[Field]:
    """The fields of a struct that are one number each, those of structs inside included, those of tensors not."""
    for name in dtype.names or ():
        kind = dtype[name]
        if kind.names and kind != TENSOR:
            yield from ((name, *rest) for rest in scalar_paths(kind))
        elif kind.kind in "uf" and not kind.shape:
            yield (name,)


def test_the_walk_finds_every_field() -> None:
    """By hand: struct col_attention has 13 numbers, col_router 13, col_layer 7 of its own."""
    assert len(list(scalar_paths(LAYER))) == 13 + 13 + 7
    assert len(list(tensor_paths(LAYER))) == 17 + 4 + 2 + 2 * 6
    assert len(list(tensor_paths(MODEL))) == 4


def possible(layer: Any, path: Field, value: int) -> bool:
    """Whether this layer would be a right one with this value, given as 32 bits, in this field."""
    router = layer["router"]
    experts, integer = int(router["experts"]), int(router["score"]) == RouterScore.INTEGER
    clamped, latent = float(layer["limit"]) > 0, int(layer["attention"]["absorb"]["format"]) > 0
    if path[0] == "router" and experts == 0:
        return False  # all of it must be zero, and it is
    grouped = int(router["groups"]) > 1
    open_experts = experts // max(int(router["groups"]), 1) * int(router["top_groups"])
    fits = value <= int(router["groups"]) and experts // int(router["groups"] or 1) * value >= int(router["top_k"])
    return {
        ("attention", "window"): True,
        ("attention", "rotary_dim"): value == 0 and not latent,
        ("attention", "scale"): value in POSITIVE_FLOATS,
        ("attention", "norm_eps"): value in POSITIVE_FLOATS,
        ("attention", "qk_norm_eps"): value in POSITIVE_FLOATS,
        ("attention", "clip"): value in POSITIVE_FLOATS | ZERO_FLOATS,
        ("router", "top_k"): 1 <= value <= min(open_experts, MAX_TOP_K),
        ("router", "score"): value in {RouterScore.LOGIT, RouterScore.SOFTMAX, RouterScore.SIGMOID},
        ("router", "normalise"): value in {0, 1},
        ("router", "scale"): value in POSITIVE_FLOATS,
        ("router", "smallest_sum"): value in POSITIVE_FLOATS | ZERO_FLOATS,
        ("router", "top_groups"): value >= 1 and fits,
        ("router", "group_score"): grouped and value in {1, 2},
        ("router", "integer_scale"): value in (POSITIVE_FLOATS if integer else ZERO_FLOATS),
        ("limit",): value in (POSITIVE_FLOATS if clamped else ZERO_FLOATS),
        ("alpha",): value in (POSITIVE_FLOATS if clamped else ZERO_FLOATS),
    }.get(path, False)


def set_bits(record: Any, path: Field, value: int) -> bool:
    """Writes 32 (or, in a wider field, 64) bits; False where they are there already."""
    owner, name = member(record, path[:-1]), path[-1]
    field = owner[name]
    bits = field.view(f"<u{field.dtype.itemsize}")
    if int(bits[0]) == value:
        return False
    bits[0] = value
    return True


@pytest.mark.parametrize("name", MODELS)
def test_layer_fields(library: Library, tiny: Tiny, name: str) -> None:
    image = tiny(name, "q8")
    wrong = []
    for index in range(len(Forge(image).layers)):
        for path in scalar_paths(LAYER):
            for value in NONSENSE:
                forge = Forge(image)
                before = forge.layers[index].copy()
                if not set_bits(forge.layers[index : index + 1], path, value):
                    continue
                forge.seal()
                status, where = forge.verdict(library)
                good = status == Status.OK if possible(before, path, value) else status in REFUSALS and where
                if not good:
                    wrong.append((index, ".".join(path), hex(value), status, where))
    assert wrong == []


@pytest.mark.parametrize("value", NONSENSE)
@pytest.mark.parametrize("path", list(scalar_paths(MODEL)), ids=".".join)
def test_model_fields(library: Library, hummingbird: Callable[[str], Path], path: Field, value: int) -> None:
    forge = Forge(hummingbird("q8"))
    if not set_bits(forge.model, path, value):
        pytest.skip("the right value")
    forge.seal()
    status, where = forge.verdict(library)
    if (path[0], value) in {("eos_count", 3), ("kv_format", 1), ("kv_format", 3), ("norm_eps", 1), ("norm_eps", 3)}:
        assert status == Status.OK
    else:
        assert status in REFUSALS and where


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, -1.0])
@pytest.mark.parametrize(
    "path", [path for path in scalar_paths(LAYER) if member(np.zeros(1, LAYER), path).dtype.kind == "f"], ids=".".join
)
def test_floats_of_a_layer(library: Library, tiny: Tiny, path: Field, value: float) -> None:
    """In the last layers of two models: one has the clamped activation, both a router."""
    for name in ("gpt_oss", "glm4_moe"):
        forge = Forge(tiny(name, "q8"))
        last = forge.layers[-1:]
        member(last, path[:-1])[path[-1]] = value
        forge.seal()
        assert forge.verdict(library)[0] == Status.E_IMAGE_NUMBER


# ------------------------------------------------------------------------------------------------------------- tensors


TITLES = {
    ("attention", "norm"): "attention norm",
    ("norm",): "expert norm",
    ("router", "gate"): "router",
    ("router", "correction"): "router correction",
}


def title(path: Field) -> str:
    """What the engine calls the tensor."""
    path = path[:-1] if path[-1] in {"weight", "bias"} else path
    return TITLES.get(path, path[-1].replace("_", " "))


LIES = [1, 7, 2**31, 2**32 - 1, 2**63, 2**64 - 64]


@pytest.mark.parametrize("part", list(TENSOR.names or ()))
@pytest.mark.parametrize("name", [*MODELS, "deepseek_v2"])
def test_tensor_fields(library: Library, tiny: Tiny, name: str, part: str) -> None:
    """Every tensor of the model and of each layer, also those that do not exist: a wrong value names the tensor."""
    image = tiny(name, "q8")
    wrong = []
    records = [("model", 0, MODEL), *(("layers", index, LAYER) for index in range(len(Forge(image).layers)))]
    for struct, index, dtype in records:
        for path in tensor_paths(dtype):
            for value in LIES:
                forge = Forge(image)
                entry = member(getattr(forge, struct)[index : index + 1], path)
                if value >= 2 ** (8 * entry[part].dtype.itemsize) or int(entry[part][0]) == value:
                    continue
                absent = int(entry["format"][0]) == 0
                entry[part] = value
                forge.seal()
                status, where = forge.verdict(library)
                if status not in REFUSALS or where not in expected(path, part, absent):
                    wrong.append((struct, index, ".".join(path), part, value, status, where))
    assert wrong == []


def expected(path: Field, part: str, absent: bool) -> set[str]:
    """Where a lie about this tensor may be found."""
    if absent and path[0] == "router":
        return {title(path), "router"}  # a layer without experts has no router at all
    if path == ("attention", "absorb") and absent:
        # Whether it exists makes the layer latent, which is then wrong in many ways.
        return {"kv_heads", "rotary_dim", "value_dim", "output_dim", "query", "value", "key", "absorb"}
    if path == ("attention", "query_down", "weight"):
        return {"query down", "query down norm", "query"}  # its rows are the width of these
    if path == ("shared_gate",) and absent:
        return {"shared gate"}
    return {title(path)}


def entry_of(layer: Any, path: Field, hidden: int) -> Any:
    """An entry for a tensor that the layer does not have, of the right shape and in bytes that are there."""
    a = layer["attention"]
    heads, kv_heads, dim = int(a["heads"]), int(a["kv_heads"]), int(a["head_dim"])
    experts, rank = int(layer["router"]["experts"]) or 8, int(a["query_down"]["weight"]["rows"]) or 8
    width = int(layer["expert_width" if path[0] == "expert" else "shared_width"]) or 8
    full = int(a["qk_norm"]) == QkNorm.FULL
    matrices = {
        ("attention", "query_down"): (rank, hidden),
        ("attention", "value"): (kv_heads * int(a["value_dim"]), hidden),
        ("attention", "absorb"): (heads * int(a["value_dim"]), dim - int(a["rotary_dim"])),
        ("attention", "expand"): (heads * int(a["output_dim"]), int(a["value_dim"])),
        (path[0], "gate"): (experts if path[0] == "router" else width, hidden),
        (path[0], "up"): (width, hidden),
        (path[0], "down"): (hidden, width),
        ("attention", "query"): (heads * int(a["query_dim"]), hidden),
        ("attention", "key"): (kv_heads * dim, hidden),
        ("attention", "output"): (hidden, heads * int(a["output_dim"])),
    }
    vectors = {
        ("attention", "query_down_norm"): rank,
        ("attention", "query_norm"): heads * dim if full else dim,
        ("attention", "key_norm"): kv_heads * dim if full else dim,
        ("attention", "sinks"): heads,
        ("router", "correction"): experts,
        ("router", "integer_table"): 256,
    }
    entry = np.zeros((), TENSOR)
    if path in vectors or path[-1] == "bias":
        cols = vectors[path] if path in vectors else matrices[path[:-1]][0]
        entry["rows"], entry["cols"], entry["format"] = 1, cols, Format.F32_VECTOR
    else:
        rows, cols = (1, hidden) if path == ("shared_gate",) else matrices[path[:-1] if path[-1] == "weight" else path]
        entry["rows"], entry["cols"], entry["format"] = rows, cols, Format.F32
    entry["bytes"] = tensor_bytes(Format(int(entry["format"])), int(entry["rows"]), int(entry["cols"]))
    return entry


def optional(layer: Any, path: Field) -> bool:
    """Whether the layer is a right one with and without this tensor."""
    owner = path[:-1] if path[-1] == "bias" else path
    if path[-1] == "bias":
        return bool(member(layer, (*owner, "weight"))["format"])
    has_experts = bool(layer["router"]["experts"])
    return {
        ("attention", "sinks"): True,
        ("router", "correction"): has_experts,
        ("shared_gate",): bool(layer["shared_width"]),
    }.get(path, False)


@pytest.mark.parametrize("name", [*MODELS, "deepseek_v2"])
def test_tensors_that_come_and_go(library: Library, tiny: Tiny, name: str) -> None:
    """A tensor that exists is taken away, one that does not is made: right only where the format says "may"."""
    image = tiny(name, "f32")
    wrong = []
    hidden = int(Forge(image).model["hidden"][0])
    for index in range(len(Forge(image).layers)):
        for path in tensor_paths(LAYER):
            forge = Forge(image)
            layer = forge.layers[index : index + 1]
            entry = member(layer, path)
            there = bool(entry["format"][0])
            entry[...] = np.zeros((), TENSOR) if there else entry_of(layer[0], path, hidden)
            forge.seal()
            status, where = forge.verdict(library)
            good = status == Status.OK if optional(layer[0], path) else status in REFUSALS and where
            if not good:
                wrong.append((index, ".".join(path), there, status, where))
    assert wrong == []


# ------------------------------------------------------------------------------------------- descriptions as a whole

Changes = dict[str, Any]

# Of the last layer of deepseek_v3: 8 experts in 4 groups, of which 2 are open, 3 experts chosen.
ROUTERS: dict[str, tuple[Changes, int]] = {
    "groups that do not divide the experts": ({"groups": 3}, Status.E_IMAGE_DIMENSION),
    "more chosen than open groups have": ({"top_groups": 1}, Status.E_IMAGE_DIMENSION),
    "groups of one, worth the sum of two": ({"groups": 8, "top_groups": 4}, Status.E_IMAGE_DIMENSION),
    "groups of one, worth their best": ({"groups": 8, "top_groups": 4, "group_score": 1}, Status.OK),
    "no groups but a worth": ({"groups": 1, "top_groups": 1}, Status.E_IMAGE_DIMENSION),
    "no groups": ({"groups": 1, "top_groups": 1, "group_score": 0}, Status.OK),
    "a map with groups": ({"map_first": 4, "map_tokens": 8}, Status.E_IMAGE_DIMENSION),
    "a map": ({"groups": 1, "top_groups": 1, "group_score": 0, "map_first": 3, "map_tokens": 1}, Status.OK),
    "a map too small for the choice": (
        {"groups": 1, "top_groups": 1, "group_score": 0, "map_first": 2, "map_tokens": 8},
        Status.E_IMAGE_DIMENSION,
    ),
    "a map beyond the experts": (
        {"groups": 1, "top_groups": 1, "group_score": 0, "map_first": 9, "map_tokens": 8},
        Status.E_IMAGE_DIMENSION,
    ),
    "a map that grows by nothing": (
        {"groups": 1, "top_groups": 1, "group_score": 0, "map_first": 3, "map_tokens": 0},
        Status.E_IMAGE_DIMENSION,
    ),
    "integers with groups": ({"score": 4, "integer_scale": 8.0}, Status.E_IMAGE_UNSUPPORTED),
    "integers with a correction": (
        {"score": 4, "integer_scale": 8.0, "groups": 1, "top_groups": 1, "group_score": 0},
        Status.E_IMAGE_UNSUPPORTED,
    ),
    "integers without a table": (
        {"score": 4, "integer_scale": 8.0, "groups": 1, "top_groups": 1, "group_score": 0, "correction": None},
        Status.E_IMAGE_UNSUPPORTED,
    ),
    "a shift beyond its limit": (
        {"score": 4, "integer_scale": 8.0, "integer_shift": 17, "groups": 1, "top_groups": 1, "group_score": 0},
        Status.E_IMAGE_DIMENSION,
    ),
    "a hash with a gate": (
        {"score": 5, "groups": 1, "top_groups": 1, "group_score": 0, "correction": None},
        Status.E_IMAGE_DIMENSION,
    ),
    "a hash with a correction": (
        {"score": 5, "groups": 1, "top_groups": 1, "group_score": 0, "gate": None},
        Status.E_IMAGE_UNSUPPORTED,
    ),
    "a hash": (
        {"score": 5, "groups": 1, "top_groups": 1, "group_score": 0, "gate": None, "correction": None},
        Status.OK,
    ),
}


@pytest.mark.parametrize("case", ROUTERS)
def test_routers(library: Library, tiny: Tiny, case: str) -> None:
    changes, status = ROUTERS[case]
    forge = Forge(tiny("deepseek_v3", "q8"))
    router = forge.layers["router"][-1:]
    for field, value in changes.items():
        router[field] = np.zeros((), router[field].dtype) if value is None else value
    forge.seal()
    assert forge.verdict(library)[0] == status


@pytest.mark.parametrize("experts", [65537, 2**32 - 1])
def test_experts_without_end(library: Library, tiny: Tiny, experts: int) -> None:
    """The gate's entry agrees with the lie, and so does the rest: the number itself is refused."""
    forge = Forge(tiny("mixtral", "q8"))
    router = forge.layers["router"][:1]
    router["experts"], router["gate"]["weight"]["rows"] = experts, experts
    forge.seal()
    assert forge.verdict(library) == (Status.E_IMAGE_DIMENSION, "experts")


def test_a_router_without_experts_sections(library: Library, tiny: Tiny) -> None:
    """A dense model has no experts: a layer cannot claim some."""
    forge = Forge(tiny("llama", "q8"))
    assert not len(forge.section(SectionKind.EXPERTS))
    forge.layers["router"]["experts"][0] = 4
    forge.seal()
    assert forge.verdict(library) == (Status.E_IMAGE_SECTION, "experts")
