"""What is computed of a unit that has more rows than count: held to its bounds in one way, whatever is made of it."""

from __future__ import annotations

import random
from collections import Counter

import duckdb
import pytest
from helpers import policy_of, understood
from noiseless import Pipeline, rows_of

POLICY = policy_of("""
[tables.visits]
unit = "patient"
max_rows_per_unit = 3
[tables.visits.columns]
ward = { values = ["a", "b"] }
cost = { lower = 0, upper = 4 }
gain = { lower = -2, upper = 1, nulls = false }
""")
OF_UNITS = "(SELECT patient, COUNT(*) AS n, SUM(cost) AS s, SUM(gain) AS g FROM visits GROUP BY patient)"


@pytest.fixture(scope="module")
def visits() -> Pipeline:
    """A thousand patients with one to six visits."""
    con = duckdb.connect()
    con.execute(
        "CREATE TABLE visits AS SELECT i::INTEGER AS patient, CASE WHEN j % 2 = 0 THEN 'a' ELSE 'b' END AS ward, "
        "((i + j) % 5)::INTEGER AS cost, ((i * 7 + j) // 5 % 4 - 2)::INTEGER AS gain "
        "FROM range(1000) t(i), range(6) s(j) WHERE j <= i % 6"
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


GROUPS = {
    "n": "COUNT(*) >= 4",
    "n * 2": "COUNT(*) >= 4",
    "10 - n": "COUNT(*) >= 4",
    "n % 2": "COUNT(*) >= 4",
    "n // 2": "COUNT(*) >= 4",
    "(n + 1) // 3": "COUNT(*) >= 5",
    "LEAST(n, 100)": "COUNT(*) >= 4",
    "LEAST(n, 3)": None,
    "LEAST(n, 4)": None,
    "LEAST(n, 2) * 5 % 7": None,
    "n > 2": None,
    "CASE WHEN n > 3 THEN 'many' ELSE 'few' END": None,
    "CASE WHEN n > 3 AND s > 2 OR g < 0 THEN 1 WHEN n > 4 OR s > 5 THEN 2 END": None,
    "CASE WHEN g < 0 THEN n ELSE 0 END": "perhaps COUNT(*) >= 4; perhaps SUM(gain) <= -7",
    "s": "SUM(cost) >= 13",
    "s // 5": "SUM(cost) >= 15",
    "g": "SUM(gain) <= -7 OR SUM(gain) >= 4",
    "g // 4": "SUM(gain) <= -8 OR SUM(gain) >= 4",
    "GREATEST(g, -3)": "SUM(gain) >= 4",
    "LEAST(GREATEST(g, -3), 2)": None,
    "n + g": "COUNT(*) >= 4; SUM(gain) <= -7 OR SUM(gain) >= 4",
}


@pytest.mark.parametrize("key", GROUPS)
def test_groups_of_units_beyond_limits_are_said_to_be_left_out(visits: Pipeline, key: str) -> None:
    assert check(visits, key, "TRUE") == GROUPS[key]


def test_a_condition_that_leaves_them_out_says_it_by_itself(visits: Pipeline) -> None:
    assert check(visits, "n * 2", "n < 4") is None
    assert check(visits, "n * 2", "n < 5") == "COUNT(*) >= 4"
    assert check(visits, "n, n * s", "n < 4 AND s <= 9") is None


def test_numbers_of_rows_beyond_limits_have_no_group(visits: Pipeline) -> None:
    places = "(SELECT ROW_NUMBER() OVER (PARTITION BY patient ORDER BY cost) AS r FROM visits)"
    (note,) = understood(f"SELECT r * 2, COUNT(*) FROM {places} GROUP BY 1", visits.policy, visits.tables).notes
    assert note.startswith("rows of visits with ROW_NUMBER() OVER (PARTITION BY patient ORDER BY cost) >= 4 have no")


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.few(every=4)
def test_any_expression_has_the_units_of_duckdb_or_is_said_to_leave_them_out(visits: Pipeline, seed: int) -> None:
    draw = random.Random(seed)
    value, test = expression(draw, 2), f"{expression(draw, 1)} {draw.choice(('<', '>=', '<>'))} {draw.randrange(-2, 9)}"
    key = draw.choice([value, f"CASE WHEN {test} THEN {value} ELSE {draw.randrange(3)} END", test, f"{value}, {test}"])
    check(visits, key, draw.choice(["TRUE", test, f"{expression(draw, 1)} BETWEEN 1 AND {draw.randrange(1, 20)}"]))


def expression(draw: random.Random, depth: int) -> str:
    """A whole number made of what a unit has."""
    if depth == 0 or draw.random() < 0.2:
        return draw.choice(("n", "n", "s", "g"))
    part, constant = expression(draw, depth - 1), draw.randrange(1, 6)
    return draw.choice(
        [
            f"({part} + {constant})",
            f"({part} * {constant})",
            f"({constant} - {part})",
            f"({part} // {constant})",
            f"({part} % {constant})",
            f"LEAST({part}, {constant})",
            f"GREATEST({part}, {constant})",
            f"ABS({part})",
            f"({part} + {expression(draw, depth - 1)})",
        ]
    )


def check(visits: Pipeline, key: str, where: str) -> str | None:
    """What is said to have no group; all other units are counted in the groups that DuckDB has them in."""
    by = f"FROM {OF_UNITS} WHERE ({where}) AND NOT ({{}}) GROUP BY ALL"
    statement = f"SELECT {key}, COUNT(*) AS c {by.format('FALSE')}"
    sure, perhaps = list[str](), list[str]()
    for note in understood(statement, visits.policy, visits.tables).notes:
        rows, _, _ = note.removeprefix("units of visits with ").partition(" no group in q1")
        (perhaps if rows.endswith(" may have") else sure).append(rows.removesuffix(" have").removesuffix(" may"))
    found = Counter({row[:-1]: round(row[-1]) for row in rows_of(visits.results(statement)[0])[1] if row[-1] > 0.5})
    bounds = []
    for left in ([*sure, *perhaps], sure):
        text = " OR ".join(["FALSE", *left]).replace("COUNT(*)", "n").replace("SUM(cost)", "s")
        text = text.replace("SUM(gain)", "g")
        held = visits.connection.execute(f"SELECT {key}, COUNT(*) AS c {by.format(text)}").fetchall()
        bounds.append(Counter({row[:-1]: row[-1] for row in held}))
    assert bounds[0] <= found <= bounds[1], (key, where, sure, perhaps)
    return "; ".join([*sure, *(f"perhaps {rows}" for rows in perhaps)]) or None
