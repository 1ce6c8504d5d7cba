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
    """One matrix, or the same matrix of all experts of a layer.

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


@dataclass
class ErrorMeter:
    """Takes matrices piece by piece as they are packed; pieces of one name add up."""

    _sums: dict[str, _Sums] = field(default_factory=dict)

    def add(self, name: str, encoding: Encoding, piece: Floats | IntegerBlocks, packed: bytes) -> None:
        """`piece` of the checkpoint became `packed`. Vectors and blocks taken over as they are have no error."""
        if encoding.format is Format.F32_VECTOR:
            return
        sums = self._sums.setdefault(name, _Sums(encoding.name))
        if isinstance(piece, IntegerBlocks):
            # Of how large the weights are nothing must be known: their error is 0 in either measure.
            sums.weights += piece.q.size
            return
        sums.weights += piece.size
        if encoding.format is Format.F32:
            return
        wanted = piece.astype(np.float64)
        error = unpack_tensor(packed, encoding.format, *piece.shape) - wanted
        sums.error += float(np.square(error).sum())
        sums.square += float(np.square(wanted).sum())
        sums.largest_error = max(sums.largest_error, float(np.abs(error).max()))
        sums.largest = max(sums.largest, float(np.abs(wanted).max()))

    def results(self) -> tuple[TensorError, ...]:
        """In the order in which the matrices came."""
        return tuple(
            TensorError(
                name=name,
                format=sums.format,
                weights=sums.weights,
                rms=_ratio(sums.error**0.5, sums.square**0.5),
                largest=_ratio(sums.largest_error, sums.largest),
            )
            for name, sums in self._sums.items()
        )


def _ratio(part: float, whole: float) -> float:
    """Four digits: enough for a report, and the same on every machine whatever order it adds in."""
    return float(f"{part / whole:.4g}") if whole > 0 else 0.0
