# SPDX-License-Identifier: Apache-2.0
"""colibri-sdk test: the whole test suite."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from types import FrameType

import click

from colibri_sdk import errors, paths

# For the end of what the tests have running; an emulated board that hangs takes some seconds.
END_SECONDS = 60.0
_LOOK_SECONDS = 1.0

# What is built and packed for one file of tests stays with it. More at once would only wait for the build's lock.
MAX_WORKERS = 4


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("arguments", metavar="[PYTEST ARGUMENTS]...", nargs=-1, type=click.UNPROCESSED)
def command(arguments: tuple[str, ...]) -> int:
    """Run every test, style and types among them, and end with the size and memory table of each board.

    Arguments go to pytest, which runs in the checkout: `test tests/link -k frames`, `test -m "not qemu"`. As many
    files of tests run beside each other as there are processors, at most four; `test -n 0` runs one after the other.
    """
    beside = ["-n", "auto", f"--maxprocesses={MAX_WORKERS}", "--dist", "loadfile"]
    line = [sys.executable, "-m", "pytest", "--size-table", *beside, *arguments]
    code, interrupted = _run(line)
    if interrupted or code < 0:
        return errors.EXIT_INTERRUPTED
    # Whatever else went wrong. Pytest's 2 is no sign of an interruption: tests that cannot be collected give it too.
    return errors.EXIT_OK if code == 0 else errors.EXIT_INTERNAL


def _run(line: Sequence[str]) -> tuple[int, bool]:
    """The program's exit code, and whether we were interrupted. It is told, and gets time to end what it runs.

    By handlers, not by exceptions: the next Ctrl-C may come while the one before is passed on, and must not end us."""
    child: subprocess.Popen[bytes] | None = None
    give_up: float | None = None
    terminated = False

    def interrupted(number: int, _frame: FrameType | None) -> None:
        nonlocal give_up, terminated
        give_up = time.monotonic() + END_SECONDS
        if number != signal.SIGINT and terminated:
            return  # once is enough
        terminated = terminated or number != signal.SIGINT
        if child is not None and (number != signal.SIGINT or not _in_foreground()):
            child.send_signal(signal.SIGINT)

    before = {
        one: signal.signal(one, interrupted)
        for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(one) is not signal.SIG_IGN  # which a shell does in the background, and nohup
    }
    try:
        child = subprocess.Popen(line, cwd=paths.repo_root())
        if give_up is not None:  # before there was anybody to tell
            child.send_signal(signal.SIGINT)
        while True:
            try:
                return child.wait(_LOOK_SECONDS), give_up is not None
            except subprocess.TimeoutExpired:
                if give_up is not None and time.monotonic() > give_up:
                    child.kill()
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def _in_foreground() -> bool:
    """Whether Ctrl-C at the terminal goes to our process group, and with it to the child, by itself."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)
