# SPDX-License-Identifier: Apache-2.0
"""Numbers as people read them."""


def count(value: float) -> str:
    """3 609 728."""
    return f"{value:,}".replace(",", " ")
