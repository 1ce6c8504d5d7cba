# SPDX-License-Identifier: Apache-2.0
"""Commands that are interrupted or asked to terminate: what they end, how, and with which exit code."""

from __future__ import annotations

import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import click
import pytest

from colibri_sdk import errors
from colibri_sdk.cli import chat, main
from colibri_sdk.cli.terminated import Terminated
from colibri_sdk.image.layout import MAGIC
from colibri_sdk.signing import new_key

WAIT_SECONDS = 60.0

# A command that says when it is ready, and takes Ctrl-C, as chat does, for something that is no end.
PATIENT = """
import signal, sys, threading, click
from colibri_sdk.cli import main
def patient():
    while True:
        try:
            print("ready", flush=True)
            while True:  # a signal just before one wait is noticed after it
                threading.Event().wait(0.1)
        except KeyboardInterrupt:
            print("go on", flush=True)
main.LazyGroup.get_command = lambda *_: click.Command("boards", callback=patient)
sys.argv = ["", "boards"]
main.main()
"""

# `colibri-sdk test` with another program in pytest's place; it may be late when it has passed on a signal.
TEST_COMMAND = """
import subprocess, sys, time
from colibri_sdk.cli import main
send = subprocess.Popen.send_signal
subprocess.Popen.send_signal = lambda child, number: (send(child, number), time.sleep(float(sys.argv[2])))
sys.executable, sys.argv = sys.argv[1], ["", "test", sys.argv[2]]
main.main()
"""

# In pytest's place: says each interruption, and ends with pytest's exit code after the second.
SLOW_TO_END = """#!{python}
import signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
print("ready", flush=True)
for _ in range(2):
    signal.sigwait([signal.SIGINT])
    print("interrupted", flush=True)
sys.exit(2)
"""


def python(program: str, *arguments: str) -> subprocess.Popen[str]:
    """A session of its own: no terminal from which the children would get signals by themselves."""
    return subprocess.Popen(
        ["env", "--default-signal=INT,HUP,TERM", sys.executable, "-c", program, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def executable(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGHUP])
def test_request_to_terminate_is_none_that_a_command_takes_for_ctrl_c(end: signal.Signals) -> None:
    with python(PATIENT) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "go on\n"
        assert process.stdout.readline() == "ready\n"
        process.send_signal(end)
        out, err = process.communicate(timeout=WAIT_SECONDS)
    assert (process.returncode, out, err) == (130, "", "terminated\n")


def test_hangup_that_nohup_switched_off_stays_off() -> None:
    program = "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n" + PATIENT
    with python(program) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "go on\n"
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=WAIT_SECONDS)
    assert process.returncode == 130


def test_chat_does_not_take_a_request_to_terminate_for_ctrl_c(monkeypatch: pytest.MonkeyPatch) -> None:
    def terminated(_prompt: str) -> str:
        raise Terminated

    monkeypatch.setattr("builtins.input", terminated)
    loop = chat._Chat(None, None, {})  # type: ignore[arg-type]
    with pytest.raises(Terminated):
        loop.run()
    monkeypatch.setattr(main.LazyGroup, "get_command", lambda *_: click.Command("chat", callback=loop.run))
    assert main.run(["chat"]) == 130


# ----------------------------------------------------------------------------------------------- colibri-sdk test


@pytest.mark.parametrize("late", ["0", "1"])
@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_tests_may_take_their_time_to_end(end: signal.Signals, late: str, tmp_path: Path) -> None:
    """The second Ctrl-C finds them still ending, and kills nothing either; nor when it comes while the first one is
    passed on: the command ended then, and they went on."""
    pytest_program = executable(tmp_path / "program", SLOW_TO_END.format(python=sys.executable))
    with python(TEST_COMMAND, str(pytest_program), late) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        for number in (end, signal.SIGINT):
            process.send_signal(number)
            assert select.select([process.stdout], [], [], WAIT_SECONDS)[0], "it was not told"
            assert process.stdout.readline() == "interrupted\n"
        process.communicate(timeout=WAIT_SECONDS)
    assert process.returncode == 130


@pytest.mark.parametrize(
    ("ending", "code"),
    [("exit 0", 0), ("exit 1", 1), ("exit 2", 1), ("exit 5", 1), ("kill -INT $$", 130), ("kill -KILL $$", 130)],
)
def test_exit_code_of_the_tests(ending: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pytest's own code for an interruption, 2, is also that of tests which cannot be collected."""
    monkeypatch.setattr(sys, "executable", str(executable(tmp_path / "program", f"#!/bin/sh\n{ending}\n")))
    assert main.run(["test"]) == code


# ----------------------------------------------------------------------------------------------- Ctrl-C in a chat


def interrupt() -> None:
    signal.raise_signal(signal.SIGINT)


def wait_for_the_interrupt() -> None:
    """In short pieces, as the link waits: a signal that comes just before one is noticed after it."""
    give_up = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < give_up:
        threading.Event().wait(0.1)
    raise AssertionError("the interrupt did not come")


def test_ctrl_c_that_cancels_is_no_interrupt() -> None:
    called = threading.Event()

    def cancel() -> bool:
        called.set()
        return True

    with chat._interrupt_calls(cancel):
        interrupt()
        assert called.wait(WAIT_SECONDS)


def test_ctrl_c_with_nothing_to_cancel_is_an_interrupt_where_the_main_thread_waits() -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), chat._interrupt_calls(lambda: False):
        interrupt()
        wait_for_the_interrupt()
    assert signal.getsignal(signal.SIGINT) is before


def test_link_that_is_lost_while_cancelling_is_no_concern_of_that_thread() -> None:
    """An exception in it would fail this test: see filterwarnings."""
    threads: list[threading.Thread] = []

    def cancel() -> bool:
        threads.append(threading.current_thread())
        raised.set()
        raise errors.LinkLostError("the line broke")

    raised = threading.Event()
    with chat._interrupt_calls(cancel):
        interrupt()
        assert raised.wait(WAIT_SECONDS)
        threads[0].join(WAIT_SECONDS)


def test_ctrl_c_before_the_request_is_sent_keeps_the_chat(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Waiting:
        """A device that is asked something which nothing cancels."""

        def cancel(self) -> bool:
            return False

        def clear_stats(self) -> None:
            interrupt()
            wait_for_the_interrupt()

    class Alone:
        def prompt(self, text: str) -> str:
            return text

    lines = iter(["hello", "/quit"])
    monkeypatch.setattr("builtins.input", lambda _prompt: next(lines))
    assert chat._Chat(Waiting(), Alone(), {}).run() == 0  # type: ignore[arg-type]
    assert "(cancelled)" in capsys.readouterr().err


# ----------------------------------------------------------------------------------------------- options of devices


def test_chat_needs_no_place_for_its_history(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A user without a home, as in many containers; and one whose first chat it is."""
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    (tmp_path / "no-directory").write_text("")
    for home in ("no-directory", "new"):
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / home))
        with chat._line_editing():
            pass
    assert (tmp_path / "new" / "colibri-sdk" / "chat-history").is_file()


def test_speed_of_an_emulated_line_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    image = tmp_path / "a.colibri"
    image.write_bytes(b"")
    assert main.run(["run", "--model", str(image), "--baud", "9600", "hello"]) == errors.EXIT_USAGE
    assert "--baud is for real devices" in capsys.readouterr().err


def test_no_memory_at_all_is_not_the_usual_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    image = tmp_path / "a.colibri"
    image.write_bytes(MAGIC)
    assert main.run(["run", "--model", str(image), "--board", "rpi3", "--memory", "0", "hi"]) == errors.EXIT_USAGE
    assert "rpi3 cannot have 0 bytes of memory" in capsys.readouterr().err


def test_a_key_is_built_into_emulated_boards_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key = tmp_path / "a.public.json"
    key.write_text("{}")
    assert main.run(["run", "--public-key", str(key), "hello"]) == errors.EXIT_USAGE
    assert "--public-key is for emulated boards" in capsys.readouterr().err
    (tmp_path / "a.colibri").write_bytes(b"")
    line = ["run", "--model", str(tmp_path / "a.colibri"), "--public-key", str(key), "hello"]
    assert main.run(line) == errors.EXIT_USAGE
    assert f"{key} is no colibri public key" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--memory", "--public-key"])
def test_what_does_not_reach_a_cards_own_firmware_is_refused(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The emulated board boots what the card has: without a key, for example, where one was asked for."""
    card = tmp_path / "card.img"
    card.write_bytes(b"")
    _, public, _ = new_key(tmp_path)
    words = {"--memory": "64M", "--public-key": str(public)}
    line = ["emulate", "--board", "rpi3", "--card", str(card), option, words[option]]
    assert main.run(line) == errors.EXIT_USAGE
    assert "rpi3 boots the firmware on its card" in capsys.readouterr().err


@pytest.mark.parametrize(("words", "wanted"), [([], {}), (["--timeout", "2.5"], {"timeout": 2.5})])
@pytest.mark.parametrize("place", ["emulated", "on_port"])
def test_timeout_reaches_the_device_when_it_is_given(
    place: str, words: list[str], wanted: dict[str, float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, object] = {}

    def opened(*_: object, **options: object) -> None:
        seen.update(options)
        raise errors.NoDeviceError("none")

    monkeypatch.setattr(f"colibri_sdk.targets.{place}", opened)
    image = tmp_path / "a.colibri"
    image.write_bytes(MAGIC)
    line = ["selftest", *(["--model", str(image)] if place == "emulated" else ["--port", "unix:nowhere"]), *words]
    assert main.run(line) == errors.EXIT_NO_DEVICE
    assert {name: value for name, value in seen.items() if name == "timeout"} == wanted
