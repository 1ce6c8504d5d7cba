# SPDX-License-Identifier: Apache-2.0
"""How evenly experts are used, what is warned about, and the picture that `top` draws of a device's statistics."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colibri_sdk.cli import top
from colibri_sdk.device import Device, DeviceInfo, DeviceStats
from colibri_sdk.errors import DeviceError
from colibri_sdk.link.messages import ExpertStats, LayerStats, LinkStats
from colibri_sdk.profiling.balance import balance, warnings
from colibri_sdk.profiling.heatmap import SHADES, cells, shade, snapshot
from colibri_sdk.profiling.watch import watch

# --------------------------------------------------------------------------------------------------------- figures


def test_even_use_has_no_variation_and_all_experts_effective() -> None:
    figures = balance([7, 7, 7, 7])
    assert figures is not None
    assert (figures.tokens, figures.mean, figures.utilisation, figures.variation) == (28, 7.0, 1.0, 0.0)
    assert figures.effective == pytest.approx(4)
    assert figures.dead == () and list(warnings(3, figures)) == []


def test_one_expert_for_all_is_one_effective_expert() -> None:
    figures = balance([0, 40, 0, 0])
    assert figures is not None
    assert figures.effective == pytest.approx(1)
    assert figures.variation == pytest.approx(math.sqrt(3))  # deviations -10, 30, -10, -10 around 10
    assert (figures.dead, figures.busiest, figures.busiest_share) == ((0, 2, 3), 1, 4.0)
    assert list(warnings(3, figures)) == [
        "layer 3: 3 experts never chosen (0, 2, 3)",
        "layer 3: uneven, coefficient of variation 1.73; expert 1 has 4.0 times the mean",
    ]


def test_few_tokens_prove_nothing() -> None:
    figures = balance([0, 19, 0, 0])  # fewer than five for each expert
    assert figures is not None and figures.dead == () and list(warnings(0, figures)) == []


def test_nothing_computed_has_no_figures() -> None:
    assert balance([0, 0]) is None
    assert list(warnings(0, None)) == []


def test_waiting_for_reads_is_warned_about() -> None:
    assert list(warnings(2, None, stalled=0.5)) == []
    assert list(warnings(2, None, stalled=0.75)) == [
        "layer 2: 75 % of its experts' time is waiting for reads; more cache slots help"
    ]


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=300))
def test_figures_keep_to_their_ranges(counts: list[int]) -> None:
    figures = balance(counts)
    if sum(counts) == 0:
        assert figures is None
        return
    assert figures is not None
    used = sum(count > 0 for count in counts)
    assert figures.utilisation == pytest.approx(used / len(counts))
    assert 1 - 1e-9 <= figures.effective <= used + 1e-9
    assert 0 <= figures.variation <= math.sqrt(len(counts) - 1) + 1e-9
    assert counts[figures.busiest] == max(counts)


# --------------------------------------------------------------------------------------------------------- the map


@given(st.lists(st.integers(0, 50), min_size=1, max_size=300), st.integers(1, 80))
def test_map_fits_its_columns_and_its_range(counts: list[int], columns: int) -> None:
    row = cells(counts, columns)
    assert len(row) <= columns
    assert all(0 <= value <= 1 for value in row)
    assert max(row) == (1.0 if any(counts) else 0.0)
    assert all(shade(value) in SHADES for value in row)


def test_neighbours_share_a_cell() -> None:
    assert cells([1, 0, 2, 2, 4], 3) == [0.25, 1.0, 1.0]


def test_only_zero_is_blank() -> None:
    assert shade(0.0) == " " and shade(1e-9) == "." and shade(1.0) == "@"


INFO = cast(
    DeviceInfo,
    type("Info", (), {"board": "host", "model": "tiny", "image_id": "ab" * 16}),
)


def stats_of(layers: list[LayerStats], experts: list[list[int]], tokens: int = 0) -> DeviceStats:
    """A device with a clock of 1 kHz."""
    return DeviceStats(
        arena_bytes=0,
        arena_peak_bytes=0,
        tokens=tokens,
        head_ticks=0,
        sampler_ticks=0,
        tokenizer_ticks=0,
        ticks_per_second=1000,
        uptime_ticks=0,
        canary_intact=True,
        link=LinkStats(0, 0, 0, 0, 0),
        kernels="scalar",
        layers=layers,
        experts=[[ExpertStats(count, 0) for count in row] for row in experts],
    )


def test_snapshot_has_the_devices_counters() -> None:
    counters = LayerStats(1, 2, expert_ticks=100, hits=30, misses=10, read_bytes=4096, stall_ticks=60)
    view = snapshot(INFO, stats_of([LayerStats(1, 1, 1), counters], [[0, 0], [20, 20]], tokens=20))
    assert [layer.layer for layer in view.layers] == [1]  # layer 0 has no router
    layer = view.layers[0]
    assert (layer.experts, layer.hit_rate, layer.stall_ms, layer.stalled) == ((20, 20), 0.75, 60.0, 0.6)
    assert view.hit_rate == 0.75
    assert view.warnings == ["layer 1: 60 % of its experts' time is waiting for reads; more cache slots help"]
    assert view.as_json() | {"layers": 0} == {
        "board": "host",
        "model": "tiny",
        "image_id": "ab" * 16,
        "tokens": 20,
        "hits": 30,
        "misses": 10,
        "hit_rate": 0.75,
        "read_bytes": 4096,
        "stall_ms": 60.0,
        "layers": 0,
        "warnings": view.warnings,
    }
    assert layer.as_json() == {
        "layer": 1,
        "experts": [20, 20],
        "utilisation": 1.0,
        "variation": 0.0,
        "effective_experts": pytest.approx(2),
        "dead": [],
        "hits": 30,
        "misses": 10,
        "hit_rate": 0.75,
        "read_bytes": 4096,
        "stall_ms": 60.0,
        "experts_ms": 100.0,
    }


@pytest.mark.parametrize(("tokens", "words"), [(0, "no token was computed yet; --prompts"), (3, "has no experts")])
def test_an_empty_map_says_why(capsys: pytest.CaptureFixture[str], tokens: int, words: str) -> None:
    top._show(snapshot(INFO, stats_of([LayerStats(1, 1, 1)], [[0, 0]], tokens=tokens)))
    out, err = capsys.readouterr()
    assert out == f"host, tiny: {tokens} tokens\n" and words in err


def test_experts_used_where_they_lie_have_no_hit_rate() -> None:
    view = snapshot(INFO, stats_of([LayerStats(1, 1, 1)], [[3, 1]]))
    assert view.hit_rate is None and view.layers[0].hit_rate is None


def test_rows_are_as_long_as_the_layers_own_experts() -> None:
    view = snapshot(INFO, stats_of([LayerStats(1, 1, 1)] * 3, [[1, 2, 3]] * 3), experts=[3, 2, 0])
    assert [layer.experts for layer in view.layers] == [(1, 2, 3), (1, 2)]


# ------------------------------------------------------------------------------------------------------- watching


class _Word:
    def __init__(self, text: str) -> None:
        self.text = text


class _Generation:
    """Gives its words only when they are waited for, so that a watcher sees an answer grow."""

    def __init__(self, words: list[str], device: _FakeDevice) -> None:
        self._words, self._device = words, device
        self.cancelled = False

    def __iter__(self) -> Iterator[_Word]:
        for word in self._words:
            if word == "fail":
                raise DeviceError("layer 3 expert 17 cannot be read")
            while not self._device.asked and not self.cancelled:
                time.sleep(0.0005)
            if self.cancelled:
                return
            self._device.asked = 0
            yield _Word(word)

    def cancel(self) -> None:
        self.cancelled = True


class _FakeDevice:
    def __init__(self) -> None:
        self.asked = 0
        self.cleared = 0
        self.generations: list[_Generation] = []

    def clear_stats(self) -> None:
        self.cleared += 1

    def stats(self) -> DeviceStats:
        self.asked += 1
        return stats_of([], [], tokens=self.asked)

    def generate(self, prompt: Any, max_tokens: int = 0) -> _Generation:
        self.generations.append(_Generation(str(prompt).split(), self))
        return self.generations[-1]


def test_statistics_are_asked_for_while_the_device_answers() -> None:
    device = _FakeDevice()
    moments = list(watch(cast(Device, device), ["one two three", "four"], every_seconds=0.001))
    assert device.cleared == 1
    done = [moment for moment in moments if moment.finished]
    assert [(moment.number, moment.text) for moment in done] == [(0, "onetwothree"), (1, "four")]
    assert any(not moment.finished for moment in moments)


def test_leaving_cancels_the_answer() -> None:
    device = _FakeDevice()
    moments = watch(cast(Device, device), ["one " * 1000], every_seconds=0.001)
    next(moments)
    moments.close()  # type: ignore[attr-defined]
    assert device.generations[0].cancelled


def test_error_of_an_answer_reaches_the_watcher() -> None:
    with pytest.raises(DeviceError, match=r"^prompt 2 of 3: layer 3 expert 17"):
        list(watch(cast(Device, _FakeDevice()), ["one", "one fail", "one"], every_seconds=0.001))
