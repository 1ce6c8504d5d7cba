# SPDX-License-Identifier: Apache-2.0
"""The driver of SD cards on SPI, against a card played byte by byte: kinds of cards, errors, and what follows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hal.blocks import check_reads
from hal.hal_status import ABSENT, IO_ERROR, OK, TIMEOUT
from hal.sd_registers import BLOCK, CARDS
from hal.spi_card import SpiCard
from native import Native, driver

DECLARATIONS = """
int card_init(void (*transfer)(uint8_t *tx, uint8_t *rx, size_t bytes), void (*select)(bool selected));
uint64_t card_blocks(void);
int card_read(uint64_t block, uint32_t count, uint8_t *data);
int card_write(uint64_t block, uint32_t count, const uint8_t *data);
"""


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> Native:
    sources = ["drivers/spi_sd.c", "drivers/common/sd_card.c", "time.c"]
    return Native(driver(tmp_path_factory.mktemp("spi"), "spi_sd_shim.c", sources), DECLARATIONS)


class Host:
    """The driver with a card on its bus."""

    def __init__(self, native: Native, card: SpiCard) -> None:
        self.ffi, self.lib, self.card = native.ffi, native.lib, card
        self._transfer = self.ffi.callback("void(uint8_t *, uint8_t *, size_t)", self._exchange)
        self._select = self.ffi.callback("void(bool)", card.select)

    def _exchange(self, tx: Any, rx: Any, length: int) -> None:
        got = self.card.exchange(bytes(self.ffi.buffer(tx, length)) if tx else b"\xff" * length)
        if rx:
            self.ffi.memmove(rx, got, length)

    def init(self) -> int:
        return int(self.lib.card_init(self._transfer, self._select))

    def read(self, block: int, count: int) -> tuple[int, bytes]:
        data = self.ffi.new("uint8_t[]", count * BLOCK)
        status = int(self.lib.card_read(block, count, data))
        assert not self.card.selected
        return status, bytes(data)

    def write(self, block: int, data: bytes) -> int:
        return int(self.lib.card_write(block, len(data) // BLOCK, data))

    def wanted(self, block: int, count: int) -> bytes:
        return b"".join(map(self.card.block_of, range(block, block + count)))


@pytest.fixture
def insert(native: Native) -> Callable[..., Host]:
    def brought_up(**options: Any) -> Host:
        host = Host(native, SpiCard(**{**CARDS["high capacity"], **options}))
        assert host.init() == OK
        return host

    return brought_up


@pytest.mark.parametrize("kind", CARDS)
def test_each_kind_of_card(insert: Callable[..., Host], kind: str) -> None:
    """Size, and that blocks are addressed as the card counts them, up to the last."""
    host = insert(**CARDS[kind])
    blocks = host.card.blocks
    assert host.lib.card_blocks() == blocks
    check_reads(host, blocks)
    assert host.write(9, b"ab" * BLOCK) == OK
    assert host.read(8, 4) == (OK, host.wanted(8, 1) + b"ab" * BLOCK + host.wanted(11, 1))


def test_no_card(native: Native) -> None:
    assert Host(native, SpiCard(blocks=1024, present=False)).init() == ABSENT


@pytest.mark.parametrize("at", range(5))
@pytest.mark.parametrize(("fault", "status"), [("wrong", IO_ERROR), ("error", IO_ERROR), ("silent", TIMEOUT)])
def test_a_block_in_the_middle_fails(insert: Callable[..., Host], fault: str, status: int, at: int) -> None:
    """The card is told to stop, and the next read is right, without bringing the card up again."""
    host = insert(**{f"{fault}_block": 40 + at})
    assert host.read(40, 5)[0] == status
    assert host.card.commands[-1][0] == 12
    assert host.read(60, 4) == (OK, host.wanted(60, 4))
    assert host.init() == OK
    assert host.read(0, 2) == (OK, host.wanted(0, 2))


def test_a_card_that_was_pulled_out_and_put_back(insert: Callable[..., Host]) -> None:
    host = insert()
    host.card.present = False
    assert host.read(1, 1)[0] != OK
    assert host.init() == ABSENT
    host.card.present = True
    assert host.init() == OK
    assert host.read(1, 2) == (OK, host.wanted(1, 2))


@pytest.mark.parametrize("length", [6, BLOCK])
def test_a_wrong_bit_on_the_bus_harms_nothing(insert: Callable[..., Host], length: int) -> None:
    """A write must not become one of another block, nor write something else: the card looks, because it was told."""
    host = insert()
    before = dict(host.card.content)

    def flip(_: int, sent: bytearray) -> None:
        if len(sent) == length and (length == BLOCK or sent[0] == 0x40 | 24):
            sent[3] ^= 1

    host.card.noise = flip
    assert host.write(300, b"x" * BLOCK) == IO_ERROR
    assert host.card.content == before


@pytest.mark.parametrize("there", [0, 1, 300, BLOCK])
def test_a_restart_while_a_block_is_sent_does_not_write_half_of_it(insert: Callable[..., Host], there: int) -> None:
    """The card takes what the next start sends for the rest of it: its checksum is wrong, and nothing is written."""
    host = insert()
    before = host.wanted(300, 1)
    host.card.select(True)
    host.card.begin_write(300, there)
    assert host.init() == OK
    assert host.read(300, 1) == (OK, before)
