# SPDX-License-Identifier: Apache-2.0
"""From checkpoint to image: what goes in comes out, in every spelling, the same bytes each time."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import checkpoints
from colibri_sdk.convert import pack
from colibri_sdk.convert.rotary import inverse_frequencies
from colibri_sdk.errors import CheckpointError, UsageError
from colibri_sdk.image.layout import Format, KvFormat, SectionKind
from colibri_sdk.image.reader import ImageFile

QUANTS = ["q8", "q4", "f16", "f32"]
# Largest error of a weight, relative to the matrix's largest. For 4 bits the peak itself may be clipped, from 8.5 to 7
# where that serves the rest of its block.
BLOCK_ERROR = {"q8": 0.5 / 127 * 1.01, "q4": 0.2, "f16": 2.0**-11, "f32": 0.0}

# The table of updates holds the identity, which the card changes.
WITHOUT_CARD = [kind for kind in SectionKind if kind not in (SectionKind.CARD, SectionKind.UPDATES)]


def contents(path: Path, kinds: list[SectionKind] = WITHOUT_CARD) -> dict[SectionKind, bytes]:
    with ImageFile(path) as image:
        return {kind: image.section_bytes(kind) for kind in kinds if image.has(kind)}


def check_weights(found: checkpoints.Tensors, weights: checkpoints.Tensors, quant: str) -> None:
    """Vectors and, beside quantised matrices, routers are kept as they were."""
    assert found.keys() == weights.keys()
    for name, weight in weights.items():
        wanted = weight.astype(np.float32)
        kept = wanted.ndim == 1 or ("gate.weight" in name and quant in ("q8", "q4"))
        bound = 0.0 if kept else BLOCK_ERROR[quant] * float(np.abs(wanted).max())
        assert np.abs(found[name] - wanted).max() <= bound, name


@pytest.mark.parametrize("quant", QUANTS)
@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_weights_come_back(tmp_path: Path, dtype: str, quant: str) -> None:
    weights = checkpoints.tensors(checkpoints.config(), dtype=dtype)
    source = checkpoints.write(tmp_path / "model", weights=weights)
    pack(source, tmp_path / "m.colibri", quant=quant)
    with ImageFile(tmp_path / "m.colibri") as image:
        assert all(check.ok for check in image.verify())
        found = checkpoints.image_weights(image)
    check_weights(found, weights, quant)


@pytest.mark.parametrize("quant", QUANTS)
def test_real_models_come_back(repo_root: Path, tmp_path: Path, quant: str) -> None:
    from safetensors.numpy import load_file

    for source in (repo_root / "models" / "hummingbird", repo_root / "tests" / "parity" / "mixtral"):
        out = tmp_path / f"{source.name}.colibri"
        report = pack(source, out, quant=quant)
        assert out.stat().st_size == report.image_bytes and report.quantisation == quant
        weights = load_file(source / "model.safetensors")
        assert report.parameters == sum(weight.size for weight in weights.values())
        with ImageFile(out) as image:
            assert all(check.ok for check in image.verify())
            found = checkpoints.image_weights(image)
        check_weights(found, weights, quant)


def test_same_input_gives_the_same_bytes(tmp_path: Path) -> None:
    source = checkpoints.write(tmp_path / "a" / "model")
    shutil.copytree(source, tmp_path / "b" / "model")
    for quant in QUANTS:
        pack(source, tmp_path / "1.colibri", quant=quant)
        pack(tmp_path / "b" / "model", tmp_path / "2.colibri", quant=quant)
        assert (tmp_path / "1.colibri").read_bytes() == (tmp_path / "2.colibri").read_bytes()


@pytest.mark.parametrize("fused", [False, True])
def test_sharded_equals_single(tmp_path: Path, fused: bool) -> None:
    """All but the card, which names the source files."""
    weights = checkpoints.tensors(checkpoints.config(), fused=fused)
    pack(checkpoints.write(tmp_path / "one" / "model", weights=weights), tmp_path / "1.colibri")
    pack(checkpoints.write(tmp_path / "many" / "model", weights=weights, shards=3), tmp_path / "3.colibri")
    assert contents(tmp_path / "1.colibri") == contents(tmp_path / "3.colibri")


def test_fused_equals_separate(tmp_path: Path) -> None:
    for fused in (False, True):
        weights = checkpoints.tensors(checkpoints.config(), fused=fused)
        pack(checkpoints.write(tmp_path / str(fused), weights=weights), tmp_path / f"{fused}.colibri")
    assert contents(tmp_path / "True.colibri") == contents(tmp_path / "False.colibri")


def test_tied_head_shares_the_embedding(tmp_path: Path) -> None:
    tied = checkpoints.config(tie_word_embeddings=True)
    report = pack(checkpoints.write(tmp_path / "tied", tied), tmp_path / "tied.colibri")
    untied = pack(checkpoints.write(tmp_path / "untied"), tmp_path / "untied.colibri")
    assert untied.parameters - report.parameters == 50 * 24
    assert report.sections["resident"] < untied.sections["resident"]
    with ImageFile(tmp_path / "tied.colibri") as image:
        assert image.model["head"]["weight"] == image.model["embedding"]
        assert not int(image.model["head"]["bias"]["format"])


def test_tied_checkpoint_may_store_the_head(tmp_path: Path) -> None:
    tied = checkpoints.config(tie_word_embeddings=True)
    plain = checkpoints.tensors(tied)
    twice = plain | {"lm_head.weight": plain["model.embed_tokens.weight"]}
    pack(checkpoints.write(tmp_path / "1" / "m", tied, plain), tmp_path / "1.colibri")
    pack(checkpoints.write(tmp_path / "2" / "m", tied, twice), tmp_path / "2.colibri")
    assert contents(tmp_path / "1.colibri") == contents(tmp_path / "2.colibri")


@pytest.mark.parametrize(
    "spelling",
    [
        {"rope_theta": 5e5},
        {"rope_theta": ..., "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
        {"rope_theta": 5e5, "rope_parameters": {"rope_theta": 5e5}},
        {"rope_theta": 5e5, "rope_scaling": None},
        {"rope_theta": 5e5, "rope_scaling": {"type": "default"}},
    ],
)
def test_spellings_of_the_rotary_base(tmp_path: Path, spelling: dict[str, Any]) -> None:
    pack(checkpoints.write(tmp_path / "m", checkpoints.config(**spelling)), tmp_path / "m.colibri")
    with ImageFile(tmp_path / "m.colibri") as image:
        cosines, sines = image.rotary_tables()
    assert cosines.shape == sines.shape == (64, 3)
    angles = np.arange(64)[:, None] * 5e5 ** (-np.array([0, 2, 4]) / 6)
    assert np.abs(cosines - np.cos(angles)).max() < 1e-5
    assert np.abs(sines - np.sin(angles)).max() < 1e-5


def test_rotary_frequencies_are_those_of_float32_libraries() -> None:
    """1 / (theta ** (i / dim)) as float32 gives it with correct rounding of each step; torch computes these."""
    exponents = (np.arange(0, 32, 2, dtype=np.float32) / np.float32(32)).astype(np.float64)
    powers = np.array([np.float32(10000.0**e) for e in exponents])
    assert np.array_equal(inverse_frequencies(10000.0, 32), np.float32(1) / powers)


def test_head_dim_may_be_left_out(tmp_path: Path) -> None:
    for name, settings in (("given", checkpoints.config()), ("left", checkpoints.config(head_dim=...))):
        pack(checkpoints.write(tmp_path / name, settings), tmp_path / f"{name}.colibri")
    assert contents(tmp_path / "given.colibri") == contents(tmp_path / "left.colibri")


@pytest.mark.parametrize(("config_ids", "generation_ids", "expected"), [
    (1, None, [1]),
    ([7, 3, 3], None, [3, 7]),
    (1, [5, 2], [2, 5]),
    (None, None, []),
    (None, 9, [9]),
])  # fmt: skip
def test_end_tokens(tmp_path: Path, config_ids: Any, generation_ids: Any, expected: list[int]) -> None:
    source = checkpoints.write(tmp_path / "m", checkpoints.config(eos_token_id=config_ids))
    if generation_ids is not None:
        (source / "generation_config.json").write_text(json.dumps({"eos_token_id": generation_ids}))
    pack(source, tmp_path / "m.colibri")
    with ImageFile(tmp_path / "m.colibri") as image:
        count = int(image.model["eos_count"])
        assert image.model["eos"][:count].tolist() == expected == image.card["eos_token_ids"]


def test_context_limits_the_rotary_tables(tmp_path: Path) -> None:
    source = checkpoints.write(tmp_path / "m")
    assert pack(source, tmp_path / "m.colibri", context=10).sections["rope"] == 2 * 10 * 3 * 4
    with ImageFile(tmp_path / "m.colibri") as image:
        assert image.model["context_max"] == 10
    for context in (0, 65):
        with pytest.raises(UsageError, match="1 to 64"):
            pack(source, tmp_path / "other.colibri", context=context)
    assert not (tmp_path / "other.colibri").exists()


@pytest.mark.parametrize("kv", ["f16", "f32", "q8"])
def test_kv_format_is_recorded(tmp_path: Path, kv: str) -> None:
    pack(checkpoints.write(tmp_path / "m"), tmp_path / "m.colibri", kv=kv)
    with ImageFile(tmp_path / "m.colibri") as image:
        assert KvFormat(int(image.model["kv_format"])).name.lower() == kv


def test_router_keeps_its_precision(tmp_path: Path) -> None:
    source = checkpoints.write(tmp_path / "m")
    expected = {"q8": Format.F32, "q4": Format.F32, "f16": Format.F16, "f32": Format.F32}
    for quant, fmt in expected.items():
        pack(source, tmp_path / "m.colibri", quant=quant)
        with ImageFile(tmp_path / "m.colibri") as image:
            routers = image.layers["router"]["gate"]["weight"]["format"]
            assert [Format(int(one)) for one in routers] == [fmt, fmt]


def test_unknown_options_are_refused(tmp_path: Path) -> None:
    source = checkpoints.write(tmp_path / "m")
    with pytest.raises(UsageError, match="'q5'"):
        pack(source, tmp_path / "m.colibri", quant="q5")
    with pytest.raises(UsageError, match="'q4'"):
        pack(source, tmp_path / "m.colibri", kv="q4")


def test_card_says_where_the_image_comes_from(repo_root: Path, tmp_path: Path) -> None:
    source = repo_root / "models" / "hummingbird"
    report = pack(source, tmp_path / "h.colibri", quant="q8")
    with ImageFile(tmp_path / "h.colibri") as image:
        card = image.card
        assert image.image_id == report.image_id and image.model_name == "hummingbird"
    for name, digest in card["sources"].items():
        assert hashlib.sha256((source / name).read_bytes()).hexdigest() == digest
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= card["sources"].keys()
    assert card["parameters"] == 3609728
    assert card["special_tokens"] == {"<|bos|>": 0, "<|eos|>": 1, "<|user|>": 2, "<|assistant|>": 3}
    assert card["tokens"]["bos_token"] == "<|bos|>" and "<|user|>" in card["chat_template"]
    assert card["generation"]["max_new_tokens"] == 96 and card["eos_token_ids"] == [1]
    assert str(tmp_path) not in json.dumps(card) and str(repo_root) not in json.dumps(card)


@pytest.mark.parametrize(("readme", "expected"), [
    ("---\nlicense: apache-2.0\ntags: [moe]\n---\n# Model\n", "apache-2.0"),
    ("---\nlanguage: en\n---\nlicense: no\n", None),
    ("# Model\nlicense: mit\n", None),
])  # fmt: skip
def test_card_has_the_licence_of_the_front_matter(tmp_path: Path, readme: str, expected: str | None) -> None:
    source = checkpoints.write(tmp_path / "m")
    (source / "README.md").write_text(readme)
    pack(source, tmp_path / "m.colibri")
    with ImageFile(tmp_path / "m.colibri") as image:
        assert image.card["licence"] == expected


class Recorder:
    """A Progress that remembers."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, int, str]] = []

    def update(self, done_bytes: int, total_bytes: int, what: str) -> None:
        self.calls.append((done_bytes, total_bytes, what))


class Meddler:
    """A Progress during which something happens."""

    def __init__(self, action: Callable[[str], None]) -> None:
        self.action = action

    def update(self, done_bytes: int, total_bytes: int, what: str) -> None:
        self.action(what)


def test_file_that_disappears_is_named(tmp_path: Path) -> None:
    source = checkpoints.write(tmp_path / "m")
    meddler = Meddler(lambda _: (source / "model.safetensors").unlink(missing_ok=True))
    with pytest.raises(CheckpointError, match=r"model\.safetensors cannot be read: No such file"):
        pack(source, tmp_path / "m.colibri", progress=meddler)
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def test_interrupt_leaves_nothing(tmp_path: Path) -> None:
    def interrupt(what: str) -> None:
        if "experts.1" in what:
            raise KeyboardInterrupt

    source = checkpoints.write(tmp_path / "m")
    with pytest.raises(KeyboardInterrupt):
        pack(source, tmp_path / "m.colibri", progress=Meddler(interrupt))
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


@pytest.mark.parametrize("fused", [False, True])
def test_progress_runs_from_start_to_end(tmp_path: Path, fused: bool) -> None:
    recorder = Recorder()
    weights = checkpoints.tensors(checkpoints.config(), dtype="BF16", fused=fused)
    pack(checkpoints.write(tmp_path / "m", weights=weights), tmp_path / "m.colibri", progress=recorder)
    done = [call[0] for call in recorder.calls]
    assert done == sorted(done)
    assert done[-1] == recorder.calls[-1][1] and len({call[1] for call in recorder.calls}) == 1
    assert any("experts" in call[2] for call in recorder.calls)


def test_memory_stays_below_one_layer(tmp_path: Path) -> None:
    """A checkpoint of 20 MB whose layers have 6.5 MB each in float32; the search for 4-bit scales needs the most."""
    settings = checkpoints.config(
        hidden_size=256, intermediate_size=512, num_local_experts=4, head_dim=64, num_hidden_layers=3, vocab_size=2000
    )
    weights = checkpoints.tensors(settings, dtype="BF16")
    layer = 4 * sum(weight.size for name, weight in weights.items() if name.startswith("model.layers.0."))
    source = checkpoints.write(tmp_path / "m", settings, weights, shards=3)
    del weights
    peaks = {}
    for quant in ("q8", "q4"):
        tracemalloc.start()
        pack(source, tmp_path / "m.colibri", quant=quant)
        peaks[quant] = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peaks["q8"] < layer, peaks
    assert peaks["q4"] < layer, peaks


def test_failed_pack_leaves_the_old_image_and_nothing_else(tmp_path: Path) -> None:
    weights = checkpoints.tensors(checkpoints.config())
    good = checkpoints.write(tmp_path / "good", weights=weights)
    out = tmp_path / "out" / "m.colibri"
    out.parent.mkdir()
    pack(good, out)
    before = out.read_bytes()
    weights["model.layers.1.block_sparse_moe.experts.2.w2.weight"][3, 4] = np.nan
    bad = checkpoints.write(tmp_path / "bad", weights=weights)
    with pytest.raises(CheckpointError, match=r"layers\.1\.block_sparse_moe\.experts\.2\.w2\.weight"):
        pack(bad, out)
    assert out.read_bytes() == before
    assert [path.name for path in out.parent.iterdir()] == ["m.colibri"]


def test_unwritable_target_is_named(tmp_path: Path) -> None:
    source = checkpoints.write(tmp_path / "m")
    with pytest.raises(UsageError, match=r"nowhere/m\.colibri cannot be written"):
        pack(source, tmp_path / "nowhere" / "m.colibri")


def test_bfloat16_in_a_process_of_its_own(repo_root: Path, tmp_path: Path) -> None:
    """NumPy knows bfloat16 only where someone has taught it: here this test's own imports would do it."""
    source = repo_root / "tests" / "parity" / "variants" / "mixtral-fused"
    code = "import sys, pathlib; from colibri_sdk.convert import pack; pack(*map(pathlib.Path, sys.argv[1:]))"
    subprocess.run([sys.executable, "-c", code, source, tmp_path / "m.colibri"], check=True, timeout=120)
    assert (tmp_path / "m.colibri").is_file()
