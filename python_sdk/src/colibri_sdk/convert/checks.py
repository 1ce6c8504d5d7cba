# SPDX-License-Identifier: Apache-2.0
"""What a number in a configuration must be."""

from __future__ import annotations

from typing import TypeGuard

# Numbers outside of these are no setting of a model.
_SMALLEST, _GREATEST = 1e-30, 1e30


def is_usable(value: object) -> TypeGuard[int | float]:
    """Whether it is a positive number that float32 holds, and the products of such numbers with it. NaN is none."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and _SMALLEST <= value <= _GREATEST
