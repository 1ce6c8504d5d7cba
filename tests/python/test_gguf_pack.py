# SPDX-License-Identifier: Apache-2.0
"""The same weights in a GGUF file, written by the gguf package, and in safetensors give the same image."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import pytest
from gguf.quants import dequantize, quantize
from safetensors.numpy import load_file, save_file

import checkpoints
import gguf_files
from colibri_sdk.cli import main
from colibri_sdk.convert import pack
from colibri_sdk.convert.gguf import ARCHITECTURES, READABLE_TYPES
from colibri_sdk.convert.origins import Fate, Origin
from colibri_sdk.errors import EXIT_IMAGE, CheckpointError
from colibri_sdk.image.layout import BLOCK, TILE_Q4, TILE_Q8, TILE_ROWS, Format, SectionKind
from colibri_sdk.image.reader import ImageFile

Type = gguf.GGMLQuantizationType
PARITY = Path(__file__).resolve().parent.parent / "parity"
MODELS = sorted(path.parent.name for path in PARITY.glob("*/reference.json"))


def contents(path: Path) -> dict[SectionKind, bytes]:
    """All sections but the card, which names files."""
    with ImageFile(path) as image:
        kinds = [kind for kind in image.sections if kind not in (SectionKind.CARD, SectionKind.UPDATES)]  # has the id
        return {kind: image.section_bytes(kind) for kind in kinds}


def both(tmp_path: Path, source: Path, file: Path, quant: str = "f32") -> tuple[dict[SectionKind, bytes], ...]:
    """The sections of the images of a directory and of a GGUF file."""
    found = []
    for index, checkpoint in enumerate((source, file)):
        image = tmp_path / f"{index}.colibri"
        pack(checkpoint, image, quant=quant)
        found.append(contents(image))
    return tuple(found)


# ------------------------------------------------------------------------------------------------ every architecture


def test_every_architecture_is_tested() -> None:
    classes = {json.loads((PARITY / name / "config.json").read_text())["architectures"][0] for name in MODELS}
    assert classes == set(gguf_files.ARCHITECTURES)
    assert {gguf.MODEL_ARCH_NAMES[arch] for arch in gguf_files.ARCHITECTURES.values()} == set(ARCHITECTURES)


@pytest.mark.parametrize("name", MODELS)
def test_same_image_as_from_safetensors(tmp_path: Path, name: str) -> None:
    file = tmp_path / "model.gguf"
    gguf_files.write(PARITY / name, file)
    ours, theirs = both(tmp_path, PARITY / name, file)
    assert ours == theirs


@pytest.mark.parametrize("name", ["deepseek_v2", "deepseek_v3"])
def test_older_spelling_of_latent_attention(tmp_path: Path, name: str) -> None:
    """kv_b_proj in one piece, and keys' and values' own dimensions."""
    file = tmp_path / "model.gguf"
    names = gguf_files.write(PARITY / name, file, older=True)
    assert "blk.0.attn_kv_b.weight" in names
    ours, theirs = both(tmp_path, PARITY / name, file)
    assert ours == theirs


CHANGES: dict[str, tuple[str, dict[str, Any]]] = {
    "window": ("mixtral", {"sliding_window": 8}),
    "linear": ("llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}}),
    "yarn": (
        "deepseek_v3",
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 10000.0,
                "factor": 4.0,
                "original_max_position_embeddings": 64,
                "mscale": 0.707,
                "mscale_all_dim": 0.707,
            }
        },
    ),
    "granite": ("granitemoe", {"residual_multiplier": 0.22, "logits_scaling": 6.3, "attention_multiplier": 0.0078125}),
    "norm": ("qwen2_moe", {"norm_topk_prob": True}),
    "no norm": ("qwen3_moe", {"norm_topk_prob": False}),
    "clip": ("olmoe", {"clip_qkv": 0.7}),
    "groups": ("glm4_moe", {"n_group": 4, "topk_group": 2, "norm_topk_prob": False}),
    "greedy": ("deepseek_v2", {"topk_method": "greedy", "n_group": 1, "topk_group": 1, "routed_scaling_factor": 2.0}),
    "epsilon": ("qwen3", {"rms_norm_eps": 3e-6}),
    "turning": (
        "glm4_moe",
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "partial_rotary_factor": 0.25}},
    ),
}


def changed(tmp_path: Path, name: str, changes: dict[str, Any]) -> Path:
    """A copy of a checkpoint with other settings. Rotary ones stand in one place."""
    source = tmp_path / name
    shutil.copytree(PARITY / name, source)
    config = json.loads((source / "config.json").read_text()) | changes
    for key in ("rope_theta", "rope_scaling", "partial_rotary_factor"):
        config.pop(key, None)
    (source / "config.json").write_text(json.dumps(config))
    return source


@pytest.mark.parametrize("name, changes", CHANGES.values(), ids=list(CHANGES))
def test_other_settings_arrive(tmp_path: Path, name: str, changes: dict[str, Any]) -> None:
    source = changed(tmp_path, name, changes)
    gguf_files.write(source, tmp_path / "model.gguf")
    ours, theirs = both(tmp_path, source, tmp_path / "model.gguf")
    assert ours == theirs
    pack(PARITY / name, tmp_path / "unchanged.colibri", quant="f32")
    assert ours != contents(tmp_path / "unchanged.colibri")


def test_scaling_of_llama3_as_factors(tmp_path: Path) -> None:
    """The file holds divisors where config.json has a formula: the tables agree to the rounding of a frequency."""
    scaling = {
        "rope_type": "llama3",
        "rope_theta": 10000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    source = changed(tmp_path, "llama", {"rope_parameters": scaling})
    assert "rope_freqs.weight" in gguf_files.write(source, tmp_path / "model.gguf")
    ours, theirs = both(tmp_path, source, tmp_path / "model.gguf")
    tables = [np.frombuffer(sections.pop(SectionKind.ROPE), "<f4") for sections in (ours, theirs)]
    assert ours == theirs
    assert np.abs(tables[0] - tables[1]).max() < 256 * 2.0**-22
    unscaled = changed(tmp_path / "plain", "llama", {})
    pack(unscaled, tmp_path / "plain.colibri", quant="f32")
    plain = np.frombuffer(contents(tmp_path / "plain.colibri")[SectionKind.ROPE], "<f4")
    assert np.abs(tables[0] - plain).max() > 0.5


# ------------------------------------------------------------------------------------------------- bits and numbers


def tiles(image: ImageFile, record: Any, base: int) -> tuple[npt.NDArray[np.float16], npt.NDArray[np.int8]]:
    """Scales [rows][blocks] and integers [rows][cols] of a quantised matrix, taken out of its tiles one by one."""
    rows, cols = int(record["rows"]), int(record["cols"])
    four = int(record["format"]) == Format.Q4
    groups, blocks = -(-rows // TILE_ROWS), -(-cols // BLOCK)
    raw = image.bytes_at(base + int(record["offset"]), int(record["bytes"]))
    found = np.frombuffer(raw, TILE_Q4 if four else TILE_Q8).reshape(groups, blocks)
    scale = np.zeros((groups * TILE_ROWS, blocks), np.float16)
    q = np.zeros((groups * TILE_ROWS, blocks * BLOCK), np.int8)
    for group in range(groups):
        for block in range(blocks):
            tile = found[group, block]
            scale[group * TILE_ROWS : (group + 1) * TILE_ROWS, block] = tile["scale"]
            flat = tile["q"].reshape(-1)
            if four:  # 32 bytes hold 4 columns in their low halves and the next 4 in their high ones
                flat = np.stack([tile["q"] & 15, tile["q"] >> 4], axis=1).reshape(-1).astype(np.int8) - 8
            for row in range(TILE_ROWS):
                for col in range(BLOCK):
                    value = flat[(col // 4) * BLOCK + 4 * row + col % 4]
                    q[group * TILE_ROWS + row, block * BLOCK + col] = value
    return scale[:rows], q[:rows, :cols]


def stored(array: npt.NDArray[Any], kind: Type) -> tuple[npt.NDArray[np.float16], npt.NDArray[np.int8]]:
    """The same of rows that the gguf package quantised."""
    raw = quantize(np.ascontiguousarray(array, np.float32), kind).reshape(
        array.shape[0], -1, gguf.GGML_QUANT_SIZES[kind][1]
    )
    scale = np.ascontiguousarray(raw[..., :2]).view(np.float16)[..., 0]
    if kind is Type.Q8_0:
        return scale, raw[..., 2:].view(np.int8).reshape(array.shape)
    halves = np.concatenate([raw[..., 2:] & 15, raw[..., 2:] >> 4], axis=-1)
    return scale, (halves.astype(np.int8) - 8).reshape(array.shape)


@pytest.mark.parametrize("kind, quant", [(Type.Q8_0, "q8"), (Type.Q4_0, "q4"), (Type.Q4_0, "q8")])
def test_blocks_are_taken_over_bit_for_bit(tmp_path: Path, kind: Type, quant: str) -> None:
    """Scales and integers in the tiles are those in the file; rows of queries and keys, sorted back, keep their own."""
    file = tmp_path / "model.gguf"
    gguf_files.write(PARITY / "mixtral", file, choose=gguf_files.matrices(kind))
    report = pack(file, tmp_path / "m.colibri", quant=quant)
    weights = load_file(PARITY / "mixtral" / "model.safetensors")
    with ImageFile(tmp_path / "m.colibri") as image:
        resident = image.sections[SectionKind.RESIDENT].offset
        experts = image.sections[SectionKind.EXPERTS].offset
        layer = image.layers[1]
        pairs = [
            (image.model["embedding"], resident, "model.embed_tokens.weight"),
            (image.model["head"]["weight"], resident, "lm_head.weight"),
            *(
                (layer["attention"][field]["weight"], resident, f"model.layers.1.self_attn.{name}_proj.weight")
                for field, name in (("query", "q"), ("key", "k"), ("value", "v"), ("output", "o"))
            ),
        ]
        (place,) = image.experts[(image.experts["layer"] == 1) & (image.experts["expert"] == 3)]
        pairs += [
            (
                layer["expert"][field]["weight"],
                experts + int(place["offset"]),
                f"model.layers.1.block_sparse_moe.experts.3.{name}.weight",
            )
            for field, name in (("gate", "w1"), ("up", "w3"), ("down", "w2"))
        ]
        for record, base, name in pairs:
            wanted = weights[name]
            scale, q = tiles(image, record, base)
            their_scale, their_q = stored(wanted, kind)
            assert (scale.view(np.uint16) == their_scale.view(np.uint16)).all(), name
            assert (q == their_q).all(), name
    fate = Fate.KEPT if {Type.Q8_0: "q8", Type.Q4_0: "q4"}[kind] == quant else Fate.EXACT
    assert {one.fate for one in report.origins if one.stored == kind.name} == {fate}


def random_blocks(array: npt.NDArray[Any], kind: Type) -> npt.NDArray[np.uint8]:
    """Blocks of random bytes in the place of an array's, with scales that are finite and not large."""
    random = np.random.default_rng(array.size)
    block, size = gguf.GGML_QUANT_SIZES[kind]
    raw = random.integers(0, 256, (*array.shape[:-1], array.shape[-1] // block, size), np.uint8)
    scales = (random.random((*raw.shape[:-1], 2)) / 64).astype("<f2").view(np.uint8)
    if kind is Type.Q6_K:
        raw[..., -2:] = scales[..., :2]
    else:
        raw[..., :4] = scales
    return raw.reshape(*array.shape[:-1], -1)


def reference_values(kind: Type, block: npt.NDArray[np.uint8]) -> list[float]:
    """The 256 numbers of one block, after the comments at the block structs of ggml-common.h, one by one."""
    data = block.tobytes()

    def half(at: int) -> float:
        return float(np.frombuffer(data, "<f2", 1, at)[0])

    if kind is Type.Q6_K:  # ql[128], qh[64], int8 scales[16], d
        scales, values = np.frombuffer(data, np.int8, 16, 192), []
        for i in range(256):
            part, at = divmod(i, 128)
            low = data[64 * part + at % 64] >> (4 if at >= 64 else 0) & 15
            high = data[128 + 32 * part + at % 32] >> 2 * (at // 32) & 3
            values.append(half(208) * float(scales[i // 16]) * ((low | high << 4) - 32))
        return values
    scales_at, values = data[4:16], []
    start = 48 if kind is Type.Q5_K else 16
    for i in range(256):
        group = i // 32
        if group < 4:
            scale, minimum = scales_at[group] & 63, scales_at[group + 4] & 63
        else:
            scale = scales_at[group + 4] & 15 | scales_at[group - 4] >> 6 << 4
            minimum = scales_at[group + 4] >> 4 | scales_at[group] >> 6 << 4
        q = data[start + 32 * (i // 64) + i % 32] >> (4 if i % 64 >= 32 else 0) & 15
        if kind is Type.Q5_K:
            q |= (data[16 + i % 32] >> group & 1) << 4
        values.append(half(0) * scale * q - half(2) * minimum)
    return values


@pytest.mark.parametrize("kind", [Type.Q4_K, Type.Q5_K, Type.Q6_K])
def test_k_quants_are_widened(tmp_path: Path, kind: Type) -> None:
    settings = checkpoints.config(hidden_size=256, intermediate_size=256, head_dim=64, vocab_size=16)
    source = checkpoints.write(tmp_path / "model", settings)
    file = tmp_path / "model.gguf"
    arrays = gguf_files.write(source, file, choose=gguf_files.matrices(kind), encode=random_blocks)
    report = pack(file, tmp_path / "m.colibri", quant="f32")
    assert Origin("embedding", kind.name, "f32", Fate.EXACT, 16 * 256) in report.origins
    with ImageFile(tmp_path / "m.colibri") as image:
        embedding = image.resident_tensor(image.model["embedding"])
        raw = random_blocks(arrays["token_embd.weight"], kind)
        assert (embedding == dequantize(raw, kind)).all()
        wanted = np.array([reference_values(kind, row) for row in raw])
        assert np.allclose(embedding, wanted, rtol=1e-5, atol=1e-6)
        gate = image.expert_tensor(1, 2, "gate")
        assert (gate == dequantize(random_blocks(arrays["blk.1.ffn_gate_exps.weight"], kind), kind)[2]).all()
    report = pack(file, tmp_path / "q.colibri", quant="q8")
    assert {one.fate for one in report.origins if one.stored == kind.name} == {Fate.REQUANTISED}


@pytest.mark.parametrize("kind", [Type.F16, Type.BF16])
def test_half_floats_are_exact(tmp_path: Path, kind: Type) -> None:
    file = tmp_path / "model.gguf"
    arrays = gguf_files.write(PARITY / "qwen3", file, choose=gguf_files.matrices(kind))
    pack(file, tmp_path / "m.colibri", quant="f32")
    with ImageFile(tmp_path / "m.colibri") as image:
        embedding = image.resident_tensor(image.model["embedding"])
    wanted = dequantize(quantize(arrays["token_embd.weight"], kind), kind)
    assert (embedding == wanted).all()
    assert (wanted != arrays["token_embd.weight"]).any()


def test_a_keeping_plan(tmp_path: Path) -> None:
    """Each matrix in the format it is stored in, and what that leaves of it."""

    def choose(name: str, array: npt.NDArray[Any]) -> Type:
        kinds = {"token_embd": Type.F16, "ffn_down_exps": Type.Q8_0, "attn_": Type.Q4_0, "ffn_gate_exps": Type.Q4_0}
        found = next((kind for part, kind in kinds.items() if part in name), Type.Q8_0)
        if name.startswith("blk.1.ffn_") and name.endswith("_exps.weight"):
            found = Type.Q4_0
        return found if array.ndim > 1 and "ffn_gate_inp" not in name else Type.F32

    gguf_files.write(PARITY / "mixtral", tmp_path / "model.gguf", choose=choose)
    report = pack(tmp_path / "model.gguf", tmp_path / "m.colibri", quant="keep")
    assert report.plan == "q8,embedding=f16,attention=q4,layers.1.experts=q4"
    fates = {(one.kind, one.stored, one.packed): one.fate for one in report.origins}
    assert fates["embedding", "F16", "f16"] is Fate.KEPT
    assert fates["attention.query", "Q4_0", "q4"] is Fate.KEPT
    assert fates["experts.gate", "Q4_0", "q8"] is Fate.EXACT
    assert fates["experts.gate", "Q4_0", "q4"] is Fate.KEPT
    assert fates["experts.down", "Q8_0", "q8"] is Fate.KEPT
    assert fates["router.gate", "F32", "f32"] is Fate.KEPT
    assert set(fates.values()) == {Fate.KEPT, Fate.EXACT}


def test_a_keeping_plan_of_a_directory(tmp_path: Path) -> None:
    assert pack(PARITY / "llama", tmp_path / "m.colibri", quant="keep").plan == "f32"
    half = checkpoints.write(tmp_path / "half", weights=checkpoints.tensors(checkpoints.config(), dtype="F16"))
    assert pack(half, tmp_path / "m.colibri", quant="keep").plan == "f16"


def test_multiplied_weights_are_not_taken_over(tmp_path: Path) -> None:
    """Granite's multipliers go into some weights: their blocks are other ones, and the report says so."""
    gguf_files.write(PARITY / "granitemoe", tmp_path / "model.gguf", choose=gguf_files.matrices(Type.Q8_0))
    report = pack(tmp_path / "model.gguf", tmp_path / "m.colibri", quant="q8")
    fates = {one.kind: one.fate for one in report.origins}
    assert fates["experts.down"] is fates["embedding"] is fates["attention.output"] is Fate.REQUANTISED
    assert fates["experts.gate"] is fates["attention.query"] is Fate.KEPT
    with ImageFile(tmp_path / "m.colibri") as image:
        assert [one[:4] for one in image.card["origins"]] == [
            [one.kind, one.stored, one.packed, one.fate] for one in report.origins
        ]


def test_types_that_are_named_as_readable_are(tmp_path: Path) -> None:
    for name in READABLE_TYPES:
        kind = Type[name]
        encode = random_blocks if name.endswith("_K") else quantize
        settings = checkpoints.config(hidden_size=256, intermediate_size=256, head_dim=64, vocab_size=16)
        source = checkpoints.write(tmp_path / f"model-{name}", settings)
        gguf_files.write(source, tmp_path / "model.gguf", choose=gguf_files.matrices(kind), encode=encode)
        pack(tmp_path / "model.gguf", tmp_path / "m.colibri", quant="f32")


@pytest.mark.parametrize("kind", [Type.Q5_0, Type.IQ4_NL, Type.Q2_K])
def test_other_types_are_refused_by_name(tmp_path: Path, kind: Type) -> None:
    settings = checkpoints.config(hidden_size=256, intermediate_size=256, head_dim=64, vocab_size=16)
    source = checkpoints.write(tmp_path / "model", settings)

    def encode(array: npt.NDArray[Any], kind: Type) -> npt.NDArray[np.uint8]:
        block, size = gguf.GGML_QUANT_SIZES[kind]
        return np.zeros((*array.shape[:-1], array.shape[-1] // block * size), np.uint8)

    gguf_files.write(source, tmp_path / "model.gguf", choose=gguf_files.matrices(kind), encode=encode)
    with pytest.raises(CheckpointError, match=f"is of type {kind.name}"):
        pack(tmp_path / "model.gguf", tmp_path / "m.colibri")


@pytest.mark.parametrize("quant", ["f32", "q8"])
def test_a_scale_that_is_no_number(tmp_path: Path, quant: str) -> None:
    def encode(array: npt.NDArray[Any], kind: Type) -> npt.NDArray[np.uint8]:
        raw = quantize(array, kind)
        raw[..., -1, :2] = np.array([np.nan], "<f2").view(np.uint8)
        return raw

    gguf_files.write(PARITY / "llama", tmp_path / "model.gguf", choose=gguf_files.matrices(Type.Q8_0), encode=encode)
    with pytest.raises(CheckpointError, match=r"embed_tokens\.weight has .*nan"):
        pack(tmp_path / "model.gguf", tmp_path / "m.colibri", quant=quant)


# ----------------------------------------------------------------------------------------- everything but weights


def test_hummingbird_with_its_tokenizer_and_template(repo_root: Path, tmp_path: Path) -> None:
    source = repo_root / "models" / "hummingbird"

    def change(writer: gguf.GGUFWriter) -> None:
        writer.add_name("Hummingbird")
        writer.add_license("apache-2.0")
        writer.add_float32("general.sampling.temp", 0.7)

    gguf_files.write(source, tmp_path / "bird.gguf", tokenizer=True, change=change)
    ours, theirs = both(tmp_path, source, tmp_path / "bird.gguf", "q8")
    assert SectionKind.TOKENIZER in ours and SectionKind.TEMPLATE in ours
    assert ours == theirs
    with ImageFile(tmp_path / "0.colibri") as image, ImageFile(tmp_path / "1.colibri") as other:
        assert (other.card["name"], other.card["licence"]) == ("Hummingbird", "apache-2.0")
        assert other.card["generation"] == {"temperature": 0.7}
        for key in ("special_tokens", "chat_template", "eos_token_ids", "shape"):
            assert other.card[key] == image.card[key]
        for role, text in other.card["tokens"].items():
            assert image.card["tokens"].get(role, text) == text


@pytest.mark.parametrize("asked", [1, 3])
def test_split_files(tmp_path: Path, asked: int) -> None:
    """Any of the files stands for all."""
    gguf_files.write(PARITY / "mixtral", tmp_path / "m.gguf", split=8)
    names = sorted(path.name for path in tmp_path.glob("*.gguf"))
    assert len(names) == 3, names
    assert names[0] == "m-00001-of-00003.gguf"
    ours, theirs = both(tmp_path, PARITY / "mixtral", tmp_path / names[asked - 1])
    assert ours == theirs
    with ImageFile(tmp_path / "1.colibri") as image:
        assert sorted(image.card["sources"]) == names
        assert image.card["name"] == "m"


Broken = Callable[[Path], None]


def _without_second(directory: Path) -> None:
    (directory / "m-00002-of-00003.gguf").unlink()


def _swapped(directory: Path) -> None:
    (directory / "m-00002-of-00003.gguf").rename(directory / "x")
    (directory / "m-00003-of-00003.gguf").rename(directory / "m-00002-of-00003.gguf")
    (directory / "x").rename(directory / "m-00003-of-00003.gguf")


def _first_alone(directory: Path) -> None:
    (directory / "m-00001-of-00003.gguf").rename(directory / "m-00001-of-00001.gguf")


@pytest.mark.parametrize(
    "damage, message",
    [
        (_without_second, "m-00002-of-00003.gguf is missing"),
        (_swapped, r"says that it is file 2 \(from 0\) of 3"),
        (_first_alone, r"says that it is file 0 \(from 0\) of 3"),
    ],
)
def test_split_files_that_do_not_fit(tmp_path: Path, damage: Broken, message: str) -> None:
    gguf_files.write(PARITY / "mixtral", tmp_path / "m.gguf", split=8)
    damage(tmp_path)
    first = next(iter(sorted(tmp_path.glob("m-00001*.gguf"))))
    with pytest.raises(CheckpointError, match=message):
        pack(first, tmp_path / "m.colibri")


Change = Callable[[gguf.GGUFWriter], None]


def _add(key: str, value: Any) -> Change:
    def change(writer: gguf.GGUFWriter) -> None:
        writer.add_key_value(
            key,
            value,
            gguf.GGUFValueType.get_type(value),
            None if not isinstance(value, list) else gguf.GGUFValueType.get_type(value[0]),
        )

    return change


def _override(key: str, value: Any) -> Change:
    def change(writer: gguf.GGUFWriter) -> None:
        for shard in writer.kv_data:
            if key in shard:
                shard[key].value = value

    return change


@pytest.mark.parametrize(
    "change, message",
    [
        (_override("general.architecture", "mamba"), "architecture 'mamba', which is not supported"),
        (_override("general.architecture", "phimoe"), "'phimoe', which is not supported: its norms are LayerNorm"),
        (_add("llama.final_logit_softcapping", 30.0), "key llama.final_logit_softcapping = 30.0, which is not known"),
        (_add("llama.attention.causal", False), "llama.attention.causal = False, which is not supported"),
        (_override("llama.block_count", 3), "model.layers.2 is missing"),
        (_override("llama.block_count", 1), "tensor.s. that its architecture does not use"),
        (_override("llama.block_count", 10**6), "1000000 layers"),
        (_override("llama.embedding_length", 63), "rotates 16|has shape|heads"),
        (_override("llama.attention.head_count", 0), "num_attention_heads|rows"),
        (_override("llama.attention.key_length", 15), "keys of 15 and values of 16"),
        (_add("llama.rope.scaling.type", "longrope"), "rotary positions by 'longrope'"),
        (_add("llama.attention.scale", 0.5), "llama.attention.scale"),
        (_override("llama.attention.layer_norm_rms_epsilon", -1.0), "rms_norm_eps"),
        (_override("llama.context_length", 0), "max_position_embeddings"),
        (_override("tokenizer.ggml.eos_token_id", 4096), "eos_token_id"),
        (_add("tokenizer.ggml.model", "bert"), "tokenizer of the kind 'bert'"),
        (_add("tokenizer.ggml.model", "gpt2"), "no tokenizer.ggml.merges"),
    ],
)
def test_refusals_name_what_is_wrong(tmp_path: Path, change: Change, message: str) -> None:
    gguf_files.write(PARITY / "llama", tmp_path / "model.gguf", change=change)
    with pytest.raises(CheckpointError, match=message):
        pack(tmp_path / "model.gguf", tmp_path / "m.colibri")
    assert not (tmp_path / "m.colibri").exists()


def test_a_tensor_that_is_not_known(tmp_path: Path) -> None:
    weights = load_file(PARITY / "llama" / "model.safetensors")
    source = tmp_path / "llama"
    shutil.copytree(PARITY / "llama", source)
    save_file(
        {**weights, "model.layers.0.self_attn.q_norm.weight": np.ones(16, np.float32)}, source / "model.safetensors"
    )
    with pytest.raises(AssertionError, match="q_norm"):
        gguf_files.write(source, tmp_path / "model.gguf")  # llama has no such tensor in the gguf package either
    gguf_files.write(
        PARITY / "llama",
        tmp_path / "model.gguf",
        change=lambda w: w.add_tensor("blk.0.more.weight", np.ones(4, np.float32)),
    )
    with pytest.raises(CheckpointError, match=r"does not use: blk\.0\.more\.weight"):
        pack(tmp_path / "model.gguf", tmp_path / "m.colibri")


def test_from_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    gguf_files.write(PARITY / "mixtral", tmp_path / "small.gguf", choose=gguf_files.matrices(Type.Q8_0))
    monkeypatch.chdir(tmp_path)
    assert main.run(["pack", "small.gguf", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (tmp_path / "small-q8.colibri").is_file()
    assert {one["fate"] for one in report["origins"]} == {"kept"}
    assert main.run(["pack", "small.gguf", "--quant", "keep", "-o", "other.colibri"]) == 0
    assert "Q8_0 to q8, kept: embedding, head, attention.query" in " ".join(capsys.readouterr().out.split())
    (tmp_path / "small.gguf").write_bytes(b"GGUF" * 10)
    assert main.run(["pack", "small.gguf"]) == EXIT_IMAGE


def test_a_directory_of_gguf_says_what_to_name(tmp_path: Path) -> None:
    gguf_files.write(PARITY / "llama", tmp_path / "model.gguf")
    shutil.copy(PARITY / "llama" / "config.json", tmp_path)
    with pytest.raises(CheckpointError) as caught:
        pack(tmp_path, tmp_path / "m.colibri")
    assert "model.gguf" in caught.value.hint
