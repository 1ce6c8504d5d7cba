# SPDX-License-Identifier: Apache-2.0
"""Real cards and disks: which may be written, and writing one so that nothing half-written ever looks whole.

What the system knows about a disk is read from sysfs; `System` says where that is, so that the rules can be tested
with a made-up machine.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from colibri_sdk.errors import FlashError, VerifyError

if TYPE_CHECKING:
    from colibri_sdk.convert.progress import Progress

BLOCK = 512
CHUNK = 4 << 20
_MOUNTED = " mounted on "
LARGEST_BYTES = 256 * 10**9  # larger than any card that people mean; smaller than most disks they would miss


@dataclass(frozen=True)
class System:
    """Where the system's facts are."""

    sysfs: Path = Path("/sys/class/block")
    mountinfo: Path = Path("/proc/self/mountinfo")
    swaps: Path = Path("/proc/swaps")


@dataclass(frozen=True)
class Disk:
    """A disk that may be written."""

    path: Path
    bytes: int
    model: str = field(default="", compare=False)


def check(path: Path, *, force: bool = False, system: System | None = None) -> Disk:
    """The disk behind `path`, or a FlashError that says why it must not be written.

    `force` allows disks that are not removable or larger than 256 GB. In use is never allowed.
    """
    system = system or System()
    name = path.resolve().name
    entry = system.sysfs / name
    if not entry.exists():
        raise _refuse(path, "is not a disk that the system knows", "`lsblk` lists them.")
    if (entry / "partition").exists():
        whole = entry.resolve().parent.name
        raise _refuse(path, "is a partition", f"A card is written as a whole: /dev/{whole}, if that is the one.")
    size = int(_text(entry / "size") or 0) * BLOCK
    if size == 0:
        raise _refuse(path, "holds no medium", "Put the card in.")
    if _text(entry / "ro") == "1":
        raise _refuse(path, "is write-protected", "Move the card's lock, or its adapter's.")
    if users := _users(entry, system):
        mounts = [user.rpartition(_MOUNTED)[2] for user in users if _MOUNTED in user]
        hint = f"Unmount it first: umount {' '.join(mounts)}" if mounts else "Let go of it first."
        raise _refuse(path, f"is in use: {', '.join(users)}", hint)
    if not force:
        # Readers on an MMC bus hold a removable card but often do not say so.
        if _text(entry / "removable") != "1" and _text(entry / "device" / "type") != "SD":
            raise _refuse(path, "is not removable", "Is it really the card? Then add --force.")
        if size > LARGEST_BYTES:
            raise _refuse(
                path, f"has {size / 1e9:.0f} GB, more than a card", "Is it really the card? Then add --force."
            )
    vendor = " ".join(filter(None, (_text(entry / "device" / key) for key in ("vendor", "model", "name"))))
    return Disk(path, size, vendor)


def write(disk: Disk, image: Path, *, progress: Progress | None = None) -> None:
    """Writes `image` to the disk, reads it back and compares.

    The first block, without which the rest means nothing, is cleared first and written last: a card that was pulled
    out too early has no partition table."""
    size = image.stat().st_size
    if size > disk.bytes:
        raise FlashError(
            f"{disk.path} has {disk.bytes:,} bytes, {size:,} are needed", "Take a larger card.", target=str(disk.path)
        )
    total = 2 * size
    try:
        # O_EXCL: a block device that is mounted after all is refused by the kernel.
        descriptor = os.open(disk.path, os.O_RDWR | os.O_EXCL | os.O_CLOEXEC)
    except OSError as error:
        raise _failed(disk, error) from error
    try:
        with image.open("rb") as source:
            first = source.read(BLOCK)
            _write_at(descriptor, 0, bytes(BLOCK))
            done = BLOCK
            while data := source.read(CHUNK):
                _write_at(descriptor, done, data)
                done += len(data)
                if progress:
                    progress.update(done, total, "writing")
            os.fsync(descriptor)
            source.seek(BLOCK)
            _compare(disk, descriptor, source, size, progress)
            _write_at(descriptor, 0, first)
            os.fsync(descriptor)
            _forget_cache(descriptor)
            if _read_at(descriptor, 0, BLOCK) != first:
                raise _differs(disk, 0)
            if progress:
                progress.update(total, total, "done")
    except OSError as error:
        raise _failed(disk, error) from error
    finally:
        os.close(descriptor)


def _compare(disk: Disk, descriptor: int, source: object, size: int, progress: Progress | None) -> None:
    from typing import BinaryIO, cast

    file = cast(BinaryIO, source)
    _forget_cache(descriptor)
    with _Reader(disk.path) as reader:
        position = BLOCK
        while data := file.read(CHUNK - position % CHUNK):
            back = reader.read(position, len(data))
            if back != data:
                at = next((i for i, (a, b) in enumerate(zip(back, data, strict=False)) if a != b), len(back))
                raise _differs(disk, position + at)
            position += len(data)
            if progress:
                progress.update(size + position, 2 * size, "verifying")


class _Reader:
    """Reads past the system's cache where that can be done, so that it is the card that answers."""

    def __init__(self, path: Path) -> None:
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
            self._direct = True
        except OSError:  # e.g. a file system without O_DIRECT
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            self._direct = False
        self._buffer = mmap.mmap(-1, CHUNK + 2 * mmap.PAGESIZE)  # O_DIRECT wants aligned memory

    def __enter__(self) -> _Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self._buffer.close()
        os.close(self._descriptor)

    def read(self, position: int, size: int) -> bytes:
        if not self._direct:
            return _read_at(self._descriptor, position, size)
        start = position - position % mmap.PAGESIZE
        end = -(-(position + size) // mmap.PAGESIZE) * mmap.PAGESIZE
        got = 0
        with memoryview(self._buffer) as whole:
            while got < end - start:
                with whole[got : end - start] as part:
                    count = os.preadv(self._descriptor, [part], start + got)
                if count == 0 or count % BLOCK:
                    got += count
                    break
                got += count
            return bytes(whole[position - start : min(position - start + size, got)])


def _write_at(descriptor: int, position: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        count = os.pwrite(descriptor, view, position)
        view = view[count:]
        position += count


def _read_at(descriptor: int, position: int, size: int) -> bytes:
    parts = []
    while size > 0 and (part := os.pread(descriptor, size, position)):
        parts.append(part)
        position += len(part)
        size -= len(part)
    return b"".join(parts)


def _forget_cache(descriptor: int) -> None:
    with contextlib.suppress(OSError):
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


def _users(entry: Path, system: System) -> list[str]:
    """What uses the disk or one of its partitions: mount points, swap, and devices built on it (RAID, encryption)."""
    nodes = [entry, *(child for child in entry.resolve().iterdir() if (child / "partition").exists())]
    numbers = {_text(node / "dev"): node.name for node in nodes}
    found = []
    for line in _text(system.mountinfo).splitlines():
        fields = line.split()
        if len(fields) > 4 and fields[2] in numbers:
            found.append(f"{numbers[fields[2]]}{_MOUNTED}{fields[4]}")
    names = {f"/dev/{node.name}" for node in nodes}
    for line in _text(system.swaps).splitlines()[1:]:
        if line.split() and line.split()[0] in names:
            found.append(f"swap on {line.split()[0]}")
    for node in nodes:
        holders = node / "holders"
        if holders.is_dir():
            found += [f"{holder.name} on {node.name}" for holder in sorted(holders.iterdir())]
    return found


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace").strip()
    except OSError:
        return ""


def _refuse(path: Path, why: str, hint: str) -> FlashError:
    return FlashError(f"{path} {why}", hint, target=str(path))


def _failed(disk: Disk, error: OSError) -> FlashError:
    hint = (
        "Use sudo, or join the group that owns the device."
        if error.errno == 13
        else "Is the card still there, and good?"
    )
    return FlashError(f"{disk.path}: {error.strerror}", hint, target=str(disk.path))


def _differs(disk: Disk, position: int) -> VerifyError:
    return VerifyError(
        f"{disk.path} gives back other bytes than were written, first at byte {position:,}",
        "The card or its reader is bad; the card has no partition table now.",
        where=f"{disk.path}+{position}",
    )
