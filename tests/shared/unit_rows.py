"""Rows of units for tests: FROM, WHERE, keys and sums as a compiled batch, scanned exactly. No noise, no ledger."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import duckdb
import numpy as np
import sqlglot
from helpers import engine_of
from scipy import sparse
from sqlglot import exp

from dpsql import measure
from dpsql.linalg.exact import product
from dpsql.measure import Engine, TableSource, cells
from dpsql.measure.reading import scan_of
from dpsql.policy import Policy, check_schema, csv_schema
from dpsql.sql import table_of
from dpsql.sql.resolve.batch_tables import distinct_table, united
from dpsql.sql.resolve.joins import RowScope, read_rows
from dpsql.sql.values.computed import Computed
from dpsql.sql.values.predicates import truth
from dpsql.sql.values.scope import Scope, key_domain
from dpsql.workloads.cells.integers import Factored
from dpsql.workloads.compile.compiled import Compiled, compile_batch
from dpsql.workloads.compile.sensitivity import sensitivity_of
from dpsql.workloads.expr.batch import Output, Query, Table, Term
from dpsql.workloads.expr.conditions import TRUE, And, gather

HEADER = 'dataset = "units-1"\n[budget]\nepsilon = 4.0\n'


@dataclass(frozen=True)
class Ask:
    """``SELECT <keys>, COUNT(*), SUM(<sums>)... FROM ... [WHERE ...] GROUP BY <keys>``; ``distinct``: units instead."""

    source: str
    keys: tuple[str, ...] = ()
    sums: tuple[str, ...] = ()
    distinct: bool = False


def policy_of(tables: str) -> Policy:
    """A policy of the TOML tables given."""
    return Policy.parse(HEADER + tables)


def sources_of(policy: Policy) -> dict[str, TableSource]:
    """All tables of a policy, public ones too."""
    return {
        name: TableSource(name, policy.source_path(name), csv_schema(t) if t.is_csv else None)
        for name, t in policy.tables.items()
    }


def tables_of(policy: Policy, engine: Engine) -> dict[str, Table]:
    """All tables of a policy with their schemas."""
    schemas = measure.read_schemas(engine, sources_of(policy).values())
    check_schema(policy, schemas)
    return {name: table_of(policy.tables[name], schemas[name]) for name in schemas}


def rows_of(source: str, policy: Policy, tables: dict[str, Table]) -> RowScope:
    """The rows of a FROM clause, with its WHERE."""
    select = sqlglot.parse_one(f"SELECT 1 FROM {source}", dialect="duckdb")
    assert isinstance(select, exp.Select)
    return read_rows(select, policy, tables)


def compiled_of(asks: Sequence[Ask], policy: Policy, tables: dict[str, Table]) -> Compiled:
    """The asks as one batch."""
    used, queries = [], []
    for number, ask in enumerate(asks):
        rows = rows_of(ask.source, policy, tables)
        computed = Computed(rows.table)
        condition = rows.condition
        if rows.where is not None:
            condition = gather(And, condition, truth(rows.where, Scope(rows.find, computed, truth)).true)
        columns = [sqlglot.parse_one(key, dialect="duckdb") for key in ask.keys]
        keys = tuple(key_domain(rows.find(node), rows.table, node) for node in columns)  # type: ignore[arg-type]
        table = computed.table()
        outputs = [Output("n", (Term(Fraction(1), condition),))]
        if ask.distinct:
            table = distinct_table(table, condition, keys)
        for name in ask.sums:
            column = rows.find(sqlglot.parse_one(name, dialect="duckdb"))  # type: ignore[arg-type]
            outputs.append(Output(f"s_{name}", (Term(Fraction(1), condition, column.name),)))
        used.append(table)
        queries.append(Query(f"q{number}", table.name, keys, tuple(outputs), 1.0))
    assert TRUE.truth
    return compile_batch(queries, united(used))


def scan(compiled: Compiled, engine: Engine, sources: dict[str, TableSource]) -> list[int]:
    """The exact x, in units of 1 / common_steps."""
    x = np.zeros(compiled.rows.shape[1], dtype=object)
    for layout in compiled.layouts:
        cells.add(x, layout, engine.scan(scan_of(layout, sources)), compiled.common_steps)
    return [int(value) for value in x]


def most_of_claim(batch: Compiled, moves: np.ndarray) -> float:
    """The largest of ``moves`` (count x n), what units change of x in units of 1/L, over what is claimed of it.

    In both norms, for the entries themselves, their sum, and random integers over them.
    """
    n, L, largest = batch.rows.shape[1], batch.common_steps, 0.0
    rng = np.random.default_rng(2)
    for B in (np.eye(n, dtype=np.int64), np.ones((1, n), dtype=np.int64), rng.integers(-3, 4, size=(n, n))):
        change = moves @ B.T.astype(object)
        integers = Factored(np.eye(B.shape[0], dtype=np.int64), sparse.csr_array(B))
        l1 = sensitivity_of("laplace", integers, batch.layouts) * L
        l2 = sensitivity_of("gaussian", integers, batch.layouts) * L**2
        largest = max(largest, abs(change).sum(axis=1).max() / l1, (change * change).sum(axis=1).max() / l2)
    return float(largest)


def answers_of(compiled: Compiled, x: Sequence[int]) -> list[list[Fraction]]:
    """The exact answers of every output, by its groups."""
    in_steps = product(compiled.rows, x, 512)
    scaled = [
        Fraction(float(s)).limit_denominator(10**9) * value / compiled.common_steps
        for s, value in zip(compiled.scale, in_steps, strict=True)
    ]
    return [scaled[span.start : span.stop] for span in compiled.spans]


def exact(asks: Sequence[Ask], policy: Policy, con: duckdb.DuckDBPyConnection) -> list[list[Fraction]]:
    """The exact answers of the asks over an open connection."""
    engine = engine_of(con)
    compiled = compiled_of(asks, policy, tables_of(policy, engine))
    return answers_of(compiled, scan(compiled, engine, sources_of(policy)))


def counted(con: duckdb.DuckDBPyConnection, sql: str) -> list[Any]:
    """The first column of DuckDB's own answer."""
    return [row[0] for row in con.execute(sql).fetchall()]
