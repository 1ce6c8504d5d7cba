# SPDX-License-Identifier: Apache-2.0
"""A card on an SPI bus, byte by byte, with faults (SD Physical Layer Specification 6.00, chapter 7)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from hal.sd_registers import BLOCK, crc7, crc16, csd, unwritten

IDLE, ILLEGAL, BAD_CRC, OUT_OF_RANGE = 0x01, 0x04, 0x08, 0x40
TOKEN, ERROR_TOKEN, ACCEPTED, REFUSED = 0xFE, 0x04, 0x05, 0x0B


@dataclass
class SpiCard:
    """`content` are the blocks that were written or are to be read; others are as `block_of` says.

    Faults: `wrong_block`, `error_block`, `silent_block`: reads of that block deliver a wrong byte, an error token, or
    nothing. `noise`: changes what the host sends, by the number of the frame since the start.
    """

    blocks: int
    high_capacity: bool = True
    version2: bool = True
    present: bool = True
    wrong_block: int = -1
    error_block: int = -1
    silent_block: int = -1
    noise: Callable[[int, bytearray], None] | None = None
    content: dict[int, bytes] = field(default_factory=dict)
    commands: list[tuple[int, int]] = field(default_factory=list)
    checks: bool = False  # CRCs of what the host sends
    selected: bool = False

    def __post_init__(self) -> None:
        self._out: deque[int] = deque()
        self._in = bytearray()
        self._idle, self._app, self._asked = True, False, 0
        self._next: int | None = None  # block that a read sends next
        self._to: int | None = None  # block that a write is for
        self._sends = 0

    def block_of(self, number: int) -> bytes:
        return self.content.get(number, unwritten(number))

    def select(self, selected: bool) -> None:
        self.selected = selected

    def exchange(self, sent: bytes) -> bytes:
        if not (self.present and self.selected):
            return b"\xff" * len(sent)
        if self.noise is not None and len(sent) in (6, BLOCK):
            noisy = bytearray(sent)
            self.noise(self._sends, noisy)
            self._sends += 1
            sent = bytes(noisy)
        return bytes(map(self._byte, sent))

    def _byte(self, byte: int) -> int:
        if not self._out and self._next is not None:
            self._send_block()
        answer = self._out.popleft() if self._out else 0xFF
        if self._to is not None:
            self._take_data(byte)
        elif self._in or byte & 0xC0 == 0x40:
            self._in.append(byte)
            if len(self._in) == 6:
                frame, self._in = bytes(self._in), bytearray()
                self._command(frame)
        return answer

    def begin_write(self, block: int, there: int) -> None:
        """A host has asked for a write and was restarted behind `there` bytes of data."""
        self._to, self._in = block, bytearray([TOKEN, *bytes(there)])

    # ------------------------------------------------------------------------------------------------------- data

    def _send_block(self) -> None:
        assert self._next is not None
        number, self._next = self._next, self._next + 1
        if number in (self.silent_block, self.error_block) or number >= self.blocks:
            self._next = None
            self._out.extend([0xFF, ERROR_TOKEN] if number != self.silent_block else [])
            return
        data = bytearray(self.block_of(number))
        check = crc16(data)
        if number == self.wrong_block:
            data[100] ^= 1
        self._out.extend([0xFF] * 40 + [TOKEN, *data, check >> 8, check & 0xFF])

    def _take_data(self, byte: int) -> None:
        if not self._in and byte != TOKEN:
            return
        self._in.append(byte)
        if len(self._in) == 1 + BLOCK + 2:
            assert self._to is not None
            data, check = bytes(self._in[1:-2]), int.from_bytes(self._in[-2:], "big")
            good = not self.checks or crc16(data) == check
            if good:
                self.content[self._to] = data
            self._out.extend([0xE0 | (ACCEPTED if good else REFUSED), 0, 0, 0])
            self._to, self._in = None, bytearray()

    # --------------------------------------------------------------------------------------------------- commands

    def _command(self, frame: bytes) -> None:
        index, argument = frame[0] & 0x3F, int.from_bytes(frame[1:5], "big")
        app, self._app = self._app, False
        self._out.clear()
        if (self.checks or index in (0, 8)) and frame[5] != crc7(frame[:5]) << 1 | 1:
            self._answer(BAD_CRC)
            return
        self.commands.append((index, argument))
        if index == 12:
            self._next = None
            self._out.append(0x11)  # a stuff byte that looks like an answer
            self._answer(0)
            self._out.extend([0, 0])
        elif app and index == 41:
            self._asked += 1
            self._idle = self._asked < 3
            self._answer(0)
        else:
            handler = getattr(self, f"_cmd{index}", None)
            if handler is None:
                self._answer(ILLEGAL)
            else:
                handler(argument)

    def _answer(self, r1: int, *more: int) -> None:
        self._out.extend([0xFF, 0xFF, r1 | (IDLE if self._idle else 0), *more])

    def _block(self, argument: int) -> int:
        assert self.high_capacity or argument % BLOCK == 0
        return argument if self.high_capacity else argument // BLOCK

    def _cmd0(self, _: int) -> None:
        self._idle, self._asked, self._next, self.checks = True, 0, None, False
        self._answer(0)

    def _cmd8(self, argument: int) -> None:
        if self.version2:
            self._answer(0, 0, 0, argument >> 8 & 0xF, argument & 0xFF)
        else:
            self._answer(ILLEGAL)

    def _cmd9(self, _: int) -> None:
        data = csd(self.blocks, self.high_capacity)
        check = crc16(data)
        self._answer(0, 0xFF, TOKEN, *data, check >> 8, check & 0xFF)

    def _cmd16(self, argument: int) -> None:
        self._answer(0 if argument == BLOCK else ILLEGAL)

    def _cmd18(self, argument: int) -> None:
        self._next = self._block(argument)
        self._answer(OUT_OF_RANGE if self._next >= self.blocks else 0)

    def _cmd24(self, argument: int) -> None:
        self._to = self._block(argument)
        self._answer(0)

    def _cmd55(self, _: int) -> None:
        self._app = True
        self._answer(0)

    def _cmd58(self, _: int) -> None:
        self._answer(0, 0x80 | (0x40 if self.high_capacity else 0), 0xFF, 0x80, 0)

    def _cmd59(self, argument: int) -> None:
        self.checks = bool(argument & 1)
        self._answer(0)
