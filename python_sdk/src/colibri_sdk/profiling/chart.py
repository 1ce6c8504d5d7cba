# SPDX-License-Identifier: Apache-2.0
"""The curve as a picture. Matplotlib is imported here and nowhere else, and only when a picture is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from colibri_sdk.errors import UsageError
from colibri_sdk.profiling.curve import Point
from colibri_sdk.whole_file import whole_file

ENDINGS = (".png", ".svg", ".pdf")
_INCHES = (8.0, 6.0)
_DOTS_PER_INCH = 120


def check_target(to: Path) -> None:
    """UsageError when no picture can be drawn there: known before what it shows is computed."""
    if to.suffix not in ENDINGS:
        raise UsageError(f"{to} is no name of a picture", f"End it in {', '.join(ENDINGS[:-1])} or {ENDINGS[-1]}.")
    if not to.parent.is_dir():
        raise UsageError(f"{to.parent} is no directory", "Make it first, or name another file.")


def draw(points: Sequence[Point], to: Path, *, title: str) -> None:
    """Hit rate and megabytes read per token, over the slots per layer. `to` ends in .png, .svg or .pdf."""
    check_target(to)
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    slots = [point.slots for point in points]
    figure = Figure(figsize=_INCHES, layout="constrained")
    rate, read = figure.subplots(2, 1, sharex=True)
    mark = "o" if len(points) <= 32 else None
    rate.plot(slots, [100 * point.hit_rate for point in points], marker=mark, color="tab:green")
    rate.set(ylabel="hit rate", ylim=(0, 102), title=title)
    rate.yaxis.set_major_formatter(PercentFormatter())
    answers = [point.bytes_per_answer_token / 1e6 for point in points]
    tokens = [point.bytes_per_token / 1e6 for point in points]
    read.plot(slots, answers, marker=mark, color="tab:red", label="answers")
    read.plot(slots, tokens, marker=mark, color="tab:orange", label="all tokens")
    read.set(ylabel="MB read per token", xlabel="cache slots per layer")
    read.set_ylim(bottom=0)
    read.legend()
    read.xaxis.set_major_locator(MaxNLocator(integer=True))
    arena = rate.secondary_xaxis("top")
    ends = (points[0], points[-1])
    arena.set_xticks([end.slots for end in ends], [f"arena {end.arena_bytes / 1e6:.2f} MB" for end in ends])
    for axes in (rate, read):
        axes.grid(alpha=0.3)
    with whole_file(to, "Name another file.") as file:
        figure.savefig(file, format=to.suffix.removeprefix("."), dpi=_DOTS_PER_INCH)
