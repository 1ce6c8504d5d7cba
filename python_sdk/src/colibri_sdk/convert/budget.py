# SPDX-License-Identifier: Apache-2.0
"""Spends a budget of bytes where a text says that error hurts most.

The model is cut into units: embedding, head, and in each layer attention, shared block and experts. For each unit and
format the engine measures the divergence from the float32 model when that unit alone is stored so and all else in
float32. Small errors of different units add up, so that their sum predicts the divergence of a plan. The best plans for
all budgets together are the front of all sums: no other plan is both smaller and better than one of these.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from colibri_sdk.convert.description import ModelDescription, Role
from colibri_sdk.convert.quantisation import ENCODINGS, LAYER_ROLES, Encoding, LayerEntry, Plan
from colibri_sdk.errors import UsageError
from colibri_sdk.image.layout import PAGE, TENSOR_ALIGN, align_up, tensor_bytes

# Formats that a unit may get. i8 is as large as q8 and less exact. Routers stay in float32 in any plan: their few
# bytes decide about all others.
CANDIDATES: tuple[Encoding, ...] = tuple(ENCODINGS[name] for name in ("q4", "q8", "f16", "f32"))

# What plans are compared with, and what a unit has that is not spoken of.
_BASE = ENCODINGS["f32"]

# Beyond so many units, neighbouring layers share one: each unit costs three runs of the model.
MAX_UNITS = 64

# Beyond so many plans, the front keeps the best of those that are nearly as large.
_MAX_FRONT = 4096

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "KI": 2**10, "MI": 2**20, "GI": 2**30}


def parse_bytes(text: str) -> int:
    """2500000, 2500K, 2.5M (thousands), 2442Ki, 2.4Mi (1024s), with or without a B. Raises UsageError."""
    match = re.fullmatch(r"(\d{1,15}(?:\.\d{1,9})?)\s*([KMG]I?)?B?", text.strip().upper(), re.ASCII)
    if match is None:
        raise UsageError(f"--budget {text[:40]!r} is no number of bytes", "For example 2500K, 2.5M or 2Mi.")
    return int(float(match[1]) * _UNITS[match[2] or ""])


@dataclass(frozen=True)
class Unit:
    """What gets one format: the matrices of a role, in layers `first` to `last` where the role is one of layers."""

    role: Role
    first: int | None = None
    last: int | None = None


@dataclass(frozen=True)
class Choice:
    """A unit in one format: its bytes in the image and the error that it alone brings."""

    encoding: Encoding
    bytes: int
    error: float


@dataclass(frozen=True)
class Point:
    """A plan: the choice for each unit, all bytes, all errors."""

    bytes: int
    error: float
    choices: tuple[int, ...]


def units(description: ModelDescription) -> tuple[Unit, ...]:
    """The units of a model, in the order of its parts."""
    found = [Unit(Role.EMBEDDING)] + ([Unit(Role.HEAD)] if description.head is not None else [])
    roles = [role for role in LAYER_ROLES if role is not Role.ROUTER]
    present = [
        [role for role in roles if _layer_bytes(description, index, role, CANDIDATES[0])]
        for index in range(len(description.layers))
    ]
    many = sum(map(len, present))
    band = max(1, -(-many // MAX_UNITS))
    for role in roles:
        start: int | None = None
        for index in range(len(present) + 1):
            inside = index < len(present) and role in present[index]
            if start is not None and (not inside or index - start == band):
                found.append(Unit(role, start, index - 1))
                start = None
            if inside and start is None:
                start = index
    return tuple(found)


def plan_of(model: Sequence[Unit], encodings: Mapping[Unit, Encoding]) -> Plan:
    """The plan that gives units their encodings and everything else float32.

    Layers that agree are one entry, and a role whose units all agree is one without layers.
    """
    roles: dict[Role, Encoding] = {}
    entries: list[LayerEntry] = []
    for role in dict.fromkeys(unit.role for unit in model):
        mine = [unit for unit in model if unit.role is role]
        if len({encodings.get(unit) for unit in mine}) == 1:
            roles[role] = encodings.get(mine[0], _BASE)
            continue
        for unit in mine:
            encoding = encodings.get(unit, _BASE)
            assert unit.first is not None and unit.last is not None  # a role of several units is one of layers
            if entries and _continues(entries[-1], unit, encoding):
                entries[-1] = replace(entries[-1], last=unit.last)
            else:
                entries.append(LayerEntry(role, unit.first, unit.last, encoding))
    kept = tuple(entry for entry in entries if entry.encoding is not _BASE)
    return Plan(_BASE, roles, kept)


def _continues(entry: LayerEntry, unit: Unit, encoding: Encoding) -> bool:
    return entry.role is unit.role and entry.last + 1 == unit.first and entry.encoding is encoding


def unit_bytes(description: ModelDescription, unit: Unit, encoding: Encoding) -> int:
    """The bytes of a unit's matrices, with what aligns them. Experts are counted with their biases, in whole pages."""
    if unit.role is Role.EMBEDDING:
        return _aligned(encoding, description.embedding.rows, description.embedding.cols)
    if unit.role is Role.HEAD:
        head = description.head
        return 0 if head is None else _aligned(encoding, head.weight.rows, head.weight.cols)
    assert unit.first is not None and unit.last is not None
    layers = range(unit.first, unit.last + 1)
    return sum(_layer_bytes(description, index, unit.role, encoding) for index in layers)


def place_bytes(description: ModelDescription, plan: Plan) -> int:
    """The bytes of a place for any expert: those of the largest one."""
    return max(
        (
            _layer_bytes(description, index, Role.EXPERTS, plan.encoding(Role.EXPERTS, index)) // len(layer.experts)
            for index, layer in enumerate(description.layers)
            if len(layer.experts)
        ),
        default=0,
    )


def _layer_bytes(description: ModelDescription, index: int, role: Role, encoding: Encoding) -> int:
    layer = description.layers[index]
    if role is not Role.EXPERTS:
        return sum(_aligned(encoding, s.rows, s.cols) for _, s, r in layer.resident() if r is role)
    if not layer.experts:
        return 0
    plan = Plan(encoding)
    blob = sum(_aligned(plan.encoding(r), s.rows, s.cols) for _, s, r in layer.experts[0].tensors(Role.EXPERTS))
    return len(layer.experts) * align_up(blob, PAGE)


def _aligned(encoding: Encoding, rows: int, cols: int) -> int:
    return align_up(tensor_bytes(encoding.format, rows, cols), TENSOR_ALIGN)


def front(choices: Sequence[Sequence[Choice]]) -> tuple[Point, ...]:
    """All plans that no other beats in both bytes and error, by bytes ascending: the first is the smallest possible.

    Exact up to _MAX_FRONT plans; beyond, of plans of nearly equal size one is kept. It does not depend on a budget, so
    that a larger budget can never choose a plan of larger error. Ties go to the earlier choice.
    """
    points: tuple[Point, ...] = (Point(0, 0.0, ()),)
    for unit in choices:
        grown = [
            Point(point.bytes + choice.bytes, point.error + choice.error, (*point.choices, index))
            for point in points
            for index, choice in enumerate(unit)
        ]
        points = _thinned(_best(grown))
    return points


def _best(points: list[Point]) -> tuple[Point, ...]:
    """Those that are better than everything smaller."""
    kept: list[Point] = []
    for point in sorted(points, key=lambda one: (one.bytes, one.error, one.choices)):
        if not kept or point.error < kept[-1].error:
            kept.append(point)
    return tuple(kept)


def _thinned(points: tuple[Point, ...]) -> tuple[Point, ...]:
    if len(points) <= _MAX_FRONT:
        return points
    low, high = points[0].bytes, points[-1].bytes
    step = max(1, -(-(high - low) // _MAX_FRONT))
    last = {(point.bytes - low) // step: point for point in points[1:]}
    return (points[0], *last.values())
