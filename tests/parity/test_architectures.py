# SPDX-License-Identifier: Apache-2.0
"""Every architecture and every option of it computes what transformers computes, from every spelling of a checkpoint.

tests/parity/NAME are the architectures, tests/parity/variants what those do not vary: options, odd sizes, scalings of
rotary positions, number formats, names of tensors, shards (make_arch.py, make_variants.py).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from colibri_sdk import runners
from colibri_sdk.convert import pack
from colibri_sdk.convert.architectures import ARCHITECTURES
from colibri_sdk.engine import Engine, Library
from colibri_sdk.parity import Case, compare, read_cases

HERE = Path(__file__).resolve().parent
TINY = sorted(path.parent for path in HERE.glob("*/reference.json"))
VARIANTS = sorted(path.parent for path in HERE.glob("variants/*/reference.json"))

Tiny = Callable[[str, str], Path]


@pytest.fixture(scope="module")
def library(host_library: Path) -> Library:
    return Library.load(host_library)


def config_of(directory: Path) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((directory / "config.json").read_text())
    return config


def run(library: Library, directory: Path, image: Path) -> None:
    pack(directory, image, quant="f32", kv="f32")
    (case,) = read_cases(directory)
    assert len(case.ids) == 24 and len(case.greedy) == 16
    for kernels in library.kernels():
        runner = runners.EngineRunner(Engine(library, image, kernels=kernels, trace_routing=True))
        result = compare([case], runner)
        assert result.ok, (kernels, result)
        # Sums in another order, and five decimals in the reference: far inside of what counts as the same.
        assert result.max_abs_diff < 1e-4 and result.max_weight_diff < 1e-4


def test_every_architecture_is_there() -> None:
    assert {config_of(path)["architectures"][0] for path in TINY} == set(ARCHITECTURES)
    varied = {config_of(path)["architectures"][0] for path in VARIANTS}
    assert varied == set(ARCHITECTURES)
    assert len(VARIANTS) > 70


@pytest.mark.parametrize("directory", TINY, ids=lambda path: path.name)
def test_architecture(library: Library, tmp_path: Path, directory: Path) -> None:
    run(library, directory, tmp_path / "m.colibri")


@pytest.mark.parametrize("directory", VARIANTS, ids=lambda path: path.name)
def test_variant(library: Library, tmp_path: Path, directory: Path) -> None:
    run(library, directory, tmp_path / "m.colibri")


# ---------------------------------------------------------------------------------------- would it be noticed at all?

# Of each variant: an option that it is there for, given the value that a reader who ignored it would have.
IGNORED: dict[str, dict[str, Any]] = {
    "llama-linear": {"rope_scaling": None},
    "llama-yarn": {"rope_scaling": None},
    "llama-yarn-settings": {"rope_parameters.truncate": True},
    "llama-yarn-mscale": {"rope_scaling.mscale": None},
    "llama-llama3": {"rope_scaling": None},
    "qwen3-window": {"max_window_layers": 2},
    "qwen3-layer-types": {"layer_types": ["full_attention", "sliding_attention"]},
    "qwen3-bias-tied": {"rms_norm_eps": 1e-6},
    "mixtral-window-tied": {"sliding_window": None},
    "mixtral-top-3-of-5": {"num_experts_per_tok": 2},
    "qwen2_moe-normalised": {"norm_topk_prob": False},
    "qwen2_moe-windows": {"max_window_layers": 0},
    "qwen3_moe-not-normalised": {"norm_topk_prob": True},
    "qwen3_moe-normalised-window": {"use_sliding_window": False},
    "olmoe-clip": {"clip_qkv": None},
    "granitemoe-multipliers": {"residual_multiplier": 1.0},
    "granitemoe-tied": {"logits_scaling": 1.0},
    "deepseek_v2-greedy": {"routed_scaling_factor": 1.0},
    "deepseek_v2-groups": {"topk_method": "greedy"},
    "deepseek_v2-yarn": {"rope_scaling.mscale_all_dim": 0},
    "deepseek_v3-not-normalised": {"norm_topk_prob": True},
    "deepseek_v3-no-groups": {"n_group": 2},
    "deepseek_v3-halves": {"rope_interleave": True},
    "gpt_oss-clamped": {"swiglu_limit": 7.0},
    "gpt_oss-windows": {"sliding_window": 5},
    "gpt_oss-nothing-of-rope": {"rope_parameters": {"rope_type": "default", "rope_theta": 150000.0}},
    "glm4_moe-groups": {"topk_group": 3},
    "glm4_moe-part": {"partial_rotary_factor": 0.5},
    "glm4_moe-default-part": {"partial_rotary_factor": 1.0},
    "ernie4_5_moe-untied": {"moe_k": 2},
}


@pytest.mark.parametrize("name", IGNORED)
def test_an_option_makes_a_difference(library: Library, tmp_path: Path, name: str) -> None:
    """A variant proves that its option is read only if the result without it is another one."""
    source = HERE / "variants" / name
    changed = tmp_path / name
    changed.mkdir()
    for path in source.iterdir():
        (changed / path.name).write_bytes(path.read_bytes())
    config = config_of(source)
    for key, value in IGNORED[name].items():
        *outer, last = key.split(".")
        place = config[outer[0]] if outer else config
        place[last] = value
    (changed / "config.json").write_text(json.dumps(config))
    pack(changed, tmp_path / "m.colibri", quant="f32", kv="f32")
    (case,) = read_cases(source)
    result = compare([case], runners.EngineRunner(Engine(library, tmp_path / "m.colibri", trace_routing=True)))
    assert not result.ok


# ------------------------------------------------------------------------------------------------------ the same bits


@pytest.mark.parametrize("quant", ["q8", "q4", "f16"])
@pytest.mark.parametrize("directory", TINY, ids=lambda path: path.name)
def test_kernels_and_batches_change_no_bit(library: Library, tiny: Tiny, directory: Path, quant: str) -> None:
    """Scalar and vector kernels, prompts as a whole and one token at a time, over the KV cache in every format."""
    image = tiny(directory.name, quant)
    case: Case = read_cases(directory)[0]
    for kv in ("f16", "q8"):
        hashes = set()
        for kernels in library.kernels():
            for batch in (1, 5, 16):
                engine = Engine(library, image, kernels=kernels, batch=batch, kv=kv)
                hashes.add(engine.generate(case.ids, max_tokens=12, ignore_eos=True).logits_sha256)
        assert len(hashes) == 1
