# SPDX-License-Identifier: Apache-2.0
"""colibri-sdk emulate: an emulated board that stays."""

from __future__ import annotations

import tempfile
from pathlib import Path

import click

from colibri_sdk.cli import options, output
from colibri_sdk.errors import UsageError


@click.command()
@click.option("--board", "-b", "board_name", required=True, help="The board.")
@click.option("--model", "-m", type=click.Path(exists=True, path_type=Path), help="Image or checkpoint for its card.")
@click.option("--card", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="A card image as it is.")
@options.quant_option
@click.option("--cpu", help="Processor model, where the board has a choice.")
@options.memory_option
@options.public_key_option
@click.option("--pty", is_flag=True, help="Offer a pseudo-terminal instead of a Unix socket.")
@click.option("--socket", "socket_path", type=click.Path(path_type=Path), help="Where to listen. Default: a new place.")
@output.json_option
def command(
    board_name: str,
    model: Path | None,
    card: Path | None,
    quant: str,
    cpu: str | None,
    memory: int | None,
    public_key: Path | None,
    pty: bool,
    socket_path: Path | None,
    as_json: bool,
) -> None:
    """Run an emulated board until Ctrl-C, and say where to attach: `colibri-sdk chat --port ...`.

    With --model a card is written for it; with --card the board runs from that file and keeps what it writes there.
    """
    from colibri_sdk import bridge, emulator, targets
    from colibri_sdk.build import build

    if (model is None) == (card is None):
        raise UsageError("emulate needs --model or --card", "Give one of the two.")
    board = options.chosen_board(board_name, memory=memory, public_key=public_key)
    if card is not None and board.flash.boots and (memory is not None or public_key is not None):
        # Without the key that was asked for it would take whatever it is sent.
        raise UsageError(
            f"{board.name} boots the firmware on its card, which --memory and --public-key do not change",
            "Write the card with `colibri-sdk flash --public-key`, or have one written here, with --model.",
        )

    def ready(port: str) -> None:
        if as_json:
            output.emit_json({"board": board.name, "attach": port})
        else:
            click.echo(f"{board.name} runs; attach with: colibri-sdk chat --port {port}")
        output.note("Ctrl-C ends it.")

    output.note(f"building the firmware of {board.name}")
    firmware = build(board)
    with tempfile.TemporaryDirectory(prefix="colibri-") as scratch:
        storage = card
        if model is not None:
            image = targets.image_for(model, quant=quant, log=output.note)
            storage = targets.storage_for(board, firmware, image, Path(scratch), log=output.note)
        with emulator.start(board, firmware=firmware, storage=storage, cpu=cpu) as running:
            if pty:
                bridge.serve_terminal(running, ready)
            else:
                bridge.serve_socket(running, socket_path or Path(scratch) / "link", ready)
            output.note(f"{board.name} has ended")
