# SPDX-License-Identifier: Apache-2.0
"""What README.md and docs/ promise: the C program works as printed, the commands exist, no link leads nowhere."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import click

from colibri_sdk.build import run_scons
from colibri_sdk.cli.main import COMMANDS, cli


def pages(root: Path) -> list[Path]:
    return [root / "README.md", *sorted((root / "docs").glob("*.md")), root / "firmware" / "runtime" / "PROTOCOL.md"]


def test_c_program_against_the_installed_library(
    repo_root: Path, tmp_path: Path, hummingbird: Callable[[str], Path]
) -> None:
    """Installed with SCons, found with pkg-config, compiled as the README says, and it answers."""
    text = (repo_root / "README.md").read_text()
    (program,) = re.findall(r"```c\n(.*?)```", text, re.DOTALL)
    (by_archive,) = re.findall(r"^    (cc ask\.c .*)$", text, re.MULTILINE)
    (tmp_path / "ask.c").write_text(program)
    prefix = tmp_path / "prefix"
    run_scons(["install", f"PREFIX={prefix}"])
    strict = ["-std=c11", "-Wall", "-Wextra", "-Werror"]
    found = subprocess.run(
        ["pkg-config", "--cflags", "--libs", "colibri"],
        env={**os.environ, "PKG_CONFIG_PATH": str(prefix / "lib" / "pkgconfig")},
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    ).stdout.split()
    ways: list[tuple[list[str], dict[str, str]]] = [
        (by_archive.replace("PREFIX", str(prefix)).split(), {}),  # as printed: nothing is left to be found at start
        (["cc", "ask.c", *found, "-o", "ask"], {"LD_LIBRARY_PATH": str(prefix / "lib")}),
    ]
    for command, environment in ways:
        subprocess.run([*command, *strict], cwd=tmp_path, check=True, timeout=120, capture_output=True)
        done = subprocess.run(
            [tmp_path / "ask", hummingbird("q8"), "set pump 3 to 40 percent"],
            env=environment,
            check=True,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.stdout == '{"intent":"set","device":"pump","id":3,"value":40,"unit":"percent"}'


def test_links_lead_somewhere(repo_root: Path) -> None:
    dead = []
    for page in pages(repo_root):
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text()):
            if "://" not in target and not (page.parent / target).exists():
                dead.append(f"{page.relative_to(repo_root)}: {target}")
    assert dead == []


def test_commands_exist(repo_root: Path) -> None:
    text = "".join(page.read_text() for page in pages(repo_root))
    named = set(re.findall(r"(?:\./colibri|colibri-sdk) ([a-z]+)\b", text))
    assert len(named) > 5
    assert named <= set(COMMANDS)


def test_every_command_is_documented(repo_root: Path) -> None:
    table = (repo_root / "docs" / "cli.md").read_text()
    assert [name for name in COMMANDS if f"| `{name}" not in table] == []


def options_of(command: click.Command, context: click.Context) -> set[str]:
    """The long names of a command's options and of those of its own commands."""
    names = {name for option in command.params if isinstance(option, click.Option) for name in option.opts}
    names |= {name for option in command.params if isinstance(option, click.Option) for name in option.secondary_opts}
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            one = command.get_command(context, name)
            assert one is not None
            names |= options_of(one, context)
    return {name for name in names if name.startswith("--")}


def test_every_option_is_documented(repo_root: Path) -> None:
    """--output is in the table as -o; --version and --help say themselves what they are."""
    page = (repo_root / "docs" / "cli.md").read_text()
    options = options_of(cli, click.Context(cli)) - {"--output", "--version", "--help"}
    assert len(options) > 50
    assert [name for name in sorted(options) if not re.search(rf"{name}(?![a-z-])", page)] == []
