# SPDX-License-Identifier: Apache-2.0
"""colibri-sdk build: firmware and the host library."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from colibri_sdk.cli import options, output
from colibri_sdk.errors import UsageError


@click.command()
@click.argument("names", metavar="[BOARD]...", nargs=-1)
@options.public_key_option
@click.option("--all", "all_boards", is_flag=True, help="All boards.")
@click.option("--jobs", "-j", type=click.IntRange(1), default=2, show_default=True, help="Compilers at once.")
@click.option("--verbose", "-v", is_flag=True, help="Show what the build prints.")
@output.json_option
def command(
    names: tuple[str, ...], public_key: Path | None, all_boards: bool, jobs: int, verbose: bool, as_json: bool
) -> None:
    """Build the firmware of each BOARD; without one, the host library. Only what changed is built."""
    from colibri_sdk.boards import list_boards, load_board, with_key
    from colibri_sdk.build import build, build_host_library

    log = output.note if verbose else None
    boards = list_boards() if all_boards else [load_board(name) for name in names]
    if public_key is not None:
        if not boards:
            raise UsageError("--public-key is for the firmware of boards", "Name a board, or use --all.")
        boards = [with_key(board, public_key) for board in boards]
    if not boards:
        library = build_host_library(jobs=jobs, log=log)
        output.emit_json([{"board": "host", "library": library}]) if as_json else click.echo(str(library))
        return
    built: list[dict[str, Any]] = []
    for board in boards:
        output.note(f"building {board.name}")
        firmware = build(board, jobs=jobs, log=log)
        built.append({**firmware.report, "board": board.name, "elf": firmware.elf, "binary": firmware.binary})
    if as_json:
        output.emit_json(built)
        return
    for one in built:
        click.echo(f"{one['board']}: {one['binary'] or one['elf']}")
    reports = [one for one in built if "text" in one]
    if reports:
        output.table(HEADERS, size_rows(reports), title="\nFirmware, bytes", right=RIGHT)


HEADERS = ("board", "text", "of it engine", "rodata", "data", "bss", "worst stack", "left for model and arena")
RIGHT = "lrrrrrrr"


def size_rows(reports: list[dict[str, Any]]) -> list[list[str]]:
    """A row for each firmware's report."""
    return [
        [
            report["board"],
            *(output.count(report[column]) for column in ("text", "engine_text", "rodata", "data", "bss")),
            f"{output.count(report['stack_worst'])} of {output.count(report['stack_bytes'])}"
            if report["stack_worst"] is not None
            else "no bound",
            output.count(report["memory_bytes"]),
        ]
        for report in reports
    ]
