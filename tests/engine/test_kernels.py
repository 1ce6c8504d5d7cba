# SPDX-License-Identifier: Apache-2.0
"""Every kernel set, on every architecture at hand, against the numeric contract computed by NumPy: equal bits."""

from __future__ import annotations

import hashlib
import re
import subprocess
import zlib
from collections.abc import Callable
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import kernel_contract as contract
from kernel_programs import (
    ENGINE,
    FMA,
    FREESTANDING,
    FUSED,
    KERNELS,
    PROGRAMS,
    SEPARATE,
    SPECIFIC,
    TOOLCHAINS,
    Batch,
    Toolchain,
    can_fuse,
    kernel_objects,
)

CPUS = {"aarch64": ("cortex-a53", "cortex-a76", "max")}
SETS = {
    "x86_64": {"": {"scalar", "avx2"}},
    "aarch64": {
        "cortex-a53": {"scalar", "neon"},
        "cortex-a76": {"scalar", "neon", "neon-dotprod"},
        "max": {"scalar", "neon", "neon-dotprod"},
    },
    "riscv64": {"": {"scalar"}},
}
TARGETS = [(name, cpu) for name, toolchain in TOOLCHAINS.items() for cpu in CPUS.get(toolchain.architecture, ("",))]

Driver = Callable[[str], tuple[Toolchain, Path]]
Array = NDArray[Any]


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Driver:
    """driver(toolchain) -> (toolchain, compiled driver.c), compiled once."""

    @cache
    def build(name: str) -> tuple[Toolchain, Path]:
        toolchain = TOOLCHAINS[name]
        if toolchain.missing:
            pytest.skip(f"not installed: {', '.join(toolchain.missing)}")
        directory = tmp_path_factory.mktemp(name)
        objects = kernel_objects(toolchain, directory)
        objects.append(toolchain.compile(PROGRAMS / "driver.c", directory / "driver.o"))
        return toolchain, toolchain.link_program(objects, directory / "driver")

    return build


def sets_of(toolchain: Toolchain, program: Path, cpu: str) -> list[str]:
    return toolchain.run(program, "--list", cpu=cpu).split()


# ------------------------------------------------------------------------------------------------------------ data


class Data:
    """Random numbers of the kinds that go wrong."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def floats(self, *shape: int, kind: str) -> Array:
        x = self.rng.standard_normal(shape).astype(np.float32)
        if kind == "huge":
            x = x * np.float32(2.0) ** self.rng.integers(20, 55, shape).astype(np.float32)
        elif kind == "tiny":
            x = np.ldexp(x, self.rng.integers(-152, -120, shape).astype(np.int32))
        elif kind == "ties":
            x = (self.rng.integers(-300, 301, shape) / 2).astype(np.float32)
        zero = self.rng.random(shape) < 0.05
        x[zero] = np.where(self.rng.random(shape) < 0.5, np.float32(0), np.float32(-0.0))[zero]
        return np.ascontiguousarray(x, np.float32)

    def halves(self, *shape: int) -> Array:
        bits = self.rng.integers(0, 0x10000, shape).astype(np.uint16)
        bits[(bits & 0x7C00) == 0x7C00] &= 0x83FF
        return bits.view(np.float16)

    def activations(self, n: int, blocks: int, kind: str) -> tuple[Array, Array]:
        q = self.rng.integers(-127, 128, (n, blocks, 32)).astype(np.int8)
        extreme = self.rng.random(q.shape) < 0.1
        q[extreme] = np.where(self.rng.random(q.shape) < 0.5, 127, -127).astype(np.int8)[extreme]
        return q, np.abs(self.floats(n, blocks, kind=kind))

    def tiles(self, dtype: np.dtype[Any], tiles: int, blocks: int) -> Array:
        count = tiles * blocks * dtype.itemsize
        raw = self.rng.integers(0, 256, count).astype(np.uint8)
        out = raw.view(dtype).reshape(tiles, blocks).copy()
        out["scale"] = self.halves(tiles, blocks, 8)
        if dtype == contract.Q8:
            out["q"][self.rng.random(out["q"].shape) < 0.05] = -128
        return out


KINDS = ("ordinary", "huge", "tiny", "ties")


def padded(y: Array, stride: int) -> Array:
    """Rows of y at `stride`, with driver.c's pattern in the gaps."""
    out = np.full((len(y), stride), np.frombuffer(b"\x5a" * 4, np.float32)[0], np.float32)
    out[:, : y.shape[1]] = y
    return out


def add_products(batch: Batch, data: Data, tiles: int, blocks: int, n: int, kind: str) -> None:
    stride = 8 * tiles + int(data.rng.integers(0, 5))
    x, scale = data.activations(n, blocks, kind)
    w8, w4 = data.tiles(contract.Q8, tiles, blocks), data.tiles(contract.Q4, tiles, blocks)
    for operation, w, values in (
        ("matmul_q8", w8, contract.q8_weights(w8)),
        ("matmul_q4", w4, contract.q4_weights(w4)),
    ):
        y = contract.matmul_quantised(values, w["scale"], x, scale)
        batch.add(operation, (tiles, blocks, n, 0, stride), [w, x, scale], [padded(y, stride)])

    cols = int(data.rng.integers(1, 8 * blocks + 2))
    x_stride = cols + int(data.rng.integers(0, 4))
    xf = data.floats(n, x_stride, kind=kind)
    half = data.halves(tiles, cols, 8)
    single = data.floats(tiles, cols, 8, kind="ordinary" if kind == "tiny" else kind)
    for operation, weights in (("matmul_f16", half), ("matmul_f32", single)):
        y = contract.matmul_float(weights, xf[:, :cols])
        batch.add(operation, (tiles, cols, n, x_stride, stride), [weights, xf], [padded(y, stride)])


def add_vectors(batch: Batch, data: Data, n: int, kind: str) -> None:
    none = np.float32(0)
    other = "ordinary" if kind == "tiny" else kind
    a, b, h = data.floats(n, kind=kind), data.floats(n, kind=other), data.halves(n)
    p = data.floats(1, kind=other)[0]
    batch.add("dot_f32", (n,), [a, b], [contract.dot(a, b), a])
    batch.add("dot_f16", (n,), [a, h], [contract.dot(a, h), a])
    batch.add("axpy_f32", (n,), [a, b], [none, a + p * b], float(p))
    batch.add("axpy_f16", (n,), [a, h], [none, a + p * h.astype(np.float32)], float(p))
    batch.add("swiglu", (n,), [a, b], [none, contract.swiglu(a, b)])
    batch.add("narrow_f16", (n,), [a, b], [none, a.astype(np.float16)])
    top = np.float32(1.25)
    x = data.rng.uniform(-110, 60, n).astype(np.float32) if kind == "ordinary" else a
    e = contract.exp(x - top)
    batch.add("exp_sum", (n,), [x, b], [contract.lane_sum(e), e], float(top))


def add_quantize(batch: Batch, data: Data, blocks: int, kind: str) -> None:
    x = data.floats(blocks, 32, kind=kind)
    if kind == "ties":
        x[:, 5] = 127  # the inverse is 1, so that halves are ties
        x = np.clip(x, -127, 127)
    if kind == "tiny":
        x[0] = np.float32(9.9e-31)  # just below the limit under which a block is zero; x[1] is just at it
        x[-1] = np.float32(1e-30)
    batch.add("quantize", (blocks,), [x], [np.uint32(1), *contract.quantize(x)[1:]])
    x = x.copy()
    x[data.rng.integers(blocks), data.rng.integers(32)] = data.rng.choice([np.inf, -np.inf, np.nan])
    batch.add("quantize", (blocks,), [x], [np.uint32(0)])


def contract_batch(seed: int, scale: int) -> Batch:
    batch, data = Batch(), Data(seed)
    turn = 0
    with np.errstate(over="ignore", under="ignore"):
        for tiles in (1, 2, 3, 4, 5, 9):
            for n in (1, 2, 3, 4, 5, 8, 11)[: 3 + scale]:
                for blocks in (1, 2, 3, 7)[: 1 + scale]:
                    add_products(batch, data, tiles, blocks, n, KINDS[turn % 4])
                    turn += 1
        add_products(batch, data, 16, 32, 1, "ordinary")
        for kind in KINDS:
            for n in [*range(34), 63, 64, 65, 127, 128, 129, 255, 256, 257, 1000]:
                add_vectors(batch, data, n, kind)
            for blocks in (1, 2, 3, 4, 5, 31):
                add_quantize(batch, data, blocks, kind)
    return batch


@pytest.mark.parametrize(("name", "cpu"), TARGETS)
def test_kernels_follow_the_contract(driver: Driver, tmp_path: Path, name: str, cpu: str) -> None:
    toolchain, program = driver(name)
    batch = contract_batch(seed=20, scale=3 if not toolchain.runner else 2)
    for kernels in sets_of(toolchain, program, cpu):
        assert batch.check(toolchain, program, kernels, tmp_path, cpu) > 1000


@pytest.mark.parametrize(("name", "cpu"), TARGETS)
def test_selftest_passes_and_sets_are_those_of_the_processor(driver: Driver, name: str, cpu: str) -> None:
    toolchain, program = driver(name)
    sets = sets_of(toolchain, program, cpu)
    assert sets[0] == "scalar"
    if toolchain.runner:
        assert set(sets) == SETS[toolchain.architecture][cpu]
    else:
        assert set(sets) <= SETS[toolchain.architecture][cpu]
    reports = [line.split() for line in toolchain.run(program, "--selftest", cpu=cpu).splitlines()]
    assert [r[0] for r in reports] == sets
    for _, status, cases, failures, *failed in reports:
        assert (status, failures, failed) == ("0", "0", [])
        assert int(cases) > 100
    timed, stopped, ranked = toolchain.run(program, "--choose", cpu=cpu).split()
    assert timed in sets
    assert stopped == ranked == sets[-1], "without a clock that runs the most preferred set is taken"
    *refused, everything, last = toolchain.run(program, "--misuse", cpu=cpu).split()
    assert refused == ["-2"] * 4 + ["-20"] * 2  # COLIBRI_E_ARGUMENT, COLIBRI_E_KERNELS_UNKNOWN
    assert (everything, last) == ("0", sets[-1])


def test_witnesses_of_exp_and_quantize_follow_from_the_contract() -> None:
    """The numbers that selftest.c states, computed again; and that fusing would really change each of them."""
    source = (KERNELS / "selftest.c").read_text()
    pairs = re.findall(r"\{0x([0-9a-f]{8})u, 0x([0-9a-f]{8})u\}", source)
    x, y = np.array([[int(v, 16) for v in pair] for pair in pairs], np.uint32).T.copy().view(np.float32)
    assert len(x) == 14
    assert (contract.exp(x) == y).all()

    triples = re.findall(r"\{0x(\w{8})u, 0x(\w{8})u, (\d+)\}, +/\* fused: (\d+)", source)
    assert len(triples) == 4
    for largest_bits, value_bits, separate, fused in triples:
        largest, value = np.array([int(largest_bits, 16), int(value_bits, 16)], np.uint32).view(np.float32)
        inverse = np.float32(127) / largest
        exact = Fraction(float(value)) * Fraction(float(inverse))
        assert (round(float(value * inverse)), round(exact)) == (int(separate), int(fused))


# ------------------------------------------------------------------------------------------------- numeric.h and hashes

HALVES = np.arange(0x10000, dtype=np.uint16)


def edge_floats() -> Array:
    """Around everything that binary16 rounds to, every power of two, and the ends of binary32."""
    finite = HALVES.view(np.float16).astype(np.float32)
    finite = finite[np.isfinite(finite)]
    ordered = np.unique(finite)
    middles = ((ordered[:-1].astype(np.float64) + ordered[1:]) / 2).astype(np.float32)
    powers = np.float32(2.0) ** np.arange(-149, 128, dtype=np.float32)
    ends = np.array([np.inf, -np.inf, 65519.996, 65520, 65536, 3.4028235e38], np.float32)
    around = np.concatenate([ordered, middles, powers, -powers, ends])
    near = [around, np.nextafter(around, np.float32(np.inf)), np.nextafter(around, np.float32(-np.inf))]
    return np.unique(np.concatenate(near).view(np.uint32)).view(np.float32)


def numeric_batch() -> Batch:
    batch, rng = Batch(), np.random.default_rng(7)
    defined = HALVES[~np.isnan(HALVES.view(np.float16))]
    batch.add("half_to_float", (len(defined),), [defined], [defined.view(np.float16).astype(np.float32)])
    with np.errstate(all="ignore"):
        x = edge_floats()
        x = x[~np.isnan(x)]
        batch.add("float_to_half", (len(x),), [x], [x.astype(np.float16)])
        positive = np.abs(x)
        batch.add("sqrt", (len(positive),), [positive], [np.sqrt(positive)])
        bits = rng.integers(0, 2**32, 200_000, dtype=np.uint32).view(np.float32)
        bits = bits[~np.isnan(bits)]
        batch.add("float_to_half", (len(bits),), [bits], [bits.astype(np.float16)])
        for values in (x, bits, rng.uniform(-90, 90, 200_000).astype(np.float32)):
            batch.add("exp", (len(values),), [values], [contract.exp(values)])
    whole = np.concatenate([np.arange(-1000, 1000) / 4, [2.0**22, -(2.0**22), 4194303.5, -4194303.5]])
    whole = whole.astype(np.float32)
    batch.add("round_even", (len(whole),), [whole], [np.rint(whole).astype(np.int32)])
    for n in (0, 1, 7, 8, 33):
        clean = rng.standard_normal(n).astype(np.float32)
        batch.add("all_finite", (n,), [clean], [np.uint32(1)])
        for bad in (np.inf, -np.inf, np.nan):
            for at in {0, n // 2, n - 1} if n else ():
                dirty = clean.copy()
                dirty[at] = bad
                batch.add("all_finite", (n,), [dirty], [np.uint32(0)])
    for n in [*range(140), 256, 1000, 4096 + 3, 100_003]:
        data = rng.integers(0, 256, n).astype(np.uint8)
        step = int(rng.integers(1, 150))
        start = int(rng.integers(0, 2**32)) if n % 2 else 0
        digest = np.frombuffer(hashlib.sha256(data.tobytes()).digest(), np.uint8)
        batch.add("sha256", (n, step), [data], [digest])
        for piece in {step, max(n, 1)}:  # long pieces go another way than short ones
            batch.add("crc32", (n, piece, start), [data], [np.uint32(zlib.crc32(data.tobytes(), start))])
    return batch


@pytest.mark.parametrize("name", TOOLCHAINS)
def test_numeric_functions_and_hashes(driver: Driver, tmp_path: Path, name: str) -> None:
    toolchain, program = driver(name)
    assert numeric_batch().check(toolchain, program, "scalar", tmp_path) > 300


@pytest.mark.parametrize("name", TOOLCHAINS)
def test_not_a_number_stays_one(driver: Driver, tmp_path: Path, name: str) -> None:
    """Its payload is nobody's business, but it must not turn into a number."""
    toolchain, program = driver(name)
    batch = Batch()
    floats = np.array([0x7FC00000, 0xFFC00001, 0x7F800001, 0xFFBFFFFF], np.uint32).view(np.float32)
    halves = HALVES[np.isnan(HALVES.view(np.float16))]
    for operation, x in (("exp", floats), ("float_to_half", floats), ("half_to_float", halves)):
        batch.add(operation, (len(x),), [x], [])
    (tmp_path / "in").write_bytes(batch.data)
    toolchain.run(program, "scalar", tmp_path / "in", tmp_path / "out")
    out = (tmp_path / "out").read_bytes()
    assert np.isnan(np.frombuffer(out[:16], np.float32)).all()
    assert np.isnan(np.frombuffer(out[16:24], np.float16)).all()
    assert np.isnan(np.frombuffer(out[24:], np.float32)).all()
    assert len(out) == 24 + 4 * len(halves)


@pytest.mark.parametrize(("name", "cpu"), TARGETS)
def test_kernels_let_not_a_number_through(driver: Driver, tmp_path: Path, name: str, cpu: str) -> None:
    """The engine looks for NaN in what kernels give; none may vanish on the way, in a vector or in a tail."""
    toolchain, program = driver(name)
    n = 13
    clean = np.linspace(-3, 3, n, dtype=np.float32)
    for kernels in sets_of(toolchain, program, cpu):
        batch = Batch()
        for at in range(n):
            dirty = clean.copy()
            dirty[at] = np.nan
            batch.add("exp_sum", (n,), [dirty, clean], [], 3.0)
            batch.add("swiglu", (n,), [dirty, clean], [])
            batch.add("dot_f32", (n,), [dirty, clean], [])
        (tmp_path / "in").write_bytes(batch.data)
        toolchain.run(program, kernels, tmp_path / "in", tmp_path / "out", cpu=cpu)
        out = np.frombuffer((tmp_path / "out").read_bytes(), np.float32).reshape(n, 3, 1 + n)
        for at in range(n):
            assert np.isnan(out[at, 0, [0, 1 + at]]).all(), (kernels, at)
            assert np.isnan(out[at, 1, 1 + at]), (kernels, at)
            assert np.isnan(out[at, 2, 0]), (kernels, at)
            assert np.isfinite(np.delete(out[at, 1, 1:], at)).all(), (kernels, at)


def test_exp_is_accurate(driver: Driver, tmp_path: Path) -> None:
    """Every 499th float of exp's range against binary64: the error that numeric.h states."""
    toolchain, program = driver("gcc")
    low = np.arange(0, np.float32(87.33654).view(np.uint32), 499, dtype=np.uint32).view(np.float32)
    high = np.arange(0, np.float32(88).view(np.uint32) + 1, 499, dtype=np.uint32).view(np.float32)
    x = np.concatenate([-low, high, np.array([0, -0.0], np.float32)])
    batch = Batch()
    batch.add("exp", (len(x),), [x], [])
    (tmp_path / "in").write_bytes(batch.data)
    toolchain.run(program, "scalar", tmp_path / "in", tmp_path / "out")
    got = np.frombuffer((tmp_path / "out").read_bytes(), np.float32)
    exact = np.exp(x.astype(np.float64))
    error = np.abs(got - exact) / np.spacing(exact.astype(np.float32)).astype(np.float64)
    assert len(x) > 4_000_000
    assert error.max() < 1.1
    assert (got[-2:] == 1).all()
    assert (got >= np.finfo(np.float32).tiny).all()


@pytest.mark.parametrize("name", ["gcc", "aarch64", "riscv64"])
def test_freestanding_objects_need_nothing(tmp_path: Path, name: str) -> None:
    """No libm, no compiler helper: a board provides mem* functions and nothing else."""
    toolchain = TOOLCHAINS[name]
    if toolchain.missing:
        pytest.skip(f"not installed: {', '.join(toolchain.missing)}")
    sources = ["scalar.c", "selftest.c", "choose.c", SPECIFIC[toolchain.architecture]]
    objects = [
        toolchain.compile(KERNELS / source, tmp_path / f"{source}.o", SEPARATE, "-O2", *FREESTANDING)
        for source in sources
        if source
    ]
    probe = tmp_path / "sqrt.c"
    probe.write_text('#include "numeric.h"\nfloat probe(float x);\nfloat probe(float x) { return col_sqrt(x); }\n')
    objects.append(toolchain.compile(probe, tmp_path / "sqrt.o", SEPARATE, "-O2", *FREESTANDING))
    nm = toolchain.compiler.removesuffix("gcc") + "nm"
    listing = subprocess.run([nm, "-u", *map(str, objects)], capture_output=True, text=True, check=True, timeout=60)
    needed = {line.split()[-1] for line in listing.stdout.splitlines() if line.strip().startswith("U ")}
    assert {n for n in needed if not n.startswith(("col_", "colibri_"))} <= {"memcpy", "memset", "memmove", "memcmp"}


# --------------------------------------------------------------------------------- does the self-test find mistakes?


def fused_driver(name: str, directory: Path, portable: str) -> tuple[Toolchain, Path]:
    """driver.c with the architecture's own kernels compiled as the contract forbids, and the portable files as said."""
    toolchain = TOOLCHAINS[name]
    if toolchain.missing or not (toolchain.runner or can_fuse(toolchain.architecture)):
        pytest.skip(f"not installed: {', '.join(toolchain.missing) or 'a processor with FMA'}")
    objects = kernel_objects(toolchain, directory, portable, FUSED)
    objects.append(toolchain.compile(PROGRAMS / "driver.c", directory / "driver.o"))
    return toolchain, toolchain.link_program(objects, directory / "driver")


@pytest.mark.parametrize(("name", "cpu"), [("gcc", ""), ("aarch64", "max"), ("riscv64", "")])
def test_selftest_refuses_a_fused_engine(tmp_path: Path, name: str, cpu: str) -> None:
    """Everything compiled wrongly, and so all in agreement: every set must be refused, the reference too."""
    toolchain, program = fused_driver(name, tmp_path, FUSED)
    reports = [line.split() for line in toolchain.run(program, "--selftest", cpu=cpu).splitlines()]
    assert [r[0] for r in reports] == sets_of(toolchain, program, cpu)
    for kernels, status, _, failures, *_ in reports:
        assert status == "-21", kernels  # COLIBRI_E_KERNELS_WRONG
        assert int(failures) > 50, kernels


@pytest.mark.parametrize(("name", "cpu"), [("gcc", ""), ("aarch64", "cortex-a53"), ("aarch64", "max")])
def test_fused_kernels_are_not_chosen(tmp_path: Path, name: str, cpu: str) -> None:
    toolchain, program = fused_driver(name, tmp_path, SEPARATE)
    if SPECIFIC[toolchain.architecture] is None:
        pytest.skip("this architecture has the scalar set only")
    status = {line.split()[0]: line.split()[1] for line in toolchain.run(program, "--selftest", cpu=cpu).splitlines()}
    assert status.pop("scalar") == "0"
    assert status and set(status.values()) == {"-21"}
    assert toolchain.run(program, "--choose", cpu=cpu).split() == ["scalar"] * 3


@pytest.mark.parametrize("name", ["gcc", "aarch64", "riscv64"])
def test_selftest_finds_each_mistake(tmp_path: Path, name: str) -> None:
    """One wrong function at a time: the self-test must refuse the set and name that function."""
    toolchain = TOOLCHAINS[name]
    if toolchain.missing or not (toolchain.runner or can_fuse(toolchain.architecture)):
        pytest.skip(f"not installed: {', '.join(toolchain.missing) or 'a processor with FMA'}")
    fused = [FUSED, *FMA[toolchain.architecture], "-Dcol_kernels_scalar=col_kernels_fused"]
    objects = [
        toolchain.compile(KERNELS / "scalar.c", tmp_path / "scalar.o", SEPARATE),
        toolchain.compile(KERNELS / "selftest.c", tmp_path / "selftest.o", SEPARATE),
        toolchain.compile(ENGINE / "numeric.c", tmp_path / "numeric.o", SEPARATE),
        toolchain.compile(KERNELS / "scalar.c", tmp_path / "fused.o", *fused),
        toolchain.compile(PROGRAMS / "mutants.c", tmp_path / "mutants.o", SEPARATE),
    ]
    lines = toolchain.run(toolchain.link_program(objects, tmp_path / "mutants")).splitlines()
    none, *mutants = [line.split("\t") for line in lines]
    assert none == ["none", "none", "0", "0", ""]
    assert len(mutants) == 24
    missed = [m[1] for m in mutants if m[2] != "-21" or not m[4].startswith(m[0])]
    assert missed == []
