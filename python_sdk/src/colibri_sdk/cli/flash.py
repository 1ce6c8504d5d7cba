# SPDX-License-Identifier: Apache-2.0
"""colibri-sdk flash: a card with firmware and model."""

from __future__ import annotations

from pathlib import Path

import click

from colibri_sdk.cli import options, output


@click.command()
@click.option("--board", "-b", "board_name", required=True, help="The board.")
@click.option("--model", "-m", type=click.Path(exists=True, path_type=Path), required=True, help="Image or checkpoint.")
@click.option("--to", type=click.Path(path_type=Path), required=True, help="A file, or a whole disk such as /dev/sdX.")
@click.option(
    "--boot-files",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Directory with the boot files of the board's maker, which a real card needs.",
)
@click.option(
    "--force", is_flag=True, help="Replace an existing file; take a disk that is not removable or larger than 256 GB."
)
@click.option(
    "--slots",
    type=click.IntRange(1, 2),
    help="2: room for a second model, so that `update model` can try a new one and take it back. Default: 2 where the "
    "card has room.",
)
@options.public_key_option
@options.quant_option
@output.json_option
def command(
    board_name: str,
    model: Path,
    to: Path,
    boot_files: Path | None,
    force: bool,
    slots: int | None,
    public_key: Path | None,
    quant: str,
    as_json: bool,
) -> None:
    """Write a complete card: partition table, boot partition, model partition; read it back and verify it.

    A damaged model is not written. With --public-key it must be signed with that key, or the board would not start.

    The emulator boots exactly such a file. On a disk the first block is written last, so that a card that was
    interrupted does not look like a whole one.
    """
    from colibri_sdk import targets
    from colibri_sdk.build import build
    from colibri_sdk.flash import write_card
    from colibri_sdk.image.reader import ImageFile
    from colibri_sdk.signing import PublicKey, verify_image

    board = options.chosen_board(board_name, public_key=public_key)
    image = targets.image_for(model, quant=quant, log=output.note)
    # A card that its board would not start with is not written.
    if public_key is not None:
        verify_image(image, PublicKey.load(public_key), board=board.name)
    else:
        with ImageFile(image) as file:
            file.require_whole()
    output.note(f"building the firmware of {board.name}")
    firmware = build(board)
    with output.Progress(f"writing {to}") as progress:
        made = write_card(
            board,
            firmware=firmware,
            model=image,
            to=to,
            boot_files=boot_files,
            force=force,
            progress=progress,
            slots=slots,
        )
    if as_json:
        output.emit_json({"board": board.name, "to": to, "model_bytes": image.stat().st_size, "slots": made})
    else:
        click.echo(f"{to} is ready for {board.name}, with {made} slot{'s' if made > 1 else ''} for models")
