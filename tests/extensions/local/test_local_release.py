"""Making a local release: what is read, charged, remembered and refused."""

from __future__ import annotations

import datetime as dt
import os
import signal
import subprocess
import sys
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest
from helpers import filled
from local_worlds import POLICY, TABLES, records, repeatable, truthful, world

import dpsql
import dpsql.measure.local as private
from dpsql.engines.duckdb import FileEngine
from dpsql.errors import BudgetError, IntegrityError, LedgerError, OperationalError, PolicyError
from dpsql.measure.sources import Holdings
from dpsql.privacy.accountant import Budget, local_charge
from dpsql.privacy.ledger import Ledger
from dpsql.privacy.response import Response

ALL = ["state", "age", "visits", "cost", "smoker", "day"]


def rows_of(con: dpsql.Connection, name: str = "visits_synthetic") -> list[tuple[Any, ...]]:
    return con.sql(f"SELECT * FROM {name}").fetchall()


def as_released(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """The row of the table that a private row becomes where nothing is a lie."""
    _, state, age, visits, cost, smoker, day, _ = row
    other = state is not None and state not in ("NY", "NJ", "CA")
    inside = age if age is not None and 0 <= age <= 9 else None
    moment = None if day is None else dt.date.fromisoformat(day)
    return (None if other else state, other, inside, visits, cost, smoker, moment)


@pytest.mark.parametrize("ordered", ["", "ORDER BY id DESC", "ORDER BY state, age"])
@pytest.mark.few(every=3)
def test_every_row_has_its_place_and_the_order_of_the_table_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ordered: str
) -> None:
    truthful(monkeypatch)
    con = world(tmp_path)
    if ordered:
        with duckdb.connect(str(tmp_path / "visits.duckdb")) as connection:
            connection.execute(f"CREATE OR REPLACE TABLE visits AS SELECT * FROM visits {ordered}")
    syn = con.synthesize("visits", ALL, 1)
    assert syn.rows == 400
    assert syn.combinations == 5 * 11 * 5 * 3 * 2 * 6
    assert syn.columns == tuple(ALL)
    held = records(400, 7)
    found = rows_of(con)
    assert Counter(found) == Counter(map(as_released, held))
    days = [row[6] and dt.date.fromisoformat(row[6]) for row in held]
    columns = {name: [row[i] for row in held] for name, i in zip(ALL[:5], range(1, 6), strict=True)}
    codes = syn.released.domain.encode({**columns, "day": days})
    assert found == [as_released(held[i]) for i in np.argsort(codes, kind="stable")]


def test_public_columns_are_kept_and_order_the_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    truthful(monkeypatch)
    con = world(tmp_path)
    with duckdb.connect(str(tmp_path / "visits.duckdb")) as connection:
        connection.execute("CREATE OR REPLACE TABLE visits AS SELECT * FROM visits ORDER BY state, age DESC")
        connection.execute("UPDATE visits SET id = NULL WHERE id = 7")
    syn = con.synthesize("visits", ["visits"], "0.5", ids=["ID"], name="by_id", label="tests")
    assert (syn.ids, syn.name, syn.epsilon, syn.cost) == (("id",), "by_id", 0.5, 0.5)
    expected = [(row[0], row[3]) for row in records(400, 7) if row[0] != 7]
    assert rows_of(con, "by_id") == [*expected, (None, records(400, 7)[7][3])]
    assert con.budget.charges[0].label == "tests"


def test_lies_are_in_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repeatable(monkeypatch, 1)
    con = world(tmp_path)
    con.synthesize("visits", ["visits"], 1)
    found = Counter(row[0] for row in rows_of(con))
    assert set(found) == set(range(5))
    assert found != Counter(row[3] for row in records(400, 7))


def test_the_charge_is_epsilon_for_each_row_that_a_unit_may_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    truthful(monkeypatch)
    policy = POLICY.replace('unit = "row"', 'unit = "note"\nmax_rows_per_unit = 3')
    con = world(tmp_path, policy=policy)
    with duckdb.connect(str(tmp_path / "visits.duckdb")) as connection:
        connection.execute("UPDATE visits SET note = CASE WHEN id < 10 THEN NULL ELSE 'u' || (id % 100) END")
        units = connection.execute("SELECT note, count(*) FROM visits GROUP BY 1").fetchall()
    assert max(count for _, count in units) == 10
    syn = con.synthesize("visits", ["age", "visits"], "0.7", ids=["id"])
    assert syn.cost == pytest.approx(2.1)
    assert "replace one unit (3 rows at 0.7 each)" in syn.guarantee
    assert "epsilon 2.1" in syn.guarantee
    assert syn.rows == sum(min(3, count) for _, count in units)
    held = dict(zip((row[0] for row in records(400, 7)), records(400, 7), strict=True))
    kept = rows_of(con, syn.name)
    assert all((age, visits) == as_released(held[i])[2:4] for i, age, visits in kept)
    assert con.budget.account("local").spent == pytest.approx(2.1)
    assert con.budget.spent == 0


@pytest.mark.parametrize("limit", [2, *(pytest.param(limit, marks=pytest.mark.long) for limit in (1, 3))])
def test_which_rows_of_a_unit_count_does_not_depend_on_what_they_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    """The public ids that remain are released as they are: neighbours must have the same."""
    truthful(monkeypatch)
    policy = POLICY.replace('unit = "row"', f'unit = "note"\nmax_rows_per_unit = {limit}')
    kept = set()
    for number, smokes in enumerate(("i > 99", "i < 99", "i = 0", "i % 2 = 0")):
        folder = tmp_path / str(number)
        folder.mkdir()
        con = world(folder, policy=policy)
        with filled(folder / "visits.duckdb") as connection:
            connection.execute(f"""
                DELETE FROM visits;
                INSERT INTO visits SELECT i, 'NY', 1, 1, 1.0, {smokes}, NULL, CASE WHEN i < 5 THEN 'u' END
                FROM range(9) t(i)
            """)
        con.synthesize("visits", ["smoker"], "1e-6", ids=["id"])
        kept.add(tuple(sorted(row[0] for row in rows_of(con))))
    assert len(kept) == 1
    assert len(next(iter(kept))) == 2 * limit


def test_whose_a_row_is_cannot_be_released(tmp_path: Path) -> None:
    policy = POLICY.replace('unit = "row"', 'unit = "note"\nmax_rows_per_unit = 1')
    policy = policy.replace("note = {}", 'note = { values = ["a", "b"] }')
    con = world(tmp_path, rows=5, policy=policy)
    with pytest.raises(PolicyError, match="says whose a row is"):
        con.synthesize("visits", ["age", "note"], 1)
    assert con.releases() == []
    assert "replace one unit" in con.synthesize("visits", ["age"], 1).guarantee


def test_groups_of_columns_can_be_released_apart_and_their_epsilons_add_up(tmp_path: Path) -> None:
    con = world(tmp_path)
    first = con.synthesize("visits", ["state"], 1)
    second = con.synthesize("visits", ["age", "visits"], 2)
    assert (first.name, second.name) == ("visits_synthetic", "visits_synthetic_2")
    assert con.budget.account("local").spent == 3
    assert con.synthetic("visits_synthetic").columns == ("state",)
    assert con.synthetic("visits").columns == con.synthetic().columns == ("age", "visits")
    with pytest.raises(dpsql.ProgrammingError, match="did you mean visits_synthetic"):
        con.synthetic("visits_syntetic")
    with pytest.raises(dpsql.SQLError, match="column age of visits was not released with visits_synthetic"):
        first.sql("SELECT COUNT(*) FROM visits WHERE age > 1")
    assert "2 statements" not in str(con.budget)


@pytest.mark.parametrize("again", [["visits"], ["smoker", "VISITS"], ["age", "visits"]])
@pytest.mark.few(every=2)
def test_rows_are_randomised_once(tmp_path: Path, again: list[str]) -> None:
    con = world(tmp_path)
    con.synthesize("visits", ["age", "visits"], 1)
    for epsilon in (1, 2, "0.001"):
        with pytest.raises(IntegrityError, match=r"visits\.visits.* was released locally already, as visits_synthetic"):
            con.synthesize("visits", again, epsilon, name="another")
    assert len(con.releases()) == 1
    assert con.budget.account("local").spent == 1


def test_a_new_version_of_the_data_may_be_released_and_spending_goes_on(tmp_path: Path) -> None:
    world(tmp_path).synthesize("visits", ["age"], 1)
    (tmp_path / "visits.toml").write_text(POLICY.replace("visits-1", "visits-2"), encoding="utf-8")
    con = dpsql.connect(tmp_path / "visits.duckdb", policy=tmp_path / "visits.toml")
    con.renew("visits-1")
    assert con.synthesize("visits", ["age"], 1).name == "visits_synthetic_2"
    assert con.budget.account("local").spent == 2


REFUSED: list[tuple[str, dict[str, Any], type[Exception], str]] = [
    ("note", {"columns": ["note"]}, PolicyError, "has no finite domain"),
    ("unknown", {"columns": ["ages"]}, PolicyError, "did you mean age"),
    ("twice", {"columns": ["age", "AGE"]}, PolicyError, "named twice"),
    ("none", {"columns": []}, PolicyError, "at least one column"),
    ("text", {"columns": "age"}, dpsql.InterfaceError, r'write \["age"\]'),
    ("public", {"columns": ["id"]}, PolicyError, "no finite domain|name it under ids"),
    ("ids", {"columns": ["age"], "ids": ["visits"]}, PolicyError, "is not public"),
    ("ids text", {"columns": ["age"], "ids": "id"}, dpsql.InterfaceError, "list of names"),
    ("ids twice", {"columns": ["age"], "ids": ["id", "ID"]}, dpsql.InterfaceError, "twice"),
    ("zero", {"columns": ["age"], "epsilon": 0}, dpsql.DataError, "epsilon"),
    ("tiny", {"columns": ["age"], "epsilon": "1e-13"}, dpsql.DataError, "1e-12"),
    ("nan", {"columns": ["age"], "epsilon": float("nan")}, dpsql.DataError, "epsilon"),
    ("much", {"columns": ["age"], "epsilon": 41}, BudgetError, "local account"),
    ("huge", {"columns": ["age"], "epsilon": 101}, dpsql.DataError, "at most 100"),
    ("name", {"columns": ["age"], "name": "releases"}, IntegrityError, "kept for dpsql"),
    ("table", {"table": "weights", "columns": ["ward"]}, PolicyError, "is public"),
    ("no table", {"table": "visit", "columns": ["age"]}, PolicyError, "did you mean visits"),
]  # fmt: skip


@pytest.fixture(scope="module")
def standing(tmp_path_factory: pytest.TempPathFactory) -> dpsql.Connection:
    return world(tmp_path_factory.mktemp("standing"), rows=20)


@pytest.mark.parametrize(("given", "error", "message"), [r[1:] for r in REFUSED], ids=[r[0] for r in REFUSED])
def test_bad_releases_are_refused_before_any_charge(
    standing: dpsql.Connection, given: dict[str, Any], error: type[Exception], message: str
) -> None:
    asked = {"table": "visits", "epsilon": 1, **given}
    with pytest.raises(error, match=message):
        standing.synthesize(asked.pop("table"), asked.pop("columns"), asked.pop("epsilon"), **asked)
    assert standing.releases() == []


def test_the_policy_must_allow_it(tmp_path: Path) -> None:
    for change, message in (
        (("rows_public = true", ""), "publishes the number of rows; write rows_public = true"),
        (("local_epsilon = 40", ""), "needs local_epsilon in the policy's"),
        (("local_epsilon = 40", "local_epsilon = 4\nmax_local_epsilon_per_release = 0.5"), "above the policy's max"),
    ):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        con = world(folder, rows=5, policy=POLICY.replace(*change))
        with pytest.raises((PolicyError, BudgetError), match=message):
            con.synthesize("visits", ["age"], 1)


def test_too_many_combinations_are_refused_with_groups_to_release_apart(tmp_path: Path) -> None:
    wide = POLICY.replace("age = { lower = 0, upper = 9 }", "age = { lower = 0, upper = 99999 }")
    wide = wide.replace("visits = { lower = 0, upper = 4, nulls = false }", "visits = { lower = 0, upper = 99999 }")
    con = world(tmp_path, rows=5, policy=wide)
    with pytest.raises(PolicyError, match=r"10,000,200,001 combinations.*\(age\) and \(visits\)"):
        con.synthesize("visits", ["age", "visits"], 1)
    floats = POLICY.replace("cost = { values = [0.5, 1.0, 2.5], nulls = false }", "cost = { lower = 0, upper = 5 }")
    (tmp_path / "floats").mkdir()
    with pytest.raises(PolicyError, match=r"columns\.cost has no finite domain"):
        world(tmp_path / "floats", rows=5, policy=floats).synthesize("visits", ["cost"], 1)


def test_an_empty_table(tmp_path: Path) -> None:
    con = world(tmp_path, rows=0)
    syn = con.synthesize("visits", ["state", "age"], 1)
    assert (syn.rows, rows_of(con)) == (0, [])
    assert syn.sql("SELECT COUNT(*), SUM(age) FROM visits WHERE age > 2", errors=False).fetchall() == [(0.0, 0.0)]
    assert syn.sql("SELECT COUNT(*) FROM visits", estimator="proper", errors=False).fetchall() == [(0.0,)]
    grouped = syn.sql("SELECT state, COUNT(*) AS n FROM visits GROUP BY state", errors=False).fetchall()
    assert [row[-1] for row in grouped] == [0.0] * 5


def test_the_ledger_is_the_one_durable_store(tmp_path: Path) -> None:
    con = world(tmp_path)
    syn = con.synthesize("visits", ["state", "cost"], 3, ids=["id"])
    query = "SELECT state, COUNT(*) AS n, AVG(cost) AS a FROM visits GROUP BY state"
    held, rows = syn.sql(query).fetchall(), rows_of(con)
    con.close()
    (tmp_path / "visits.releases.duckdb").unlink()
    again = dpsql.connect(tmp_path / "visits.duckdb", policy=tmp_path / "visits.toml")
    assert again.synthetic().sql(query).fetchall() == held
    assert rows_of(again) == rows
    assert again.rebuild() == 1
    assert rows_of(again) == rows
    found = again.synthetic("visits")
    assert (found.cost, found.columns, found.ids, found.rows) == (0.0, ("state", "cost"), ("id",), 400)
    assert found.guarantee == syn.guarantee == "epsilon 3 (local, replace one row)"


def test_questions_need_no_private_table(tmp_path: Path) -> None:
    policy = POLICY[: POLICY.index("[tables.weights]")]
    con = world(tmp_path, policy=policy)
    con.synthesize("visits", ["state"], 1)
    (tmp_path / "visits.duckdb").unlink()
    again = dpsql.connect(tmp_path / "visits.duckdb", policy=tmp_path / "visits.toml")
    assert again.synthetic().sql("SELECT COUNT(*) FROM visits", errors=False).fetchall()[0][0] == pytest.approx(400)


class BrokenError(Exception):
    """A fault at some step."""


@pytest.mark.parametrize("step", ["_count", "_observe", "_in_order", "record"])
@pytest.mark.few(every=2)
def test_what_fails_after_the_charge_stays_charged_and_shows_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    con = world(tmp_path)

    def fail(*_: object) -> None:
        raise BrokenError("'NY' and other secrets")

    with monkeypatch.context() as patch:
        if step == "record":
            patch.setattr(Ledger, "record", fail)
        else:
            patch.setattr(private, step, fail)
        with pytest.raises((BrokenError, OperationalError)) as caught:
            con.synthesize("visits", ["age"], 1)
    if step == "_observe":
        assert isinstance(caught.value, OperationalError)
        assert "What was charged stays charged" in str(caught.value)
        assert "NY" not in str(caught.value)
        assert caught.value.__context__ is None
        assert caught.value.__cause__ is None
    assert con.budget.account("local").spent == 1
    assert [entry.id for entry in con.budget.unreleased] == [1]
    with pytest.raises(dpsql.ProgrammingError, match="nothing was released locally"):
        con.synthetic()
    # Nobody saw anything, so that the columns may be released; it is paid for again.
    assert con.synthesize("visits", ["age"], 1).id == 2
    assert con.budget.account("local").spent == 2


def test_a_table_that_changes_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    con = world(tmp_path)
    monkeypatch.setattr(private, "_count", lambda *_: 399)
    with pytest.raises(OperationalError, match="the number of rows of visits changed") as caught:
        con.synthesize("visits", ["age"], 1)
    assert caught.value.__context__ is None


def test_a_schema_that_changed_is_refused_before_the_charge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    con = world(tmp_path)
    seen = con.schemas()
    monkeypatch.setattr(FileEngine, "schemas", lambda *_: {**seen, "visits": {**seen["visits"], "new": "INTEGER"}})
    monkeypatch.setattr(Holdings, "schemas", lambda _: seen)
    with pytest.raises(IntegrityError, match="columns of visits have changed"):
        con.synthesize("visits", ["age"], 1)
    assert not con.releases()


def test_of_two_at_once_one_is_released(tmp_path: Path) -> None:
    budget = Budget.of(1, local_epsilon=2)
    ledger = Ledger.create(tmp_path / "ledger", "d", budget)
    charge = local_charge(1, budget)
    one = ledger.charge(charge, "one", {"once": ["t.a", "t.b"], "names": ["x"]})
    two = ledger.charge(charge, "two", {"once": ["T.B"], "names": ["y"]})
    ledger.record(two, b"second")
    with pytest.raises(IntegrityError, match=r"t\.b was released.* as y \(release 2\).*stays charged"):
        ledger.record(one, b"first")
    ledger.record(two, b"second")
    assert [entry.id for entry in ledger.releases()] == [2]
    assert ledger.state().account("local").remaining_units == 0  # type: ignore[union-attr]
    ledger.verify()
    with pytest.raises(LedgerError, match="another measurement"):
        ledger.record(two, b"third")


KILLED = """
import os, signal, sys
import dpsql
import dpsql.measure.local as private
from dpsql.privacy.ledger import Ledger
step = sys.argv[2]
where = Ledger if step in ("charge", "record") else private
held = getattr(where, step)
def dies(*args, **kwargs):
    if step in ("charge",):
        held(*args, **kwargs)
    os.kill(os.getpid(), signal.SIGKILL)
setattr(where, step, dies)
con = dpsql.connect(sys.argv[1] + "/visits.duckdb", policy=sys.argv[1] + "/visits.toml")
con.synthesize("visits", ["age"], 1)
"""


@pytest.mark.parametrize("step", ["charge", "_observe", "record"])
@pytest.mark.long
def test_kill_9_leaves_the_charge_and_no_rows(tmp_path: Path, step: str) -> None:
    con = world(tmp_path, rows=30)
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path), step], capture_output=True, timeout=900)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert con.budget.account("local").spent == 1
    assert [entry.id for entry in con.budget.unreleased] == [1]
    assert con.synthesize("visits", ["age"], 1).id == 2
    with pytest.raises(IntegrityError, match="released locally already"):
        con.synthesize("visits", ["age"], 1)
    assert con.budget.account("local").spent == 2


def test_sources_and_open_connections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    truthful(monkeypatch)
    connection = duckdb.connect()
    connection.execute(TABLES)
    connection.execute("INSERT INTO visits (age, visits) VALUES (1, 2), (3, 4), (NULL, 0)")
    connection.execute(f"COPY visits TO '{tmp_path / 'visits.parquet'}'")
    policy = POLICY[: POLICY.index("[tables.weights]")]
    (tmp_path / "open.toml").write_text(policy, encoding="utf-8")
    (tmp_path / "file.toml").write_text(
        policy.replace("[tables.visits]", '[tables.visits]\nsource = "visits.parquet"', 1)
    )
    for con in (
        dpsql.connect(connection, policy=tmp_path / "open.toml"),
        dpsql.connect(policy=tmp_path / "file.toml"),
    ):
        con.synthesize("visits", ["age", "visits"], 1)
        assert rows_of(con) == [(1, 2), (3, 4), (None, 0)]
    assert connection.execute("SELECT count(*) FROM dpsql_releases.dp.visits_synthetic").fetchone() == (3,)


def test_types_of_columns_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    truthful(monkeypatch)
    with duckdb.connect(str(tmp_path / "t.duckdb")) as connection:
        connection.execute(
            "CREATE TABLE t (a DECIMAL(5,1), b ENUM ('x', 'y'), c TIMESTAMP, d FLOAT, e UUID, f BIGINT, g TIMESTAMPTZ)"
        )
        connection.execute(
            "INSERT INTO t VALUES (1.5, 'y', '2020-01-01 12:00:00', 0.1, NULL, 4611686018427387904, NULL), "
            "(NULL, NULL, NULL, 'nan', NULL, NULL, NULL), (9.9, 'x', '2021-01-01', 0.25, NULL, 3, NULL)"
        )
    (tmp_path / "t.toml").write_text("""
dataset = "t-1"
[budget]
epsilon = 1
local_epsilon = 1
[tables.t]
unit = "row"
rows_public = true
[tables.t.columns]
a = { lower = 0, upper = 2, step = 0.5 }
b = { values = ["x", "y"] }
c = { values = [2020-01-01T12:00:00] }
d = { values = [0.1, 0.25] }
f = { values = [3, 4611686018427387904] }
""")
    con = dpsql.connect(tmp_path / "t.duckdb", policy=tmp_path / "t.toml")
    syn = con.synthesize("t", ["a", "b", "c", "d", "f"], 1)
    moment = dt.datetime(2020, 1, 1, 12)
    rows = rows_of(con, "t_synthetic")
    assert rows[0] == (Decimal("1.5"), "y", moment, pytest.approx(0.1), 2**62)
    assert rows[1] == (None, "x", None, 0.25, 3)
    assert rows[2] == (None, None, None, None, None)
    for query in (
        "SELECT COUNT(*) FROM t WHERE a > 1 AND b = 'y' AND f > 5",
        "SELECT COUNT(*) FROM t WHERE d < 0.2 OR c = '2020-01-01 12:00:00'",
        "SELECT SUM(d) + SUM(a) FROM t",
    ):
        assert len(syn.sql(query).fetchall()) == 1


def test_no_entropy_but_the_systems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    held = os.urandom
    monkeypatch.setattr(os, "urandom", lambda size: asked.append(size) or held(size))  # type: ignore[func-returns-value]
    world(tmp_path, rows=50).synthesize("visits", ["age"], 1)
    assert max(asked) >= 8 * 50
    assert isinstance(Response.of(2, 1).sample(1), np.ndarray)
