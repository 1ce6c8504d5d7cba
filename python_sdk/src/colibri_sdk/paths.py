# SPDX-License-Identifier: Apache-2.0
"""Where things lie: the checkout that this package is installed from, its build directory, what a user keeps."""

from __future__ import annotations

import os
from pathlib import Path

from colibri_sdk.errors import UsageError

APP_NAME = "colibri-sdk"


def repo_root() -> Path:
    """The checkout: $COLIBRI_ROOT, or the directory above this package that holds SConstruct, boards/ and firmware/."""
    named = os.environ.get("COLIBRI_ROOT")
    candidates = [Path(named)] if named else list(Path(__file__).resolve().parents)
    for directory in candidates:
        if (directory / "boards").is_dir() and (directory / "firmware").is_dir():
            return directory.resolve()
    raise UsageError(
        f"no Colibri checkout at {candidates[0]}",
        "Install the SDK from a checkout (./colibri does it), or set COLIBRI_ROOT to one.",
    )


def build_dir() -> Path:
    """Everything that is built: $COLIBRI_BUILD_DIR, or build/ in the checkout. Not created here."""
    named = os.environ.get("COLIBRI_BUILD_DIR")
    return Path(named).resolve() if named else repo_root() / "build"


def boards_dir() -> Path:
    """The board files."""
    return repo_root() / "boards"


def models_dir() -> Path:
    """The models that come with the checkout."""
    return repo_root() / "models"


def state_dir() -> Path:
    """What is to last on this user's account, such as the chat's input history; created when missing."""
    import platformdirs

    path = Path(platformdirs.user_state_dir(APP_NAME))
    path.mkdir(parents=True, exist_ok=True)
    return path
