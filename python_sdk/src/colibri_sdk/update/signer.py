# SPDX-License-Identifier: Apache-2.0
"""Signatures that are made on the way to a device: with the terms that the key's owner chose, not those it asks for.

A signature counts on every board that trusts the key and that it is for. Whoever signed with the counter that a device
states would let a dishonest device choose it: 2^64 - 1, and no board takes anything any more.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from colibri_sdk.errors import UsageError
from colibri_sdk.flash.contents import Signed
from colibri_sdk.image.layout import MAGIC, UPDATE
from colibri_sdk.image.reader import ImageFile
from colibri_sdk.image.signature import Signature
from colibri_sdk.signing import PrivateKey, PublicKey, check_board_name, sign_image, sign_update

# The highest generation of an expert that is signed on the way, for that is one more than a device says it has. Beyond,
# who has the key says it (`update sign --generation`), and always can: there are 2^32.
GENERATIONS = 1 << 16


@dataclass(frozen=True)
class Signer:
    """A key and the terms of what it signs. `any_board` False: only for the board that the device says it is."""

    key: PrivateKey
    counter: int = 0
    any_board: bool = False

    @property
    def signed(self) -> Signed:
        """What its signatures say."""
        return Signed(self.key.public.key_id, self.counter)

    def check(self, board: str, counter: int) -> None:
        """UsageError when nothing can be signed on these terms that a device takes which says that it is `board` and
        has security counter `counter`."""
        if counter > self.counter:
            raise UsageError(
                f"the device wants a security counter of {counter} or more, and this would be signed with "
                f"{self.counter}",
                "If the key's owner has signed with that counter before, give it with --counter: boards that take "
                "this refuse everything below it from then on.",
            )
        if self.any_board:
            return
        if not board:
            raise UsageError(
                "the device does not say which board it is", "Sign for any board, with --any-board, or update another."
            )
        check_board_name(board)

    def update(self, update: bytes, board: str) -> bytes:
        """A struct col_update, signed for `board` with this counter."""
        record = np.frombuffer(update, UPDATE)[0].copy()
        if record["generation"] > GENERATIONS:
            raise UsageError(
                f"the device says that the expert has been replaced {record['generation'] - 1} times",
                "If that is so, sign the next with `colibri-sdk update sign --generation`.",
            )
        record["counter"] = self.counter
        record["board"] = self._board(board).encode()
        return sign_update(record, self.key)

    def image(self, path: Path, board: str) -> Signature:
        """Signs the image `path` for `board`, in place."""
        return sign_image(path, self.key, counter=self.counter, board=self._board(board))

    def _board(self, board: str) -> str:
        return "" if self.any_board else board


def counter_of(paths: Iterable[Path], key: PublicKey) -> int:
    """The security counter of the first of these files that is an image signed with that key; 0 where none is."""
    for path in paths:
        signature = _signature(path)
        if signature is None or not signature.signed or signature.key_id != key.key_id:
            continue
        if key.check(signature.signature, signature.message()):
            return signature.counter
    return 0


def signed_of(path: Path) -> Signed | None:
    """What the image `path` says of its signature; None: it is unsigned, or no image."""
    signature = _signature(path)
    return Signed(signature.key_id, signature.counter) if signature is not None and signature.signed else None


def _signature(path: Path) -> Signature | None:
    """None of a file that is no image."""
    if not path.is_file():
        return None
    with path.open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            return None
    with ImageFile(path) as image:
        return image.signature
