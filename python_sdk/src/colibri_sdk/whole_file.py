# SPDX-License-Identifier: Apache-2.0
"""Files that are whole or not there, whatever interrupts their writing."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from colibri_sdk.errors import UsageError


@contextlib.contextmanager
def whole_file(path: Path, advice: str) -> Iterator[BinaryIO]:
    """A file beside `path` to be written, which takes its name when the block ends without an exception. After any,
    Ctrl-C too, `path` is what it was and nothing lies beside it. UsageError, with `advice`, when the system refuses."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with scratch.open("xb") as file:
            yield file
        scratch.replace(path)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror or error}", advice) from error
    finally:
        with contextlib.suppress(OSError):
            scratch.unlink(missing_ok=True)
