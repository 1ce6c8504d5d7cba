# SPDX-License-Identifier: Apache-2.0
"""Builds firmware and host programs by running SCons with the interpreter that runs this.

Builds take turns: SCons keeps one database per build directory, and the compilers of two builds would fight for the
machine anyway.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from colibri_sdk import paths
from colibri_sdk.errors import BuildError

if TYPE_CHECKING:
    from colibri_sdk.boards import Board

Log = Callable[[str], None]

LOCK_SECONDS = 1800.0  # as long as a whole build of everything may take on a slow machine
SHOWN_ERRORS = 8


@dataclass(frozen=True)
class Firmware:
    """What a build made. `binary` is the raw image of boards that boot one. `report` is build/BOARD/report.json:
    sizes in bytes, and stack_worst None when it has no bound; empty for the host."""

    elf: Path
    binary: Path | None
    report: dict[str, Any]


def build(board: Board, *, jobs: int = 2, log: Log | None = None) -> Firmware:
    """The board's firmware, built when it is not up to date. `log` gets each line that the tools print."""
    options = [f"MEMORY={board.memory_label}"] if board.memory_label else []
    if board.public_key is not None:
        options.append(f"PUBLIC_KEY={board.public_key}")
    run_scons([board.name, *options], jobs=jobs, log=log)
    directory = paths.build_dir() / board.build_name
    if board.is_host:
        return Firmware(directory / board.emulator.program, None, {})
    binary = directory / board.flash.firmware_file if board.flash.firmware_file else directory / "firmware.bin"
    report = json.loads((directory / "report.json").read_text("utf-8"))
    return Firmware(directory / "firmware.elf", binary, report)


def build_bringup(board: Board, *, jobs: int = 2, log: Log | None = None) -> Firmware:
    """The board's bring-up check program (tests/qemu/bringup/)."""
    run_scons([f"{board.name}-bringup"], jobs=jobs, log=log)
    directory = paths.build_dir() / board.name
    return Firmware(
        directory / "bringup.elf", directory / "bringup" / (board.flash.firmware_file or "firmware.bin"), {}
    )


def build_monocypher(*, log: Log | None = None) -> Path:
    """The directory of monocypher.c and monocypher.h, which the device's runtime is built with."""
    directory = paths.build_dir() / "monocypher"
    run_scons(["monocypher"], log=log)
    return directory


def build_host_library(*, jobs: int = 2, log: Log | None = None) -> Path:
    """Path of libcolibri.so for this machine."""
    library = paths.build_dir() / "host" / "libcolibri.so"
    run_scons([str(_for_scons(library))], jobs=jobs, log=log)
    return library


def _for_scons(path: Path) -> Path:
    root = paths.repo_root()
    return path.relative_to(root) if path.is_relative_to(root) else path


def run_scons(arguments: Sequence[str], *, jobs: int = 2, log: Log | None = None) -> str:
    """Runs SCons with targets and options; returns what it printed. BuildError has the first errors and all output."""
    from filelock import FileLock, Timeout

    root = paths.repo_root()
    out = _for_scons(paths.build_dir())
    command = [sys.executable, "-m", "SCons", "-Q", f"-j{jobs}", f"BUILD_DIR={out}", *arguments]
    paths.build_dir().mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(paths.build_dir() / ".lock", timeout=LOCK_SECONDS):
            return _run(command, root, log)
    except Timeout as error:
        raise BuildError(
            f"another build has held {paths.build_dir() / '.lock'} for {LOCK_SECONDS:.0f} seconds",
            "Wait for it, or end it if it hangs.",
        ) from error


def _run(command: Sequence[str], root: Path, log: Log | None) -> str:
    lines: list[str] = []
    with subprocess.Popen(
        command,
        cwd=root,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line.rstrip("\n"))
            if log:
                log(lines[-1])
    text = "\n".join(lines)
    if process.returncode != 0:
        raise BuildError(
            "\n".join(first_errors(lines)), "Run the build by itself for all of it: scons VERBOSE=1", log=text
        )
    return text


def first_errors(lines: Sequence[str]) -> list[str]:
    """The lines that say what went wrong: compiler and linker errors, limits, SCons' own; else the last lines."""
    marks = ("error:", "undefined reference", "fatal error", "scons: ***", " more than ")
    found = [line for line in lines if any(mark in line for mark in marks)]
    return found[:SHOWN_ERRORS] or list(lines[-SHOWN_ERRORS:]) or ["the build failed without a word"]
