# SPDX-License-Identifier: Apache-2.0
"""Keys and signatures: files, what is signed, what is refused, and the commands."""

from __future__ import annotations

import hashlib
import json
import os
import re
from pathlib import Path

import numpy as np
import pytest

import checkpoints
from colibri_sdk.cli import main
from colibri_sdk.convert import pack
from colibri_sdk.errors import DeviceError, ImageError, UsageError
from colibri_sdk.image.layout import SectionKind
from colibri_sdk.image.reader import ImageFile
from colibri_sdk.image.recard import replace_card
from colibri_sdk.signing import PrivateKey, PublicKey, new_key, sign_image, verify_image
from colibri_sdk.status import Status

KEY = PrivateKey.new()


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    directory = tmp_path_factory.mktemp("image")
    pack(checkpoints.write(directory / "tiny"), directory / "tiny.colibri")
    return (directory / "tiny.colibri").read_bytes()


@pytest.fixture
def image(tmp_path: Path, packed: bytes) -> Path:
    (tmp_path / "tiny.colibri").write_bytes(packed)
    return tmp_path / "tiny.colibri"


def test_key_files(tmp_path: Path) -> None:
    private, public, key = new_key(tmp_path / "keys")
    assert private.stat().st_mode & 0o777 == 0o600
    assert PublicKey.load(public) == PublicKey.load(private) == PrivateKey.load(private).public == key
    fields = json.loads(public.read_text())
    assert fields["kind"] == "colibri public key" and bytes.fromhex(fields["public"]) == key.key
    assert fields["key_id"] == hashlib.blake2b(key.key, digest_size=32).hexdigest()[:32]
    secret = PrivateKey.load(private).secret.hex()
    assert secret not in public.read_text() and secret not in repr(PrivateKey.load(private))
    assert new_key(tmp_path / "others")[2] != key
    before = private.read_bytes()
    with pytest.raises(UsageError, match="exists"):
        new_key(tmp_path / "keys")
    assert private.read_bytes() == before


@pytest.mark.parametrize(
    "text",
    [
        "", "no JSON", "[]", "{}", '{"kind": "colibri public key"}',
        '{"kind": "colibri public key", "algorithm": "rsa", "public": "00"}',
        '{"kind": "colibri public key", "algorithm": "eddsa-curve25519-blake2b", "public": 7, "key_id": ""}',
        '{"kind": "colibri public key", "algorithm": "eddsa-curve25519-blake2b", "public": "zz", "key_id": ""}',
    ],
)  # fmt: skip
def test_files_that_are_no_keys(tmp_path: Path, text: str) -> None:
    (tmp_path / "k").write_text(text)
    for kind in (PublicKey, PrivateKey):
        with pytest.raises(UsageError) as caught:
            kind.load(tmp_path / "k")
        assert str(tmp_path / "k") in caught.value.message and caught.value.hint


@pytest.mark.parametrize("problem", [KeyboardInterrupt(), OSError(28, "No space left on device")], ids=repr)
@pytest.mark.parametrize("file", [1, 2])
def test_keys_that_were_not_written_to_the_end_are_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, problem: BaseException, file: int
) -> None:
    """Half of one stood in the way of the next call, which replaces no key."""
    synced: list[int] = []

    def fsync(handle: int) -> None:
        synced.append(handle)
        if len(synced) == file:
            raise problem

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        with pytest.raises(KeyboardInterrupt if isinstance(problem, KeyboardInterrupt) else UsageError):
            new_key(tmp_path)
    assert not list(tmp_path.iterdir())
    new_key(tmp_path)


def test_damaged_and_mistaken_keys(tmp_path: Path) -> None:
    private, public, _ = new_key(tmp_path)
    with pytest.raises(UsageError, match="cannot sign"):
        PrivateKey.load(public)
    for path, name in ((private, "secret"), (public, "public")):
        fields = json.loads(path.read_text())
        fields[name] = "00" + fields[name][2:] if not fields[name].startswith("00") else "01" + fields[name][2:]
        path.write_text(json.dumps(fields))
        with pytest.raises(UsageError, match="damaged"):
            PublicKey.load(path)


def test_signing_changes_the_signature_alone(image: Path, packed: bytes) -> None:
    signature = sign_image(image, KEY, counter=7, board="rpi3")
    data = image.read_bytes()
    with ImageFile(image) as file:
        start = file.sections[SectionKind.SIGNATURE].offset
        assert file.signature == signature
        assert all(check.ok for check in file.verify())
    assert data[:start] == packed[:start] and data[start + 256 :] == packed[start + 256 :]
    # By hand, from docs/image-format.md.
    assert data[start + 72 : start + 136] == hashlib.blake2b(data[:start]).digest()
    assert KEY.public.check(data[start + 136 : start + 200], data[start : start + 136])
    assert sign_image(image, KEY, counter=7, board="rpi3") == signature


def test_verifying(image: Path) -> None:
    with pytest.raises(DeviceError, match="not signed") as caught:
        verify_image(image, KEY.public)
    assert (caught.value.status, caught.value.where) == (Status.E_SIGNATURE, "unsigned")
    sign_image(image, KEY, counter=7, board="rpi3")
    assert verify_image(image, KEY.public, counter=7, board="rpi3").counter == 7
    with pytest.raises(DeviceError) as caught:
        verify_image(image, KEY.public, counter=8)
    assert (caught.value.status, caught.value.got, caught.value.wanted) == (Status.E_COUNTER, 7, 8)
    with pytest.raises(ImageError, match="signed for board rpi3") as other:
        verify_image(image, KEY.public, board="virt-riscv64")
    assert other.value.status == Status.E_OTHER_BOARD
    with pytest.raises(DeviceError) as caught:
        verify_image(image, PrivateKey.new().public)
    assert caught.value.where == "key"


def test_what_was_changed_after_signing_is_found(image: Path) -> None:
    sign_image(image, KEY, counter=1)
    data = bytearray(image.read_bytes())
    with ImageFile(image) as file:
        start = file.signed_bytes
        resident = file.sections[SectionKind.RESIDENT].offset
        expert = file.sections[SectionKind.EXPERTS].offset
    for place, error in ((resident, "not what was signed"), (expert + 9, "damaged: expert 0/0")):
        changed = bytearray(data)
        changed[place] ^= 1
        image.write_bytes(changed)
        with pytest.raises((DeviceError, ImageError), match=error):
            verify_image(image, KEY.public)
        with pytest.raises(ImageError, match="was not signed"):
            sign_image(image, KEY)
    # A higher counter, with the checksum of the section made right.
    from forge import Forge

    image.write_bytes(data)
    forge = Forge(image)
    forge.signature["counter"] = 99
    forge.seal_signature()
    forge.write(image)
    with pytest.raises(DeviceError, match="not this key's"):
        verify_image(image, KEY.public)
    assert start % 4096 == 0


def test_another_card_makes_an_image_unsigned(image: Path) -> None:
    sign_image(image, KEY)
    replace_card(image, b"{}")
    with ImageFile(image) as file:
        assert not file.signature.signed and all(check.ok for check in file.verify())


@pytest.mark.parametrize(("counter", "board"), [(-1, ""), (2**64, ""), (0, "x" * 32), (0, "a\0b")])
def test_terms_that_cannot_be_written(image: Path, counter: int, board: str) -> None:
    before = image.read_bytes()
    with pytest.raises(UsageError):
        sign_image(image, KEY, counter=counter, board=board)
    assert image.read_bytes() == before


def test_the_build_takes_the_package_that_python_has(repo_root: Path) -> None:
    build = (repo_root / "site_scons" / "monocypher_source.py").read_text()
    package = (repo_root / "python_sdk" / "pyproject.toml").read_text()
    version = re.search(r'^VERSION = "(.+)"', build, re.MULTILINE)
    assert version and f'"pymonocypher=={version[1]}"' in package


def test_commands(image: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def run(*arguments: object, code: int = 0) -> str:
        assert main.run([str(argument) for argument in arguments]) == code
        return capsys.readouterr().out

    made = json.loads(run("keys", "new", tmp_path / "k", "--json"))
    run("keys", "new", tmp_path / "k", code=2)
    run("keys", "verify", image, "--public-key", made["public"], code=8)
    run("keys", "sign", image, "--key", made["public"], code=2)
    run("keys", "sign", image, "--key", made["private"], "--board", "nothing", code=2)
    signed = json.loads(
        run("keys", "sign", image, "--key", made["private"], "--board", "rpi3", "--counter", 2, "--json")
    )
    assert (signed["key_id"], signed["counter"], signed["board"]) == (made["key_id"], 2, "rpi3")
    assert json.loads(run("keys", "verify", image, "--public-key", made["public"], "--json")) == signed
    assert "right" in run("keys", "verify", image, "-k", made["public"])
    run("keys", "verify", image, "--public-key", made["public"], "--board", "host", code=7)
    run("keys", "verify", image, "--public-key", made["public"], "--counter", 3, code=8)
    seen = json.loads(run("inspect", image, "--json"))["signature"]
    assert seen == {"signed": True, "algorithm": "eddsa", "key_id": made["key_id"], "counter": 2, "board": "rpi3"}
    assert f"key {made['key_id']}, counter 2, board rpi3" in run("inspect", image)
    run("keys", "verify", image, "--public-key", made["public"], "--board", "nothing", code=2)
    assert main.run(["keys", "sign", str(image), "--key", made["private"]]) == 0
    assert "It had counter 2" in capsys.readouterr().err  # boards that have confirmed it refuse what is below
    assert main.run(["keys", "sign", str(image), "--key", made["private"], "--counter", "3"]) == 0
    assert capsys.readouterr().err == ""
    data = np.fromfile(image, np.uint8)
    data[-5000] ^= 1  # in the spare place: nobody's
    data.tofile(image)
    run("keys", "verify", image, "--public-key", made["public"])
