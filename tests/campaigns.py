# SPDX-License-Identifier: Apache-2.0
"""How many faults and power cuts tests have tried: they say it with their report, and the end of the run shows it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

import pytest

from colibri_sdk.figures import count

TRIED = "tried"  # the property of a report; its value names what was tried, and how often


def lines(reports: Iterable[pytest.TestReport]) -> Iterator[str]:
    """A line for each test that says so, summed over its cases, whichever process ran them."""
    sums: dict[str, Counter[str]] = {}
    for report in reports:
        for name, numbers in report.user_properties:
            if name == TRIED and isinstance(numbers, dict):
                sums.setdefault(report.nodeid.partition("[")[0], Counter()).update(numbers)
    for test, numbers in sorted(sums.items()):
        words = [f"{count(number)} {what.replace('_', ' ')}" for what, number in numbers.items()]
        yield f"{test}: {', '.join(words)}"
