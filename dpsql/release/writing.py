"""How one release becomes schemas, tables and views of a DuckDB file."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import duckdb

from dpsql.common.quoting import identifier

from .columns import fill, write_table
from .instances import CATALOG
from .names import is_unnamed
from .range_table import write_ranges
from .record import ReleaseRecord, ReleaseTable
from .series import LATEST, columns_of, make_place, one_release, rows_sql, series_sql, take_out
from .shared_tables import sharing, united, views_sql

CATALOGUE = """
CREATE SCHEMA IF NOT EXISTS dp;
CREATE TABLE IF NOT EXISTS main.releases (
    release_id BIGINT, released_at TIMESTAMP, label VARCHAR, guarantee VARCHAR, purse VARCHAR, cost DOUBLE,
    noise VARCHAR, strategy VARCHAR, queries BIGINT, gap DOUBLE, names VARCHAR[], sql VARCHAR
);
ALTER TABLE main.releases ADD COLUMN IF NOT EXISTS purse_total DOUBLE;
ALTER TABLE main.releases ADD COLUMN IF NOT EXISTS purse_spent DOUBLE;
ALTER TABLE main.releases ADD COLUMN IF NOT EXISTS purse_remaining DOUBLE;
ALTER TABLE main.releases ADD COLUMN IF NOT EXISTS unit VARCHAR;
ALTER TABLE main.releases ADD COLUMN IF NOT EXISTS period VARCHAR;
CREATE OR REPLACE VIEW dp.releases AS SELECT * FROM main.releases ORDER BY release_id;
"""
# Columns of main.releases are attributes of records, by name: files of older versions have them in another order.
_COLUMNS = (
    *("release_id", "released_at", "label", "guarantee", "purse", "cost", "noise", "strategy", "queries", "gap"),
    *("names", "sql", "purse_total", "purse_spent", "purse_remaining", "unit", "period"),
)


def write_records(connection: duckdb.DuckDBPyConnection, records: Iterable[ReleaseRecord]) -> None:
    """Add the releases in one transaction; those that the file holds under the same names stay as they are.

    ``connection`` is one of ``instances.attached``. Schema ``r<id>`` gets a table per result, or a view of a table of
    several results (``together``) or of the rows of all periods (``series``). ``dp.<name>`` selects from the release of
    the highest id that has the name, so the order of writing does not matter; where that one is of a period, from the
    releases of all periods, with the period as a column, and ``dp.<name>_latest`` from that of the last. Unnamed
    results (q1, q2, ...) of one label are not those of another: where releases under several labels have q1, there is
    no ``dp.q1``. Where a release of the file has other names by now, it is taken out and written anew, and so are the
    views of the names that it had.
    """
    connection.execute("BEGIN TRANSACTION")
    connection.execute(CATALOGUE)
    index = _index(connection)
    records = [record for record in records if index.present.get(record.release_id) != record.names]
    # Only of periods is there a ``_latest``, so a file without any has none to take out.
    has_periods = any(index.periods.values()) or any(record.period for record in records)
    changed: dict[str, str] = {}
    for record in records:
        before = index.present.pop(record.release_id, None)
        for name in (*(before or ()), *record.names):
            changed[name.lower()] = name
        if before is not None and record.period:
            take_out(connection, CATALOG, record.release_id)
        connection.execute(f"DROP SCHEMA IF EXISTS r{record.release_id} CASCADE")
        connection.execute("DELETE FROM main.releases WHERE release_id = ?", [record.release_id])
    for record in records:
        if record.release_id in index.present:
            continue
        index.present[record.release_id], index.labels[record.release_id] = record.names, record.label or ""
        index.periods[record.release_id] = record.period
        schema = f"r{record.release_id}"
        connection.execute(f"CREATE SCHEMA {schema}")
        shared = {} if record.period else sharing(record.tables)
        for place, tables in shared.items():
            write_table(connection, place, united(tables), schema)
            connection.execute(views_sql(tables, schema, place))
        written = {table.name for tables in shared.values() for table in tables}
        for table in record.tables:
            if table.name in written:
                continue
            if not table.listed:
                write_ranges(connection, table, schema)
            elif record.period:
                _write_of_period(connection, table, record.release_id, record.period)
            else:
                write_table(connection, table.name, table.columns, schema)
        said = {name: getattr(record, name) for name in _COLUMNS}
        row = list({**said, "names": list(record.names), "period": record.period or None}.values())
        marks = ", ".join("?" * len(row))
        connection.execute(f"INSERT INTO main.releases ({', '.join(_COLUMNS)}) VALUES ({marks})", row)  # noqa: S608
    shown = [text for name in changed.values() for text in _show(connection, name, index, has_periods)]
    dropped = [f"DROP VIEW IF EXISTS dp.{identifier(name)}" for name in sorted(index.shared)]
    connection.execute(";\n".join([*shown, *dropped, "COMMIT"]))


@dataclass(frozen=True)
class _Index:
    """Names of the results, label and period of each release of a file, by id."""

    present: dict[int, tuple[str, ...]]
    labels: dict[int, str]
    periods: dict[int, str]

    @property
    def shared(self) -> set[str]:
        """The names of unnamed results that releases under several labels have, in lower case."""
        found: dict[str, set[str]] = {}
        for number, names in self.present.items():
            for name in filter(is_unnamed, names):
                found.setdefault(name.lower(), set()).add(self.labels[number])
        return {name for name, used in found.items() if len(used) > 1}

    @cached_property
    def _by_name(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for number, names in sorted(self.present.items()):
            for name in {name.lower() for name in names}:
                found.setdefault(name, []).append(number)
        return found

    def of(self, name: str) -> list[int]:
        """The releases that have a result of that name, in any case, oldest first, all that are written being here."""
        return self._by_name.get(name.lower(), [])


def _index(connection: duckdb.DuckDBPyConnection, catalogue: str = "") -> _Index:
    rows = connection.execute(f"SELECT release_id, names, label, period FROM {catalogue}main.releases").fetchall()  # noqa: S608
    return _Index(
        {number: tuple(names) for number, names, _, _ in rows},
        {number: label or "" for number, _, label, _ in rows},
        {number: period or "" for number, _, _, period in rows},
    )


def _show(connection: duckdb.DuckDBPyConnection, name: str, index: _Index, has_periods: bool) -> list[str]:
    """The statements that make the views of a name anew, or take them out where no release has it by now.

    ``has_periods``: whether the file may hold a view of the last period.
    """
    releases = index.of(name)
    latest = f"{name}{LATEST}"
    mine = not index.of(latest)  # a result that a batch called so stays what it is
    if releases and index.periods[releases[-1]]:
        of_period = {index.periods[number]: number for number in releases if index.periods[number]}
        last = max(of_period)
        text = series_sql(name, {last: of_period[last]})
        return [
            f"CREATE OR REPLACE VIEW dp.{identifier(name)} AS {rows_sql(connection, CATALOG, name, of_period)}",
            *([f"CREATE OR REPLACE VIEW dp.{identifier(latest)} AS {text}"] if mine else []),
        ]
    return [
        _pointed(f"r{releases[-1]}", name) if releases else f"DROP VIEW IF EXISTS dp.{identifier(name)}",
        *([f"DROP VIEW IF EXISTS dp.{identifier(latest)}"] if mine and has_periods else []),
    ]


def series_of(connection: duckdb.DuckDBPyConnection, catalogue: str) -> dict[str, str]:
    """The SELECT behind each view of several periods, and of the last one, by its name in lower case."""
    if "period" not in columns_of(connection, f"{catalogue}.main.releases"):  # a file of before
        return {}
    index = _index(connection, f"{catalogue}.")
    found: dict[str, str] = {}
    for name in dict.fromkeys(n for number, names in index.present.items() if index.periods[number] for n in names):
        releases = index.of(name)
        of_period = {index.periods[number]: number for number in releases if index.periods[number]}
        if index.periods[releases[-1]]:
            last = max(of_period)
            found[name.lower()] = series_sql(name, of_period)
            if not index.of(f"{name}{LATEST}"):
                found[f"{name}{LATEST}".lower()] = series_sql(name, {last: of_period[last]})
    return found


def point_views(connection: duckdb.DuckDBPyConnection, record: ReleaseRecord) -> None:
    """Let ``dp.<name>`` select from this release for all its results that have a view."""
    connection.execute("BEGIN TRANSACTION")
    connection.execute(CATALOGUE)
    shared = _index(connection).shared
    for table in record.tables:
        if table.name.lower() in shared:
            continue
        connection.execute(_pointed(f"r{record.release_id}", table.name))
    connection.execute("COMMIT")


def _pointed(schema: str, name: str) -> str:
    return f"CREATE OR REPLACE VIEW dp.{identifier(name)} AS SELECT * FROM {schema}.{identifier(name)}"  # noqa: S608


def _write_of_period(connection: duckdb.DuckDBPyConnection, table: ReleaseTable, release: int, period: str) -> None:
    """The rows of a result of one period among those of all, and a view of them."""
    into = f"INSERT INTO {make_place(connection, table)}"
    fill(connection, into, table.columns, f"{release}, DATE '{period}', ")
    connection.execute(f"CREATE VIEW r{release}.{identifier(table.name)} AS {one_release(table, release)}")
