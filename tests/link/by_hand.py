# SPDX-License-Identifier: Apache-2.0
"""A host that sends frames by hand, right ones and wrong ones."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

from colibri_sdk.link.frames import Deframer, Frame, Kind, encode
from colibri_sdk.link.messages import Type


def generate_body(tokens: int) -> bytes:
    head = struct.pack("<HHHHIIfffQ", 2, 1, 0, 0, tokens, 0, 0.0, 0.0, 0.0, 0)
    return head + struct.pack("<BI", 1, 2) + b"hi"


class ByHand:
    """A host that sends what the test says, frame by frame."""

    def __init__(self, line: socket.socket) -> None:
        self.line = line
        self.line.settimeout(60)
        self.session = 0x1234
        self.seq = 0
        self.expected = 0
        self._deframer = Deframer()
        self._parts: list[bytes] = []

    def put(
        self, kind: int, payload: bytes = b"", *, seq: int = 0, version: int = 2, session: int | None = None
    ) -> None:
        chosen = self.session if session is None else session
        self.line.sendall(encode(Frame(kind, seq, self.expected, 32, chosen, payload, version)))

    def syn(self, *, version: int = 2, oldest: int = 2, newest: int = 2, payload: int = 512) -> None:
        self.put(Kind.SYN, struct.pack("<BBHI", oldest, newest, payload, 1 << 20), version=version)

    def open(self) -> Frame:
        self.syn()
        return self.wait_for(Kind.SYN_ACK)

    def frames(self) -> Iterator[Frame]:
        while True:
            data = self.line.recv(65536)
            assert data, "the device has hung up"
            for item in self._deframer.feed(data):
                assert isinstance(item, Frame), item
                yield item

    def wait_for(self, kind: Kind) -> Frame:
        return next(frame for frame in self.frames() if frame.kind == kind)

    def send(self, kind: int, body: bytes, request: int = 1) -> None:
        message = struct.pack("<HHI", kind, 0, request) + body
        for at in range(0, len(message), 512):
            last = at + 512 >= len(message)
            self.put(Kind.DATA if last else Kind.MORE, message[at : at + 512], seq=self.seq)
            self.seq = (self.seq + 1) % 256

    def answers(self, wanted: set[int]) -> dict[int, tuple[int, bytes]]:
        """Results and errors of these requests; events are skipped."""
        found: dict[int, tuple[int, bytes]] = {}
        for frame in self.frames():
            if frame.kind not in (Kind.DATA, Kind.MORE) or frame.seq != self.expected:
                continue
            self.expected = (self.expected + 1) % 256
            self.put(Kind.ACK)
            self._parts.append(frame.payload)
            if frame.kind == Kind.MORE:
                continue
            message = b"".join(self._parts)
            self._parts.clear()
            kind, _, number = struct.unpack_from("<HHI", message)
            if kind >= Type.RESULT:
                assert number not in found, "a second answer"
                found[number] = (kind, message[8:])
            if wanted <= set(found):
                return found
        raise AssertionError

    def status_of(self, kind: int, body: bytes) -> int:
        self.number = getattr(self, "number", 0) + 1
        self.send(kind, body, self.number)
        answer, content = self.answers({self.number})[self.number]
        status: int = struct.unpack_from("<i", content)[0] if answer == Type.ERROR else 0
        return status
