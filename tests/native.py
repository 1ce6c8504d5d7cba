# SPDX-License-Identifier: Apache-2.0
"""Compiles pieces of the engine for a test: a shared object that cffi opens, with undefined behaviour trapped."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import cffi

ROOT = Path(__file__).resolve().parents[1]
ENGINE = ROOT / "firmware" / "engine"
HAL = ROOT / "firmware" / "hal"
WARNINGS = ["-Wall", "-Wextra", "-Wconversion", "-Werror"]
FLAGS = ["-std=c11", "-O1", "-g", "-ffp-contract=off", "-fno-math-errno", *WARNINGS]
SHARED_OBJECT = "libunderTest.so"
UBSAN = ["-fsanitize=undefined", "-fno-sanitize-recover"]


def shared_object(directory: Path, sources: Iterable[str], shim: str = "", flags: Iterable[str] = ()) -> Path:
    """Compiles `sources` (paths below firmware/engine) and the C text `shim` into one shared object."""
    out = directory / SHARED_OBJECT
    paths = [ENGINE / name for name in sources]
    if shim:
        paths.append(directory / "shim.c")
        paths[-1].write_text(shim, encoding="utf-8")
    command = ["cc", *FLAGS, *UBSAN, *flags, "-shared", "-fPIC", f"-I{ENGINE}", *map(str, paths), "-o", str(out)]
    subprocess.run(command, check=True)
    return out


def driver(directory: Path, shim: str, sources: Iterable[str]) -> Path:
    """Compiles drivers (paths below firmware/hal) for this machine, with a shim of tests/hal around them."""
    out = directory / "libdriver.so"
    places = [ROOT / "tests" / "hal" / "host", HAL, HAL / "drivers"]
    paths = [str(ROOT / "tests" / "hal" / shim), *(str(HAL / name) for name in sources)]
    command = ["cc", *FLAGS, *UBSAN, "-shared", "-fPIC", *(f"-I{place}" for place in places), *paths, "-o", str(out)]
    subprocess.run(command, check=True)
    return out


class Native:
    """An opened shared object: `lib` and `ffi` of cffi, and arrays that C may fill."""

    def __init__(self, path: Path, declarations: str) -> None:
        self.ffi = cffi.FFI()
        self.ffi.cdef(declarations)
        self.lib: Any = self.ffi.dlopen(str(path))

    def array(self, ctype: str, values: Any) -> Any:
        """A NumPy array or bytes as a C array of `ctype`, without a copy."""
        return self.ffi.from_buffer(f"{ctype}[]", values)
