"""Correlated subqueries: what one gathers is bounded by its own rows for one row around it, its work by all of them."""

from __future__ import annotations

import random
from collections.abc import Iterator

import duckdb
import pytest

from dpsql.errors import SQLError
from dpsql.free_sql.bounds import check
from dpsql.free_sql.tables import Bounds, table_in

TABLES = ("a", "b", "c", "long")


@pytest.fixture(scope="module")
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect(config={"threads": "1"}) as found:
        draw = random.Random(3)
        for name in TABLES[:3]:
            found.execute(f"CREATE TABLE {name} (k INTEGER, s VARCHAR, words VARCHAR[])")
            for _ in range(7):
                words = [draw.choice(["x", "yy", "zzz"]) for _ in range(draw.randint(0, 3))]
                found.execute(f"INSERT INTO {name} VALUES (?, ?, ?)", [draw.choice([None, 0, 0, 1, 2]), "st", words])
        # Two thousand rows, of which ten agree.
        found.execute("CREATE TABLE long AS SELECT i // 10 AS k, repeat('s', 50) AS s FROM range(20_000) t(i)")
        yield found


def judged(sql: str, connection: duckdb.DuckDBPyConnection) -> Bounds:
    found = check(sql, connection, lambda path: table_in(connection, path[-1]) if path[-1] in TABLES else None)
    assert found is not None
    return found


def gathered(draw: random.Random, depth: int, outer: list[str]) -> str:
    """A list or text that a subquery gathers, correlated with some of the aliases around it or with none."""
    alias, table = f"t{len(outer)}", draw.choice(TABLES[:3])
    around = [*outer, alias]
    value = draw.choice([f"{alias}.s", f"{alias}.s || {draw.choice(around)}.s", f"{draw.choice(around)}.s"])
    if depth and draw.random() < 0.5:
        value = f"len({gathered(draw, depth - 1, around)})::VARCHAR"
    where = f" WHERE {alias}.k {draw.choice(['=', '=', '<', '<>'])} {draw.choice(outer)}.k"
    where = where if draw.random() < 0.8 else ""
    source = f"{table} AS {alias}"
    if draw.random() < 0.2:
        source += f", unnest({draw.choice(outer)}.words) AS u{len(outer)}(w)"
    if draw.random() < 0.2:
        held = f"h{len(outer)}"
        inner = f"WITH {held} AS (SELECT {alias}.* FROM {source}{where}) "
        return f"({inner}SELECT {draw.choice(['string_agg', 'list'])}({alias}.s) FROM {held} AS {alias})"
    if draw.random() < 0.3:
        return f"ARRAY(SELECT {value} FROM {source}{where} ORDER BY 1)"
    return f"(SELECT {draw.choice(['string_agg', 'list'])}({value}) FROM {source}{where})"


@pytest.mark.parametrize("seeds", [range(40), pytest.param(range(40, 2_000), marks=pytest.mark.long)])
def test_nothing_gathered_is_longer_than_its_bound(seeds: range, connection: duckdb.DuckDBPyConnection) -> None:
    compared = 0
    for seed in seeds:
        draw = random.Random(seed)
        sql = f"SELECT {gathered(draw, 2, ['t'])} AS x FROM {draw.choice(TABLES[:3])} AS t"
        try:
            rows = connection.execute(f"SELECT len(x), strlen(x::VARCHAR) FROM ({sql})").fetchall()
        except duckdb.Error:  # such as an aggregate of columns around that stands between columns of its own
            continue
        found = judged(sql, connection).columns["x"]
        assert max((row[0] or 0 for row in rows), default=0) <= max(found.elements, found.size), sql
        # As text, a list has two signs more for each element.
        assert max((row[1] or 0 for row in rows), default=0) <= found.size + 2 * found.elements + 2, sql
        compared += 1
    assert compared > len(seeds) / 2


@pytest.mark.parametrize(
    ("sql", "most"),
    [
        # Ten rows agree in k, each with a text of 50 bytes.
        ("SELECT (SELECT string_agg(i.s) FROM long i WHERE i.k = o.k) AS x FROM long o", 600),
        ("SELECT ARRAY(SELECT i.s FROM long i WHERE i.k = o.k) AS x FROM long o", 700),
        ("SELECT x FROM long o, LATERAL (SELECT list(i.s) AS x FROM long i WHERE i.k = o.k)", 600),
        ("SELECT (WITH w AS (SELECT s FROM long i WHERE i.k = o.k) SELECT list(s) FROM w) AS x FROM long o", 600),
        ("SELECT (SELECT count(*) FROM long i WHERE i.k = o.k) AS x FROM long o", 64),
    ],
)
def test_a_list_is_as_long_as_one_row_around_makes_it(
    sql: str, most: float, connection: duckdb.DuckDBPyConnection
) -> None:
    assert judged(sql, connection).columns["x"].size <= most


@pytest.mark.parametrize(
    "sql",
    [
        # The list is short, and there are very many.
        "SELECT (SELECT list(i.s) FROM long i WHERE i.k <> o.k) FROM long o",
        "SELECT (SELECT count(*) FROM long i WHERE i.k < o.k) FROM long o",
        # Of columns around alone, an aggregate is of the query around.
        "SELECT repeat((SELECT string_agg(o.s) FROM a i), 2) FROM long o",
        "SELECT repeat(x[1], 99) FROM (SELECT ARRAY(SELECT string_agg(o.s) FROM a) AS x FROM long o)",
        # A query of WITH that names columns around is computed for each row there, wherever it is read.
        "SELECT (WITH w AS (SELECT s FROM long i WHERE i.k <> o.k) SELECT (SELECT max(s) FROM w) FROM a) FROM long o",
        "SELECT (WITH w AS (SELECT o.k AS k) SELECT (SELECT count(*) FROM w, long i) FROM a) FROM long o",
        "SELECT (SELECT count(*) FROM unnest(range(9999)) u(x) WHERE x <> o.k) FROM long o",
    ],
)
def test_the_work_of_all_rows_around_is_bounded(sql: str, connection: duckdb.DuckDBPyConnection) -> None:
    with pytest.raises(SQLError) as error:
        judged(sql, connection)
    assert error.value.code == "too-large"
