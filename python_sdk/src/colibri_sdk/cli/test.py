# SPDX-License-Identifier: Apache-2.0
"""colibri-sdk test: the whole test suite."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import click

from colibri_sdk import errors, paths
from colibri_sdk.cli.terminated import Terminated

# For the end of what the tests have running; an emulated board that hangs takes some seconds.
END_SECONDS = 60.0

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
    code, interrupted = _wait(subprocess.Popen(line, cwd=paths.repo_root()))
    if interrupted or code < 0:
        return errors.EXIT_INTERRUPTED
    # Whatever else went wrong. Pytest's 2 is no sign of an interruption: tests that cannot be collected give it too.
    return errors.EXIT_OK if code == 0 else errors.EXIT_INTERNAL


def _wait(child: subprocess.Popen[bytes]) -> tuple[int, bool]:
    """The child's exit code, and whether we were interrupted. It is told, and gets time to end what it runs."""
    interrupted = False
    limit: float | None = None
    while True:
        try:
            return child.wait(limit), interrupted
        except subprocess.TimeoutExpired:
            child.kill()
            limit = None
        except (KeyboardInterrupt, Terminated) as reason:
            interrupted, limit = True, END_SECONDS
            if isinstance(reason, Terminated) or not _in_foreground():
                child.send_signal(signal.SIGINT)


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
