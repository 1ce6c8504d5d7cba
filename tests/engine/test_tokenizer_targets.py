# SPDX-License-Identifier: Apache-2.0
"""The ids of the tokenizers library on the boards' processors too, under QEMU's user mode."""

from __future__ import annotations

import json
import random
import shutil
import struct
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from colibri_sdk.convert.template import compile_template
from colibri_sdk.convert.tokenizer import CompiledTokenizer
from native import ENGINE, FLAGS, ROOT
from tokenizer_native import HUMMINGBIRD, SOURCES, Reference, all_references
from tokenizer_pipelines import PIPELINES, with_pipeline, with_whole_words
from tokenizer_sentencepiece import all_models

TARGETS = {
    "host": ("cc", ""),
    "aarch64": ("aarch64-linux-gnu-gcc", "qemu-aarch64"),
    "riscv64": ("riscv64-linux-gnu-gcc", "qemu-riscv64"),
}
CHAT = "be brief: {{ messages[0]['content'] }}\n"


def corpus() -> list[str]:
    """The demo's prompts, every script and class of character, long runs; the same in every run."""
    lines = (HUMMINGBIRD / "eval.jsonl").read_text("utf-8").splitlines()[:40]
    texts = [text for line in lines for text in json.loads(line).values()]
    source = random.Random(20)
    points = [point for point in range(1, 0x20000) if not 0xD800 <= point < 0xE000]
    texts += ["".join(map(chr, source.choices(points, k=40))) for _ in range(100)]
    pieces = [" ", "  ", "\n", "\t", "\u3000", "aab", "it's", "we'll", "12", "\u0663\u0664", "\u4e2d\u6587", "e\u0301"]
    pieces += ["\U0001f469\u200d\U0001f52c", "<|user|>", "?!", "\x01", "\x85"]
    texts += ["".join(source.choices(pieces, k=20)) for _ in range(100)]
    return [*texts, "", "a" * 5000, " " * 5000, "ab" * 2000, "\u4e2d" * 1000, "0123456789" * 300]


@dataclass(frozen=True)
class Case:
    """A compiled tokenizer, and the library's ids for a text."""

    compiled: CompiledTokenizer
    ids: Callable[[str], list[int]]


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> list[Case]:
    """Every kind of model, normalisation, and split."""
    directory = tmp_path_factory.mktemp("json")
    references = all_references(directory)
    trained = references["trained"].path
    for name in PIPELINES:
        references[f"pipeline {name}"] = Reference(with_pipeline(trained, directory / f"{name}.json", name))
    references["whole words"] = Reference(with_whole_words(trained, directory / "whole.json"))
    models = all_models(directory)
    return [Case(one.compiled, one.ids) for one in (*references.values(), *models.values())]


@pytest.mark.parametrize("target", TARGETS)
def test_ids_are_the_library_s(target: str, cases: list[Case], tmp_path: Path) -> None:
    compiler, runner = TARGETS[target]
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not installed")
    program = tmp_path / "tokenizer_ids"
    sources = [ENGINE / name for name in SOURCES] + [ROOT / "tests" / "engine" / "tokenizer_ids.c"]
    command = [compiler, *FLAGS, "-O2", "-static", f"-I{ENGINE}", *map(str, sources), "-o", str(program)]
    subprocess.run(command, check=True, timeout=600)

    expected = []
    texts = corpus()
    with (tmp_path / "cases").open("wb") as out:
        for case in cases:
            section = case.compiled.section
            template = compile_template(CHAT, case.compiled)
            for index, text in enumerate(texts):
                data = text.encode()
                if index == 0:
                    out.write(struct.pack("<4I", len(section), len(template), len(data), case.compiled.vocab))
                    out.write(section + template + data)
                else:  # with the same sections
                    out.write(struct.pack("<4I", 0, 0, len(data), 0) + data)
                framed = case.ids(f"be brief: {text}")
                ids = [f"{token}" for token in framed] + ["|"] + [f"{token}" for token in case.ids(text)]
                expected.append(" ".join(["0", "0", *ids]))
    run = [runner, str(program)] if runner else [str(program)]
    done = subprocess.run([*run, tmp_path / "cases"], capture_output=True, text=True, timeout=1200, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == len(expected) > 2000
    wrong = [index for index, (line, ids) in enumerate(zip(lines, expected, strict=True)) if line != ids]
    assert wrong == []
