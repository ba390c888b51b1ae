"""Golden batches: every file of tests/fixtures is answered by DuckDB and by the pipeline without noise."""

from __future__ import annotations

import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import duckdb
import pytest
from helpers import exact, policy_of

from dpsql.workloads.expr.batch import KeyOutput

FIXTURES = sorted((Path(__file__).parent.parent / "fixtures").glob("*.sql"))
_SECTION = re.compile(r"/\* \[(\w+)\]\n(.*?)\*/\n", re.DOTALL)


def _read(path: Path) -> tuple[str, str, list[str]]:
    """Policy, rows and batches of a fixture."""
    text = path.read_text()
    sections = dict(_SECTION.findall(text))
    return sections["policy"], sections["rows"], _SECTION.sub("", text).split("-- [next]\n")


def _oracle(con: duckdb.DuckDBPyConnection, batch: str) -> list[list[tuple[Any, ...]]]:
    """What DuckDB itself answers, statement by statement; a view is created, read and dropped."""
    found = []
    for statement in con.extract_statements(batch):
        con.execute(statement)
        view = re.match(r'\s*CREATE (?:OR REPLACE )?VIEW\s+("[^"]+"|\w+)', _bare(statement.query), re.IGNORECASE)
        if view:
            con.execute(f"SELECT * FROM {view[1]}")
        found.append(con.fetchall())
        if view:
            con.execute(f"DROP VIEW {view[1]}")
    return found


def _bare(text: str) -> str:
    return re.sub(r"--[^\n]*|/\*.*?\*/", "", text, flags=re.DOTALL).strip()


def _number(value: Any) -> Fraction:
    # SUM and COUNT over nothing are 0 here, NULL in DuckDB.
    return Fraction(0) if value is None else Fraction(value)


def _keyed(rows: list[tuple[Any, ...]], keys: list[int], domains: list[Any]) -> dict[tuple[Any, ...], list[Fraction]]:
    """DuckDB's rows by group, added up where the policy throws groups together."""
    out: dict[tuple[Any, ...], list[Fraction]] = {}
    for row in rows:
        group = []
        for at, domain in zip(keys, domains, strict=True):
            if row[at] is None:
                group.append(("null", None))
            else:
                group.append(("value", row[at]) if row[at] in domain.values else ("other", None))
        if any(kind == "other" and not d.other for (kind, _), d in zip(group, domains, strict=True)):
            continue
        numbers = [_number(value) for at, value in enumerate(row) if at not in keys]
        held = out.setdefault(tuple(group), [Fraction(0)] * len(numbers))
        out[tuple(group)] = [a + b for a, b in zip(held, numbers, strict=True)]
    return out


@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: path.stem)
@pytest.mark.few(every=3)
def test_batch_is_answered_as_duckdb_answers_it(path: Path) -> None:
    policy, rows, batches = _read(path)
    con, clean = duckdb.connect(), duckdb.connect()
    con.execute(rows)
    clean.execute(rows)
    for table, column in clean.execute(
        "SELECT table_name, column_name FROM duckdb_columns() WHERE NOT internal AND data_type IN ('FLOAT', 'DOUBLE')"
    ).fetchall():
        clean.execute(f'UPDATE "{table}" SET "{column}" = NULL WHERE isnan("{column}")')  # as it is wherever it is read
    for batch in batches:
        _compare(con, clean, policy, batch)


def _compare(con: duckdb.DuckDBPyConnection, clean: duckdb.DuckDBPyConnection, policy: str, batch: str) -> None:
    found = exact(batch, policy_of(policy), con)
    wanted = _oracle(clean, batch)
    assert len(wanted) == len(found.queries)
    for number, (query, theirs) in enumerate(zip(found.queries, wanted, strict=True)):
        (core,) = query.cores
        keys = [i for i, column in enumerate(core.columns) if isinstance(column, KeyOutput)]
        domains = [core.columns[i].key for i in keys]
        grouped = _keyed(theirs, keys, domains)
        ours = found.rows(number)
        assert len(ours) == core.rows
        for row in ours:
            group = tuple(row[i] for i in keys)
            numbers = [value for i, value in enumerate(row) if i not in keys]
            assert numbers == grouped.pop(group, [Fraction(0)] * len(numbers)), (query.text, group)
        assert not grouped, (query.text, grouped)


def test_there_are_fixtures() -> None:
    assert len(FIXTURES) >= 6


@pytest.mark.parametrize("name", ["groups", "names", "sums"])
@pytest.mark.few(every=2)
def test_columns_have_the_names_that_duckdb_gives(name: str) -> None:
    policy, rows, batches = _read(next(path for path in FIXTURES if path.stem == name))
    con = duckdb.connect()
    con.execute(rows)
    queries = [query for batch in batches for query in exact(batch, policy_of(policy), con).queries]
    for query, statement in zip(queries, con.extract_statements(";".join(batches)), strict=True):
        con.execute(statement)
        if query.named:
            con.execute(f'SELECT * FROM "{query.name}"')
        theirs = [d[0] for d in con.description]
        ours = [column.name for column in query.cores[0].columns]
        # Names that occur twice are numbered, since a view cannot hold both.
        if len({name.lower() for name in theirs}) == len(theirs):
            assert ours == theirs, query.text
        else:
            assert len({name.lower() for name in ours}) == len(ours)
