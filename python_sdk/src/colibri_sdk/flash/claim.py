# SPDX-License-Identifier: Apache-2.0
"""A card that a board of this machine writes belongs to that board alone: two would spoil what each other wrote.

A lock on the file or the disk keeps a second one away, and is kept away by QEMU, which locks its images in the same way
(fcntl(2), "Open file description locks"). A disk that is opened with O_EXCL cannot be mounted either.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from colibri_sdk.errors import FlashError

# What file systems say that have none.
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
_WHOLE_FILE = (os.SEEK_SET, 0, 0, 0)  # struct flock: whence, start, length (0: up to its end), process


@contextmanager
def claimed(card: Path) -> Iterator[None]:
    """`card`: a card image or a disk. FlashError when somebody else has it."""
    exclusive = os.O_EXCL if card.is_block_device() else 0
    try:
        try:
            descriptor, kind = os.open(card, os.O_RDWR | os.O_CLOEXEC | exclusive), fcntl.F_WRLCK
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EROFS, errno.EPERM):
                raise
            descriptor, kind = os.open(card, os.O_RDONLY | os.O_CLOEXEC | exclusive), fcntl.F_RDLCK
    except OSError as error:
        raise _refused(card, error) from error
    try:
        try:
            fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", kind, *_WHOLE_FILE))
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise _refused(card, error) from error
        yield
    finally:
        os.close(descriptor)


def _refused(card: Path, error: OSError) -> FlashError:
    if error.errno in (errno.EBUSY, errno.EAGAIN):
        return FlashError(
            f"{card} is in use by another program: an emulator, or an update", "End that first.", target=str(card)
        )
    hint = "Use sudo, or join the group that owns it." if error.errno == errno.EACCES else "Is it still there?"
    return FlashError(f"{card} cannot be opened: {error.strerror or error}", hint, target=str(card))
