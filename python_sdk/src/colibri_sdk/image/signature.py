# SPDX-License-Identifier: Apache-2.0
"""The signature section of an image, as bytes. Who signs and who verifies: colibri_sdk.signing."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from colibri_sdk.image.layout import SIGNATURE, SIGNATURE_MAGIC, SIGNATURE_VERSION, SIGNED_BYTES, Algorithm

_CRC_AT = SIGNATURE.itemsize - 4


@dataclass(frozen=True)
class Signature:
    """The fields of struct col_signature. Unsigned as it stands."""

    algorithm: Algorithm = Algorithm.NONE
    counter: int = 0
    board: str = ""
    key_id: bytes = bytes(16)
    digest: bytes = bytes(64)
    signature: bytes = bytes(64)

    @property
    def signed(self) -> bool:
        return self.algorithm is not Algorithm.NONE

    def encode(self) -> bytes:
        """The section."""
        record = np.zeros((), SIGNATURE)
        record["magic"], record["version"] = np.void(SIGNATURE_MAGIC), SIGNATURE_VERSION
        record["algorithm"], record["counter"] = self.algorithm, self.counter
        record["board"] = self.board.encode()
        for name in ("key_id", "digest", "signature"):
            record[name] = np.void(getattr(self, name))
        record["crc32"] = zlib.crc32(record.tobytes()[:_CRC_AT])
        return record.tobytes()

    def message(self) -> bytes:
        """What `signature` is made over: all fields before it."""
        return self.encode()[:SIGNED_BYTES]

    @classmethod
    def decode(cls, record: Any) -> Signature:
        """From a SIGNATURE record. Raises ValueError when its checksum, version or algorithm is wrong."""
        if bytes(record["magic"]) != SIGNATURE_MAGIC or int(record["version"]) != SIGNATURE_VERSION:
            raise ValueError("it does not begin as a signature does")
        if zlib.crc32(record.tobytes()[:_CRC_AT]) != int(record["crc32"]):
            raise ValueError("its checksum is wrong")
        return cls(
            algorithm=Algorithm(int(record["algorithm"])),
            counter=int(record["counter"]),
            board=bytes(record["board"]).decode(),
            key_id=bytes(record["key_id"]),
            digest=bytes(record["digest"]),
            signature=bytes(record["signature"]),
        )
