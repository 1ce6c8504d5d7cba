# SPDX-License-Identifier: Apache-2.0
"""Device and the host board, with the fake engine, in real time: lines, cuts, and the program itself."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
from pathlib import Path

import pytest

from colibri_sdk.device import Device
from colibri_sdk.errors import LinkLostError, LinkTimeoutError, NoDeviceError
from link.cable import Cable
from link.host_process import Start, listening

# ------------------------------------------------------------------------------------------------------ lines and cuts


def test_unix_socket_for_one_client_after_the_other(run_host: Start, tmp_path: Path) -> None:
    path = tmp_path / "line"
    assert listening(run_host("--listen", f"unix:{path}", stdout=subprocess.PIPE)) == f"unix:{path}"
    texts = set()
    for _ in range(3):
        with Device.open(f"unix:{path}") as device:
            texts.add(device.generate("hello", max_tokens=9, ignore_eos=True).result.text)
    assert len(texts) == 1


def test_tcp(run_host: Start) -> None:
    where = listening(run_host("--listen", "tcp:127.0.0.1:0", stdout=subprocess.PIPE))
    _, host, port = where.split(":")
    for name in (f"socket://{host}:{port}", f"tcp:{host}:{port}"):
        with Device.open(name) as device:
            assert device.info().board == "host"


def test_pseudo_terminal(run_host: Start) -> None:
    where = listening(run_host("--pty", stdout=subprocess.PIPE))
    for _ in range(2):
        with Device.open(where.removeprefix("pty:")) as device:
            assert device.generate("hello", max_tokens=9, ignore_eos=True).result.generated_tokens == 9


def test_pipes(run_host: Start) -> None:
    from colibri_sdk.link.transport import DescriptorTransport

    process = run_host("--stdio", stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    line = DescriptorTransport("pipes", process.stdout.fileno(), process.stdin.fileno(), close=process.stdin.close)
    with Device.open(line) as device:
        assert device.info().board == "host"
    assert process.wait(60) == 0  # its line is gone, nobody could reach it
    process.stdin = None  # closed with the line


def test_a_cut_names_the_lost_request_and_the_next_one_reconnects(run_host: Start, tmp_path: Path) -> None:
    """A proxy in between is the cable: it closes both ends in the middle of an answer."""
    path, outside = tmp_path / "device", tmp_path / "cable"
    listening(run_host("--listen", f"unix:{path}", stdout=subprocess.PIPE))
    with Cable(outside, path) as cable, Device.open(f"unix:{outside}") as device:
        generation = device.generate("hello", ignore_eos=True, slide=True)  # without end
        with pytest.raises(LinkLostError, match=r"lost: request GENERATE"):
            for token in generation:
                if token.index == 3:
                    cable.cut()
        with pytest.raises(LinkLostError):
            _ = generation.result
        assert device.generate("again", max_tokens=2, ignore_eos=True).result.generated_tokens == 2


def test_a_line_that_cannot_be_opened_again(line: socket.socket, run_host: Start) -> None:
    with Device.open(line) as device:
        device.info()
        line.shutdown(socket.SHUT_RDWR)
        with pytest.raises(LinkLostError):
            device.info()
        with pytest.raises(LinkLostError, match="cannot be opened again"):
            device.info()


def test_a_silent_line() -> None:
    ours, theirs = socket.socketpair()
    with theirs, pytest.raises(NoDeviceError, match="nothing answers"):
        Device.open(ours, timeout=0.5)


def test_a_device_that_falls_silent(line: socket.socket) -> None:
    """The line stays open, but nothing comes any more: the request fails after the timeout and is named."""
    ours, middle = socket.socketpair()
    stop = threading.Event()

    def relay(source: socket.socket, target: socket.socket) -> None:
        source.settimeout(0.05)
        while not stop.is_set():
            try:
                data = source.recv(4096)
            except TimeoutError:
                continue
            if not data:
                return
            target.sendall(data)

    workers = [threading.Thread(target=relay, args=pair) for pair in ((middle, line), (line, middle))]
    for worker in workers:
        worker.start()
    try:
        with Device.open(ours) as device:
            device.info()
            stop.set()
            for worker in workers:
                worker.join()
            device._session.timeout = 1.0  # not before: what works may take its time
            with pytest.raises(LinkTimeoutError, match="STATS") as raised:
                device.stats()
            assert raised.value.waited_seconds >= 1.0
    finally:
        stop.set()


def test_closed(device: Device) -> None:
    generation = device.generate("hello", ignore_eos=True, slide=True)  # without end
    device.close()
    with pytest.raises(LinkLostError):
        _ = generation.result
    with pytest.raises(LinkLostError, match="closed"):
        device.info()
    device.close()


# ------------------------------------------------------------------------------------------------- the program itself


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "usage"),
        (["--listen", "nonsense"], "unix:PATH or tcp:HOST:PORT"),
        (["--context", "many", "image"], "--context takes a number"),
        (["--arena-limit", "-1", "image"], "--arena-limit takes a number"),
        (["/nowhere/model.colibri"], "/nowhere/model.colibri"),
        (["--block", "x", "image"], "usage"),
        (["--listen", "unix:" + "x" * 200, "IMAGE"], "at most 107 bytes"),
    ],
)
def test_wrong_options(fake_host: Path, fake_image: Path, arguments: list[str], message: str) -> None:
    command = [str(fake_host), *(str(fake_image) if word == "IMAGE" else word for word in arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, stdin=subprocess.DEVNULL, check=False)
    assert done.returncode == 2
    assert message in done.stderr


def test_an_idle_device_sleeps(run_host: Start) -> None:
    """Processor time, not wall time: a device that waits in poll(2) uses next to none."""
    ours, theirs = socket.socketpair()
    with theirs:
        process = run_host("--fd", str(theirs.fileno()), pass_fds=[theirs.fileno()])
    with Device.open(ours) as device:
        device.info()
        before = cpu_ticks(process.pid)
        assert device._session.take_log(0.0) is not None  # "ready"
        assert device._session.take_log(1.0) is None  # a second passes
        assert cpu_ticks(process.pid) - before < os.sysconf("SC_CLK_TCK") // 5


def cpu_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return int(fields[11]) + int(fields[12])
