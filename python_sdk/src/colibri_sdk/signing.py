# SPDX-License-Identifier: Apache-2.0
"""Keys, and what is signed with them: images and updates of experts.

Signatures are EdDSA on Curve25519 with BLAKE2b, as Monocypher makes and checks them; a board's firmware is built from
the same source (firmware/runtime/trust.h). What exactly is signed: docs/image-format.md.

Key files are JSON with one object: `kind`, `algorithm`, `key_id` and the key in hexadecimal, `secret` or `public`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from colibri_sdk.errors import DeviceError, ImageError, UsageError
from colibri_sdk.image.layout import UPDATE, UPDATE_SIGNED_BYTES, Algorithm, SectionKind
from colibri_sdk.image.reader import ImageFile
from colibri_sdk.image.signature import Signature
from colibri_sdk.status import Status, hint

ALGORITHM = "eddsa-curve25519-blake2b"
PUBLIC_KIND = "colibri public key"
PRIVATE_KIND = "colibri private key"
PUBLIC_SUFFIX = ".public.json"
PRIVATE_SUFFIX = ".private.json"

KEY_BYTES = 32
SECRET_BYTES = 64
MAX_COUNTER = (1 << 64) - 1
MAX_BOARD_BYTES = 31

# A key file has a few hundred bytes; of others, which somebody may name instead, no more than that is read.
_LARGEST_FILE = 1 << 16

_UPDATE_AT = UPDATE["offset"].itemsize  # where the signed bytes of an update begin


@dataclass(frozen=True)
class PublicKey:
    """What a board is built with, and what verifies."""

    key: bytes

    @property
    def key_id(self) -> bytes:
        """16 bytes that name it: the first half of its BLAKE2b-256."""
        return hashlib.blake2b(self.key, digest_size=32).digest()[:16]

    @property
    def label(self) -> str:
        """A short name for it, in names of directories."""
        return f"key-{self.key_id.hex()[:8]}"

    def check(self, signature: bytes, message: bytes) -> bool:
        """Whether `signature` (64 bytes) is this key's over `message`."""
        import monocypher

        return bool(monocypher.signature_check(signature, self.key, message))

    @classmethod
    def load(cls, path: Path) -> PublicKey:
        """From a file of `colibri-sdk keys new`, the private one too. UsageError says what is wrong with it."""
        fields = _read(path)
        if fields.get("kind") == PRIVATE_KIND:
            return PrivateKey.load(path).public
        return cls(_key(path, fields, PUBLIC_KIND, "public"))

    def save(self, path: Path) -> None:
        """Writes the file; UsageError if there is one."""
        _write(path, PUBLIC_KIND, self.key_id, "public", self.key, 0o644)


@dataclass(frozen=True)
class PrivateKey:
    """What signs. Its `secret`, 64 bytes of which the second half is the public key, is not shown."""

    secret: bytes

    def __repr__(self) -> str:
        return f"PrivateKey({self.public.key_id.hex()})"

    @property
    def public(self) -> PublicKey:
        import monocypher

        return PublicKey(bytes(monocypher.compute_signing_public_key(self.secret)))

    def sign(self, message: bytes) -> bytes:
        """The 64 bytes of the signature."""
        import monocypher

        return bytes(monocypher.signature_sign(self.secret, message))

    @classmethod
    def new(cls) -> PrivateKey:
        """From the system's source of randomness."""
        import monocypher

        return cls(bytes(monocypher.generate_signing_key_pair()[0]))

    @classmethod
    def load(cls, path: Path) -> PrivateKey:
        """From a file of `colibri-sdk keys new`. UsageError says what is wrong with it."""
        fields = _read(path)
        if fields.get("kind") == PUBLIC_KIND:
            raise UsageError(f"{path} is a public key, which cannot sign", f"Name the {PRIVATE_SUFFIX} file beside it.")
        return cls(_key(path, fields, PRIVATE_KIND, "secret"))

    def save(self, path: Path) -> None:
        """Writes the file, for this user's eyes only; UsageError if there is one."""
        _write(path, PRIVATE_KIND, self.public.key_id, "secret", self.secret, 0o600)


def new_key(directory: Path, name: str = "colibri") -> tuple[Path, Path, PublicKey]:
    """Makes a key and writes both of its files, private and public, whose paths it returns. Never replaces a key. What
    cannot be written leaves neither."""
    private, public = directory / f"{name}{PRIVATE_SUFFIX}", directory / f"{name}{PUBLIC_SUFFIX}"
    for path in (private, public):
        if path.exists():
            raise UsageError(
                f"{path} exists, and whoever loses a key cannot update their boards any more",
                "Choose another directory or --name.",
            )
    key = PrivateKey.new()
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{directory} cannot be made: {error.strerror}", "Choose another directory.") from error
    key.save(private)
    try:
        key.public.save(public)
    except BaseException:
        private.unlink()  # nobody has it yet, and alone it would keep the next call from making both
        raise
    return private, public, key.public


# ------------------------------------------------------------------------------------------------------- signing


def sign_image(path: Path, key: PrivateKey, *, counter: int = 0, board: str = "") -> Signature:
    """Signs the image `path`, in place: nothing but its signature section is written. See docs/field-update.md for
    `counter`; `board` empty: for any board.

    An image that is damaged is not signed: every checksum is verified first.
    """
    _check_terms(counter, board)
    with ImageFile(path) as image:
        for check in image.verify():
            if not check.ok and check.name != "signed digest":
                raise ImageError(
                    f"{path.name} is damaged ({check.name}) and was not signed",
                    hint(Status.E_IMAGE_CHECKSUM),
                    status=Status.E_IMAGE_CHECKSUM,
                    where=check.name,
                )
        unsigned = Signature(Algorithm.EDDSA, counter, board, key.public.key_id, image.signed_digest())
        offset = image.sections[SectionKind.SIGNATURE].offset
    signed = replace(unsigned, signature=key.sign(unsigned.message()))
    with _writing(path, "Copy it to where you may write."), path.open("r+b") as file:
        file.seek(offset)
        file.write(signed.encode())
        file.flush()
        os.fsync(file.fileno())
    return signed


def verify_image(path: Path, key: PublicKey, *, counter: int = 0, board: str = "") -> Signature:
    """Checks what a board with that public key checks, and that the experts are those that were signed.

    `counter`: refuse what is older; `board`: as that board would, empty: whatever board it is for. Raises DeviceError
    (E_SIGNATURE, where: unsigned, key, signature or digest; E_COUNTER) or ImageError (damage, E_OTHER_BOARD).
    """
    with ImageFile(path) as image:
        found = image.signature
        if not found.signed:
            raise _refusal(path.name, Status.E_SIGNATURE, "unsigned", "is not signed")
        _check_signer(path.name, key, found.key_id, found.signature, found.message())
        if image.signed_digest() != found.digest:
            raise _refusal(path.name, Status.E_SIGNATURE, "digest", "is not what was signed: its bytes were changed")
        _check_fit(path.name, found.counter, found.board, counter, board)
        for index, entry in enumerate(image.updates):
            if any(bytes(entry["key_id"])):
                check_update(entry, key, subject=f"{path.name}, replaced expert {index}")
            else:
                name = f"{path.name}, replaced expert {entry['layer']}/{entry['expert']}"
                raise _refusal(name, Status.E_SIGNATURE, "unsigned", "is not signed")
        image.require_whole()
    return found


def sign_update(update: Any, key: PrivateKey) -> bytes:
    """Signs an update of an expert: an UPDATE record with all fields but `key_id` and `signature`, as its 256 bytes.

    `offset` is the device's to choose, and stays outside of what is signed.
    """
    record = np.array(update, UPDATE)
    _check_terms(int(record["counter"]), record["board"].item().decode("utf-8", "replace"))
    record["key_id"] = np.void(key.public.key_id)
    record["signature"] = np.void(key.sign(update_message(record)))
    return record.tobytes()


def check_update(
    update: Any, key: PublicKey, *, counter: int = 0, board: str = "", subject: str = "the update"
) -> None:
    """Raises what a board with that public key would refuse an UPDATE record with; as verify_image."""
    record = np.array(update, UPDATE)
    if not any(bytes(record["key_id"])):
        raise _refusal(subject, Status.E_SIGNATURE, "unsigned", "is not signed")
    _check_signer(subject, key, bytes(record["key_id"]), bytes(record["signature"]), update_message(record))
    _check_fit(subject, int(record["counter"]), record["board"].item().decode("utf-8", "replace"), counter, board)


def update_message(update: Any) -> bytes:
    """What the signature of an UPDATE record is made over."""
    return np.array(update, UPDATE).tobytes()[_UPDATE_AT : _UPDATE_AT + UPDATE_SIGNED_BYTES]


def _check_terms(counter: int, board: str) -> None:
    if not 0 <= counter <= MAX_COUNTER:
        raise UsageError(f"a counter of {counter} is not possible", f"Choose 0 to {MAX_COUNTER}.")
    check_board_name(board)


def check_board_name(board: str) -> None:
    """UsageError when no image or update can name such a board. Which boards there are is not looked at."""
    try:
        right = len(board.encode()) <= MAX_BOARD_BYTES and "\0" not in board
    except UnicodeEncodeError:  # bytes of the command line that are no UTF-8
        right = False
    if not right:
        raise UsageError(
            f"{board!r} is no board's name, which has at most {MAX_BOARD_BYTES} bytes",
            "`colibri-sdk boards` lists them.",
        )


def _check_signer(subject: str, key: PublicKey, key_id: bytes, signature: bytes, message: bytes) -> None:
    if key_id != key.key_id:
        problem = f"is signed by key {key_id.hex()}, not by {key.key_id.hex()}"
        raise _refusal(subject, Status.E_SIGNATURE, "key", problem)
    if not key.check(signature, message):
        raise _refusal(subject, Status.E_SIGNATURE, "signature", "has a signature that is not this key's")


def _check_fit(subject: str, signed_counter: int, signed_board: str, counter: int, board: str) -> None:
    if signed_counter < counter:
        raise _refusal(
            subject,
            Status.E_COUNTER,
            "counter",
            f"has counter {signed_counter}, below {counter}",
            signed_counter,
            counter,
        )
    if board and signed_board not in ("", board):
        raise ImageError(
            f"{subject} is signed for board {signed_board}, not for {board}",
            hint(Status.E_OTHER_BOARD),
            status=Status.E_OTHER_BOARD,
            where=signed_board,
        )


def _refusal(subject: str, status: Status, where: str, problem: str, got: int = 0, wanted: int = 1) -> DeviceError:
    return DeviceError(f"{subject} {problem}", hint(status), status=status, where=where, got=got, wanted=wanted)


# ------------------------------------------------------------------------------------------------------- key files


def _read(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            text = file.read(_LARGEST_FILE).decode("utf-8")
        fields = json.loads(text)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}", "Name a key file.") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is no key file", "`colibri-sdk keys new` makes them.") from error
    if not isinstance(fields, dict):
        raise UsageError(f"{path} is no key file", "`colibri-sdk keys new` makes them.")
    return fields


def _key(path: Path, fields: dict[str, Any], kind: str, name: str) -> bytes:
    if fields.get("kind") != kind:
        raise UsageError(f"{path} is no {kind}", "`colibri-sdk keys new` makes them.")
    if fields.get("algorithm") != ALGORITHM:
        raise UsageError(f"{path} is for algorithm {fields.get('algorithm')!r}, not {ALGORITHM}", "Make a new key.")
    try:
        key = bytes.fromhex(fields.get(name, ""))
    except (ValueError, TypeError):
        key = b""
    if name == "public":
        right = len(key) == KEY_BYTES and fields.get("key_id") == PublicKey(key).key_id.hex()
    else:
        right = len(key) == SECRET_BYTES and fields.get("key_id") == PrivateKey(key).public.key_id.hex()
        # The two halves belong together, or signatures would be wrong in a way that gives the key away.
        right = right and PrivateKey(key).public.check(PrivateKey(key).sign(b"check"), b"check")
    if not right:
        raise UsageError(f"{path} is damaged: its {name} key does not fit its key_id", "Use a copy of it.")
    return key


def _write(path: Path, kind: str, key_id: bytes, name: str, key: bytes, mode: int) -> None:
    fields = {"kind": kind, "algorithm": ALGORITHM, "key_id": key_id.hex(), name: key.hex()}
    with _writing(path, "Choose another directory or --name."):
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(json.dumps(fields, indent=2) + "\n")
                file.flush()
                os.fsync(file.fileno())
        except BaseException:
            path.unlink(missing_ok=True)  # half a key
            raise


@contextlib.contextmanager
def _writing(path: Path, advice: str) -> Iterator[None]:
    """What the system refuses becomes a UsageError with that advice."""
    try:
        yield
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror or error}", advice) from error
