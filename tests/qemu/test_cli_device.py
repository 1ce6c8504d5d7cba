# SPDX-License-Identifier: Apache-2.0
"""The commands that talk to a device, as a user runs them: in a process of their own, on an emulated board."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pexpect
import pytest

from colibri_sdk.convert import pack

# Of a command with all that it has to build, where other builds may come first.
WAIT_SECONDS = 1200.0
PROMPT, ANSWER = "open gate 2", '{"intent":"open","device":"gate","id":2}'
COLIBRI = [sys.executable, "-m", "colibri_sdk"]
FIELDS = {
    "board",
    "text",
    "token_ids",
    "prompt_ids",
    "logits_sha256",
    "finish_reason",
    "arena_bytes",
    "arena_peak_bytes",
    "kernels",
    "timings",
    "experts",
    "store",
}
PackModel = Callable[[str], Path]


def run(*line: str, code: int = 0) -> str:
    """stdout of a command that ends with `code`."""
    done = subprocess.run([*COLIBRI, *line], capture_output=True, text=True, timeout=WAIT_SECONDS, check=False)
    assert done.returncode == code, done.stderr
    return done.stdout


@contextmanager
def emulate(image: Path, *options: str, end: signal.Signals = signal.SIGINT) -> Iterator[str]:
    """`colibri-sdk emulate` in the background; the port where it says that it can be attached to."""
    line = [*COLIBRI, "emulate", "--board", "host", "--model", str(image), "--json", *options]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())["attach"]
        finally:
            process.send_signal(end)
            process.communicate(timeout=60)
    assert process.returncode == 130


@pytest.mark.qemu
@pytest.mark.parametrize("board", ["rpi3", "virt-aarch64", "virt-riscv64", "hifive-unleashed"])
def test_demo_as_json(board: str) -> None:
    answer = json.loads(run("demo", "--board", board, "--prompt", PROMPT, "--prompt", "hello", "--json"))
    assert answer.keys() >= FIELDS
    assert (answer["board"], answer["text"], answer["finish_reason"]) == (board, ANSWER, "eos")
    assert answer["arena_peak_bytes"] == answer["arena_bytes"]
    assert [one["prompt"] for one in answer["answers"]] == [PROMPT, "hello"]
    positions = answer["timings"]["prompt_tokens"] + answer["timings"]["generated_tokens"] - 1
    assert [sum(layer) for layer in answer["experts"]] == [2 * positions] * 4
    assert answer["firmware_bytes"] > 50_000 and answer["image_bytes"] > 1_000_000


@pytest.mark.qemu
def test_demo_for_people() -> None:
    text = run("demo", "--board", "virt-aarch64", "--prompt", PROMPT)
    assert f"> {PROMPT}\n{ANSWER}\n" in text
    for word in ("firmware", "image", "arena", "first token", "tokens/s", "Experts chosen"):
        assert word in text


def test_demo_on_this_machine() -> None:
    assert json.loads(run("demo", "--board", "host", "--prompt", PROMPT, "--json"))["text"] == ANSWER


@pytest.mark.parametrize("board", [pytest.param("rpi3", marks=pytest.mark.qemu), "host"])
def test_demo_with_a_key(board: str, tmp_path: Path) -> None:
    """The firmware trusts the key, the model is signed with it; with the private half alone as well."""
    run("keys", "new", str(tmp_path))
    private, public = tmp_path / "colibri.private.json", tmp_path / "colibri.public.json"
    line = ("demo", "--board", board, "--prompt", PROMPT)
    answer = json.loads(run(*line, "--key", str(private), "--json"))
    assert (answer["text"], answer["has_key"]) == (ANSWER, True)
    text = run(*line, "--public-key", str(public), "--key", str(private))
    assert "only what its key's owner signed" in text and ANSWER in text


def test_a_demo_that_its_key_refuses(tmp_path: Path) -> None:
    run("keys", "new", str(tmp_path))
    run("keys", "new", str(tmp_path), "--name", "other")
    line = ("demo", "--board", "host", "--public-key", str(tmp_path / "other.public.json"))
    assert run(*line, code=2) == ""
    assert ANSWER not in run(*line, "--key", str(tmp_path / "colibri.private.json"), code=8)


def test_a_card_that_its_board_would_not_start_with_is_not_written(hummingbird: PackModel, tmp_path: Path) -> None:
    run("keys", "new", str(tmp_path))
    image, card = tmp_path / "hb.colibri", tmp_path / "card.img"
    shutil.copy(hummingbird("q8"), image)
    line = ("flash", "--board", "virt-aarch64", "--model", str(image), "--to", str(card))
    line = (*line, "--public-key", str(tmp_path / "colibri.public.json"))
    sign = ("keys", "sign", str(image), "--key", str(tmp_path / "colibri.private.json"), "--board")
    run(*line, code=8)
    run(*sign, "rpi3")
    run(*line, code=7)
    assert not card.exists()
    run(*sign, "virt-aarch64")
    run(*line)
    assert card.exists()


def test_run_gives_the_answer_alone(hummingbird: PackModel) -> None:
    assert run("run", str(hummingbird("q8")), PROMPT) == ANSWER + "\n"


def test_run_as_json(hummingbird: PackModel) -> None:
    answer = json.loads(run("run", str(hummingbird("q8")), PROMPT, "--max-tokens", "3", "--json"))
    assert answer.keys() == FIELDS
    assert (answer["finish_reason"], len(answer["token_ids"])) == ("length", 3)
    assert answer["prompt_ids"][0] == 0


def test_run_with_experts_from_the_storage(hummingbird: PackModel) -> None:
    """The same answer, and what it cost; the totals are the layers' sums."""
    command = ("run", str(hummingbird("q8")), PROMPT, "--max-tokens", "3", "--json")
    wanted = json.loads(run(*command))
    assert (wanted["store"]["mode"], wanted["store"]["misses"]) == ("mapped", 0)
    answer = json.loads(run(*command, "--cache-slots", "2"))
    store = answer["store"]
    assert answer["logits_sha256"] == wanted["logits_sha256"]
    assert (store["mode"], store["cache_slots"], len(store["layers"])) == ("block", 2, 4)
    for name in ("hits", "misses", "read_bytes", "prefetched", "prefetch_used"):
        assert store[name] == sum(layer[name] for layer in store["layers"])
    assert store["misses"] > 0 and store["read_bytes"] > 0 and store["stall_ms"] > 0
    assert "Expert store" in run(*command[:-1], "--cache-slots", "2", "--verbose")


def test_run_with_a_stop_text_and_without_a_template(hummingbird: PackModel) -> None:
    image = str(hummingbird("q8"))
    stopped = json.loads(run("run", image, PROMPT, "--stop", '"device"', "--json"))
    assert (stopped["text"], stopped["finish_reason"]) == ('{"intent":"open",', "stop")
    raw = json.loads(run("run", image, PROMPT, "--raw", "--max-tokens", "2", "--json"))
    assert raw["prompt_ids"] == json.loads(run("run", image, PROMPT, "--json"))["prompt_ids"][2:-1]


def test_run_verbose_shows_routing_and_times(hummingbird: PackModel) -> None:
    text = run("run", str(hummingbird("q8")), PROMPT, "--verbose")
    for title in ("Routing", "Time per layer", "Experts chosen", "Time per expert"):
        assert title in text


@pytest.mark.parametrize("options", [(), ("--pty",)], ids=["socket", "pty"])
def test_emulate_and_attach(hummingbird: PackModel, options: tuple[str, ...]) -> None:
    """Two commands, one after the other, on a board that stays."""
    with emulate(hummingbird("q8"), *options) as port:
        for _ in range(2):
            assert run("run", "--port", port, PROMPT) == ANSWER + "\n"
        assert json.loads(run("selftest", "--port", port, "--json"))["failures"] == 0


def test_top_without_prompts_shows_what_was_counted_before(hummingbird: PackModel) -> None:
    with emulate(hummingbird("q8")) as port:
        run("run", "--port", port, PROMPT)
        for _ in range(2):
            view = json.loads(run("top", "--port", port, "--json"))
            assert view["tokens"] > 0 and len(view["layers"]) == 4
            assert all(sum(layer["experts"]) == 2 * view["tokens"] for layer in view["layers"])


def test_a_choice_that_does_not_fit_leaves_the_device_answering(hummingbird: PackModel) -> None:
    """It was left without a model, for whoever came next."""
    with emulate(hummingbird("q8")) as port:
        for choice in (("--memory-limit", "100K"), ("--store", "block", "--cache-slots", "1", "--memory-limit", "1M")):
            assert run("run", "--port", port, *choice, PROMPT, code=8) == ""
            assert run("run", "--port", port, PROMPT).strip() == ANSWER
        chosen = json.loads(run("run", "--port", port, "--cache-slots", "3", PROMPT, "--json"))["store"]
        kept = json.loads(run("run", "--port", port, PROMPT, "--json"))["store"]
        again = json.loads(run("run", "--port", port, "--store", "auto", PROMPT, "--json"))["store"]
        assert [one["mode"] for one in (chosen, kept, again)] == ["block", "block", "mapped"]


@pytest.mark.parametrize("words", [("run", PROMPT), ("top", "--once"), ("chat",)], ids=lambda words: str(words[0]))
def test_a_device_without_a_model_says_so_to_all_that_ask_it(
    words: tuple[str, ...], hummingbird: PackModel, public_key: Path
) -> None:
    """The first request that needs a model was named, and what is wrong with it, but not that there is none."""
    with emulate(hummingbird("q8"), "--public-key", str(public_key)) as port:
        done = subprocess.run(
            [*COLIBRI, *words, "--port", port], capture_output=True, text=True, timeout=WAIT_SECONDS, check=False
        )
    assert (done.returncode, done.stdout) == (8, "")
    assert done.stderr.startswith(f"error: {port}: no model: signature (unsigned)\n")


def test_emulate_ends_in_order_when_it_is_terminated(hummingbird: PackModel, tmp_path: Path) -> None:
    with emulate(hummingbird("q8"), "--socket", str(tmp_path / "link"), end=signal.SIGTERM):
        assert (tmp_path / "link").exists()
    assert not (tmp_path / "link").exists()


def process_state(process: int | str) -> tuple[str, str, int]:
    """Its program's name, what it is doing (S: it sleeps), and the process that started it."""
    program, _, fields = Path(f"/proc/{process}/stat").read_text().partition("(")[2].rpartition(")")
    state, parent = fields.split()[:2]
    return program, state, int(parent)


def child_of(parent: int, name: str) -> int:
    """The child of a process whose program's name begins with `name`."""
    for directory in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it may end while we look
            program, _, its_parent = process_state(directory.name)
            if program.startswith(name) and its_parent == parent:
                return int(directory.name)
    raise AssertionError(f"process {parent} runs no {name}")


@pytest.fixture
def short_directory() -> Iterator[Path]:
    """For what a killed command leaves behind. Unlike tmp_path, its path leaves room for those of sockets."""
    with tempfile.TemporaryDirectory() as directory:
        yield Path(directory)


@pytest.mark.qemu
@pytest.mark.parametrize(
    ("ends", "codes"),
    [
        ([signal.SIGTERM], {130}),
        ([signal.SIGHUP], {130}),
        ([signal.SIGKILL], {-signal.SIGKILL}),
        # The second may also find the interpreter on its way out, with its exit code fixed or none of its own any more.
        ([signal.SIGINT, signal.SIGINT], {130, -signal.SIGINT}),
        ([signal.SIGINT, signal.SIGTERM], {130, -signal.SIGTERM}),
    ],
    ids=lambda value: "+".join(one.name for one in value) if isinstance(value, list) else "",
)
def test_no_emulated_board_stays_behind(
    ends: list[signal.Signals], codes: set[int], hummingbird: PackModel, short_directory: Path
) -> None:
    line = ["env", "--default-signal=INT,HUP,TERM", *COLIBRI, "emulate", "--board", "virt-riscv64", "--json"]
    line += ["--model", str(hummingbird("q8")), "--socket", str(short_directory / "link")]
    environment = {**os.environ, "TMPDIR": str(short_directory)}
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        said = process.stdout.readline()
        assert said, process.communicate(timeout=60)[1]
        assert json.loads(said)["board"] == "virt-riscv64"
        board = os.pidfd_open(child_of(process.pid, "qemu-system"))
        for end in ends:
            process.send_signal(end)
        _, err = process.communicate(timeout=60)
        ended = select.select([board], [], [], 60)[0]  # readable when the process has ended
        if not ended:
            signal.pidfd_send_signal(board, signal.SIGKILL)
        os.close(board)
    assert ended, "QEMU runs on"
    assert process.returncode in codes, err


def test_port_from_the_environment(hummingbird: PackModel, monkeypatch: pytest.MonkeyPatch) -> None:
    with emulate(hummingbird("q8")) as port:
        monkeypatch.setenv("COLIBRI_PORT", port)
        assert run("run", PROMPT) == ANSWER + "\n"


def test_eval_on_a_device_checks_that_it_holds_the_image(hummingbird: PackModel, tmp_path: Path) -> None:
    examples = tmp_path / "examples.jsonl"
    examples.write_text(json.dumps({"prompt": PROMPT, "answer": ANSWER}) + "\n")
    with emulate(hummingbird("q8")) as port:
        line = ("eval", "--port", port, "--json")
        result = json.loads(run(*line, str(hummingbird("q8")), str(examples)))
        assert (result["n"], result["exact"]) == (1, 1)
        assert run(*line, str(hummingbird("q4")), str(examples), code=2) == ""


def test_nothing_at_the_port_is_exit_code_3(tmp_path: Path) -> None:
    assert run("run", "--port", f"unix:{tmp_path}/nobody", "hello", code=3) == ""


def test_image_that_is_damaged_is_exit_code_7(hummingbird: PackModel, tmp_path: Path) -> None:
    broken = tmp_path / "broken.colibri"
    content = bytearray(hummingbird("q8").read_bytes())
    content[300_000] ^= 1  # a weight that every token uses; what lies behind the experts is spare
    broken.write_bytes(content)
    checked = json.loads(run("inspect", str(broken), "--verify", "--json", code=7))
    assert checked["verified"] is False
    assert [check["name"] for check in checked["checks"] if not check["ok"]][-1] == "image id"


def test_run_on_an_image_that_is_damaged_is_exit_code_7(hummingbird: PackModel, tmp_path: Path) -> None:
    broken = tmp_path / "broken.colibri"
    broken.write_bytes(hummingbird("q8").read_bytes()[:-4096])
    assert run("run", str(broken), PROMPT, code=7) == ""


def test_monitor_shows_what_the_device_logs_until_ctrl_c(hummingbird: PackModel) -> None:
    line = [*COLIBRI, "monitor", "--model", str(hummingbird("q8"))]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert "hummingbird" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode == 130


class Terminal:
    """A chat at a terminal."""

    def __init__(self, image: Path, home: Path, *options: str) -> None:
        environment = {**os.environ, "HOME": str(home), "XDG_STATE_HOME": str(home), "NO_COLOR": "1", "TERM": "dumb"}
        self.chat: Any = pexpect.spawn(
            COLIBRI[0],
            [*COLIBRI[1:], "chat", str(image), *options],
            env=environment,
            encoding="utf-8",
            timeout=WAIT_SECONDS,
        )
        self.chat.setecho(False)
        self.chat.expect("> ")

    def interrupt_prompt(self) -> None:
        """Ctrl-C when the prompt waits for a key. One that comes between the prompt and that is noticed no sooner than
        the next key: so it is with Python's readline."""
        while process_state(self.chat.pid)[1] != "S":
            time.sleep(0.001)
        self.chat.sendintr()

    def say(self, line: str) -> str:
        """What comes until the next prompt."""
        self.chat.sendline(line)
        self.chat.expect("\r\n> ")
        return str(self.chat.before)

    def end(self) -> int:
        self.chat.expect(pexpect.EOF)
        self.chat.close()
        return int(self.chat.exitstatus)


def test_chat_answers_and_ends_with_the_input(hummingbird: PackModel, tmp_path: Path) -> None:
    terminal = Terminal(hummingbird("q8"), tmp_path)
    assert ANSWER in terminal.say(PROMPT)
    assert "kernels" in terminal.say("/stats")
    assert PROMPT in terminal.say("/history")
    assert "/reset" in terminal.say("/help")
    terminal.chat.sendeof()
    assert terminal.end() == 0
    assert PROMPT in (tmp_path / "colibri-sdk" / "chat-history").read_text()


@pytest.fixture
def endless(repo_root: Path, tmp_path: Path) -> Path:
    """The demo model, with another end token, which it never chooses: its answers go on as long as they may."""
    checkpoint = shutil.copytree(repo_root / "models" / "hummingbird", tmp_path / "endless")
    for name in ("config.json", "generation_config.json"):
        settings = json.loads((checkpoint / name).read_text())
        settings["eos_token_id"] = settings["bos_token_id"]
        (checkpoint / name).write_text(json.dumps(settings))
    pack(checkpoint, tmp_path / "endless.colibri", quant="q8")
    return tmp_path / "endless.colibri"


@pytest.mark.qemu
def test_ctrl_c_cancels_the_answer_and_keeps_the_session(endless: Path, tmp_path: Path) -> None:
    """An answer without end is cut short, and the device answers the next prompt."""
    terminal = Terminal(endless, tmp_path, "--board", "virt-riscv64", "--slide")
    for _ in range(2):
        terminal.chat.sendline(PROMPT)
        terminal.chat.expect_exact(ANSWER[:9])  # not what the terminal shows of the prompt
        terminal.chat.sendintr()
        terminal.chat.expect(r"\(cancelled\)")
        terminal.chat.expect("> ")
    terminal.chat.sendline("/quit")
    assert terminal.end() == 0


def test_ctrl_c_twice_at_the_prompt_ends_the_chat(hummingbird: PackModel, tmp_path: Path) -> None:
    terminal = Terminal(hummingbird("q8"), tmp_path)
    terminal.interrupt_prompt()
    terminal.chat.expect("Ctrl-C again")
    terminal.chat.expect("> ")
    assert ANSWER in terminal.say(PROMPT)  # one Ctrl-C, an answer, one Ctrl-C are not two in a row
    terminal.interrupt_prompt()
    terminal.chat.expect("Ctrl-C again")
    terminal.chat.expect("> ")
    terminal.interrupt_prompt()
    assert terminal.end() == 130


def test_chat_tells_the_earlier_turns_when_asked(hummingbird: PackModel, tmp_path: Path) -> None:
    """The second prompt is longer than it is alone, by the first turn."""
    lines = f"{PROMPT}\n/stats\n{PROMPT}\n/stats\n/reset\n{PROMPT}\n/stats\n"
    text = subprocess.run(
        [*COLIBRI, "chat", str(hummingbird("q8")), "--history", "--card", str(hummingbird("q8")), "--max-tokens", "20"],
        input=lines,
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
        check=True,
    ).stdout
    tokens = [int(line.split()[1]) for line in text.splitlines() if line.startswith("tokens")]
    assert tokens[0] == tokens[2]
    assert tokens[1] > tokens[0] + 14
