# SPDX-License-Identifier: Apache-2.0
"""colibri-sdk keys: make keys, sign images, verify them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from colibri_sdk.cli import output

if TYPE_CHECKING:
    from colibri_sdk.image.signature import Signature

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.group()
def command() -> None:
    """Keys for images and updates. A board built with a public key (`build --public-key`) runs only what its private
    half signed."""


@command.command()
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
@click.option("--name", default="colibri", show_default=True, help="Of the two files.")
@output.json_option
def new(directory: Path, name: str, as_json: bool) -> None:
    """Make a key: NAME.private.json, which signs and stays with you, and NAME.public.json, which boards get."""
    from colibri_sdk.errors import UsageError
    from colibri_sdk.signing import new_key

    if "/" in name or not name:
        raise UsageError(f"{name!r} is no name of a file", "Name the directory before it.")
    private, public, key = new_key(directory, name)
    if as_json:
        output.emit_json({"private": private, "public": public, "key_id": key.key_id.hex()})
        return
    click.echo(f"key {key.key_id.hex()}")
    click.echo(
        f"private: {private}  keep it secret, and keep a copy: without it no board that trusts it can be updated"
    )
    click.echo(f"public:  {public}")


@command.command()
@click.argument("image", type=FILE)
@click.option("--key", "-k", type=FILE, required=True, help="The private key.")
@click.option(
    "--counter",
    type=click.IntRange(0, (1 << 64) - 1),
    default=0,
    show_default=True,
    help="Security counter. A device refuses what is below the highest one it has confirmed; raise it when what was "
    "signed before must not run any more.",
)
@click.option("--board", "-b", default="", help="The only board that may run it. Default: any.")
@output.json_option
def sign(image: Path, key: Path, counter: int, board: str, as_json: bool) -> None:
    """Sign IMAGE, in place, after all its checksums were verified. A new signature replaces an old one."""
    from colibri_sdk.boards import load_board
    from colibri_sdk.image.reader import ImageFile
    from colibri_sdk.signing import PrivateKey, sign_image

    if board:
        load_board(board)
    private = PrivateKey.load(key)
    with ImageFile(image) as unchanged:
        before = unchanged.signature
    _show(image, sign_image(image, private, counter=counter, board=board), as_json, "signed")
    if before.signed and before.counter > counter:
        output.note(
            f"It had counter {before.counter}, and boards that have confirmed that refuse {counter}: unless this is "
            f"meant, sign it again with --counter {before.counter}."
        )


@command.command()
@click.argument("image", type=FILE)
@click.option("--public-key", "-k", type=FILE, required=True, help="The public key.")
@click.option("--counter", type=click.IntRange(0, (1 << 64) - 1), default=0, help="Refuse what is older.")
@click.option("--board", "-b", default="", help="Refuse what is for another board. Default: whatever it is for.")
@output.json_option
def verify(image: Path, public_key: Path, counter: int, board: str, as_json: bool) -> None:
    """Check that IMAGE is what the key's owner signed, to the last expert. Exit code 8 when it is not signed by that
    key, 7 when it is damaged or for another board."""
    from colibri_sdk.boards import load_board
    from colibri_sdk.signing import PublicKey, verify_image

    if board:
        load_board(board)
    found = verify_image(image, PublicKey.load(public_key), counter=counter, board=board)
    _show(image, found, as_json, "right: signed")


def _show(image: Path, found: Signature, as_json: bool, word: str) -> None:
    fields: dict[str, Any] = {"image": image, "key_id": found.key_id.hex(), "counter": found.counter}
    if as_json:
        output.emit_json({**fields, "board": found.board, "signed": True})
        return
    board = f"board {found.board}" if found.board else "any board"
    click.echo(f"{image} is {word} by key {found.key_id.hex()}, counter {found.counter}, for {board}")
