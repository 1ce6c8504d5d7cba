# SPDX-License-Identifier: Apache-2.0
"""What a board with a public key accepts: the device's own code beside the SDK's, which signed."""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cffi
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import eddsa_reference
from colibri_sdk.convert import pack
from colibri_sdk.image.layout import PAGE, UPDATE, SectionKind
from colibri_sdk.signing import PrivateKey, PublicKey, sign_image, sign_update, update_message
from colibri_sdk.status import Status
from forge import Forge
from link import native

DECLARATIONS = """
struct colibri_detail { char where[32]; uint64_t got; uint64_t wanted; };
bool trust_has_key(void);
const uint8_t *trust_key_id(void);
int trust_check_signature(const void *signature, const char *board, uint64_t counter, struct colibri_detail *detail);
int trust_check_image(const void *image, uint64_t bytes, const char *board, uint64_t counter, void *between, void *user,
                      struct colibri_detail *detail);
int trust_check_experts(const void *image, uint64_t bytes, const char *board, void *between, void *user,
                        struct colibri_detail *detail);
int trust_check_update(const void *update, const uint8_t *image_id, const char *board, uint64_t counter,
                       struct colibri_detail *detail);
void trust_digest_begin(void *digest, size_t digest_bytes);
void trust_digest_add(void *digest, const void *data, size_t bytes);
void trust_digest_end(void *digest, uint8_t *out);
bool trust_same_digest(const uint8_t *a, const uint8_t *b, size_t bytes);
void crypto_eddsa_sign(uint8_t *signature, const uint8_t *secret, const uint8_t *message, size_t bytes);
int crypto_eddsa_check(const uint8_t *signature, const uint8_t *key, const uint8_t *message, size_t bytes);
void crypto_eddsa_key_pair(uint8_t *secret, uint8_t *public_key, uint8_t *seed);
"""

KEY, OTHER = PrivateKey.new(), PrivateKey.new()

Verdict = tuple[int, str]


def blake2b(data: bytes) -> bytes:
    return hashlib.blake2b(data).digest()


class Trust:
    """The device's code, built with a key or without."""

    def __init__(self, directory: Path, library: Path, key: PublicKey | None) -> None:
        out = directory / "trust.so"
        flags = [*native.UNDEFINED]
        if key is not None:
            flags.append("-DTRUST_PUBLIC_KEY={" + ",".join(map(str, key.key)) + "}")
        sources = native.with_monocypher(out, [native.RUNTIME / "trust.c"], "gcc", native.UNDEFINED)
        link = [f"-L{library.parent}", "-lcolibri", f"-Wl,-rpath,{library.parent}"]
        subprocess.run(["gcc", *native.WARNINGS, "-O1", *flags, *sources, *link, "-o", str(out)], check=True)
        self.ffi = cffi.FFI()
        self.ffi.cdef(DECLARATIONS)
        self.lib: Any = self.ffi.dlopen(str(out))

    def _verdict(self, call: Callable[[Any], int]) -> Verdict:
        detail = self.ffi.new("struct colibri_detail *")
        status = int(call(detail))
        return status, self.ffi.string(detail.where).decode()

    def image(self, data: Any, board: str = "rpi3", counter: int = 0) -> Verdict:
        memory = np.zeros(data.size + 64, np.uint8)
        start = -memory.ctypes.data % 64
        memory[start : start + data.size] = data
        pointer, name = self.ffi.from_buffer(memory[start:]), board.encode()

        def check(detail: Any) -> int:
            null = self.ffi.NULL
            status = self.lib.trust_check_image(pointer, data.size, name, counter, null, null, detail)
            if status != 0:
                return int(status)
            return int(self.lib.trust_check_experts(pointer, data.size, name, null, null, detail))

        return self._verdict(check)

    def update(self, record: bytes, image_id: bytes, board: str = "rpi3", counter: int = 0) -> Verdict:
        data = self.ffi.from_buffer(np.frombuffer(record, "<u8").copy())
        return self._verdict(
            lambda detail: self.lib.trust_check_update(data, image_id, board.encode(), counter, detail)
        )


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory, host_library: Path) -> Trust:
    return Trust(tmp_path_factory.mktemp("keyed"), host_library, KEY.public)


@pytest.fixture(scope="module")
def keyless(tmp_path_factory: pytest.TempPathFactory, host_library: Path) -> Trust:
    return Trust(tmp_path_factory.mktemp("keyless"), host_library, None)


@pytest.fixture
def image(tmp_path: Path, packed: bytes) -> Path:
    (tmp_path / "x.colibri").write_bytes(packed)
    return tmp_path / "x.colibri"


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory, repo_root: Path) -> bytes:
    out = tmp_path_factory.mktemp("packed") / "x.colibri"
    pack(repo_root / "tests" / "parity" / "mixtral", out)
    return out.read_bytes()


def signed(image: Path, key: PrivateKey = KEY, *, counter: int = 5, board: str = "") -> Any:
    sign_image(image, key, counter=counter, board=board)
    return np.fromfile(image, np.uint8)


def test_a_key_is_known_by_its_name(keyed: Trust, keyless: Trust) -> None:
    assert keyed.lib.trust_has_key() and not keyless.lib.trust_has_key()
    name = hashlib.blake2b(KEY.public.key, digest_size=32).digest()[:16]
    assert bytes(keyed.ffi.buffer(keyed.lib.trust_key_id(), 16)) == name == KEY.public.key_id
    assert bytes(keyless.ffi.buffer(keyless.lib.trust_key_id(), 16)) == bytes(16)


@pytest.mark.parametrize("size", [1, 16, 32, 64])
@pytest.mark.parametrize("length", [0, 1, 127, 128, 129, 5000])
def test_digests_are_those_of_hashlib(keyless: Trust, size: int, length: int) -> None:
    """In pieces, against another implementation of RFC 7693."""
    data = bytes(i * 131 % 251 for i in range(length))
    state, out = keyless.ffi.new("uint64_t[28]"), keyless.ffi.new("uint8_t[64]")
    keyless.lib.trust_digest_begin(state, size)
    for start in range(0, length, 100):
        keyless.lib.trust_digest_add(state, data[start : start + 100], len(data[start : start + 100]))
    keyless.lib.trust_digest_end(state, out)
    assert bytes(keyless.ffi.buffer(out, size)) == hashlib.blake2b(data, digest_size=size).digest()


@pytest.mark.parametrize("message", [b"", b"x", bytes(1000)])
def test_both_sides_sign_alike(keyed: Trust, message: bytes) -> None:
    """EdDSA has no random part: the C code and the Python package give the same 64 bytes."""
    ffi = keyed.ffi
    secret, public, signature = ffi.new("uint8_t[64]"), ffi.new("uint8_t[32]"), ffi.new("uint8_t[64]")
    keyed.lib.crypto_eddsa_key_pair(secret, public, ffi.new("uint8_t[32]", KEY.secret[:32]))
    keyed.lib.crypto_eddsa_sign(signature, secret, message, len(message))
    assert bytes(ffi.buffer(public)) == KEY.public.key
    assert bytes(ffi.buffer(signature)) == KEY.sign(message)


@settings(max_examples=8, deadline=None)
@given(seed=st.binary(min_size=32, max_size=32), message=st.binary(max_size=300))
def test_the_device_signs_and_checks_as_the_reference(keyed: Trust, seed: bytes, message: bytes) -> None:
    """Another implementation, see tests/python/test_eddsa.py; and S has one form only."""
    ffi, lib = keyed.ffi, keyed.lib
    secret, public, signature = ffi.new("uint8_t[64]"), ffi.new("uint8_t[32]"), ffi.new("uint8_t[64]")
    lib.crypto_eddsa_key_pair(secret, public, ffi.new("uint8_t[32]", seed))
    lib.crypto_eddsa_sign(signature, secret, message, len(message))
    wanted = eddsa_reference.sign(seed, message, blake2b)
    assert bytes(ffi.buffer(public)) == eddsa_reference.public_key(seed, blake2b)
    assert bytes(ffi.buffer(signature)) == wanted
    s = int.from_bytes(wanted[32:], "little") + eddsa_reference.ORDER
    assert lib.crypto_eddsa_check(wanted, public, message, len(message)) == 0
    assert lib.crypto_eddsa_check(wanted[:32] + s.to_bytes(32, "little"), public, message, len(message)) != 0
    assert lib.crypto_eddsa_check(wanted, public, message + b"x", len(message) + 1) != 0


def test_images(keyed: Trust, keyless: Trust, image: Path) -> None:
    unsigned = np.fromfile(image, np.uint8)
    assert keyed.image(unsigned) == (Status.E_SIGNATURE, "unsigned")
    assert keyless.image(unsigned)[0] == 0
    data = signed(image)
    assert keyed.image(data)[0] == keyless.image(data)[0] == 0
    assert keyed.image(data, counter=5)[0] == 0
    assert keyed.image(data, counter=6) == (Status.E_COUNTER, "counter")
    assert keyless.image(data, counter=6)[0] == 0
    assert keyed.image(signed(image, OTHER)) == (Status.E_SIGNATURE, "key")
    assert keyed.image(signed(image, board="rpi3"))[0] == 0
    assert keyed.image(signed(image, board="rpi3"), board="rpi") == (Status.E_OTHER_BOARD, "rpi3")
    assert keyed.image(signed(image, board="rpi"), board="rpi3") == (Status.E_OTHER_BOARD, "rpi")


def test_a_front_is_enough(keyed: Trust, image: Path) -> None:
    data = signed(image)
    front = int(Forge(image).section(SectionKind.EXPERTS)["offset"][0])
    assert keyed.image(data[:front])[0] == 0
    assert keyed.image(data[:PAGE]) == (Status.E_SIGNATURE, "unsigned")


def test_whatever_is_changed_is_found(keyed: Trust, image: Path) -> None:
    """A byte of every part that is signed, of every field of the signature, and of every expert."""
    data = signed(image)
    forge = Forge(image)
    start = int(forge.section(SectionKind.SIGNATURE)["offset"][0])
    blobs = int(forge.section(SectionKind.EXPERTS)["offset"][0])
    places = {int(entry["offset"]) + 3 for entry in forge.sections if entry["kind"] < SectionKind.SIGNATURE}
    places |= {9, 33, 60, PAGE - 1}  # the header: version, identity, name; the rest of the page
    expected = dict.fromkeys(places, "digest")
    fields = {"counter": 16, "board": 24, "key_id": 56, "digest": 72, "signature": 136}
    expected |= {start + at: "key" if name == "key_id" else "signature" for name, at in fields.items()}
    expected |= {start + 71: "key", start + 135: "signature", start + 199: "signature"}
    expected |= {blobs + int(entry["offset"]) + 77: "expert" for entry in forge.experts}
    for place, where in expected.items():
        changed = data.copy()
        changed[place] ^= 0x40
        assert keyed.image(changed) == (Status.E_SIGNATURE, where), place
    changed = data.copy()
    changed[start + 12] = 0  # no algorithm
    assert keyed.image(changed) == (Status.E_SIGNATURE, "unsigned")


def test_directories_that_lie_about_the_signature(keyed: Trust, image: Path) -> None:
    """Twice, outside of the file, off a page: none that could be believed."""
    signed(image)
    for field, value in (("offset", 2**64 - PAGE), ("offset", 64), ("offset", 0), ("kind", 8)):
        forge = Forge(image)
        table = forge.sections
        table[field][table["kind"] == SectionKind.SIGNATURE] = value
        assert keyed.image(forge.data) == (Status.E_SIGNATURE, "unsigned")
    forge = Forge(image)
    forge.header["section_count"] = 2**32 - 1
    assert keyed.image(forge.data) == (Status.E_SIGNATURE, "unsigned")
    forge = Forge(image)
    forge.sections["kind"][0] = SectionKind.SIGNATURE
    assert keyed.image(forge.data) == (Status.E_SIGNATURE, "unsigned")


def update(image_id: bytes, *, counter: int = 3, board: bytes = b"") -> Any:
    record = np.zeros((), UPDATE)
    record["bytes"], record["layer"], record["expert"], record["generation"] = 8192, 1, 2, 4
    record["crc32"], record["counter"], record["board"] = 0x1234, counter, board
    record["image_id"], record["digest"] = np.void(image_id), np.void(b"d" * 32)
    return record


def test_updates(keyed: Trust, keyless: Trust) -> None:
    base = bytes(range(16))
    plain = update(base)
    assert keyed.update(plain.tobytes(), base) == (Status.E_SIGNATURE, "unsigned")
    assert keyless.update(plain.tobytes(), base)[0] == 0
    good = sign_update(plain, KEY)
    assert keyed.update(good, base)[0] == keyed.update(good, base, counter=3)[0] == 0
    assert keyed.update(good, base, counter=4) == (Status.E_COUNTER, "counter")
    for device in (keyed, keyless):
        assert device.update(good, bytes(16)) == (Status.E_UPDATE_BASE, "image")
    assert keyed.update(sign_update(plain, OTHER), base) == (Status.E_SIGNATURE, "key")
    local = sign_update(update(base, board=b"virt-riscv64"), KEY)
    assert keyed.update(local, base, board="virt-riscv64")[0] == 0
    assert keyed.update(local, base) == (Status.E_OTHER_BOARD, "virt-riscv64")


def test_every_signed_byte_of_an_update_counts(keyed: Trust) -> None:
    """All but the place, which the device chooses, and what is reserved, which the engine checks."""
    base = bytes(range(16))
    good = sign_update(update(base), KEY)
    assert len(good) == 256 and update_message(np.frombuffer(good, UPDATE)[0]) == good[8:136]
    for at in range(256):
        changed = bytearray(good)
        changed[at] ^= 1
        status, where = keyed.update(bytes(changed), base)
        if at < 8 or at >= 200:
            assert status == 0
        elif 72 <= at < 88:
            assert (status, where) == (Status.E_UPDATE_BASE, "image")
        else:
            assert (status, where) == (Status.E_SIGNATURE, "key" if 120 <= at < 136 else "signature")
