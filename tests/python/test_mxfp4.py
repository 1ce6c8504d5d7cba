# SPDX-License-Identifier: Apache-2.0
"""gpt-oss as it is published, its experts in MXFP4: what the blocks mean is computed here a second time."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import pytest
from gguf.quants import dequantize
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

import gguf_files
from colibri_sdk.convert import pack
from colibri_sdk.convert.mxfp4 import Mxfp4
from colibri_sdk.convert.origins import Fate
from colibri_sdk.errors import CheckpointError
from colibri_sdk.image.layout import SectionKind
from colibri_sdk.image.reader import ImageFile

SOURCE = Path(__file__).resolve().parent.parent / "parity" / "gpt_oss"
EXPERTS = ("gate_up_proj", "down_proj")

# E2M1: sign, two bits of exponent with bias 1, one of mantissa; exponent 0 is subnormal.
VALUES = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
VALUES += [-value for value in VALUES]


def encode(matrix: npt.NDArray[np.float32]) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """[..][cols] as blocks [..][cols / 32][16], neighbours in one byte, low half first, and scales [..][cols / 32]."""
    grouped = matrix.reshape(*matrix.shape[:-1], -1, 32).astype(np.float64)
    peak = np.abs(grouped).max(axis=-1, keepdims=True)
    exponent = np.floor(np.log2(np.maximum(peak, 2.0**-120))) - 2
    distance = np.abs(grouped[..., np.newaxis] / 2.0 ** exponent[..., np.newaxis] - np.array(VALUES))
    codes = distance.argmin(axis=-1).astype(np.uint8)
    return codes[..., 0::2] | codes[..., 1::2] << 4, (exponent[..., 0] + 127).astype(np.uint8)


def decode(blocks: npt.NDArray[np.uint8], scales: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    """The numbers of encode's result, one by one."""
    out = np.zeros((*scales.shape, 32), np.float32)
    for at in np.ndindex(*blocks.shape):
        *place, byte = at
        pair = int(blocks[at])
        for half, code in enumerate((pair % 16, pair // 16)):
            out[(*place, 2 * byte + half)] = VALUES[code] * 2.0 ** (int(scales[tuple(place)]) - 127)
    return out.reshape(*scales.shape[:-1], -1)


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The checkpoint in MXFP4, and the same numbers in float32 in the shape that floats have."""
    packed = tmp_path_factory.mktemp("mxfp4") / "gpt_oss"
    plain = tmp_path_factory.mktemp("plain") / "gpt_oss"
    for directory in (packed, plain):
        shutil.copytree(SOURCE, directory)
    weights = load_file(SOURCE / "model.safetensors")
    floats = dict(weights)
    for name in list(weights):
        if name.endswith(EXPERTS):
            array = weights.pop(name)
            blocks, scales = encode(np.ascontiguousarray(array.transpose(0, 2, 1)))
            weights[f"{name}_blocks"], weights[f"{name}_scales"] = blocks, scales
            floats[name] = np.ascontiguousarray(decode(blocks, scales).transpose(0, 2, 1))
    save_file(weights, packed / "model.safetensors")
    save_file(floats, plain / "model.safetensors")
    return packed, plain


def sections(path: Path) -> dict[SectionKind, bytes]:
    with ImageFile(path) as image:
        kinds = [kind for kind in image.sections if kind not in (SectionKind.CARD, SectionKind.UPDATES)]  # has the id
        return {kind: image.section_bytes(kind) for kind in kinds}


def test_same_image_as_from_floats(published: tuple[Path, Path], tmp_path: Path) -> None:
    packed, plain = published
    report = pack(packed, tmp_path / "0.colibri", quant="f32")
    pack(plain, tmp_path / "1.colibri", quant="f32")
    assert sections(tmp_path / "0.colibri") == sections(tmp_path / "1.colibri")
    assert {one.fate for one in report.origins if one.kind.startswith("experts")} == {Fate.EXACT}


def test_q8_holds_it_exactly(published: tuple[Path, Path], tmp_path: Path) -> None:
    """Every weight of an expert, from the q8 image: the float32 image's, bit for bit."""
    packed, _ = published
    report = pack(packed, tmp_path / "q8.colibri", quant="q8")
    pack(packed, tmp_path / "f32.colibri", quant="f32")
    with ImageFile(tmp_path / "q8.colibri") as q8, ImageFile(tmp_path / "f32.colibri") as f32:
        for layer in range(2):
            for expert in range(4):
                for field in ("gate", "up", "down"):
                    ours, wanted = (image.expert_tensor(layer, expert, field) for image in (q8, f32))
                    assert (ours == wanted).all()
    assert {one.fate for one in report.origins if one.stored == "MXFP4"} == {Fate.EXACT}


def test_same_image_from_gguf(published: tuple[Path, Path], tmp_path: Path) -> None:
    """llama.cpp puts the same blocks into another order of nibbles, gate and up into tensors of their own."""
    packed, plain = published
    stored = load_file(packed / "model.safetensors")
    kind = gguf.GGMLQuantizationType.MXFP4

    def repack(blocks: npt.NDArray[np.uint8], scales: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        codes = np.stack([blocks & 15, blocks >> 4], axis=-1).reshape(*blocks.shape[:-1], 32)
        data = codes[..., :16] | codes[..., 16:] << 4
        raw = np.concatenate([scales[..., np.newaxis], data], axis=-1)
        return raw.reshape(*raw.shape[:-2], -1)

    ready: dict[str, npt.NDArray[np.uint8]] = {}
    for layer in range(2):
        prefix = f"model.layers.{layer}.mlp.experts."
        both = repack(stored[f"{prefix}gate_up_proj_blocks"], stored[f"{prefix}gate_up_proj_scales"])
        ready[f"blk.{layer}.ffn_gate_exps.weight"], ready[f"blk.{layer}.ffn_up_exps.weight"] = (
            both[:, 0::2],
            both[:, 1::2],
        )
        down = repack(stored[f"{prefix}down_proj_blocks"], stored[f"{prefix}down_proj_scales"])
        ready[f"blk.{layer}.ffn_down_exps.weight"] = down
    order = iter(())

    def choose(name: str, array: npt.NDArray[Any]) -> gguf.GGMLQuantizationType:
        nonlocal order
        order = iter([name])
        return kind if name in ready else gguf.GGMLQuantizationType.F32

    def encoded(array: npt.NDArray[Any], kind: gguf.GGMLQuantizationType) -> npt.NDArray[np.uint8]:
        raw = np.ascontiguousarray(ready[next(order)])
        assert np.array_equal(dequantize(raw, kind), array)
        return raw

    gguf_files.write(plain, tmp_path / "model.gguf", choose=choose, encode=encoded)
    for quant in ("f32", "q8"):
        pack(packed, tmp_path / "0.colibri", quant=quant)
        pack(tmp_path / "model.gguf", tmp_path / "1.colibri", quant=quant)
        assert sections(tmp_path / "0.colibri") == sections(tmp_path / "1.colibri")


def test_what_is_no_number_is_refused(published: tuple[Path, Path], tmp_path: Path) -> None:
    """An exponent of 255 is NaN."""
    packed = tmp_path / "gpt_oss"
    shutil.copytree(published[0], packed)
    weights = load_file(packed / "model.safetensors")
    weights["model.layers.1.mlp.experts.down_proj_scales"][2, 5, 1] = 255
    save_file(weights, packed / "model.safetensors")
    for quant in ("f32", "q8"):
        with pytest.raises(CheckpointError, match=r"down_proj_blocks\[2\] has nan at row 5"):
            pack(packed, tmp_path / "m.colibri", quant=quant)


def test_scales_that_binary16_does_not_reach(published: tuple[Path, Path], tmp_path: Path) -> None:
    """Such a block is quantised anew, and the report says so."""
    packed = tmp_path / "gpt_oss"
    shutil.copytree(published[0], packed)
    weights = load_file(packed / "model.safetensors")
    weights["model.layers.1.mlp.experts.down_proj_scales"][2, 5, 1] = 127 - 30
    save_file(weights, packed / "model.safetensors")
    report = pack(packed, tmp_path / "m.colibri", quant="q8")
    fates = {one.fate for one in report.origins if one.kind == "experts.down"}
    assert fates == {Fate.EXACT, Fate.REQUANTISED}


@pytest.mark.parametrize("missing", ["blocks", "scales"])
def test_half_of_a_pair_is_refused(published: tuple[Path, Path], tmp_path: Path, missing: str) -> None:
    packed = tmp_path / "gpt_oss"
    shutil.copytree(published[0], packed)
    weights = load_file(packed / "model.safetensors")
    del weights[f"model.layers.0.mlp.experts.down_proj_{missing}"]
    save_file(weights, packed / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"model\.layers\.0\.mlp\.experts\.down_proj"):
        pack(packed, tmp_path / "m.colibri")


def test_pair_of_another_shape_is_refused(published: tuple[Path, Path], tmp_path: Path) -> None:
    packed = tmp_path / "gpt_oss"
    shutil.copytree(published[0], packed)
    config = json.loads((packed / "config.json").read_text())
    (packed / "config.json").write_text(json.dumps(config | {"intermediate_size": 32}))
    with pytest.raises(CheckpointError, match=r"has shape \[4, 128, 64\]"):
        pack(packed, tmp_path / "m.colibri")


@given(exponent=st.integers(0, 254), data=st.binary(min_size=16, max_size=16))
def test_every_block_as_the_gguf_package_reads_it(exponent: int, data: bytes) -> None:
    """Both our readings of a block, at every exponent, beside another implementation of each."""
    raw = np.frombuffer(data, np.uint8).reshape(1, 1, 16)
    exponents = np.array([[exponent]], np.uint8)
    whole = np.concatenate([exponents, raw[0]], axis=1)
    with np.errstate(over="ignore"):
        theirs = dequantize(whole, gguf.GGMLQuantizationType.MXFP4)
        assert np.array_equal(Mxfp4.from_halves(exponents, raw).floats(), theirs)
        assert np.array_equal(Mxfp4.from_pairs(exponents, raw).floats(), decode(raw, exponents))
    blocks = Mxfp4.from_pairs(exponents, raw).integers()
    if blocks is not None:
        value = blocks.scale.astype(np.float64)[..., np.newaxis] * blocks.q
        assert np.array_equal(value.reshape(1, -1), decode(raw, exponents))
    assert (blocks is None) == (not 2.0**-24 <= 2.0 ** (exponent - 128) <= 2.0**15)
