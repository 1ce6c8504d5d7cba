# SPDX-License-Identifier: Apache-2.0
"""A file that carries one expert to the field: what the key's owner signs where the key is, and others send without it.

| offset | type | meaning |
|---|---|---|
| 0 | u8[8] | `COLIPKG\\x1a` |
| 8 | u32 | version, 1 |
| 12 | u8[244] | zero |
| 256 | struct col_update | layer, expert, generation, counter, board, base image, digest, signature; offset 0 |
| 512 | | the blob |
"""

from __future__ import annotations

import contextlib
import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from colibri_sdk.errors import ImageError
from colibri_sdk.flash.contents import Signed
from colibri_sdk.image.kinds import PACKAGE_MAGIC
from colibri_sdk.image.layout import UPDATE
from colibri_sdk.update.content import Content, Range
from colibri_sdk.whole_file import whole_file

MAGIC = PACKAGE_MAGIC
VERSION = 1
_HEAD_BYTES = 256
_BLOB_AT = _HEAD_BYTES + UPDATE.itemsize


@dataclass(frozen=True)
class Package:
    """`update` is a struct col_update, `content` the blob that it speaks of."""

    update: bytes
    content: Content

    @property
    def record(self) -> Any:
        """`update` as an UPDATE record."""
        return np.frombuffer(self.update, UPDATE)[0]

    @property
    def layer(self) -> int:
        return int(self.record["layer"])

    @property
    def expert(self) -> int:
        return int(self.record["expert"])

    @property
    def signed(self) -> Signed | None:
        """None: it is unsigned."""
        key_id = bytes(self.record["key_id"])
        return Signed(key_id, int(self.record["counter"])) if any(key_id) else None

    def fields(self) -> dict[str, Any]:
        """What it is and for whom: `image_id` is that of the base image, `board` is empty for any."""
        signed, record = self.signed, self.record
        return {
            "layer": self.layer,
            "expert": self.expert,
            "generation": int(record["generation"]),
            "image_id": bytes(record["image_id"]).hex(),
            "counter": int(record["counter"]),
            "board": record["board"].item().decode("utf-8", "replace"),
            "key_id": signed.key_id.hex() if signed else "",
            "signed": signed is not None,
        }


def is_package(path: Path) -> bool:
    """By its first bytes. OSError when it cannot be read."""
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def write_package(path: Path, update: bytes, content: Content) -> None:
    """The file is whole or not there. UsageError when it cannot be written."""
    with whole_file(path, "Name another with -o.") as file:
        file.write(struct.pack("<8sI", MAGIC, VERSION).ljust(_HEAD_BYTES, b"\0") + update)
        for _, data in content.chunks(Range(0, content.bytes)):
            file.write(data)


@contextlib.contextmanager
def open_package(path: Path) -> Iterator[Package]:
    """ImageError when it is damaged or of another version: its blob must have the length and digest that it states."""
    size = path.stat().st_size
    if size <= _BLOB_AT:
        raise _damaged(path, "it is too short")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        (version,) = struct.unpack_from("<I", data, len(MAGIC))
        if data[: len(MAGIC)] != MAGIC or version != VERSION:
            raise ImageError(
                f"{path} is no update of version {VERSION}", "Make one with `colibri-sdk update sign` of this version."
            )
        update = data[_HEAD_BYTES:_BLOB_AT]
        record = np.frombuffer(update, UPDATE)[0]
        content = Content(lambda at, count: data[_BLOB_AT + at : _BLOB_AT + at + count], size - _BLOB_AT)
        if content.bytes != int(record["bytes"]):
            raise _damaged(path, f"its blob has {content.bytes} bytes and is stated to have {record['bytes']}")
        if content.digest != bytes(record["digest"]):
            raise _damaged(path, "its blob's digest is another than it states")
        yield Package(update, content)


def _damaged(path: Path, why: str) -> ImageError:
    return ImageError(f"{path} is damaged: {why}", "Copy the file again.")
