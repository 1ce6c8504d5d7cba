# SPDX-License-Identifier: Apache-2.0
"""Compiles and runs the kernels' test programs for this machine and, in QEMU's user mode, for other architectures."""

from __future__ import annotations

import platform
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from native import ENGINE, WARNINGS

PROGRAMS = Path(__file__).resolve().parent / "engine" / "kernels"
KERNELS = ENGINE / "kernels"
PORTABLE = ("scalar.c", "choose.c", "selftest.c")
COMPILE = ["-std=c11", "-g", *WARNINGS, "-fno-math-errno", f"-I{ENGINE}"]
SEPARATE, FUSED = "-ffp-contract=off", "-ffp-contract=fast"
FREESTANDING = ["-ffreestanding", "-fno-pic", "-fno-stack-protector"]
SANITIZE = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]

# The kernel file of each architecture beyond scalar.c, and the flags that give the architecture a fused multiply-add.
SPECIFIC = {"x86_64": "avx2.c", "aarch64": "neon.c", "riscv64": None}
FMA = {"x86_64": ["-mfma"], "aarch64": [], "riscv64": []}


def can_fuse(architecture: str) -> bool:
    """Does this machine have a fused multiply-add? Emulated processors all do."""
    if architecture != "x86_64":
        return True
    info = Path("/proc/cpuinfo")
    return info.exists() and " fma " in info.read_text()


@dataclass(frozen=True)
class Toolchain:
    """A compiler and what runs its programs."""

    name: str
    architecture: str
    compiler: str
    flags: tuple[str, ...] = ()
    link: tuple[str, ...] = ()
    runner: tuple[str, ...] = ()
    missing: tuple[str, ...] = field(default=())

    def compile(self, source: Path, out: Path, *flags: str) -> Path:
        command = [self.compiler, *COMPILE, *self.flags, *flags, "-c", str(source), "-o", str(out)]
        subprocess.run(command, check=True, timeout=1200)
        return out

    def link_program(self, objects: list[Path], out: Path) -> Path:
        command = [self.compiler, *self.flags, *self.link, *map(str, objects), "-o", str(out)]
        subprocess.run(command, check=True, timeout=1200)
        return out

    def run(self, program: Path, *arguments: str | Path, cpu: str = "") -> str:
        runner = [*self.runner, *(["-cpu", cpu] if cpu else [])]
        done = subprocess.run(
            [*runner, str(program), *map(str, arguments)], capture_output=True, text=True, timeout=1200, check=False
        )
        assert done.returncode == 0, f"{program.name} on {self.name} {cpu}: {done.stdout}{done.stderr}"
        return done.stdout


def _toolchain(
    name: str, architecture: str, compiler: str, runner: str = "", flags: tuple[str, ...] = ("-O2",)
) -> Toolchain:
    needed = [tool for tool in (compiler, runner) if tool]
    return Toolchain(
        name=name,
        architecture=architecture,
        compiler=compiler,
        flags=flags,
        link=("-static",) if runner else (),
        runner=(runner,) if runner else (),
        missing=tuple(tool for tool in needed if shutil.which(tool) is None),
    )


HERE = {"AMD64": "x86_64", "arm64": "aarch64"}.get(platform.machine(), platform.machine())
TOOLCHAINS = {
    "sanitized": _toolchain("sanitized", HERE, "gcc", flags=("-O2", *SANITIZE)),
    "gcc": _toolchain("gcc", HERE, "gcc", flags=("-O3",)),
    "clang": _toolchain("clang", HERE, "clang" if shutil.which("clang") else "clang-14"),
    "aarch64": _toolchain("aarch64", "aarch64", "aarch64-linux-gnu-gcc", "qemu-aarch64"),
    "riscv64": _toolchain("riscv64", "riscv64", "riscv64-linux-gnu-gcc", "qemu-riscv64"),
}


def kernel_objects(
    toolchain: Toolchain, directory: Path, portable: str = SEPARATE, specific: str = SEPARATE
) -> list[Path]:
    """All of the kernels and what they need, the portable files and the architecture's own each with SEPARATE or with
    FUSED, which is how they must never be compiled."""
    own = SPECIFIC[toolchain.architecture]
    sources = {KERNELS / name: portable for name in PORTABLE}
    sources |= {ENGINE / name: portable for name in ("numeric.c", "sha256.c", "crc32.c")}
    sources |= {KERNELS / own: specific} if own else {}
    flags = {SEPARATE: [SEPARATE], FUSED: [FUSED, *FMA[toolchain.architecture]]}
    return [
        toolchain.compile(source, directory / f"{source.stem}.o", *flags[contract])
        for source, contract in sources.items()
    ]


# In the order of driver.c's enum.
OPERATIONS = (
    *("quantize", "matmul_q8", "matmul_q4", "matmul_f16", "matmul_f32"),
    *("dot_f32", "dot_f16", "axpy_f32", "axpy_f16", "exp_sum", "swiglu", "narrow_f16"),
    *("half_to_float", "float_to_half", "exp", "sqrt", "round_even", "all_finite", "sha256", "crc32"),
)


@dataclass
class Batch:
    """Records for driver.c, and what each of them must give."""

    data: bytearray = field(default_factory=bytearray)
    expected: list[tuple[str, bytes]] = field(default_factory=list)

    def add(
        self,
        operation: str,
        numbers: tuple[int, ...],
        arrays: list[NDArray[np.generic]],
        expected: list[NDArray[np.generic]],
        factor: float = 0.0,
    ) -> None:
        padded = (*numbers, *[0] * (8 - len(numbers)))
        head = np.array([OPERATIONS.index(operation), *padded], "<u4").tobytes()
        self.data += head + np.float32(factor).tobytes() + b"".join(a.tobytes() for a in arrays)
        self.expected.append((f"{operation} {numbers} {factor}", b"".join(np.asarray(e).tobytes() for e in expected)))

    def check(self, toolchain: Toolchain, program: Path, kernels: str, directory: Path, cpu: str = "") -> int:
        """Runs the batch on one kernel set; the number of records whose bytes were all as expected."""
        source, out = directory / "batch.in", directory / "batch.out"
        source.write_bytes(self.data)
        toolchain.run(program, kernels, source, out, cpu=cpu)
        got, at = out.read_bytes(), 0
        for name, wanted in self.expected:
            piece = got[at : at + len(wanted)]
            assert piece == wanted, f"{kernels} on {toolchain.name} {cpu}: {name}: {difference(piece, wanted)}"
            at += len(wanted)
        assert at == len(got)
        return len(self.expected)


def difference(got: bytes, wanted: bytes) -> str:
    bad = [i for i in range(0, len(wanted), 4) if got[i : i + 4] != wanted[i : i + 4]]
    first = bad[0] if bad else len(wanted)
    words = f"{got[first : first + 4].hex()} for {wanted[first : first + 4].hex()}"
    return f"{len(bad)} words differ, first at {first // 4}: {words}"
