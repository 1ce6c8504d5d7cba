# SPDX-License-Identifier: Apache-2.0
"""What the end of a test run says of the faults that were tried."""

from __future__ import annotations

import pytest

import campaigns


def report(nodeid: str, *properties: tuple[str, object]) -> pytest.TestReport:
    return pytest.TestReport(nodeid, ("file", 1, "name"), {}, "passed", None, "call", user_properties=list(properties))


def test_cases_of_a_test_are_summed_and_others_left_out() -> None:
    reports = [
        report("b.py::two", (campaigns.TRIED, {"cuts": 1200, "wrong_answers": 0})),
        report("a.py::one[x]", (campaigns.TRIED, {"failed_reads": 3})),
        report("a.py::one[y]", ("other", {"failed_reads": 5}), (campaigns.TRIED, {"failed_reads": 4})),
        report("a.py::silent"),
    ]
    assert list(campaigns.lines(reports)) == ["a.py::one: 7 failed reads", "b.py::two: 1 200 cuts, 0 wrong answers"]
