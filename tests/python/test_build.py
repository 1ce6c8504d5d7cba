# SPDX-License-Identifier: Apache-2.0
"""The build: errors that say what is wrong, reports that can be trusted, a library that can be installed and used."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from bringup import symbols
from colibri_sdk import paths
from colibri_sdk.boards import load_board
from colibri_sdk.build import Firmware, build_host_library, first_errors, run_scons
from colibri_sdk.errors import BuildError

FIRMWARE_BOARDS = ["rpi3", "virt-aarch64", "virt-riscv64", "hifive-unleashed"]


@pytest.fixture(scope="module")
def site_scons(repo_root: Path) -> Callable[[str], ModuleType]:
    """Imports a module of the build."""

    def load(name: str) -> ModuleType:
        sys.path.insert(0, str(repo_root / "site_scons"))
        try:
            return __import__(name)
        finally:
            sys.path.remove(str(repo_root / "site_scons"))

    return load


def test_unknown_target_lists_the_known_ones() -> None:
    with pytest.raises(BuildError, match="nothing is called 'rpi9'") as caught:
        run_scons(["rpi9"])
    assert "rpi3" in caught.value.message
    assert caught.value.log


def test_first_errors_are_the_compilers() -> None:
    lines = ["compile a.o", "a.c:1:2: error: expected ';'", "scons: *** [a.o] Error 1", "noise"]
    assert first_errors(lines) == lines[1:3]
    assert first_errors(["only noise"]) == ["only noise"]


@pytest.mark.parametrize("name", FIRMWARE_BOARDS)
def test_firmware_links_nothing_but_itself(name: str, firmware: Callable[[str], Firmware]) -> None:
    from elftools.elf.elffile import ELFFile

    with firmware(name).elf.open("rb") as file:
        elf = ELFFile(file)
        assert elf["e_type"] == "ET_EXEC"
        undefined = [
            symbol.name
            for symbol in elf.get_section_by_name(".symtab").iter_symbols()
            if symbol["st_shndx"] == "SHN_UNDEF" and symbol.name
        ]
        assert undefined == []
        for segment in elf.iter_segments("PT_LOAD"):
            assert segment["p_flags"] & 3 != 3, "a segment is writable and executable"
        assert elf["e_entry"] == symbols(firmware(name).elf)["_start"][0]


@pytest.mark.parametrize("name", FIRMWARE_BOARDS)
def test_report_agrees_with_the_systems_own_tool(name: str, firmware: Callable[[str], Firmware]) -> None:
    built = firmware(name)
    prefix = {"aarch64": "aarch64-linux-gnu-", "riscv64": "riscv64-unknown-elf-"}[load_board(name).architecture]
    listing = subprocess.run(
        [f"{prefix}size", "-A", str(built.elf)], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    sizes = {line.split()[0]: int(line.split()[1]) for line in listing.splitlines() if line.startswith(".")}
    for section in ("text", "rodata", "data", "bss"):
        assert built.report[section] == sizes[f".{section}"]
    assert 0 < built.report["engine_text"] <= 65536
    assert built.report["stack_worst"] is not None
    assert 0 < built.report["stack_worst"] <= built.report["stack_bytes"]
    assert built.report["fault_stack_worst"] <= built.report["fault_stack_bytes"]
    marks = symbols(built.elf)
    assert built.report["memory_bytes"] == marks["hal_ram_end"][0] - marks["hal_memory_start"][0]
    assert json.loads((built.elf.parent / "report.json").read_text()) == built.report


def test_too_large_an_engine_or_stack_fails_the_build(site_scons: Callable[[str], ModuleType]) -> None:
    report: dict[str, Any] = {
        "engine_text": 65536,
        "stack_worst": 100,
        "stack_bytes": 100,
        "fault_stack_worst": None,
        "fault_stack_bytes": 100,
    }
    over_limits = site_scons("firmware_report").over_limits
    assert over_limits(report) == []
    assert "engine's text" in over_limits({**report, "engine_text": 65537})[0]
    assert "stack_worst" in over_limits({**report, "stack_worst": 101})[0]


PROGRAM = """
void leaf(volatile char *p) {{ volatile char big[1000]; big[0] = *p; p[0] = big[0]; }}
static void other(volatile char *p) {{ volatile char big[3000]; big[0] = *p; p[0] = big[0]; }}
void (*table[])(volatile char *) = {{ other }};
void middle(volatile char *p) {{ volatile char big[500]; leaf(big); p[0] = big[0]; }}
void entry(volatile char *p) {{ middle(p); {call} }}
void again(volatile char *p) {{ if (*p) {{ again(p + 1); *p = 0; }} }}
"""


@pytest.mark.parametrize("prefix", ["aarch64-linux-gnu-", "riscv64-unknown-elf-"])
@pytest.mark.parametrize(
    ("call", "least", "most"),
    [
        # 500 + 1000 directly; the function that is only reached through a pointer adds its 3000.
        ("", 1500 + 3000, 1500 + 3000 + 300),
        ("table[0](p);", 1500 + 3000, 1500 + 3000 + 300),
        ("again(p);", None, None),
    ],
    ids=["direct", "indirect", "recursive"],
)
def test_stack_bound_adds_up_frames(
    prefix: str,
    call: str,
    least: int | None,
    most: int | None,
    site_scons: Callable[[str], ModuleType],
    tmp_path: Path,
) -> None:
    source = tmp_path / "program.c"
    source.write_text(PROGRAM.format(call=call))
    subprocess.run(
        [
            *(f"{prefix}gcc", "-O1", "-fno-inline", "-fno-optimize-sibling-calls", "-ffreestanding"),
            *(
                "-ffunction-sections",
                "-fno-stack-protector",
                "-fcallgraph-info=su",
                "-c",
                "program.c",
                "-o",
                "program.o",
            ),
        ],
        cwd=tmp_path,
        check=True,
        timeout=60,
    )
    bound = site_scons("stack_usage").analyse([tmp_path / "program.o"], ["entry"])["entry"]
    if least is None or most is None:
        assert bound is None
    else:
        assert least <= bound <= most


@pytest.mark.parametrize("name", FIRMWARE_BOARDS)
def test_what_is_up_to_date_is_not_made_again(name: str, firmware: Callable[[str], Firmware]) -> None:
    """The report, too, which is measured from all objects."""
    assert firmware(name).report["board"] == name
    assert run_scons([name]) == f"scons: `{name}' is up to date."


def test_less_memory_and_a_key_change_one_object_each(firmware: Callable[[str], Firmware], public_key: Path) -> None:
    assert firmware("hifive-unleashed").elf.exists()
    log = run_scons(["-n", "hifive-unleashed", "MEMORY=80M", f"PUBLIC_KEY={public_key}"])
    compiled = [Path(line.split()[1]).name for line in log.splitlines() if line.startswith("compile ")]
    assert sorted(compiled) == ["board.o", "trust.o"]  # in whatever order two jobs begin them


def test_compile_commands_are_written(repo_root: Path) -> None:
    build_host_library()
    run_scons(["compile_commands.json"])
    entries = json.loads((repo_root / "compile_commands.json").read_text())
    files = {entry["file"] for entry in entries}
    assert any(file.endswith("firmware/engine/session.c") for file in files)


def test_numeric_contract_is_in_every_compile_command(tmp_path: Path) -> None:
    """One file compiled with contraction would be enough to lose the same bits on all boards."""
    log = run_scons(["BUILD_DIR=" + str(tmp_path / "build"), "-n", "boards", "host", "VERBOSE=1"])
    commands = [line for line in log.splitlines() if " -c " in line and line.endswith(".c")]
    assert len(commands) > 200
    for command in commands:
        assert "-ffp-contract=off" in command
        assert "-Werror" in command or command.endswith("monocypher/monocypher.c")  # which is not ours
        assert "-mfma" not in command
        assert "-ffast-math" not in command


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `scons install` puts under a prefix."""
    prefix = tmp_path_factory.mktemp("prefix")
    run_scons(["install", f"PREFIX={prefix}"])
    return prefix


def test_installed_header_and_package_agree_on_the_version(installed: Path) -> None:
    header = (installed / "include" / "colibri.h").read_text()
    package = (installed / "lib" / "pkgconfig" / "colibri.pc").read_text()
    major = re.search(r"API_MAJOR (\d+)", header)
    minor = re.search(r"API_MINOR (\d+)", header)
    assert major and minor
    assert f"Version: {major[1]}.{minor[1]}." in package
    library = installed / "lib" / "libcolibri.so"
    dynamic = subprocess.run(["readelf", "-d", str(library)], capture_output=True, text=True, check=True, timeout=60)
    soname = re.search(r"SONAME.*\[(.*?)\]", dynamic.stdout)
    assert soname and soname[1] == f"libcolibri.so.{major[1]}"
    assert (installed / "lib" / soname[1]).resolve() == library.resolve()


def test_library_needs_nothing_but_libc(installed: Path) -> None:
    listing = subprocess.run(
        ["readelf", "-d", str(installed / "lib" / "libcolibri.so")], capture_output=True, text=True, check=True
    ).stdout
    needed = re.findall(r"NEEDED.*\[(.*?)\]", listing)
    assert all(name.startswith("libc.so") for name in needed), needed


def test_build_directory_can_be_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLIBRI_BUILD_DIR", str(tmp_path / "out"))
    assert paths.build_dir() == tmp_path / "out"
    library = build_host_library()
    assert library == tmp_path / "out" / "host" / "libcolibri.so"
    assert library.is_file()
