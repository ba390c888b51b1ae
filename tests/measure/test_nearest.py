"""EXISTS and IN tied to the row by two inequalities: DuckDB's answer, and rows of the same unit alone decide.

The rows hold ties, NULL, both zeros, infinities and the ends of the types.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import duckdb
import pytest
from helpers import exact, policy_of

from dpsql.errors import InternalError, SQLError
from dpsql.measure import from_sql
from dpsql.policy import Policy
from dpsql.workloads.expr.lines import line_of
from dpsql.workloads.expr.rows import Along, Join, OfUnit, RowSource, Units
from dpsql.workloads.expr.scan import Select
from dpsql.workloads.expr.values import Compared, Stored, Value, Window, whole

COLUMNS = "pid = {}\nx = {}\ny = {}\nday = {}\nuntil = {}\nseen = {}\nf = {}\n"
POLICY = "".join(
    f'[tables.{name}]\nunit = "pid"\nmax_rows_per_unit = 100\n[tables.{name}.columns]\n{COLUMNS}' for name in ("a", "b")
)
VALUES: dict[str, tuple[str, list[str]]] = {
    "x": ("INTEGER", ["0", "1", "2", "3", "2147483647", "-2147483648"]),
    "y": ("DECIMAL(9, 2)", ["0", "0.5", "1", "2.25", "-9999999.99"]),
    "day": ("DATE", ["'2024-01-01'", "'2024-01-05'", "'2024-02-01'", "'infinity'", "'-infinity'", "'9999-12-31'"]),
    "until": ("DATE", ["'2024-01-03'", "'2024-01-05'", "'2024-03-01'", "'5881580-07-10'"]),
    "seen": ("TIMESTAMP", ["'2024-01-01 10:00:00'", "'2024-01-05 00:00:00'", "'2024-02-01'", "'infinity'"]),
    "f": ("DOUBLE", ["0", "'-0'", "1.5", "2", "'inf'", "'-inf'"]),
}
TIES = [
    "w.x >= v.x AND w.x <= v.x + 1::BIGINT", "w.x BETWEEN v.x - 1::BIGINT AND v.x", "v.x < w.x AND w.x < v.y",
    "w.y > v.x AND w.y <= v.y", "w.day >= v.day AND w.day < v.until", "w.day BETWEEN v.until AND v.day",
    "w.day <= v.day AND w.until >= v.day", "w.day < v.seen AND v.day <= w.until", "w.f > v.f AND w.f <= 2 * v.f",
    "w.seen >= v.seen AND w.seen <= v.seen + INTERVAL 31 DAY", "w.x >= v.x AND w.f < v.f", "w.f >= v.f AND w.x > v.x",
    "w.x > v.x AND w.x > v.y", "w.day > v.day AND w.x < v.x AND v.x > 0 AND w.y IS NOT NULL",
]  # fmt: skip


def _database(rng: random.Random) -> duckdb.DuckDBPyConnection:
    con = duckdb.connect()
    for name in ("a", "b"):
        con.execute(f"CREATE TABLE {name} (pid INTEGER, {', '.join(f'{c} {kind}' for c, (kind, _) in VALUES.items())})")
        for _ in range(40):
            row = [rng.choice(["1", "2", "3", "4", "NULL"])]
            row += ["NULL" if rng.random() < 0.15 else rng.choice(listed) for _, listed in VALUES.values()]
            con.execute(f"INSERT INTO {name} VALUES ({', '.join(row)})")
    return con


def _batch(rng: random.Random, count: int) -> list[str]:
    found = []
    for tie in rng.sample(TIES, count):
        more = rng.choice(["", " AND w.x > 0", " AND w.x < 3", " AND w.y <> 1 AND w.x <> 1"])
        table = rng.choice(["a", "b"])
        inner = f"FROM {table} w WHERE {{}}{tie}{more}"
        exists = f"EXISTS (SELECT 1 {inner.format('w.pid = v.pid AND ')})"
        among = f"v.pid IN (SELECT w.pid {inner.format('')})"
        found.append(f"SELECT COUNT(*) FROM a v WHERE {rng.choice([exists, exists, f'NOT {exists}', among])}")
    return found


@pytest.fixture(scope="module")
def policy() -> Policy:
    return policy_of(POLICY)


def _differ(policy: Policy, rounds: int) -> bool:
    """Whether an answer is not DuckDB's."""
    rng = random.Random("nearest")
    for _ in range(rounds):
        con = _database(rng)
        batch = _batch(rng, 5)
        wanted = [con.execute(sql).fetchone()[0] for sql in batch]  # type: ignore[index]
        if exact(";".join(batch), policy, con).answers != wanted:
            return True
    return False


@pytest.mark.long
def test_answers_are_duckdbs(policy: Policy) -> None:
    assert not _differ(policy, 4)


@pytest.mark.long
def test_more_answers_are_duckdbs(policy: Policy) -> None:
    assert not _differ(policy, 60)


def _changed(select: Select, change: Callable[[Window], Value]) -> Select:
    columns = [(name, change(value) if isinstance(value, Window) else value) for name, value in select.columns]
    return replace(select, columns=tuple(columns))


def _own_value_alone(units: Units) -> Select:
    return _changed(UNITS(units), lambda window: window.arguments[0])  # type: ignore[arg-type,return-value]


def _other_way(units: Units) -> Select:
    return _changed(UNITS(units), lambda window: replace(window, falling=() if window.falling else (0,)))


def _of_all_units(units: Units) -> Select:
    return _changed(UNITS(units), lambda window: replace(window, apart=(whole(1),)))


def _every_row(units: Units) -> Select:
    return UNITS(replace(units, where=None))


UNITS = from_sql._units


@pytest.mark.parametrize("fault", [_own_value_alone, _other_way, _of_all_units, _every_row])
@pytest.mark.few(every=3)
def test_faults_are_seen(policy: Policy, fault: Callable[[Units], Select], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(from_sql, "_units", lambda units: fault(units) if units.along else UNITS(units))
    assert _differ(policy, 6)


def test_a_row_depends_on_its_own_unit_alone(policy: Policy) -> None:
    """Counts of all other units' rows, with a unit's rows and without."""
    rng = random.Random("neighbours")
    con = _database(rng)
    batch = _batch(rng, 6)
    for unit in (1, 3):
        others = ";".join(f"{sql} AND pid <> {unit}" for sql in batch)
        before = exact(others, policy, con).answers
        con.execute(f"DELETE FROM a WHERE pid = {unit}; DELETE FROM b WHERE pid = {unit}")
        assert exact(others, policy, con).answers == before


def test_what_would_not_be_one_row_is_refused(policy: Policy) -> None:
    con = duckdb.connect()
    con.execute("".join(f"CREATE TABLE {n} (pid INTEGER, x INTEGER, y INTEGER, day DATE, until DATE, seen TIMESTAMP, "
                        "f DOUBLE);" for n in ("a", "b")))  # fmt: skip
    exists = "SELECT COUNT(*) FROM a v WHERE EXISTS (SELECT 1 FROM b w WHERE w.pid = v.pid AND {})"
    for tie, said in {
        "w.x > v.x AND w.x < v.y AND w.y < v.y": "by two of <",
        "w.x > v.f AND w.x < v.y": "CAST both sides to DOUBLE",
        "w.x > v.x + w.y AND w.x < v.y": "by two of <",
    }.items():
        with pytest.raises(SQLError, match=said):
            exact(exists.format(tie), policy, con)


def test_rows_along_a_value_are_joined_by_the_nearest_and_by_nothing_else() -> None:
    unit, line = Stored("pid", "INTEGER"), line_of("INTEGER")
    x, other = Stored("x", "INTEGER"), Stored("x", "INTEGER", "j")
    rows = RowSource("a", unit=unit, limit=3, protects="pid")
    least = OfUnit("y", "min", x, line, line)
    along = Units(rows, None, "pid", (least,), along=Along("x", x, line, upwards=True))
    pairs = ((unit, Stored("pid", "INTEGER", "j")),)
    for of, nearest in ((along, None), (along, Compared(other, "<", x)), (along, Compared(x, ">", x)),
                        (None, Compared(other, ">", x))):  # fmt: skip
        with pytest.raises(InternalError):
            Join("j", "a", pairs, unit=pairs[0], private=True, of=of, nearest=nearest)
    with pytest.raises(InternalError):
        Units(rows, None, "pid", (OfUnit("s", "sum", x, line, line),), along=along.along)
