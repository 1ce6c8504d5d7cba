# SPDX-License-Identifier: Apache-2.0
"""Writes seed inputs for fuzz_image into a directory: tiny images of every format, with and without a tokenizer, and
some of every part of the layer description, from the checkpoints of tests/parity/variants; some with replaced experts.

python host_tools/fuzz/seeds_image.py build/fuzz/seeds-image

Each comes with a zeroed header checksum, which tells the target to make all checksums right; one has its own.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file
from seeds_tokenizer import TRIMMING, small

from colibri_sdk.convert import pack
from colibri_sdk.image.layout import HEADER, MODEL, UPDATE, SectionKind
from colibri_sdk.image.reader import ImageFile
from colibri_sdk.image.updates import encode_copy

HEADER_CRC = HEADER.fields["header_crc32"][1]

BASE = {
    "architectures": ["MixtralForCausalLM"],
    "model_type": "mixtral",
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "eos_token_id": 1,
    "max_position_embeddings": 24,
}
# One shape that fits tiles and blocks, one that fits nothing, one layer and two.
SHAPES = {
    "even": {
        "vocab_size": 32, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
        "num_key_value_heads": 1, "head_dim": 16, "num_local_experts": 2, "num_experts_per_tok": 1,
    },
    "odd": {
        "vocab_size": 37, "hidden_size": 20, "intermediate_size": 42, "num_hidden_layers": 2, "num_attention_heads": 3,
        "num_key_value_heads": 3, "head_dim": 6, "num_local_experts": 3, "num_experts_per_tok": 2,
    },
}  # fmt: skip


VARIANTS = Path(__file__).resolve().parents[2] / "tests" / "parity" / "variants"
# Between them: latent attention, low-rank queries, windows, sinks, biases, norms of queries and keys, clipping, groups,
# corrections, shared blocks with and without a gate, dense layers, integer and hashed routers, maps, every cache.
DESCRIPTIONS: dict[str, dict[str, Any]] = {
    "deepseek_v3-odd": {"quant": "q8", "kv": "q8"},
    "deepseek_v3-not-normalised": {"quant": "f32"},
    "deepseek_v2-groups": {"quant": "q4", "kv": "q8"},
    "gpt_oss-odd": {"quant": "q8"},
    "glm4_moe-odd": {"quant": "q4", "kv": "f32"},
    "olmoe-fused": {"quant": "f16"},
    "qwen2_moe-fused": {"quant": "q8"},
    "qwen3-odd": {"quant": "q4", "kv": "q8"},
    "ernie4_5_moe-odd": {"quant": "q8", "router": "hash", "expert_map": "5:3"},
    "mixtral-odd": {"quant": "q8", "router": "integer", "expert_map": "6:2"},
}


def tensors(config: dict[str, Any]) -> dict[str, npt.NDArray[np.float32]]:
    random = np.random.default_rng(0)
    hidden, width = config["hidden_size"], config["intermediate_size"]
    query = config["num_attention_heads"] * config["head_dim"]
    kv = config["num_key_value_heads"] * config["head_dim"]
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config["vocab_size"], hidden),
        "model.norm.weight": (hidden,),
        "lm_head.weight": (config["vocab_size"], hidden),
    }
    for layer in range(config["num_hidden_layers"]):
        name = f"model.layers.{layer}"
        shapes |= {
            f"{name}.input_layernorm.weight": (hidden,),
            f"{name}.post_attention_layernorm.weight": (hidden,),
            f"{name}.self_attn.q_proj.weight": (query, hidden),
            f"{name}.self_attn.k_proj.weight": (kv, hidden),
            f"{name}.self_attn.v_proj.weight": (kv, hidden),
            f"{name}.self_attn.o_proj.weight": (hidden, query),
            f"{name}.block_sparse_moe.gate.weight": (config["num_local_experts"], hidden),
        }
        for expert in range(config["num_local_experts"]):
            shapes |= {
                f"{name}.block_sparse_moe.experts.{expert}.w1.weight": (width, hidden),
                f"{name}.block_sparse_moe.experts.{expert}.w2.weight": (hidden, width),
                f"{name}.block_sparse_moe.experts.{expert}.w3.weight": (width, hidden),
            }
    return {name: random.standard_normal(shape, np.float32) for name, shape in shapes.items()}


def write_checkpoint(directory: Path, config: dict[str, Any], *, tokenizer: bool) -> Path:
    directory.mkdir()
    if tokenizer:
        compiled = small(directory)
        config = config | {"vocab_size": compiled.vocab}
        settings = {"chat_template": TRIMMING, "bos_token": "<a>", "eos_token": "<b>"}
        (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    (directory / "config.json").write_text(json.dumps(config))
    save_file(tensors(config), directory / "model.safetensors")
    return directory


def main(out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        for shape, sizes in SHAPES.items():
            for tokenizer in (False, True):
                checkpoint = Path(name) / f"{shape}-{tokenizer}"
                write_checkpoint(checkpoint, BASE | sizes, tokenizer=tokenizer)
                for quant in ("q8", "q4", "f16", "f32"):
                    if tokenizer and quant in ("f16", "f32"):
                        continue  # large, and nothing new
                    seed = out / f"{shape}-{'text' if tokenizer else 'ids'}-{quant}"
                    pack(checkpoint, seed, quant=quant, kv="f16" if quant == "q8" else "f32")
                    if (shape, quant) == ("even", "q8"):
                        (out / f"{seed.name}-sealed").write_bytes(seed.read_bytes())
                    unseal(seed)
    for name, options in DESCRIPTIONS.items():
        pack(VARIANTS / name, out / name, context=24, **options)
        replace_experts(out / name, out / f"{name}-replaced")
        if name == "qwen3-odd":
            lengthen(out / name, out / f"{name}-endless")
        unseal(out / name)


def replace_experts(image: Path, out: Path) -> None:
    """The same image with its first expert in the spare place, and the second, if it has the same length, where the
    first was. Nothing for a model without experts."""
    data = np.fromfile(image, np.uint8)
    with ImageFile(image) as file:
        if not len(file.experts):
            return
        updates, experts = file.sections[SectionKind.UPDATES], file.sections[SectionKind.EXPERTS]
        first, second = file.experts[0], file.experts[1]
        chosen = [(first, experts.bytes - file.spare_places[1]), (second, int(first["offset"]))]
        image_id = bytes(file.header["image_id"])
    entries = np.zeros(2 if second["bytes"] == first["bytes"] else 1, UPDATE)
    for entry, (packed, offset) in zip(entries, chosen, strict=False):
        size = int(packed["bytes"])
        source = experts.offset + int(packed["offset"])
        data[experts.offset + offset : experts.offset + offset + size] = data[source : source + size]
        for name in ("bytes", "layer", "expert", "crc32", "digest"):
            entry[name] = packed[name]
        entry["offset"], entry["generation"], entry["image_id"] = offset, 1, np.void(image_id)
    half = updates.bytes // 2
    copy = encode_copy(entries, 2, image_id, half)
    data[updates.offset + half : updates.offset + updates.bytes] = np.frombuffer(copy, np.uint8)
    data.tofile(out)
    unseal(out)


def lengthen(image: Path, out: Path) -> None:
    """The same image with rotary tables of a size that no pointer reaches."""
    data = np.fromfile(image, np.uint8)
    with ImageFile(image) as file:
        at = file.sections[SectionKind.MODEL].offset
    model = data[at : at + MODEL.itemsize].view(MODEL)
    model["context_max"] = model["rotary_dim"] = 0xFFFFFFFF
    data.tofile(out)
    unseal(out)


def unseal(seed: Path) -> None:
    image = bytearray(seed.read_bytes())
    image[HEADER_CRC : HEADER_CRC + 4] = bytes(4)
    seed.write_bytes(image)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
