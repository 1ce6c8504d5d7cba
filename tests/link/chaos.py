# SPDX-License-Identifier: Apache-2.0
"""A cable in real time that hurts bytes in both directions, between two connected sockets."""

from __future__ import annotations

import random
import select
import socket
import threading

from link.virtual import Damage


class ChaosCable:
    """Relays between `near` and `far` with damage that follows from the seed and the bytes; closes both at the end."""

    def __init__(self, near: socket.socket, far: socket.socket, *, seed: int, damage: Damage) -> None:
        self._ends = (near, far)
        self._damage = damage
        self._rngs = (random.Random(seed), random.Random(seed + 1))
        self.hurt = 0
        self._stop, self._stopper = socket.socketpair()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def close(self) -> None:
        self._stopper.close()
        self._thread.join(60)
        for end in (*self._ends, self._stop):
            end.close()

    def _run(self) -> None:
        while True:
            readable, _, _ = select.select([*self._ends, self._stop], [], [])
            if self._stop in readable:
                return
            for index in (0, 1):
                if self._ends[index] not in readable:
                    continue
                try:
                    data = self._ends[index].recv(4096)
                    if not data:
                        return
                    self._ends[1 - index].sendall(self._hurt(data, self._rngs[index]))
                except OSError:
                    return

    def _hurt(self, data: bytes, rng: random.Random) -> bytes:
        damage = self._damage
        out = bytearray()
        for byte in data:
            draw = rng.random()
            for chance, made in (
                (damage.drop, b""),
                (damage.flip, bytes([byte ^ 1 << rng.randrange(8)])),
                (damage.double, bytes([byte, byte])),
                (damage.insert, bytes([rng.randrange(256), byte])),
            ):
                if draw < chance:
                    self.hurt += 1
                    out += made
                    break
                draw -= chance
            else:
                out.append(byte)
        return bytes(out)
