# SPDX-License-Identifier: Apache-2.0
"""Fixtures that several parts of the suite share: what takes long is built once in a session.

repo_root           the checkout
once                made_once.MadeOnce of this run
host_library        path of libcolibri for this machine, built once
sim_library         the runtime with the fake engine in virtual time, for link.virtual
hummingbird         hummingbird("q8") -> path of the packed demo model, packed once for each quantisation
tiny_mixtral        tiny_mixtral("f32") -> path of the packed random checkpoint of tests/parity/mixtral
tiny                tiny("gpt_oss", "q8") -> the same of any checkpoint there, a directory for each architecture
images              by name, those of update_images.py; not to be changed
answers             what each of them must answer
public_key          file of the public half of fixed_key.KEY, for boards that trust it
firmware            firmware("rpi3") -> the board's firmware, built once
emulated            emulated("rpi3", image) -> a Device on an emulated board that was just booted; all are ended
                    with the test, and a failing test's report shows what the board printed on its console
tried               tried(cuts=12) -> the end of the run says how many of these were tried, summed over a test's cases
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

import campaigns
from colibri_sdk.errors import ColibriError
from made_once import MadeOnce

if TYPE_CHECKING:
    from colibri_sdk.build import Firmware
    from colibri_sdk.device import Device

ROOT = Path(__file__).resolve().parent.parent
CONSOLES = pytest.StashKey[list[tuple[str, Callable[[], bytes]]]]()

# What a failure shows of a console: its end.
CONSOLE_BYTES = 16_384

PackModel = Callable[[str], Path]

# The same examples in every run: what a commit is worth does not depend on the draw. `--hypothesis-profile=default`
# draws others.
settings.register_profile("same", derandomize=True)
settings.load_profile("same")


def pytest_configure() -> None:
    """A shell ignores Ctrl-C for what it runs in the background, and children inherit that; tests send it to them.

    Whoever ends the run otherwise wants it to end in order, too: with its emulated boards.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # which nohup does
        signal.signal(signal.SIGHUP, signal.default_int_handler)


@pytest.fixture(scope="session")
def repo_root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> MadeOnce:
    return MadeOnce(tmp_path_factory)


@pytest.fixture(scope="session")
def host_library() -> Path:
    from colibri_sdk.build import build_host_library

    return build_host_library()


@pytest.fixture(scope="session")
def sim_library(once: MadeOnce) -> Path:
    from link import native

    def make(directory: Path) -> None:
        sources = [native.HERE / "sim.c", *native.runtime_sources(), *native.FAKE_ENGINE]
        native.compile_c(directory / "sim.so", sources, native.UNDEFINED)

    return once("sim", make) / "sim.so"


def _packer(source: Path, directory: Path) -> PackModel:
    @cache
    def pack_once(quant: str = "q8") -> Path:
        from colibri_sdk.convert import pack

        out = directory / f"{source.name}-{quant}.colibri"
        pack(source, out, quant=quant)
        return out

    return pack_once


@pytest.fixture(scope="session")
def hummingbird(tmp_path_factory: pytest.TempPathFactory) -> PackModel:
    return _packer(ROOT / "models" / "hummingbird", tmp_path_factory.mktemp("hummingbird"))


@pytest.fixture(scope="session")
def tiny_mixtral(tmp_path_factory: pytest.TempPathFactory) -> PackModel:
    return _packer(ROOT / "tests" / "parity" / "mixtral", tmp_path_factory.mktemp("mixtral"))


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    directory = tmp_path_factory.mktemp("tiny")
    packers: dict[str, PackModel] = {}

    def pack_once(name: str, quant: str) -> Path:
        packer = packers.setdefault(name, _packer(ROOT / "tests" / "parity" / name, directory))
        return packer(quant)

    return pack_once


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    from update_images import make_images

    return make_images(tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="session")
def answers(images: dict[str, Path]) -> dict[str, str]:
    from update_bench import expected_answers

    return expected_answers(images)


@pytest.fixture(scope="session")
def public_key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from fixed_key import KEY

    path = tmp_path_factory.mktemp("keys") / "test.public.json"
    KEY.public.save(path)
    return path


@pytest.fixture(scope="session")
def firmware() -> Callable[[str], Firmware]:
    @cache
    def build_once(name: str) -> Firmware:
        from colibri_sdk.boards import load_board
        from colibri_sdk.build import build

        return build(load_board(name))

    return build_once


@pytest.fixture
def emulated(
    request: pytest.FixtureRequest, tmp_path: Path, firmware: Callable[[str], Firmware]
) -> Iterator[Callable[..., Device]]:
    """emulated(board, image, **options of emulator.start) -> Device, its model loaded."""
    from colibri_sdk import targets
    from colibri_sdk.boards import load_board

    consoles: list[tuple[str, Callable[[], bytes]]] = []
    request.node.stash[CONSOLES] = consoles
    with ExitStack() as running:

        def start(name: str, image: Path, **options: Any) -> Device:
            directory = tmp_path / f"{name}-{len(consoles)}"
            target = running.enter_context(
                targets.emulated(load_board(name), image, directory=directory, firmware=firmware(name), **options)
            )
            assert target.emulator is not None
            consoles.append((name, target.emulator.console_output))
            return target.device

        yield start


@pytest.fixture
def tried(record_property: Callable[[str, object], None]) -> Callable[..., None]:
    def say(**numbers: int) -> None:
        record_property(campaigns.TRIED, numbers)

    return say


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--size-table", action="store_true", help="End with the size and memory table of each board.")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, exitstatus: int, config: pytest.Config) -> None:
    """Before the last line, so that this stays the last one."""
    reports = [report for kind in ("passed", "failed") for report in terminalreporter.stats.get(kind, [])]
    lines = list(campaigns.lines(reports))
    if lines:
        terminalreporter.section("faults and power cuts that were tried")
    for line in lines:
        terminalreporter.write_line(line)
    # Builds the boards: not for a run that was to end.
    if not config.getoption("--size-table") or exitstatus == pytest.ExitCode.INTERRUPTED:
        return
    terminalreporter.section("size and memory of each board, bytes")
    try:
        for line in _size_table():
            terminalreporter.write_line(line)
    except ColibriError as error:
        terminalreporter.write_line(f"no table: {error}")


def _size_table() -> Iterator[str]:
    """The firmware of every board, and the memory it has with the demo model."""
    from colibri_sdk import targets
    from colibri_sdk.boards import list_boards
    from colibri_sdk.build import build
    from colibri_sdk.cli import output
    from colibri_sdk.cli.build import HEADERS, RIGHT, size_rows
    from colibri_sdk.planning import plan_board

    boards = [board for board in list_boards() if not board.is_host]
    yield from output.plain_table(HEADERS, size_rows([build(board).report for board in boards]), RIGHT)
    image = targets.image_for(ROOT / "models" / "hummingbird", quant="q8")
    yield ""
    rows = []
    for board in boards:
        plan = plan_board(board, image)
        numbers = (plan.plan.image_bytes, plan.plan.arena_bytes, plan.needed_bytes, plan.free_bytes)
        rows.append([board.name, *map(output.count, numbers)])
    yield from output.plain_table(("with hummingbird q8", "image", "arena", "needed", "free"), rows, "lrrrr")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    report = yield
    if report.failed:
        for name, console in item.stash.get(CONSOLES, []):
            text = console()[-CONSOLE_BYTES:].decode("utf-8", "backslashreplace")
            report.sections.append((f"console of {name}", text))
    return report
