# SPDX-License-Identifier: Apache-2.0
"""Chaos in virtual time: the device's C code and the SDK's state machine over a line that damages bytes.

Every answer must equal that of the undamaged line, every request must end, and a run follows from its seed alone.
"""

from __future__ import annotations

import struct
from functools import cache
from pathlib import Path

import pytest

from colibri_sdk.link.messages import ErrorBody, Finish, GenerateResult, Reader, Type
from colibri_sdk.status import Status
from link.scenario import ask_all, essences, generate
from link.virtual import Damage, Hang, World

CLEAN = Damage()
LIGHT = Damage(flip=3e-4, drop=3e-4, double=3e-4, insert=3e-4, delay=1.0, cut=0.5)
# One byte in 125 is hurt: of frames of 85 bytes every second one, of longest ones hardly any arrives whole.
HEAVY = Damage(flip=2e-3, drop=2e-3, double=2e-3, insert=2e-3, delay=2.0, cut=1.0)


@cache
def clean_answers(library: Path, long: bool) -> list[object]:
    world = World(library, seed=0, damage=CLEAN)
    ask_all(world, long=long)
    world.run()
    assert world.sessions == 1
    assert world.peer.frames_resent == 0
    return essences(world)


def run_damaged(library: Path, seed: int, damage: Damage, *, long: bool = True, **options: object) -> World:
    world = World(library, seed=seed, damage=damage, **options)  # type: ignore[arg-type]
    ask_all(world, long=long)
    world.run()
    assert essences(world) == clean_answers(library, long)
    return world


@pytest.mark.parametrize("seed", range(8))
def test_light_damage(sim_library: Path, seed: int) -> None:
    world = run_damaged(sim_library, seed, LIGHT)
    assert world.down.hurt + world.up.hurt > 0
    assert world.sessions == 1 or world.lost > 0


@pytest.mark.parametrize("seed", range(4))
def test_heavy_damage(sim_library: Path, seed: int) -> None:
    world = run_damaged(sim_library, seed, HEAVY, long=False, limit_seconds=3000.0)
    assert world.down.hurt > 10
    assert world.up.hurt > 10


@pytest.mark.fuzz
def test_many_seeds(sim_library: Path) -> None:
    for seed in range(1000, 1025):
        run_damaged(sim_library, seed, LIGHT, crash_at=[4.0 + seed % 7] if seed % 3 == 0 else [])


@pytest.mark.parametrize("kind", ["flip", "drop", "double", "insert"])
@pytest.mark.parametrize("direction", ["down", "up"])
def test_each_damage_in_each_direction(sim_library: Path, kind: str, direction: str) -> None:
    hurt = Damage(**{kind: 1e-3})
    damage, back = (hurt, CLEAN) if direction == "down" else (CLEAN, hurt)
    world = run_damaged(sim_library, 5, damage, back=back, limit_seconds=3000.0)
    line = world.down if direction == "down" else world.up
    assert line.hurt > 0
    assert world.sessions == 1  # such damage never costs the session


@pytest.mark.parametrize("seed", range(2))
def test_a_slow_and_a_fast_line(sim_library: Path, seed: int) -> None:
    run_damaged(sim_library, seed, LIGHT, bytes_per_second=960.0, baud=9600, limit_seconds=6000.0)
    run_damaged(sim_library, seed, LIGHT, bytes_per_second=1e7, baud=0)


@pytest.mark.parametrize("seed", range(2))
def test_a_line_slower_than_it_says(sim_library: Path, seed: int) -> None:
    """As an emulated UART: 115,200 baud by its registers, towards the device much less by the clock."""
    run_damaged(sim_library, seed, LIGHT, bytes_per_second=2000.0, back_bytes_per_second=11520.0, limit_seconds=6000.0)


@pytest.mark.parametrize("seed", range(6))
def test_the_device_restarts_at_any_time(sim_library: Path, seed: int) -> None:
    """Requests that were lost are asked again in a new session; nothing of the old one comes through."""
    crashes = [0.05 + 0.37 * seed, 1.3 + 0.41 * seed, 9.0 + 0.11 * seed]
    world = run_damaged(sim_library, seed, LIGHT if seed % 2 else CLEAN, crash_at=crashes)
    assert world.sessions > 1 or world.now < crashes[0]


def test_the_line_is_dead_for_a_while(sim_library: Path) -> None:
    """Longer than the device waits for its host: the session is over on both sides, then all goes on."""
    dead = Damage(drop=1.0)
    world = World(sim_library, seed=1, damage=dead, calm_after=40.0)
    ask_all(world)
    world.run()
    assert essences(world) == clean_answers(sim_library, True)


def test_nothing_ever_arrives(sim_library: Path) -> None:
    """The counter-check: on a line that loses everything the scenario cannot end."""
    world = World(sim_library, seed=1, damage=Damage(drop=1.0), limit_seconds=120.0)
    ask_all(world)
    with pytest.raises(Hang):
        world.run()


def test_a_run_follows_from_its_seed(sim_library: Path) -> None:
    first = run_damaged(sim_library, 3, LIGHT)
    second = run_damaged(sim_library, 3, LIGHT)
    assert (first.now, first.up.hurt, first.peer.frames_resent) == (
        second.now,
        second.up.hurt,
        second.peer.frames_resent,
    )


@pytest.mark.parametrize("damage", [CLEAN, LIGHT])
def test_cancel_and_busy_while_generating(sim_library: Path, damage: Damage) -> None:
    world = World(sim_library, seed=2, damage=damage)
    long = world.ask(Type.GENERATE, generate("hello", 0))
    world.ask(Type.HELLO)
    extra: list[int] = []

    def on_event(world: World, kind: int, body: bytes) -> None:
        if kind == Type.TOKEN and len(long.answers) == 10:
            extra.append(world.inject(Type.STATS, b"\1"))  # clears
            extra.append(world.inject(Type.INFO, b""))
            extra.append(world.inject(Type.CANCEL, struct.pack("<I", world.current_number)))

    world.on_event = on_event
    world.run()
    result = GenerateResult.read(Reader(long.final[1]))
    assert result.finish == Finish.CANCELLED
    assert 10 <= result.generated_tokens < 200  # of the 2,000 that the context holds
    if world.sessions == 1:
        answers = {number: (kind, body) for number, kind, body in world.stray}
        assert sorted(answers) == extra
        assert ErrorBody.read(Reader(answers[extra[0]][1])).status == Status.E_BUSY
        assert answers[extra[1]][0] == Type.RESULT + Type.INFO
        assert answers[extra[2]] == (Type.RESULT + Type.CANCEL, b"\x01")


def test_a_new_session_cancels_the_old_request(sim_library: Path) -> None:
    """The host forgets its session in the middle of an answer; the device must not answer it in the next one."""
    world = World(sim_library, seed=4, damage=CLEAN)
    world.ask(Type.GENERATE, generate("hello", 0))
    world.ask(Type.GENERATE, generate("hello", 3))

    def on_event(world: World, kind: int, body: bytes) -> None:
        if kind == Type.TOKEN and world.sessions == 1:
            asked = world.requests[0]
            asked.body = generate("short", 2)
            world.peer.open(world.now)

    world.on_event = on_event
    world.run()
    assert world.sessions == 2
    first = GenerateResult.read(Reader(world.requests[0].final[1]))
    assert first.generated_tokens == 2
    assert world.stray == []
