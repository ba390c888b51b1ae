"""What is computed of a unit that has more rows than count: held to its bounds in one way, whatever is made of it."""

from __future__ import annotations

import duckdb
import pytest
from helpers import policy_of
from noiseless import Pipeline, rows_of

POLICY = policy_of("""
[tables.visits]
unit = "patient"
max_rows_per_unit = 3
[tables.visits.columns]
ward = { values = ["a", "b"] }
cost = { lower = 0, upper = 4 }
""")


@pytest.fixture(scope="module")
def visits() -> Pipeline:
    """A thousand patients with one to six visits."""
    con = duckdb.connect()
    con.execute(
        "CREATE TABLE visits AS SELECT i::INTEGER AS patient, CASE WHEN j % 2 = 0 THEN 'a' ELSE 'b' END AS ward, "
        "((i + j) % 5)::INTEGER AS cost FROM range(1000) t(i), range(6) s(j) WHERE j <= i % 6"
    )
    return Pipeline.of(POLICY, con)


@pytest.mark.parametrize("value", ["COUNT(*)", "SUM(cost)", "COUNT(DISTINCT cost)", "COUNT(*) FILTER (WHERE cost > 0)"])
def test_multiples_of_what_a_unit_has_are_multiples_of_its_sum(visits: Pipeline, value: str) -> None:
    of_units = f"(SELECT patient, {value} AS n FROM visits GROUP BY patient)"
    _, ((one, two, less, square),) = rows_of(
        visits.results(f"SELECT SUM(n), SUM(n * 2), SUM(3 - n), SUM(n * n) FROM {of_units}")[0]
    )
    most = 12 if value == "SUM(cost)" else 3
    held = f"SELECT LEAST({value}, {most}) AS n FROM visits GROUP BY patient"
    expected = visits.connection.execute(f"SELECT SUM(n), SUM(n * 2), SUM(3 - n), SUM(n * n) FROM ({held})").fetchall()[
        0
    ]
    assert (one, two, less, square) == pytest.approx([float(number) for number in expected])


@pytest.mark.parametrize("function", ["AVG", "STDDEV_POP", "STDDEV"])
def test_means_and_deviations_of_a_unit_are_those_of_all_its_rows(visits: Pipeline, function: str) -> None:
    of_units = f"(SELECT patient, {function}(cost) AS n FROM visits GROUP BY patient)"
    statement = f"SELECT COUNT(n), MAX(n), MIN(n), SUM(n) FROM {of_units}"
    _, (found,) = rows_of(visits.results(statement)[0])
    expected = visits.connection.execute(statement).fetchall()[0]
    assert found[:3] == pytest.approx(expected[:3], abs=1e-9)
    assert found[3] == pytest.approx(expected[3], rel=1e-4)  # sums are in steps
