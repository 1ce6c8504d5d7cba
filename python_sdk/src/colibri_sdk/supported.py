# SPDX-License-Identifier: Apache-2.0
"""What can be packed and run: tables made from the registries that the packer itself works from.

Nothing is listed here by hand. A new architecture, format or scaling appears in these tables, in `colibri-sdk
supported` and in README.md, between the two markers, by being registered; a test compares README.md with the code.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

from colibri_sdk.convert import rotary
from colibri_sdk.convert.architectures import ARCHITECTURES
from colibri_sdk.convert.checkpoint import Checkpoint
from colibri_sdk.convert.gguf.families import DEEPSEEK_V3, FAMILIES, MIXTRAL
from colibri_sdk.convert.gguf.numbers import READABLE_TYPES
from colibri_sdk.convert.packer import KV_FORMATS
from colibri_sdk.convert.quantisation import ENCODINGS, QUANTISATIONS
from colibri_sdk.convert.routing import MODES
from colibri_sdk.convert.tokenizer_pipeline import NORMALIZERS, PRE_TOKENIZERS
from colibri_sdk.convert.weights import BLOCK_TYPES
from colibri_sdk.errors import UsageError
from colibri_sdk.image.layout import (
    BLOCK,
    TILE_ROWS,
    Activation,
    GroupScore,
    KvFormat,
    QkNorm,
    RouterScore,
    TokenizerKind,
    tensor_bytes,
)

BEGIN = "<!-- supported: made by `colibri-sdk supported --markdown`, compared with the code by a test -->"
END = "<!-- supported: end -->"


@dataclass(frozen=True)
class Table:
    """One table. `key` names it in JSON; a row's cells are texts in Markdown, in the order of `columns`."""

    key: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def plain(self) -> list[list[str]]:
        """The rows without Markdown."""
        return [[cell.replace("`", "") for cell in row] for row in self.rows]

    def as_json(self) -> list[dict[str, str]]:
        return [dict(zip(self.columns, row, strict=True)) for row in self.plain()]


def tables() -> list[Table]:
    """All tables, in the order in which they are shown."""
    return [
        Table("architectures", "Architectures", ("class", "GGUF", "what it is"), tuple(_architectures())),
        Table(
            "inputs",
            "Numbers in checkpoints",
            ("file", "type", "the same numbers in (any other format rounds)"),
            tuple(_inputs()),
        ),
        Table("weights", "Formats of weights", ("name", "bits per weight", "meaning"), tuple(_weights())),
        Table("kv", "Formats of the KV cache", ("name", "bits per number"), tuple(_kv())),
        Table("routers", "Routers", ("kind", "chosen by", "meaning"), tuple(_routers())),
        Table("layers", "Parts of a layer", ("part", "kind", "meaning"), tuple(_layers())),
        Table("rope", "Rotary positions", ("scaling", "meaning"), tuple(_rope())),
        Table("tokenizers", "Tokenizers", ("part", "kind", "meaning"), tuple(_tokenizers())),
    ]


def as_json() -> dict[str, list[dict[str, str]]]:
    return {table.key: table.as_json() for table in tables()}


def markdown() -> str:
    """The tables as README.md has them, markers included."""
    lines = [BEGIN, ""]
    for table in tables():
        lines += [f"**{table.title}**", "", f"| {' | '.join(table.columns)} |", "|---" * len(table.columns) + "|"]
        lines += [f"| {' | '.join(row)} |" for row in table.rows]
        lines.append("")
    return "\n".join([*lines, END])


def update(path: Path) -> bool:
    """Puts the tables between the markers of the file; whether they were others before. Raises UsageError."""
    text = path.read_text("utf-8")
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise UsageError(
            f"{path} does not have the two markers of the tables once each", f"They are {BEGIN} and {END}."
        )
    made = text[: text.index(BEGIN)] + markdown() + text[text.index(END) + len(END) :]
    if made != text:
        path.write_text(made, "utf-8")
    return made != text


# ------------------------------------------------------------------------------------------------------------- rows


def _summary(text: str | None) -> str:
    """The first sentence of a docstring, on one line, without its full stop."""
    return re.split(r"\.(?:\s|$)", " ".join((text or "").split()), maxsplit=1)[0]


def _architectures() -> Iterator[tuple[str, ...]]:
    files: dict[str, list[str]] = {}
    for name, family in {**FAMILIES, "llama (with experts)": MIXTRAL, "deepseek2 (with sigmoids)": DEEPSEEK_V3}.items():
        files.setdefault(family.hf_class, []).append(name)
    for name, describe in ARCHITECTURES.items():
        module = sys.modules[describe.__module__]
        yield f"`{name}`", ", ".join(f"`{one}`" for one in files.get(name, [])) or "—", _summary(module.__doc__)


def _inputs() -> Iterator[tuple[str, ...]]:
    for file, types in (("safetensors", Checkpoint.dtypes), ("GGUF", READABLE_TYPES)):
        for name in types:
            same = [f"`{fmt.name.lower()}`" for fmt in BLOCK_TYPES.get(name, ())]
            if name == "MXFP4":
                same = [f"{one} (scales of 2⁻²⁴ to 2¹⁵)" for one in same]  # what a binary16 holds
            yield file, name, ", ".join([*same, *(["`f16`"] if name == "F16" else []), "`f32`"])


def _weights() -> Iterator[tuple[str, ...]]:
    rows, cols = TILE_ROWS, BLOCK
    for name, encoding in ENCODINGS.items():
        bits = 8 * tensor_bytes(encoding.format, rows, cols) / (rows * cols)
        plan = "" if name in QUANTISATIONS else " (in plans)"
        yield f"`{name}`", f"{bits:g}", encoding.meaning + plan


# Bits of a number in a long row of the cache; q8 has a binary32 scale for each block of 32.
_KV_BITS: Mapping[KvFormat, float] = {KvFormat.F32: 32, KvFormat.F16: 16, KvFormat.Q8: 8 + 32 / BLOCK}


def _kv() -> Iterator[tuple[str, ...]]:
    for name, fmt in KV_FORMATS.items():
        yield f"`{name}`", f"{_KV_BITS[fmt]:g}"


# What the values of the image's enums mean. Each has its line here, or making the tables fails.
_ROUTERS: Mapping[RouterScore, str] = {
    RouterScore.LOGIT: "top-k logits, then a softmax over the chosen",
    RouterScore.SOFTMAX: "softmax over all experts, then top-k; normalised or not",
    RouterScore.SIGMOID: "sigmoid of each logit, then top-k; normalised or not",
    RouterScore.INTEGER: "as logit, in integers: 256-entry exponential table, Q16.16 weights",
    RouterScore.HASH: "by token id: `((token_hash % experts) ^ layer) % experts`, equal weights",
}
_GROUPS: Mapping[GroupScore, str] = {
    GroupScore.MAX: "groups of experts, of which those with the best expert are open to the choice",
    GroupScore.TOP_TWO: "groups of experts, of which those with the best two experts together are open",
}
_NORMS: Mapping[QkNorm, str] = {
    QkNorm.NONE: "queries and keys as they are",
    QkNorm.HEAD: "RMSNorm over each head",
    QkNorm.FULL: "RMSNorm over all heads together",
    QkNorm.LATENT: "RMSNorm over the latent of multi-head latent attention",
}
_ACTIVATIONS: Mapping[Activation, str] = {
    Activation.SWIGLU: "silu(gate) × up",
    Activation.SWIGLU_CLAMPED: "clamped, gate × sigmoid(alpha × gate) × (up + 1)",
}


_MODELS: Mapping[TokenizerKind, str] = {
    TokenizerKind.BYTE_BPE: "byte-level byte-pair encoding, with or without `ignore_merges`",
    TokenizerKind.CHAR_BPE: "SentencePiece's byte-pair encoding, with or without byte fallback",
    TokenizerKind.UNIGRAM: "SentencePiece's unigram model, with or without byte fallback",
}


def _name(value: IntEnum) -> str:
    return value.name.lower().replace("_", "-")


def _routers() -> Iterator[tuple[str, ...]]:
    for score in RouterScore:
        option = _name(score) if _name(score) in MODES else "the checkpoint"
        yield _name(score), option if option == "the checkpoint" else f"`--router {option}`", _ROUTERS[score]
    for group in GroupScore:
        yield f"groups, {_name(group)}", "the checkpoint", _GROUPS[group]
    yield "correction", "the checkpoint", "a number for each expert that takes part in the choice only"
    yield "dynamic map", "`--expert-map FIRST:TOKENS`", "how many experts are in use follows the prompt's length"


def _layers() -> Iterator[tuple[str, ...]]:
    parts: list[tuple[str, type[IntEnum], Callable[[Any], str]]] = [
        ("query and key norm", QkNorm, lambda value: _NORMS[value]),
        ("activation", Activation, lambda value: _ACTIVATIONS[value]),
    ]
    for part, enum, meaning in parts:
        for value in enum:
            yield part, _name(value), meaning(value)


def _rope() -> Iterator[tuple[str, ...]]:
    for name, build in rotary.SCALINGS.items():
        yield f"`{name}`", _summary(build.__doc__)


def _tokenizers() -> Iterator[tuple[str, ...]]:
    for kind in TokenizerKind:
        yield "model", _name(kind), _MODELS[kind]
    for part, known in (("normalizer", NORMALIZERS), ("pre-tokenizer", PRE_TOKENIZERS)):
        for name, meaning in known.items():
            yield part, f"`{name}`", meaning
