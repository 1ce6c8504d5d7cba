# SPDX-License-Identifier: Apache-2.0
"""colibri-sdk top: watch a device's experts while it answers."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from colibri_sdk.cli import options, output
from colibri_sdk.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Group

    from colibri_sdk.profiling.heatmap import LayerView, Snapshot
    from colibri_sdk.profiling.watch import Moment

# Characters that the figures beside the map take.
_BESIDE = 60
_DRAWINGS_PER_SECOND = 4


@click.command()
@click.argument("model_argument", metavar="[MODEL]", required=False, type=click.Path(exists=True, path_type=Path))
@options.device_options
@options.store_options
@options.prompts_option(required=False)
@click.option("--limit", type=click.IntRange(0), default=0, help="Only the first so many prompts; 0: all.")
@click.option("--max-tokens", type=options.COUNT, default=0, help="Longest answer; 0: what fits.")
@click.option(
    "--once", is_flag=True, help="Draw once, behind the last answer; the default where stdout is no terminal."
)
@output.json_option
def command(
    model_argument: Path | None,
    prompts: Path | None,
    limit: int,
    max_tokens: int,
    once: bool,
    as_json: bool,
    **values: Any,
) -> None:
    """Show which experts a device uses, layers x experts, with hits, misses, bytes and stalls of its expert store.

    With an image (MODEL, or --model) the board is emulated; without one the device is a real one, as for `run`. It
    answers the prompts of a file meanwhile, one after the other. Without --prompts its counters are shown once, as they
    are.
    """
    from colibri_sdk.profiling.heatmap import snapshot
    from colibri_sdk.profiling.prompts import read_prompts
    from colibri_sdk.profiling.watch import watch

    if model_argument is not None:
        if values["model"] is not None:
            raise UsageError("MODEL is given twice", "Leave --model out.")
        values["model"] = model_argument
    asked = read_prompts(prompts, limit) if prompts else []
    store = options.take_store(values)
    with options.open_model(**values, store=store) as target:
        info = target.device.info()
        moments = watch(target.device, asked, max_tokens=max_tokens) if asked else ()  # which clears the counters
        if asked and not (once or as_json) and sys.stdout.isatty():
            from rich.live import Live

            with Live(refresh_per_second=_DRAWINGS_PER_SECOND, transient=True) as live:
                for moment in moments:
                    view = snapshot(info, moment.stats)
                    live.update(_live(view, moment, len(asked), live.console.width))
        else:
            for _ in moments:
                pass
        last = snapshot(info, target.device.stats())
        if as_json:
            output.emit_json({**last.as_json(), "prompts": len(asked)})
        else:
            _show(last)


def _beside(view: LayerView) -> list[str]:
    """What stands beside a layer's row of the map."""
    figures = view.balance
    rate = view.hit_rate
    return [
        f"{100 * figures.utilisation:.0f} %" if figures else "-",
        f"{figures.variation:.2f}" if figures else "-",
        "-" if rate is None else f"{100 * rate:.1f} %",
        output.count(view.hits),
        output.count(view.misses),
        f"{view.read_bytes / 1e6:.2f}",
        f"{view.stall_ms:.1f}",
    ]


_HEADERS = ["used", "variation", "hit rate", "hits", "misses", "MB read", "stall ms"]


def _heading(view: Snapshot) -> str:
    rate = "" if view.hit_rate is None else f", hit rate {100 * view.hit_rate:.1f} %"
    return f"{view.board}, {view.model}: {output.count(view.tokens)} tokens{rate}"


def _show(view: Snapshot) -> None:
    """Once, in plain characters, as logs can hold it."""
    from colibri_sdk.profiling.heatmap import cells, shade

    if not view.layers:
        click.echo(_heading(view))
        why = "the model has no experts" if view.tokens else "no token was computed yet; --prompts lets it answer some"
        output.note(f"There is nothing to show: {why}.")
        return
    columns = min(max(len(layer.experts) for layer in view.layers), 64)
    rows = [[layer.layer, "".join(map(shade, cells(layer.experts, columns))), *_beside(layer)] for layer in view.layers]
    click.echo(_heading(view))
    output.table(["layer", "experts", *_HEADERS], rows, right="rl" + "r" * len(_HEADERS))
    for text in view.warnings:
        click.echo(f"warning: {text}")


def _live(view: Snapshot, moment: Moment, prompts: int, width: int) -> Group:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from colibri_sdk.profiling.heatmap import cells, coloured

    columns = max(4, (width - _BESIDE) // 2)
    table = Table(box=None, pad_edge=False)
    for name in ("layer", "experts", *_HEADERS):
        table.add_column(name, justify="left" if name == "experts" else "right", no_wrap=True)
    for layer in view.layers:
        table.add_row(str(layer.layer), coloured(cells(layer.experts, columns)), *_beside(layer))
    prompt = moment.prompt if isinstance(moment.prompt, str) else f"{len(moment.prompt)} token ids"
    return Group(
        Text(f"{_heading(view)}; prompt {moment.number + 1} of {prompts}", style="bold"),
        table,
        *(Text(f"warning: {text}", style="yellow") for text in view.warnings),
        Text(f"> {output.said(prompt)}", overflow="ellipsis", no_wrap=True),
        Text(output.said(moment.text), overflow="ellipsis"),
    )
