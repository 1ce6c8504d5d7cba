# SPDX-License-Identifier: Apache-2.0
"""What several tests of the engine share."""

from __future__ import annotations

import pytest

from made_once import MadeOnce
from native import Native
from tokenizer_native import tokenizer_library


@pytest.fixture(scope="session")
def native(once: MadeOnce) -> Native:
    """The engine's tokenizer."""
    return tokenizer_library(once)
