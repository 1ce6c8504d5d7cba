# SPDX-License-Identifier: Apache-2.0
"""The file that carries one signed expert: its bytes by hand, and damage that is found before anything is sent."""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path

import pytest

from colibri_sdk.errors import ImageError, UsageError
from colibri_sdk.update.content import Content
from colibri_sdk.update.expert import describe_update
from colibri_sdk.update.package import is_package, open_package, write_package

BLOB = bytes(range(256)) * 32
IMAGE_ID = "ab" * 16


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "expert.update"
    content = Content(lambda at, count: BLOB[at : at + count], len(BLOB))
    write_package(path, describe_update(content, 3, 5, generation=2, image_id=IMAGE_ID), content)
    return path


def test_layout(file: Path) -> None:
    data = file.read_bytes()
    assert data[:256] == struct.pack("<8sI", b"COLIPKG\x1a", 1).ljust(256, b"\0")
    assert struct.unpack_from("<QQIII", data, 256) == (0, len(BLOB), 3, 5, 2)
    assert data[256 + 72 : 256 + 88].hex() == IMAGE_ID
    assert data[256 + 88 : 256 + 120] == hashlib.blake2b(BLOB, digest_size=32).digest()
    assert data[512:] == BLOB
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_round_trip(file: Path) -> None:
    assert is_package(file)
    with open_package(file) as package:
        assert (package.layer, package.expert, package.content.bytes) == (3, 5, len(BLOB))
        assert package.content.read(0, len(BLOB)) == BLOB
        assert package.update == file.read_bytes()[256:512]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda data: data[:512], "too short"),
        (lambda data: data[:-1], "has 8191 bytes and is stated to have 8192"),
        (lambda data: data[:-1] + b"?", "digest is another"),
        (lambda data: data[:8] + b"\2" + data[9:], "no update of version 1"),
    ],
)
def test_damage_is_found(file: Path, change: object, words: str) -> None:
    file.write_bytes(change(file.read_bytes()))  # type: ignore[operator]
    with pytest.raises(ImageError, match=words), open_package(file):
        pass


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    def fail(at: int, count: int) -> bytes:
        raise OSError(28, "No space left on device")

    with pytest.raises(UsageError, match="x cannot be written: No space"):
        write_package(tmp_path / "x", bytes(256), Content(fail, 4096))
    assert not list(tmp_path.iterdir())
