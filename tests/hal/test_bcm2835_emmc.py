# SPDX-License-Identifier: Apache-2.0
"""The driver of SD cards on the EMMC controller, against played registers: kinds of cards, errors, what follows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hal.blocks import check_reads
from hal.emmc_card import EmmcCard
from hal.hal_status import ABSENT, IO_ERROR, OK, TIMEOUT
from hal.sd_registers import BLOCK, CARDS
from native import Native, driver

DECLARATIONS = """
int card_init(uint32_t (*read)(uint32_t number), void (*write_)(uint32_t number, uint32_t value));
uint64_t card_blocks(void);
int card_read(uint64_t block, uint32_t count, uint32_t *data);
int card_write(uint64_t block, uint32_t count, const uint32_t *data);
"""
FAULTS = [("wrong", IO_ERROR), ("late", IO_ERROR), ("silent", TIMEOUT)]


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> Native:
    sources = ["drivers/common/sd_card.c", "time.c"]
    return Native(driver(tmp_path_factory.mktemp("emmc"), "bcm2835_emmc_shim.c", sources), DECLARATIONS)


class Host:
    """The driver with a card in its controller."""

    def __init__(self, native: Native, card: EmmcCard) -> None:
        self.ffi, self.lib, self.card = native.ffi, native.lib, card
        self._read = self.ffi.callback("uint32_t(uint32_t)", card.read, error=0)
        self._write = self.ffi.callback("void(uint32_t, uint32_t)", card.write)

    def init(self) -> int:
        return int(self.lib.card_init(self._read, self._write))

    def read(self, block: int, count: int) -> tuple[int, bytes]:
        data = self.ffi.new("uint32_t[]", count * BLOCK // 4)
        return int(self.lib.card_read(block, count, data)), bytes(self.ffi.buffer(data))

    def write(self, block: int, data: bytes) -> int:
        words = self.ffi.new("uint32_t[]", len(data) // 4)
        self.ffi.memmove(words, data, len(data))
        return int(self.lib.card_write(block, len(data) // BLOCK, words))

    def wanted(self, block: int, count: int) -> bytes:
        return b"".join(map(self.card.block_of, range(block, block + count)))


@pytest.fixture
def insert(native: Native) -> Callable[..., Host]:
    def brought_up(**options: Any) -> Host:
        host = Host(native, EmmcCard(**{**CARDS["high capacity"], **options}))
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
    for block, data in ((9, b"a" * BLOCK), (12, b"bc" * BLOCK)):
        assert host.write(block, data) == OK
        assert host.read(block, len(data) // BLOCK) == (OK, data)


def test_no_card(native: Native) -> None:
    assert Host(native, EmmcCard(blocks=1024, present=False)).init() == ABSENT


@pytest.mark.parametrize("at", range(5))
@pytest.mark.parametrize(("fault", "status"), FAULTS)
def test_a_block_in_the_middle_fails(insert: Callable[..., Host], fault: str, status: int, at: int) -> None:
    """Of a read and of a write. The card is told to stop, and what follows goes well, without bringing it up again."""
    host = insert(**{f"{fault}_block": 40 + at})
    assert host.read(40, 5)[0] == status
    assert host.card.commands[-1][0] == 12
    assert host.read(60, 4) == (OK, host.wanted(60, 4))
    assert host.write(40, b"x" * 5 * BLOCK) == status
    assert host.card.commands[-1][0] == 12
    assert host.write(60, b"y" * BLOCK) == OK
    assert host.read(60, 1) == (OK, b"y" * BLOCK)
    assert host.init() == OK
    assert host.read(0, 2) == (OK, host.wanted(0, 2))


@pytest.mark.parametrize("fault", ["wrong", "late", "silent"])
def test_a_single_block_fails(insert: Callable[..., Host], fault: str) -> None:
    """Then the card may not be sending any more, and refuse to be stopped."""
    host = insert(**{f"{fault}_block": 40})
    assert host.read(40, 1)[0] != OK
    assert host.read(41, 1) == (OK, host.wanted(41, 1))


def test_a_card_that_was_pulled_out_and_put_back(insert: Callable[..., Host]) -> None:
    host = insert()
    host.card.present = False
    assert host.read(1, 2)[0] == IO_ERROR
    assert host.init() == ABSENT
    host.card.present = True
    assert host.init() == OK
    assert host.read(1, 2) == (OK, host.wanted(1, 2))
