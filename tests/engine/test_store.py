# SPDX-License-Identifier: Apache-2.0
"""Experts read on demand: the same bits as from memory whatever is kept, guessed, late, failed or replaced."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import checkpoints
from colibri_sdk.convert import pack
from colibri_sdk.engine import Engine, Finish, Library, Read, Route
from colibri_sdk.errors import ColibriError, DeviceError
from colibri_sdk.image.layout import SectionKind
from colibri_sdk.image.reader import ImageFile
from colibri_sdk.status import Status
from engine_programs import ANSWER, PROMPT, engine_program, prompt
from forge import Forge
from kernel_programs import TOOLCHAINS
from made_once import MadeOnce
from slow_storage import SlowStorage
from store_rule import Rule

PARITY = Path(__file__).resolve().parents[1] / "parity"
TINY = sorted(path.parent.name for path in PARITY.glob("*/reference.json"))
IDS = [int(one) for one in np.random.default_rng(4).integers(2, 45, 20)]
# Layers, experts, chosen experts.
SIZES = {"many": (3, 12, 3), "few": (2, 4, 2)}

Tiny = Callable[[str, str], Path]
Packed = Callable[[str], Path]


@pytest.fixture(scope="module")
def library(host_library: Path) -> Library:
    return Library.load(host_library)


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """make("mixtral-odd", "q8", **options of pack) -> image of a variant, or of one of SIZES."""
    directory = tmp_path_factory.mktemp("variants")

    @cache
    def once(name: str, quant: str = "q8", **options: Any) -> Path:
        out = directory / "-".join(["m", name, quant, *map(str, options.values())])
        source = PARITY / "variants" / name
        if name in SIZES:
            layers, experts, chosen = SIZES[name]
            settings = checkpoints.config(
                num_hidden_layers=layers, num_local_experts=experts, num_experts_per_tok=chosen
            )
            source = checkpoints.write(directory / name, settings, checkpoints.tensors(settings, seed=6))
        pack(source, out, quant=quant, **options)
        return out

    return once


@pytest.fixture(scope="module")
def many(make: Callable[..., Path]) -> Path:
    return make("many")


def answer(engine: Engine) -> str:
    return engine.generate(IDS, max_tokens=9, ignore_eos=True).logits_sha256


def brief(engine: Engine) -> str:
    return engine.generate(IDS[:9], max_tokens=6, ignore_eos=True).logits_sha256


def in_memory(library: Library, image: Path, **options: Any) -> str:
    return answer(Engine(library, image, **options))


def steps(routing: list[Route]) -> list[tuple[int, list[int]]]:
    """Layer and experts of each step of a run in batches of one token."""
    return [(route.layer, list(route.experts)) for route in routing]


# ---------------------------------------------------------------------------------------------------------------- bits


@pytest.mark.parametrize("kernels", ["scalar", None])
@pytest.mark.parametrize("name", ["many", "mixtral-odd", "deepseek_v2-odd"])
def test_bits_at_every_cache_size(library: Library, make: Callable[..., Path], name: str, kernels: str | None) -> None:
    """From one slot to all experts, with and without guesses, alone and in batches; reads end late and in any order."""
    image = make(name)
    experts = Engine(library, image).info.max_experts
    wanted = in_memory(library, image, kernels=kernels)
    for slots in range(1, experts + 1):
        for batch, prefetch, depth in ((1, False, 1), (1, True, 3), (16, False, 2), (16, True, 8)):
            storage = SlowStorage(image, depth=depth, seed=slots)
            engine = Engine(
                library,
                image,
                kernels=kernels,
                batch=batch,
                storage=storage,
                cache_slots=slots,
                prefetch=prefetch,
                skip_content_check=True,
            )
            assert answer(engine) == wanted
            assert engine.plan.cache_slots == slots
            assert storage.idle and storage.most <= depth
            assert engine.arena.guard_intact()


@pytest.mark.parametrize("name", TINY)
@pytest.mark.parametrize("quant", ["q4", "f32"])
def test_bits_of_every_architecture(library: Library, tiny: Tiny, name: str, quant: str) -> None:
    """Shared blocks, dense layers between, groups, biases: also models that have no experts at all."""
    image = tiny(name, quant)
    wanted = in_memory(library, image)
    for slots, prefetch in ((1, True), (2, False), (3, True)):
        engine = Engine(library, image, storage=SlowStorage(image), cache_slots=slots, prefetch=prefetch)
        assert answer(engine) == wanted


def test_experts_come_from_the_storage_alone(library: Library, many: Path) -> None:
    """Whatever stands at their places in memory. And what was read is compared with its CRC-32."""
    with ImageFile(many) as file:
        first = file.sections[SectionKind.EXPERTS].offset
    storage = SlowStorage(many)
    storage.data[first:] = bytes(len(storage.data) - first)
    engine = Engine(library, many, storage=storage, cache_slots=4)
    with pytest.raises(DeviceError) as error:
        answer(engine)
    assert error.value.status == Status.E_EXPERT_CHECKSUM
    assert error.value.got == zlib.crc32(bytes(storage.log[0].bytes)) != error.value.wanted


# ------------------------------------------------------------------------------------------------------------- counters


@pytest.mark.parametrize("slots", [1, 2, 3, 5, 11, 12])
def test_counters_are_those_of_the_rule(library: Library, many: Path, slots: int) -> None:
    """Replayed routing predicts what a run reads, layer by layer, to the byte."""
    storage = SlowStorage(many, patience=5)
    engine = Engine(library, many, batch=1, storage=storage, cache_slots=slots, trace_routing=True)
    answer(engine)
    answer(engine)  # the second begins with what the first has kept
    stats = engine.stats()
    rules = [Rule(engine.info.max_experts, slots) for _ in range(engine.info.layers)]
    hits, misses = np.zeros(engine.info.layers, int), np.zeros(engine.info.layers, int)
    for layer, experts in steps(engine.routing):
        assigned = rules[layer].step(experts)
        hits[layer] += sum(hit for _, _, hit in assigned)
        misses[layer] += sum(not hit for _, _, hit in assigned)
    assert stats.hits.tolist() == hits.tolist()
    assert stats.misses.tolist() == misses.tolist()
    assert misses.sum() == len(storage.log)
    read = [sum(one.bytes for one in storage.log if one.layer == layer) for layer in range(engine.info.layers)]
    assert stats.read_bytes.tolist() == read
    assert not stats.prefetched.any() and not stats.prefetch_used.any()
    assert stats.stall_ticks.all() and (stats.stall_ticks <= stats.expert_ticks).all()
    engine.clear_stats()
    assert not engine.stats().hits.any()


def test_pins_are_the_images(library: Library, many: Path, tmp_path: Path) -> None:
    """What the image pins stays, as the rule says; without pins the same run reads otherwise."""
    forged = Forge(many)
    forged.experts["pin"] = np.where(forged.experts["expert"] < 3, 3 - forged.experts["expert"], 0)
    forged.seal()
    forged.data.tofile(tmp_path / "pinned")
    misses = []
    for image, pins in ((many, []), (tmp_path / "pinned", [3, 2, 1])):
        options: dict[str, Any] = {"storage": SlowStorage(image), "cache_slots": 4, "trace_routing": True}
        engine = Engine(library, image, batch=1, **options)
        answer(engine)
        rules = [Rule(engine.info.max_experts, 4, pins) for _ in range(engine.info.layers)]
        wanted = np.zeros(engine.info.layers, int)
        for layer, experts in steps(engine.routing):
            wanted[layer] += sum(not hit for _, _, hit in rules[layer].step(experts))
        misses.append(engine.stats().misses.tolist())
        assert misses[-1] == wanted.tolist()
    assert misses[0] != misses[1]


def test_all_slots_read_each_expert_once(library: Library, many: Path) -> None:
    storage = SlowStorage(many)
    engine = Engine(library, many, storage=storage)
    assert engine.plan.cache_slots == engine.info.max_experts
    answer(engine)
    answer(engine)
    seen = [(read.layer, read.expert) for read in storage.log]
    assert len(seen) == len(set(seen))


def test_memory_counts_nothing(library: Library, many: Path) -> None:
    engine = Engine(library, many, cache_slots=3, prefetch=True)
    answer(engine)
    stats = engine.stats()
    assert not (stats.hits.any() or stats.misses.any() or stats.read_bytes.any() or stats.stall_ticks.any())
    assert (engine.plan.cache_slots, engine.plan.slot_bytes) == (0, 0)


def test_reads_begin_before_they_are_waited_for(library: Library, many: Path) -> None:
    """Three experts of a token, three slots, eight reads at once: all three are under way together, ascending."""
    storage = SlowStorage(many, depth=8, patience=50)
    engine = Engine(library, many, batch=1, storage=storage, cache_slots=3, skip_content_check=True)
    engine.forward(IDS[0])
    assert storage.most == 3
    for layer in range(engine.info.layers):
        experts = [read.expert for read in storage.log if read.layer == layer]
        assert experts == sorted(experts) and len(experts) == 3


# -------------------------------------------------------------------------------------------------------------- guesses


def test_hashed_routing_is_guessed_exactly(library: Library, make: Callable[..., Path]) -> None:
    """The router that needs no residual stream: every guess that was read is needed."""
    image = make("many", router="hash")
    storage = SlowStorage(image, depth=8, patience=0)
    engine = Engine(library, image, storage=storage, cache_slots=10, prefetch=True, batch=1)
    assert answer(engine) == in_memory(library, image)
    stats = engine.stats()
    assert stats.prefetched[0] == 0 and stats.prefetched[1:].all()
    assert stats.prefetch_used.tolist() == stats.prefetched.tolist()
    bytes_each = storage.log[0].bytes
    assert stats.read_bytes.sum() == (stats.misses.sum() + stats.prefetched.sum()) * bytes_each


def test_a_guess_whose_read_is_refused_is_no_prefetched_one(library: Library, make: Callable[..., Path]) -> None:
    """It is read again when the step needs it: a miss. All others were read and needed."""
    image = make("many", router="hash")
    storage = SlowStorage(image, depth=8, patience=0)
    engine = Engine(library, image, storage=storage, cache_slots=10, prefetch=True, batch=1)
    storage.refused[3] = Status.E_STORAGE  # behind the three experts of layer 0
    assert answer(engine) == in_memory(library, image)
    assert storage.log[3].layer == 1
    stats = engine.stats()
    assert stats.misses[1] == 1
    assert stats.prefetch_used.tolist() == stats.prefetched.tolist()


def test_guesses_are_the_next_routers_on_this_residual(library: Library, many: Path) -> None:
    """Some are right and some are wrong; both are counted, and nothing is guessed for a batch."""
    storage = SlowStorage(many, depth=8, patience=0)
    engine = Engine(library, many, storage=storage, cache_slots=10, prefetch=True)
    engine.prefill(IDS)
    assert not engine.stats().prefetched.any()
    for one in IDS:
        engine.forward(one)
    stats = engine.stats()
    assert 0 < stats.prefetch_used.sum() < stats.prefetched.sum()


@pytest.mark.parametrize("slots", [1, 2, 4])
def test_guesses_are_read_behind_what_the_layer_needs(library: Library, many: Path, slots: int) -> None:
    """Also behind what has no slot yet, because the layer has fewer slots than the token needs experts."""
    storage = SlowStorage(many, depth=8, patience=0)
    engine = Engine(library, many, batch=1, storage=storage, cache_slots=slots, prefetch=True)
    engine.forward(IDS[0])
    layers = [read.layer for read in storage.log]
    assert layers == sorted(layers)
    assert engine.stats().prefetched[1:].all()


# --------------------------------------------------------------------------------------------------------------- faults


def failed(_read: Read) -> tuple[int, int]:
    return Status.E_STORAGE, 0


def untrusted(read: Read) -> tuple[int, int]:
    return Status.E_SIGNATURE, zlib.crc32(read.to)


def flipped(read: Read) -> None:
    read.to[read.bytes // 3] ^= 0x10


def flipped_and_untrusted(read: Read) -> tuple[int, int]:
    """A storage that verifies digests: what is damaged has a wrong one, too, and nobody has signed it wrongly."""
    flipped(read)
    return untrusted(read)


def short(read: Read) -> None:
    read.to[read.bytes - 512 :] = bytes([0x5A]) * 512


FAULTS = {
    "failed": (failed, Status.E_STORAGE),
    "untrusted": (untrusted, Status.E_SIGNATURE),
    "flipped": (flipped, Status.E_EXPERT_CHECKSUM),
    "flipped and untrusted": (flipped_and_untrusted, Status.E_EXPERT_CHECKSUM),
    "short": (short, Status.E_EXPERT_CHECKSUM),
    "refused": (None, Status.E_STORAGE),
}


@pytest.mark.parametrize(("slots", "batch", "depth"), [(2, 1, 1), (4, 16, 4)])
@pytest.mark.parametrize("fault", FAULTS)
def test_every_read_may_fail(
    library: Library, many: Path, tried: Callable[..., None], fault: str, slots: int, batch: int, depth: int
) -> None:
    """The n-th read of a run, for every n: the error names layer and expert, and the next request is right."""
    happens, status = FAULTS[fault]
    wanted = brief(Engine(library, many))

    def fresh() -> tuple[Engine, SlowStorage]:
        storage = SlowStorage(many, depth=depth)
        options: dict[str, Any] = {"storage": storage, "cache_slots": slots, "batch": batch}
        return Engine(library, many, kernels="scalar", skip_content_check=True, **options), storage

    engine, storage = fresh()
    assert brief(engine) == wanted
    reads = storage.log
    assert len(reads) >= 25
    for n, failing in enumerate(reads):
        engine, storage = fresh()
        if happens is None:
            storage.refused[n] = status
        else:
            storage.faults[n] = happens
        with pytest.raises(DeviceError) as error:
            brief(engine)
        assert error.value.status == status
        assert error.value.where == f"layer {failing.layer} expert {failing.expert}"
        assert error.value.where in str(error.value)
        if status == Status.E_EXPERT_CHECKSUM:
            stored = storage.data[failing.offset : failing.offset + failing.bytes]
            assert error.value.wanted == zlib.crc32(stored) != error.value.got
        assert storage.idle
        assert brief(engine) == wanted
        assert engine.arena.guard_intact()
    tried(failed_reads=len(reads))


def test_every_read_may_fail_while_guessing(library: Library, many: Path, tried: Callable[..., None]) -> None:
    """A guess that fails and is not needed is no error; one that is needed is read again or is one."""
    wanted = brief(Engine(library, many))
    outcomes = {True: 0, False: 0}
    n = 0
    while sum(outcomes.values()) == n:
        storage = SlowStorage(many, depth=3, faults={n: failed})
        engine = Engine(
            library,
            many,
            batch=1,
            storage=storage,
            cache_slots=7,
            prefetch=True,
            kernels="scalar",
            skip_content_check=True,
        )
        try:
            assert brief(engine) == wanted
            if len(storage.log) <= n:
                break
            outcomes[True] += 1
        except DeviceError as error:
            assert error.status == Status.E_STORAGE
            outcomes[False] += 1
        assert storage.idle
        assert brief(engine) == wanted
        n += 1
    tried(failed_reads=n)
    assert n >= 30 and min(outcomes.values()) > 0


def test_a_storage_that_stays_broken(library: Library, many: Path) -> None:
    """Every read fails until the device is back."""
    storage = SlowStorage(many)
    engine = Engine(library, many, storage=storage, cache_slots=2, skip_content_check=True)
    storage.faults = dict.fromkeys(range(10_000), failed)
    for _ in range(20):
        with pytest.raises(DeviceError, match="layer 0 expert"):
            answer(engine)
        assert storage.idle
    storage.faults.clear()
    assert answer(engine) == in_memory(library, many)


def test_an_exception_of_the_storage_comes_through(library: Library, many: Path) -> None:
    storage = SlowStorage(many)

    def broken(_read: Read) -> None:
        raise ZeroDivisionError("of the storage")

    storage.faults[3] = broken
    engine = Engine(library, many, storage=storage, cache_slots=2, skip_content_check=True)
    with pytest.raises(ZeroDivisionError, match="of the storage"):
        answer(engine)
    assert answer(engine) == in_memory(library, many)


# --------------------------------------------------------------------------------------------------------------- cancel


@pytest.mark.parametrize("prefetch", [False, True])
def test_cancel_at_any_moment(library: Library, many: Path, prefetch: bool) -> None:
    """Also while reads are waited for: none is under way afterwards, and the next answer is whole."""
    calls = {"left": -1, "seen": 0}

    def poll() -> bool:
        calls["seen"] += 1
        calls["left"] -= 1
        return calls["left"] == 0

    storage = SlowStorage(many, patience=20, depth=3)
    engine = Engine(
        library, many, poll=poll, storage=storage, cache_slots=6, prefetch=prefetch, skip_content_check=True
    )
    wanted = in_memory(library, many)
    calls["seen"] = 0
    assert answer(engine) == wanted
    total = calls["seen"]
    assert total > 1000
    for n in [*range(1, 60), *range(60, total, total // 60)]:
        calls["left"] = n
        cut = engine.generate(IDS, max_tokens=9, ignore_eos=True)
        assert storage.idle
        if calls["left"] > 0:
            calls["left"] = -1  # the cache was warmer this time, and the answer came before
        else:
            assert cut.finish is Finish.CANCELLED
        if n % 5 == 0:
            assert answer(engine) == wanted
    assert answer(engine) == wanted


# --------------------------------------------------------------------------------------------------------------- memory


def test_the_plan_is_exact(library: Library, hummingbird: Packed) -> None:
    """The high-water mark is the plan's, to which slots add whole pages; statistics lie behind them."""
    image = hummingbird("q8")
    bare = library.plan(image)
    for slots in (1, 2, 5, 8, 100):
        storage = SlowStorage(image)
        engine = Engine(library, image, storage=storage, cache_slots=slots, skip_content_check=True)
        answer(engine)
        plan, stats = engine.plan, engine.stats()
        assert stats.arena_peak_bytes == stats.arena_bytes == plan.arena_bytes
        assert sum(region.bytes for region in plan.regions) == plan.arena_bytes
        region = {one.name: one for one in plan.regions}
        assert region["expert slots"].bytes - plan.slot_bytes < 4096
        assert plan.slot_bytes == min(slots, 8) * engine.info.layers * storage.log[0].bytes
        assert plan.cache_slots == min(slots, 8)
        assert plan.regions[-1].name == "statistics"
        assert plan.front_bytes < plan.image_bytes == image.stat().st_size
    assert bare.front_bytes == plan.front_bytes
    assert bare.cache_slots == bare.slot_bytes == 0


def test_slots_fill_what_the_arena_may_have(library: Library, hummingbird: Packed) -> None:
    """Automatic: the largest number whose plan is within the limit, to the byte."""
    image = hummingbird("q8")
    exact = {slots: library.plan(image, cache_slots=slots).arena_bytes for slots in range(1, 9)}
    assert library.plan(image, cache_slots=0).cache_slots == 8
    for slots in range(1, 9):
        for limit, found in ((exact[slots], slots), (exact[slots] - 1, slots - 1)):
            if found == 0:
                with pytest.raises(ColibriError) as error:
                    library.plan(image, cache_slots=0, arena_limit=limit)
                assert getattr(error.value, "status", 0) == Status.E_ARENA_SIZE
                assert (error.value.got, error.value.wanted) == (limit, exact[1])  # type: ignore[attr-defined]
                continue
            plan = library.plan(image, cache_slots=0, arena_limit=limit)
            assert plan.cache_slots == found
            assert plan.arena_bytes == exact[found]
    with pytest.raises(DeviceError, match="arena limit"):
        library.plan(image, cache_slots=5, arena_limit=exact[4])
    with pytest.raises(DeviceError, match="arena limit"):
        library.plan(image, arena_limit=100_000)


def test_storages_that_cannot_be(library: Library, hummingbird: Packed) -> None:
    image = hummingbird("q8")
    with pytest.raises(ColibriError, match=r"storage\.depth"):
        Engine(library, image, storage=SlowStorage(image, depth=9))
    config, _keep = library.config(cache_slots=1)
    ffi, lib = library.ffi, library.lib
    plain = Engine(library, image)  # its image and arena, for a configuration without functions
    handle, detail = ffi.new("struct colibri **"), library.detail()
    arguments = (plain._image.pointer, plain._image.bytes, config, plain.arena.pointer, plain.arena.bytes, detail)
    assert lib.colibri_init(handle, *arguments) == lib.COLIBRI_E_ARGUMENT
    assert ffi.string(detail.where) == b"storage"


# ---------------------------------------------------------------------------------------------------------- replacement


@dataclass(frozen=True)
class Pair:
    """An image, and other weights for its experts."""

    image: Path
    places: dict[tuple[int, int], tuple[int, int]]  # (layer, expert): offset in the image, bytes
    blobs: dict[tuple[int, int], bytes]

    def written(self, path: Path, changes: Iterable[tuple[int, int]]) -> Path:
        """The image with the other weights in the places of some experts."""
        data = bytearray(self.image.read_bytes())
        for one in changes:
            offset, length = self.places[one]
            data[offset : offset + length] = self.blobs[one]
        path.write_bytes(data)
        return path

    def replacement(self, storage: SlowStorage, layer: int, expert: int, generation: int) -> dict[str, int]:
        """Has the storage give the other weights for that generation, and says how the expert is to be replaced."""
        blob = self.blobs[layer, expert]
        storage.newer[layer, expert, generation] = blob
        return {"offset": self.places[layer, expert][0], "crc32": zlib.crc32(blob), "generation": generation}


@pytest.fixture(scope="module")
def pair(many: Path) -> Pair:
    """The other weights are those of the layer's experts in reverse."""
    with ImageFile(many) as file:
        start = file.sections[SectionKind.EXPERTS].offset
        entries = [(int(e["layer"]), int(e["expert"]), int(e["offset"]), int(e["bytes"])) for e in file.experts]
    places = {(layer, expert): (start + offset, length) for layer, expert, offset, length in entries}
    data = many.read_bytes()
    last = max(expert for _, expert in places)
    blobs = {}
    for layer, expert in places:
        offset, length = places[layer, last - expert]
        blobs[layer, expert] = data[offset : offset + length]
    return Pair(many, places, blobs)


def swapped(library: Library, pair: Pair, tmp_path: Path, *changes: tuple[int, int]) -> str:
    """The answer with the other weights in memory from the start."""
    return in_memory(library, pair.written(tmp_path / "swapped", changes), skip_content_check=True)


def test_a_replacement_counts_from_the_next_call_on(library: Library, pair: Pair, tmp_path: Path) -> None:
    """Its old copy in a slot is dropped; the rest of the cache stays."""
    storage = SlowStorage(pair.image)
    engine = Engine(library, pair.image, storage=storage, skip_content_check=True)
    assert answer(engine) == in_memory(library, pair.image)
    before = len(storage.log)
    expert = storage.log[0].expert
    digest = bytes(range(32))
    engine.replace_expert(0, expert, **pair.replacement(storage, 0, expert, 1), digest=digest)
    assert answer(engine) == swapped(library, pair, tmp_path, (0, expert))
    again = storage.log[before:]
    assert (again[0].layer, again[0].expert, again[0].generation, again[0].digest) == (0, expert, 1, digest)
    assert (0, expert) not in {(read.layer, read.expert) for read in again[1:]}


@pytest.mark.parametrize("moment", [1, 2, 9, 40, 55])
def test_no_token_sees_two_generations(library: Library, pair: Pair, tmp_path: Path, moment: int) -> None:
    """Replaced from the poll hook while a token is computed: it is still the old model's, the next is the new one's."""
    storage = SlowStorage(pair.image)
    changes = [(0, expert) for expert in range(0, 12, 2)] + [(1, expert) for expert in range(0, 12, 2)]
    calls = {"left": 0}

    def poll() -> bool:
        calls["left"] -= 1
        if calls["left"] == 0:
            for layer, expert in changes:
                engine.replace_expert(layer, expert, **pair.replacement(storage, layer, expert, 1))
        return False

    engine = Engine(library, pair.image, storage=storage, cache_slots=3, poll=poll, skip_content_check=True)
    path = pair.written(tmp_path / "changing", [])
    expected = Engine(library, path, skip_content_check=True)
    for index, one in enumerate(IDS[:6]):
        calls["left"] = moment if index == 2 else 0
        assert engine.forward(one).tobytes() == expected.forward(one).tobytes()
        assert calls["left"] <= 0
        if index == 2:
            pair.written(path, changes)  # the other engine sees its image change beneath it, between two tokens


def test_replacements_that_are_refused(library: Library, pair: Pair) -> None:
    storage = SlowStorage(pair.image)
    engine = Engine(library, pair.image, storage=storage, skip_content_check=True)
    offset = pair.places[0, 3][0]
    good = {"offset": offset, "crc32": 0, "generation": 1}
    for layer, expert, change in (
        (0, 12, {}),
        (99, 0, {}),
        (0, 0, {"offset": offset + 512}),
        (0, 0, {"offset": 4096}),
        (0, 0, {"offset": len(storage.data)}),
        (0, 0, {"offset": 2**64 - 4096}),
        (0, 0, {"generation": 0}),
    ):
        with pytest.raises(DeviceError) as error:
            engine.replace_expert(layer, expert, **{**good, **change})
        assert error.value.status == Status.E_ARGUMENT
    assert answer(engine) == in_memory(library, pair.image)


def test_generations_only_rise(library: Library, pair: Pair, tmp_path: Path) -> None:
    """Also while one waits: the later replaces it."""
    storage = SlowStorage(pair.image)
    engine = Engine(library, pair.image, storage=storage, skip_content_check=True)
    traced = Engine(library, pair.image, trace_routing=True)
    answer(traced)
    chosen = traced.routing[0].experts[0]
    wrong = {"offset": pair.places[0, 0][0], "crc32": 1, "generation": 3}
    right = pair.replacement(storage, 0, chosen, 7)
    engine.replace_expert(0, chosen, **wrong)
    for stale in (0, 2, 3):
        with pytest.raises(DeviceError):
            engine.replace_expert(0, chosen, **{**right, "generation": stale})
    engine.replace_expert(0, chosen, **right)
    assert answer(engine) == swapped(library, pair, tmp_path, (0, chosen))
    with pytest.raises(DeviceError):
        engine.replace_expert(0, chosen, **right)
    engine.replace_expert(0, chosen, **{**right, "generation": 8})


def test_as_many_may_wait_as_documented(library: Library, pair: Pair) -> None:
    engine = Engine(library, pair.image, storage=SlowStorage(pair.image), skip_content_check=True)
    most = library.constants["COLIBRI_MAX_REPLACEMENTS"]
    place = {"offset": pair.places[0, 0][0], "crc32": 0}
    for index in range(most):
        engine.replace_expert(1 + index // 12, index % 12, **place, generation=1)
    with pytest.raises(DeviceError) as error:
        engine.replace_expert(0, 0, **place, generation=1)
    assert error.value.status == Status.E_BUSY
    engine.replace_expert(1, 5, **place, generation=2)  # this one waits already
    with pytest.raises(DeviceError):
        answer(engine)  # their checksums are wrong; but they wait no longer
    engine.replace_expert(0, 0, **place, generation=1)


def test_replacing_in_memory(library: Library, pair: Pair, tmp_path: Path) -> None:
    """Without a storage: an expert is used at its new place, whatever stands in the old one."""
    engine = Engine(library, pair.image, trace_routing=True)
    before = answer(engine)
    chosen = engine.routing[0].experts[0]
    other = next(e for e in range(12) if e != chosen)
    data = bytearray(pair.image.read_bytes())
    offset, length = pair.places[0, chosen]
    from_ = pair.places[0, other][0]
    data[offset : offset + length] = data[from_ : from_ + length]
    (tmp_path / "copied.colibri").write_bytes(data)
    wanted = in_memory(library, tmp_path / "copied.colibri", skip_content_check=True)
    assert wanted != before
    engine.replace_expert(0, chosen, offset=from_, crc32=0, generation=1)
    assert answer(engine) == wanted
    engine.replace_expert(0, chosen, offset=offset, crc32=0, generation=2)
    assert answer(engine) == before


# -------------------------------------------------------------------------------------------- processors and sanitizers


@pytest.fixture(scope="module")
def built(once: MadeOnce) -> Callable[[str], Path]:
    return lambda target: engine_program(target, "store_trials", once)


@pytest.mark.parametrize(
    ("target", "quant", "stride"), [("sanitized", "q8", 1), ("aarch64", "q4", 4), ("riscv64", "f32", 6)]
)
def test_trials(
    library: Library, make: Callable[..., Path], built: Callable[[str], Path], target: str, quant: str, stride: int
) -> None:
    """All of the above once more in one program, on the boards' processors and with fences between all buffers."""
    image = make("few", quant)
    engine = Engine(library, image, kernels="scalar", context=PROMPT + ANSWER)
    wanted = engine.generate(prompt(engine.info.vocab), max_tokens=ANSWER, ignore_eos=True).logits_sha256
    out = TOOLCHAINS[target].run(built(target), "best", str(stride), image)
    digest, runs, faults, cancels = out.split()
    assert digest == wanted
    assert int(runs) == 4 * len(range(0, engine.info.max_experts, stride))
    assert int(faults) > 100 // stride and int(cancels) > 100 // stride
