# SPDX-License-Identifier: Apache-2.0
"""A card behind the registers of an SDHCI, with faults (SD Host Controller Simplified Specification 3.00)."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from hal.sd_registers import BLOCK, csd, unwritten

ARGUMENT, COMMAND, RESPONSE, DATA, STATUS, CONTROL1, INTERRUPT = 0x08, 0x0C, 0x10, 0x20, 0x24, 0x2C, 0x30
CMD_DONE, DATA_DONE, WRITE_READY, READ_READY = 1, 2, 16, 32
ERROR, NO_ANSWER, DATA_TIMEOUT, DATA_CRC = 1 << 15, 1 << 16, 1 << 20, 1 << 21
STABLE, RESET_ALL, RESET_COMMAND, RESET_DATA = 2, 1 << 24, 1 << 25, 1 << 26
AUTO_CMD12, MULTI_BLOCK = 4, 32
RCA = 0x4567


@dataclass
class EmmcCard:
    """Blocks as SpiCard's. Transfers of `wrong_block` end with a CRC error, of `late_block` with a time-out of the
    controller, and of `silent_block` never. What the driver must not do to a controller fails an assertion."""

    blocks: int
    high_capacity: bool = True
    version2: bool = True
    present: bool = True
    wrong_block: int = -1
    late_block: int = -1
    silent_block: int = -1
    content: dict[int, bytes] = field(default_factory=dict)
    commands: list[tuple[int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._registers: dict[int, int] = {}
        self._interrupt = 0
        self._inhibited = False  # the data circuit
        self._sending = False  # the card; or it takes blocks
        self._app, self._asked = False, 0
        self._at, self._left = 0, 0  # of the transfer under way
        self._out: deque[int] = deque()
        self._in: list[int] | None = None

    def block_of(self, number: int) -> bytes:
        return self.content.get(number, unwritten(number))

    def read(self, number: int) -> int:
        if number == DATA:
            word = self._out.popleft()
            if not self._out:
                self._next_block()
            return word
        if number == STATUS:
            return 2 if self._inhibited else 0
        if number == INTERRUPT:
            return self._interrupt
        return self._registers.get(number, 0) | (STABLE if number == CONTROL1 else 0)

    def write(self, number: int, value: int) -> None:
        if number == INTERRUPT:
            self._interrupt &= ~value
        elif number == DATA:
            assert self._in is not None
            self._in.append(value)
            if len(self._in) == BLOCK // 4:
                self.content[self._at] = b"".join(word.to_bytes(4, "little") for word in self._in)
                self._at, self._left, self._in = self._at + 1, self._left - 1, None
                self._next_write()
        elif number == CONTROL1:
            if value & (RESET_ALL | RESET_DATA):
                self._inhibited, self._in = False, None
                self._out.clear()
                self._interrupt = 0
            self._registers[number] = value & ~(RESET_ALL | RESET_COMMAND | RESET_DATA)
        else:
            self._registers[number] = value
            if number == COMMAND:
                self._command(value >> 24, value & 0xFFFFFF, self._registers[ARGUMENT])

    # ------------------------------------------------------------------------------------------------------- data

    def _end(self) -> None:
        self._inhibited = False
        self._interrupt |= DATA_DONE
        if self._registers[COMMAND] & AUTO_CMD12 or not self._registers[COMMAND] & MULTI_BLOCK:
            self._sending = False

    def _fails(self) -> bool:
        self._interrupt |= {self.wrong_block: ERROR | DATA_CRC, self.late_block: ERROR | DATA_TIMEOUT}.get(self._at, 0)
        return self._at in (self.wrong_block, self.late_block, self.silent_block)

    def _next_block(self) -> None:
        if self._left == 0:
            self._end()
        elif not self._fails():
            data = self.block_of(self._at)
            self._out.extend(int.from_bytes(data[at : at + 4], "little") for at in range(0, BLOCK, 4))
            self._at, self._left = self._at + 1, self._left - 1
            self._interrupt |= READ_READY

    def _next_write(self) -> None:
        if self._left == 0:
            self._end()
        elif not self._fails():
            self._in = []
            self._interrupt |= WRITE_READY

    # --------------------------------------------------------------------------------------------------- commands

    def _command(self, index: int, flags: int, argument: int) -> None:
        data, busy = flags >> 21 & 1, flags >> 16 & 3 == 3
        assert not ((data or busy) and self._inhibited)
        app, self._app = self._app, False
        self.commands.append((index, argument))
        known = self.present and self._answer(index, app, argument)
        if not known and flags >> 16 & 3:  # an answer is expected
            self._interrupt |= ERROR | NO_ANSWER
            return
        self._interrupt |= CMD_DONE | (DATA_DONE if busy and not data else 0)
        if data:
            size = self._registers[0x04]
            assert size & 0xFFFF == BLOCK
            self._left = size >> 16
            self._at = argument if self.high_capacity else argument // BLOCK
            assert self.high_capacity or argument % BLOCK == 0
            self._inhibited = self._sending = True
            (self._next_block if index in (17, 18) else self._next_write)()

    def _respond(self, *words: int) -> bool:
        for place, word in enumerate(words):
            self._registers[RESPONSE + 4 * place] = word
        return True

    def _answer(self, index: int, app: bool, argument: int) -> bool:
        """False: the card does not answer."""
        if index == 0:
            self._sending, self._asked = False, 0
            return True
        if index == 12:
            was, self._sending = self._sending, False
            return was
        if self._sending:
            return False
        if app and index == 41:
            self._asked += 1
            assert self.version2 or not argument & 1 << 30
            return self._respond((self._asked >= 3) << 31 | self.high_capacity << 30 | 0xFF8000)
        if index == 8:
            return self.version2 and self._respond(argument)
        if index == 9:
            value = int.from_bytes(csd(self.blocks, self.high_capacity), "big") >> 8  # without its CRC
            return self._respond(*(value >> 32 * place & 0xFFFFFFFF for place in range(4)))
        if index == 3:
            return self._respond(RCA << 16)
        self._app = index == 55
        return index in (2, 6, 7, 16, 17, 18, 24, 25, 55)
