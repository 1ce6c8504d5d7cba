# SPDX-License-Identifier: Apache-2.0
"""How far the weights in an image are from those of the checkpoint, matrix by matrix."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from colibri_sdk.convert.description import Floats
from colibri_sdk.convert.quantisation import Encoding
from colibri_sdk.convert.quantize import IntegerBlocks
from colibri_sdk.image.layout import Format
from colibri_sdk.image.tensors import unpack_tensor


@dataclass(frozen=True)
class TensorError:
    """One matrix, or, in a summary, the same matrix of all experts of a layer.

    `rms` is the root of sum((packed - weight)^2) / sum(weight^2), `largest` the largest |packed - weight| divided by
    the largest |weight|; both 0 where every bit was kept.
    """

    name: str
    format: str
    weights: int
    rms: float
    largest: float


@dataclass
class _Sums:
    format: str
    weights: int = 0
    error: float = 0.0
    square: float = 0.0
    largest_error: float = 0.0
    largest: float = 0.0

    def add(self, other: _Sums) -> None:
        self.weights += other.weights
        self.error += other.error
        self.square += other.square
        self.largest_error = max(self.largest_error, other.largest_error)
        self.largest = max(self.largest, other.largest)

    def result(self, name: str) -> TensorError:
        return TensorError(
            name=name,
            format=self.format,
            weights=self.weights,
            rms=_ratio(self.error**0.5, self.square**0.5),
            largest=_ratio(self.largest_error, self.largest),
        )


@dataclass
class ErrorMeter:
    """Takes matrices piece by piece as they are packed; pieces of one matrix add up."""

    _sums: dict[tuple[str, int | None], _Sums] = field(default_factory=dict)

    def add(
        self, name: str, expert: int | None, encoding: Encoding, piece: Floats | IntegerBlocks, packed: bytes
    ) -> None:
        """`piece` of the checkpoint became `packed`. Vectors and blocks taken over as they are have no error."""
        if encoding.format is Format.F32_VECTOR:
            return
        sums = self._sums.setdefault((name, expert), _Sums(encoding.name))
        if encoding.format is Format.F32 and not isinstance(piece, IntegerBlocks):
            sums.weights += piece.size
            return
        if isinstance(piece, IntegerBlocks):
            wanted = unpack_tensor(packed, encoding.format, len(piece.q), piece.q[0].size).astype(np.float64)
            error = np.zeros_like(wanted)
        else:
            wanted = piece.astype(np.float64)
            error = unpack_tensor(packed, encoding.format, *piece.shape) - wanted
        sums.add(
            _Sums(
                encoding.name,
                weights=wanted.size,
                error=float(np.square(error).sum()),
                square=float(np.square(wanted).sum()),
                largest_error=float(np.abs(error).max()),
                largest=float(np.abs(wanted).max()),
            )
        )

    def results(self) -> tuple[TensorError, ...]:
        """Every matrix, in the order in which they came."""
        return tuple(sums.result(_title(name, expert)) for (name, expert), sums in self._sums.items())

    def summary(self) -> tuple[TensorError, ...]:
        """The same with all experts of a layer in one."""
        whole: dict[str, _Sums] = {}
        for (name, _), sums in self._sums.items():
            whole.setdefault(name, _Sums(sums.format)).add(sums)
        return tuple(sums.result(name) for name, sums in whole.items())


def _title(name: str, expert: int | None) -> str:
    """layers.0.experts.gate of expert 3 is layers.0.experts.3.gate."""
    if expert is None:
        return name
    group, _, matrix = name.rpartition(".")
    return f"{group}.{expert}.{matrix}"


def _ratio(part: float, whole: float) -> float:
    """Four digits: enough for a report, and the same on every machine whatever order it adds in."""
    return float(f"{part / whole:.4g}") if whole > 0 else 0.0
