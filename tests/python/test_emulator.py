# SPDX-License-Identifier: Apache-2.0
"""The emulator around a board: nothing lost, nothing left running, and failures that say what happened."""

from __future__ import annotations

import dataclasses
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from colibri_sdk import emulator
from colibri_sdk.boards import Board, load_board
from colibri_sdk.build import Firmware
from colibri_sdk.emulator.emulator import Emulator
from colibri_sdk.emulator.lines import PipeLine, SocketLine
from colibri_sdk.emulator.parent import end_with_parent
from colibri_sdk.emulator.qemu import machine_arguments
from colibri_sdk.emulator.relay import Relay
from colibri_sdk.errors import EmulatorError, ToolMissingError, UsageError
from colibri_sdk.targets import on_card

WAIT_SECONDS = 60.0


def read_exactly(line: socket.socket, size: int) -> bytes:
    line.settimeout(WAIT_SECONDS)
    data = b""
    while len(data) < size:
        part = line.recv(size - len(data))
        if not part:
            break
        data += part
    return data


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, Relay]]:
    """The board's end of a line, and the relay on the other."""
    board, ours = socket.socketpair()
    relay = Relay(SocketLine(ours))
    yield board, relay
    relay.close()
    board.close()


def listening(relay: Relay) -> threading.Thread:
    """The relay's thread that takes what the board says, and ends with it."""
    return relay._threads[0]


def test_what_was_said_before_anyone_listened_is_delivered(ends: tuple[socket.socket, Relay]) -> None:
    board, relay = ends
    board.sendall(b"boot message ")
    with relay.attach() as user:
        board.sendall(b"and more")
        assert read_exactly(user, 21) == b"boot message and more"
        user.sendall(b"hello board")
        assert read_exactly(board, 11) == b"hello board"
    assert relay.recorded() == b"boot message and more"


def test_next_user_takes_the_line_over(ends: tuple[socket.socket, Relay]) -> None:
    board, relay = ends
    first = relay.attach()
    board.sendall(b"one")
    assert read_exactly(first, 3) == b"one"
    with relay.attach() as second:
        assert read_exactly(first, 1) == b""  # cut off
        board.sendall(b"two")
        assert read_exactly(second, 3) == b"two"
        second.sendall(b"back")
        assert read_exactly(board, 4) == b"back"
    first.close()


def test_user_who_does_not_read_stops_the_output_and_not_the_input(ends: tuple[socket.socket, Relay]) -> None:
    board, relay = ends
    flood = bytes(range(256)) * 16384  # 4 MiB: more than all buffers on the way
    sender = threading.Thread(target=board.sendall, args=(flood,))
    with relay.attach() as user:
        sender.start()
        user.sendall(b"stop please")
        assert read_exactly(board, 11) == b"stop please"
        assert len(relay.recorded()) < len(flood)
        assert read_exactly(user, len(flood)) == flood
    sender.join(WAIT_SECONDS)
    assert not sender.is_alive()
    assert relay.recorded() == flood


def test_end_of_the_board_is_the_end_of_the_line(ends: tuple[socket.socket, Relay]) -> None:
    board, relay = ends
    with relay.attach() as user:
        board.sendall(b"last words")
        board.close()
        assert read_exactly(user, 100) == b"last words"
    with relay.attach() as late:
        assert read_exactly(late, 1) == b""
    assert relay.recorded() == b"last words"


def test_last_words_wait_for_who_comes_after_the_end(ends: tuple[socket.socket, Relay]) -> None:
    board, relay = ends
    board.sendall(b"last words")
    board.close()
    listening(relay).join(WAIT_SECONDS)
    with relay.attach() as late:
        assert read_exactly(late, 100) == b"last words"
    relay.close()
    with relay.attach() as nobody:
        assert read_exactly(nobody, 1) == b""


def test_user_who_leaves_unread_output_behind_stops_nothing() -> None:
    """Two threads learn of it, in either order, and the one that waits for the user must be told by the first."""
    flood = bytes(1 << 21)
    for _ in range(60):
        board, ours = socket.socketpair()
        relay = Relay(SocketLine(ours))
        with relay.attach() as user:
            sender = threading.Thread(target=board.sendall, args=(flood,), daemon=True)
            sender.start()
            read_exactly(user, 1)
        sender.join(WAIT_SECONDS)
        stuck = sender.is_alive()
        board.close()
        listening(relay).join(WAIT_SECONDS)
        relay.close()
        assert not stuck
        assert relay.recorded() == flood


def test_line_is_not_closed_while_a_thread_sends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that was late sent by a descriptor's number, which by then could be that of another file."""

    class Late:
        def __init__(self) -> None:
            self.ended, self.sending, self.go, self.sent = (threading.Event() for _ in range(4))
            self.closed = self.sent_when_closed = False

        def receive(self, size: int) -> bytes:
            self.ended.wait()
            return b""

        def send(self, data: bytes) -> None:
            self.sending.set()
            self.go.wait()
            self.sent_when_closed = self.closed
            self.sent.set()

        def end(self) -> None:
            self.ended.set()

        def close(self) -> None:
            self.closed = True

    monkeypatch.setattr("colibri_sdk.emulator.relay.END_SECONDS", 0.01)
    line = Late()
    relay = Relay(line)
    with relay.attach() as user:
        user.sendall(b"x")
        line.sending.wait()
        relay.close()
        line.go.set()
        line.sent.wait()
    assert not line.sent_when_closed


def test_pipe_takes_many_single_bytes_that_nobody_reads(tmp_path: Path) -> None:
    """What the pipe is for: a UART model that writes byte by byte and drops what is not taken."""
    line = PipeLine(tmp_path / "serial")
    board_out = os.open(tmp_path / "serial.out", os.O_RDWR | os.O_NONBLOCK)
    board_in = os.open(tmp_path / "serial.in", os.O_RDWR | os.O_NONBLOCK)
    line.started()
    for number in range(50_000):
        assert os.write(board_out, bytes([number % 256])) == 1
    received = b""
    while len(received) < 50_000:
        received += line.receive(65536)
    assert received == bytes(number % 256 for number in range(50_000))
    line.send(b"input")
    assert os.read(board_in, 16) == b"input"
    os.close(board_out)
    os.close(board_in)
    assert line.receive(16) == b""
    line.close()


@pytest.fixture
def fake_board(tmp_path: Path) -> Board:
    """A board whose emulator is whatever program the test puts at `program`."""
    board = load_board("virt-riscv64")
    return dataclasses.replace(board, emulator=dataclasses.replace(board.emulator, program=str(tmp_path / "program")))


def program(tmp_path: Path, script: str) -> Firmware:
    path = tmp_path / "program"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    elf = tmp_path / "firmware.elf"
    elf.write_bytes(b"")
    return Firmware(elf, None, {})


def test_emulator_that_ends_at_once_is_quoted(fake_board: Board, tmp_path: Path) -> None:
    firmware = program(tmp_path, "echo 'cannot set up guest memory' >&2; exit 3")
    with pytest.raises(EmulatorError, match="exit code 3: cannot set up guest memory"):
        emulator.start(fake_board, firmware=firmware)


def test_a_cards_board_that_ends_at_once_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was said that the other side closed the line, and to check the cable. The line ends before the process."""
    path = tmp_path / "program"
    end = "import os, sys, time; os.close(int(sys.argv[1])); time.sleep(0.5); sys.exit(2)"
    program(tmp_path, f"echo 'cannot map 2147483648 bytes' >&2; exec {sys.executable} -c '{end}' $2")
    monkeypatch.setattr("colibri_sdk.build.build", lambda *_, **__: Firmware(path, None, {}))
    (tmp_path / "card.img").write_bytes(bytes(512))
    with (
        pytest.raises(EmulatorError, match="exit code 2: cannot map 2147483648 bytes"),
        on_card(tmp_path / "card.img"),
    ):
        pass


def test_wrong_option_is_reported_in_qemus_words() -> None:
    board = load_board("virt-riscv64")
    firmware = Firmware(Path("/bin/true"), None, {})
    with pytest.raises(EmulatorError, match="no-such-option"):
        emulator.start(board, firmware=firmware, arguments=["-no-such-option"])


def test_missing_emulator_is_named(fake_board: Board, tmp_path: Path) -> None:
    firmware = program(tmp_path, "")
    (tmp_path / "program").unlink()
    with pytest.raises(ToolMissingError, match="is not installed"):
        emulator.start(fake_board, firmware=firmware)


def test_missing_firmware_and_storage_are_named(tmp_path: Path) -> None:
    board = load_board("virt-riscv64")
    with pytest.raises(UsageError, match="needs firmware"):
        emulator.start(board)
    with pytest.raises(UsageError, match="is not built"):
        emulator.start(board, firmware=Firmware(tmp_path / "nothing.elf", None, {}))
    with pytest.raises(UsageError, match="does not exist"):
        emulator.start(board, firmware=Firmware(Path("/bin/true"), None, {}), storage=tmp_path / "nothing.img")


def test_nothing_is_left_after_a_failure(fake_board: Board, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    firmware = program(tmp_path, "exit 1")
    threads = set(threading.enumerate())  # those of other tests may be about to end
    with pytest.raises(EmulatorError):
        emulator.start(fake_board, firmware=firmware)
    assert list((tmp_path / "temporary").iterdir()) == []
    assert set(threading.enumerate()) <= threads


class InterruptedMonitor:
    """Ctrl-C while QEMU is asked to end."""

    def execute(self, command: str, arguments: dict[str, object] | None = None) -> object:
        raise AssertionError

    def quit(self) -> None:
        raise KeyboardInterrupt


@pytest.mark.parametrize("script", ["exec cat", "trap '' TERM; echo ready; while :; do read line; done"])
def test_interrupted_stop_still_ends_the_emulator(script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that takes no notice of a polite signal."""
    monkeypatch.setattr("colibri_sdk.emulator.emulator.STOP_SECONDS", 0.2)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    running = Emulator("stubborn")
    os.mkfifo(running.directory / "never")
    running.launch(["/bin/sh", "-c", f"exec <>{running.directory}/never; {script}"])
    running.attach_monitor(InterruptedMonitor())
    assert running.pid is not None
    with pytest.raises(KeyboardInterrupt):
        running.stop()
    assert running.wait(WAIT_SECONDS) < 0  # by a signal; stop() waits for a killed one no longer than for others
    with pytest.raises(ProcessLookupError):
        os.kill(running.pid, 0)
    assert not running.directory.exists()


def test_second_interrupt_does_not_keep_the_emulator_alive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes while the first signal is being waited for."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    running = Emulator("stubborn")
    os.mkfifo(running.directory / "never")
    running.launch(["/bin/sh", "-c", f"exec cat {running.directory}/never"])
    running.attach_monitor(InterruptedMonitor())
    process = running._process
    assert process is not None
    monkeypatch.setattr(process, "terminate", InterruptedMonitor().quit)
    with pytest.raises(KeyboardInterrupt):
        running.stop()
    assert process.returncode == -signal.SIGKILL


def test_emulator_ends_with_the_program_that_is_killed(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "never")
    program = (
        "import sys, signal; from colibri_sdk.emulator import Emulator; running = Emulator('orphan');"
        f"running.launch(['cat', '{tmp_path}/never']); print(running.pid, running.directory, flush=True);"
        "signal.pause()"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid, directory = parent.stdout.readline().split()
        orphan = os.pidfd_open(int(pid))
        parent.kill()
    assert select.select([orphan], [], [], WAIT_SECONDS)[0], "it lives on"
    os.close(orphan)
    shutil.rmtree(directory)


def test_emulator_of_a_thread_outlives_the_thread(tmp_path: Path) -> None:
    """Linux would end it with the thread: a worker of a pool, say, that is done with starting it."""
    running = Emulator("of a thread")
    os.mkfifo(running.directory / "never")
    worker = threading.Thread(target=running.launch, args=(["cat", str(running.directory / "never")],))
    worker.start()
    worker.join(WAIT_SECONDS)
    assert end_with_parent() is not None
    writer = os.open(running.directory / "never", os.O_WRONLY)  # waits until the program reads, so it lives
    assert running.running
    os.close(writer)
    assert running.wait(WAIT_SECONDS) == 0
    running.stop()


def test_commas_in_file_names_reach_qemu(tmp_path: Path) -> None:
    words = machine_arguments(load_board("virt-riscv64"), Path("fw.elf"), Path("a,b.img"), None)
    assert "if=none,id=model,format=raw,file=a,,b.img" in words


def test_cards_and_disks_go_where_the_board_file_says() -> None:
    words = " ".join(machine_arguments(load_board("rpi3"), Path("kernel8.img"), Path("card.img"), None))
    assert "-M raspi3b -m 1024M" in words
    assert "-drive if=sd,format=raw,file=card.img" in words
    words = " ".join(machine_arguments(load_board("virt-aarch64"), Path("fw.elf"), Path("disk.img"), "max"))
    assert "-cpu max" in words
    assert "-device virtio-blk-device,drive=model" in words


@pytest.mark.qemu
def test_emulated_board_is_gone_after_the_block_even_when_the_test_fails() -> None:
    from bringup import built

    board, firmware = built("virt-riscv64")
    with pytest.raises(ZeroDivisionError), emulator.start(board, firmware=firmware) as running:
        pid, directory = running.pid, running.directory
        assert pid is not None
        os.kill(pid, 0)
        raise ZeroDivisionError
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert not directory.exists()
    shown = running.console_output()  # cut anywhere, as the board was
    running.stop()  # again: no harm
    assert running.console_output() == shown


@pytest.mark.qemu
def test_emulator_that_is_killed_ends_the_line() -> None:
    from bringup import Console, built

    board, firmware = built("virt-aarch64")
    with emulator.start(board, firmware=firmware) as running:
        console = Console(running)
        assert running.pid is not None
        os.kill(running.pid, signal.SIGKILL)
        assert console.closed_by_board
        assert running.wait(WAIT_SECONDS) == -signal.SIGKILL
        assert b"bring-up" in running.console_output()
        with pytest.raises(EmulatorError, match="exit code -9"):
            raise running.failure("the board is silent")
        console.close()


@pytest.mark.qemu
def test_memory_can_be_read_while_the_board_runs() -> None:
    from bringup import Console, built, symbols

    board, firmware = built("hifive-unleashed")
    with emulator.start(board, firmware=firmware) as running:
        console = Console(running)
        start = symbols(firmware.elf)["hal_image_start"][0]
        assert firmware.binary is not None
        assert running.read_memory(start, 4096) == firmware.binary.read_bytes()[:4096]
        console.close()


@pytest.mark.qemu
def test_raspberry_pi_boots_the_firmware_that_lies_on_its_card(tmp_path: Path) -> None:
    """Not the one that was built last: the card decides, as on a real board."""
    from bringup import Console, built
    from colibri_sdk.flash import write_card

    board, firmware = built("rpi3")
    model = tmp_path / "model.colibri"
    model.write_bytes(b"COLIBRI\x1a" + bytes(100_000))
    card = tmp_path / "card.img"
    write_card(board, firmware=firmware, model=model, to=card)
    other = Firmware(tmp_path / "other.elf", tmp_path / "other.img", {})
    with emulator.start(board, firmware=other, storage=card) as running:
        console = Console(running)
        assert console.banner.string("name") == "rpi3"
        assert console.ask("disk")["blocks"] == card.stat().st_size // 512
        console.close()
