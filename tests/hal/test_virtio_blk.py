# SPDX-License-Identifier: Apache-2.0
"""The driver of virtio disks, against played registers and its queue in memory: both versions, errors, re-starts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from hal.blocks import check_reads
from hal.hal_status import ABSENT, IO_ERROR, OK, RANGE, TIMEOUT
from hal.sd_registers import BLOCK, unwritten
from native import Native, driver

DECLARATIONS = """
int disk_init(uint32_t (*read)(uint64_t number), void (*write_)(uint64_t number, uint32_t value));
uint64_t disk_blocks(void);
int disk_read(uint64_t block, uint32_t count, uint8_t *data);
int disk_write(uint64_t block, uint32_t count, const uint8_t *data);
"""
SLOT = 0x10000 + 3 * 0x200
VERSION, DEVICE, PFN, NOTIFY, STATUS, DESCRIPTORS, DRIVER, USED, CAPACITY = (
    *(0x004, 0x008, 0x040, 0x050, 0x070, 0x080, 0x090, 0x0A0),
    0x100,
)
LONGEST = 8192  # blocks of a request


@dataclass
class Disk:
    """A device in the fourth slot. Requests for `failing` end with an error, those for `silent` never."""

    native: Native
    version: int = 2
    blocks: int = 1 << 20
    present: bool = True
    failing: int = -1
    silent: int = -1
    written: dict[int, bytes] = field(default_factory=dict)
    requests: list[tuple[int, int, int]] = field(default_factory=list)  # type, block, count
    registers: dict[int, int] = field(default_factory=dict)
    taken: int = 0  # requests since the device was reset

    def read(self, number: int) -> int:
        if not self.present or not SLOT <= number < SLOT + 0x200:
            return 0
        known = {0: 0x74726976, VERSION: self.version, DEVICE: 2, 0x034: 8}
        known |= {CAPACITY: self.blocks & 0xFFFFFFFF, CAPACITY + 4: self.blocks >> 32}
        at = number - SLOT
        return known.get(at, self.registers.get(at, 0))

    def write(self, number: int, value: int) -> None:
        at = number - SLOT
        self.registers[at] = value
        if at == STATUS and value == 0:
            self.taken = 0
        elif at == NOTIFY:
            self._serve()

    def _at(self, address: int, length: int) -> Any:
        return self.native.ffi.buffer(self.native.ffi.cast("char *", address), length)

    def _number(self, address: int, length: int) -> int:
        return int.from_bytes(self._at(address, length), "little")

    def _rings(self) -> tuple[int, int, int]:
        if self.version == 1:
            # A legacy device is told 32 bits of a page's number. The rest is that of all the library's addresses.
            near = int(self.native.ffi.cast("uintptr_t", self.native.lib.disk_blocks))
            descriptors = near >> 44 << 44 | self.registers[PFN] * 4096
            return descriptors, descriptors + 4 * 16, descriptors + 4096
        return tuple(  # type: ignore[return-value]
            self.registers[at] | self.registers[at + 4] << 32 for at in (DESCRIPTORS, DRIVER, USED)
        )

    def _serve(self) -> None:
        descriptors, available, used = self._rings()
        assert self._number(available + 2, 2) == (self.taken + 1) & 0xFFFF
        assert self._number(used + 2, 2) == self.taken & 0xFFFF
        header, data, status = (
            (self._number(descriptors + 16 * n, 8), self._number(descriptors + 16 * n + 8, 4)) for n in range(3)
        )
        kind, block, count = self._number(header[0], 4), self._number(header[0] + 8, 8), data[1] // BLOCK
        self.requests.append((kind, block, count))
        wanted = range(block, block + count)
        if self.silent in wanted:
            return
        if self.failing not in wanted:
            memory = self._at(*data)
            for place, number in enumerate(wanted):
                if kind == 0:
                    memory[place * BLOCK : (place + 1) * BLOCK] = self.content(number)
                else:
                    self.written[number] = bytes(memory[place * BLOCK : (place + 1) * BLOCK])
        self._at(status[0], 1)[0:1] = bytes([self.failing in wanted])
        self.taken += 1
        self._at(used + 2, 2)[0:2] = (self.taken & 0xFFFF).to_bytes(2, "little")

    def content(self, number: int) -> bytes:
        return self.written.get(number, unwritten(number))


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> Native:
    return Native(driver(tmp_path_factory.mktemp("virtio"), "virtio_blk_shim.c", ["time.c"]), DECLARATIONS)


class Host:
    """The driver with a disk."""

    def __init__(self, native: Native, disk: Disk) -> None:
        self.ffi, self.lib, self.disk = native.ffi, native.lib, disk
        self._read = self.ffi.callback("uint32_t(uint64_t)", disk.read)
        self._write = self.ffi.callback("void(uint64_t, uint32_t)", disk.write)

    def init(self) -> int:
        return int(self.lib.disk_init(self._read, self._write))

    def read(self, block: int, count: int) -> tuple[int, bytes]:
        data = self.ffi.new("uint8_t[]", count * BLOCK)
        return int(self.lib.disk_read(block, count, data)), bytes(data)

    def write(self, block: int, data: bytes) -> int:
        return int(self.lib.disk_write(block, len(data) // BLOCK, data))

    def wanted(self, block: int, count: int) -> bytes:
        return b"".join(map(self.disk.content, range(block, block + count)))


@pytest.fixture(params=[1, 2], ids=["legacy", "modern"])
def attach(native: Native, request: pytest.FixtureRequest) -> Callable[..., Host]:
    def brought_up(**options: Any) -> Host:
        host = Host(native, Disk(native, version=request.param, **options))
        assert host.init() == OK
        return host

    return brought_up


def test_blocks_come_and_go(attach: Callable[..., Host]) -> None:
    """Up to the last one, and none beyond."""
    host = attach()
    blocks = host.disk.blocks
    assert host.lib.disk_blocks() == blocks
    check_reads(host, blocks)
    assert host.write(9, b"ab" * BLOCK) == OK
    assert host.read(8, 4) == (OK, host.wanted(8, 1) + b"ab" * BLOCK + host.wanted(11, 1))


def test_disks_of_more_than_2_tb(attach: Callable[..., Host]) -> None:
    host = attach(blocks=(5 << 32) + 7)
    assert host.lib.disk_blocks() == (5 << 32) + 7
    assert host.read((5 << 32) + 5, 2) == (OK, host.wanted((5 << 32) + 5, 2))
    assert host.disk.requests == [(0, (5 << 32) + 5, 2)]


def test_long_reads_are_several_requests(attach: Callable[..., Host]) -> None:
    host = attach()
    assert host.read(3, 2 * LONGEST + 5) == (OK, host.wanted(3, 2 * LONGEST + 5))
    assert host.disk.requests == [(0, 3, LONGEST), (0, 3 + LONGEST, LONGEST), (0, 3 + 2 * LONGEST, 5)]


def test_an_error_is_told_and_what_follows_goes_well(attach: Callable[..., Host]) -> None:
    host = attach(failing=42)
    assert host.read(40, 5)[0] == IO_ERROR
    assert host.write(42, bytes(BLOCK)) == IO_ERROR
    assert host.read(43, 2) == (OK, host.wanted(43, 2))


def test_a_disk_that_does_not_answer_is_reset_and_brought_up_again(attach: Callable[..., Host]) -> None:
    """Its DMA must end before the memory is used for something else."""
    host = attach(silent=42)
    assert host.read(40, 5)[0] == TIMEOUT
    assert host.disk.registers[STATUS] == 0
    assert host.read(1, 1)[0] == RANGE  # until it is brought up
    assert host.init() == OK
    assert host.write(42, bytes(BLOCK)) == TIMEOUT
    assert host.init() == OK
    assert host.read(1, 2) == (OK, host.wanted(1, 2))


def test_no_disk(native: Native) -> None:
    assert Host(native, Disk(native, present=False)).init() == ABSENT


def test_the_rings_counters_wrap(attach: Callable[..., Host]) -> None:
    host = attach()
    data = host.ffi.new("uint8_t[]", BLOCK)
    for block in range((1 << 16) + 2):
        assert host.lib.disk_read(block, 1, data) == OK
    assert bytes(data) == host.wanted((1 << 16) + 1, 1)
