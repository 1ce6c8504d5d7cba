# SPDX-License-Identifier: Apache-2.0
"""The plan that gives each matrix the format nearest to the one it is stored in (--quant keep).

A plan speaks of the matrices of a role in a layer: where these are stored differently, all get the widest format that
one of them needs. What no format of an image holds exactly goes to the next wider one: K-quants to q8.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from colibri_sdk.convert.description import ModelDescription, Role, TensorSource
from colibri_sdk.convert.quantisation import DEFAULT, ENCODINGS, LAYER_ROLES, ROLES, Encoding, LayerEntry, Plan
from colibri_sdk.convert.weights import Weights

# From narrow to wide, and what each stored type needs. BF16 has a wider range than binary16.
_WIDTHS = ("q4", "q8", "f16", "f32")
_NEEDED: Mapping[str, str] = {
    "Q4_0": "q4",
    "Q8_0": "q8",
    "MXFP4": "q8",
    "Q4_K": "q8",
    "Q5_K": "q8",
    "Q6_K": "q8",
    "F16": "f16",
    "BF16": "f32",
    "F32": "f32",
}


def stored_plan(weights: Weights, description: ModelDescription) -> Plan:
    """The plan for this checkpoint, written in its shortest form: the commonest format first."""
    found: dict[tuple[Role, int | None], Encoding] = {}
    bytes_of: dict[str, int] = {}
    for role, layer, sources in _groups(description):
        stored = [weights.tensors[source.name] for source in sources if source.constant is None]
        if not stored:
            continue
        name = max((_NEEDED[tensor.dtype] for tensor in stored), key=_WIDTHS.index)
        found[role, layer] = ENCODINGS[name]
        bytes_of[name] = bytes_of.get(name, 0) + sum(tensor.bytes for tensor in stored)
    default = ENCODINGS[max(bytes_of, key=lambda name: bytes_of[name], default=DEFAULT)]
    roles: dict[Role, Encoding] = {}
    entries: list[LayerEntry] = []
    for role in ROLES:
        layers = {layer: encoding for (of, layer), encoding in found.items() if of is role}
        used = list(layers.values())
        if not used:
            continue
        roles[role] = max(ENCODINGS.values(), key=used.count)
        if role in LAYER_ROLES:
            entries += _runs(role, {index: one for index, one in layers.items() if index is not None}, roles[role])
    return Plan(default, roles, tuple(entries))


def _groups(description: ModelDescription) -> Iterator[tuple[Role, int | None, list[TensorSource]]]:
    """The matrices that get one format: those of a role, in one layer where the role is one of layers."""
    yield Role.EMBEDDING, None, [description.embedding]
    if description.head is not None:
        yield Role.HEAD, None, [description.head.weight]
    for index, layer in enumerate(description.layers):
        of: dict[Role, list[TensorSource]] = {}
        for _, source, role in layer.resident():
            of.setdefault(role, []).append(source)
        for expert in layer.experts:
            for _, source, role in expert.tensors(Role.EXPERTS):
                of.setdefault(role, []).append(source)
        for role in LAYER_ROLES:
            if role in of:
                yield role, index, of[role]


def _runs(role: Role, layers: Mapping[int, Encoding], usual: Encoding) -> Iterable[LayerEntry]:
    """Entries for layers that have another format than `usual`, neighbours of one format in one."""
    entries: list[LayerEntry] = []
    for index, encoding in sorted(layers.items()):
        before = entries[-1] if entries else None
        if encoding == usual:
            continue
        if before is not None and before.last == index - 1 and before.encoding == encoding:
            entries[-1] = LayerEntry(role, before.first, index, encoding)
        else:
            entries.append(LayerEntry(role, index, index, encoding))
    return entries
