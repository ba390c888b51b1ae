"""The pipeline without noise, for tests alone: SQL text to exact answers, as Fractions."""

from __future__ import annotations

import contextlib
import functools
import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import duckdb
import numpy as np
import pytest
from scipy import sparse

import dpsql
from dpsql import measure
from dpsql.engines.base import Scan
from dpsql.linalg.exact import product
from dpsql.measure import ConnectionEngine, Engine, FileEngine, Job, TableSource, cells
from dpsql.policy import Policy, check_schema, csv_schema
from dpsql.sql import Answer, Understood, parse, table_of, understand
from dpsql.workloads.cells.integers import Factored
from dpsql.workloads.compile.compiled import Compiled, compile_batch
from dpsql.workloads.expr.batch import CaseKey, Core, KeyOutput, Measured
from dpsql.workloads.expr.batch import Table as Known
from dpsql.workloads.expr.scan import Select, Table
from dpsql.workloads.expr.total import BASE
from dpsql.workloads.expr.values import CountRows, Name

_numbers = itertools.count()
HEADER = 'dataset = "test-1"\n[budget]\nepsilon = 4.0\n'


def repeatable_noise(patch: pytest.MonkeyPatch, seed: int) -> None:
    """The noise of releases is the same in every run of the tests."""
    patch.setattr("dpsql.privacy.noise.os", SimpleNamespace(urandom=random.Random(seed).randbytes))


def unwrapped(text: object) -> str:
    """A text on one line, for sentences that its lines may break."""
    return " ".join(str(text).split())


def settled(con: dpsql.Connection) -> dpsql.Connection:
    """The connection, its schemas read once: for plans over tables that do not change."""
    known = con.schemas()
    con._holdings.schemas = lambda: known  # type: ignore[method-assign]
    return con


@functools.cache
def _instance() -> duckdb.DuckDBPyConnection:
    """Of one thread: no other is missing in a process that was forked."""
    return duckdb.connect(config={"threads": 1})


def scratch() -> duckdb.DuckDBPyConnection:
    """A connection for what leaves no table, in an instance that the tests share: opening one takes 17 ms."""
    return _instance().cursor()


@contextlib.contextmanager
def filled(path: str | Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection to fill a database file, or to change one, in the same instance; the file is closed at its end."""
    name = f"filled_{next(_numbers)}"
    with scratch() as connection:
        connection.execute(f"ATTACH '{path}' AS {name}; USE {name}")
        try:
            yield connection
        finally:
            connection.execute(f"USE memory; DETACH {name}")


def policy_of(tables: str) -> Policy:
    """A policy of the TOML tables given, with a small pure budget."""
    return Policy.parse(HEADER + tables)


def counts_of(source: TableSource, *keys: str) -> Scan:
    """A scan that counts the rows of a table by columns, which it calls a0, a1, and so on."""
    columns = [(f"a{at}", Name(key, BASE)) for at, key in enumerate(keys)]
    return Scan(source.name, (source,), Select((*columns, ("n", CountRows())), Table(source.name), group_by=len(keys)))


@dataclass(frozen=True)
class Exact:
    """A batch compiled and measured without noise: ``answers[i]`` answers row i of W.

    For statements that are one core with keys and linear numbers.
    """

    queries: tuple[Answer, ...]
    compiled: Compiled
    x: list[int]  # in units of 1 / compiled.common_steps
    answers: list[Fraction]

    def columns(self) -> Iterator[tuple[int, str, list[Fraction]]]:
        """Query number, column name and the numbers of every private column."""
        for span in self.compiled.spans:
            yield span.query, span.output.name, self.answers[span.start : span.stop]

    def rows(self, query: int) -> list[tuple[Any, ...]]:
        """The result of a query as tuples; a key is (kind, value) with kind value, other or null."""
        (held,) = self.queries[query].cores
        spans = [span for span in self.compiled.spans if span.query == query]
        shape = [len(key) for key in held.keys]
        out = []
        for row in range(held.rows):
            labels = np.unravel_index(row, shape) if shape else ()
            by_key = {id(key): int(label) for key, label in zip(held.keys, labels, strict=True)}
            out.append(tuple(self._cell(held, column, by_key, spans, row) for column in held.columns))
        return out

    def _cell(self, core: Core, column: Any, by_key: dict[int, int], spans: list[Any], row: int) -> Any:
        if isinstance(column, KeyOutput):
            at = next(i for i, key in enumerate(core.keys) if key == column.key)
            return _key(column, by_key[id(core.keys[at])])
        assert isinstance(column, Measured)
        return self.answers[spans[column.output].start + row]


def _key(column: KeyOutput, label: int) -> tuple[str, Any]:
    domain = column.key
    if isinstance(domain, CaseKey):
        value = domain.labels[0].values[label]
        return ("null", None) if value is None else ("value", value)
    if label == domain.null_index:
        return ("null", None)
    return ("other", None) if label == domain.other_index else ("value", domain.values[label])


@dataclass(frozen=True, eq=False)
class HeldEngine(ConnectionEngine):
    """Without the look for macros, of which a test's own tables have none: it costs more than a scan of few rows."""

    @contextlib.contextmanager
    def _open(self) -> Iterator[tuple[duckdb.DuckDBPyConnection, str]]:
        with contextlib.closing(self.connection.cursor()) as cursor:
            cursor.execute("BEGIN TRANSACTION READ ONLY")
            row = cursor.execute("SELECT current_database()").fetchone()
            yield cursor, str(row[0]) if row else ""
            cursor.execute("ROLLBACK")


def engine_of(database: Path | duckdb.DuckDBPyConnection | None) -> Engine:
    """The engine of a database file, an open connection, or of no database."""
    return HeldEngine(database) if isinstance(database, duckdb.DuckDBPyConnection) else FileEngine(database)


def sources_of(policy: Policy) -> dict[str, TableSource]:
    """The tables of a policy."""
    found = {}
    for name, table in policy.tables.items():
        path, types = policy.source_path(name), csv_schema(table)
        declared = types if table.is_csv else None
        found[name] = TableSource(name, path, declared, pattern=table.is_pattern, declared=types)
    return found


def tables_of(policy: Policy, engine: Engine) -> dict[str, Known]:
    """The tables of a policy with their schemas."""
    schemas = measure.read_schemas(engine, sources_of(policy).values())
    check_schema(policy, schemas)
    return {name: table_of(policy.tables[name], schemas[name]) for name in schemas}


def understood(sql: str, policy: Policy, tables: dict[str, Known]) -> Understood:
    """A batch understood."""
    return understand(parse(sql), policy, tables)


def compiled_of(sql: str, policy: Policy, tables: dict[str, Known]) -> Compiled:
    """A batch understood and compiled."""
    found = understood(sql, policy, tables)
    return compile_batch(found.queries, found.tables)


def job_of(compiled: Compiled, policy: Policy) -> Job:
    """A job that measures x itself; it has no noise and no charge, so no ledger takes it."""
    eye = sparse.csr_array(sparse.eye_array(compiled.rows.shape[1], dtype=np.int64, format="csr"))
    nothing: Any = None
    return Job(
        layouts=compiled.layouts,
        integers=Factored(eye, eye),
        common_steps=compiled.common_steps,
        sensitivity=1,
        charge=nothing,
        schemas={},
        sources=sources_of(policy),
        description={},
    )


def exact(sql: str, policy: Policy, database: Path | duckdb.DuckDBPyConnection | None) -> Exact:
    """Compile a batch, scan once, and apply W to the exact x. Test code only."""
    engine = engine_of(database)
    found = understood(sql, policy, tables_of(policy, engine))
    compiled = compile_batch(found.queries, found.tables)
    x, answers = exact_answers(compiled, policy, engine)
    return Exact(found.answers, compiled, x, answers)


def exact_answers(compiled: Compiled, policy: Policy, engine: Engine) -> tuple[list[int], list[Fraction]]:
    """Scan once and apply W to the exact x: x, and the answers with their constants."""
    job = job_of(compiled, policy)
    x = cells.observed(job, engine, [0] * compiled.rows.shape[1])
    in_steps = product(compiled.rows, x, 512)
    answers = [
        # A scale is a ratio of small integers that passed through a float.
        Fraction(float(s)).limit_denominator(10**9) * value / compiled.common_steps
        for s, value in zip(compiled.scale, in_steps, strict=True)
    ]
    for span in compiled.spans:
        for row in range(span.start, span.stop):
            answers[row] += span.output.constant
    return x, answers
