# SPDX-License-Identifier: Apache-2.0
"""The device gave credit for eight frames and had room for one message: a CANCEL right behind its GENERATE was dropped
and came again only after the resend timer."""

from __future__ import annotations

import struct
from pathlib import Path

from colibri_sdk.link.messages import Finish, GenerateResult, Reader, Type
from link.scenario import generate
from link.virtual import Damage, World


def test_a_cancel_right_behind_its_request_is_taken_at_once(sim_library: Path) -> None:
    world = World(sim_library, seed=1, damage=Damage(), bytes_per_second=1e6, baud=0)
    asked = world.ask(Type.GENERATE, generate("hello", 0))
    world.on_sent = lambda world: world.inject(Type.CANCEL, struct.pack("<I", world.current_number))
    world.run()
    assert GenerateResult.read(Reader(asked.final[1])).finish == Finish.CANCELLED
    assert world.peer.frames_resent == 0
    assert world.now < 0.25
