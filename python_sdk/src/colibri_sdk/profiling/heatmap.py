# SPDX-License-Identifier: Apache-2.0
"""A device's statistics at one moment: figures, warnings, and the heat map of layers × experts that `top` shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from colibri_sdk.profiling.balance import Balance, balance, warnings

if TYPE_CHECKING:
    from rich.text import Text

    from colibri_sdk.device import DeviceInfo, DeviceStats

# From never chosen to the layer's busiest expert.
SHADES = " .:-=+*#%@"
_BLOCKS = " ░▒▓█"
_COLOURS = ("grey23", "dark_blue", "blue3", "dark_cyan", "green4", "yellow3", "dark_orange3", "red3")


@dataclass(frozen=True)
class LayerView:
    """One layer: `experts` are the tokens that chose each; the rest as the device counts it, times in milliseconds."""

    layer: int
    experts: tuple[int, ...]
    balance: Balance | None
    hits: int
    misses: int
    read_bytes: int
    stall_ms: float
    experts_ms: float

    @property
    def hit_rate(self) -> float | None:
        """0 to 1; None where experts are used where they lie."""
        needed = self.hits + self.misses
        return self.hits / needed if needed else None

    @property
    def stalled(self) -> float:
        """Share of the experts' time spent waiting for reads, 0 to 1."""
        return self.stall_ms / self.experts_ms if self.experts_ms > 0 else 0.0

    def as_json(self) -> dict[str, Any]:
        figures = self.balance
        return {
            "layer": self.layer,
            "experts": list(self.experts),
            "utilisation": figures.utilisation if figures else None,
            "variation": figures.variation if figures else None,
            "effective_experts": figures.effective if figures else None,
            "dead": list(figures.dead) if figures else [],
            "hits": self.hits,
            "misses": self.misses,
            "hit_rate": self.hit_rate,
            "read_bytes": self.read_bytes,
            "stall_ms": self.stall_ms,
            "experts_ms": self.experts_ms,
        }


@dataclass(frozen=True)
class Snapshot:
    """All layers that have experts; `tokens` were computed since the statistics were cleared."""

    board: str
    model: str
    image_id: str
    tokens: int
    layers: tuple[LayerView, ...]

    @property
    def warnings(self) -> list[str]:
        return [text for view in self.layers for text in warnings(view.layer, view.balance, stalled=view.stalled)]

    @property
    def hit_rate(self) -> float | None:
        hits, misses = sum(view.hits for view in self.layers), sum(view.misses for view in self.layers)
        return hits / (hits + misses) if hits + misses else None

    def as_json(self) -> dict[str, Any]:
        return {
            "board": self.board,
            "model": self.model,
            "image_id": self.image_id,
            "tokens": self.tokens,
            "hits": sum(view.hits for view in self.layers),
            "misses": sum(view.misses for view in self.layers),
            "hit_rate": self.hit_rate,
            "read_bytes": sum(view.read_bytes for view in self.layers),
            "stall_ms": sum(view.stall_ms for view in self.layers),
            "layers": [view.as_json() for view in self.layers],
            "warnings": self.warnings,
        }


def snapshot(info: DeviceInfo, stats: DeviceStats, experts: Sequence[int] | None = None) -> Snapshot:
    """`experts` of each layer, where the image is at hand: the device's rows are as long as its widest layer's."""
    to_ms = 1000.0 / (stats.ticks_per_second or 1)
    views = []
    for index, (layer, row) in enumerate(zip(stats.layers, stats.experts, strict=True)):
        counts = tuple(expert.tokens for expert in row)
        if experts is not None:
            counts = counts[: experts[index]]
        elif not any(counts):
            continue  # a layer without a router, or nothing computed yet
        if counts:
            views.append(
                LayerView(
                    layer=index,
                    experts=counts,
                    balance=balance(counts),
                    hits=layer.hits,
                    misses=layer.misses,
                    read_bytes=layer.read_bytes,
                    stall_ms=layer.stall_ticks * to_ms,
                    experts_ms=layer.expert_ticks * to_ms,
                )
            )
    return Snapshot(info.board, info.model, info.image_id, stats.tokens, tuple(views))


def cells(counts: Sequence[int], columns: int) -> list[float]:
    """A row of the map, 0 to 1 of its busiest cell. Neighbours share one where there are more experts than columns."""
    group = -(-len(counts) // max(columns, 1))
    sums = [sum(counts[at : at + group]) for at in range(0, len(counts), group)]
    top = max(sums, default=0)
    return [one / top if top else 0.0 for one in sums]


def shade(value: float) -> str:
    """A character for a cell where there is no colour; only 0 is blank."""
    return SHADES[0] if value == 0 else SHADES[1 + min(int(value * (len(SHADES) - 1)), len(SHADES) - 2)]


def coloured(values: Sequence[float]) -> Text:
    """The same row for a terminal."""
    from rich.text import Text

    text = Text()
    for value in values:
        level = min(int(value * len(_COLOURS)), len(_COLOURS) - 1)
        block = _BLOCKS[0] if value == 0 else _BLOCKS[min(1 + int(value * 4), 4)]
        text.append(block * 2, style=_COLOURS[level])
    return text
