"""Values counted once, of tables of single rows: no row moves what is measured by more than is claimed."""

from __future__ import annotations

import random

import duckdb
import numpy as np
import pytest
from helpers import engine_of, exact_answers, policy_of, tables_of, understood

from dpsql.workloads.cells.integers import Factored
from dpsql.workloads.compile.compiled import Compiled, compile_batch
from dpsql.workloads.compile.sensitivity import sensitivity_of

POLICY = policy_of("""
[tables.t]
unit = "row"
[tables.t.columns]
g = { values = ["x", "y"], nulls = false }
a = { lower = 0, upper = 3 }
note = {}
""")
BATCHES = [
    "SELECT count(DISTINCT note) AS n FROM t",
    "SELECT g, count(DISTINCT a) AS n FROM t GROUP BY g",
    "SELECT count(DISTINCT note) AS n, count(DISTINCT a) AS k, count(*) AS c, sum(a) AS s FROM t WHERE a > 0",
    "SELECT count(DISTINCT g) AS n FROM t; SELECT g, count(DISTINCT g) AS k, count(DISTINCT a = 1) FROM t GROUP BY g",
    "SELECT count(DISTINCT lower(note)) AS n FROM t; SELECT g, count(*) AS c FROM t GROUP BY g",
]


def _compiled(con: duckdb.DuckDBPyConnection, batch: str) -> Compiled:
    found = understood(batch, POLICY, tables_of(POLICY, engine_of(con)))
    compiled = compile_batch(found.queries, found.tables)
    assert isinstance(compiled, Compiled)
    return compiled


def _answers(con: duckdb.DuckDBPyConnection, compiled: Compiled, rows: list[tuple[object, ...]]) -> np.ndarray:
    con.execute("DELETE FROM t")
    if rows:
        con.executemany("INSERT INTO t VALUES (?, ?, ?)", rows)
    cells, _ = exact_answers(compiled, POLICY, engine_of(con))
    return np.asarray(cells, dtype=object)


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.few(every=8)
def test_no_row_moves_more_than_claimed(batch: str) -> None:
    con = duckdb.connect()
    con.execute("CREATE TABLE t (g VARCHAR, a INTEGER, note VARCHAR COLLATE NOCASE)")
    compiled = _compiled(con, batch)
    size = compiled.rows.shape[0]
    claims = [
        sensitivity_of(noise, Factored(np.eye(size, dtype=np.int64), compiled.rows), compiled.layouts)
        for noise in ("laplace", "gaussian")
    ]
    draw = random.Random(batch)
    reached = 0.0
    for _ in range(12):
        rows = [
            (draw.choice("xy"), draw.choice([0, 1, 2, 3, 9, None]), draw.choice(["a", "A", "b", "", None]))
            for _ in range(draw.randrange(1, 7))
        ]
        whole = _answers(con, compiled, rows)
        for number in range(len(rows)):
            change = compiled.rows.toarray().astype(object) @ (
                whole - _answers(con, compiled, rows[:number] + rows[number + 1 :])
            )
            L = compiled.common_steps
            moved = abs(change).sum() / (claims[0] * L), (change * change).sum() / (claims[1] * L * L)
            assert max(moved) <= 1
            reached = max(reached, float(moved[0]))
    assert reached >= 0.5  # the search comes near the claim


def test_texts_that_a_collation_makes_equal_are_two_values() -> None:
    con = duckdb.connect()
    con.execute("CREATE TABLE t (g VARCHAR, a INTEGER, note VARCHAR COLLATE NOCASE)")
    compiled = _compiled(con, "SELECT count(DISTINCT note) AS n FROM t")
    answers = _answers(con, compiled, [("x", 1, "a"), ("x", 1, "A"), ("y", 2, "a"), ("y", 2, None)])
    assert (compiled.rows @ answers.astype(np.int64)).tolist() == [2 * compiled.common_steps]
