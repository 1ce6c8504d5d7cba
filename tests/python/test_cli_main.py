# SPDX-License-Identifier: Apache-2.0
"""The command line as scripts see it: exit codes, what goes to stdout and stderr, and what is not loaded."""

from __future__ import annotations

import errno
import inspect
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import click
import pytest

from colibri_sdk import errors
from colibri_sdk.cli import main, output

EXIT_CODES = {
    errors.ColibriError: 1,
    errors.UsageError: 2,
    errors.NoDeviceError: 3,
    errors.AmbiguousDeviceError: 4,
    errors.PortBusyError: 5,
    errors.PortPermissionError: 5,
    errors.TransferError: 6,
    errors.LinkTimeoutError: 6,
    errors.LinkLostError: 6,
    errors.VerifyError: 6,
    errors.FlashError: 6,
    errors.ImageError: 7,
    errors.CheckpointError: 7,
    errors.DeviceError: 8,
    errors.DeviceFaultError: 8,
    errors.BuildError: 1,
    errors.EmulatorError: 1,
    errors.ToolMissingError: 1,
    errors.InternalError: 1,
    KeyboardInterrupt: 130,
    FileNotFoundError: 2,
    PermissionError: 2,
    OSError: 1,
    ZeroDivisionError: 1,
}


def install(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """Makes `colibri-sdk boards` raise `error` after it has begun its work."""

    @click.command()
    def failing() -> None:
        raise error

    monkeypatch.setattr(main.LazyGroup, "get_command", lambda *_: failing)


def test_every_error_of_the_tree_is_in_the_table_of_exit_codes() -> None:
    public = {
        value
        for name, value in vars(errors).items()
        if inspect.isclass(value) and issubclass(value, errors.ColibriError) and not name.startswith("_")
    }
    assert public == {error for error in EXIT_CODES if issubclass(error, errors.ColibriError)}
    for error in public:
        assert f"{error.__name__} " in (errors.__doc__ or ""), "the tree drawn at the top of errors.py lacks it"


@pytest.mark.parametrize(("error", "code"), EXIT_CODES.items(), ids=lambda value: getattr(value, "__name__", value))
def test_exit_code_message_and_hint(
    error: type[BaseException],
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    known = issubclass(error, errors.ColibriError)
    install(monkeypatch, error("the thing at fault", "what to try") if known else error("the thing at fault"))
    assert main.run(["boards"]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert "Traceback" not in err
    if error is not KeyboardInterrupt:
        assert "the thing at fault" in err
    if known:
        assert "what to try" in err


def test_debug_shows_the_error_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, errors.ImageError("broken"))
    with pytest.raises(errors.ImageError):
        main.run(["boards", "--debug"])


def test_a_full_disk_says_where_the_space_is_needed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install(monkeypatch, OSError(errno.ENOSPC, "No space left on device", "card.img"))
    assert main.run(["boards"]) == 1
    err = capsys.readouterr().err
    assert "card.img: No space left on device" in err and "TMPDIR" in err


def test_a_name_that_no_file_can_have_is_wrong_use(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install(monkeypatch, OSError(errno.ENAMETOOLONG, "File name too long", "x" * 300))
    assert main.run(["boards"]) == errors.EXIT_USAGE
    assert "xxx: File name too long" in capsys.readouterr().err


@pytest.mark.parametrize(
    "line",
    [
        ["no-such-command"],
        ["run"],
        ["run", "--no-such-option", "x"],
        ["inspect", "/no/such/file"],
        ["run", "a", "b", "c"],
        ["run", "--top-p", "1.5", "x"],
        ["run", "--seed", "-1", "x"],
    ],
    ids=" ".join,
)
def test_wrong_use_is_exit_code_2(line: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(line) == errors.EXIT_USAGE
    out, err = capsys.readouterr()
    assert out == ""
    assert "rror" in err


@pytest.mark.parametrize("name", main.COMMANDS)
def test_every_command_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run([name, "--help"]) == 0
    assert f"Usage: colibri-sdk {name}" in capsys.readouterr().out


def test_help_loads_nothing_heavy() -> None:
    program = (
        "import sys; from colibri_sdk.cli.main import run; run(['--help']);"
        "print(sorted({'numpy', 'rich', 'serial', 'cffi', 'jsonschema', 'tokenizers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_reader_that_goes_away_is_no_error() -> None:
    program = (
        "import sys, click; from colibri_sdk.cli import main;"
        "command = click.Command('boards', callback=lambda: [click.echo('x' * 1000) for _ in range(1000)]);"
        "main.LazyGroup.get_command = lambda *_: command; sys.argv = ['', 'boards']; main.main()"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.read(10)
        process.stdout.close()
        err = process.stderr.read()
    assert (process.returncode, err) == (0, b"")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_streams_that_are_closed_lead_nowhere(closed: str, tmp_path: Path) -> None:
    """No file that a command opens gets the number of one, nor what is printed."""
    program = (
        "import click, os, sys; from colibri_sdk.cli import main, output\n"
        "def work():\n"
        "    with open('card', 'wb') as card, output.Progress('working') as progress:\n"
        "        assert card.fileno() > 2\n"
        "        progress.update(1, 1)\n"
        "        output.table(['', ''], [['a', 'b']]); output.emit_json({}); output.piece('c')\n"
        "main.LazyGroup.get_command = lambda *_: click.Command('boards', callback=work)\n"
        "sys.argv = ['', 'boards']; main.main()"
    )
    (tmp_path / "p.py").write_text(program)
    done = subprocess.run(["sh", "-c", f"{sys.executable} p.py {closed}"], cwd=tmp_path, timeout=60, check=False)
    assert done.returncode == 0
    assert (tmp_path / "card").read_bytes() == b""


def test_plain_table_aligns_columns(capsys: pytest.CaptureFixture[str]) -> None:
    output.table(["name", "bytes"], [["a", 5], ["longer", 12345]], title="Sizes", right="lr")
    assert capsys.readouterr().out == "Sizes\nname    bytes\na           5\nlonger  12345\n"


def test_json_is_one_line_and_knows_bytes_and_numpy(capsys: pytest.CaptureFixture[str]) -> None:
    import numpy as np

    output.emit_json({"id": b"\x01\xff", "n": np.float32(0.5), "text": "é"})
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert json.loads(out) == {"id": "01ff", "n": 0.5, "text": "é"}


@pytest.mark.parametrize("encoding", ["latin-1:strict", "utf-8:strict"])
def test_characters_that_stdout_lacks_cost_nothing_else(encoding: str) -> None:
    """U+2081 is not in Latin 1, half of a surrogate pair in no encoding."""
    program = (
        "import sys, click; from colibri_sdk.cli import main, output;"
        "show = lambda as_json: output.emit_json({'x': T}) if as_json else output.table(['', ''], [['a', T]]);"
        "T = 'e\\u2081\\ud800'; command = click.Command('boards', params=[click.Option(['--json', 'as_json'],"
        "is_flag=True)], callback=show);"
        "main.LazyGroup.get_command = lambda *_: command; main.main()"
    )

    def shown(*words: str) -> str:
        environment = {**os.environ, "PYTHONIOENCODING": encoding}
        line = [sys.executable, "-c", program, "boards", *words]
        done = subprocess.run(line, capture_output=True, timeout=60, check=True, env=environment)
        assert done.stderr == b""
        return done.stdout.decode(encoding.split(":")[0])

    assert json.loads(shown("--json")) == {"x": "e\u2081\ud800"}
    assert shown().startswith("a  e")


def test_a_terminal_shows_brackets_as_they_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """rich takes [/x] for the end of a style, whatever stands before it, and fails."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    output.table(["", ""], [["a\\[/b]", "[red]c"]])
    out = capsys.readouterr().out
    assert "a\\[/b]" in out and "[red]c" in out


@pytest.mark.parametrize("terminal", [False, True])
def test_what_a_model_says_is_no_order_to_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], terminal: bool
) -> None:
    """A program that reads the answer gets it as it is."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    output.piece("a\tb\nc\x1b]52;c;aGk=\x07\x9b2J\u200d\u00e9")
    replaced = "a\tb\nc\ufffd]52;c;aGk=\ufffd\ufffd2J\u200d\u00e9"
    assert capsys.readouterr().out == (replaced if terminal else "a\tb\nc\x1b]52;c;aGk=\x07\x9b2J\u200d\u00e9")


def test_json_refuses_numbers_that_json_does_not_have() -> None:
    with pytest.raises(ValueError, match="JSON"):
        output.emit_json({"tokens_per_second": float("inf")})


def test_progress_in_a_log_is_a_line_for_each_tenth(capsys: pytest.CaptureFixture[str]) -> None:
    with output.Progress("packing") as progress:
        for done in range(1001):
            progress.update(done, 1000, "layer")
    assert len(capsys.readouterr().err.splitlines()) == 11


def test_progress_says_how_fast_and_how_long(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a made-up clock: 1,000 bytes a second; each phase has a speed of its own."""
    clock = 0.0
    monkeypatch.setattr(output, "time", SimpleNamespace(monotonic=lambda: clock))
    with output.Progress("update", rate=True) as progress:
        for what, step in (("comparing", 0.1), ("", 1.0)):
            for done in range(1000, 4001, 1000):
                clock += step
                progress.update(done, 4000, what)
    assert capsys.readouterr().err.splitlines() == [
        "update: 20 % of 4 000 bytes comparing",
        "update: 50 % of 4 000 bytes comparing, 10.0 KB/s, 0 s left",
        "update: 70 % of 4 000 bytes comparing, 10.0 KB/s, 0 s left",
        "update: 100 % of 4 000 bytes comparing, 10.0 KB/s",
        "update: 20 % of 4 000 bytes",
        "update: 50 % of 4 000 bytes, 1.0 KB/s, 2 s left",
        "update: 70 % of 4 000 bytes, 1.0 KB/s, 1 s left",
        "update: 100 % of 4 000 bytes, 1.0 KB/s",
    ]
