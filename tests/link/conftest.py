# SPDX-License-Identifier: Apache-2.0
"""Programs and libraries of the link's tests, compiled once."""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from colibri_sdk.device import Device
from link import native
from link.host_process import Start, board_line
from link.line_tool import LineTool
from made_once import MadeOnce


@pytest.fixture(scope="session")
def vectors() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((native.HERE / "vectors.json").read_text(encoding="utf-8"))
    return found


@pytest.fixture(scope="session")
def build_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("link")


@pytest.fixture(scope="session")
def line_tool(build_directory: Path) -> Iterator[LineTool]:
    sources = [native.HERE / "line_tool.c", *(native.RUNTIME / name for name in ("cobs.c", "frame.c", "messages.c"))]
    tool = LineTool(
        native.compile_c(build_directory / "line_tool", [*sources, native.ENGINE / "crc32.c"], native.SANITIZE)
    )
    yield tool
    tool.close()


@pytest.fixture(scope="session")
def fake_host(once: MadeOnce) -> Path:
    """colibri-host with the fake engine, under the sanitizers."""
    sources = [*native.host_board_sources(), *native.runtime_sources(), *native.FAKE_ENGINE]

    def make(directory: Path) -> None:
        native.compile_c(directory / "fake-host", sources, native.SANITIZE)

    return once("fake-host", make) / "fake-host"


@pytest.fixture(scope="session")
def fake_image(build_directory: Path) -> Path:
    path = build_directory / "fake.colibri"
    path.write_bytes(b"C" * 8192)
    return path


@pytest.fixture
def run_host(fake_host: Path, fake_image: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """run_host(*options) starts the fake host; it must end cleanly, or be still alive, at the test's end."""
    running: list[subprocess.Popen[bytes]] = []

    def start(*options: str, image: bool = True, pass_fds: Sequence[int] = (), **more: Any) -> subprocess.Popen[bytes]:
        command = [str(fake_host), *([str(fake_image)] if image else []), *options]
        running.append(subprocess.Popen(command, pass_fds=pass_fds, stderr=subprocess.PIPE, **more))
        return running[-1]

    yield start
    for process in running:
        if process.poll() is None:
            process.terminate()
        _, errors = process.communicate(timeout=60)
        assert b"Sanitizer" not in errors and b"runtime error" not in errors, errors.decode()


@pytest.fixture
def line(run_host: Start) -> socket.socket:
    return board_line(run_host)


@pytest.fixture
def device(line: socket.socket, fake_host: Path) -> Iterator[Device]:
    with Device.open(line, elf=fake_host) as opened:
        yield opened
