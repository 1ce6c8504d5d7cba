# SPDX-License-Identifier: Apache-2.0
"""Short runs of mutation over each kind of file that is packed, with fresh seeds: packs, or a CheckpointError.

No other exception, no warning of a calculation that went wrong, and little memory. Mutants are made of small whole
models, so that what survives the header goes on into configuration, names and numbers.
"""

from __future__ import annotations

import json
import struct
import tracemalloc
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gguf_files
from colibri_sdk.convert import pack
from colibri_sdk.errors import CheckpointError

PARITY = Path(__file__).resolve().parent.parent / "parity"
MODELS = sorted(path.parent.name for path in PARITY.glob("*/reference.json"))
RUNS = settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
MEMORY = 64 << 20

SIZES = st.sampled_from([0, 1, 2, 3, 255, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63 - 1, 2**63, 2**64 - 1])
WORDS = SIZES | st.integers(0, 2**64 - 1) | st.integers(0, 255)
EDITS = st.lists(st.tuples(st.floats(0, 1), WORDS, st.sampled_from([1, 4, 8])), min_size=1, max_size=4)

Edits = list[tuple[float, int, int]]


def edited(sound: bytes, start: int, end: int, edits: Edits) -> bytes:
    """Words between two places replaced; where, as a share of the way."""
    out = bytearray(sound)
    for share, word, width in edits:
        at = start + int(share * (end - start - 8))
        out[at : at + width] = word.to_bytes(8, "little")[:width]
    return bytes(out)


def survives(checkpoint: Path, quant: str) -> None:
    tracemalloc.start()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            pack(checkpoint, checkpoint.parent / "out.colibri", quant=quant)
    except CheckpointError as error:
        assert error.message and len(error.message) < 3000
    finally:
        assert tracemalloc.get_traced_memory()[1] < MEMORY
        tracemalloc.stop()


@pytest.fixture
def room(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


@cache
def gguf_file(name: str, directory: Path) -> tuple[bytes, int]:
    """A model as GGUF and where its tensors begin."""
    path = directory / f"sound-{name}.gguf"
    tokenizer = name == "hummingbird"
    source = PARITY.parent.parent / "models" / name if tokenizer else PARITY / name
    gguf_files.write(source, path, tokenizer=tokenizer)
    return path.read_bytes(), int(min(tensor.data_offset for tensor in gguf.GGUFReader(path).tensors))


@pytest.mark.fuzz
@RUNS
@given(name=st.sampled_from(MODELS), edits=EDITS, quant=st.sampled_from(["f32", "q8", "q4", "keep"]))
def test_gguf_headers(room: Path, name: str, edits: Edits, quant: str) -> None:
    sound, end = gguf_file(name, room)
    mutant = room / "mutant.gguf"
    mutant.write_bytes(edited(sound, 0, end, edits))
    survives(mutant, quant)


@pytest.mark.fuzz
@settings(RUNS, max_examples=20)
@given(edits=EDITS)
def test_gguf_tokenizers(room: Path, edits: Edits) -> None:
    """The demo model: most of its header are tokens, types and merges."""
    sound, end = gguf_file("hummingbird", room)
    mutant = room / "mutant.gguf"
    mutant.write_bytes(edited(sound, 0, end, edits))
    survives(mutant, "q8")


Kind = gguf.GGUFValueType
SETTINGS = st.one_of(
    st.tuples(st.sampled_from([0, -1, 1, 2, 3, 7, 2**31 - 1, -(2**31)]), st.just(Kind.INT32)),
    st.tuples(st.sampled_from([0, 1, 17, 2**32 - 1]), st.just(Kind.UINT32)),
    st.tuples(st.sampled_from([0, 2**40, 2**63, 2**64 - 1]), st.just(Kind.UINT64)),
    st.tuples(st.floats(width=32), st.just(Kind.FLOAT32)),
    st.tuples(st.floats(), st.just(Kind.FLOAT64)),
    st.tuples(st.booleans(), st.just(Kind.BOOL)),
    st.tuples(st.sampled_from(["", "yarn", "linear", "none", "longrope", "gpt2", "x" * 100]), st.just(Kind.STRING)),
    st.tuples(st.sampled_from([[1, 2], [4, 4, 4], [0.5], ["a"]]), st.just(Kind.ARRAY)),
)
MORE = [
    "rope.scaling.type", "rope.scaling.factor", "rope.scaling.original_context_length", "rope.scale_linear",
    "rope.scaling.yarn_log_multiplier", "rope.scaling.yarn_attn_factor", "attention.sliding_window", "attention.scale",
    "nextn_predict_layers", "expert_gating_func", "expert_weights_norm", "rope.dimension_count", "expert_group_count",
    "expert_group_used_count", "expert_shared_count", "attention.clamp_kqv", "attention.key_length_mla",
]  # fmt: skip


@pytest.mark.fuzz
@RUNS
@given(name=st.sampled_from(MODELS), changes=st.lists(st.tuples(st.integers(0, 60), SETTINGS), min_size=1, max_size=3))
def test_gguf_settings(room: Path, name: str, changes: list[tuple[int, tuple[Any, Kind]]]) -> None:
    """Metadata of any type with any value, those that a file has and others."""

    def change(writer: gguf.GGUFWriter) -> None:
        for index, (value, kind) in changes:
            keys = [*writer.kv_data[0], *(f"{writer.arch}.{suffix}" for suffix in MORE)]
            key = keys[index % len(keys)]
            writer.kv_data[0].pop(key, None)
            sub_type = Kind.get_type(value[0]) if isinstance(value, list) else None
            writer.add_key_value(key, value, kind, sub_type=sub_type)

    gguf_files.write(PARITY / name, room / "mutant.gguf", change=change)
    survives(room / "mutant.gguf", "f32")


@pytest.mark.fuzz
@RUNS
@given(name=st.sampled_from(MODELS), edits=EDITS, quant=st.sampled_from(["f32", "q8"]))
def test_safetensors_headers(room: Path, name: str, edits: Edits, quant: str) -> None:
    directory = room / "model"
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_bytes((PARITY / name / "config.json").read_bytes())
    sound = (PARITY / name / "model.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", sound[:8])
    (directory / "model.safetensors").write_bytes(edited(sound, 0, 8 + length, edits))
    survives(directory, quant)


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from(["", "yarn", "linear", "llama3", "default"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["rope_type", "factor"]), inner),
    max_leaves=4,
)


@pytest.mark.fuzz
@RUNS
@given(name=st.sampled_from(MODELS), changes=st.lists(st.tuples(st.integers(0, 60), VALUES), min_size=1, max_size=2))
def test_configurations(room: Path, name: str, changes: list[tuple[int, Any]]) -> None:
    """config.json with any value in the place of one, within its rotary settings too."""
    directory = room / "model"
    directory.mkdir(exist_ok=True)
    config = json.loads((PARITY / name / "config.json").read_text())
    for index, value in changes:
        places = [(config, key) for key in config]
        places += [(block, key) for block in config.values() if isinstance(block, dict) for key in block]
        where, key = places[index % len(places)]
        where[key] = value
    (directory / "config.json").write_text(json.dumps(config))
    weights = directory / "model.safetensors"
    weights.unlink(missing_ok=True)
    weights.symlink_to(PARITY / name / "model.safetensors")
    survives(directory, "f32")
