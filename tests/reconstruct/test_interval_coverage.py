"""Intervals hold the truth as often as they say, and standard errors are the errors that are seen: 10,000 releases."""

from __future__ import annotations

import pytest
from interval_coverage import CUT, EXACT, QUANTILES, STATEMENTS, Seen, every

RELEASES = 10_000
# Of 10,000 releases at 95 % a share has a deviation of 0.22 %: 94 to 96 % is 4.6 of them either way.


@pytest.fixture(scope="module")
def found() -> dict[str, Seen]:
    return every(RELEASES)


@pytest.mark.long
def test_linear_numbers_and_ratios_are_covered_as_said(found: dict[str, Seen]) -> None:
    assert {name: found[name].covered for name in EXACT if not 0.94 <= found[name].covered <= 0.96} == {}


@pytest.mark.long
def test_all_others_at_least_so_often(found: dict[str, Seen]) -> None:
    least = {name: 0.95 if name in QUANTILES else 0.94 for name in found}
    assert {*found} == {*STATEMENTS, *CUT}
    assert {name: seen.covered for name, seen in found.items() if seen.covered < least[name]} == {}


@pytest.mark.long
def test_plans_are_not_too_small_where_limits_leave_rows_out(found: dict[str, Seen]) -> None:
    """They know how many rows count from public figures alone, and say at most 1.6 times the error that is seen."""
    assert {name: found[name].planned for name in CUT if not 0.9 <= found[name].planned <= 1.6} == {}


@pytest.mark.long
def test_standard_errors_are_those_seen(found: dict[str, Seen]) -> None:
    """Of quantiles, whose law hangs on where ranks lie between two values, from 0.85 of them, and from 0.8 of five rows
    near the end of their domain; infinite for none.
    """
    least = {name: 0.85 if name in QUANTILES else 0.95 for name in found} | {"0.9 quantile of few": 0.8}
    assert {name: seen.stderr for name, seen in found.items() if seen.stderr < least[name]
            and name != "ratio of few"} == {}  # fmt: skip


@pytest.mark.long
def test_a_value_is_shown_wherever_an_end_of_its_interval_is(found: dict[str, Seen]) -> None:
    assert {name: seen.null for name, seen in found.items() if seen.null} == {}
