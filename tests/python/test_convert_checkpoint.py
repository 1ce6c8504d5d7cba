# SPDX-License-Identifier: Apache-2.0
"""Damaged, hostile and unsupported checkpoints: each is refused with a sentence that names what is wrong."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import checkpoints
from colibri_sdk.convert import pack
from colibri_sdk.convert.safetensors_header import MAX_HEADER_BYTES, read_header
from colibri_sdk.errors import CheckpointError
from refused_checkpoint import refusal

NORM = "model.layers.1.input_layernorm.weight"
EXPERT = "model.layers.1.block_sparse_moe.experts.2.w2.weight"


def reheader(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Rewrites a safetensors header; the data stay."""
    raw = path.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + raw[8 + length :])


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return checkpoints.write(tmp_path / "model")


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    return checkpoints.write(tmp_path / "model", shards=3)


# ------------------------------------------------------------------------------------------------- damaged shards


def test_truncated_shard_says_how_many_bytes(sharded: Path, tmp_path: Path) -> None:
    shard = sharded / "model-00002-of-00003.safetensors"
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-100])
    (length,) = struct.unpack("<Q", whole[:8])
    data = len(whole) - 8 - length
    error = refusal(sharded, tmp_path / "m.colibri")
    assert f"{shard.name} is truncated: its tensors need {data} bytes of data and {data - 100} are there" in str(error)
    assert "100 missing" in error.message


@pytest.mark.parametrize("kept", [0, 3, 8, 20])
def test_shard_cut_in_its_header(model: Path, tmp_path: Path, kept: int) -> None:
    path = model / "model.safetensors"
    path.write_bytes(path.read_bytes()[:kept])
    assert "model.safetensors" in refusal(model, tmp_path / "m.colibri").message


@pytest.mark.parametrize("length", [MAX_HEADER_BYTES + 1, 2**40, 2**63, 2**64 - 1])
def test_absurd_header_length(model: Path, tmp_path: Path, length: int) -> None:
    path = model / "model.safetensors"
    path.write_bytes(struct.pack("<Q", length) + path.read_bytes()[8:])
    assert f"model.safetensors states a header of {length} bytes" in refusal(model, tmp_path / "m.colibri").message


def test_header_beyond_the_formats_limit_is_not_read(model: Path, tmp_path: Path) -> None:
    """The file has as many bytes as the header says (a hole on the disk): the limit alone protects."""
    path = model / "model.safetensors"
    path.write_bytes(struct.pack("<Q", MAX_HEADER_BYTES + 1))
    with path.open("r+b") as file:
        file.truncate(MAX_HEADER_BYTES + 1000)
    assert f"more than the {MAX_HEADER_BYTES}" in refusal(model, tmp_path / "m.colibri").message


def test_tensors_that_overlap(model: Path, tmp_path: Path) -> None:
    """No gap and no byte too few or too many: only the overlap is wrong."""
    header = {
        "a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]},
        "b": {"dtype": "F32", "shape": [4], "data_offsets": [8, 24]},
    }
    text = json.dumps(header).encode()
    (model / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(24))
    assert "lays tensor 'b' over 'a'" in refusal(model, tmp_path / "m.colibri").message


def test_header_longer_than_the_file(model: Path, tmp_path: Path) -> None:
    path = model / "model.safetensors"
    raw = path.read_bytes()
    path.write_bytes(struct.pack("<Q", len(raw)) + raw[8:])
    error = refusal(model, tmp_path / "m.colibri")
    assert f"states a header of {len(raw)} bytes, but only {len(raw) - 8} bytes follow" in error.message


@pytest.mark.parametrize(
    "text",
    [b"", b"[]", b"nonsense", b'{"a": ', b"\xff\xfe", b"[" * 5000],
    ids=["empty", "list", "word", "cut", "bytes", "deep"],
)
def test_header_that_is_no_json_object(model: Path, tmp_path: Path, text: bytes) -> None:
    (model / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text)
    assert "model.safetensors has a header that is" in refusal(model, tmp_path / "m.colibri").message


def test_name_twice_in_one_header(model: Path, tmp_path: Path) -> None:
    entry = '"twice": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}'
    text = ("{" + entry + ", " + entry + "}").encode()
    (model / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(4))
    assert "'twice' occurs twice" in refusal(model, tmp_path / "m.colibri").message


HEADER_LIES: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "offsets beyond the end": (lambda h: h[NORM].update(shape=[2**40], data_offsets=[0, 2**42]), "is truncated"),
    "offsets that overlap": (
        lambda h: h[NORM].update(data_offsets=h["model.norm.weight"]["data_offsets"]),
        "lays tensor .* over|unused before",
    ),
    "offsets that run backwards": (lambda h: h[NORM].update(data_offsets=[96, 0]), f"'{re.escape(NORM)}' -96 bytes"),
    "negative offset": (lambda h: h[NORM].update(data_offsets=[-96, 0]), f"tensor '{re.escape(NORM)}' wrongly"),
    "offset beyond 64 bits": (lambda h: h[NORM].update(data_offsets=[2**64, 2**64 + 96]), "wrongly"),
    "offset that is no integer": (lambda h: h[NORM].update(data_offsets=[0.0, 96.0]), "wrongly"),
    "offset that is a truth value": (lambda h: h[NORM].update(data_offsets=[False, 96]), "wrongly"),
    "three offsets": (lambda h: h[NORM].update(data_offsets=[0, 1, 2]), "wrongly"),
    "no shape": (lambda h: h[NORM].pop("shape"), "wrongly"),
    "entry that is a list": (lambda h: h.update({NORM: [1, 2]}), "wrongly"),
    "negative dimension": (lambda h: h[NORM].update(shape=[-24]), "wrongly"),
    "dimensions whose product wraps": (lambda h: h[NORM].update(shape=[2**33, 2**33]), f"'{re.escape(NORM)}' 96 bytes"),
    "too many dimensions": (lambda h: h[NORM].update(shape=[1] * 9), "9 dimensions"),
    "shape of another size": (lambda h: h[NORM].update(shape=[25]), f"'{re.escape(NORM)}' 96 bytes, but"),
    "data type of another size": (lambda h: h[NORM].update(dtype="F16"), f"'{re.escape(NORM)}' 96 bytes, but"),
    "dimension 0": (lambda h: h[NORM].update(shape=[24, 0]), f"'{re.escape(NORM)}' 96 bytes, but"),
    "empty name": (lambda h: h.update({"": h.pop(NORM)}), "tensor with an empty name"),
    "bytes that nobody names": (lambda h: h.pop(NORM), "unused before"),
}  # fmt: skip


def test_header_of_more_parts_than_any_model_has(model: Path, tmp_path: Path) -> None:
    """Five million bytes that would become hundreds of millions."""
    text = b'{"a": [' + b"[]," * 1_600_000 + b"[]]}"
    (model / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text)
    assert "has a header of 3200003 parts" in refusal(model, tmp_path / "m.colibri").message


@pytest.mark.parametrize("lie", HEADER_LIES)
def test_header_that_lies(model: Path, tmp_path: Path, lie: str) -> None:
    change, expected = HEADER_LIES[lie]
    reheader(model / "model.safetensors", change)
    error = refusal(model, tmp_path / "m.colibri")
    assert re.search(expected, error.message), error.message
    assert "model.safetensors" in error.message


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_any_damage_to_a_header_is_refused_or_harmless(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Whatever bytes a header has: a CheckpointError or a description that lies within the file."""
    path = tmp_path_factory.mktemp("fuzz") / "x.safetensors"
    entry = {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}
    text = bytearray(json.dumps({"a": entry, "b": {**entry, "data_offsets": [16, 32]}}).encode())
    for _ in range(data.draw(st.integers(1, 4))):
        text[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(struct.pack("<Q", len(text)) + bytes(text) + bytes(32))
    try:
        tensors = read_header(path)
    except CheckpointError as error:
        assert "x.safetensors" in error.message
    else:
        assert sum(tensor.bytes for tensor in tensors.values()) == 32


# ---------------------------------------------------------------------------------------------- index and shards


def test_missing_shard(sharded: Path, tmp_path: Path) -> None:
    (sharded / "model-00003-of-00003.safetensors").unlink()
    error = refusal(sharded, tmp_path / "m.colibri")
    assert "model-00003-of-00003.safetensors" in error.message and "is missing" in error.message


def edit_index(directory: Path, change: Callable[[dict[str, str]], None]) -> None:
    path = directory / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    change(index["weight_map"])
    path.write_text(json.dumps(index))


def test_tensor_missing_in_its_shard(sharded: Path, tmp_path: Path) -> None:
    edit_index(sharded, lambda places: places.update({"model.extra": "model-00001-of-00003.safetensors"}))
    message = refusal(sharded, tmp_path / "m.colibri").message
    assert "places tensor model.extra in model-00001-of-00003.safetensors, but it is not there" in message


def test_tensor_in_another_shard(sharded: Path, tmp_path: Path) -> None:
    names = ["model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors"]

    def move(places: dict[str, str]) -> None:
        places[NORM] = names[0] if places[NORM] != names[0] else names[1]

    edit_index(sharded, move)
    message = refusal(sharded, tmp_path / "m.colibri").message
    assert f"places tensor {NORM}" in message and "but it is in model-" in message


def test_tensor_in_two_shards(sharded: Path, tmp_path: Path) -> None:
    weights = checkpoints.tensors(checkpoints.config())
    target = sharded / "model-00003-of-00003.safetensors"
    from safetensors.numpy import load_file, save_file

    save_file({**load_file(target), "model.embed_tokens.weight": weights["model.embed_tokens.weight"]}, target)
    message = refusal(sharded, tmp_path / "m.colibri").message
    assert "tensor model.embed_tokens.weight is in model-00001" in message and "again in model-00003" in message


@pytest.mark.parametrize("name", ["../secret.safetensors", "/etc/passwd", "a/b.safetensors", "weights.bin", 7, None])
def test_index_that_leads_elsewhere(sharded: Path, tmp_path: Path, name: Any) -> None:
    edit_index(sharded, lambda places: places.update({NORM: name}))
    assert f"{name!r}, which is no file name of a shard" in refusal(sharded, tmp_path / "m.colibri").message


@pytest.mark.parametrize("text", ["{}", '{"weight_map": []}', '{"weight_map": {}}', "[]", "{", "\udcff"])
def test_index_that_is_none(sharded: Path, tmp_path: Path, text: str) -> None:
    (sharded / "model.safetensors.index.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    assert "model.safetensors.index.json" in refusal(sharded, tmp_path / "m.colibri").message


def test_directory_without_weights(model: Path, tmp_path: Path) -> None:
    (model / "model.safetensors").rename(model / "pytorch_model.bin")
    error = refusal(model, tmp_path / "m.colibri")
    assert "pytorch_model.bin cannot be read" in error.hint


def test_no_directory_and_no_configuration(tmp_path: Path) -> None:
    assert "is no directory" in refusal(tmp_path / "nothing", tmp_path / "m.colibri").message
    (tmp_path / "empty").mkdir()
    assert "has no config.json" in refusal(tmp_path / "empty", tmp_path / "m.colibri").message


# ------------------------------------------------------------------------------------- tensors and configuration


@pytest.mark.parametrize("name", [NORM, EXPERT, "lm_head.weight", "model.layers.0.block_sparse_moe.gate.weight"])
def test_missing_tensor_is_named(tmp_path: Path, name: str) -> None:
    weights = checkpoints.tensors(checkpoints.config())
    del weights[name]
    error = refusal(checkpoints.write(tmp_path / "m", weights=weights), tmp_path / "m.colibri")
    assert name in error.message and "is missing" in error.message
    if ".layers." in name:
        assert re.search(r"layer[s. ]+[01]", error.message)


def test_missing_layer_is_named(tmp_path: Path) -> None:
    weights = checkpoints.tensors(checkpoints.config())
    settings_ = checkpoints.config(num_hidden_layers=3)
    error = refusal(checkpoints.write(tmp_path / "m", settings_, weights), tmp_path / "m.colibri")
    assert "model.layers.2 is missing" in error.message and "num_hidden_layers = 3" in error.message


def test_unknown_tensors_are_listed(tmp_path: Path) -> None:
    weights = checkpoints.tensors(checkpoints.config())
    for name in ("model.layers.0.self_attn.q_proj.bias", "model.layers.5.mlp.up"):
        weights[name] = np.zeros(3, np.float32)
    error = refusal(checkpoints.write(tmp_path / "m", weights=weights), tmp_path / "m.colibri")
    assert "2 tensor(s)" in error.message
    assert "model.layers.0.self_attn.q_proj.bias, model.layers.5.mlp.up" in error.message


def test_computed_buffers_are_ignored(tmp_path: Path) -> None:
    weights = checkpoints.tensors(checkpoints.config())
    weights["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.zeros(3, np.float32)
    pack(checkpoints.write(tmp_path / "m", weights=weights), tmp_path / "m.colibri")


def test_wrong_shape_is_named(tmp_path: Path) -> None:
    weights = checkpoints.tensors(checkpoints.config())
    weights[EXPERT] = weights[EXPERT].T.copy()
    error = refusal(checkpoints.write(tmp_path / "m", weights=weights), tmp_path / "m.colibri")
    assert f"tensor {EXPERT} has shape [40, 24]; config.json makes it [24, 40]" in error.message


@pytest.mark.parametrize("dtype", [np.float64, np.int32, np.int8, np.bool_])
def test_unreadable_type_is_named(tmp_path: Path, dtype: Any) -> None:
    weights = checkpoints.tensors(checkpoints.config())
    weights[EXPERT] = weights[EXPERT].astype(dtype)
    error = refusal(checkpoints.write(tmp_path / "m", weights=weights), tmp_path / "m.colibri")
    assert re.search(rf"tensor {re.escape(EXPERT)} in model\.safetensors is of type \w+", error.message)
    assert "F32, F16, BF16" in error.hint


CONFIG_LIES: dict[str, tuple[dict[str, Any], str]] = {
    "another architecture": ({"architectures": ["GPT2LMHeadModel"]}, "GPT2LMHeadModel is not supported"),
    "no architecture": ({"architectures": ...}, "architectures None"),
    "architecture that is no list": ({"architectures": "MixtralForCausalLM"}, "one class name"),
    "zero layers": ({"num_hidden_layers": 0}, "num_hidden_layers = 0"),
    "no layers": ({"num_hidden_layers": ...}, "no num_hidden_layers"),
    "layers without end": ({"num_hidden_layers": 2**31 - 1}, "num_hidden_layers = 2147483647"),
    "as many layers as fit": ({"num_hidden_layers": 4096}, "model.layers.2 is missing"),
    "experts without end": ({"num_local_experts": 2**31 - 1}, "num_local_experts = 2147483647"),
    "hidden size that is text": ({"hidden_size": "24"}, "hidden_size = '24'"),
    "hidden size that is true": ({"hidden_size": True}, "hidden_size = True"),
    "hidden size that is negative": ({"hidden_size": -24}, "hidden_size = -24"),
    "huge context": ({"max_position_embeddings": 2**30}, "context is 1073741824"),
    "more chosen than experts": ({"num_experts_per_tok": 4}, "4 of 3 experts"),
    "heads that do not share": ({"num_key_value_heads": 3}, "4 attention heads for 3"),
    "odd head": ({"head_dim": 7}, "7 of 7 dimensions of a head would rotate"),
    "hidden size that heads do not divide": ({"head_dim": ..., "num_attention_heads": 5, "num_key_value_heads": 5},
                                             "no head_dim"),
    "other activation": ({"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
    "attention bias": ({"attention_bias": True}, "attention_bias = True"),
    "quantised weights": ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config"),
    "sliding window of nothing": ({"sliding_window": 0}, "sliding_window = 0"),
    "scaled positions": ({"rope_scaling": {"type": "longlongrope", "factor": 4.0}}, "'longlongrope'"),
    "scaled positions without divisors": ({"rope_scaling": {"type": "longrope", "factor": 4.0}}, "short_factor = None"),
    "too few divisors": (
        {"rope_scaling": {"type": "longrope", "short_factor": [1.0, 2.0], "long_factor": [1.0]}}, "short_factor = "),
    "divisors of zero": (
        {"rope_scaling": {"type": "longrope", "short_factor": [1.0] * 4, "long_factor": [0.0] * 4}}, "_factor = "),
    "scaled positions, new spelling": ({"rope_parameters": {"rope_type": "su", "rope_theta": 1e4}}, "'su'"),
    "scaled positions without a factor": ({"rope_scaling": {"type": "linear"}}, "factor = None"),
    "partial rotation": ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor = 0.5"),
    "two rotary bases": ({"rope_theta": 1e4, "rope_parameters": {"rope_theta": 1e6}}, "as 1000000.0 and, in another"),
    "rotary base of zero": ({"rope_theta": 0}, "rope_theta = 0"),
    "rotary base that is no number": ({"rope_theta": float("nan")}, "rope_theta = nan"),
    "rotary parameters that are text": ({"rope_parameters": "default"}, "rope_parameters = 'default'"),
    "epsilon of zero": ({"rms_norm_eps": 0.0}, "rms_norm_eps = 0.0"),
    "end token beyond the vocabulary": ({"eos_token_id": 50}, "eos_token_id = 50"),
    "five end tokens": ({"eos_token_id": [1, 2, 3, 4, 5]}, "at most 4 ids"),
}  # fmt: skip


@pytest.mark.parametrize("lie", CONFIG_LIES)
def test_configuration_that_cannot_be_run(tmp_path: Path, lie: str) -> None:
    changes, expected = CONFIG_LIES[lie]
    weights = checkpoints.tensors(checkpoints.config())
    directory = checkpoints.write(tmp_path / "m", checkpoints.config(**changes), weights)
    assert expected in refusal(directory, tmp_path / "m.colibri").message


def test_window_as_wide_as_the_context_is_none(tmp_path: Path) -> None:
    pack(checkpoints.write(tmp_path / "m", checkpoints.config(sliding_window=64)), tmp_path / "m.colibri")


@pytest.mark.parametrize("text", ["", "[1]", "{", "null", '{"a": NaN'])
def test_configuration_that_is_no_json_object(model: Path, tmp_path: Path, text: str) -> None:
    (model / "config.json").write_text(text)
    assert "config.json is" in refusal(model, tmp_path / "m.colibri").message


def test_other_kinds_of_tokenizer_are_refused(model: Path, tmp_path: Path) -> None:
    (model / "vocab.txt").write_text("[UNK]")
    assert "vocab.txt" in refusal(model, tmp_path / "m.colibri").message


def test_a_damaged_sentencepiece_model_is_refused(model: Path, tmp_path: Path) -> None:
    (model / "tokenizer.model").write_bytes(b"\x0a\x0b")
    assert "tokenizer.model: is no SentencePiece model" in refusal(model, tmp_path / "m.colibri").message
