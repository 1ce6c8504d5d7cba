# SPDX-License-Identifier: Apache-2.0
"""Signatures against another implementation, which itself is held to the test vectors of RFC 8032."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import eddsa_reference as reference
from colibri_sdk.signing import PrivateKey, PublicKey

SEEDS = st.binary(min_size=32, max_size=32)
MESSAGES = st.binary(max_size=300)


def sha512(data: bytes) -> bytes:
    return hashlib.sha512(data).digest()


def blake2b(data: bytes) -> bytes:
    return hashlib.blake2b(data).digest()


# RFC 8032, section 7.1: seed, public key, message, signature.
VECTORS = [
    (
        "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
        "",
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e06522490155"
        "5fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b",
    ),
    (
        "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
        "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
        "72",
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
        "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00",
    ),
    (
        "c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7",
        "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
        "af82",
        "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac"
        "18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a",
    ),
    (
        "833fe62409237b9d62ec77587520911e9a759cec1d19755b7da901b96dca3d42",
        "ec172b93ad5e563bf4932c70e1245034c35467ef2efd4d64ebf819683467e2bf",
        hashlib.sha512(b"abc").hexdigest(),
        "dc2a4459e7369633a52b1bf277839a00201009a3efbf3ecb69bea2186c26b589"
        "09351fc9ac90b3ecfdfbc7c66431e0303dca179c138ac17ad9bef1177331a704",
    ),
]


@pytest.mark.parametrize(("seed", "public", "message", "signature"), VECTORS)
def test_the_reference_is_right(seed: str, public: str, message: str, signature: str) -> None:
    secret, key, text, wanted = map(bytes.fromhex, (seed, public, message, signature))
    assert reference.public_key(secret, sha512) == key
    assert reference.sign(secret, text, sha512) == wanted
    assert reference.check(wanted, key, text, sha512)
    assert not reference.check(wanted, key, text + b"x", sha512)


@settings(max_examples=12, deadline=None)
@given(seed=SEEDS, message=MESSAGES, bit=st.integers(0, 511))
def test_keys_and_signatures_are_the_references(seed: bytes, message: bytes, bit: int) -> None:
    public = reference.public_key(seed, blake2b)
    key = PrivateKey(seed + public)
    assert key.public == PublicKey(public)
    signature = key.sign(message)
    assert signature == reference.sign(seed, message, blake2b)
    changed = bytearray(signature)
    changed[bit // 8] ^= 1 << bit % 8
    # The same signature with a multiple of the group's order in S: the equation holds, the form does not.
    s = int.from_bytes(signature[32:], "little") + reference.ORDER
    for candidate in (signature, bytes(changed), signature[:32] + s.to_bytes(32, "little")):
        verdict = reference.check(candidate, public, message, blake2b)
        assert key.public.check(candidate, message) == verdict == (candidate == signature)
