# SPDX-License-Identifier: Apache-2.0
"""A key for tests, always the same: the directory that firmware is built in is named after it."""

from __future__ import annotations

import hashlib

import eddsa_reference
from colibri_sdk.signing import PrivateKey

_SEED = bytes(range(32))
KEY = PrivateKey(_SEED + eddsa_reference.public_key(_SEED, lambda data: hashlib.blake2b(data).digest()))
