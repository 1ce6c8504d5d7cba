# SPDX-License-Identifier: Apache-2.0
"""The device's frame code behind lines of text (line_tool.c), from Python."""

from __future__ import annotations

import subprocess
from pathlib import Path


class LineTool:
    """One process; keeps no state between lines."""

    def __init__(self, program: Path) -> None:
        self._process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, *words: object) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(" ".join(map(str, words)) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer.endswith("\n"), "the tool has ended: see its report above"
        return answer.strip()

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.wait(timeout=60) == 0


def hexed(data: bytes) -> str:
    return data.hex() or "-"
