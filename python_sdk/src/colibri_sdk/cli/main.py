# SPDX-License-Identifier: Apache-2.0
"""The command colibri-sdk: finds the command's file, loads it, runs it, and turns errors into exit codes.

A command's module is imported only when that command is called, so that `colibri-sdk boards` does not wait for
NumPy and the help does not wait for anything.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import io
import os
import sys
from collections.abc import Sequence

import click

from colibri_sdk import __version__
from colibri_sdk import errors as e
from colibri_sdk.cli.terminated import Terminated, raise_when_terminated

# name of the command (and of its module in this package): its line in the overview
COMMANDS: dict[str, str] = {
    "demo": "Build, pack, write a card, boot it in the emulator, ask, and show the answers and figures.",
    "boards": "List the boards.",
    "build": "Build the firmware of boards, and the host library.",
    "pack": "Make an image from a checkpoint.",
    "inspect": "Show what an image holds; --verify recomputes its checksums.",
    "plan": "Show the memory map of a board with an image, and whether it fits.",
    "profile": "Record which experts a model needs; --pin keeps them cached.",
    "flash": "Write a card image or a real card.",
    "update": "Replace one expert or the model of a device in the field; confirm or take back.",
    "keys": "Make keys, sign images, verify them.",
    "emulate": "Run an emulated board and keep it running.",
    "run": "Send one prompt and show the answer.",
    "chat": "Talk to a model.",
    "eval": "Count how many answers of a file are exactly right.",
    "parity": "Compare the engine with a checkpoint's reference results.",
    "top": "Watch a device's experts while it answers.",
    "monitor": "Show what a device logs.",
    "supported": "List what can be packed and run: architectures, formats, routers.",
    "selftest": "Compare a device's kernels with the reference, bit by bit.",
    "doctor": "Check this machine: tools, emulators, permissions.",
    "test": "Run the test suite.",
}


# What the system says of a file that was named wrongly.
_OF_THE_USER = (FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError)
_NO_NAMES = (errno.ENAMETOOLONG, errno.ELOOP)


class LazyGroup(click.Group):
    """A group whose commands are the modules of this package."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"colibri_sdk.cli.{cmd_name}")
        command = module.command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="colibri-sdk")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.pass_context
def cli(ctx: click.Context, debug: bool) -> None:
    """Mixture-of-Experts language models on boards without an operating system."""
    ctx.ensure_object(dict)["debug"] = debug


def run(arguments: Sequence[str]) -> int:
    """Runs one command line and returns its exit code. Errors go to stderr; stdout keeps only the answer."""
    debug = "--debug" in arguments
    try:
        # --debug is accepted at any place: people add it at the end of the line they want to know about.
        result = cli.main([a for a in arguments if a != "--debug"], prog_name="colibri-sdk", standalone_mode=False)
        return result if isinstance(result, int) else e.EXIT_OK
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except (KeyboardInterrupt, click.Abort):
        click.echo("interrupted", err=True)
        return e.EXIT_INTERRUPTED
    except Terminated:
        with contextlib.suppress(OSError):  # with SIGHUP the terminal is gone
            click.echo("terminated", err=True)
        return e.EXIT_INTERRUPTED
    except click.ClickException as error:
        error.show()
        return e.EXIT_USAGE
    except e.ColibriError as error:
        if debug:
            raise
        lines = str(error).splitlines() or [type(error).__name__]
        click.secho(f"error: {lines[0]}", fg="red", err=True)
        for line in lines[1:]:
            click.echo(f"  {line}", err=True)
        return error.exit_code
    except SystemExit:
        # Only for a broken pipe does click end by itself: the reader went away, as `head` does, and has what it wanted.
        return e.EXIT_OK
    except OSError as error:
        if debug:
            raise
        what = f"{error.filename}: " if error.filename else ""
        click.secho(f"error: {what}{error.strerror or error}", fg="red", err=True)
        if error.errno == errno.ENOSPC:
            click.echo("  Free some space; temporary files are in /tmp, or where $TMPDIR says.", err=True)
        of_the_user = isinstance(error, _OF_THE_USER) or error.errno in _NO_NAMES
        return e.EXIT_USAGE if of_the_user else e.EXIT_INTERNAL
    except Exception as error:  # the last resort: a person gets a sentence, --debug the traceback
        if debug:
            raise
        click.secho(f"internal error: {type(error).__name__}: {error}", fg="red", err=True)
        click.echo("  This is a bug. Run the same line with --debug for its traceback, and report it.", err=True)
        return e.EXIT_INTERNAL


def _open_streams() -> None:
    """A standard stream that is closed leads nowhere. The next file to be opened, a card's, say, would get its number,
    and with it what is written there."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest number that is free: this one
            setattr(sys, name, os.fdopen(number, "w" if number else "r", closefd=False))


def _show_what_can_be_shown() -> None:
    """A locale that lacks a character of an answer is no reason to withhold the rest."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="replace")


def main() -> None:
    """Entry point of the installed command."""
    try:
        raise_when_terminated()
        _open_streams()
        _show_what_can_be_shown()
        code = run(sys.argv[1:])
    except (KeyboardInterrupt, Terminated):  # once more, while the first was being reported
        code = e.EXIT_INTERRUPTED
    sys.exit(code)
