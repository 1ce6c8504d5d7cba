# SPDX-License-Identifier: Apache-2.0
"""Numbers and texts as people read them."""


def count(value: float) -> str:
    """3 609 728."""
    return f"{value:,}".replace(",", " ")


def printable(text: str) -> str:
    """A text of a device or of a file, fit to be shown: control characters, which would be orders to the terminal, and
    halves of characters are replaced."""
    return "".join(character if character.isprintable() else "\ufffd" for character in text)
