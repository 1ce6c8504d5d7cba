# SPDX-License-Identifier: Apache-2.0
"""Quantisation plans: which number format each matrix of a model gets. Their names, their defaults, their syntax.

A plan is written as entries with commas between them:

    q4                              every matrix, but for what a default says of its role
    experts=q4,attention=q8         the matrices of these roles; the others as in q8
    f16,layers.0-3.experts=q8       the experts of the first four layers; all else as in f16
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from colibri_sdk.convert.description import ModelDescription, Role
from colibri_sdk.errors import UsageError
from colibri_sdk.image.layout import MAX_LAYERS, Format


@dataclass(frozen=True)
class Encoding:
    """A number format of weights by the name that plans use.

    `one_scale`: the matrix has one scale, from its minimum and maximum, and not one for each block of 32.
    """

    name: str
    format: Format
    meaning: str
    one_scale: bool = False


ENCODINGS: Mapping[str, Encoding] = {
    encoding.name: encoding
    for encoding in (
        Encoding("f32", Format.F32, "binary32"),
        Encoding("f16", Format.F16, "binary16"),
        Encoding("q8", Format.Q8, "int8, a scale for each block of 32"),
        Encoding("i8", Format.Q8, "int8, one min-max scale for each matrix", one_scale=True),
        Encoding("q4", Format.Q4, "4 bits, a scale for each block of 32"),
    )
}
_VECTOR = Encoding("vector", Format.F32_VECTOR, "binary32")

# The roles of matrices, in the order in which plans are written; those in layers can differ between layers.
ROLES: tuple[Role, ...] = tuple(role for role in Role if role is not Role.VECTOR)
LAYER_ROLES: tuple[Role, ...] = (Role.ATTENTION, Role.ROUTER, Role.SHARED, Role.EXPERTS)

# What is not said about a role: a router's few rows decide which experts run, so that its rounding errors cost more and
# its bytes less than any others'. It stays in float32 where the rest is in integers.
_ROUTER_OF: Mapping[str, str] = {"f32": "f32", "f16": "f16", "q8": "f32", "i8": "f32", "q4": "f32"}

DEFAULT = "q8"

# The longest name that an image holds, in bytes.
_NAME_BYTES = 23
_FILE_NAME_CHARACTERS = 48

_ENTRY = re.compile(
    rf"(?:(?:layers\.(?P<first>\d{{1,6}})(?:-(?P<last>\d{{1,6}}))?\.)?(?P<role>{'|'.join(r.value for r in ROLES)})=)?"
    rf"(?P<format>{'|'.join(ENCODINGS)})",
    re.ASCII,
)


@dataclass(frozen=True)
class LayerEntry:
    """The matrices of one role in layers `first` to `last`, both included."""

    role: Role
    first: int
    last: int
    encoding: Encoding

    def text(self) -> str:
        span = str(self.first) if self.first == self.last else f"{self.first}-{self.last}"
        return f"layers.{span}.{self.role.value}={self.encoding.name}"


@dataclass(frozen=True)
class Plan:
    """The format of every matrix: the entries of layers go before those of roles, and these before the default."""

    default: Encoding
    roles: Mapping[Role, Encoding] = field(default_factory=dict)
    layers: tuple[LayerEntry, ...] = ()

    def encoding(self, role: Role, layer: int | None = None) -> Encoding:
        """What a tensor of this role is stored in; `layer` for those that belong to one."""
        if role is Role.VECTOR:
            return _VECTOR
        for entry in self.layers:
            if entry.role is role and layer is not None and entry.first <= layer <= entry.last:
                return entry.encoding
        return self.roles.get(role) or self._by_default(role)

    def _by_default(self, role: Role) -> Encoding:
        return ENCODINGS[_ROUTER_OF[self.default.name]] if role is Role.ROUTER else self.default

    @property
    def text(self) -> str:
        """The plan in its shortest form; parse(text) gives the same plan."""
        roles = [
            f"{role.value}={self.roles[role].name}"
            for role in ROLES
            if role in self.roles and self.roles[role] != self._by_default(role)
        ]
        layers = sorted(self.layers, key=lambda entry: (ROLES.index(entry.role), entry.first))
        return ",".join([self.default.name, *roles, *(entry.text() for entry in layers)])

    @property
    def name(self) -> str:
        """For the image's header, which has 23 bytes: the plan itself, or "mixed"."""
        return self.text if len(self.text) <= _NAME_BYTES else "mixed"

    @property
    def file_name(self) -> str:
        """A part of a file's name that no other plan has."""
        if len(self.text) <= _FILE_NAME_CHARACTERS:
            return self.text.replace(",", "+")
        return f"mixed-{hashlib.sha256(self.text.encode()).hexdigest()[:12]}"

    def check(self, description: ModelDescription) -> None:
        """Raises UsageError when the plan speaks of layers that the model does not have."""
        for entry in self.layers:
            if entry.last >= len(description.layers):
                raise UsageError(
                    f"--quant entry {entry.text()!r}: the model has {len(description.layers)} layers",
                    f"Layers count from 0 to {len(description.layers) - 1}.",
                )


# The plans with a short name.
QUANTISATIONS: Mapping[str, Plan] = {name: Plan(ENCODINGS[name]) for name in ("q8", "q4", "i8", "f16", "f32")}


def parse(text: str) -> Plan:
    """The plan that `text` says, e.g. "q8,experts=q4". Raises UsageError with the entry that is at fault."""
    default: Encoding | None = None
    roles: dict[Role, Encoding] = {}
    layers: list[LayerEntry] = []
    for entry in text.split(","):
        match = _ENTRY.fullmatch(entry.strip())
        if match is None:
            raise _wrong(entry, _reason(entry.strip()))
        encoding = ENCODINGS[match["format"]]
        if match["role"] is None:
            if default is not None:
                raise _wrong(entry, f"the format of all matrices is {default.name} already")
            default = encoding
        elif match["first"] is None:
            role = Role(match["role"])
            if role in roles:
                raise _wrong(entry, f"{role.value} is {roles[role].name} already")
            roles[role] = encoding
        else:
            layers.append(_layer_entry(entry, match, layers))
    chosen = default or ENCODINGS[DEFAULT]
    return Plan(chosen, roles, tuple(layers))


def _layer_entry(text: str, match: re.Match[str], before: Iterable[LayerEntry]) -> LayerEntry:
    role = Role(match["role"])
    first, last = int(match["first"]), int(match["last"] or match["first"])
    if role not in LAYER_ROLES:
        raise _wrong(text, f"{role.value} belongs to no layer")
    if not first <= last < MAX_LAYERS:
        raise _wrong(text, f"{first} to {last} are no layers")
    for other in before:
        if other.role is role and first <= other.last and other.first <= last:
            raise _wrong(text, f"{other.text()} speaks of the same layer")
    return LayerEntry(role, first, last, ENCODINGS[match["format"]])


def _reason(entry: str) -> str:
    """What is wrong with an entry that has not the form of one."""
    if not entry:
        return "it is empty"
    left, equals, right = entry.partition("=")
    if not equals:
        return f"there is no format {entry!r}"
    if right not in ENCODINGS:
        return f"there is no format {right!r}"
    return f"there is no role {left!r}"


def _wrong(entry: str, reason: str) -> UsageError:
    shown = entry if len(entry) <= 60 else entry[:57] + "..."
    if len(reason) > 200:
        reason = reason[:197] + "..."
    return UsageError(
        f"--quant entry {shown!r}: {reason}",
        "A plan is FORMAT, ROLE=FORMAT or layers.N-M.ROLE=FORMAT, with commas between. "
        f"Formats: {', '.join(ENCODINGS)}. Roles: {', '.join(role.value for role in ROLES)}.",
    )


def default_kv(plan: Plan) -> str:
    """The KV cache's format where none is asked for: f32 with a plan of f32, so that f32 means f32, else f16."""
    return "f32" if plan.text == "f32" else "f16"
