"""A bound on what one unit adds to a sum: the cut and the noise of every bound, and which is least."""

from __future__ import annotations

import json
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import duckdb
import numpy as np
import pytest

import dpsql
from dpsql.common.arrays import Floats
from dpsql.extensions.discovery.limit_candidates import candidates_of
from dpsql.extensions.discovery.unit_limits import LimitQuestion, UnitLimit
from dpsql.surfaces.cli import main

POLICY = """
dataset = "visits-1"
database = "visits.duckdb"
[budget]
epsilon = 3000.0
[tables.visits]
unit = "patient"
max_rows_per_unit = 6
largest_unit = 20
at_most = [{ sum = "cost", upper = 7 }]
[tables.visits.columns]
patient = {}
ward = { values = ["a", "b", "c"] }
cost = { lower = 0, upper = 500 }
"a change" = { lower = -300, upper = 500 }
weight = { lower = 0, upper = 0.09 }
word = {}
free = {}
letter = {}
[tables.counted]
unit = "row"
columns.cost = { lower = 0, upper = 500 }
[tables.small]
unit = "patient"
max_rows_per_unit = 6
minimum = 10
columns.cost = { lower = 0, upper = 500 }
"""
TOTALS = (
    "SELECT LEAST({largest}, ABS(SUM(LEAST({high}, GREATEST({low}, {column}))))) FROM visits "
    "WHERE {column} IS NOT NULL GROUP BY {by}"
)


@pytest.fixture(autouse=True)
def certain(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bucket of noise alone is taken for one with units once in ten million tables, not in twenty."""
    monkeypatch.setattr("dpsql.extensions.discovery.limit_candidates._CERTAIN", 1e-7)


@pytest.fixture
def policy(tmp_path: Path) -> str:
    """3,000 patients with up to 10 visits, more than count; values beyond bounds, and without a value."""
    with duckdb.connect(str(tmp_path / "visits.duckdb")) as con:
        con.execute(
            "CREATE TABLE visits AS SELECT p AS patient, chr(97 + ((p * 7 + i * i) % 3)::INTEGER) AS ward, "
            "CASE WHEN p % 50 = 0 THEN NULL WHEN p % 97 = 0 THEN 900 ELSE 3 + (p * 31 + i * 17) % 60 END AS cost, "
            '((p * 13 + i * 29) % 160 - 70)::DECIMAL(9, 1) AS "a change", '
            "((p * 31 + i * 17) % 60 / 7000)::DOUBLE AS weight, "
            "'w' AS word, i AS free, chr(97 + ((p + i * i) % 10)::INTEGER) AS letter "
            "FROM range(3000) t(p), range(10) u(i) WHERE i <= p % 10"
        )
        con.execute("CREATE TABLE counted AS SELECT cost FROM visits")
        con.execute("CREATE TABLE small AS SELECT patient, cost FROM visits")
    (tmp_path / "visits.toml").write_text(POLICY, encoding="utf-8")
    return str(tmp_path / "visits.toml")


def _exact(policy: str, column: str, by: str, low: float, high: float) -> Floats:
    with duckdb.connect(policy.replace("toml", "duckdb"), read_only=True) as con:
        sql = TOTALS.format(largest=6 * max(-low, high), low=low, high=high, column=column, by=by)
        rows = con.execute(sql).fetchall()
    return np.array([float(row[0]) for row in rows])


def _misses(found: UnitLimit, totals: Floats) -> list[Fraction]:
    """The bounds whose stated interval of the cut does not hold the truth."""
    cuts = [(one, np.maximum(0, totals - float(one.bound)).sum()) for one in found.candidates]
    return [one.bound for one, cut in cuts if not one.low <= cut + 1e-6 or not cut <= one.high + 1e-6]


@pytest.mark.parametrize(
    ("column", "per", "low", "high"),
    [
        ("cost", None, 0, 500),
        ('"a change"', None, -300, 500),
        ("weight", None, 0, 0.09),
        ("cost", "ward", 0, 500),
        ("cost * (2 - weight * 0)", None, 0, 1000),
        ("weight * weight", None, 0, 0.0081),
    ],
)
def test_the_least_bound_is_that_of_the_exact_totals(
    policy: str, column: str, per: str | None, low: float, high: float
) -> None:
    """At an epsilon at which counts are nearly exact: every cut is in its interval, the choice near the best."""
    con = dpsql.connect(policy=policy)
    found = con.discover("visits." + column.strip('"'), unit_sum=True, epsilon=200, sum_epsilon=0.02, per=per)
    assert isinstance(found, UnitLimit)
    assert found.bound is not None
    assert found.chosen is not None
    totals = _exact(policy, column, "patient" if per is None else "patient, ward", low, high)
    assert _misses(found, totals) == []
    groups = 1 if per is None else 4
    truth = [one.noise**2 + (np.maximum(0, totals - float(one.bound)).sum() / groups) ** 2 for one in found.candidates]
    assert abs(int(np.argmin(truth)) - found.chosen) <= 1
    assert truth[found.chosen] <= 1.5 * min(truth)
    assert 0 < found.chosen < len(truth) - 1
    # The noise is that of a SUM under a policy with the bound that is proposed.
    declared = (
        Path(policy).read_text(encoding="utf-8").replace('at_most = [{ sum = "cost", upper = 7 }]', found.to_toml())
    )
    Path(policy).with_name("bounded.toml").write_text(declared, encoding="utf-8")
    with_bound = dpsql.connect(policy=Path(policy).with_name("bounded.toml"))
    groups_by = "" if per is None else f" GROUP BY {per}"
    plan = with_bound.plan(f"SELECT SUM({column}) AS s FROM visits{groups_by}", epsilon=0.02)
    noise = found.candidates[found.chosen].noise
    assert noise == pytest.approx(float(np.sqrt(np.mean(np.square(np.asarray(plan.errors))))), rel=0.01)


WHAT_UNITS_HAVE = {
    ("visits", "rows", None): "SELECT COUNT(*) FROM visits GROUP BY patient",
    ("visits", "rows", "ward"): "SELECT LEAST(6, COUNT(*)) FROM visits GROUP BY patient, ward",
    ("visits", "rows", "ward = 'a'"): "SELECT LEAST(6, COUNT(*)) FROM visits GROUP BY patient, ward = 'a'",
    ("visits.ward", "groups", None): "SELECT COUNT(DISTINCT ward) FROM visits GROUP BY patient",
    ("visits.letter", "groups", None): "SELECT LEAST(6, COUNT(DISTINCT letter)) FROM visits GROUP BY patient",
}
ANSWERS = {"rows": "SELECT COUNT(*) AS n FROM visits", "groups": "SELECT COUNT(DISTINCT patient) AS n FROM visits"}


@pytest.mark.parametrize(("target", "kind", "per"), WHAT_UNITS_HAVE)
def test_the_least_limit_on_rows_and_groups_is_that_of_the_exact_counts(
    policy: str, target: str, kind: str, per: str | None
) -> None:
    """As above, and the noise is that of a count under a policy with the limit that is proposed."""
    con = dpsql.connect(policy=policy)
    found = con.discover(target, epsilon=200, sum_epsilon=0.02, per=per, **{f"unit_{kind}": True})
    assert isinstance(found, UnitLimit)
    assert found.limit is not None
    with duckdb.connect(policy.replace("toml", "duckdb"), read_only=True) as held:
        counts = np.array([float(row[0]) for row in held.execute(WHAT_UNITS_HAVE[target, kind, per]).fetchall()])
    assert _misses(found, counts) == []
    least = found.candidates[found.chosen or 0]
    assert least.noise > 0
    assert least.cut == pytest.approx(np.maximum(0, counts - float(least.bound)).sum(), abs=1)
    if target == "visits.letter":
        return  # of which no groups are declared
    text, line = Path(policy).read_text(encoding="utf-8"), found.to_toml()
    old = "max_rows_per_unit = 6" if per is None and kind == "rows" else 'at_most = [{ sum = "cost", upper = 7 }]'
    Path(policy).with_name("limited.toml").write_text(text.replace(old, line, 1), encoding="utf-8")
    limited = dpsql.connect(policy=Path(policy).with_name("limited.toml"))
    by = target.partition(".")[2] or per
    plan = limited.plan(ANSWERS[kind] + (f" GROUP BY {by}" if by else ""), epsilon=0.02)
    assert least.noise == pytest.approx(float(np.sqrt(np.mean(np.square(np.asarray(plan.errors))))), rel=0.01)


def test_a_limit_on_all_rows_is_read_from_the_histogram_of_losses(policy: str) -> None:
    """One release serves both; a purchase is free for either afterwards, and its counts may be under a minimum."""
    con = dpsql.connect(policy=policy)
    found = con.discover("visits", unit_rows=True, epsilon=1)
    assert isinstance(found, UnitLimit)
    assert (found.cost, found.name, found.bounds) == (1, "visits_rows_per_unit", None)
    assert found.to_toml() == f"max_rows_per_unit = {found.limit}"
    losses = con.losses("visits")
    assert (losses.cost, losses.cut.release) == (0, found.id)
    assert con.discover("visits", unit_rows=True, epsilon=1, sum_epsilon=0.01).cost == 0
    assert con.budget.spent == 1
    with pytest.raises(dpsql.PolicyError, match="largest_unit is missing"):
        con.discover("small", unit_rows=True, epsilon=1)


@pytest.mark.parametrize(("right", "wrong"), [("SUM(", "MAX("), ("WHEN s <=", "WHEN s * 2 <=")])
def test_a_wrong_histogram_is_noticed(policy: str, monkeypatch: pytest.MonkeyPatch, right: str, wrong: str) -> None:
    sql: Callable[[LimitQuestion], str] = LimitQuestion.sql.fget  # type: ignore[attr-defined]
    monkeypatch.setattr(LimitQuestion, "sql", property(lambda asked: sql(asked).replace(right, wrong)))
    found = dpsql.connect(policy=policy).discover("visits.cost", unit_sum=True, epsilon=200)
    assert isinstance(found, UnitLimit)
    assert _misses(found, _exact(policy, "cost", "patient", 0, 500))


@pytest.mark.parametrize(
    ("law", "error", "half"),
    [("normal", 3.0, 5.88), ("laplace", 3.0, 3 * np.log(20) / np.sqrt(2)), ("whole", 1.2, 2.0)],
)
@pytest.mark.parametrize(("times", "holds"), [(1.0, True), (1.5, False)])
def test_intervals_of_cuts_hold_in_94_of_100_runs(
    law: str, error: float, half: float, times: float, holds: bool
) -> None:
    """Totals at the ends of buckets, where intervals have no slack above; noise 1.5 times as large as said fails.

    The 95 % interval of a whole number may be narrower than that of a sum of them, such as -2 to 2 at an error of 1.2.
    """
    rng, edges = np.random.default_rng(5), tuple(map(Fraction, (10, 20, 50, 100, 200, 500)))
    units, ends = np.array([900.0, 400, 60, 9, 1, 0]), np.array([float(edge) for edge in edges])
    runs, held = 1000, np.zeros(len(edges))
    noise = rng.laplace(0.0, times * error / np.sqrt(2), (runs, len(edges)))
    if law != "laplace":
        noise = rng.normal(0.0, times * error, (runs, len(edges)))
    truth = [float(np.maximum(0, ends - end) @ units) for end in ends]
    for y in units + (np.rint(noise) if law == "whole" else noise):
        rows = [(at, n, error, n - half, n + half) for at, n in enumerate(y, 1)]
        found, _ = candidates_of(rows, edges, [1.0] * len(edges), 1)
        held += [one.low <= cut <= one.high for one, cut in zip(found, truth, strict=True)]
    assert (held[:-1].min() >= 0.94 * runs) == holds


def test_what_has_no_totals_is_refused_for_free(policy: str) -> None:
    con = dpsql.connect(policy=policy)
    for target, more, error, match in (
        ("counted.cost", {}, dpsql.PolicyError, "nobody has a total"),
        ("visits.word", {}, dpsql.PolicyError, "SUM needs a number"),
        ("visits.free", {}, dpsql.PolicyError, "needs bounds"),
        ("small.cost", {}, dpsql.PolicyError, "minimum hides"),
        ("visits.cost", {"per": "patient"}, dpsql.PolicyError, "is the unit itself"),
        ("visits", {}, dpsql.DataError, "needs a table and a column"),
        ("visits.cost + 1", {}, dpsql.PolicyError, "worked out of the sums of its parts"),
        ("visits.cost; SELECT 1", {}, dpsql.PolicyError, "it is no expression"),
        ("visits.cost", {"unit_rows": True}, dpsql.DataError, "give one of them"),
        ("visits.cost", {"unit_sum": False, "unit_rows": True}, dpsql.DataError, "needs a table, as in"),
        ("visits.ward", {"unit_sum": False, "unit_groups": True, "per": "ward"}, dpsql.DataError, "without per"),
        ("visits.patient", {"unit_sum": False, "unit_groups": True}, dpsql.PolicyError, "is the unit itself"),
        ("others", {"unit_sum": False, "unit_rows": True}, dpsql.PolicyError, "others"),
        ("visits.cost", {"bounds": True}, dpsql.DataError, "without bounds"),
        ("visits.cost", {"max_groups": 2}, dpsql.DataError, "without bounds"),
        ("visits.cost", {"unit_sum": False, "per": "ward"}, dpsql.DataError, "add unit_sum=True"),
        ("visits.cost", {"unit_sum": False, "sum_epsilon": 1}, dpsql.DataError, "add unit_sum=True"),
        ("visits.cost", {"per": "free"}, dpsql.PolicyError, "free"),
    ):
        with pytest.raises(error, match=match):
            con.discover(target, **{"unit_sum": True, "epsilon": 1, **more})
    assert con.budget.spent == 0


def test_the_command_charges_once(policy: str, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["discover", "visits.cost", "--unit-sum", "--policy", policy, "--epsilon", "5"]
    assert main(asked) == 0
    shown = capsys.readouterr().out
    assert "bound" in shown
    assert 'Limit of least error: at_most = [{ sum = "cost", upper = ' in shown
    assert "release 1, spent epsilon 5" in shown
    assert main([*asked, "--sum-epsilon", "0.001", "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert (again["id"], again["cost"]) == (1, 0)
    assert [row[-1] for row in again["rows"]].count("<") == 1
    with pytest.raises(SystemExit):
        main([*asked, "--dry-run"])
    assert "--dry-run is for values" in capsys.readouterr().err


def test_too_few_units_give_no_bound(policy: str) -> None:
    found = dpsql.connect(policy=policy).discover("visits.cost", unit_sum=True, epsilon=Fraction(1, 10**5))
    assert isinstance(found, UnitLimit)
    assert (found.bounds, found.to_toml(), found.outside) == (None, "", 1.0)
