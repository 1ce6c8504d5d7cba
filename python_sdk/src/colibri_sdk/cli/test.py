# SPDX-License-Identifier: Apache-2.0
"""colibri-sdk test: the whole test suite."""

from __future__ import annotations

import subprocess
import sys

import click

from colibri_sdk import errors, paths


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("arguments", metavar="[PYTEST ARGUMENTS]...", nargs=-1, type=click.UNPROCESSED)
def command(arguments: tuple[str, ...]) -> int:
    """Run every test, style and types among them, and end with the size and memory table of each board.

    Arguments go to pytest, which runs in the checkout: `test tests/link -k frames`, `test -m "not qemu"`.
    """
    line = [sys.executable, "-m", "pytest", "--size-table", *arguments]
    try:
        done = subprocess.run(line, cwd=paths.repo_root(), check=False)
    except KeyboardInterrupt:
        return errors.EXIT_INTERRUPTED
    if done.returncode == 2:  # pytest's code for an interrupted run
        return errors.EXIT_INTERRUPTED
    return errors.EXIT_OK if done.returncode == 0 else errors.EXIT_INTERNAL
