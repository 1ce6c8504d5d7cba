# SPDX-License-Identifier: Apache-2.0
"""Requests to end (SIGTERM, SIGHUP) become an exception, so that everything is cleaned up on the way out."""

from __future__ import annotations

import signal
from types import FrameType

_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


class Terminated(BaseException):
    """The command was asked to end. No KeyboardInterrupt: that means what a command makes of Ctrl-C, this the end."""


def _raise(number: int, _frame: FrameType | None) -> None:
    for one in _SIGNALS:  # once is enough, and a second one would only disturb the cleaning up
        signal.signal(one, signal.SIG_IGN)
    raise Terminated(signal.Signals(number).name)


def raise_when_terminated() -> None:
    """From now on these signals raise Terminated in the main thread. What nohup has switched off stays off."""
    for one in _SIGNALS:
        if signal.getsignal(one) is not signal.SIG_IGN:
            signal.signal(one, _raise)
