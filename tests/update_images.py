# SPDX-License-Identifier: Apache-2.0
"""Images for tests of updates: one, the same with another expert, one with other weights, and some that are of no use;
from 250 KB."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import checkpoints
from colibri_sdk.convert import pack
from colibri_sdk.image.layout import PAGE, SectionKind
from colibri_sdk.image.reader import ImageFile

LAYER, EXPERT = 1, 2  # the one that differs
SETTINGS = checkpoints.config(hidden_size=64, intermediate_size=128, num_local_experts=4, vocab_size=96)


def make_images(directory: Path) -> dict[str, Path]:
    """By name: "old", "expert" (with another expert in one place), "new" (all weights are others), "large" (its context
    takes more than 2 MB of KV cache), "overflowing" (whole, but no logit is a finite number)."""
    old = checkpoints.tensors(SETTINGS, seed=1)
    changed = dict(old)
    name = f"model.layers.{LAYER}.block_sparse_moe.experts.{EXPERT}.w1.weight"
    changed[name] = old[name][::-1].copy()
    new = checkpoints.tensors(SETTINGS, seed=2)
    overflowing = {**old, "model.norm.weight": np.full(SETTINGS["hidden_size"], 1e38, np.float32)}
    kinds = {"old": old, "expert": changed, "new": new, "large": new, "overflowing": overflowing}
    made = {}
    for kind, tensors in kinds.items():
        settings = {**SETTINGS, **({"max_position_embeddings": 25_000} if kind == "large" else {})}
        made[kind] = directory / f"{kind}.colibri"
        pack(checkpoints.write(directory / kind, settings, tensors), made[kind], quant="q8")
    return made


def blob(image: Path, layer: int = LAYER, expert: int = EXPERT) -> bytes:
    """An expert's bytes, found by the file's directory."""
    with ImageFile(image) as file:
        for index, entry in enumerate(file.experts):
            if (entry["layer"], entry["expert"]) == (layer, expert):
                place = file.place(index)
                return file.bytes_at(place.offset, place.size)
    raise AssertionError(f"{image} has no expert {layer}/{expert}")


def front_pages_to_send(old: Path, new: Path) -> int:
    """How many pages before the experts differ, the first one left out; and those with a checksum of their own, which
    always travel: signature, and the two copies (of a page each) of the list of replaced experts."""
    with ImageFile(new) as file:
        end = file.sections[SectionKind.EXPERTS].offset
        own = {file.sections[SectionKind.SIGNATURE].offset}
        own |= {file.sections[SectionKind.UPDATES].offset + copy * PAGE for copy in range(2)}
    a, b = old.read_bytes(), new.read_bytes()
    return len(own | {at for at in range(PAGE, end, PAGE) if a[at : at + PAGE] != b[at : at + PAGE]})
