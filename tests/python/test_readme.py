# SPDX-License-Identifier: Apache-2.0
"""What README.md and docs/ promise: the C program works as printed, the commands exist, no link leads nowhere."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest

from colibri_sdk import errors
from colibri_sdk.build import run_scons
from colibri_sdk.cli.main import COMMANDS, cli, run
from colibri_sdk.engine import Library
from colibri_sdk.figures import count
from fixed_key import KEY


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


def test_exit_codes_are_documented(repo_root: Path) -> None:
    page = (repo_root / "docs" / "cli.md").read_text()
    codes = {value for name, value in vars(errors).items() if name.startswith("EXIT_")}
    assert {int(code) for code in re.findall(r"^\| (\d+) \|", page, re.MULTILINE)} == codes


# What of a page is about the JSON of a command: its line of the table, and its section where it has one.
SECTIONS = {
    "pack": "### pack",
    "plan": "### plan",
    "profile": "### profile",
    "run": "### run and demo",
    "top": "### top",
}
LINES = [
    ["boards"],
    ["pack", "CHECKPOINT", "-o", "x.colibri"],
    ["inspect", "IMAGE", "--verify"],
    ["profile", "IMAGE", "--prompts", "p.txt", "-o", "t.npz", "--max-tokens", "2"],
    ["plan", "IMAGE", "--profile", "t.npz", "--read-rate", "1M"],
    ["run", "IMAGE", "set pump 3 to 40 percent", "--max-tokens", "2"],
    ["top", "IMAGE", "--prompts", "p.txt", "--max-tokens", "2"],
    ["keys", "new", "keys"],
    ["keys", "sign", "COPY", "--key", "key.json"],
    ["selftest", "--host"],
]
# Objects whose keys are names of what is in them, and the card, whose fields are those of its image.
NAMED_BY_CONTENT = {"boards": {"drivers"}, "pack": {"sections"}, "inspect": {"card"}}


def fields(value: Any, left_out: set[str]) -> set[str]:
    """The names of an object's fields, and of those in it but for `left_out`."""
    if isinstance(value, list):
        return set().union(*(fields(one, left_out) for one in value))
    if not isinstance(value, dict):
        return set()
    inner = (fields(one, left_out) for name, one in value.items() if name not in left_out)
    return set(value).union(*inner)


def test_fields_of_json_are_documented(
    repo_root: Path,
    tmp_path: Path,
    hummingbird: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    page = (repo_root / "docs" / "cli.md").read_text()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.txt").write_text("set pump 3 to 40 percent\nhello\n")
    (tmp_path / "copy.colibri").write_bytes(hummingbird("q8").read_bytes())
    KEY.save(tmp_path / "key.json")
    words = {
        "IMAGE": str(hummingbird("q8")),
        "COPY": "copy.colibri",
        "CHECKPOINT": str(repo_root / "models" / "hummingbird"),
    }
    for line in LINES:
        command = " ".join(line[:2]) if line[0] == "keys" else line[0]
        (about,) = re.findall(rf"^\| `{command}\b.*$", page, re.MULTILINE)
        if command in SECTIONS:
            about += re.split(r"^##", page.split(SECTIONS[command] + "\n")[1], maxsplit=1, flags=re.MULTILINE)[0]
        capsys.readouterr()
        assert run([*(words.get(word, word) for word in line), "--json"]) == errors.EXIT_OK
        named = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`]*)`", about))))
        found = fields(json.loads(capsys.readouterr().out), NAMED_BY_CONTENT.get(command, set()))
        assert found - named == set(), line


def without_address(line: str) -> str:
    return re.sub(r"^(0x[0-9a-f]+|-) +", "", line.strip())


@pytest.mark.parametrize(
    ("page", "board", "limit"),
    [("README.md", "rpi3", ""), ("README.md", "rpi3", "3M"), ("docs/expert-store.md", "hifive-unleashed", "3M")],
)
def test_plans_are_printed_as_they_are(
    repo_root: Path,
    hummingbird: Callable[[str], Path],
    capsys: pytest.CaptureFixture[str],
    page: str,
    board: str,
    limit: str,
) -> None:
    """But for what the firmware's own size is in: addresses, and what stays free where nothing limits it."""
    printed = {without_address(line) for line in (repo_root / page).read_text().splitlines()}
    assert run(["plan", str(hummingbird("q8")), "--board", board, *(["--memory-limit", limit] * bool(limit))]) == 0
    planned = [without_address(line) for line in capsys.readouterr().out.splitlines() if line]
    if limit:  # the pages leave the map out
        planned = [line for line in planned if line.startswith(("experts are read", "FITS"))]
    else:
        planned = [line for line in planned if not line.endswith(" firmware") and not line.startswith("FITS")]
    assert len(planned) >= 2
    assert [line for line in planned if line not in printed] == []


@pytest.mark.parametrize("page", ["README.md", "docs/expert-store.md"])
def test_arenas_are_those_of_each_number_of_slots(
    repo_root: Path, hummingbird: Callable[[str], Path], host_library: Path, page: str
) -> None:
    rows = re.findall(r"^ +(\d+) +[0-9.]+ % +#.* {2}([0-9 ]+)$", (repo_root / page).read_text(), re.MULTILINE)
    library, image = Library.load(), hummingbird("q8")
    arenas = [library.plan(image, cache_slots=slots).arena_bytes for slots in range(1, 9)]
    assert [(int(slots), arena.strip()) for slots, arena in rows] == list(enumerate(map(count, arenas), 1))


def test_sizes_of_images_are_those_of_each_plan(repo_root: Path, hummingbird: Callable[[str], Path]) -> None:
    """To a hundredth of a megabyte, and the page that a certificate may take in the card."""
    page = (repo_root / "docs" / "quantisation.md").read_text()
    stated = re.findall(r"^\| ([a-z0-9]+) \| ([0-9.]+) MB \| 1\.02", page, re.MULTILINE)
    assert len(stated) == 5
    for plan, size in stated:
        assert abs(hummingbird(plan).stat().st_size - 1e6 * float(size)) <= 5_000 + 4096, plan
