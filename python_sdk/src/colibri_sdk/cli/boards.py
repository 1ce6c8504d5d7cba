# SPDX-License-Identifier: Apache-2.0
"""colibri-sdk boards: what there is."""

from __future__ import annotations

import click

from colibri_sdk.boards import list_boards
from colibri_sdk.cli import output


@click.command()
@output.json_option
def command(as_json: bool) -> None:
    """List the boards. Each is one file, boards/NAME.toml (docs/adding-a-board.md)."""
    boards = list_boards()
    if as_json:
        output.emit_json([board.as_json() for board in boards])
        return
    output.table(
        ["board", "what it is", "architecture", "memory", "emulated", "model from"],
        [
            [
                board.name,
                board.title,
                board.architecture,
                f"{board.memory.ram.bytes >> 20} MiB" if board.memory else "-",
                "yes" if board.emulated else "no",
                board.flash.method,
            ]
            for board in boards
        ],
        right="lllr",
    )
