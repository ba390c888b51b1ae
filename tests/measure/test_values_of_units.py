"""COUNT(DISTINCT value): all that a unit can change, over all small worlds and through the scans of a run."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from helpers import compiled_of, engine_of, policy_of, tables_of
from scipy import sparse
from unit_worlds import with_unit

from dpsql.engines import duckdb as engine_module
from dpsql.engines.base import TableSource
from dpsql.measure import cells
from dpsql.measure.from_sql import UNIT
from dpsql.measure.reading import scan_of
from dpsql.policy import Policy
from dpsql.workloads.cells.integers import Factored
from dpsql.workloads.compile import units, values_once
from dpsql.workloads.compile.compiled import Compiled
from dpsql.workloads.compile.sensitivity import sensitivity_of
from dpsql.workloads.compile.units import wider_than_true
from dpsql.workloads.expr.scan import Column, Select, same
from dpsql.workloads.expr.values import Call, Cast, Name, whole
from dpsql.workloads.families import contributions

Row = tuple[object, ...]
DECLARED = """
[tables.t]
unit = "pid"
max_rows_per_unit = {rows}
at_most = [{caps}]
[tables.t.columns]
pid = {{}}
g = {{ values = ["x", "y"], nulls = false }}
v = {{ values = ["a", "b"] }}
o = {{ values = ["a"], other = true }}
n = {{ lower = 0, upper = 5 }}
b = {{}}
"""
# A row: g, v, o, n, b. What is no declared value, and NULL, are among them.
ROWS: tuple[Row, ...] = (
    ("x", "a", "a", 0, True),
    ("x", "b", "q", 1, False),
    ("y", "a", "r", 1, False),
    ("y", "b", None, 0, True),
    ("y", None, "a", 2, None),
    ("y", "q", "a", None, True),
)
BY_G, ALL = "SELECT g, count(DISTINCT {0}) AS n FROM t GROUP BY g", "SELECT count(DISTINCT {0}) AS n FROM t"
CASES = [
    (BY_G.format("v"), 3, ""),
    (BY_G.format("v"), 2, ""),
    (ALL.format("v"), 3, ""),
    (ALL.format("g"), 3, ""),
    (BY_G.format("g"), 3, ""),
    ("SELECT v, count(DISTINCT v) AS n FROM t GROUP BY v", 2, ""),
    ("SELECT o, count(DISTINCT o) AS n FROM t GROUP BY o", 2, ""),
    ("SELECT count(DISTINCT n) AS n FROM t WHERE n BETWEEN 1 AND 2", 3, ""),
    ("SELECT g, count(DISTINCT v) AS n FROM t WHERE g = 'x' OR v = 'a' GROUP BY g", 2, ""),
    (BY_G.format("CASE WHEN n < 2 THEN v END"), 3, ""),
    (BY_G.format("b"), 3, ""),
    (ALL.format("upper(v)"), 3, ""),
    (BY_G.format("v"), 3, '{ rows = 1, per = "v" }'),
    (BY_G.format("v"), 3, '{ rows = 1, per = "g" }'),
    (ALL.format("v") + "; SELECT g, count(*) AS c FROM t GROUP BY g", 2, ""),
]
EXACT = {(sql, caps) for sql, _, caps in CASES if "upper" not in sql}
_UNITS = 100


def _policy(rows: int, caps: str = "") -> Policy:
    return policy_of(DECLARED.format(rows=rows, caps=caps))


@pytest.fixture(scope="module")
def con() -> duckdb.DuckDBPyConnection:
    con = duckdb.connect(config={"threads": 1})
    con.execute("CREATE TABLE t (pid INTEGER, g VARCHAR, v VARCHAR, o VARCHAR, n INTEGER, b BOOLEAN)")
    return con


def _compiled(con: duckdb.DuckDBPyConnection, sql: str, policy: Policy) -> Compiled:
    return compiled_of(sql, policy, tables_of(policy, engine_of(con)))


def _worlds(con: duckdb.DuckDBPyConnection, compiled: Compiled, worlds: Sequence[Sequence[tuple[int, Row]]]) -> Any:
    """x (worlds x entries) of some tables, each of rows with their unit's number, by the scans that a run would make.

    All are in one table, whose units are numbered world by world; the scan then groups by world besides.
    """
    rows = [(_UNITS * world + unit, *row) for world, held in enumerate(worlds) for unit, row in held]
    con.execute("DELETE FROM t")
    filled = pa.table([pa.array(column) for column in zip(*rows, strict=True)], names=list("abcdef"))  # noqa: F841
    con.execute("INSERT INTO t SELECT * FROM filled")
    x = np.zeros((len(worlds), compiled.rows.shape[1]), dtype=np.int64)
    world: Column = ("world", Call("//", (Cast(Name(UNIT), "BIGINT"), whole(_UNITS)), "BIGINT"))
    for layout in compiled.layouts:
        asked = scan_of(layout, {"t": TableSource("t")})
        source, of_world = asked.select.source, world
        assert isinstance(source, Select)
        if layout.source.each is None:
            source = with_unit(source)
        else:  # each value once in each world
            assert isinstance(source.source, Select)
            columns, inner, of_world = (world, *source.columns), with_unit(source.source), same("world")[0]
            source = replace(source, columns=columns, source=inner, group_by=source.group_by + 1)
        select = replace(asked.select, columns=(of_world, *asked.select.columns), source=source)
        by_world = replace(asked, select=replace(select, group_by=asked.select.group_by + 1))
        found = engine_module._scan(con, by_world, "memory")
        # What a row of a scan adds does not depend on the others: rows that are alike are worked out once.
        names = [name for name in found if name != "world"]
        kinds, which = np.unique(np.column_stack([found[name] for name in names]), axis=0, return_inverse=True)
        added = np.zeros((len(kinds), x.shape[1]), dtype=object)
        for kind, into in zip(kinds, added, strict=True):
            cells.add(into, layout, dict(zip(names, kind[:, None], strict=True)), 1)
        np.add.at(x, found["world"], added.astype(np.int64)[which.ravel()])
    return x


def changes(con: duckdb.DuckDBPyConnection, compiled: Compiled, most: int, *, alone: bool = False) -> Any:
    """All that a unit changes of x by up to ``most`` rows, and by more than count, beside others with some rows, or
    with none (``alone``). Each row of others is a unit.
    """
    sizes = range(0, 1 if alone else len(ROWS) + 1)
    others = [beside for size in sizes for beside in itertools.combinations(ROWS, size)]
    own: list[tuple[Row, ...]] = [(), ROWS]
    for size in range(1, most + 1):
        own += itertools.combinations_with_replacement(ROWS, size)
    worlds = [[*enumerate(beside, 1), *((0, row) for row in rows)] for beside in others for rows in own]
    x = _worlds(con, compiled, worlds).reshape(len(others), len(own), -1)
    return np.unique((x - x[:, :1]).reshape(-1, x.shape[2]), axis=0)


def claimed(compiled: Compiled, B: Any, noise: str) -> int:
    """The sensitivity of B x that a plan would claim."""
    return sensitivity_of(noise, Factored(np.eye(len(B), dtype=np.int64), sparse.csr_array(B)), compiled.layouts)


def moved(vectors: Any, B: Any, noise: str) -> int:
    """The largest L1, or squared L2, norm of B c."""
    change = abs(vectors @ B.T)
    return int((change if noise == "laplace" else change**2).sum(axis=1).max())


def measurements(size: int) -> Iterator[tuple[Any, str]]:
    """The numbers as they are, and random integers, in both norms."""
    draw = np.random.default_rng(size)
    for B in [np.eye(size, dtype=np.int64), *(draw.integers(-3, 4, size=(1 + i % 3, size)) for i in range(12))]:
        yield from ((B, noise) for noise in ("laplace", "gaussian"))


@pytest.mark.parametrize(("sql", "most", "caps"), CASES)
@pytest.mark.few(every=3)
def test_no_unit_moves_more_than_claimed_and_exact_claims_are_reached(
    con: duckdb.DuckDBPyConnection, sql: str, most: int, caps: str
) -> None:
    compiled = _compiled(con, sql, _policy(most, caps))
    vectors = changes(con, compiled, most)
    exact = compiled.units.listable and not wider_than_true(compiled.layouts, compiled.units)
    assert exact == ((sql, caps) in EXACT)
    for B, noise in measurements(vectors.shape[1]):
        found, claim = moved(vectors, B, noise), claimed(compiled, B, noise)
        assert found == claim if exact else found <= claim
        with pytest.MonkeyPatch.context() as patch:  # corners that are too many to be listed are a wider set
            patch.setattr(values_once, "_MOST_LISTED", 0)
            patch.setattr(contributions, "MOST_LISTED", 0)
            assert found <= claimed(compiled, B, noise)


def test_contributions_of_units_alone_are_too_few(con: duckdb.DuckDBPyConnection) -> None:
    """Values that others have, too, do not count again, in each group by itself."""
    compiled = _compiled(con, CASES[-1][0], _policy(2))
    every, alone = changes(con, compiled, 2), changes(con, compiled, 2, alone=True)
    assert any(moved(every, B, noise) > moved(alone, B, noise) for B, noise in measurements(every.shape[1]))


def test_without_the_freedom_of_each_group_a_unit_moves_more_than_claimed(
    con: duckdb.DuckDBPyConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fullest(limits: Sequence[int], rows: int, most: int) -> list[dict[int, int]]:
        found = values_once.extremes(limits, rows, most) or []
        return [one for one in found if sum(one.values()) == min(rows, sum(limits))]

    monkeypatch.setattr(units, "extremes", fullest)
    compiled = _compiled(con, CASES[0][0], _policy(3))
    vectors = changes(con, compiled, 3)
    assert any(moved(vectors, B, noise) > claimed(compiled, B, noise) for B, noise in measurements(vectors.shape[1]))


def test_corners_are_as_far_as_all_that_they_enclose() -> None:
    draw = np.random.default_rng(3)
    for _ in range(60):
        rows, size = int(draw.integers(1, 6)), int(draw.integers(1, 5))
        limits, most = [int(draw.integers(1, rows + 1)) for _ in range(size)], int(draw.integers(1, size + 1))
        held = values_once.extremes(limits, rows, most)
        assert held is not None
        corners = np.array([[one.get(at, 0) for at in range(size)] for one in held])
        inside = np.array([
            c for c in itertools.product(*(range(limit + 1) for limit in limits))
            if 0 < sum(c) <= rows and np.count_nonzero(c) <= most
        ])  # fmt: skip
        assert {tuple(c) for c in corners.tolist()} <= {tuple(c) for c in inside.tolist()}
        B = draw.integers(-3, 4, size=(3, size))
        for noise in ("laplace", "gaussian"):
            assert moved(corners, B, noise) == moved(inside, B, noise)
