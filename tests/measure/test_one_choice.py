"""Broken keys: every scan of a batch finds the same row of a unit, whatever it reads and whatever is asked.

Tables in which several rows have one key are drawn, and measured once as they are and once mended: with those rows
alone that are to be found, which are chosen here apart from the code.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import duckdb
import numpy as np
import pytest
from broken_keys import CASES, COLUMNS, PATIENTS, POLICY, UNITS, databases, mended_patients
from helpers import engine_of, understood
from unit_rows import Ask, answers_of, compiled_of, rows_of, scan, sources_of, tables_of
from whose_rows import Database, without

from dpsql.errors import InternalError
from dpsql.measure import from_sql
from dpsql.measure.reading import scans_of
from dpsql.running.earlier.joint import Past
from dpsql.workloads.compile.compiled import Compiled, compile_batch
from dpsql.workloads.compile.units import UNORDERED, retention_order
from dpsql.workloads.expr import values as tree
from dpsql.workloads.expr.rows import RowSource, agrees, one_choice
from dpsql.workloads.expr.scan import Select
from dpsql.workloads.expr.total import BASE
from dpsql.workloads.expr.value_sql import select_text
from dpsql.workloads.expr.values import Stored


@pytest.fixture(scope="module")
def con() -> duckdb.DuckDBPyConnection:
    found = duckdb.connect(config={"threads": 1})
    found.execute("CREATE TYPE sex AS ENUM ('m', 'f'); CREATE TABLE regions AS SELECT 1 AS id, 'n' AS place")
    found.execute("INSERT INTO regions VALUES (2, 's')")
    found.execute("CREATE TABLE titles AS FROM (VALUES ('f', 'Ms'), ('m', 'Mr')) t(sex, title)")
    fill(found, {name: [] for name in COLUMNS})
    return found


def fill(con: duckdb.DuckDBPyConnection, database: Database) -> None:
    for name, rows in database.items():
        con.execute(f"CREATE OR REPLACE TABLE {name} ({COLUMNS[name]})")
        if rows:
            listed = ", ".join(f"({', '.join('?' * len(row))})" for row in rows)
            con.execute(f"INSERT INTO {name} VALUES {listed}", [value for row in rows for value in row])


def compiled(con: duckdb.DuckDBPyConnection, asks: Sequence[Ask]) -> Compiled:
    return compiled_of(asks, POLICY, tables_of(POLICY, engine_of(con)))


def measured(con: duckdb.DuckDBPyConnection, batch: Compiled, database: Database) -> list[int]:
    fill(con, database)
    return scan(batch, engine_of(con), sources_of(POLICY))


def answers(con: duckdb.DuckDBPyConnection, batches: Sequence[Compiled], database: Database) -> list[Any]:
    return [answers_of(batch, measured(con, batch, database)) for batch in batches]


def _finds_one_row(con: duckdb.DuckDBPyConnection, name: str, count: int) -> None:
    asks, mended = CASES[name]
    together, alone = compiled(con, asks), [compiled(con, [ask]) for ask in asks]
    for database in databases(count, 5):
        (found,), (wanted,) = (answers(con, [together], each) for each in (database, mended(database)))
        assert found == wanted
        # Each scan alone finds what it finds beside the others.
        assert found == [answer for one in answers(con, alone, database) for answer in one]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.few("visits")
def test_every_scan_finds_the_least_row_of_the_unit_whatever_is_asked(
    con: duckdb.DuckDBPyConnection, name: str
) -> None:
    _finds_one_row(con, name, 8)


def _is_a_sum_over_units(con: duckdb.DuckDBPyConnection, name: str, count: int) -> None:
    batch, draw = compiled(con, CASES[name][0]), random.Random(2)
    for database in databases(count, 6):
        found, sums = measured(con, batch, database), np.zeros(batch.rows.shape[1], dtype=object)
        for unit in UNITS:
            alone = database
            for other in UNITS:
                alone = alone if other == unit else without(alone, other)
            sums += np.array(measured(con, batch, alone), dtype=object)
        assert sums.tolist() == found
        mixed = {table: draw.sample(rows, len(rows)) for table, rows in database.items()}
        assert measured(con, batch, mixed) == found


@pytest.mark.parametrize("name", CASES)
@pytest.mark.few("visits")
def test_the_order_of_rows_and_rows_of_other_units_change_nothing(con: duckdb.DuckDBPyConnection, name: str) -> None:
    """What is measured is a sum over units of what their rows alone give."""
    _is_a_sum_over_units(con, name, 5)


TWO_SEXES: Database = {
    "patients": [(1, 50, 1.0, "m", "a", 1, None), (1, 10, 1.0, "f", "a", 2, None), (None, 50, 0.0, "f", "b", 1, None)],
    "visits": [(7, 1, "a", 1.0), (8, 1, "b", 1.0), (9, None, "a", 1.0), (5, 4, "a", 1.0)],
    "labs": [],
    "notes": [(1, 7, 1)],
    "swabs": [(1,), (1,), (4,)],
}


def test_a_row_that_no_query_counts_is_not_displaced_by_one_that_counts(con: duckdb.DuckDBPyConnection) -> None:
    """By hand: the row of age 10 is the least, so that the patient counts in no group of those older than 20."""
    asks = [
        Ask("patients WHERE age > 20", ("sex",)),
        Ask("patients WHERE age > 20", ("sex",), distinct=True),
        Ask(f"visits v {PATIENTS} WHERE age > 20", ("sex",)),
        Ask(f"visits v {PATIENTS}", ("sex",)),
        Ask("patients", ("sex",)),
        Ask(f"notes n {PATIENTS}", ("sex",), ("age",)),
        Ask("swabs JOIN patients p ON pid = p.id", ("sex",)),
        Ask("swabs JOIN patients p ON pid = p.id WHERE age > 20", ("sex",)),
    ]
    found = answers(con, [compiled(con, asks)], TWO_SEXES)[0]
    sexes = [[int(value) for value in answer] for answer in found]
    # The patient without a number counts where patients are scanned; no visit finds it, and no unit is counted.
    assert sexes == [[1, 0, 0], [0, 0, 0], [0, 0, 0], [2, 0, 0], [2, 0, 0], [1, 0, 0], [10, 0, 0], [2, 0, 0], [0, 0, 0]]


def test_public_columns_that_are_released_choose_before_private_ones(con: duckdb.DuckDBPyConnection) -> None:
    """Which of a unit's ages remains is a function of ages, where these are public: not of names, the first column."""
    columns = [("a0", tree.Stored("name", "VARCHAR")), ("i0", tree.Stored("age", "INTEGER"))]
    asked = from_sql.rows_of(_source(con, "patients"), (), columns, public=["i0"])
    ages = []
    for names in ("ab", "ba"):
        rows = [(unit, age, 0.0, "f", n, 1, None) for unit in range(8) for n, age in zip(names, (10, 50), strict=True)]
        fill(con, {"patients": rows})
        found = con.execute(select_text(asked, {"patients": "patients"})).fetchall()
        ages.append(sorted(age for *_, age in found))
    assert ages[0] == ages[1]
    assert len(ages[0]) == 8


# -- mutants ---------------------------------------------------------------------------------------


def _two_rows(patch: pytest.MonkeyPatch) -> None:
    real = from_sql._first_of

    def both(*given: Any) -> Select:
        found = real(*given)
        return replace(found, where=tree.Compared(tree.Name(from_sql.PLACE), "<=", tree.whole(2)))

    patch.setattr(from_sql, "_first_of", both)


def _used_first(patch: pytest.MonkeyPatch) -> None:
    real = from_sql._ordered
    patch.setattr(from_sql, "_ordered", lambda first, order, used, key: real(first, (), (*used, *order), key))


def _used_alone(patch: pytest.MonkeyPatch) -> None:
    real = from_sql._ordered
    patch.setattr(from_sql, "_ordered", lambda first, order, used, key: real(first, (), used, key))


def _as_they_come(patch: pytest.MonkeyPatch) -> None:
    real = from_sql._ordered
    patch.setattr(from_sql, "_ordered", lambda first, order, used, key: real(first, (), (), key))


def _greatest(patch: pytest.MonkeyPatch) -> None:
    real = from_sql._ordered
    patch.setattr(from_sql, "_ordered", lambda first, order, used, key: real(first, order[::-1], used, key))


def _conditions_first(patch: pytest.MonkeyPatch) -> None:
    """Of patients those older than 20 alone are read, where the scan reads ages."""
    real = from_sql._first_of

    def asked(columns: Any, rows: Any, key: Any, order: Any) -> Select:
        if "age" in [name for name, _ in columns]:
            old = tree.Compared(tree.Name("age", BASE), ">", tree.whole(20))
            rows = Select((), rows, where=old, alias=BASE)
        return real(columns, rows, key, order)

    patch.setattr(from_sql, "_first_of", asked)


def _hashed(patch: pytest.MonkeyPatch) -> None:
    """The base is truncated as tables are whose units have several rows."""
    real = RowSource.__post_init__

    def without_order(self: RowSource) -> None:
        object.__setattr__(self, "order", ())
        real(self)

    patch.setattr(RowSource, "__post_init__", without_order)


def _any_unit(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(from_sql, "_unit_pair", lambda _: ())


def _signs_and_collations(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(from_sql, "_order", lambda column: [tree.Name(column.name, BASE)])


MUTANTS: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], Callable[..., None], str]] = {
    "a reference finds two rows": (_two_rows, _finds_one_row, "patients"),
    "what a scan uses comes first": (_used_first, _finds_one_row, "patients"),
    "what a scan uses alone": (_used_alone, _finds_one_row, "patients"),
    "another order": (_greatest, _finds_one_row, "patients"),
    "conditions before the choice": (_conditions_first, _finds_one_row, "patients"),
    "the base by a hash": (_hashed, _finds_one_row, "patients"),
    "the order of types": (_signs_and_collations, _finds_one_row, "patients"),
    "rows as they come": (_as_they_come, _is_a_sum_over_units, "visits"),
    "rows of any unit": (_any_unit, _is_a_sum_over_units, "visits"),
}


@pytest.mark.parametrize("mutant", MUTANTS)
@pytest.mark.few("a reference finds two rows", "another order", "the base by a hash", "rows of any unit")
def test_the_comparison_sees(con: duckdb.DuckDBPyConnection, mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    change, check, name = MUTANTS[mutant]
    change(monkeypatch)
    with pytest.raises(AssertionError):
        check(con, name, 8)


# -- what planning is told --------------------------------------------------------------------------


def _source(con: duckdb.DuckDBPyConnection, text: str) -> RowSource:
    found = rows_of(text, POLICY, tables_of(POLICY, engine_of(con))).table.source
    assert found is not None
    return found


def test_which_joins_agree(con: duckdb.DuckDBPyConnection) -> None:
    def told(text: str) -> dict[str, bool]:
        source = _source(con, text)
        return {join.name: agrees(source, join) for join in source.joins}

    assert _source(con, "patients").agrees
    assert [column.name for column in _source(con, "patients").order] == [
        *("name", "sex", "age", "weight", "id", "region")
    ]
    assert not _source(con, "visits").agrees
    assert not _source(con, "labs").agrees
    assert told(f"visits v {PATIENTS}") == {"patients(patient_id)": True}
    assert told("notes n JOIN visits v ON visit_id = v.id") == {"visits(visit_id)": False}
    chain = (
        "labs JOIN visits v ON visit_id = v.id JOIN patients p ON v.patient_id = p.id JOIN regions r ON r.id = region"
    )
    assert told(chain) == {
        "visits(visit_id)": False,
        "patients(visits(visit_id).patient_id)": True,
        "regions(patients(visits(visit_id).patient_id).region)": False,
    }


def test_one_order_is_held(con: duckdb.DuckDBPyConnection) -> None:
    source = _source(con, f"visits v {PATIENTS}")
    (join,) = source.joins
    turned = replace(join, order=join.order[::-1])
    with pytest.raises(InternalError, match="one order chooses"):
        one_choice([source, replace(source, joins=(turned,))])
    with pytest.raises(InternalError, match="one order chooses"):
        one_choice([_source(con, "patients"), replace(source, joins=(turned,))])
    with pytest.raises(InternalError, match="one order for all scans"):
        replace(source, joins=(replace(join, order=()),))
    with pytest.raises(InternalError, match="rows are ordered by columns"):
        replace(join, order=(Stored("sex", "VARCHAR"),))
    with pytest.raises(InternalError, match="the least row"):
        replace(_source(con, "visits"), order=(Stored("kind", "VARCHAR"),))
    batch = compiled(con, [Ask(f"visits v {PATIENTS}", ("sex",)), Ask("patients", ("sex",))])
    other = [
        replace(layout, source=replace(layout.source, joins=(turned,))) if layout.source.joins else layout
        for layout in batch.layouts
    ]
    assert scans_of(batch.layouts)
    with pytest.raises(InternalError, match="one order chooses"):
        scans_of(other)


def test_an_order_is_told_to_later_releases(con: duckdb.DuckDBPyConnection) -> None:
    """What a release kept is equal for all that take the least row, and unlike that of releases that took others."""

    def kept(*asks: Ask) -> dict[str, str]:
        return retention_order(compiled(con, asks).layouts)

    joined = Ask(f"visits v {PATIENTS}", ("sex",))
    one, other = (
        kept(ask, joined)["patients"] for ask in (Ask("patients", ("sex",)), Ask("patients WHERE age > 20", ("name",)))
    )
    assert one == other != UNORDERED
    layouts = compiled(con, [Ask("patients", ("sex",)), Ask("visits", ("kind",))]).layouts
    before = [replace(layout, source=replace(layout.source, order=())) for layout in layouts]
    assert retention_order(before) == {"visits": kept(Ask("visits", ("kind",)))["visits"], "patients": UNORDERED}
    found = compiled(con, [Ask(f"visits v {PATIENTS}", ("sex",))]).layouts
    shorter = []
    for layout in found:
        (join,) = layout.source.joins
        join = replace(join, order=join.order[:1])
        shorter.append(replace(layout, source=replace(layout.source, joins=(join,))))
    assert retention_order(found) != retention_order(shorter)


def test_a_release_of_before_is_not_combined_with_one_that_takes_the_least_row(con: duckdb.DuckDBPyConnection) -> None:
    batches = [compiled(con, [ask]) for ask in (Ask("patients", ("sex",)), Ask("visits", ("kind",)))]
    firsts = [retention_order(batch.layouts) for batch in batches]

    def past(release: int, which: int, first: Mapping[str, str]) -> Past:
        batch = batches[which]
        return Past(release, {}, batch.layouts, batch.rows, None, None, first)  # type: ignore[arg-type]

    old, older, new = past(1, 0, {}), past(2, 0, {}), past(3, 0, firsts[0])
    assert new.keeps(firsts[0])
    assert not old.keeps(firsts[0])
    assert old.keeps(older.row_order)  # as the policy says that neither lost a row
    assert past(4, 1, firsts[1]).keeps(firsts[1])
    assert not past(5, 1, {}).keeps(past(6, 1, {}).row_order)


def test_where_no_scan_finds_a_row_none_is_chosen(con: duckdb.DuckDBPyConnection) -> None:
    """The scan of patients alone reads no more than it is asked for; beside visits that find patients it chooses."""
    tables, alone = tables_of(POLICY, engine_of(con)), "SELECT sex, COUNT(*) AS n FROM patients GROUP BY sex"
    joined = f"{alone}; SELECT COUNT(*) AS n FROM visits v JOIN patients p ON v.patient_id = p.id"
    for sql, chosen in ((alone, False), (joined, True)):
        source = understood(sql, POLICY, tables).tables["patients"].source
        assert source is not None
        assert bool(source.order) == source.agrees == chosen


@pytest.mark.long
def test_windows_counts_of_values_and_caps_see_the_least_row(con: duckdb.DuckDBPyConnection) -> None:
    sql = """SELECT COUNT(DISTINCT age) AS n FROM patients WHERE age > 20;
        SELECT COUNT(*) AS n FROM (SELECT sex, ROW_NUMBER() OVER (PARTITION BY id ORDER BY age DESC) AS place
        FROM patients) WHERE place = 1 AND sex = 'f';
        SELECT COUNT(*) AS n FROM visits v JOIN patients p ON v.patient_id = p.id WHERE p.sex = 'f'"""
    found = understood(sql, POLICY, tables_of(POLICY, engine_of(con)))
    batch = compile_batch(found.queries, found.tables)
    for database in databases(12, 8):
        assert measured(con, batch, database) == measured(con, batch, mended_patients(database))
