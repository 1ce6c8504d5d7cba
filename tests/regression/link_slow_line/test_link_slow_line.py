# SPDX-License-Identifier: Apache-2.0
"""On a line that was slower than the device knew, with a buffer that takes everything, each NAK made it send its window
again, also when the copies that it asked for were already in the buffer: that filled faster than it drained."""

from __future__ import annotations

from pathlib import Path

from link.scenario import ask_all
from link.virtual import Damage, World


def test_copies_do_not_fill_a_slow_line(sim_library: Path) -> None:
    damage = Damage(flip=3e-4, drop=3e-4, double=3e-4, insert=3e-4, delay=1.0, cut=0.5)
    world = World(sim_library, seed=1, damage=damage, bytes_per_second=4000.0, baud=115200, limit_seconds=400.0)
    ask_all(world)
    world.run()
    assert world.sessions == 1
