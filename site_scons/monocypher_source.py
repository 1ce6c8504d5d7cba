# SPDX-License-Identifier: Apache-2.0
"""Monocypher's C source: the signatures and digests of the device's runtime. The engine has no part in it.

It comes from the source package of pymonocypher, which the SDK signs with, so that both sides run the same code. pip
brings that package from the package index and compares its SHA-256 with the one below; it stays in build/downloads, so
that later builds need no network. Whoever builds without one puts the file there.

Not called monocypher.py, because SCons would then give it to those who import the Python package.
"""

import functools
import hashlib
import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import contract_flags
from SCons.Script import Action, Alias, Dir, Environment, NoClean, Precious, Value

VERSION = "4.0.3.4"  # as in python_sdk/pyproject.toml
SHA256 = "5e56e3d3eb770a53e0b9f6274146663c11a11f3d0de5cd48e3be0428d1b07a4a"
FILES = ("monocypher.c", "monocypher.h")

# Warnings that its authors do not build with. -Wall stays.
RELAXED = ("-Wextra", "-Wconversion", "-Werror")


def _right(archive):
    return archive.is_file() and hashlib.sha256(archive.read_bytes()).hexdigest() == SHA256


def fetch(archive):
    """Brings the package to `archive`, unless it is there; returns a sentence about what went wrong, or None."""
    if _right(archive):
        return None
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=archive.parent) as directory:
        wanted = Path(directory) / "requirements.txt"
        wanted.write_text(f"pymonocypher=={VERSION} --hash=sha256:{SHA256}\n", encoding="utf-8")
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input"]
        command += ["--no-deps", "--no-binary", "pymonocypher", "--require-hashes", "--requirement", str(wanted)]
        done = subprocess.run(
            [*command, "--dest", directory], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
        found = Path(directory) / archive.name
        if not _right(found):
            reason = re.sub(r"\s+", " ", done.stderr.strip())[-400:] or "pip brought another file"
            return (
                f"Monocypher's source is not here and cannot be brought: {reason}\n"
                f"With a network, try again; without one, put {archive.name} (SHA-256 {SHA256}) into {archive.parent}/"
            )
        found.replace(archive)
    return None


def _obtain(target, source, env):
    directory = Path(str(target[0])).parent
    archive = directory.parent / "downloads" / f"pymonocypher-{VERSION}.tar.gz"
    problem = fetch(archive)
    if problem:
        print(f"error: {problem}")
        return 1
    with tarfile.open(archive) as package:
        for node in target:
            path = Path(str(node))
            member = package.extractfile(f"pymonocypher-{VERSION}/{path.name}")
            path.write_bytes(member.read())
    return 0


@functools.cache
def source(out):
    """The nodes of monocypher.c and monocypher.h below `out`, the build directory of all configurations."""
    env = Environment(tools=[])
    nodes = env.Command(
        [f"{out}/monocypher/{name}" for name in FILES],
        Value(f"{VERSION} {SHA256}"),
        Action(_obtain, f"bring Monocypher's source (pymonocypher {VERSION})"),
    )
    Alias("monocypher", nodes)
    NoClean(nodes)
    Precious(nodes)
    return nodes


def include(out):
    """The directory of monocypher.h, for CPPPATH."""
    source(out)
    return Dir(f"{out}/monocypher")


def objects(env, out, build):
    """Monocypher for one configuration. It includes nothing of a C library, on the host too."""
    flags = [flag for flag in env["CCFLAGS"] if flag not in RELAXED]
    return env.Object(f"{build}/obj/monocypher.o", source(out)[0], CCFLAGS=[*flags, *contract_flags.FREESTANDING])
