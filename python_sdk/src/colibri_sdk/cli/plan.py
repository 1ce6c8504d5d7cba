# SPDX-License-Identifier: Apache-2.0
"""colibri-sdk plan: a board's memory with a model in it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from colibri_sdk.cli import options, output
from colibri_sdk.errors import EXIT_IMAGE, UsageError

if TYPE_CHECKING:
    from colibri_sdk.boards import Board
    from colibri_sdk.planning import MemoryMap
    from colibri_sdk.profiling.curve import Point

# Lines of the table of cache sizes, and characters of its bars.
_ROWS = 24
_BAR = 40


@click.command()
@click.argument("image", type=click.Path(exists=True, path_type=Path))
@click.option("--board", "-b", "board_name", default="host", show_default=True, help="The board.")
@click.option("--context", type=click.IntRange(0), default=0, help="Positions in the KV cache; 0: the image's maximum.")
@click.option(
    "--kv",
    type=click.Choice(["image", *options.KV_FORMATS]),
    default="image",
    show_default=True,
    help="Format of the KV cache.",
)
@options.quant_option
@options.memory_option
@options.store_options
@click.option(
    "--profile",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A trace of `colibri-sdk profile`: what each number of cache slots would read.",
)
@click.option(
    "--curve", type=click.Path(dir_okay=False, path_type=Path), help="Draw that into a file, .png, .svg or .pdf."
)
@click.option(
    "--read-rate",
    metavar="SIZE",
    callback=options.size,
    help="What the card reads in a second, e.g. 20M. Default: the emulated board's, where it was measured.",
)
@output.json_option
def command(
    image: Path,
    board_name: str,
    context: int,
    kv: str,
    quant: str,
    memory: int | None,
    profile: Path | None,
    curve: Path | None,
    read_rate: int | None,
    as_json: bool,
    **values: Any,
) -> int:
    """Print the memory map of a board with IMAGE, and whether it fits: if not, by how much, and what would help.

    Exit code 7 when it does not fit. IMAGE may be a checkpoint's directory, which is packed first.

    With --profile also the hits and reads that each number of cache slots will have: for the prompts of the trace, the
    figures that the device counts.
    """
    from colibri_sdk import targets
    from colibri_sdk.planning import plan_board
    from colibri_sdk.store import StoreChoice

    if profile is None and (curve is not None or read_rate is not None):
        raise UsageError("--curve and --read-rate are about a trace", "Give one with --profile.")
    if read_rate == 0:
        raise UsageError("--read-rate 0: such a card is never read", "Give what it reads in a second, e.g. 20M.")
    if curve is not None:
        from colibri_sdk.profiling.chart import check_target

        check_target(curve)
    board = options.chosen_board(board_name, memory=memory)
    packed = targets.image_for(image, quant=quant, log=output.note)
    choice = options.take_store(values) or StoreChoice()
    points: list[Point] = []
    rate = read_rate or board.emulator.storage_bytes_per_second or None
    if profile is not None:
        points = _points(packed, profile, rate, context=context, kv=kv)
        if choice.prefetch:
            output.note("Reads are foretold without --prefetch: what it changes depends on the card's speed.")
    result = plan_board(board, packed, context=context, kv=kv, choice=choice)
    if as_json:
        output.emit_json(_as_json(result) | ({"profile": [point.as_json() for point in points]} if points else {}))
    else:
        _show(result)
        if points:
            _show_points(points, _rate_text(board, read_rate))
    if curve is not None and profile is not None:
        from colibri_sdk.profiling.chart import draw

        draw(points, curve, title=f"{packed.stem}, routing of {profile.name}")
    return 0 if result.fits else EXIT_IMAGE


def _points(image: Path, profile: Path, rate: float | None, *, context: int, kv: str) -> list[Point]:
    from colibri_sdk.engine import Library
    from colibri_sdk.profiling import trace
    from colibri_sdk.profiling.curve import curve

    recorded = trace.load(profile)
    with output.Progress("replaying", "sizes") as progress:
        return list(
            curve(
                Library.load(),
                image,
                recorded,
                bytes_per_second=rate,
                context=context,
                kv=kv,
                progress=progress.update,
            )
        )


def _as_json(result: MemoryMap) -> dict[str, Any]:
    plan = result.plan
    return {
        "board": result.board,
        "fits": result.fits,
        "available_bytes": result.available_bytes,
        "needed_bytes": result.needed_bytes,
        "short_bytes": result.short_bytes,
        "free_bytes": result.free_bytes,
        "store": result.store,
        "cache_slots": plan.cache_slots,
        "slot_bytes": plan.slot_bytes,
        "image_bytes": plan.image_bytes,
        "loaded_bytes": result.loaded_bytes,
        "arena_bytes": plan.arena_bytes,
        "resident_bytes": plan.resident_bytes,
        "expert_bytes": plan.expert_bytes,
        "active_bytes": plan.active_bytes,
        "context": plan.context,
        "batch": plan.batch,
        "kv_format": plan.kv_format,
        "areas": result.areas,
        "regions": plan.regions,
        "remedies": result.remedies,
    }


def _show(result: MemoryMap) -> None:
    rows = [
        [f"{area.address:#012x}" if area.address is not None else "-", output.count(area.bytes), area.name]
        for area in result.areas
    ]
    plan = result.plan
    output.table(["address", "bytes", "what"], rows, title=f"Memory of {result.board}", right="lrl")
    click.echo(f"\ncontext {plan.context} positions, KV cache {plan.kv_format}, prompts in batches of {plan.batch}")
    click.echo(f"image {output.size(plan.image_bytes)}; a token reads {output.size(plan.active_bytes)} of it")
    click.echo(f"arena {output.size(plan.arena_bytes)}")
    if plan.cache_slots:
        click.echo(
            f"experts are read from the card: {plan.cache_slots} cache slot{'' if plan.cache_slots == 1 else 's'} in "
            f"each layer, {output.size(plan.slot_bytes)}"
        )
    if result.fits:
        click.echo(f"FITS: {output.size(result.free_bytes)} stay free of {output.size(result.available_bytes)}")
    else:
        click.echo(
            f"DOES NOT FIT: needs {output.size(result.needed_bytes)}, "
            f"{output.count(result.short_bytes)} bytes more than there are"
        )
        for remedy in result.remedies:
            click.echo(f"  {remedy.text}: {output.size(remedy.needed_bytes)}")


def _rate_text(board: Board, read_rate: int | None) -> str:
    """The rate that times are computed with, and where it comes from; empty where there is none."""
    if read_rate:
        return f"{read_rate / 2**20:.1f} MiB/s, as given"
    rate = board.emulator.storage_bytes_per_second
    return f"{rate / 2**20:.1f} MiB/s, as measured on the emulated {board.name}" if rate else ""


def _show_points(points: list[Point], rate: str) -> None:
    from colibri_sdk.profiling.curve import thinned

    rows = [
        [
            point.slots,
            f"{100 * point.hit_rate:.2f} %",
            "#" * round(_BAR * point.hit_rate),
            output.count(round(point.bytes_per_token)),
            output.count(round(point.bytes_per_answer_token)),
            *([f"{1000 * point.seconds_per_answer_token:.1f}"] if point.seconds_per_answer_token is not None else []),
            output.count(point.arena_bytes),
        ]
        for point in thinned(points, _ROWS)
    ]
    headers = ["slots", "hit rate", "", "bytes/token", "bytes/answer token", *(["ms to read"] if rate else []), "arena"]
    click.echo()
    output.table(headers, rows, title="Experts read, by cache slots per layer", right="rrlrrrr")
    if rate:
        click.echo(f"ms to read: of a token of an answer, at {rate}; computing comes to it, in part at the same time")
