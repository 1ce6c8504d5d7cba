# SPDX-License-Identifier: Apache-2.0
"""Experts from the block device: the same bits with any number of them in memory, memory as planned, failures told."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from acceptance import BOARDS, PROMPT, Place, each
from colibri_sdk.errors import ColibriError, DeviceError
from colibri_sdk.status import Status
from make_random_moe import Shape, make

PackModel = Callable[[str], Path]
TOKENS = 6
SHAPE = Shape(layers=3, experts=24, hidden=64, width=128)


@pytest.fixture(scope="session")
def many_experts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of the kind that the store is for: many small experts, of which each token needs few."""
    from colibri_sdk.convert import pack

    directory = tmp_path_factory.mktemp("store")
    checkpoint = make(directory / "checkpoint", SHAPE)
    image = directory / "many-experts.colibri"
    pack(checkpoint, image, quant="q8")
    return image


@pytest.fixture(scope="session")
def plan(host_library: Path) -> Callable[..., Any]:
    from colibri_sdk.engine import Library

    return Library.load(host_library).plan


def generate(device: Any, prompt: str = PROMPT) -> str:
    generation = device.generate(prompt, ignore_eos=True, max_tokens=TOKENS)
    for _ in generation:
        pass
    return str(generation.result.logits_sha256)


def check_each_way(device: Any, plan: Callable[..., Any], image: Path, experts: int, prompt: str) -> None:
    """The same device, set up anew in each way: memory, one slot per layer, a few, all, with and without prefetch."""
    configured = device.configure("memory")
    assert (configured.cache_slots, configured.loaded_bytes) == (0, image.stat().st_size)
    wanted = generate(device, prompt)
    for slots, prefetch in ((1, False), (1, True), (experts // 3, True), (experts, False)):
        configured = device.configure("block", cache_slots=slots, prefetch=prefetch)
        planned = plan(image, cache_slots=slots)
        assert (configured.cache_slots, configured.prefetch) == (slots, prefetch)
        assert configured.arena_bytes == planned.arena_bytes
        assert configured.loaded_bytes == planned.front_bytes < image.stat().st_size
        assert device.info().slot_bytes == planned.slot_bytes > 0
        assert generate(device, prompt) == wanted
        stats = device.stats()
        assert stats.arena_peak_bytes == stats.arena_bytes == planned.arena_bytes
        assert stats.canary_intact
        for layer in stats.layers:
            assert layer.misses > 0 and layer.read_bytes > 0
            assert prefetch or layer.prefetched == 0
            assert slots < experts or layer.misses <= experts
        assert prefetch == (sum(layer.prefetched for layer in stats.layers) > 0)
    assert device.configure("memory").loaded_bytes == image.stat().st_size
    assert generate(device, prompt) == wanted


@each(BOARDS)
def test_bits_do_not_depend_on_where_the_experts_are(
    many_experts: Path, emulated: Callable[..., Any], plan: Callable[..., Any], place: Place
) -> None:
    device = emulated(place.board, many_experts)
    assert device.info().store == ("mapped" if place.board == "host" else "memory")
    check_each_way(device, plan, many_experts, SHAPE.experts, "on")


def test_the_demo_model_gives_the_same_bits_too(
    hummingbird: PackModel, emulated: Callable[..., Any], plan: Callable[..., Any]
) -> None:
    check_each_way(emulated("host", hummingbird("q8")), plan, hummingbird("q8"), 8, PROMPT)


def test_what_does_not_fit_is_read_on_demand(
    many_experts: Path, emulated: Callable[..., Any], plan: Callable[..., Any]
) -> None:
    """As on a board with too little memory: the store is chosen by itself, and fills what there is."""
    from colibri_sdk import emulator
    from colibri_sdk.boards import load_board
    from colibri_sdk.device import Device

    wanted = generate(emulated("host", many_experts))
    least = plan(many_experts, cache_slots=1)
    limit = least.front_bytes + least.arena_bytes + 3 * least.slot_bytes + (64 << 10)
    assert limit < many_experts.stat().st_size
    arguments = ["--block", str(many_experts), "--arena-limit", str(limit)]
    with emulator.start(load_board("host"), arguments=arguments) as running, Device.open(running) as device:
        info = device.info()
        assert (info.store, info.cache_slots) == ("block", 4)
        assert info.loaded_bytes + info.arena_bytes <= limit < info.loaded_bytes + info.arena_bytes + least.slot_bytes
        assert generate(device) == wanted
        stats = device.stats()
        assert stats.arena_peak_bytes == stats.arena_bytes == info.arena_bytes
        assert sum(layer.hits for layer in stats.layers) > 0


@each([place for place in BOARDS if place.board in ("rpi3", "hifive-unleashed")])
def test_less_memory_than_the_model_on_a_board(many_experts: Path, emulated: Callable[..., Any], place: Place) -> None:
    wanted = generate(emulated("host", many_experts))
    device = emulated(place.board, many_experts)
    limit = many_experts.stat().st_size // 2
    configured = device.configure("auto", memory_limit=limit)
    info = device.info()
    assert info.store == "block"
    assert configured.loaded_bytes + configured.arena_bytes <= limit
    assert generate(device) == wanted
    assert device.stats().arena_peak_bytes == configured.arena_bytes


def test_a_configuration_that_does_not_fit_says_so(hummingbird: PackModel, emulated: Callable[..., Any]) -> None:
    """The device is without a model then, says why, and takes the next configuration."""
    image = hummingbird("q8")
    device = emulated("host", image)
    wanted = generate(device)
    with pytest.raises(ColibriError) as raised:
        device.configure("block", memory_limit=1 << 20)
    assert getattr(raised.value, "status", None) == Status.E_MODEL_TOO_LARGE
    assert device.info().state == "no model"
    with pytest.raises(DeviceError):
        generate(device)
    needed = raised.value.got  # type: ignore[attr-defined]
    device.configure("block", memory_limit=needed, cache_slots=1)
    assert generate(device) == wanted
    with pytest.raises(ColibriError):
        device.configure("block", memory_limit=needed - 64, cache_slots=1)
    device.configure("auto")
    assert generate(device) == wanted


@pytest.mark.parametrize(
    ("kind", "status"),
    [("error", Status.E_STORAGE), ("short", Status.E_STORAGE), ("corrupt", Status.E_EXPERT_CHECKSUM)],
)
def test_each_read_may_fail(
    many_experts: Path,
    emulated: Callable[..., Any],
    tried: Callable[..., None],
    kind: str,
    status: Status,
) -> None:
    """The n-th read of an expert fails, for every n of a request: the error names it, and the next request is right."""
    from colibri_sdk import emulator
    from colibri_sdk.boards import load_board
    from colibri_sdk.device import Device

    wanted = generate(emulated("host", many_experts), "on")
    arguments = ["--store", "block", "--cache-slots", "1", "--fail-reads", kind]
    board = load_board("host")
    failures = 0
    with emulator.start(board, storage=many_experts, arguments=arguments) as running, Device.open(running) as device:
        assert generate(device, "on") == wanted
        assert running.pid is not None
        while True:
            os.kill(running.pid, signal.SIGUSR1)
            try:
                assert generate(device, "on") == wanted
                break  # it took fewer reads than the number of the one that was to fail
            except DeviceError as error:
                assert error.status == status
                assert "layer " in str(error) and "expert " in str(error)
                failures += 1
            assert generate(device, "on") == wanted
    tried(failed_reads=failures)
    assert failures >= 2 * TOKENS * 3 // 2  # top-2 of three layers, few of them hits


def test_prefetch_reads_fail_as_well(many_experts: Path, emulated: Callable[..., Any]) -> None:
    """A guess that cannot be read is no error unless it is needed; either way the answers that come are right."""
    from colibri_sdk import emulator
    from colibri_sdk.boards import load_board
    from colibri_sdk.device import Device

    wanted = generate(emulated("host", many_experts), "on")
    arguments = ["--store", "block", "--cache-slots", "4", "--prefetch", "--fail-reads", "error"]
    board = load_board("host")
    failures = 0
    with emulator.start(board, storage=many_experts, arguments=arguments) as running, Device.open(running) as device:
        assert running.pid is not None
        for _ in range(40):
            os.kill(running.pid, signal.SIGUSR1)
            try:
                assert generate(device, "on") == wanted
            except DeviceError as error:
                assert error.status == Status.E_STORAGE
                failures += 1
            assert generate(device, "on") == wanted
    assert failures >= 1
