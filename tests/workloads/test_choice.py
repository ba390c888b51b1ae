"""Which way a batch is compiled, and what neither way can plan."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import duckdb
import pytest
from helpers import engine_of, policy_of, tables_of, understood

from dpsql.errors import SQLError
from dpsql.workloads.compile import choice
from dpsql.workloads.compile.choice import compile_any
from dpsql.workloads.compile.compiled import Compiled
from dpsql.workloads.compile.histograms import MAX_HISTOGRAM
from dpsql.workloads.compile.structured import Structured, compile_structured
from dpsql.workloads.expr import deadline
from dpsql.workloads.expr.deadline import Deadline
from dpsql.workloads.expr.rows import RowSource
from dpsql.workloads.expr.values import Stored

TEN = "[" + ", ".join(map(str, range(10))) + "]"
POLICY = policy_of(
    '[tables.t]\nunit = "row"\n[tables.t.columns]\n'
    + "".join(f"c{i} = {{ values = {TEN}, nulls = false }}\n" for i in range(12))
    + "".join(f"w{i} = {{ lower = 0, upper = 399 }}\n" for i in range(4))
)
CUBE = "SELECT c0, c1, c2, c3, COUNT(*) AS n FROM t GROUP BY CUBE (c0, c1, c2, c3)"
ALL = ", ".join(f"c{i}" for i in range(12))


@pytest.fixture(scope="module")
def con() -> duckdb.DuckDBPyConnection:
    con = duckdb.connect()
    columns = [f"c{i} INTEGER" for i in range(12)] + [f"w{i} INTEGER" for i in range(4)]
    con.execute(f"CREATE TABLE t ({', '.join(columns)})")
    return con


def compiled(sql: str, con: duckdb.DuckDBPyConnection) -> Compiled | Structured:
    found = understood(sql, POLICY, tables_of(POLICY, engine_of(con)))
    return compile_any(found.queries, found.tables)


@pytest.mark.parametrize(
    ("sql", "structured"),
    [
        ("SELECT c0, c1, c2, COUNT(*) AS n FROM t GROUP BY CUBE (c0, c1, c2)", False),  # 1,000 cells
        (CUBE, True),
        (f"SELECT {ALL}, COUNT(*) AS n FROM t GROUP BY dp_marginals(2, {ALL})", True),
        # One grouping: each group by itself, whatever their number.
        ("SELECT c0, c1, c2, c3, COUNT(*) AS n FROM t GROUP BY ALL", False),
        # Its count and its sum share the cells of a group, and no other ones: 10,000 parts that are alike.
        ("SELECT c0, c1, c2, c3, COUNT(*) AS n, SUM(w0) AS s FROM t GROUP BY ALL", False),
        # Few queries over few merged cells.
        ("SELECT COUNT(*) FROM t WHERE c0 > 3 AND c1 < 4; SELECT COUNT(*) FROM t WHERE w0 > 7 AND w1 < 9", False),
        # Ranges and marginals over many columns.
        (f"SELECT dp_ranges(c0), COUNT(*) AS n FROM t GROUP BY dp_ranges(c0); SELECT {ALL}, COUNT(*) AS n FROM t "
         f"GROUP BY dp_marginals(2, {ALL})", True),
    ],
)  # fmt: skip
def test_the_way_follows_from_public_sizes(con: duckdb.DuckDBPyConnection, sql: str, structured: bool) -> None:
    assert isinstance(compiled(sql, con), Structured if structured else Compiled)


def test_what_no_way_can_plan_names_size_cap_and_columns(con: duckdb.DuckDBPyConnection) -> None:
    # Both ways are tried: one matrix has too many numbers at 41^3 groups and 400^3 cells, a histogram too many cells.
    wide = ", ".join(f"w{i}" for i in range(3))
    sql = f"SELECT {wide}, COUNT(*) AS n FROM t GROUP BY {wide}"
    with pytest.raises(SQLError, match=r"at most"):
        compiled(sql, con)


def _parts(sql: str, con: duckdb.DuckDBPyConnection) -> tuple[Any, Any]:
    found = understood(sql, POLICY, tables_of(POLICY, engine_of(con)))
    return found.queries, found.tables


def test_a_histogram_past_the_cap_names_the_columns_to_drop(con: duckdb.DuckDBPyConnection) -> None:
    batch = "SELECT COUNT(*) FROM t WHERE " + " AND ".join(
        "(" + " OR ".join(f"w{i} = {value}" for value in range(7 * i, 390, 2)) + ")" for i in range(3)
    )
    assert isinstance(compiled(batch, con), Compiled)  # three conditions make few cells
    many = "; ".join(f"SELECT COUNT(*) FROM t WHERE w0 < {3 * k} AND w1 < {2 * k} AND w2 < {k} AND c0 = 1 AND c1 = 2"
                     for k in range(1, 130))  # fmt: skip
    many += "; SELECT COUNT(*) FROM t"  # what no other statement counts is counted, too
    with pytest.raises(SQLError, match=rf"cells, at most {MAX_HISTOGRAM:,} are planned .*drop or coarsen w2"):
        compile_structured(*_parts(many, con))


def test_regions_that_no_number_counts_are_no_cells(con: duckdb.DuckDBPyConnection) -> None:
    some = "SELECT c0, COUNT(*) FROM t WHERE w0 BETWEEN 10 AND 200 GROUP BY c0"
    alone, beside = (compile_structured(*_parts(text, con)) for text in (some, some + "; SELECT COUNT(*) FROM t"))
    (told,), (all_told,) = alone.sizes, beside.sizes
    at = alone.names[0].index("w0")
    assert (told[at], all_told[at]) == (1, 2)
    assert alone.numbers + 1 == beside.numbers


def test_units_counted_once_are_not_planned_block_by_block(con: duckdb.DuckDBPyConnection) -> None:
    queries, tables = _parts(CUBE, con)
    source = RowSource("t", unit=Stored("c0", "INTEGER"), limit=3, protects="c0", distinct=True)
    with pytest.raises(SQLError, match=r"COUNT\(DISTINCT"):
        compile_structured(queries, {"t": replace(tables["t"], source=source)})


PAIRS = policy_of(
    '[tables.t]\nunit = "row"\n[tables.t.columns]\n'
    + "".join(f"p{i} = {{ values = {TEN}, nulls = false }}\n" for i in range(56))
)


def pairs_of(text: str) -> Any:
    own = duckdb.connect()
    own.execute(f"CREATE TABLE t ({', '.join(f'p{i} INTEGER' for i in range(56))})")
    found = understood(text, PAIRS, tables_of(PAIRS, engine_of(own)))
    return found.queries, found.tables


def test_an_or_over_many_pairs_of_columns_is_answered_whatever_their_order() -> None:
    among = " OR ".join(f"(p{i} = 1 AND p{28 + i} = 2)" for i in range(28))
    # The first columns of all pairs have fewer regions than the second ones.
    finer = "; ".join(f"SELECT COUNT(*) FROM t WHERE p{28 + i} < 7 AND p0 = 1" for i in range(1, 4))
    batch = compile_any(
        *pairs_of(f"SELECT COUNT(*) FROM t WHERE {among}; SELECT p55, COUNT(*) FROM t GROUP BY p55; {finer}")
    )
    assert isinstance(batch, Compiled)
    assert batch.cells < 1000


@pytest.mark.long
def test_a_condition_that_no_order_of_columns_untangles_is_refused_soon() -> None:
    # Each column meets three others, far apart: whatever comes first, much stays open.
    meets = " OR ".join(f"(p{i} = 1 AND p{(i * k + 7 * k) % 40} = 2)" for i in range(40) for k in (3, 11, 17))
    with pytest.raises(SQLError, match=r"a condition over p.* has too many parts .* split it over several statements"):
        compile_any(*pairs_of(f"SELECT COUNT(*) FROM t WHERE {meets}; SELECT p50, COUNT(*) FROM t GROUP BY p50"))


ROWS = policy_of(
    '[tables.p]\nunit = "row"\n[tables.p.columns]\na = { lower = 0, upper = 99 }\nb = { lower = 0, upper = 3 }\n'
    "c = { lower = 0, upper = 9 }\nv = { lower = 0, upper = 127 }\n"
)


@pytest.mark.parametrize(
    ("sql", "large"),
    [
        ("SELECT a // 10 AS d, MEDIAN(v) AS m FROM p GROUP BY d; SELECT b, c, AVG(v) AS x FROM p GROUP BY b, c", True),
        ("SELECT a // 10 AS d, MEDIAN(v) AS m FROM p GROUP BY d; SELECT a, AVG(v) AS x FROM p GROUP BY a", False),
        ("SELECT b, MEDIAN(c) AS m FROM p GROUP BY b; SELECT a, AVG(v) AS x FROM p GROUP BY a", False),  # small
    ],
)
def test_prefixes_beside_other_groups_tell_that_one_matrix_is_too_large(
    sql: str, large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    con = duckdb.connect()
    con.execute("CREATE TABLE p (a INTEGER, b INTEGER, c INTEGER, v INTEGER)")
    found = understood(sql, ROWS, tables_of(ROWS, engine_of(con)))
    assert choice._is_surely_large(compile_structured(found.queries, found.tables)) == large
    if large:
        assert choice._is_large_in_parts(choice.compile_batch(found.queries, found.tables))
        monkeypatch.setattr(choice, "compile_batch", lambda *_, **__: pytest.fail("cells are listed"))
        assert isinstance(compile_any(found.queries, found.tables), Structured)


@pytest.mark.parametrize("ticks", [2, 5, 7, 10])
def test_blocks_are_not_compiled_past_the_deadline(monkeypatch: pytest.MonkeyPatch, ticks: int) -> None:
    clock = iter(range(1000))
    monkeypatch.setattr(deadline, "monotonic", lambda: float(next(clock)))
    queries, tables = pairs_of(
        "; ".join(f"SELECT p{i}, p{i + 1}, COUNT(*) FROM t GROUP BY ALL" for i in range(0, 12, 2))
    )
    with pytest.raises(SQLError, match=r"^the time limit ended when \d of 6 columns of results were done; allow more"):
        compile_any(queries, tables, Deadline(float(ticks)))


PERSONS = policy_of(
    '[tables.p]\nunit = "person"\nmax_rows_per_unit = 3\n[tables.p.columns]\n'
    "a = { lower = 1, upper = 7000 }\nb = { lower = 1, upper = 600 }\nc = { lower = 1, upper = 9 }\n"
)
COUNTS = "SELECT {0}, COUNT(*) AS n, COUNT(DISTINCT person) AS m FROM p GROUP BY {0}"


@pytest.mark.parametrize(
    ("keys", "large"),
    [
        (("a", "b"), True),
        (("a, c", "a"), False),  # by a many small parts
        (("b", "a // 100"), False),  # too few groups
        (("a // 10", "a"), False),  # as many parts as decades
    ],
)
@pytest.mark.few(every=2)
def test_groupings_without_a_common_column_tell_that_one_matrix_is_too_large(
    keys: tuple[str, ...], large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    con = duckdb.connect()
    con.execute("CREATE TABLE p (person INTEGER, a INTEGER, b INTEGER, c INTEGER)")
    found = understood("; ".join(map(COUNTS.format, keys)), PERSONS, tables_of(PERSONS, engine_of(con)))
    counted = [query for query in found.queries if query.table == "p"]
    assert choice._is_surely_large(compile_structured(counted, found.tables)) == large
    if large:
        monkeypatch.setattr(choice, "compile_batch", lambda *_, **__: pytest.fail("cells are listed"))
        assert isinstance(compile_any(found.queries, found.tables), Structured)
