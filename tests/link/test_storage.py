# SPDX-License-Identifier: Apache-2.0
"""The storage's queue: what is delivered, its CRC, and what goes on in between; and CRCs that are joined."""

from __future__ import annotations

import random
import zlib
from pathlib import Path
from typing import Any

import cffi
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from colibri_sdk.status import Status
from link import native

BLOCK = 512
FIRST = 8  # block at which the image begins
BLOCKS = 800
PENDING, IO_ERROR = 1, -3
NOWHERE = 1 << 40
CONTENT = random.Random(1).randbytes(BLOCKS * BLOCK)

_SIM = """
uint32_t sim_open(uint8_t *data, uint64_t count, uint32_t depth, bool own_crc, uint64_t fails);
int sim_start(uint32_t read, uint64_t offset, uint64_t bytes, uint8_t *to);
int sim_check(uint32_t read, uint32_t *crc32);
int sim_read(uint64_t block, uint32_t count, uint8_t *to);
int sim_write(uint64_t block, uint32_t count, const uint8_t *from);
uint32_t sim_violations(void);
uint32_t sim_inits(void);
uint32_t sim_steps(void);
"""
_JOIN = """
struct crc_join { size_t bytes; uint32_t crc; };
void crc_join_begin(struct crc_join *join, size_t bytes);
void crc_join_add(struct crc_join *join, size_t from, size_t bytes, uint32_t crc);
"""


class Library:
    def __init__(self, path: Path, declarations: str) -> None:
        self.ffi = cffi.FFI()
        self.ffi.cdef(declarations)
        self.lib: Any = self.ffi.dlopen(str(path))


@pytest.fixture(scope="module")
def sim(build_directory: Path) -> Library:
    runtime = [native.RUNTIME / name for name in ("storage.c", "trust.c", "volume.c")]
    sources = [native.HERE / "storage_sim.c", *runtime, *native.ENGINE_PARTS]
    return Library(native.compile_c(build_directory / "storage.so", sources, native.UNDEFINED), _SIM)


@pytest.fixture(scope="module")
def joined(build_directory: Path) -> Library:
    source = native.ROOT / "host_tools" / "host_board" / "crc_join.c"
    return Library(native.compile_c(build_directory / "crc_join.so", [source], native.UNDEFINED), _JOIN)


class Reads:
    """The storage, its reads under way, and what they are to bring."""

    def __init__(self, sim: Library, depth: int, own_crc: bool, failing: int) -> None:
        self.sim, self.failing = sim, failing
        self.disk = sim.ffi.new("uint8_t[]", CONTENT)
        self.depth = sim.lib.sim_open(self.disk, BLOCKS, depth, own_crc, failing)
        assert self.depth == max(depth, 2)
        self.under_way: dict[int, tuple[int, int, Any]] = {}  # number -> first block, blocks, buffer
        self.failures = 0

    def start(self, first: int, count: int) -> None:
        free = [number for number in range(self.depth) if number not in self.under_way]
        if free:
            buffer = self.sim.ffi.new("uint8_t[]", count * BLOCK)
            assert self.sim.lib.sim_start(free[0], first * BLOCK, count * BLOCK, buffer) == 0
            self.under_way[free[0]] = (FIRST + first, count, buffer)

    def check(self, number: int) -> None:
        if number not in self.under_way:
            return
        first, count, buffer = self.under_way[number]
        crc = self.sim.ffi.new("uint32_t *")
        status = self.sim.lib.sim_check(number, crc)
        if status == PENDING:
            return
        del self.under_way[number]
        if first <= self.failing < first + count:
            assert status == Status.E_STORAGE
            self.failures += 1
            return
        wanted = CONTENT[first * BLOCK : (first + count) * BLOCK]
        assert status == 0
        assert bytes(buffer) == wanted
        assert crc[0] == zlib.crc32(wanted)

    def read(self, first: int, count: int) -> None:
        buffer = self.sim.ffi.new("uint8_t[]", count * BLOCK)
        status = self.sim.lib.sim_read(first, count, buffer)
        fails = first <= self.failing < first + count
        assert status == (IO_ERROR if fails else 0)
        assert fails or bytes(buffer) == CONTENT[first * BLOCK : (first + count) * BLOCK]

    def write(self, block: int) -> None:
        """What is there already: a write in between must change nothing for the reads."""
        data = CONTENT[block * BLOCK : (block + 1) * BLOCK]
        assert self.sim.lib.sim_write(block, 1, self.sim.ffi.from_buffer("uint8_t[]", data)) == 0

    def check_all(self) -> None:
        """As the engine does, whenever it polls."""
        for number in list(self.under_way):
            self.check(number)

    def drain(self) -> None:
        for _ in range(20 * BLOCKS):
            self.check_all()
        assert not self.under_way


_OPERATIONS = st.one_of(
    st.tuples(st.just("start"), st.integers(0, BLOCKS - FIRST - 300), st.integers(1, 300)),
    st.tuples(st.just("poll"), st.integers(1, 400)),
    st.tuples(st.just("check"), st.integers(0, 7)),
    st.tuples(st.just("read"), st.integers(0, BLOCKS - 20), st.integers(1, 20)),
    st.tuples(st.just("write"), st.integers(0, BLOCKS - 1)),
)


@settings(max_examples=150, deadline=None)
@given(
    depth=st.sampled_from([1, 1, 2, 8]),
    own_crc=st.booleans(),
    failing=st.one_of(st.just(NOWHERE), st.integers(0, BLOCKS - 1)),
    operations=st.lists(_OPERATIONS, max_size=30),
)
def test_reads_bring_what_lies_there(
    sim: Library, depth: int, own_crc: bool, failing: int, operations: list[tuple[Any, ...]]
) -> None:
    """Whatever is started, polled, read and written in between, in whatever order: data and CRC are right, a read over
    a block that fails fails alone, and the device is never asked for two things where it can do one."""
    reads = Reads(sim, depth, own_crc, failing)
    for name, *arguments in operations:
        if name == "poll":
            for _ in range(arguments[0]):
                reads.check_all()
        else:
            getattr(reads, name)(*arguments)
    reads.drain()
    assert sim.lib.sim_violations() == 0


def test_no_more_than_two_blocks_move_between_two_looks_at_the_link(sim: Library) -> None:
    """The engine asks about its reads, then polls its caller: a UART's FIFO must not fill meanwhile."""
    reads = Reads(sim, 1, own_crc=False, failing=NOWHERE)
    reads.start(0, 300)
    reads.start(300, 300)
    while reads.under_way:
        before = sim.lib.sim_steps()
        reads.check_all()
        assert sim.lib.sim_steps() - before <= 2


def test_a_failed_device_is_brought_up_again(sim: Library) -> None:
    reads = Reads(sim, 1, own_crc=False, failing=FIRST + 100)
    reads.start(90, 20)
    reads.start(300, 200)
    reads.drain()
    assert (reads.failures, sim.lib.sim_inits()) == (1, 2)
    reads.start(300, 10)
    reads.drain()
    assert (reads.failures, sim.lib.sim_inits()) == (1, 2)


@pytest.mark.parametrize(
    ("offset", "count"),
    [((BLOCKS - FIRST) * BLOCK, 1), ((BLOCKS - FIRST - 1) * BLOCK, 2), (1, 1), (0, 0), ((1 << 64) - BLOCK, 2)],
)
def test_reads_outside_of_the_image_are_refused(sim: Library, offset: int, count: int) -> None:
    Reads(sim, 1, own_crc=False, failing=NOWHERE)
    buffer = sim.ffi.new("uint8_t[]", 2 * BLOCK)
    assert sim.lib.sim_start(0, offset, count * BLOCK, buffer) == Status.E_STORAGE


@settings(max_examples=200, deadline=None)
@given(data=st.binary(max_size=2000), cuts=st.lists(st.integers(0, 2000), max_size=6), order=st.randoms())
def test_crcs_join(joined: Library, data: bytes, cuts: list[int], order: random.Random) -> None:
    """Against zlib's of the whole, pieces in any order, empty ones too."""
    ends = sorted(min(cut, len(data)) for cut in cuts)
    pieces = list(zip([0, *ends], [*ends, len(data)], strict=True))
    order.shuffle(pieces)
    join = joined.ffi.new("struct crc_join *")
    joined.lib.crc_join_begin(join, len(data))
    for start, end in pieces:
        joined.lib.crc_join_add(join, start, end - start, zlib.crc32(data[start:end]))
    assert join.crc == zlib.crc32(data)
