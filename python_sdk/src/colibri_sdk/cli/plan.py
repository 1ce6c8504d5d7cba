# SPDX-License-Identifier: Apache-2.0
"""colibri-sdk plan: a board's memory with a model in it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from colibri_sdk.cli import options, output
from colibri_sdk.errors import EXIT_IMAGE

if TYPE_CHECKING:
    from colibri_sdk.planning import MemoryMap


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
@output.json_option
def command(image: Path, board_name: str, context: int, kv: str, quant: str, as_json: bool) -> int:
    """Print the memory map of a board with IMAGE, and whether it fits: if not, by how much, and what would help.

    Exit code 7 when it does not fit. IMAGE may be a checkpoint's directory, which is packed first.
    """
    from colibri_sdk import targets
    from colibri_sdk.boards import load_board
    from colibri_sdk.planning import plan_board

    board = load_board(board_name)
    packed = targets.image_for(image, quant=quant, log=output.note)
    result = plan_board(board, packed, context=context, kv=kv)
    if as_json:
        output.emit_json(_as_json(result))
    else:
        _show(result)
    return 0 if result.fits else EXIT_IMAGE


def _as_json(result: MemoryMap) -> dict[str, Any]:
    plan = result.plan
    return {
        "board": result.board,
        "fits": result.fits,
        "available_bytes": result.available_bytes,
        "needed_bytes": result.needed_bytes,
        "short_bytes": result.short_bytes,
        "free_bytes": result.free_bytes,
        "image_bytes": plan.image_bytes,
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
    if result.available_bytes is None:
        click.echo(f"needs {output.size(result.needed_bytes)}; this machine's memory is not limited here")
    elif result.fits:
        click.echo(f"FITS: {output.size(result.free_bytes or 0)} stay free of {output.size(result.available_bytes)}")
    else:
        click.echo(
            f"DOES NOT FIT: needs {output.size(result.needed_bytes)}, "
            f"{output.count(result.short_bytes)} bytes more than there are"
        )
        for remedy in result.remedies:
            click.echo(f"  {remedy.text}: {output.size(remedy.needed_bytes)}")
