# SPDX-License-Identifier: Apache-2.0
"""The memory map of a model on a board: what is where, whether it fits, and remedies that do work."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import pytest

import checkpoints
from colibri_sdk.boards import load_board
from colibri_sdk.convert import QUANTISATIONS, pack
from colibri_sdk.engine import Library
from colibri_sdk.errors import EXIT_IMAGE, DeviceError, ImageError
from colibri_sdk.image.reader import ImageFile
from colibri_sdk.planning import CANARY_BYTES, HOST_BYTES, memory_map, repacked_bytes, require_fit
from colibri_sdk.status import Status
from colibri_sdk.store import StoreChoice

BOARD = load_board("hifive-unleashed")
RUNTIME = Path(__file__).resolve().parents[2] / "firmware" / "runtime"


@pytest.fixture(scope="module")
def library(host_library: Path) -> Library:
    return Library.load()


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    settings = checkpoints.config(max_position_embeddings=4096, hidden_size=64, head_dim=16, intermediate_size=96)
    return checkpoints.write(tmp_path_factory.mktemp("plan") / "m", settings)


@pytest.fixture(scope="module")
def image(source: Path, library: Library) -> Path:
    out = source.parent / "f16.colibri"
    pack(source, out, quant="f16", kv="f32")
    return out


def test_the_runtimes_canary_is_the_one_that_is_planned() -> None:
    text = (RUNTIME / "service.h").read_text()
    match = re.search(r"#define SERVICE_CANARY_BYTES (\d+)u", text)
    assert match is not None and int(match[1]) == CANARY_BYTES


@pytest.mark.parametrize("choice", [StoreChoice("memory"), StoreChoice("block", 1), StoreChoice("auto")], ids=str)
def test_the_device_agrees_to_the_byte(image: Path, library: Library, choice: StoreChoice) -> None:
    """The runtime as a process with this much memory, which loads the image as from a card; then with a byte less."""
    from colibri_sdk import emulator
    from colibri_sdk.build import build
    from colibri_sdk.device import Device

    host = load_board("host")
    firmware = build(host)
    whole = memory_map(BOARD, image, 1 << 30, library, choice=choice)
    for limit in (whole.needed_bytes, whole.needed_bytes - 1):
        foretold = memory_map(BOARD, image, limit, library, choice=choice)
        arguments = ["--block", str(image), "--arena-limit", str(limit), "--store", choice.store]
        arguments += ["--cache-slots", str(choice.cache_slots)] if choice.cache_slots else []
        with (
            emulator.start(host, firmware=firmware, arguments=arguments) as process,
            Device.open(process, timeout=30) as device,
        ):
            device.wait_for_model()
            info = device.info()
        assert info.status == (Status.OK if foretold.fits else Status.E_MODEL_TOO_LARGE), info
        assert foretold.fits == (limit == whole.needed_bytes or choice.store == "auto")
        if foretold.fits:
            assert (info.store, info.cache_slots) == (foretold.store, foretold.plan.cache_slots)
            assert (info.slot_bytes, info.arena_bytes) == (foretold.plan.slot_bytes, foretold.plan.arena_bytes)


def test_a_byte_less_than_all_is_block_with_slots(image: Path, library: Library) -> None:
    """The arena takes what the image leaves; one slot more would not fit."""
    whole = memory_map(BOARD, image, 1 << 30, library, choice=StoreChoice("auto"))
    assert (whole.store, whole.loaded_bytes, whole.plan.cache_slots) == ("memory", whole.plan.image_bytes, 0)
    least = memory_map(BOARD, image, 1 << 30, library, choice=StoreChoice("block", 1))
    for available in range(least.needed_bytes, whole.needed_bytes, 5_000):
        auto = memory_map(BOARD, image, available, library, choice=StoreChoice("auto"))
        assert auto.fits and auto.store == "block" and auto.loaded_bytes == auto.plan.front_bytes
        more = StoreChoice("block", auto.plan.cache_slots + 1)
        slots = memory_map(BOARD, image, 1 << 30, library, choice=more).plan.cache_slots
        assert slots == auto.plan.cache_slots or not memory_map(BOARD, image, available, library, choice=more).fits
    assert not memory_map(BOARD, image, least.needed_bytes - 1, library, choice=StoreChoice("auto")).fits


def test_a_limit_counts_like_less_memory(image: Path, library: Library) -> None:
    scratch = library.constants["COLIBRI_SELFTEST_BYTES"]
    needed = memory_map(BOARD, image, 1 << 30, library).needed_bytes
    for limit in (needed - scratch, needed - scratch - 64):
        choice = StoreChoice("memory", memory_limit=limit)
        limited = memory_map(BOARD, image, 1 << 30, library, choice=choice)
        assert limited.fits == (limit == needed - scratch)
        assert limited.areas == memory_map(BOARD, image, 1 << 30, library).areas


def test_reading_experts_from_the_card_is_a_remedy(image: Path, library: Library) -> None:
    whole = memory_map(BOARD, image, 1 << 30, library)
    (remedy,) = [
        one for one in memory_map(BOARD, image, whole.needed_bytes - 1, library).remedies if "card" in one.text
    ]
    slots = int(remedy.text.split()[-1])
    promised = memory_map(BOARD, image, whole.needed_bytes - 1, library, choice=StoreChoice("block", slots))
    assert promised.fits and promised.needed_bytes == remedy.needed_bytes
    most = StoreChoice("block", 99)
    short = memory_map(BOARD, image, 1 << 30, library, choice=most).needed_bytes - 1
    assert "keep fewer experts" in memory_map(BOARD, image, short, library, choice=most).remedies[-1].text


def test_it_fits_to_the_byte(image: Path, library: Library) -> None:
    needed = memory_map(BOARD, image, 1 << 30, library).needed_bytes
    exact = memory_map(BOARD, image, needed, library)
    assert exact.fits and exact.free_bytes == 0 and exact.remedies == ()
    short = memory_map(BOARD, image, needed - 1, library)
    assert not short.fits and short.short_bytes == 1 and short.remedies


def test_areas_follow_each_other_and_fill_the_memory(image: Path, library: Library) -> None:
    assert BOARD.memory is not None
    available = 200 << 20
    result = memory_map(BOARD, image, available, library)
    at = BOARD.memory.ram.base
    for area in result.areas[:-1]:
        assert area.address is not None
        assert 0 <= area.address - at < 64, area  # alignment alone may leave a gap
        at = area.address + area.bytes
    last = result.areas[-1]
    assert last.address is not None and last.address >= at
    assert last.address + last.bytes == BOARD.memory.ram.end
    names = [area.name for area in result.areas]
    assert names[0] == "firmware" and "arena: kv cache" in names
    assert result.areas[1].address == BOARD.memory.ram.end - available


@pytest.mark.parametrize("store", ["auto", "memory"])
def test_the_host_maps_the_image_and_agrees_to_the_byte(image: Path, library: Library, store: str) -> None:
    """The image was counted as loaded, and experts were said to be read where a limit was below it."""
    from colibri_sdk import emulator
    from colibri_sdk.build import build
    from colibri_sdk.device import Device

    host = load_board("host")
    firmware = build(host)
    choice = StoreChoice(store)
    whole = memory_map(host, image, HOST_BYTES, library, choice=choice)
    assert (whole.store, whole.loaded_bytes) == ("mapped", 0)
    for limit in (whole.needed_bytes, whole.needed_bytes - 1):
        foretold = memory_map(host, image, limit, library, choice=choice)
        assert foretold.fits == (limit == whole.needed_bytes) and foretold.store == "mapped"
        arguments = ["--arena-limit", str(limit), "--store", store]
        with (
            emulator.start(host, firmware=firmware, storage=image, arguments=arguments) as process,
            Device.open(process, timeout=30) as device,
        ):
            info = device.info()
            assert info.status == (Status.OK if foretold.fits else Status.E_MODEL_TOO_LARGE), info
            if not foretold.fits:
                continue
            assert (info.store, info.arena_bytes) == ("mapped", foretold.plan.arena_bytes)
            for less in (0, library.constants["COLIBRI_ARENA_ALIGN"]):
                asked = limit - library.constants["COLIBRI_SELFTEST_BYTES"] - less
                limited = StoreChoice(store, memory_limit=asked)
                assert memory_map(host, image, HOST_BYTES, library, choice=limited).fits == (less == 0)
                with contextlib.nullcontext() if less == 0 else pytest.raises(DeviceError, match=str(asked)):
                    limited.configure(device)


def test_the_hosts_memory_is_the_one_that_is_planned() -> None:
    text = (RUNTIME.parents[1] / "host_tools" / "host_board" / "main.c").read_text()
    match = re.search(r"#define DEFAULT_MEMORY \((\d+)ull << (\d+)\)", text)
    assert match is not None and int(match[1]) << int(match[2]) == HOST_BYTES


def test_what_would_help_the_host(image: Path, library: Library) -> None:
    """The image takes none of its memory: neither a smaller one nor its experts' slots make room."""
    host = load_board("host")
    needed = memory_map(host, image, HOST_BYTES, library).needed_bytes
    remedies = memory_map(host, image, needed - 300_000, library).remedies
    assert [one.text.split()[2] for one in remedies] == ["--kv", "--context"]
    context = int(remedies[1].text.split()[3].rstrip(","))
    promised = memory_map(host, image, needed - 300_000, library, context=context)
    assert promised.fits and promised.needed_bytes == remedies[1].needed_bytes
    assert not memory_map(host, image, needed - 300_000, library, context=context + 64).fits
    (last,) = memory_map(host, image, 10_000, library).remedies
    assert "more memory" in last.text and last.needed_bytes == needed
    assert all(area.address is None for area in memory_map(host, image, needed, library).areas)


def test_remedies_are_true(source: Path, image: Path, library: Library, tmp_path: Path) -> None:
    """Each remedy is followed, and the result then needs what was promised, the card's page aside."""
    plan = library.plan(image)
    full = memory_map(BOARD, image, 1 << 30, library).needed_bytes
    result = memory_map(BOARD, image, full - 500_000, library)
    packed = [remedy for remedy in result.remedies if remedy.text.startswith("pack")]
    assert [remedy.text.split()[2] for remedy in packed] == ["--kv", "--context"]
    for index, remedy in enumerate(packed):
        words = remedy.text.replace(",", "").split()
        options: dict[str, object] = {"quant": "f16", "kv": "f32", words[2].removeprefix("--"): words[3]}
        options["context"] = int(str(options.get("context", plan.context)))
        out = tmp_path / f"{index}.colibri"
        pack(source, out, **options)  # type: ignore[arg-type]
        again = memory_map(BOARD, out, full - 500_000, library)
        assert again.fits
        assert abs(again.needed_bytes - remedy.needed_bytes) <= 4096


def test_the_largest_context_is_the_largest(image: Path, library: Library) -> None:
    available = memory_map(BOARD, image, 1 << 30, library).needed_bytes - 300_000
    remedies = memory_map(BOARD, image, available, library).remedies
    text = next(remedy.text for remedy in remedies if "--context" in remedy.text)
    context = int(text.split()[3].rstrip(","))
    assert memory_map(BOARD, image, available, library, context=context + 64).short_bytes > 0


@pytest.mark.parametrize("quant", QUANTISATIONS)
def test_size_of_other_quantisations_is_foretold(source: Path, image: Path, tmp_path: Path, quant: str) -> None:
    report = pack(source, tmp_path / "m.colibri", quant=quant)
    with ImageFile(image) as file:
        assert abs(repacked_bytes(file, quant) - report.image_bytes) <= 4096


def test_quantisation_is_a_remedy_for_weights(image: Path, library: Library) -> None:
    with ImageFile(image) as file:
        saved = file.image_bytes - repacked_bytes(file, "q8")
    needed = memory_map(BOARD, image, 1 << 30, library, context=1).needed_bytes
    result = memory_map(BOARD, image, needed - saved, library, context=1)
    assert [remedy.text for remedy in result.remedies if "pack" in remedy.text] == ["pack with --quant q8"]


def test_a_model_that_is_too_large_says_so(image: Path, library: Library) -> None:
    result = memory_map(BOARD, image, 10_000, library)
    assert len(result.remedies) == 1 and "more memory" in result.remedies[0].text
    with pytest.raises(ImageError, match="bytes on hifive-unleashed") as caught:
        require_fit(result)
    assert caught.value.exit_code == EXIT_IMAGE
    assert caught.value.got - caught.value.wanted == result.short_bytes
    require_fit(memory_map(BOARD, image, 1 << 30, library))
