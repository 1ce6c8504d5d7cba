# SPDX-License-Identifier: Apache-2.0
"""Why a generation ended: the same on the host, on a device, and on the line between."""

from __future__ import annotations

from enum import IntEnum


class Finish(IntEnum):
    """enum colibri_finish."""

    EOS = 1
    LENGTH = 2
    CONTEXT = 3
    STOP = 4
    CANCELLED = 5
