# SPDX-License-Identifier: Apache-2.0
"""The engine on the host, through cffi: planning, validation, self-test, and the forward pass that boards repeat."""

from __future__ import annotations

from colibri_sdk.engine.library import Library, Plan, Region, SelftestReport
from colibri_sdk.engine.session import Engine, EngineInfo, EngineStats, Finish, Result, Route, Token
from colibri_sdk.engine.storage import PENDING, Read, Storage

__all__ = [
    "PENDING",
    "Engine",
    "EngineInfo",
    "EngineStats",
    "Finish",
    "Library",
    "Plan",
    "Read",
    "Region",
    "Result",
    "Route",
    "SelftestReport",
    "Storage",
    "Token",
]
