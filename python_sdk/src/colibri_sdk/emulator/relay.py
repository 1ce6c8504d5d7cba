# SPDX-License-Identifier: Apache-2.0
"""Carries bytes between an emulated board's serial line and whoever talks to it, and records what the board says.

Standing in between keeps the record complete whoever listens, keeps what was said before anyone listened, and lets the
next user take over the line where the last one left it. Back-pressure is passed on: a user who does not read stops
the board's output, not its input.
"""

from __future__ import annotations

import contextlib
import socket
import threading

from colibri_sdk.emulator.lines import Line

CHUNK = 65536
END_SECONDS = 5.0  # for the threads; they have nothing to wait for any more


class Relay:
    def __init__(self, line: Line) -> None:
        self._line = line
        self._lock = threading.Condition()
        self._record = bytearray()
        self._delivered = 0  # how much of the record a user has got
        self._user: socket.socket | None = None  # our end
        self._closed = False  # nothing more comes from the board
        self._ended = False  # close was called
        self._forwarding: list[threading.Thread] = []
        self._threads = [threading.Thread(target=target, daemon=True) for target in (self._listen, self._deliver)]
        for thread in self._threads:
            thread.start()

    def recorded(self) -> bytes:
        with self._lock:
            return bytes(self._record)

    @property
    def board_has_ended(self) -> bool:
        """Nothing more comes from it: its end of the line is closed."""
        with self._lock:
            return self._closed

    def attach(self) -> socket.socket:
        """A new user; the one before is cut off."""
        ours, theirs = socket.socketpair()
        with self._lock:
            self._cut_off()
            if self._ended or (self._closed and self._delivered == len(self._record)):
                ours.close()
                return theirs
            self._user = ours
            self._lock.notify_all()
            forward = threading.Thread(target=self._forward, args=(ours,), daemon=True)
            self._forwarding = [*(thread for thread in self._forwarding if thread.is_alive()), forward]
            forward.start()
        return theirs

    def close(self) -> None:
        if self._ended:
            return
        self._ended = True
        self._line.end()
        with self._lock:
            self._closed = True
            self._cut_off()
            self._lock.notify_all()
        threads = [*self._threads, *self._forwarding]
        for thread in threads:
            thread.join(END_SECONDS)
        if not any(thread.is_alive() for thread in threads):  # which would go on with another file's descriptor
            self._line.close()

    def _cut_off(self) -> None:
        if self._user is not None:
            with contextlib.suppress(OSError):
                self._user.shutdown(socket.SHUT_RDWR)
            self._user = None

    def _leave(self, user: socket.socket) -> None:
        """The user has gone: the board need not wait for anybody now."""
        with self._lock:
            if self._user is user:
                self._user = None
                self._lock.notify_all()

    def _has_news(self) -> bool:
        """Is there a user, and something to tell: bytes, or the end?"""
        return self._user is not None and (self._closed or self._delivered < len(self._record))

    def _listen(self) -> None:
        """Board to record; waits while a user has much to read yet."""
        while True:
            with self._lock:
                while self._user is not None and len(self._record) - self._delivered > CHUNK and not self._closed:
                    self._lock.wait()
            try:
                data = self._line.receive(CHUNK)
            except OSError:
                data = b""
            with self._lock:
                self._record += data
                self._closed = self._closed or not data
                self._lock.notify_all()
            if not data:
                return

    def _deliver(self) -> None:
        """Record to user; ends the user's connection when the board's has ended and all is delivered."""
        while True:
            with self._lock:
                while not self._ended and not self._has_news():
                    self._lock.wait()
                user, start = self._user, self._delivered
                if self._ended or user is None:
                    return
                data = bytes(self._record[start : start + CHUNK])
                if not data:
                    self._cut_off()
                    continue
            try:
                sent = user.send(data)
            except OSError:
                self._leave(user)
                continue
            with self._lock:
                if self._user is user:
                    self._delivered = start + sent
                    self._lock.notify_all()

    def _forward(self, user: socket.socket) -> None:
        """User to board, until the user goes."""
        with user:
            while True:
                try:
                    data = user.recv(CHUNK)
                    if not data:
                        break
                    self._line.send(data)
                except OSError:
                    break
            self._leave(user)
