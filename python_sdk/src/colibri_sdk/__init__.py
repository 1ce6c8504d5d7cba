# SPDX-License-Identifier: Apache-2.0
"""Mixture-of-Experts language models on boards without an operating system.

    from colibri_sdk import Device

    with Device.open("/dev/ttyUSB0") as device:
        for token in device.generate("set pump 3 to 40 percent"):
            print(token.text, end="", flush=True)

`Device` and `Board` are imported when they are first used, so that the command line starts at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from colibri_sdk import errors

if TYPE_CHECKING:
    from colibri_sdk.boards import Board
    from colibri_sdk.device import Device

__version__ = "0.2.0"
__all__ = ["Board", "Device", "__version__", "errors"]


def __getattr__(name: str) -> Any:
    if name == "Device":
        from colibri_sdk.device import Device

        return Device
    if name == "Board":
        from colibri_sdk.boards import Board

        return Board
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
