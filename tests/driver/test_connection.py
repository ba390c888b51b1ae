"""The connection end to end: plans are free and public, runs spend once, releases outlive the process."""

from __future__ import annotations

import dataclasses
import datetime as dt
import math
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from itertools import combinations
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest
from helpers import filled

import dpsql
from dpsql.engines import duckdb as duckdb_engine
from dpsql.privacy.amounts import GRID

BUDGETS = {
    "pure": "epsilon = 1.0",
    "delta": "epsilon = 4.0\ndelta = 1e-9",
    "both": "epsilon = 4.0\ndelta = 1e-9\npure_epsilon = 2.0",
    "rho": "rho = 1.0",
}
TABLE = """
[tables.t]
unit = "row"
[tables.t.columns]
g = { values = ["a", "b"], other = true }
k = { lower = 0, upper = 93, nulls = false }
v = { lower = 0, upper = 10 }
"""
ROWS = "SELECT CASE i % 4 WHEN 0 THEN 'a' WHEN 1 THEN 'b' WHEN 2 THEN 'z' END AS g, (i % 94)::INTEGER AS k, i AS v"
COUNT = "SELECT count(*) AS n FROM t"
BY_G = "CREATE VIEW by_g AS SELECT g, count(*) AS n FROM t GROUP BY g"


def make(folder: Path, budget: str = "both", *, table: str = TABLE, rows: str = ROWS, dataset: str = "d-1") -> Path:
    """A database and its policy in ``folder``; the policy's path."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "d.duckdb").exists():
        with filled(folder / "d.duckdb") as duck:
            duck.execute(f"CREATE TABLE t AS {rows} FROM range(400) r(i)")
    path = folder / "p.toml"
    path.write_text(f'dataset = "{dataset}"\n[budget]\n{BUDGETS.get(budget, budget)}\n{table}')
    return path


def connect(folder: Path, budget: str = "both", **options: Any) -> dpsql.Connection:
    """A connection to a new database and policy in ``folder``."""
    return dpsql.connect(folder / "d.duckdb", policy=make(folder, budget, **options))


def refusal(kind: type[dpsql.Error], call: Callable[[], object]) -> str:
    """The message of the refusal, which is one line and has no other exception behind it."""
    with pytest.raises(kind) as caught:
        call()
    text = str(caught.value)
    assert text
    assert "\n" not in text
    return text


def spent_units(con: dpsql.Connection) -> dict[str, int]:
    return {account.name: account.spent_units for account in con.budget.accounts}


@pytest.fixture(scope="module")
def untouched(tmp_path_factory: pytest.TempPathFactory) -> dpsql.Connection:
    """A connection for tests whose every batch is refused before the ledger is looked at: it is never made."""
    return connect(tmp_path_factory.mktemp("untouched"))


@pytest.fixture(scope="module")
def unspent(tmp_path_factory: pytest.TempPathFactory) -> dpsql.Connection:
    """A connection for tests whose every batch is refused before it is charged."""
    return connect(tmp_path_factory.mktemp("unspent"))


# -- plans ------------------------------------------------------------------------------------------


def test_a_plan_is_free_and_touches_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    con = connect(tmp_path)
    before = sorted(os.listdir(tmp_path))
    monkeypatch.setattr(duckdb_engine, "_scan", lambda *_: pytest.fail("a plan scanned the table"))
    plan = con.plan(f"{BY_G}; {COUNT}", 1)
    assert str(plan)
    assert plan.rows()
    assert sorted(os.listdir(tmp_path)) == before
    assert con.releases() == []
    assert (con.budget.spent, con.budget.total, con.budget.remaining) == (0, 4, 4)
    assert sorted(os.listdir(tmp_path)) == before


BATCHES = [
    f"{BY_G}; {COUNT}",
    "SELECT k, count(*) FROM t GROUP BY k; SELECT count(*) FROM t WHERE k BETWEEN 10 AND 40",
    "SELECT g, sum(v) AS s, count(v) AS c FROM t GROUP BY g; SELECT sum(v) FROM t WHERE k < 20",
    "SELECT count(*) FROM t WHERE g LIKE 'a%' OR v > 5",
]


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.few(every=3)
def test_plans_of_neighbours_are_equal_byte_for_byte(tmp_path: Path, batch: str) -> None:
    found = []
    for name in ("one", "more"):
        con = connect(tmp_path / name)
        if name == "more":
            with duckdb.connect(str(tmp_path / name / "d.duckdb")) as duck:
                duck.execute("INSERT INTO t VALUES ('HIV+', 2147483647, 9223372036854775807)")
        for arguments in ({"epsilon": 1}, {"epsilon": 1, "delta": 1e-9}):
            plan = con.plan(batch, **arguments)
            errors = {key: value.tobytes() for key, value in plan.stderr.items()}
            widths = {key: value.tobytes() for key, value in plan.half_width.items()}
            found.append((name, str(plan), repr(plan), plan.rows(), errors, widths, plan.gap))
    one, more = ([f[1:] for f in found if f[0] == name] for name in ("one", "more"))
    assert one == more


@pytest.mark.parametrize(
    ("budget", "arguments", "guarantee", "account"),
    [
        ("pure", {"epsilon": 0.5}, "epsilon 0.5 (pure)", "pure"),
        ("pure", {"epsilon": 0.5, "delta": 1e-6}, "epsilon 0.5 (pure)", "pure"),
        ("delta", {"epsilon": 0.5}, "epsilon 0.5, delta 1e-9", "gaussian"),
        ("delta", {"epsilon": "0.5", "delta": "1e-6"}, "epsilon 0.5, delta 1e-6", "gaussian"),
        ("both", {"epsilon": Fraction(1, 2)}, "epsilon 0.5 (pure)", "pure"),
        ("rho", {"rho": Decimal("0.25")}, "rho 0.25 (zCDP)", "gaussian"),
        ("rho", {"epsilon": 0.5}, "epsilon 0.5 (pure)", "gaussian"),
        ("rho", {"epsilon": 0.5, "delta": 1e-9}, "epsilon 0.5, delta 1e-9", "gaussian"),
        ("delta", {"rho": 0.001}, "rho 0.001 (zCDP)", "gaussian"),
    ],
)
@pytest.mark.few(every=4)
def test_the_first_line_of_a_plan_is_its_guarantee(
    tmp_path: Path, budget: str, arguments: dict[str, Any], guarantee: str, account: str
) -> None:
    con = connect(tmp_path, budget)
    plan = con.plan(COUNT, **arguments)
    first = " ".join(str(plan).split("\nCost")[0].split())
    assert first == f"Guarantee {plan.privacy}"
    assert guarantee in first
    assert first.endswith("for adding or removing one row of t")
    assert (plan.charge.guarantee, plan.charge.account) == (guarantee, account)
    rel = con.run(plan)
    assert rel.guarantee == guarantee
    assert spent_units(con) == {**dict.fromkeys(spent_units(con), 0), account: plan.charge.units}
    assert rel.cost == plan.charge.units / GRID


@pytest.mark.long
def test_the_better_account_is_named_and_the_other_shown(tmp_path: Path) -> None:
    con = connect(tmp_path)
    ranges = "; ".join(
        f"SELECT count(*) FROM t WHERE k BETWEEN {i} AND {j}" for i in range(0, 94, 9) for j in range(i, 94, 7)
    )
    plan = con.plan(ranges, 1, 1e-9)  # 94 cells: Laplace on cells beats the Gaussian optimum at so small a delta
    assert (plan.charge.account, plan.noise.kind) == ("pure", "laplace")
    (other,) = plan.alternatives
    assert (other.charge.account, other.charge.guarantee) == ("gaussian", "epsilon 1, delta 1e-9")
    assert "Other way  epsilon 1, delta 1e-9, paid from the Gaussian budget: " in str(plan)
    assert other.error > plan.charge.unit_variance * plan.strategy.expected


@pytest.mark.long
def test_gaussian_noise_wins_for_many_marginals(tmp_path: Path) -> None:
    sizes = {"a": 5, "b": 4, "c": 3, "e": 2, "f": 7}
    table = '[tables.t]\nunit = "row"\n[tables.t.columns]\n' + "".join(
        f"{name} = {{ lower = 0, upper = {size - 1}, nulls = false }}\n" for name, size in sizes.items()
    )
    rows = "SELECT " + ", ".join(f"(i % {size})::INTEGER AS {name}" for name, size in sizes.items())
    con = connect(tmp_path, table=table, rows=rows)
    pairs = combinations(sizes, 2)
    plan = con.plan("; ".join(f"SELECT {x}, {y}, count(*) FROM t GROUP BY {x}, {y}" for x, y in pairs), 1, 1e-6)
    assert (plan.charge.account, plan.noise.kind) == ("gaussian", "gaussian")
    assert plan.gap is not None
    assert plan.gap <= 1e-3
    assert [other.charge.account for other in plan.alternatives] == ["pure"]


@pytest.mark.parametrize(
    "arguments",
    [
        *({"epsilon": bad} for bad in (0, -1, True, math.nan, math.inf, "x", "", "nan", [1], {}, 1j, b"1")),
        *({"epsilon": bad} for bad in (1e-13, 1e13, "1e-13", Fraction(1, 10**13), Decimal("inf"))),
        *({"epsilon": 1, "delta": bad} for bad in (0, -1e-9, 1, 1.5, True, math.nan, "x", [1])),
        *({"rho": bad} for bad in (0, -1, True, math.nan, math.inf, "x", np.float64("nan"))),
        {},
        {"delta": 1e-9},
        {"rho": 1, "epsilon": 1},
        {"rho": 1, "delta": 1e-9},
        *({"epsilon": 1, "alpha": bad} for bad in (0, 1, -1, 2, True, math.nan, "x", None)),
        *({"epsilon": 1, "tolerance": bad} for bad in (0, -1, 2, math.nan, "x", True)),
        *({"epsilon": 1, "time_limit": bad} for bad in (0, -1, math.nan, "x", True)),
    ],
    ids=str,
)
def test_a_bad_number_is_refused_before_anything(untouched: dpsql.Connection, arguments: dict[str, Any]) -> None:
    refusal(dpsql.DataError, lambda: untouched.plan(COUNT, **arguments))
    refusal(dpsql.DataError, lambda: untouched.run(COUNT, **arguments))
    assert not untouched.ledger_path.exists()


# -- spending ---------------------------------------------------------------------------------------


def test_a_run_spends_its_plan_once(tmp_path: Path) -> None:
    con = connect(tmp_path)
    plan = con.plan(f"{BY_G}; {COUNT}", 0.05)
    first = con.run(plan)
    assert (first.cost, spent_units(con)) == (0.05, {"pure": GRID // 20, "gaussian": 0})
    again = con.run(plan)
    assert (again.id, again.cost) == (first.id, 0)
    assert again["by_g"] == first["by_g"]
    by_text = con.run(f"{BY_G}; {COUNT}", 0.05)
    assert (by_text.id, by_text.cost) == (first.id, 0)
    reopened = dpsql.connect(tmp_path / "d.duckdb", policy=tmp_path / "p.toml").run(plan)
    assert (reopened.id, reopened.cost) == (first.id, 0)
    refusal(dpsql.IntegrityError, lambda: con.run(plan, fresh=True))  # the name is taken
    assert spent_units(con)["pure"] == GRID // 20
    replaced = con.plan(BY_G.replace("CREATE", "CREATE OR REPLACE") + f"; {COUNT}", 0.05)
    fresh = con.run(replaced, fresh=True)
    assert (fresh.id, fresh.cost) == (2, 0.05)
    assert fresh["by_g"] != first["by_g"] or fresh["q1"] != first["q1"]  # draws of a scale of 20 and more
    assert con.sql("SELECT * FROM by_g") == fresh["by_g"]
    state = con.budget
    assert (state.total, state.spent, state.remaining) == (4, 0.1, pytest.approx(3.9))
    assert [entry.released is not None for entry in con.releases()] == [True, True]


@pytest.mark.long
def test_another_question_is_another_release(tmp_path: Path) -> None:
    con = connect(tmp_path, "epsilon = 100.0")
    asked = [
        lambda: con.run(COUNT, 1),
        lambda: con.run(COUNT, 2),
        lambda: con.run(COUNT, 1, alpha=0.1),
        lambda: con.run(COUNT, 1, errors=False),
        lambda: con.run("SELECT count(*) AS m FROM t", 1),
        lambda: con.run("SELECT count(*) AS n FROM t WHERE k < 5", 1),
        lambda: con.run("/*+ WEIGHT(2) */ SELECT count(*) AS n FROM t", 1),
    ]
    first = [ask() for ask in asked]
    assert [release.id for release in first] == [1, 2, 3, 4, 5, 6, 7]
    # The same number under another name, level or weight follows from the first two; rows with k < 5 do not.
    assert [release.cost for release in first] == [1, 2, 0, 0, 0, 1, 0]
    assert [ask().cost for ask in asked] == [0] * 7
    assert con.budget.spent == 4


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('["a", "b"]', '["a", "z"]'),
        ('["a", "b"]', '["b", "a"]'),
        ("{ lower = 0, upper = 10 }", "{ lower = 0, upper = 100, step = 10 }"),
    ],
)
@pytest.mark.few(every=2)
def test_a_changed_policy_is_another_question(tmp_path: Path, old: str, new: str) -> None:
    # The same words and the same noise, but other groups or bounds: the earlier answer would be wrong.
    batch = "SELECT g, count(*) AS n FROM t GROUP BY g; SELECT sum(v) AS s FROM t"
    connect(tmp_path, table=TABLE).run(batch, 0.5)
    assert old in TABLE
    second = connect(tmp_path, table=TABLE.replace(old, new)).run(batch, 0.5)
    assert (second.id, second.cost) == (2, 0.5)


@pytest.mark.long
def test_fifty_five_parts_of_a_pure_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    con = connect(tmp_path, "pure")
    monkeypatch.setattr(con._store, "write", lambda *_: None)  # 55 copies of the releases file are not the point
    plan = con.plan(COUNT, 1 / 55)
    assert {con.run(plan, fresh=True).cost for _ in range(55)} == {plan.charge.units / GRID}
    state = con.budget
    assert 0 <= state.remaining < 1e-10
    assert 1 - 1e-10 < state.spent <= state.total == 1
    message = refusal(dpsql.BudgetError, lambda: con.run(plan, fresh=True))
    assert "epsilon" in message
    assert con.budget == state
    assert len(con.releases()) == 55
    assert con.run(plan).cost == 0  # earlier answers stay free
    assert not con.plan(COUNT, 1 / 55).affordable
    assert "more than is left" in str(con.plan(COUNT, 1 / 55))


def test_a_refused_budget_charges_nothing(tmp_path: Path) -> None:
    for budget, arguments in (
        ("pure", {"epsilon": 1.1}),
        ("delta", {"epsilon": 4.1}),
        ("rho", {"rho": 1.1}),
        ("both", {"epsilon": 2.1}),
    ):
        con = connect(tmp_path / budget, budget)
        refusal(dpsql.BudgetError, lambda con=con, arguments=arguments: con.run(COUNT, **arguments))
        assert con.budget.spent == 0
        assert con.releases() == []
    con = connect(tmp_path / "pure", "pure")
    refusal(dpsql.BudgetError, lambda: con.plan(COUNT, rho=0.1))


def test_a_gaussian_budget_can_be_spent_to_its_end(tmp_path: Path) -> None:
    con = connect(tmp_path, "delta")
    con.run(COUNT, 1)
    left = con.budget.remaining
    assert 0 < left < 4
    con.run(COUNT, left)
    assert con.budget.spent <= con.budget.total == 4
    refusal(dpsql.BudgetError, lambda: con.run(COUNT, 0.5, fresh=True))


# -- refusals that must come before the charge ------------------------------------------------------


UNRELEASED: list[tuple[Any, Any]] = [
    (dpsql.SQLError, "CREATE VIEW releases AS SELECT count(*) FROM t"),
    (dpsql.IntegrityError, "CREATE VIEW q1 AS SELECT count(*) FROM t"),
    (dpsql.IntegrityError, "CREATE VIEW Q77 AS SELECT count(*) FROM t"),
    (dpsql.SQLError, 'CREATE VIEW "" AS SELECT count(*) FROM t'),
    (dpsql.SQLError, 'SELECT count(*) AS "" FROM t'),
    (dpsql.SQLError, 'SELECT count(*) AS "a\x00b" FROM t'),
    (dpsql.SQLError, 'SELECT count(*) AS "\ud800" FROM t'),
    (dpsql.SQLError, 'CREATE VIEW "\udfff" AS SELECT count(*) FROM t'),
    (dpsql.SQLError, "SELECT count(*) FROM t -- \ud800"),
    (dpsql.SQLError, f"{BY_G}; {BY_G}"),
    (dpsql.SQLError, "CREATE VIEW dp.x AS SELECT count(*) FROM t"),
    (dpsql.SQLError, "SELECT count(*) FROM t; DROP TABLE t"),
    (dpsql.SQLError, "SELECT count(*) FROM t WHERE error(v) > 0"),
    (dpsql.SQLError, "SELECT k FROM t"),
    (dpsql.SQLError, ""),
    (dpsql.SQLError, 5),
    (dpsql.PolicyError, "SELECT count(*) FROM other"),
]


@pytest.mark.parametrize(("kind", "batch"), UNRELEASED)
def test_what_cannot_be_released_is_refused_before_the_charge(unspent: dpsql.Connection, kind: Any, batch: Any) -> None:
    kinds = (dpsql.SQLError, dpsql.PolicyError) if kind is dpsql.PolicyError else kind
    refusal(kinds, lambda: unspent.run(batch, 1))
    assert unspent.releases() == []


def test_nothing_refused_stands_in_the_way_of_the_next_one(tmp_path: Path) -> None:
    con = connect(tmp_path)
    for _, batch in UNRELEASED:
        refusal((dpsql.SQLError, dpsql.PolicyError, dpsql.IntegrityError), lambda batch=batch: con.run(batch, 1))
    assert con.run(COUNT, 1).cost == 1


@pytest.mark.long
def test_a_taken_name_is_refused_even_where_the_releases_file_is_gone(tmp_path: Path) -> None:
    con = connect(tmp_path)
    con.run(BY_G, 0.5)
    other = BY_G.replace("count(*)", "sum(v)").replace("by_g", "BY_G")
    refusal(dpsql.IntegrityError, lambda: con.run(other, 0.5))
    con.releases_path.unlink()
    refusal(dpsql.IntegrityError, lambda: con.run(other, 0.5))
    assert len(con.releases()) == 1
    assert con.run(other.replace("CREATE", "CREATE OR REPLACE"), 0.5).id == 2
    # A column of another name in the same result is no clash, and unnamed results never are.
    assert con.run(COUNT, 0.25).id == 3
    assert con.run("SELECT count(*) AS m FROM t", 0.25).id == 4


def test_a_name_of_two_lines_makes_a_message_of_one(tmp_path: Path) -> None:
    con = connect(tmp_path)
    con.run('CREATE VIEW "two\nlines" AS SELECT count(*) AS n FROM t', 0.5)
    refusal(dpsql.IntegrityError, lambda: con.run('CREATE VIEW "two\nlines" AS SELECT sum(v) AS s FROM t', 0.5))


def test_a_label_that_the_ledger_refuses_is_free(tmp_path: Path) -> None:
    con = connect(tmp_path)
    for label in ("x" * 501, "\ud800", 5):
        refusal(dpsql.DataError, lambda label=label: con.run(COUNT, 1, label=label))
    assert con.releases() == []
    con.run(COUNT, 1, label="ann")
    assert [entry.label for entry in con.releases()] == ["ann"]


def test_a_plan_keeps_its_own_budget(tmp_path: Path) -> None:
    con = connect(tmp_path)
    plan = con.plan(COUNT, 1)
    refusal(dpsql.InterfaceError, lambda: con.run(plan, 2))
    refusal(dpsql.InterfaceError, lambda: con.run(plan, alpha=0.1))
    elsewhere = connect(tmp_path / "other", dataset="d-2")
    refusal(dpsql.IntegrityError, lambda: elsewhere.run(plan))
    con.close()
    refusal(dpsql.InterfaceError, lambda: con.plan(COUNT, 1))


@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE t ADD COLUMN x INT",
        "ALTER TABLE t ALTER k TYPE BIGINT",
        "ALTER TABLE t DROP COLUMN v",
        "DROP TABLE t",
    ],
)
def test_a_schema_that_changed_since_the_plan_is_refused_uncharged(tmp_path: Path, change: str) -> None:
    con = connect(tmp_path)
    plan = con.plan(COUNT, 1)
    with duckdb.connect(str(tmp_path / "d.duckdb")) as duck:
        duck.execute(change)
    refusal((dpsql.IntegrityError, dpsql.PolicyError), lambda: con.run(plan))
    assert con.releases() == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("k = { lower = 0, upper = 93, nulls = false }", "missing = {}"),
        ("v = { lower = 0, upper = 10 }", "v = { values = ['x'] }"),
        ('["a", "b"]', "[1, 2]"),
        ("[tables.t]", '[tables.u]\nunit = "row"\n[tables.t]'),
    ],
)
def test_a_policy_that_contradicts_the_schema(tmp_path: Path, old: str, new: str) -> None:
    assert old in TABLE
    con = connect(tmp_path, table=TABLE.replace(old, new))
    message = refusal(dpsql.PolicyError, lambda: con.plan(COUNT, 1))
    assert "tables." in message


# -- results ----------------------------------------------------------------------------------------


def test_the_columns_of_a_result(tmp_path: Path) -> None:
    con = connect(tmp_path, "epsilon = 100.0")
    plan = con.plan(f"{BY_G}; SELECT count(*) FROM t", 1)
    rel = con.run(plan)
    table = rel["BY_G"]
    assert table.columns == ("g", "g_other", "n", "n_stderr", "n_low", "n_high")
    assert table.types == ("VARCHAR", "BOOLEAN", "DOUBLE", "DOUBLE", "DOUBLE", "DOUBLE")
    assert [row[:2] for row in table] == [("a", False), ("b", False), (None, True), (None, False)]
    assert table.column("n_stderr") == plan.stderr["by_g"].tolist()
    for _, _, n, _, low, high in table:
        assert high - n == pytest.approx(n - low)
    assert [h - n for n, h in zip(table.column("n"), table.column("n_high"), strict=True)] == pytest.approx(
        plan.half_width["by_g"].tolist()
    )
    assert rel["q1"].columns == ("count_star()", "count_star()_stderr", "count_star()_low", "count_star()_high")
    plain = con.run(f"{COUNT}; SELECT g, count(*) AS n FROM t GROUP BY g", 1, errors=False)
    assert [plain[name].columns for name in plain] == [("n",), ("g", "g_other", "n")]
    assert (len(rel), list(rel), rel.views) == (2, ["by_g", "q1"], ("by_g", "q1"))
    assert "did you mean by_g" in refusal(dpsql.ProgrammingError, lambda: rel["by_h"])


@pytest.mark.long
def test_keys_keep_their_types(tmp_path: Path) -> None:
    table = """
[tables.t]
unit = "row"
[tables.t.columns]
day = { lower = 2024-01-01, upper = 2024-01-03 }
flag = { values = [false, true], nulls = false }
price = { lower = 0, upper = 1, step = 0.5, nulls = false }
small = { values = [3, 1], nulls = false }
"""
    rows = "SELECT DATE '2024-01-02' AS day, i % 2 = 0 AS flag, 0.5::DECIMAL(5, 2) AS price, 1::TINYINT AS small"
    con = connect(tmp_path, "epsilon = 100.0", table=table, rows=rows)
    expected: dict[str, tuple[str, list[Any]]] = {
        "day": ("DATE", [dt.date(2024, 1, 1), dt.date(2024, 1, 2), dt.date(2024, 1, 3), None]),
        "flag": ("BOOLEAN", [False, True]),
        "price": ("DECIMAL(5,2)", [Decimal("0.00"), Decimal("0.50"), Decimal("1.00")]),
        "small": ("TINYINT", [3, 1]),
    }
    rel = con.run(
        "; ".join(f"CREATE VIEW by_{c} AS SELECT {c}, count(*) AS n FROM t GROUP BY {c}" for c in expected), 9
    )
    for column, (kind, keys) in expected.items():
        assert (rel[f"by_{column}"].types[0], rel[f"by_{column}"].column(column)) == (kind, keys)
        stored = con.sql(f"SELECT {column} FROM by_{column}")
        assert (stored.types[0], stored.fetchall()) == (kind, [(key,) for key in keys])


def test_answers_are_consistent(tmp_path: Path) -> None:
    con = connect(tmp_path, "epsilon = 100.0\ndelta = 1e-9")
    ranges = [(0, 93), (0, 46), (47, 93), (0, 20), (21, 46), (30, 60), (30, 46), (47, 60)]
    batch = "; ".join(
        [
            "SELECT g, k, count(*) AS n, sum(v) AS s FROM t GROUP BY g, k",
            "SELECT g, count(*) AS n, sum(v) AS s FROM t GROUP BY g",
            *(f"SELECT count(*) AS n, sum(v) AS s FROM t WHERE k BETWEEN {i} AND {j}" for i, j in ranges),
            "SELECT count(*) AS n, sum(v) AS s FROM t",
        ]
    )
    rel = con.run(batch, 1, 1e-9)
    for column in ("n", "s"):
        close = {"abs": 1e-6, "rel": 1e-9}
        total = rel[f"q{len(ranges) + 3}"].column(column)[0]
        assert sum(rel["q2"].column(column)) == pytest.approx(total, **close)
        cells = np.array(rel["q1"].column(column)).reshape(4, 94)  # rows with k elsewhere are in no group
        assert (rel["q4"].column(column)[0] + rel["q5"].column(column)[0]) == pytest.approx(cells.sum(), **close)
        for number, (i, j) in enumerate(ranges):
            assert rel[f"q{number + 3}"].column(column)[0] == pytest.approx(cells[:, i : j + 1].sum(), **close)


# -- releases ---------------------------------------------------------------------------------------


def test_plain_duckdb_reads_the_releases(tmp_path: Path) -> None:
    con = connect(tmp_path)
    rel = con.run(f"{BY_G}; {COUNT}", 0.5, label="ann")
    with duckdb.connect(str(con.releases_path), read_only=True) as duck:
        assert duck.execute("SELECT * FROM dp.by_g").fetchall() == rel["by_g"].fetchall()
        assert duck.execute("SELECT * FROM r1.q1").fetchall() == rel["q1"].fetchall()
        names = duck.execute("SELECT schema_name || '.' || table_name FROM duckdb_tables()").fetchall()
        assert sorted(name for (name,) in names) == ["main.releases", "r1.by_g", "r1.q1"]
        row = duck.execute("SELECT release_id, label, guarantee, purse, cost, noise FROM dp.releases").fetchall()
        assert row == [(1, "ann", "epsilon 0.5 (pure)", "pure", 0.5, "laplace")]
    assert con.sql("SELECT count(*) AS c FROM by_g WHERE n_stderr > 0").fetchall() == [(4,)]
    refusal(dpsql.Error, lambda: con.sql("SELECT * FROM t"))
    refusal(dpsql.Error, lambda: con.sql("INSERT INTO by_g SELECT * FROM by_g"))


def test_a_deleted_releases_file_is_rebuilt(tmp_path: Path) -> None:
    con = connect(tmp_path)
    before = con.run(f"{BY_G}; {COUNT}", 0.5)
    con.run("CREATE VIEW total AS SELECT count(*) AS n FROM t", 0.5)
    views = [con.sql(f"SELECT * FROM {name}") for name in ("by_g", "q1", "total", "releases")]
    con.releases_path.unlink()
    assert con.rebuild() == 2
    assert [con.sql(f"SELECT * FROM {name}") for name in ("by_g", "q1", "total", "releases")] == views
    con.releases_path.unlink()
    assert con.run(f"{BY_G}; {COUNT}", 0.5)["by_g"] == before["by_g"]  # an answer brings back what it needs
    assert con.sql("SELECT * FROM by_g") == before["by_g"]
    con.releases_path.write_bytes(b"damaged" * 1000)
    assert con.rebuild() == 2
    assert con.sql("SELECT * FROM total") == views[2]


@pytest.mark.long
def test_a_busy_releases_file_loses_no_answer(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    con = connect(tmp_path)
    first = con.run(f"{BY_G}; {COUNT}", 0.5)
    with duckdb.connect(str(con.releases_path)):
        rel = con.run("CREATE VIEW total AS SELECT count(*) AS n FROM t", 0.5)
        assert len(rel["total"]) == 1
        assert con.run(f"{BY_G}; {COUNT}", 0.5)["by_g"] == first["by_g"]
        assert "release 2 is in the ledger but not registered" in caplog.text
    assert con.run(COUNT, 0.25).id == 3  # the next release registers what is missing
    assert con.sql("SELECT * FROM total") == rel["total"]


# -- ledger and data version ------------------------------------------------------------------------


def test_another_version_of_the_data_needs_to_be_declared(tmp_path: Path) -> None:
    connect(tmp_path).run(COUNT, 0.5)
    renamed = connect(tmp_path, dataset="d-2")
    for ask in (lambda: renamed.run(COUNT, 0.5), lambda: renamed.plan(COUNT, 0.5), lambda: renamed.budget):
        assert "data set 'd-1'" in refusal(dpsql.LedgerError, ask)
    changed = connect(tmp_path, "epsilon = 9.0")
    assert "another budget" in refusal(dpsql.LedgerError, lambda: changed.run(COUNT, 0.5))


def test_a_changed_row_changes_neither_reuse_nor_charge(tmp_path: Path) -> None:
    con = connect(tmp_path)
    first = con.run(COUNT, 0.5)
    with duckdb.connect(str(tmp_path / "d.duckdb")) as duck:
        duck.execute("INSERT INTO t VALUES ('a', 1, 1)")
    again = con.run(COUNT, 0.5)
    assert (again.id, again.cost, again["q1"]) == (first.id, 0, first["q1"])


def test_a_restored_or_deleted_ledger_is_refused_where_it_is_anchored(tmp_path: Path) -> None:
    policy = make(tmp_path)
    files = {"policy": policy, "anchor": tmp_path / "elsewhere"}
    con = dpsql.connect(tmp_path / "d.duckdb", **files)
    con.run(COUNT, 0.25)
    shutil.copy(con.ledger_path, tmp_path / "copy")
    con.run(COUNT, 0.5)
    spent = con.budget.spent
    (tmp_path / "p.ledger").rename(tmp_path / "newest")
    for ask in (lambda c: c.budget, lambda c: c.run(COUNT, 0.5), lambda c: c.plan(COUNT, 0.5)):
        refusal(dpsql.LedgerError, lambda ask=ask: ask(dpsql.connect(tmp_path / "d.duckdb", **files)))
    shutil.copy(tmp_path / "copy", tmp_path / "p.ledger")
    refusal(dpsql.LedgerError, lambda: dpsql.connect(tmp_path / "d.duckdb", **files).run(COUNT, 0.5))
    refusal(dpsql.LedgerError, lambda: con.budget)  # without an anchor, this process still remembers
    shutil.copy(tmp_path / "newest", tmp_path / "p.ledger")
    assert dpsql.connect(tmp_path / "d.duckdb", **files).budget.spent == spent


def test_connect_refuses_what_it_cannot_place(tmp_path: Path) -> None:
    policy = dpsql.Policy.parse(make(tmp_path).read_text())
    refusal(dpsql.InterfaceError, lambda: dpsql.connect(tmp_path / "d.duckdb", policy=policy))
    con = dpsql.connect(tmp_path / "d.duckdb", policy=policy, ledger=tmp_path / "x.ledger")
    assert con.run(COUNT, 0.5).id == 1
    assert (tmp_path / "x.releases.duckdb").exists()
    refusal(dpsql.PolicyError, lambda: dpsql.connect(policy=policy, ledger=tmp_path / "y.ledger").plan(COUNT, 1))
    missing = dpsql.connect(tmp_path / "none.duckdb", policy=policy, ledger=tmp_path / "y.ledger")
    refusal(dpsql.OperationalError, lambda: missing.plan(COUNT, 1))
    refusal(dpsql.OperationalError, lambda: dpsql.connect(policy=tmp_path / "none.toml"))


def test_an_open_connection_can_be_passed_in(tmp_path: Path) -> None:
    policy = make(tmp_path)
    with duckdb.connect(str(tmp_path / "d.duckdb")) as duck:
        held = dpsql.connect(tmp_path / "d.duckdb", policy=policy)
        assert "pass that connection" in refusal(dpsql.OperationalError, lambda: held.plan(COUNT, 1))
        duck.execute("CREATE TEMP VIEW t AS SELECT 1 AS g")  # a view of the same name does not shadow the table
        con = dpsql.connect(duck, policy=policy)
        rel = con.run(BY_G, 1)
        assert duck.execute("SELECT * FROM dpsql_releases.dp.by_g").fetchall() == rel["by_g"].fetchall()
        tables = duck.execute("SELECT database_name, table_name FROM duckdb_tables() WHERE NOT temporary").fetchall()
        assert [name for base, name in tables if base == "d"] == ["t"]
        assert con.run(COUNT, 0.5, fresh=True).id == 2
        assert duck.execute("SELECT count(*) FROM dpsql_releases.dp.q1").fetchall() == [(1,)]
        duck.execute("DROP VIEW t")
        duck.execute("CREATE MACRO count_star() AS 5")
        assert con.plan(COUNT, 0.25).affordable  # no scan of dpsql's calls it
        duck.execute("DROP MACRO count_star")
        duck.execute("BEGIN TRANSACTION")
        duck.execute("INSERT INTO t VALUES ('a', 1, 1)")
        assert con.run(COUNT, 0.25, fresh=True).id == 3  # dpsql's cursor is a transaction of its own
        duck.execute("ROLLBACK")


def test_a_foreign_database_named_like_the_releases_loses_no_answer(tmp_path: Path) -> None:
    with duckdb.connect(str(tmp_path / "x.duckdb")) as duck:
        duck.execute(f"CREATE TABLE t AS {ROWS} FROM range(400) r(i)")
        duck.execute("ATTACH ':memory:' AS dpsql_releases")
        con = dpsql.connect(duck, policy=make(tmp_path))
        assert con.run(COUNT, 1)["q1"].columns[0] == "n"
        assert con.sql("SELECT n FROM q1").fetchall()


def test_csv_lines_that_are_no_text_decide_nothing(tmp_path: Path) -> None:
    table = TABLE.replace('unit = "row"', 'unit = "row"\nsource = "d.csv"').replace("v = { ", 'v = { type = "BIGINT", ')
    table = table.replace("k = { ", 'k = { type = "INTEGER", ').replace("g = { ", 'g = { type = "VARCHAR", ')
    lines = b"g,k,v\n" + b"".join(b"a,%d,%d\n" % (i % 94, i) for i in range(300))
    found = []
    for number, more in enumerate((b"", b"b,1,\xff\xfe\n", b"b,1\r2\n", b"b,1,2\r\n", b"\x00\n", b'b,1,"2\n')):
        folder = tmp_path / str(number)
        policy = make(folder, "epsilon = 1000000.0", table=table)
        head, rest = lines.split(b"\n", 1)
        (folder / "d.csv").write_bytes(head + b"\n" + rest + more)
        con = dpsql.connect(policy=policy)
        rel = con.run(COUNT, 10_000)
        assert abs(rel["q1"].column("n")[0] - 300) < 3
        found.append((con.schemas(), rel["q1"].columns))
    assert all(each == found[0] for each in found)


# -- what an outsider sees --------------------------------------------------------------------------

PEOPLE = """
CREATE TABLE p(id INT, name VARCHAR, age INT, bal DOUBLE, big BIGINT, dec DECIMAL(18, 3), ts TIMESTAMP, txt VARCHAR);
INSERT INTO p VALUES (1, 'ann', 30, 10.5, 5, 1.5, '2020-01-01', '7'), (2, 'bob', 40, 20.5, 6, 2.5, '2021-01-01', '8');
"""
EVE = """
INSERT INTO p VALUES (3, 'eve', 0, -1, 9223372036854775807, 999999999999999.999, '2290-01-01', 'HIV+');
INSERT INTO p VALUES (4, NULL, NULL, 'nan', -9223372036854775808, -999999999999999.999, 'infinity', NULL);
INSERT INTO p VALUES (5, 'x', -2147483648, 'inf', NULL, NULL, '-infinity', '');
"""
PEOPLE_POLICY = """
[tables.p]
unit = "row"
[tables.p.columns]
name = { values = ["ann", "bob"], other = true }
age = { lower = 0, upper = 120 }
bal = { lower = 0.0, upper = 100.0, step = 0.5 }
big = { lower = 0, upper = 10 }
dec = { lower = 0, upper = 10 }
ts = {}
txt = { values = ["7", "8"] }
id = {}
"""
PROBES = [
    "SELECT name, count(*) AS n FROM p GROUP BY name",
    "SELECT age, count(*) AS n, sum(big) AS s FROM p GROUP BY age",
    "SELECT txt, count(*) AS n FROM p GROUP BY txt",
    "SELECT sum(bal), sum(big), sum(dec), sum(age) FROM p",
    "SELECT count(*) FROM p WHERE big > 5 AND NOT (bal <= 3.5 OR dec = 1.5)",
    "SELECT count(*) FROM p WHERE big IN (1, 2, 3, 5, 8, 13)",
    "SELECT count(*) FROM p WHERE age IN (1, 2, 3, 5, 8, 13)",
    "SELECT count(*) FROM p WHERE ts > '2020-06-01' OR ts IS NULL",
    "SELECT count(*) FROM p WHERE txt LIKE 'H%' OR name LIKE '%e'",
    "SELECT count(*) FROM p WHERE bal > 10 AND id < age",
    "SELECT sum(big) FILTER (WHERE bal > 5) AS s FROM p",
    "SELECT count(*) FROM p WHERE 1 // age > 0",
    "SELECT count(*) FROM p WHERE txt::INT > 0",
    "SELECT count(*) FROM p WHERE txt = 7",
    "SELECT count(*) FROM p WHERE big::INT > 0",
    "SELECT count(*) FROM p WHERE big + id > 5",
    "SELECT count(*) FROM p WHERE dec * dec > 1",
    "SELECT sum(big::HUGEINT * 18446744073709551616::HUGEINT) FROM p",
    "SELECT (SELECT age FROM p WHERE id >= 2)",
    "SELECT count(*) FROM p WHERE CASE WHEN name = 'eve' THEN error('found') ELSE true END",
    "SELECT name FROM p",
    "SELECT count(*) FROM p WHERE strptime(txt, '%d') > ts",
    "SELECT count(*) FROM p HAVING count(*) > -1000",
    "FROM query('FROM p')",
]


def outcomes(folder: Path, script: str, probes: list[str]) -> list[Any]:
    """For each probe what an outsider learns besides the noisy numbers."""
    folder.mkdir()
    with duckdb.connect(str(folder / "d.duckdb")) as duck:
        duck.execute(script)
    (folder / "p.toml").write_text(f'dataset = "d"\n[budget]\nepsilon = 1000.0\n{PEOPLE_POLICY}')
    con = dpsql.connect(folder / "d.duckdb", policy=folder / "p.toml")
    found: list[Any] = []
    for probe in probes:
        try:
            table = con.run(probe, 1)["q1"]
        except dpsql.Error as error:
            found.append((type(error).__name__, str(error).replace(str(folder), ""), len(con.releases())))
            continue
        numbers = {
            i for i, c in enumerate(table.columns) if f"{c}_stderr" in table.columns or c.endswith(("_low", "_high"))
        }
        rows = [[value for i, value in enumerate(row) if i not in numbers] for row in table]
        found.append((table.columns, table.types, rows, len(con.releases()), con.budget.spent))
    return found


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.long) for part in range(1, 8))])
def test_neighbours_cannot_be_told_apart_but_by_noisy_numbers(
    tmp_path: Path, part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DPSQL_CACHE", "off")  # errors of a strategy that was kept differ in their last digit
    probes = PROBES[part::8]  # each release is planned beside all before it: few on one ledger
    without = outcomes(tmp_path / "one", PEOPLE, probes)
    with_eve = outcomes(tmp_path / "two", PEOPLE + EVE, probes)
    for probe, one, two in zip(probes, without, with_eve, strict=True):
        assert one == two, probe
    refused = [isinstance(outcome[0], str) for outcome in without]
    answered = {
        *PROBES[:11],
        "SELECT count(*) FROM p WHERE txt::INT > 0",
        "SELECT count(*) FROM p WHERE big::INT > 0",
        "SELECT count(*) FROM p WHERE strptime(txt, '%d') > ts",
        "SELECT count(*) FROM p WHERE 1 // age > 0",
        "SELECT count(*) FROM p WHERE big + id > 5",
        "SELECT count(*) FROM p WHERE dec * dec > 1",
        "SELECT sum(big::HUGEINT * 18446744073709551616::HUGEINT) FROM p",
        "SELECT count(*) FROM p HAVING count(*) > -1000",
    }
    assert {probe for probe, no in zip(probes, refused, strict=True) if not no} == answered & set(probes)
    assert not any(secret in repr(without) + repr(with_eve) for secret in ("HIV", "922337203685", "2290"))


def test_a_failed_scan_says_nothing_of_the_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    con = connect(tmp_path)
    plan = con.plan(BY_G, 1)

    class Failing:
        def __getattr__(self, name: str) -> Any:
            raise duckdb.ConversionException("Could not convert string 'HIV+' to INT32")

    real = duckdb_engine._scan
    monkeypatch.setattr(duckdb_engine, "_scan", lambda *args: real(Failing(), *args[1:]))  # type: ignore[arg-type]
    with pytest.raises(dpsql.OperationalError) as caught:
        con.run(plan)
    error: BaseException | None = caught.value
    assert "\n" not in str(error)
    assert "charged" in str(error)
    while error is not None:
        assert "HIV" not in repr(error)
        frame = error.__traceback__
        while frame is not None:
            if Path(frame.tb_frame.f_code.co_filename).is_relative_to(Path(dpsql.__file__).parent):
                assert "HIV" not in repr(list(frame.tb_frame.f_locals.values()))
                assert frame.tb_frame.f_code.co_name not in ("observe", "observed", "cells_of", "add", "_add_at")
            frame = frame.tb_next
        assert error.__cause__ is None
        error = error.__context__
    assert [entry.released for entry in con.releases()] == [None]  # the charge stands
    monkeypatch.undo()
    con.confirm_files()  # by now the source is known to be sound
    assert con.run(plan).id == 2


def test_no_file_and_no_repr_holds_an_exact_value(tmp_path: Path) -> None:
    exact = 123_456_789_012_345
    table = '[tables.t]\nunit = "row"\n[tables.t.columns]\nv = { lower = 0, upper = 1000000000000 }\n'
    rows = f"SELECT CASE i WHEN 0 THEN {exact - 399 * 10**11} ELSE {10**11} END AS v"
    con = connect(tmp_path, table=table, rows=rows.replace(f"{exact - 399 * 10**11}", f"{exact % 10**11}"))
    total = 399 * 10**11 + exact % 10**11
    plan = con.plan("SELECT sum(v) AS s FROM t", 0.01)
    assert plan.stderr["q1"][0] > 1e13  # the exact value comes out with probability below 1e-12
    rel = con.run(plan)
    shown = [
        repr(rel),
        str(rel),
        repr(rel["q1"]),
        str(rel["q1"]),
        repr(con),
        repr(plan),
        str(plan),
        repr(con.releases()),
    ]
    shown += [repr(rel.record), repr(vars(con)), str(con.budget)]
    for text in shown:
        assert str(total) not in text
    assert repr(rel) == "Release(id=1, cost=0.01, guarantee='epsilon 0.01 (pure)', results: q1)"
    assert repr(con.budget) == str(con.budget)
    for path in (con.ledger_path, con.releases_path):
        content = path.read_bytes()
        assert str(total).encode() not in content
        assert int(total).to_bytes(8, "little") not in content
        assert np.float64(total).tobytes() not in content


# -- crashes ----------------------------------------------------------------------------------------

CRASH = """
import os, signal, sys
import dpsql
from dpsql.engines.duckdb import OpenEngine
from dpsql.measure import cells
from dpsql.privacy import chain
from dpsql.privacy.ledger import Ledger
from dpsql.privacy.noise import Noise
from dpsql.release import ReleaseStore

folder, step = sys.argv[1:]

def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)

def then_die(owner, name):
    real = getattr(owner, name)
    setattr(owner, name, lambda *a, **k: (real(*a, **k), die()))

def and_die(owner, name):
    setattr(owner, name, die)

con = dpsql.connect(folder + "/d.duckdb", policy=folder + "/p.toml")
con.run("SELECT count(*) AS n FROM t WHERE k < 3", 0.25)
steps = {
    "inside the charge": (and_die, chain, "append"),
    "after the charge": (then_die, Ledger, "charge"),
    "after the noise": (then_die, Noise, "sample"),
    "during the scan": (and_die, OpenEngine, "scan"),
    "after the scan": (then_die, cells, "observed"),
    "before the record": (and_die, Ledger, "record"),
    "after the record": (then_die, Ledger, "record"),
    "during the registration": (and_die, ReleaseStore, "write"),
}
how, owner, name = steps[step]
how(owner, name)
con.run("SELECT count(*) AS n FROM t", 0.5)
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs kill -9")
@pytest.mark.parametrize(
    ("step", "charged", "released"),
    [
        pytest.param("inside the charge", False, False, marks=pytest.mark.long),
        ("after the charge", True, False),
        pytest.param("after the noise", True, False, marks=pytest.mark.long),
        pytest.param("during the scan", True, False, marks=pytest.mark.long),
        pytest.param("after the scan", True, False, marks=pytest.mark.long),
        pytest.param("before the record", True, False, marks=pytest.mark.long),
        pytest.param("after the record", True, True, marks=pytest.mark.long),
        pytest.param("during the registration", True, True, marks=pytest.mark.long),
    ],
)
def test_kill_9_never_refunds_and_never_loses_an_answer(
    tmp_path: Path, step: str, charged: bool, released: bool
) -> None:
    make(tmp_path)
    done = subprocess.run([sys.executable, "-c", CRASH, str(tmp_path), step], capture_output=True, timeout=900)
    assert done.returncode == -signal.SIGKILL, done.stderr
    con = dpsql.connect(tmp_path / "d.duckdb", policy=tmp_path / "p.toml")
    entries = con.releases()
    assert len(entries) == 1 + charged
    assert [entry.released is not None for entry in entries] == [True, *([released] if charged else [])]
    assert spent_units(con)["pure"] == sum(entry.charge.units for entry in entries)
    assert con.budget.spent == 0.25 + 0.5 * charged
    rel = con.run(COUNT, 0.5)  # free where the answer was recorded, else charged again
    assert rel.cost == (0 if released else 0.5)
    assert con.sql("SELECT * FROM q1") == rel["q1"]
    assert con._books.ledger().verify() > 0
    assert spent_units(con)["pure"] == sum(entry.charge.units for entry in con.releases())
    leftovers = [name for name in os.listdir(tmp_path) if name.endswith((".tmp", ".new"))]
    assert leftovers == []


def test_a_strategy_that_moves_further_than_it_says_is_refused_before_the_charge(tmp_path: Path) -> None:
    con = dpsql.connect(policy="sql_examples/students.toml", ledger=tmp_path / "s.ledger")
    plan = con.plan("SELECT COUNT(*) FROM students", epsilon=0.5)
    strategy = dataclasses.replace(plan.strategy, mixing=plan.strategy.mixing * 1000)
    with pytest.raises(dpsql.IntegrityError, match="sensitivity"):
        con.run(dataclasses.replace(plan, strategy=strategy))
    assert con.budget.spent == 0


def test_a_plan_of_another_policy_is_refused(tmp_path: Path) -> None:
    text = (
        Path("sql_examples/students.toml").read_text().replace("data/", str(Path("sql_examples/data").absolute()) + "/")
    )
    one, other = dpsql.Policy.parse(text), dpsql.Policy.parse(text.replace("upper = 4,", "upper = 3,"))
    plan = dpsql.connect(policy=one, ledger=tmp_path / "s.ledger").plan("SELECT COUNT(*) FROM students", epsilon=0.5)
    with pytest.raises(dpsql.IntegrityError, match="another policy"):
        dpsql.connect(policy=other, ledger=tmp_path / "s.ledger").run(plan)


def test_answers_used_again_are_what_the_views_show(tmp_path: Path) -> None:
    con = dpsql.connect(policy="sql_examples/students.toml", ledger=tmp_path / "s.ledger")
    first = "CREATE OR REPLACE VIEW v AS SELECT COUNT(*) AS n FROM students WHERE gender = 'F'"
    one = con.run(first, epsilon=0.2)
    con.run("CREATE OR REPLACE VIEW v AS SELECT COUNT(*) AS n FROM students", epsilon=0.2)
    again = con.run(first, epsilon=0.2)
    assert (again.id, again.cost) == (one.id, 0.0)
    assert con.sql("SELECT * FROM v").fetchall() == one["v"].fetchall()


def test_a_free_run_leaves_an_open_connection_usable(tmp_path: Path) -> None:
    connection = duckdb.connect()
    connection.execute("CREATE TABLE t (a INTEGER)")
    policy = dpsql.Policy.parse(
        'dataset = "d"\n[budget]\nepsilon = 1\n[tables.t]\nunit = "row"\n[tables.t.columns]\na = {}'
    )
    con = dpsql.connect(connection, policy=policy, ledger=tmp_path / "a.ledger")
    for _ in range(2):
        con.run("SELECT COUNT(*) FROM t", epsilon=0.1)
    assert connection.sql("SELECT count(*) FROM t").fetchall() == [(0,)]


def test_a_releases_file_of_another_ledger_is_refused_before_the_charge(tmp_path: Path) -> None:
    policy, shared = "sql_examples/students.toml", tmp_path / "shared.duckdb"
    batch = "SELECT COUNT(*) AS n FROM students"
    one = dpsql.connect(policy=policy, ledger=tmp_path / "one.ledger", releases=shared)
    one.run(batch, epsilon=0.2)
    other = dpsql.connect(policy=policy, ledger=tmp_path / "other.ledger", releases=shared)
    with pytest.raises(dpsql.LedgerError, match="another ledger"):
        other.run(batch, epsilon=0.2)
    assert not other.ledger_path.exists()
    beside = dpsql.connect(policy=policy, ledger=tmp_path / "other.ledger")
    assert beside.releases_path == tmp_path / "other.releases.duckdb"
    beside.run(batch, epsilon=0.2)
    spent = other.budget.spent
    with pytest.raises(dpsql.OperationalError, match="another ledger"):
        other.run(batch, epsilon=0.2, fresh=True)
    assert other.budget.spent == spent
