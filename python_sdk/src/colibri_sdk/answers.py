# SPDX-License-Identifier: Apache-2.0
"""One question to a device and everything that is worth knowing about its answer.

The names of `Answer.as_json` are fixed: scripts and benchmarks rely on them (docs/cli.md).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from colibri_sdk.device import Device, DeviceInfo, DeviceStats, GenerationResult, Token


@dataclass(frozen=True)
class Answer:
    """A finished generation with the device's statistics of it."""

    info: DeviceInfo
    result: GenerationResult
    stats: DeviceStats

    @property
    def board(self) -> str:
        return self.info.board

    @property
    def experts(self) -> list[list[int]]:
        """How often each expert of each layer was chosen: [layer][expert], prompt and answer together."""
        return [[expert.tokens for expert in layer] for layer in self.stats.experts]

    @property
    def timings(self) -> dict[str, float]:
        """In seconds and tokens per second; `device_` by the device's clock, `wall_` by this machine's."""
        result = self.result
        second = result.ticks_per_second or 1
        decode = result.decode_ticks / second
        after_first = max(result.generated_tokens - 1, 0)
        wall_decode = result.wall_seconds - result.wall_first_token_seconds
        return {
            "prompt_tokens": result.prompt_tokens,
            "generated_tokens": result.generated_tokens,
            "device_time_to_first_token_s": result.prefill_ticks / second,
            "device_tokens_per_second": after_first / decode if decode > 0 else 0.0,
            "wall_time_to_first_token_s": result.wall_first_token_seconds,
            "wall_tokens_per_second": after_first / wall_decode if wall_decode > 0 else 0.0,
            "prefill_ticks": result.prefill_ticks,
            "decode_ticks": result.decode_ticks,
            "ticks_per_second": result.ticks_per_second,
        }

    @property
    def store(self) -> dict[str, Any]:
        """How experts were reached, and what that cost: in all, and for each layer. Zeros where they lie in memory."""
        to_ms = 1000.0 / (self.stats.ticks_per_second or 1)
        layers = [
            {
                "hits": layer.hits,
                "misses": layer.misses,
                "read_bytes": layer.read_bytes,
                "stall_ms": layer.stall_ticks * to_ms,
                "prefetched": layer.prefetched,
                "prefetch_used": layer.prefetch_used,
            }
            for layer in self.stats.layers
        ]
        totals = {name: sum(layer[name] for layer in layers) for name in (layers[0] if layers else {})}
        return {
            "mode": self.info.store,
            "cache_slots": self.info.cache_slots,
            "slot_bytes": self.info.slot_bytes,
            **totals,
            "layers": layers,
        }

    def as_json(self) -> dict[str, Any]:
        return {
            "board": self.board,
            "text": self.result.text,
            "token_ids": list(self.result.token_ids),
            "prompt_ids": list(self.result.prompt_ids),
            "logits_sha256": self.result.logits_sha256,
            "finish_reason": self.result.finish_reason,
            "arena_bytes": self.stats.arena_bytes,
            "arena_peak_bytes": self.stats.arena_peak_bytes,
            "kernels": self.stats.kernels,
            "timings": self.timings,
            "experts": self.experts,
            "store": self.store,
        }


def ask(
    device: Device,
    prompt: Any,
    *,
    on_token: Callable[[Token], None] | None = None,
    **options: Any,
) -> Answer:
    """Sends one prompt and reads the answer to its end. `options` are those of Device.generate."""
    device.clear_stats()
    generation = device.generate(prompt, **options)
    for token in generation:
        if on_token:
            on_token(token)
    return Answer(device.info(), generation.result, device.stats())
