"""Expressions of one stored column: cells that no row can be in are none, and brute force over what rows can be."""

from __future__ import annotations

import functools
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest
import unit_worlds
from scipy import sparse
from unit_worlds import COLUMNS, Ask, World, enumerated, least, norm, norm_of

import dpsql
from dpsql.planning.prepare import Prepared
from dpsql.sql.values.evaluation import evaluate
from dpsql.strategies.choose import by_source, over_same_rows
from dpsql.workloads.cells.integers import Factored
from dpsql.workloads.compile import cells_of_a_row
from dpsql.workloads.compile.compiled import Compiled
from dpsql.workloads.compile.sensitivity import sensitivity_of
from dpsql.workloads.expr.related import Related, _regions, related
from dpsql.workloads.families import contributions

DAYS = (-7, -2, -1, 0, 1, 2, 3, 4, 5, 6, 8, 13, None)
"""Remainders of both signs inside the declared days 1 to 3 and outside of them."""
WARDS = ("a", "b", "A", "ab", "x", "", None)
KEYS = ("", "", "day", "day % 2", "ward", "ward, day")
CONDITIONS = (
    *("day % 2 = 1", "day % 3 = 0", "day >= 2", "day = 2", "day * day > 3", "day % 4 = 1 AND day % 2 = 0"),
    *("ward LIKE 'a%'", "upper(ward) = 'A'", "length(ward) < 2", "ward = 'x'", "ward LIKE '_' OR ward IS NULL"),
    *("day % 2 = 1 AND ward LIKE 'a%'", "day > cost", "day + cost > 2 AND day < 3"),
)
MOST = {**dict.fromkeys(COLUMNS, 1), "visits": 2}


@pytest.fixture(scope="module")
def world() -> World:
    return World()


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of all kinds that the expressions tell apart, planned as one matrix."""
    monkeypatch.setitem(unit_worlds.VALUES, "visits", (WARDS, DAYS, (-2, 4, None)))
    monkeypatch.setattr(Prepared, "with_units_in_blocks", lambda prepared: None)


def statement(draw: random.Random) -> str:
    key, where = draw.choice(KEYS), draw.choice(("", draw.choice(CONDITIONS)))
    wanted = draw.choice(
        (
            "COUNT(*) AS n",
            "COUNT(*) AS n",
            "COUNT(DISTINCT patient) AS p",
            "COUNT(*) AS n, COUNT(DISTINCT patient) AS p",
        )
    )
    if draw.random() < 0.3:
        wanted = f"COUNT(*) FILTER (WHERE {draw.choice(CONDITIONS)}) AS f"
    grouped = f" GROUP BY {', '.join(str(i + 1) for i in range(key.count(',') + 1))}" if key else ""
    return f"SELECT {key + ', ' if key else ''}{wanted} FROM visits{' WHERE ' + where if where else ''}{grouped}"


def asked(count: int, seed: int) -> list[Ask]:
    draw = random.Random(seed)
    return [Ask("; ".join(statement(draw) for _ in range(draw.choice((1, 2, 2, 3)))), MOST) for _ in range(count)]


def planned(world: World, ask: Ask, folder: Path) -> tuple[dpsql.Plan, Compiled] | None:
    """None where no number depends on the data."""
    try:
        plan = world.plan(ask, "gaussian", folder)
    except dpsql.Error as error:
        assert "no number of the batch depends on the data" in str(error)  # noqa: PT017 - others are faults
        return None
    assert isinstance(plan.compiled, Compiled)
    return plan, plan.compiled


def answers(world: World, compiled: Compiled) -> np.ndarray:
    """The exact numbers for persons of one row each, one of every kind (numbers x persons)."""
    rows = [(w, d, c) for w in WARDS for d in DAYS for c in (-2, 4, None)]
    world.fill({number: {"visits": [row]} for number, row in enumerate(rows)})
    x = world.each(compiled, compiled.layouts, len(rows)) / compiled.common_steps
    found: np.ndarray = np.asarray(compiled.scale[:, None] * (compiled.rows @ x.T.astype(float)))
    return found


def hold(world: World, folder: Path, ask: Ask, seed: int) -> tuple[bool, bool]:
    """One batch against all that a person can change; whether the plan was exact, and whether cells were left out.

    No number is another one without the cells that are left out. The sensitivity is not below what is reached, and
    equal where C is what a person can do; there the error is the least over all that was enumerated, solved apart.
    """
    both = planned(world, ask, folder)
    if both is None:
        return False, False
    plan, compiled = both
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cells_of_a_row, "related", lambda axes, evaluate: ())
        before = world.compiled(ask)
    assert (answers(world, compiled) == answers(world, before)).all(), ask
    found = enumerated(world, ask, compiled, 4_000, random.Random(seed))
    vectors = np.concatenate([one.vectors for one in found])
    reached, claimed = norm(plan, vectors), plan.sensitivity
    assert reached <= claimed, ask
    n = compiled.rows.shape[1]
    B = np.random.default_rng(seed).integers(-3, 4, size=(n, n))
    eye = np.eye(n, dtype=np.int64)
    drawn = sensitivity_of("gaussian", Factored(eye, sparse.csr_array(B)), compiled.layouts)
    drawn *= compiled.common_steps**2
    moved = norm_of("gaussian", eye, B, vectors)
    assert moved <= drawn, ask
    true = least(
        compiled.workload(compiled.objective).matrix(), vectors / (compiled.common_steps * compiled.units.common)
    )
    assert plan.strategy.expected >= true.lower * (1 - 1e-9), ask
    exact = compiled.units.listable and not plan.against and all(one.whole for one in found)
    if exact:
        assert (reached, moved) == (claimed, drawn), ask
        assert plan.strategy.lower_bound is not None
        assert plan.strategy.lower_bound <= true.upper * (1 + 1e-9), ask
        assert plan.strategy.expected <= true.lower * 1.01, ask
    return exact, compiled.cells < before.cells


def test_random_batches_of_expressions_of_one_column(world: World, tmp_path: Path) -> None:
    found = [hold(world, tmp_path, ask, seed) for seed, ask in enumerate(asked(6, 2))]
    assert sum(exact for exact, _ in found) >= 2
    assert sum(fewer for _, fewer in found) >= 2


@pytest.mark.long
def test_many_batches_of_expressions_of_one_column(world: World, tmp_path: Path) -> None:
    found = [hold(world, tmp_path, ask, seed) for seed, ask in enumerate(asked(150, 2))]
    assert sum(exact for exact, _ in found) >= 60
    assert sum(fewer for _, fewer in found) >= 30


@pytest.mark.long
def test_a_combination_that_is_wrongly_left_out_is_found(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each in turn but that of other, even days, which no statement counts."""
    ask = Ask(
        "SELECT day, COUNT(*) AS n FROM visits GROUP BY 1; SELECT COUNT(*) AS n FROM visits WHERE day % 2 = 1", MOST
    )
    both = planned(world, ask, tmp_path)
    assert both is not None
    right, wrong, left_out = answers(world, both[1]), 0, 0
    (found,) = related([(a, both[1].layouts[0].functions.of(a)) for a in both[1].layouts[0].cells.axes], evaluate)
    assert found.possible is not None
    while left_out < found.possible.shape[1]:

        def mutant(*asked: Any, at: int = left_out) -> tuple[Related, ...]:
            (one,) = related(*asked)
            assert one.possible is not None
            return (replace(one, possible=np.delete(one.possible, at, axis=1)),)

        monkeypatch.setattr(cells_of_a_row, "related", mutant)
        other = planned(world, ask, tmp_path)
        assert other is not None
        wrong += not np.array_equal(answers(world, other[1]), right)
        left_out += 1
    assert wrong == left_out - 1


POLICY = """
dataset = "related"
[budget]
epsilon = 1e6
delta = 1e-6
[tables.t]
unit = "p"
max_rows_per_unit = 3
[tables.t.columns]
d = { lower = 2024-01-01, upper = 2024-12-31 }
e = {}
n = { lower = 0, upper = 30 }
m = { lower = 0, upper = 9 }
k = {}
b = {}
w = { values = ["aa", "ab", "b"] }
v = { values = ["aa", "ab", "b"], other = true }
u = {}
z = { lower = 0.0, upper = 10.0 }
ts = {}
"""
TYPES = {
    **{"d": "DATE", "e": "DATE", "n": "INTEGER", "m": "BIGINT", "k": "TINYINT", "b": "BOOLEAN", "w": "VARCHAR"},
    **{"v": "VARCHAR COLLATE NOCASE", "u": "VARCHAR", "z": "DOUBLE", "ts": "TIMESTAMP"},
}
COUNT = "SELECT COUNT(*) FROM t WHERE "
ANY = "could have {} in combinations that perhaps no row has"
# A batch, how many cells it has, and of which units its certificate is.
BATCHES = {
    "a month": ("SELECT month(d), COUNT(*), COUNT(DISTINCT p) FROM t WHERE month(d) = 1 GROUP BY 1", 2, ""),
    "a month beside all": (f"SELECT month(d), COUNT(*) FROM t GROUP BY 1; {COUNT}month(d) = 1", 14, ""),
    "units by month, rows of one": (
        f"SELECT month(d), COUNT(DISTINCT p) FROM t GROUP BY 1; {COUNT}month(d) = 1",
        14,
        "",
    ),
    "months and quarters": (f"SELECT month(e), COUNT(*) FROM t GROUP BY 1; {COUNT}quarter(e) = 2", 13, ""),
    "hours and weekdays": (f"SELECT hour(ts), COUNT(*) FROM t GROUP BY 1; {COUNT}dayofweek(ts) = 0", 49, ""),
    "hours since": (f"SELECT hour(ts), COUNT(*) FROM t GROUP BY 1; {COUNT}ts >= '2024-02-01'", 50, ""),
    "weeks": (f"{COUNT}week(e) = 1; {COUNT}month(e) = 1", 3, ""),
    "remainders": (f"SELECT n, COUNT(*) FROM t GROUP BY 1; {COUNT}n % 3 = 0", 33, ""),
    "remainders of all": (f"{COUNT}n % 2 = 0; {COUNT}n % 4 = 1", 3, ANY.format("n % 2 and n % 4")),
    "a narrow type": (f"{COUNT}k % 2 = 0; {COUNT}k % 4 = 1", 2, ""),
    "truth": (f"SELECT b, COUNT(*) FROM t GROUP BY 1; {COUNT}NOT b", 3, ""),
    "closed texts": (f"SELECT w, COUNT(*) FROM t GROUP BY 1; {COUNT}w LIKE 'a%' AND length(w) = 2", 4, ""),
    "texts": (
        f"SELECT v, COUNT(*) FROM t GROUP BY 1; {COUNT}v LIKE 'a_'; {COUNT}upper(v) = 'AA'",
        8,
        ANY.format("UPPER(v), v LIKE 'a_' and v"),
    ),
    "patterns": (f"{COUNT}u LIKE '%a%'; {COUNT}u LIKE '%ab%'", 3, ANY.format("u LIKE '%a%' and u LIKE '%ab%'")),
    "numbers": (f"{COUNT}round(z) = 3; {COUNT}z = 3.0; {COUNT}z = 0.0; {COUNT}z > 2.5", None, None),
    "two columns": (f"{COUNT}n < m; SELECT n, COUNT(*) FROM t GROUP BY 1", 65, ANY.format("n < m and n")),
    "no relation": (f"SELECT n, COUNT(*) FROM t GROUP BY 1; {COUNT}m % 2 = 0", 65, ""),
}


@functools.cache
def no_rows() -> duckdb.DuckDBPyConnection:
    duck = duckdb.connect()
    duck.execute(f"CREATE TABLE t (p INTEGER, {', '.join(f'{name} {kind}' for name, kind in TYPES.items())})")
    return duck


def plan_of(folder: Path, sql: str, policy: str = POLICY) -> dpsql.Plan:
    (folder / "p.toml").write_text(policy)
    with dpsql.connect(no_rows(), policy=str(folder / "p.toml"), ledger=str(folder / "l")) as con:
        return con.plan(sql, epsilon=1.0)


@pytest.mark.parametrize("name", BATCHES)
@pytest.mark.few(every=2)
def test_cells_that_no_row_can_be_in_and_what_a_plan_says(tmp_path: Path, name: str) -> None:
    """And what is not possible none of many values is, far ones and odd ones among them."""
    sql, cells, against = BATCHES[name]
    plan = plan_of(tmp_path, sql)
    assert cells in (None, plan.cells)
    assert against in (None, plan.against)
    assert ("a wider class of units" in " ".join(str(plan).split())) == bool(plan.against)
    draw = random.Random(1)
    for layout in plan.compiled.layouts:
        axes = [(axis, layout.functions.of(axis)) for axis in layout.cells.axes]
        for one in related(axes, evaluate):
            line, base = axes[one.axes[0]][1].line, axes[one.axes[0]][1].of[0]
            if one.possible is None or line is None:
                continue
            drawn = [place(draw, line.kind) for _ in range(3_000)]
            places = tuple(at for at in drawn if line.clip(((at, 0), (at, 1))) is not None)
            tried = [_regions(*axes[at], (*places, None), base, line, evaluate) for at in one.axes]
            missing = {*zip(*tried, strict=True)} - {tuple(held) for held in one.possible.T.tolist()}
            assert not missing


def place(draw: random.Random, kind: str) -> int | float | str:
    """Any value of a line, more often a small one."""
    if kind == "text":
        return "".join(draw.choice("aAbBx_%é") for _ in range(draw.randint(0, 4)))
    if kind == "real":
        odd = draw.choice((np.nan, np.inf, -np.inf, -0.0, 0.0, 1e300, -5e-324, 2.5, 3.0, 3.5))
        return draw.choice((draw.uniform(-20, 20), float(draw.randint(-5, 15)), draw.gauss(0, 1e9), odd))
    day = 86_400_000_000 if kind == "timestamp" else 1
    far = {"date": 2**31 - 1, "timestamp": 2**63 - 1}.get(kind, 2**31)
    near = draw.randint(19_000, 20_500) if kind in {"date", "timestamp"} else draw.randint(-140, 140)
    wide = draw.randint(-100_000, 100_000)
    return draw.choice((near * day + draw.randrange(day), near * day, wide * day + draw.randrange(day), far, -far))


@pytest.mark.long
def test_batches_in_blocks_say_which_expressions_meet_in_any_way(tmp_path: Path) -> None:
    """All combinations of regions are cells of these, be they of rows or of units."""
    groups = "SELECT n, m, d, COUNT(*) AS c FROM t GROUP BY ROLLUP (n, m, d)"
    policy = POLICY.replace('unit = "p"\nmax_rows_per_unit = 3', 'unit = "row"')
    for text in (POLICY, policy):
        plain, both = plan_of(tmp_path, groups, text), plan_of(tmp_path, f"{groups}; {COUNT}n % 2 = 0", text)
        assert not isinstance(both.compiled, Compiled)
        assert plain.against == ""
        assert both.against == ANY.format("n and n % 2")


def test_a_bound_over_another_expression_of_a_column_is_said(tmp_path: Path) -> None:
    capped = POLICY.replace("per_unit = 3", 'per_unit = 3\nat_most = [{ rows = 1, per = "hour(ts)" }]')
    for by, against in (("dayofweek(ts)", "do not keep to at_most"), ("hour(ts)", ""), ("n", "")):
        assert plan_of(tmp_path, f"SELECT {by}, COUNT(*) FROM t GROUP BY 1", capped).against == against


def test_a_group_of_a_bound_may_hold_more_than_what_is_counted(tmp_path: Path) -> None:
    """Of rows with n = 1 a unit has one, as of all odd ones; of those below 20 an odd, an even, a negative one."""
    capped = POLICY.replace("per_unit = 3", 'per_unit = 3\nat_most = [{ rows = 1, per = "n % 2" }]')
    for where, rows in (("n = 1", 1), ("n < 20", 3)):
        plan = plan_of(tmp_path, f"{COUNT}{where}", capped)
        assert plan.against == ""
        assert isinstance(plan.compiled, Compiled)
        assert plan.compiled.units.common * abs(plan.compiled.units.by_column).max() == rows


def test_groups_without_rows_are_known_and_count_in_no_mean(tmp_path: Path) -> None:
    """January has less noise than by itself, and other groups are 0, which do not make it count less."""
    months = "SELECT month(d), COUNT(*) FROM t WHERE month(d) = 1 GROUP BY 1; SELECT COUNT(*) FROM t"
    plan = plan_of(tmp_path, months)
    errors, alone = (np.asarray(found) for found in (plan.errors, plan.naive_errors))
    assert np.array_equal(errors > 0, alone > 0)
    assert np.count_nonzero(errors) == 2
    assert (errors <= alone * 1.01)[errors > 0].all()


def test_rows_that_no_unit_is_counted_by_leave_a_bound_of_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A day that is missing has no quarter: its rows are counted, and their unit is not. As of very many days."""
    for module in (contributions, by_source, over_same_rows):
        monkeypatch.setattr(module, "MOST_LISTED", 1)
    for name in ("WRITTEN", "_LISTED_SUMS"):
        monkeypatch.setattr(over_same_rows, name, 1)
    monkeypatch.setattr(over_same_rows.SameRows, "_least", lambda *_: 0.0)
    days = f"SELECT d, COUNT(*) FROM t GROUP BY 1; {COUNT.replace('*', 'DISTINCT p')}quarter(d) < 5"
    plan = plan_of(tmp_path, days)
    assert plan.gap is not None
    assert plan.gap < 0.01


@pytest.mark.parametrize(("first", "second"), [("*", "DISTINCT p"), ("DISTINCT p", "*")])
def test_a_condition_that_holds_for_no_row_beside_units_is_planned(tmp_path: Path, first: str, second: str) -> None:
    """Of the one expression alone it is not known, beside another of the column it is."""
    never = "coalesce(k, 0) < CAST(k AS TINYINT)"
    plan = plan_of(
        tmp_path, f"SELECT COUNT({first}) FROM t WHERE k / 4 < 2.5; SELECT COUNT({second}) FROM t WHERE {never}"
    )
    assert plan.against == "could change each scan of t by itself"
    assert np.isfinite(plan.errors).all()


SUMS = {
    "SELECT n > 3, SUM(n), COUNT(*) FROM t GROUP BY 1": "could have any n in each group",
    "SELECT w, SUM(n) FROM t WHERE n IS NOT NULL GROUP BY 1": "",
    "SELECT w, AVG(n), SUM(m) FROM t GROUP BY 1": "",
    "SELECT w, STDDEV(n) FROM t GROUP BY 1": ANY.format("n and n squared"),
}


@pytest.mark.parametrize("sql", SUMS)
def test_sums_that_no_row_may_add_are_said(tmp_path: Path, sql: str) -> None:
    """A row with n > 3 adds more than 3 to the sum; C has all sums within the declared bounds."""
    assert plan_of(tmp_path, sql).against == SUMS[sql]
