# SPDX-License-Identifier: Apache-2.0
"""How a device reaches a model's experts: the choice that the command line and tests hand on to it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from colibri_sdk.errors import UsageError

if TYPE_CHECKING:
    from colibri_sdk.device import Device
    from colibri_sdk.link.messages import Configured

STORES = ("auto", "memory", "block")
MOST_BYTES = 2**63 - 1
_DIGITS = 20  # more than MOST_BYTES has
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@dataclass(frozen=True)
class StoreChoice:
    """As Device.configure's parameters. Changes no bit of any result."""

    store: str = "auto"
    cache_slots: int = 0
    prefetch: bool = False
    memory_limit: int = 0

    def configure(self, device: Device) -> Configured:
        """Sets the device's model up in this way; statuses and errors as Device.configure's."""
        return device.configure(
            self.store, prefetch=self.prefetch, cache_slots=self.cache_slots, memory_limit=self.memory_limit
        )


def parse_size(text: str) -> int:
    """Bytes of "4096", "512K", "64M" or "1G" (also "64MB", "64MiB": all in powers of two)."""
    match = re.fullmatch(r"(\d+)\s*(?:([KMG])(?:i?B)?|B)?", text.strip(), re.ASCII | re.IGNORECASE)
    if match is None:
        raise UsageError(f"'{text}' is no size", "Write bytes, or a number with K, M or G: 64M.")
    digits = match[1].lstrip("0") or "0"
    size = int(digits[:_DIGITS]) * _UNITS[(match[2] or "").upper()]
    if len(digits) >= _DIGITS or size > MOST_BYTES:
        raise UsageError(f"'{text}' is more than there can be", "Write bytes, or a number with K, M or G: 64M.")
    return size
