# SPDX-License-Identifier: Apache-2.0
"""Coverage-guided fuzzing of the files that are packed, by atheris: each is read, or refused by a CheckpointError.

python host_tools/fuzz/fuzz_inputs.py {safetensors,gguf,tokenizer,config} SEEDS [libFuzzer's options] [corpus]

Writes seeds into the directory SEEDS, which is a corpus. Options such as -runs=2000 -seed=1 or -max_total_time=60 are
libFuzzer's. JSON is fuzzed as text in every fourth run; in the others, values of a sound document are replaced.
"""

from __future__ import annotations

import json
import struct
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import atheris
import numpy as np
from gguf import GGUFWriter
from safetensors.numpy import save

with atheris.instrument_imports(include=["colibri_sdk.convert"]):
    from seeds_tokenizer import sentencepiece, with_rules

    from colibri_sdk.convert import architectures, safetensors_header
    from colibri_sdk.convert.gguf import header as gguf_header
    from colibri_sdk.convert.gguf.metadata import Metadata
    from colibri_sdk.convert.gguf.tokenizer import compile_from
    from colibri_sdk.convert.tokenizer import compile_tokenizer
from colibri_sdk.errors import CheckpointError

PARITY = Path(__file__).resolve().parents[2] / "tests" / "parity"
NUMBERS: tuple[Any, ...] = (0, 1, -1, 2, 255, 1 << 31, 1 << 63, 1e308, 0.5)
VALUES = (None, True, False, *NUMBERS, "", "x", "\u2581", "\ud800", [], {}, [[]], {"type": "BPE"})


def safetensors(file: Path) -> None:
    safetensors_header.read_header(file)


def gguf(file: Path) -> None:
    compile_from(Metadata(file, gguf_header.read_header(file).metadata), 1 << 16)


def tokenizer(file: Path) -> None:
    compile_tokenizer(file, 1 << 16)


def config(file: Path) -> None:
    try:
        document = json.loads(file.read_text("utf-8"))
    except (ValueError, RecursionError):
        return  # refused by Checkpoint, as the other JSON files are
    if isinstance(document, dict):
        architectures.describe(document, frozenset())


def a_gguf(directory: Path) -> bytes:
    path = directory / "seed.gguf"
    writer = GGUFWriter(path, "llama")
    writer.add_tokenizer_model("t5")
    texts = ["<unk>", "\u2581", "a", "b", "ab"]
    writer.add_token_list(texts)
    writer.add_token_scores([0.0, -1.0, -2.0, -3.0, -4.0])
    writer.add_token_types([2, 1, 1, 1, 4])
    writer.add_precompiled_charsmap(struct.pack("<3I", 8, 0, 0) + b"x\0")
    writer.add_tensor("token_embd.weight", np.zeros((2, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.read_bytes()


def seeds(target: str, directory: Path) -> Iterator[bytes]:
    match target:
        case "safetensors":
            yield save({"a": np.zeros((2, 3), np.float32), "b.c": np.zeros(4, np.float16)})
        case "gguf":
            yield a_gguf(directory)
        case "tokenizer":
            for document in (sentencepiece("BPE"), sentencepiece("Unigram"), with_rules()):
                yield b"\0" + json.dumps(document).encode()
        case _:
            for path in sorted(PARITY.glob("*/config.json")):
                yield b"\0" + path.read_bytes()


def replaced(document: Any, data: atheris.FuzzedDataProvider) -> Any:
    """The document with a few of its values replaced, taken out, or found somewhere else."""
    places: list[tuple[Any, Any]] = []

    def visit(value: Any) -> None:
        for key in list(value) if isinstance(value, dict) else range(len(value)):
            places.append((value, key))
            if isinstance(value[key], dict | list):
                visit(value[key])

    visit(document)
    for _ in range(data.ConsumeIntInRange(1, 4)):
        if not places:
            break
        holder, key = places[data.ConsumeIntInRange(0, len(places) - 1)]
        other, place = places[data.ConsumeIntInRange(0, len(places) - 1)]
        choice = data.ConsumeIntInRange(0, len(VALUES) + 1)
        try:
            holder[key] = VALUES[choice] if choice < len(VALUES) else json.loads(json.dumps(other[place]))
        except (KeyError, IndexError):  # it went with what it was in
            continue
    return document


def json_text(raw: bytes, sound: list[bytes]) -> bytes:
    """As the first byte says: the rest as it is, or a sound document in which the rest replaces values."""
    if not raw or raw[0] % 4 == 0:
        return raw[1:]
    document = json.loads(sound[raw[0] // 4 % len(sound)][1:])
    return json.dumps(replaced(document, atheris.FuzzedDataProvider(raw[1:]))).encode()


TARGETS: dict[str, Callable[[Path], None]] = {
    "safetensors": safetensors,
    "gguf": gguf,
    "tokenizer": tokenizer,
    "config": config,
}


def main() -> None:
    if len(sys.argv) < 3 or sys.argv[1] not in TARGETS:
        sys.exit(__doc__)
    name, out = sys.argv[1], Path(sys.argv[2])
    read = TARGETS[name]
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        sound = list(seeds(name, Path(directory)))
        for number, seed in enumerate(sound):
            (out / f"{name}-{number}").write_bytes(seed)
        file = Path(directory) / "input"

        def one(raw: bytes) -> None:
            file.write_bytes(json_text(raw, sound) if name in ("tokenizer", "config") else raw)
            try:
                read(file)
            except CheckpointError as error:
                assert error.message

        atheris.Setup([sys.argv[0], *sys.argv[3:], str(out)], one)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
