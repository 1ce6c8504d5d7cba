# SPDX-License-Identifier: Apache-2.0
"""colibri.h as cffi reads it: the same file that C programs include, so that no declaration is written twice.

cffi parses C without a preprocessor. colibri.h keeps to what this small reader understands: numeric constants, parts
for C++ or for one compiler inside #if ... #endif, and one marker for results that must be checked.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from colibri_sdk.errors import InternalError
from colibri_sdk.paths import repo_root

_CONSTANT = re.compile(r"#define\s+(COLIBRI_\w+)\s+(0x[0-9a-fA-F]+|\d+)[uU]?[lL]*\s*(?:/[/*].*)?$")
_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
_MUST_CHECK = "COLIBRI_MUST_CHECK"
_INCLUDE_GUARD = "COLIBRI_H"


@dataclass(frozen=True)
class Header:
    """Declarations for ffi.cdef, and the numeric constants by name."""

    declarations: str
    constants: dict[str, int]


def header_path() -> Path:
    """colibri.h in the checkout."""
    return repo_root() / "firmware" / "engine" / "colibri.h"


def read_header(text: str) -> Header:
    """The declarations of colibri.h, given its text. Raises InternalError for a construct that is not understood."""
    kept: list[str] = []
    constants: dict[str, int] = {}
    conditions: list[bool] = []  # of each open #if: is it the include guard, whose body counts
    for line in _COMMENT.sub("", text).splitlines():
        word = line.split()[0] if line.strip() else ""
        if word in ("#if", "#ifdef", "#ifndef"):
            conditions.append(_INCLUDE_GUARD in line.split())
        elif word == "#endif":
            conditions.pop()
        elif word == "#define" and (match := _CONSTANT.match(line.rstrip())):
            constants[match[1]] = int(match[2], 0)
        elif not word.startswith("#") and all(conditions):
            kept.append(line)
    declarations = "\n".join(kept).replace(_MUST_CHECK, "")
    for name in sorted(constants, key=len, reverse=True):
        declarations = re.sub(rf"\b{name}\b", str(constants[name]), declarations)
    if conditions or not constants:
        raise InternalError("colibri.h has an #if without #endif, or no constants")
    return Header(declarations, constants)
