"""Answers: from noisy measurements to the tables that a release registers. Post-processing."""

from __future__ import annotations

import datetime as dt
import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import duckdb
import numpy as np
import numpy.typing as npt
from scipy import sparse

from dpsql.plan import Plan
from dpsql.reconstruct import evaluate, quantile, solve
from dpsql.release import ReleaseTable
from dpsql.release.writing import write_table
from dpsql.sql import Answer
from dpsql.sql.outer import ERRORS, ColumnInfo
from dpsql.sql.queries import core_columns
from dpsql.sql.sandbox import Sandbox
from dpsql.sql.selects import distinct_names
from dpsql.workload.batch import CaseKey, Core, CoreColumn, Derived, Key, KeyOutput, Measured, Ranked

Floats = npt.NDArray[np.float64]
Columns = list[tuple[str, str, Any]]
Shown = tuple[ColumnInfo, ...]

_EPOCH = dt.date(1970, 1, 1)


def release_tables(plan: Plan, y: Sequence[int], *, errors: bool = True) -> tuple[ReleaseTable, ...]:
    """The results of a plan from its noisy measurements ``y`` (p Python ints), in batch order.

    A result has the columns that its SELECT lists; each private column ``c`` is followed by
    ``c_stderr``, ``c_low`` and ``c_high`` unless ``errors`` is False, and a key ``k`` with an OTHER
    group by ``k_other``. A derived name that SELECT gives to a column of its own, in any case, gives
    way by a number: ``c_stderr_1``. Least squares with the measured integer strategy: unbiased,
    consistent between all results. Outer SQL runs over these tables in a DuckDB of its own; where it
    fails on the numbers that came out, the result is the noisy table that it was to read.
    """
    compiled = plan.compiled
    values = np.zeros(len(compiled.scale))
    values[compiled.answered] = solve(plan.answers, y, compiled.common_steps)
    return tables_of(plan, values, errors=errors)


def tables_of(plan: Plan, values: Floats, *, errors: bool = True) -> tuple[ReleaseTable, ...]:
    """The results of a plan from estimates ``values`` (m,) of W's rows, constants left out."""
    estimates = _Estimates(plan, values)
    cores = iter(plan.cores)
    made: dict[str, ReleaseTable] = {}
    shown: dict[str, Shown] = {}
    for answer in plan.queries:
        mine = [next(cores) for _ in answer.cores]
        noisy = [(core, estimates.columns(core, slices)) for core, slices in mine]
        if answer.outer is None:
            columns, shown[answer.name] = noisy[0][1], core_columns(noisy[0][0])
        else:
            columns, shown[answer.name] = _after_outer(answer, noisy, made, shown)
        made[answer.name] = ReleaseTable(answer.name, answer.named, tuple(columns))
    return tuple(table if errors else _without_errors(table, shown[name]) for name, table in made.items())


def _without_errors(table: ReleaseTable, shown: Shown) -> ReleaseTable:
    """The result without the columns that say how far its numbers may be off."""
    left_out = {name for column in shown for suffix, name in column.companions if suffix in ERRORS}
    return replace(table, columns=tuple(column for column in table.columns if column[0] not in left_out))


def _after_outer(
    answer: Answer, noisy: Sequence[tuple[Core, Columns]], made: dict[str, ReleaseTable], shown: dict[str, Shown]
) -> tuple[Columns, Shown]:
    """The result of a statement's outer SQL over its noisy tables and earlier results, and what shows what in it.

    It runs with the columns of errors, as a statement may read those of an earlier result.
    """
    assert answer.outer is not None  # noqa: S101 - narrows the type for the checker
    rows: list[Any] = []
    described: list[Any] = []
    failed = False
    with Sandbox() as sandbox:
        for core, columns in noisy:
            write_table(sandbox.connection, core.name, columns)
        for name in answer.reads:
            write_table(sandbox.connection, name, made[name].columns)
        try:
            held = sandbox.connection.execute(f"CREATE TEMP TABLE dpsql_result AS {answer.outer.sql(True)}")
            described = held.execute("DESCRIBE dpsql_result").fetchall()
            rows = held.execute("SELECT * FROM dpsql_result").fetchall()
        except duckdb.Error:
            failed = True
    if failed:  # the numbers are charged and must not be lost to a cast that they do not survive
        if noisy:
            return _titled(*noisy[0])
        return list(made[answer.reads[0]].columns), shown[answer.reads[0]]
    by_column = list(zip(*rows, strict=True)) if rows else [() for _ in described]
    return (
        [(str(d[0]), str(d[1]), tuple(v)) for d, v in zip(described, by_column, strict=True)],
        answer.outer.columns,
    )


def _titled(core: Core, columns: Columns) -> tuple[Columns, Shown]:
    """A noisy table whose columns have the names that a plan gives them, not those that outer SQL reads."""
    titles = distinct_names([_title(column) for column in core.columns])
    titled = replace(
        core, columns=tuple(replace(column, name=name) for column, name in zip(core.columns, titles, strict=True))
    )
    shown = core_columns(titled)
    names = [name for column in shown for name in (column.name, *(companion for _, companion in column.companions))]
    return [(name, kind, values) for name, (_, kind, values) in zip(names, columns, strict=True)], shown


def _title(column: CoreColumn) -> str:
    if not isinstance(column, KeyOutput):
        return column.title or column.name
    return column.key.labels[column.label].name if isinstance(column.key, CaseKey) else column.key.column


@dataclass(frozen=True)
class _Estimates:
    """All estimates of a release, in the order of W's rows."""

    plan: Plan
    values: Floats

    def columns(self, core: Core, slices: Sequence[slice]) -> Columns:
        """The columns of one core's noisy table, companions beside them."""
        found: Columns = []
        for column, info in zip(core.columns, core_columns(core), strict=True):
            beside = dict(info.companions)
            if isinstance(column, KeyOutput):
                kind, values, others = _key_values(core, column)
                found.append((info.name, kind, values))
                if "_other" in beside:
                    found.append((beside["_other"], "BOOLEAN", others))
                continue
            value, error, low, high, kind = self._number(core, column, slices)
            found.append((info.name, kind, value))
            found.append((beside["_stderr"], "DOUBLE", error))
            found.append((beside["_low"], kind, low))
            found.append((beside["_high"], kind, high))
        return found

    def _number(
        self, core: Core, column: Measured | Derived | Ranked, slices: Sequence[slice]
    ) -> tuple[Any, Any, Any, Any, str]:
        """(value, standard error, low, high, DuckDB type) of a private column."""
        plan = self.plan
        if isinstance(column, Measured):
            part = slices[column.output]
            value = self.values[part] + float(core.outputs[column.output].constant)
            width = plan.widths[part]
            return value, plan.errors[part], value - width, value + width, "DOUBLE"
        common = plan.compiled.common_steps
        if isinstance(column, Derived):
            estimates = np.stack(
                [self.values[part] + float(o.constant) for part, o in zip(slices, core.outputs, strict=True)], axis=1
            )
            rows = self._rows(slices)
            done = evaluate(
                column.formula, estimates, rows, plan.noise, plan.alpha, bounds=column.bounds, divisor=common
            )
            return _nulls(done.value), _nulls(done.stderr), _nulls(done.low), _nulls(done.high), "DOUBLE"
        parts = [slices[output] for output in column.prefixes]
        prefixes = np.stack([self.values[part] for part in parts], axis=1)
        ranks = quantile(column.q, column.values, prefixes, self._rows(parts), plan.noise, plan.alpha, divisor=common)
        if column.type == "DATE":
            dates = [[_EPOCH + dt.timedelta(days=int(d)) for d in v] for v in (ranks.value, ranks.low, ranks.high)]
            return dates[0], ranks.stderr, dates[1], dates[2], "DATE"
        return ranks.value, ranks.stderr, ranks.low, ranks.high, "DOUBLE"

    def _rows(self, slices: Sequence[slice]) -> Any:
        """The reconstruction rows of outputs, one output below the other; zeros where nothing was measured."""
        return sparse.vstack([self._whole[part] for part in slices], format="csr")

    @functools.cached_property
    def _whole(self) -> Any:
        compiled = self.plan.compiled
        answers = sparse.csr_array(self.plan.answers)
        total, answered = len(compiled.scale), compiled.answered
        place = sparse.csr_array(
            (np.ones(len(answered)), (answered, np.arange(len(answered)))), shape=(total, len(answered))
        )
        return sparse.csr_array(place @ answers)


def _nulls(values: Floats) -> list[float | None]:
    """NaN as NULL."""
    return [None if value != value else float(value) for value in values]


def _key_values(core: Core, column: KeyOutput) -> tuple[str, list[Any], list[bool]]:
    """A key's column in every row of the table, and whether the row is of its OTHER group."""
    labels = _labels(core, column.key)
    key = column.key
    if isinstance(key, CaseKey):
        label = key.labels[column.label]
        others = key.labels[1].values if len(key.labels) > 1 and key.labels[1].name == "other" else ()
        return label.type, [label.values[at] for at in labels], [bool(others[at]) for at in labels] if others else []
    values = [key.values[at] if at < len(key.values) else None for at in labels]
    return key.type, values, [at == key.other_index for at in labels]


def _labels(core: Core, key: Key) -> list[int]:
    """The group of this key in every row of the table; the last key runs fastest."""
    at = next(i for i, other in enumerate(core.keys) if other is key or other == key)
    shape = [len(other) for other in core.keys]
    index = np.arange(len(key)).reshape([-1 if i == at else 1 for i in range(len(shape))])
    return [int(label) for label in np.broadcast_to(index, shape).ravel()]
