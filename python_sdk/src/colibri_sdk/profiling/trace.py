# SPDX-License-Identifier: Apache-2.0
"""Recorded routing: which experts each layer needed for each batch of tokens, and the file that keeps it.

A step is one layer of one batch, in the order of computation: what the engine's expert store decides on. The file is an
.npz of NumPy with the arrays below and nothing pickled; all numbers are unsigned.

| array | shape | meaning |
|---|---|---|
| `version` | () | 1 |
| `image_id` | [ids][16] | bytes: the images that route so; the recorded one, and those with other pins |
| `model` | () | the model's name |
| `batch` | () | tokens of a prompt that were computed together |
| `experts` | [layers] | experts of each layer, 0: it has no router |
| `step_layer` | [steps] | the layer |
| `step_tokens` | [steps] | tokens of the batch |
| `step_first` | [steps + 1] | where the step's experts begin in `expert`; the last one is their number |
| `expert` | [uses] | distinct experts of the step, ascending |
| `expert_tokens` | [uses] | how many of the step's tokens chose it |
| `prompt_first` | [prompts + 1] | the first step of each prompt; the last one is the number of steps |
| `prompt_tokens` | [prompts] | positions computed for the prompt itself |
| `answer_tokens` | [prompts] | positions computed behind it |
"""

from __future__ import annotations

import struct
import tokenize
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from colibri_sdk.errors import UsageError
from colibri_sdk.image.layout import MAX_EXPERTS, MAX_LAYERS
from colibri_sdk.whole_file import whole_file

VERSION = 1
_ZIP = b"PK\x03\x04"
ID_BYTES = 16

U32 = npt.NDArray[np.uint32]
U64 = npt.NDArray[np.uint64]

_ARRAYS = (
    *("step_layer", "step_tokens", "step_first", "expert", "expert_tokens"),
    *("prompt_first", "prompt_tokens", "answer_tokens"),
)

# What NumPy and zipfile raise for damaged files.
_UNREADABLE = (
    *(ValueError, LookupError, EOFError, RuntimeError, TypeError, MemoryError),
    *(struct.error, zipfile.BadZipFile, zlib.error, OverflowError, tokenize.TokenError),
)

_AGAIN = "Record it with `colibri-sdk profile MODEL --prompts FILE -o TRACE`."


@dataclass(frozen=True)
class RoutingTrace:
    """Recorded routing. The arrays are those of the file, in this module's table; the ids in hexadecimal."""

    image_ids: tuple[str, ...]
    model: str
    batch: int
    experts: tuple[int, ...]
    step_layer: U32
    step_tokens: U32
    step_first: U64
    expert: U32
    expert_tokens: U32
    prompt_first: U64
    prompt_tokens: U32
    answer_tokens: U32

    @property
    def steps(self) -> int:
        return len(self.step_layer)

    @property
    def prompts(self) -> int:
        return len(self.prompt_tokens)

    @property
    def positions(self) -> int:
        """Tokens that were computed, of prompts and of answers."""
        return int(self.prompt_tokens.sum(dtype=np.uint64) + self.answer_tokens.sum(dtype=np.uint64))

    def uses(self) -> npt.NDArray[np.int64]:
        """In how many steps each expert was needed: [layers][most experts]."""
        return self._count(np.ones(len(self.expert), np.int64))

    def tokens(self) -> npt.NDArray[np.int64]:
        """How many tokens chose each expert: [layers][most experts]."""
        return self._count(self.expert_tokens.astype(np.int64))

    def _count(self, weight: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        counts = np.zeros((len(self.experts), max(self.experts, default=0)), np.int64)
        layer = np.repeat(self.step_layer, np.diff(self.step_first).astype(np.int64))
        np.add.at(counts, (layer, self.expert), weight)
        return counts

    def part(self, first: int, end: int) -> RoutingTrace:
        """The prompts first .. end - 1."""
        steps = slice(int(self.prompt_first[first]), int(self.prompt_first[end]))
        uses = slice(int(self.step_first[steps.start]), int(self.step_first[steps.stop]))
        return replace(
            self,
            step_layer=self.step_layer[steps],
            step_tokens=self.step_tokens[steps],
            step_first=self.step_first[steps.start : steps.stop + 1] - self.step_first[steps.start],
            expert=self.expert[uses],
            expert_tokens=self.expert_tokens[uses],
            prompt_first=self.prompt_first[first : end + 1] - self.prompt_first[first],
            prompt_tokens=self.prompt_tokens[first:end],
            answer_tokens=self.answer_tokens[first:end],
        )

    def also_for(self, image_id: str) -> RoutingTrace:
        """The same trace, for a further image that routes alike."""
        return self if image_id in self.image_ids else replace(self, image_ids=(*self.image_ids, image_id))

    def require_image(self, image_id: str, experts: Sequence[int], name: str) -> None:
        """Raises UsageError when the trace is of other images than the one with `image_id`, which is called `name` and
        whose layers have so many `experts`."""
        if image_id not in self.image_ids:
            raise UsageError(
                f"the trace was recorded with image {self.image_ids[0]} ({self.model}); {name} is {image_id}",
                "Give the image that it was recorded with, or record one of this image with `colibri-sdk profile`.",
            )
        if tuple(experts) != self.experts:
            raise UsageError(f"the trace names {name}, whose layers have other numbers of experts", _AGAIN)


def save(trace: RoutingTrace, path: Path) -> None:
    """Writes the file; it is the new one, whole, or what it was."""
    ids = np.frombuffer(b"".join(map(bytes.fromhex, trace.image_ids)), np.uint8).reshape(-1, ID_BYTES)
    with whole_file(path, "Name another file with -o.") as file:
        np.savez_compressed(
            file,
            version=np.uint32(VERSION),
            image_id=ids,
            model=np.str_(trace.model),
            batch=np.uint32(trace.batch),
            experts=np.asarray(trace.experts, np.uint32),
            **{name: getattr(trace, name) for name in _ARRAYS},
        )


def load(path: Path) -> RoutingTrace:
    """Reads a file that `save` wrote, and holds it to this module's table. Raises UsageError."""
    try:
        with path.open("rb") as file:
            if not file.read(len(_ZIP)).startswith(_ZIP):  # of any other file NumPy would say that it holds pickles
                raise _wrong(path, "is no .npz file")
        arrays = np.load(path, allow_pickle=False)
        if not isinstance(arrays, np.lib.npyio.NpzFile):
            raise _wrong(path, "is a single array")
        with arrays:
            found = {name: arrays[name] for name in arrays.files}
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}", _AGAIN) from error
    except _UNREADABLE as error:
        raise _wrong(path, f"is no .npz file of plain numbers ({error})") from error
    version = found.get("version")
    if version is None or version.shape != () or version.dtype.kind != "u":
        raise _wrong(path, "has no version")
    if int(version) != VERSION:
        raise UsageError(
            f"{path} is a trace of version {int(version)}; this version of the SDK reads {VERSION}", _AGAIN
        )
    return _checked(path, found)


def _wrong(path: Path, what: str) -> UsageError:
    return UsageError(f"{path} is no trace of routing: it {what}", _AGAIN)


def _checked(path: Path, found: dict[str, npt.NDArray[Any]]) -> RoutingTrace:
    def take(name: str, kinds: str, dimensions: int) -> npt.NDArray[Any]:
        array = found.get(name)
        if array is None:
            raise _wrong(path, f"has no {name}")
        if array.dtype.kind not in kinds or array.ndim != dimensions:
            raise _wrong(path, f"has {name} of type {array.dtype} and shape {list(array.shape)}")
        return array

    def need(holds: Any, what: str) -> None:
        if not bool(holds):
            raise _wrong(path, what)

    ids = take("image_id", "u", 2)
    need(ids.shape[0] > 0 and ids.shape[1] == ID_BYTES and ids.dtype == np.uint8, "names no image")
    trace = RoutingTrace(
        image_ids=tuple(bytes(one).hex() for one in ids),
        model=str(take("model", "U", 0)),
        batch=int(take("batch", "u", 0)),
        experts=tuple(int(count) for count in take("experts", "u", 1)),
        step_layer=take("step_layer", "u", 1).astype(np.uint32),
        step_tokens=take("step_tokens", "u", 1).astype(np.uint32),
        step_first=take("step_first", "u", 1).astype(np.uint64),
        expert=take("expert", "u", 1).astype(np.uint32),
        expert_tokens=take("expert_tokens", "u", 1).astype(np.uint32),
        prompt_first=take("prompt_first", "u", 1).astype(np.uint64),
        prompt_tokens=take("prompt_tokens", "u", 1).astype(np.uint32),
        answer_tokens=take("answer_tokens", "u", 1).astype(np.uint32),
    )
    layers = len(trace.experts)
    need(0 < layers <= MAX_LAYERS and max(trace.experts) <= MAX_EXPERTS, "has impossible layers")
    need(trace.prompts > 0 and len(trace.answer_tokens) == trace.prompts, "has no prompts")
    need(trace.positions > 0, "computed no tokens")
    need(_divides(trace.prompt_first, trace.prompts, trace.steps), "divides its steps among prompts wrongly")
    need(_divides(trace.step_first, trace.steps, len(trace.expert)), "divides its experts among steps wrongly")
    need(len(trace.step_tokens) == trace.steps, "lacks tokens of steps")
    need((trace.step_layer < layers).all(), "names a layer that is not there")
    uses = np.diff(trace.step_first).astype(np.int64)
    limit = np.repeat(np.asarray(trace.experts, np.int64)[trace.step_layer], uses)
    need((trace.expert < limit).all(), "names an expert that is not there")
    need(len(trace.expert_tokens) == len(trace.expert), "lacks tokens of experts")
    need(
        (trace.expert_tokens <= np.repeat(trace.step_tokens, uses)).all(), "has more tokens of an expert than of a step"
    )
    inside = np.ones(max(len(trace.expert) - 1, 0), np.bool_)  # is the next one of the same step?
    borders = trace.step_first[1:-1].astype(np.int64)
    inside[borders[(borders > 0) & (borders < len(trace.expert))] - 1] = False
    need((np.diff(trace.expert.astype(np.int64))[inside] > 0).all(), "has experts of a step that do not ascend")
    return trace


def _divides(first: U64, parts: int, total: int) -> bool:
    """Do `parts` parts, none of them empty, follow each other from 0 to `total`?"""
    if len(first) != parts + 1 or int(first[0]) != 0 or int(first[-1]) != total:
        return False
    return bool((first[1:] > first[:-1]).all())
