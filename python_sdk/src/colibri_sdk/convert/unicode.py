# SPDX-License-Identifier: Apache-2.0
"""The table of Unicode classes that the device's pre-tokeniser looks characters up in.

The tokenizers library decides by its own regular expression engine what a letter is, and that engine follows one
version of Unicode: 16.0 for the pinned release. The table therefore comes from that version, whatever Python's own
`unicodedata` knows, so that an image is the same on every host. A test compares every code point with the library.
"""

from __future__ import annotations

import sys

import numpy as np
import numpy.typing as npt
import unicodedata2

from colibri_sdk.image.layout import CharClass

UNICODE_VERSION = "16.0.0"

# White_Space is no general category: these control characters belong to it and other control characters do not.
_SPACE_CONTROLS = frozenset("\t\n\v\f\r\x85")


def char_class(character: str) -> CharClass:
    r"""What GPT-2's pattern takes one character for: \p{L}, \p{N}, \s, or none of these."""
    category: str = unicodedata2.category(character)
    match category[0]:
        case "L":
            return CharClass.LETTER
        case "N":
            return CharClass.NUMBER
        case "Z":
            return CharClass.SPACE
        case _:
            return CharClass.SPACE if character in _SPACE_CONTROLS else CharClass.OTHER


def class_table() -> npt.NDArray[np.uint32]:
    """All code points as ranges: [ranges], first code point << 8 | class, ascending from code point 0."""
    if unicodedata2.unidata_version != UNICODE_VERSION:  # another version would make another image, silently
        raise RuntimeError(f"unicodedata2 has Unicode {unicodedata2.unidata_version}, {UNICODE_VERSION} is needed")
    ranges: list[int] = []
    last = None
    for code_point in range(sys.maxunicode + 1):
        this = char_class(chr(code_point))
        if this is not last:
            ranges.append(code_point << 8 | this)
            last = this
    return np.array(ranges, dtype="<u4")
