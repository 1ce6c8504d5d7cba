# SPDX-License-Identifier: Apache-2.0
"""The host board as a process: its line, and what it says."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Callable
from typing import Any

# The fixture run_host: options of colibri-host in, the running process out.
Start = Callable[..., subprocess.Popen[bytes]]


def board_line(run_host: Start, *options: str, **more: Any) -> socket.socket:
    """The far end of a fresh host board's line."""
    ours, theirs = socket.socketpair()
    with theirs:
        run_host(*options, "--fd", str(theirs.fileno()), pass_fds=[theirs.fileno()], **more)
    return ours


def listening(process: subprocess.Popen[bytes]) -> str:
    """What the host board says it listens on."""
    assert process.stdout is not None
    word, _, where = process.stdout.readline().decode().strip().partition(" ")
    assert word == "listening"
    return where
