# SPDX-License-Identifier: Apache-2.0
"""Ties an emulator's life to that of the program that started it, also when that is killed and cannot clean up."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def end_with_parent() -> Callable[[], None] | None:
    """What a child calls between fork and exec so that it is killed when this program ends; None where that cannot be.

    Linux ends the child with the *thread* that started it: for any other than the main one that could be long before
    the program ends, so those children are not tied.
    """
    if not sys.platform.startswith("linux") or threading.current_thread() is not threading.main_thread():
        return None
    # All of this is looked up here: between fork and exec, with other threads' locks as they were, little may be done.
    prctl = ctypes.CDLL(None).prctl
    parent = os.getpid()

    def tie() -> None:
        prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:  # it has ended already: the signal would never come
            os._exit(1)

    return tie
