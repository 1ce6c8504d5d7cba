# SPDX-License-Identifier: Apache-2.0
"""Puts a model, and for boards that boot from their card the firmware, onto storage: an image file or a real device."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from colibri_sdk.errors import FlashError
from colibri_sdk.flash import blockdev
from colibri_sdk.flash.card import make_card, model_size, plan
from colibri_sdk.flash.volume import SLOTS

if TYPE_CHECKING:
    from colibri_sdk.boards import Board
    from colibri_sdk.build import Firmware
    from colibri_sdk.convert.progress import Progress

__all__ = ["write_card"]


def write_card(
    board: Board,
    *,
    firmware: Firmware | None,
    model: Path,
    to: Path,
    boot_files: Path | None = None,
    force: bool = False,
    progress: Progress | None = None,
    slots: int | None = None,
) -> int:
    """Writes the board's whole card or disk to `to`, an image file or a block device. Returns the number of slots.

    An image file is written beside its place and then renamed, so that it is whole or not there; an existing one is
    replaced only with `force`. For a block device `force` lifts the checks for its kind and size, never the one for
    being in use; it is read back and compared, and its first block is written last. `boot_files`: directory with the
    files that a real Raspberry Pi boots from, copied to the boot partition. `slots`: 2 for room for a second model, so
    that a new one can be tried and taken back, 1 for one; None for two where the card is large enough.

    FlashError: `to` must not or cannot be written. ImageError: `model` is no Colibri image. VerifyError: what was
    read back differs."""
    if board.flash.method == "none":
        raise FlashError(f"{board.name} has no storage to write", f"Start it on the image: {model}", target=str(to))
    if _is_device(to):
        return _write_device(board, firmware, model, to, boot_files, force, progress, slots)
    if to.exists() and not force:
        raise FlashError(f"{to} exists", "Give another name, or --force to replace it.", target=str(to))
    if not to.parent.is_dir():
        raise FlashError(f"{to.parent} is not a directory", "Create it first.", target=str(to))
    handle, name = tempfile.mkstemp(prefix=f".{to.name}.", dir=to.parent)
    os.close(handle)
    scratch = Path(name)
    slots = SLOTS if slots is None else slots
    try:
        make_card(
            board, firmware=firmware, model=model, to=scratch, boot_files=boot_files, for_emulator=True, slots=slots
        )
        scratch.chmod(0o666 & ~_umask())
        scratch.replace(to)
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise
    return slots


def _write_device(
    board: Board,
    firmware: Firmware | None,
    model: Path,
    to: Path,
    boot_files: Path | None,
    force: bool,
    progress: Progress | None,
    slots: int | None,
) -> int:
    missing = board.flash.required_boot_files
    if missing and boot_files is None:
        raise FlashError(
            f"a real {board.title} boots only from a card with {', '.join(missing)}",
            "Give the directory that holds them with --boot-files (README: using a real Raspberry Pi 3).",
            target=str(to),
        )
    disk = blockdev.check(to, force=force)
    model_bytes = model_size(model)
    needed = {count: plan(board, model_bytes, count)[-1].end for count in (1, SLOTS)}
    if slots is None:
        slots = SLOTS if needed[SLOTS] <= disk.bytes else 1
    if slots in needed and needed[slots] > disk.bytes:
        raise FlashError(
            f"{to} has {disk.bytes:,} bytes; {needed[slots]:,} are needed for {slots} slot{'s'[: slots - 1]}",
            "Take a larger card, or --slots 1." if slots > 1 else "Take a larger card.",
            target=str(to),
        )
    with tempfile.TemporaryDirectory(prefix="colibri-") as directory:
        image = Path(directory) / "card.img"
        make_card(
            board, firmware=firmware, model=model, to=image, boot_files=boot_files, for_emulator=False, slots=slots
        )
        blockdev.write(disk, image, progress=progress)
    return slots


def _is_device(path: Path) -> bool:
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        if path.parts[:2] == ("/", "dev"):
            raise FlashError(
                f"{path} does not exist", "`lsblk` lists the disks of this machine.", target=str(path)
            ) from None
        return False
    if stat.S_ISCHR(mode) or stat.S_ISDIR(mode):
        raise FlashError(f"{path} is neither a file nor a disk", "`lsblk` lists the disks.", target=str(path))
    return stat.S_ISBLK(mode)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
