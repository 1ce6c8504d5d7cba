# SPDX-License-Identifier: Apache-2.0
"""colibri-sdk keys: make keys, sign images, verify images and updates."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from colibri_sdk.cli import output

if TYPE_CHECKING:
    from colibri_sdk.image.signature import Signature
    from colibri_sdk.signing import PublicKey

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
    _show(image, sign_image(image, private, counter=counter, board=board), as_json, "")
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
    """Check that IMAGE is what the key's owner signed, to the last expert. It may be an update that `update sign` made,
    too. Exit code 8 when it is not signed by that key, 7 when it is damaged or for another board."""
    from colibri_sdk.boards import load_board
    from colibri_sdk.signing import PublicKey, verify_image
    from colibri_sdk.update.package import is_package

    if board:
        load_board(board)
    key = PublicKey.load(public_key)
    if is_package(image):
        _verify_update(image, key, counter, board, as_json)
    else:
        _show(image, verify_image(image, key, counter=counter, board=board), as_json, "right: ")


def _verify_update(path: Path, key: PublicKey, counter: int, board: str, as_json: bool) -> None:
    from colibri_sdk.errors import DeviceError
    from colibri_sdk.signing import check_update
    from colibri_sdk.status import Status
    from colibri_sdk.update.package import open_package

    with open_package(path) as package:  # whose blob is the one that it states
        try:
            check_update(package.record, key, counter=counter, board=board, subject=path.name)
        except DeviceError as error:
            if error.status == Status.E_SIGNATURE:  # the usual advice is about images
                error.hint = "Make it anew with `colibri-sdk update sign` and the key that belongs to the public key."
            raise
        fields = package.fields()
    if as_json:
        output.emit_json({"update": path, **fields})
        return
    click.echo(
        f"{path} is right: expert {fields['layer']}/{fields['expert']} for image {fields['image_id']}, generation "
        f"{fields['generation']}, {signed_by(fields['key_id'], fields['counter'], fields['board'])}"
    )


def _show(image: Path, found: Signature, as_json: bool, word: str) -> None:
    fields: dict[str, Any] = {"image": image, "key_id": found.key_id.hex(), "counter": found.counter}
    if as_json:
        output.emit_json({**fields, "board": found.board, "signed": True})
        return
    click.echo(f"{image} is {word}{signed_by(found.key_id.hex(), found.counter, found.board)}")


def signed_by(key_id: str, counter: int, board: str) -> str:
    """The terms of a signature, in words."""
    return f"signed by key {key_id}, counter {counter}, for {f'board {board}' if board else 'any board'}"
