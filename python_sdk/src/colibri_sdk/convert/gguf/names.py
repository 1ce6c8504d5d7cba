# SPDX-License-Identifier: Apache-2.0
"""Tensors of a GGUF file under the names, shapes and orders that the transformers library gives them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from colibri_sdk.convert.architectures.blocks import all_heads, pair_halves
from colibri_sdk.convert.description import Rows
from colibri_sdk.convert.gguf.families import IGNORED, LAYER_TENSORS, MODEL_TENSORS, ROPE_FACTORS, Family
from colibri_sdk.convert.gguf.header import Entry
from colibri_sdk.errors import CheckpointError
from colibri_sdk.image.layout import MAX_EXPERTS

_LAYER = re.compile(r"blk\.(\d{1,6})\.(.+)")
_EXPERTS = re.compile(r"ffn_(gate|up|down|gate_up)_exps\.(weight|bias)")
_ONE_EXPERT = re.compile(r"ffn_(gate|up|down)\.(\d{1,6})\.(weight|bias)")
_SHARED = re.compile(r"ffn_(gate|up|down)_shexp\.(weight|bias)")
_PROJECTIONS = ("gate", "up", "down")


@dataclass(frozen=True)
class View:
    """A tensor as the architecture expects it: rows of one stored tensor. `shape` is its shape there."""

    entry: Entry
    shape: tuple[int, ...]
    first_row: int = 0
    order: Rows | None = None

    @property
    def rows(self) -> int:
        """Number of rows, 1 for a vector."""
        rows = 1
        for size in self.shape[:-1]:
            rows *= size
        return rows


def views(tensors: Mapping[str, Entry], family: Family, config: Mapping[str, Any]) -> dict[str, View]:
    """All tensors that take part; a tensor whose name says nothing keeps it, so that it is refused by it."""
    found: dict[str, View] = {}
    for entry in tensors.values():
        for name, view in _translate(entry, family, config):
            if name in found:
                raise CheckpointError(
                    f"{entry.path.name}: tensors {found[name].entry.name!r} and {entry.name!r} are both {name}",
                    "The file is damaged, or of a kind that cannot be read.",
                    where=entry.name,
                )
            found[name] = view
    return found


def _translate(entry: Entry, family: Family, config: Mapping[str, Any]) -> Iterator[tuple[str, View]]:
    if entry.name == ROPE_FACTORS:
        return
    whole = View(entry, entry.shape)
    match = _LAYER.fullmatch(entry.name)
    if match is None:
        yield MODEL_TENSORS.get(entry.name, entry.name), whole
        return
    layer, below = int(match.group(1)), match.group(2)
    if below in IGNORED or (layer >= config["num_hidden_layers"] and config.get("num_nextn_predict_layers")):
        return  # layers behind the last predict further tokens and are not run
    prefix = f"model.layers.{layer}"
    base, _, kind = below.rpartition(".")
    if match := _EXPERTS.fullmatch(below):
        yield from _experts(entry, f"{prefix}.{family.experts}", family, match.group(1), match.group(2))
    elif match := _ONE_EXPERT.fullmatch(below):
        projection = family.projections[_PROJECTIONS.index(match.group(1))]
        yield f"{prefix}.{family.experts}.{match.group(2)}.{projection}.{match.group(3)}", whole
    elif match := _SHARED.fullmatch(below):
        yield f"{prefix}.{family.shared}.{match.group(1)}_proj.{match.group(2)}", whole
    elif base == "ffn_gate_inp":
        yield f"{prefix}.{family.router}.{kind}", whole
    elif below == "exp_probs_b.bias":
        shape = (1, *entry.shape) if "moe_statics" in family.correction else entry.shape
        yield f"{prefix}.{family.correction}", View(entry, shape)
    elif below == "attn_sinks.weight":
        yield f"{prefix}.self_attn.sinks", whole
    elif base in ("attn_q", "attn_k") and family.sorted_rows:
        yield f"{prefix}.{LAYER_TENSORS[base]}.{kind}", _unsorted(entry, base, config)
    elif base in LAYER_TENSORS and kind in ("weight", "bias"):
        shape = entry.shape
        if base in ("attn_k_b", "attn_v_b") and len(shape) == 3:  # all heads below each other
            shape = (shape[0] * shape[1], shape[2])
        elif base == "ffn_gate_inp_shexp" and len(shape) == 1:
            shape = (1, *shape)
        yield f"{prefix}.{LAYER_TENSORS[base]}.{kind}", View(entry, shape)
    else:
        yield entry.name, whole


def _experts(entry: Entry, prefix: str, family: Family, which: str, kind: str) -> Iterator[tuple[str, View]]:
    """Each expert's matrix, or matrices where gate and up lie in one, or bias."""
    gate, up, down = family.projections
    names = {"gate": (gate,), "up": (up,), "down": (down,), "gate_up": (gate, up)}[which]
    count, plane = entry.shape[0], entry.shape[1:]
    if len(entry.shape) != (3 if kind == "weight" else 2) or count > MAX_EXPERTS or plane[0] % len(names):
        raise CheckpointError(
            f"{entry.path.name}: tensor {entry.name!r} has shape {list(entry.shape)}",
            f"Experts, at most {MAX_EXPERTS}, with a {'matrix' if kind == 'weight' else 'vector'} each are expected.",
            where=entry.name,
        )
    height = plane[0] // len(names)
    for expert in range(count):
        for part, name in enumerate(names):
            if kind == "bias":  # a row of a matrix, or a part of it
                part_of_row = np.arange(part * height, (part + 1) * height) if len(names) > 1 else None
                yield f"{prefix}.{expert}.{name}.bias", View(entry, (height,), first_row=expert, order=part_of_row)
            else:
                first = expert * plane[0] + part * height
                yield f"{prefix}.{expert}.{name}.weight", View(entry, (height, plane[1]), first_row=first)


def _unsorted(entry: Entry, base: str, config: Mapping[str, Any]) -> View:
    """Queries or keys whose rows the converter sorted so that neighbours rotate together; this sorts them back."""
    heads = config["num_attention_heads" if base == "attn_q" else "num_key_value_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // max(config["num_attention_heads"], 1)
    if heads < 1 or head_dim % 2 or entry.shape[0] != heads * head_dim:
        raise CheckpointError(
            f"{entry.path.name}: tensor {entry.name!r} has {entry.shape[0]} rows, not {heads} x {head_dim}",
            "The file is damaged.",
            where=entry.name,
        )
    return View(entry, entry.shape, order=all_heads(pair_halves(head_dim, head_dim), heads))
