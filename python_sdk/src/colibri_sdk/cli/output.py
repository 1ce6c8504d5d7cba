# SPDX-License-Identifier: Apache-2.0
"""What commands print, and where.

stdout carries the answer alone; notes, progress and errors go to stderr. With --json stdout carries one JSON object
or array and nothing else (when a command fails it stays empty: the error is on stderr, its kind in the exit code).
On a terminal tables and progress are drawn with rich; elsewhere they are plain lines, so that logs stay readable.
NO_COLOR is respected.
"""

from __future__ import annotations

import dataclasses
import json
import re
import sys
import time
from collections.abc import Sequence
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from colibri_sdk.figures import count as count
from colibri_sdk.figures import printable

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

_ORDERS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")

json_option = click.option("--json", "as_json", is_flag=True, help="One JSON value on stdout and nothing else there.")


def _plain(value: Any) -> Any:
    """For values that json does not know."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, IntEnum):
        return value.name
    if hasattr(value, "tolist"):
        return value.tolist()  # NumPy scalars and arrays
    raise TypeError(f"{type(value).__name__} has no JSON form")


def emit_json(value: Any) -> None:
    """The answer of a command with --json. What stdout's encoding lacks is escaped as JSON does it."""
    text = json.dumps(value, default=_plain, ensure_ascii=False, allow_nan=False)
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        text = json.dumps(value, default=_plain, allow_nan=False)
    click.echo(text)


def note(text: str) -> None:
    """A line for the person who waits."""
    click.echo(text, err=True)


def piece(text: str) -> None:
    """Part of a streamed answer: shown at once, whatever the locale can show of it."""
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(said(text).encode(encoding, "replace").decode(encoding))
    sys.stdout.flush()


def said(text: str) -> str:
    """What a model says, which may be anybody's. A terminal would take its control characters for orders: there all but
    line feeds and tabs are replaced. Elsewhere it stays as it is."""
    return _ORDERS.sub("\ufffd", text) if sys.stdout.isatty() else text


def size(value: int) -> str:
    """Bytes exactly, and roughly where that helps."""
    exact = f"{count(value)} bytes"
    if value < 10_000:
        return exact
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if value >= scale:
            return f"{exact} ({value / scale:.1f} {unit})"
    return exact


def table(headers: Sequence[str], rows: Sequence[Sequence[object]], *, title: str = "", right: str = "") -> None:
    """A table on stdout. `right` has an r for each column that is aligned to the right, anything else otherwise."""
    cells = [[printable(str(cell)) for cell in row] for row in rows]
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        drawn = Table(title=title or None, title_justify="left", show_header=any(headers))
        for index, header in enumerate(headers):
            drawn.add_column(header, justify="right" if right[index : index + 1] == "r" else "left", overflow="fold")
        for row in cells:
            drawn.add_row(*map(Text, row))
        Console().print(drawn)
        return
    if title:
        click.echo(title)
    for line in plain_table(headers, cells, right):
        click.echo(line)


def plain_table(headers: Sequence[str], rows: Sequence[Sequence[str]], right: str = "") -> list[str]:
    """The lines of a table in columns; headers that are all empty are left out."""
    lines = ([list(headers)] if any(headers) else []) + [list(row) for row in rows]
    widths = [max(len(line[index]) for line in lines) for index in range(len(headers))] if lines else []
    return [
        "  ".join(
            cell.rjust(width) if right[index : index + 1] == "r" else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]


class Progress:
    """How far long work is, on stderr: a bar on a terminal, a line at each tenth elsewhere.

    Works wherever the package asks for `update(done_bytes, total_bytes, what)`; use it as a context manager. With
    `unit` other things than bytes are counted. With `rate` the lines say how fast it goes and how long it will take, as
    the bar does; work of several phases then names them in `what`, and each counts from 0.
    """

    def __init__(self, title: str, unit: str = "", *, rate: bool = False) -> None:
        self._title = title
        self._unit = unit
        self._rate = rate
        self._what = ""
        self._start = time.monotonic()
        self._first = 0
        self._bar: RichProgress | None = None
        self._task: TaskID | None = None
        self._tenth = -1

    def __enter__(self) -> Progress:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import (
                BarColumn,
                DownloadColumn,
                MofNCompleteColumn,
                TextColumn,
                TimeRemainingColumn,
                TransferSpeedColumn,
            )
            from rich.progress import Progress as Bar

            self._bar = Bar(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn() if self._unit else DownloadColumn(),
                *([TransferSpeedColumn()] if self._rate else []),
                TimeRemainingColumn(),
                TextColumn("{task.fields[what]}"),
                console=Console(stderr=True),
                transient=True,
            )
            self._bar.start()
            self._task = self._bar.add_task(self._title, total=None, what="")
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def update(self, done_bytes: int, total_bytes: int, what: str = "") -> None:
        if self._rate and what != self._what:
            self._what, self._tenth = what, -1
            self._start, self._first = time.monotonic(), done_bytes
            if self._bar is not None and self._task is not None:
                self._bar.reset(self._task, total=total_bytes)
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=done_bytes, total=total_bytes, what=what)
            return
        tenth = 10 * done_bytes // total_bytes if total_bytes else 10
        if tenth > self._tenth:
            self._tenth = tenth
            whole = f"{total_bytes} {self._unit}" if self._unit else size(total_bytes)
            note(f"{self._title}: {10 * tenth} % of {whole} {what}".rstrip() + self._speed(done_bytes, total_bytes))

    def _speed(self, done_bytes: int, total_bytes: int) -> str:
        """Where it is wanted and known: ", 10.9 KB/s, 34 s left"."""
        seconds, done = time.monotonic() - self._start, done_bytes - self._first
        if not self._rate or done <= 0 or seconds <= 0:
            return ""
        speed = done / seconds
        left = "" if done_bytes >= total_bytes else f", {(total_bytes - done_bytes) / speed:.0f} s left"
        return f", {speed / 1000:.1f} KB/s{left}"
