# SPDX-License-Identifier: Apache-2.0
"""What every driver of a block device must do, whatever is behind it."""

from __future__ import annotations

from typing import Protocol

from hal.hal_status import OK, RANGE


class Host(Protocol):
    """A driver that has been brought up, and what its device should give."""

    def read(self, block: int, count: int) -> tuple[int, bytes]: ...

    def wanted(self, block: int, count: int) -> bytes: ...


def check_reads(host: Host, blocks: int) -> None:
    """Each of the device's blocks is read as what it is, up to the last, and none beyond."""
    for block, count in ((0, 1), (5, 3), (blocks - 2, 2), (7, 0)):
        assert host.read(block, count) == (OK, host.wanted(block, count))
    for block, count in ((blocks, 1), (blocks - 1, 2), (1 << 32, 1), ((1 << 64) - 1, 2)):
        assert host.read(block, count)[0] == RANGE
