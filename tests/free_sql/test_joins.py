"""Joins over releases: no join has more rows than its bound, whatever joins it and however keys repeat."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partialmethod
from math import inf

import duckdb
import pytest

from dpsql.free_sql import limits
from dpsql.free_sql.bounds import check
from dpsql.free_sql.tables import Bounds, table_in

TABLES = ("a", "b", "c", "d")
KINDS = ("JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN")


@pytest.fixture(scope="module")
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect(config={"threads": "1"}) as found:
        draw = random.Random(5)
        for name in TABLES:
            found.execute(f"CREATE TABLE {name} (k INTEGER, x INTEGER, y DOUBLE, s VARCHAR)")
            values = [draw.choice([None, 0, 1, 1, 1, 2, 3]) for _ in range(4 * 12)]
            for at in range(0, len(values), 4):
                text = draw.choice(["1", "01", "001", "x"])
                found.execute(f"INSERT INTO {name} VALUES (?, ?, ?, ?)", [*values[at : at + 3], text])
        yield found


def source(draw: random.Random, alias: str) -> str:
    table = draw.choice(TABLES)
    return draw.choice(
        [
            f"{table} AS {alias}",
            f"{table} AS {alias}",
            f"(SELECT k, x, y, s FROM {table} WHERE x > 0) AS {alias}",
            f"(SELECT x AS k, k AS x, y, s FROM {table}) AS {alias}",
            f"(SELECT k, x, max(y) AS y, max(s) AS s FROM {table} GROUP BY k, x) AS {alias}",
            f"(SELECT k, count(*) AS x, max(y) AS y, max(s) AS s FROM {table} GROUP BY ALL) AS {alias}",
            f"(SELECT DISTINCT k, k AS x, 1.5 AS y, s FROM {table}) AS {alias}",
            f"(SELECT DISTINCT ON (k) * FROM {table}) AS {alias}",
            f"(SELECT k, x, y, s FROM {table} UNION SELECT x, k, y, s FROM a) AS {alias}",
            f"(SELECT k, x, y, s FROM {table} UNION ALL SELECT x, k, y, s FROM a) AS {alias}",
            f"(SELECT k, unnest([1, 1, 2]) AS x, y, s FROM {table}) AS {alias}",
            f"(SELECT range AS k, range AS x, 1.0 AS y, 'x' AS s FROM range(4)) AS {alias}",
        ]
    )


def equality(draw: random.Random, left: list[str], right: list[str]) -> str:
    columns = draw.choice(["kk", "kx", "xx", "ky", "yy", "ss", "ks"])
    return f"{draw.choice(left)}.{columns[0]} = {draw.choice(right)}.{columns[1]}"


def joined(draw: random.Random, aliases: list[str]) -> tuple[str, list[str]]:
    """A random tree of joins and the aliases in it."""
    alias = aliases.pop()
    tree, names = source(draw, alias), [alias]
    for _ in range(draw.randint(0, 3)):
        if not aliases:
            break
        if draw.random() < 0.3:
            other, others = joined(draw, aliases)
            other = f"({other})" if len(others) > 1 else other
        else:
            alias = aliases.pop()
            other, others = source(draw, alias), [alias]
        kind, both = draw.choice(KINDS), names + others
        how = draw.random()
        if how < 0.1:
            tree = f"{tree} CROSS JOIN {other}"
        elif how < 0.2 and len(others) == 1:
            tree = f"{tree} POSITIONAL JOIN {other}"
        elif how < 0.35 and len(names) == len(others) == 1:
            tree = f"{tree} {kind} {other} USING ({draw.choice(['k', 'k, x'])})"
        elif how < 0.45 and len(names) == 1:
            tree = f"{tree} ASOF {draw.choice(KINDS)} {other} ON {names[0]}.k >= {others[0]}.k"
        else:
            conditions = [equality(draw, names, others)] + [
                equality(draw, both, both) for _ in range(draw.randint(0, 2))
            ]
            tree = f"{tree} {kind} {other} ON {' AND '.join(conditions)}"
        names = both
    return tree, names


def statement(draw: random.Random) -> str:
    aliases = [f"t{at}" for at in range(6, 0, -1)]
    trees, names = [], []
    for _ in range(draw.choice([1, 1, 2])):
        if aliases:
            tree, more = joined(draw, aliases)
            trees.append(tree)
            names += more
    where = " AND ".join(equality(draw, names, names) for _ in range(draw.choice([0, 0, 1, 2])))
    inner = draw.choice(TABLES)
    lateral = f", LATERAL (SELECT * FROM {inner} AS i WHERE i.k = {names[0]}.k) AS l" if draw.random() < 0.2 else ""
    return f"SELECT 1 AS one FROM {', '.join(trees)}{lateral}{' WHERE ' + where if where else ''}"


_MULTIPLICITY = Bounds.multiplicity


def _multiplicity(bounds: Bounds, counted: bool, columns: frozenset[str], *, measured: bool = False) -> float:
    return _MULTIPLICITY(bounds, columns, measured=measured or counted)


@pytest.mark.parametrize("seeds", [range(60), pytest.param(range(60, 2_000), marks=pytest.mark.long)])
def test_no_join_has_more_rows_than_its_bound(
    seeds: range, connection: duckdb.DuckDBPyConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: dict[str, Bounds | None] = {name: table_in(connection, name) for name in TABLES}
    below, compared = 0, 0
    for seed in seeds:
        sql = statement(random.Random(seed))
        try:
            (rows,) = connection.execute(f"SELECT count(*) FROM ({sql})").fetchone() or (0,)
        except duckdb.Error:  # such as an ASOF JOIN that DuckDB has no plan for
            continue
        monkeypatch.setattr(limits, "MOST_ROWS", inf)
        for counted in (False, True):  # what is counted only past the limit, too
            monkeypatch.setattr(Bounds, "multiplicity", partialmethod(_multiplicity, counted))
            found = check(sql, connection, lambda path: held.get(path[-1]))
            assert found is not None
            assert rows <= found.rows, (sql, rows, found.rows)
        below += found.rows < 12 ** (sql.count(" AS t") + sql.count(" AS l"))
        compared += 1
    assert compared > 0.6 * len(seeds)
    assert below > compared / 2
