"""The results of a release in all replicates, one table a result: replicate 0 is the release, 1, 2, ... are drawn.

Numbers that a batch measures move by R z*; formulas and quantiles are worked out of these as the release did; what a
statement does afterwards runs over all replicates (``partitioned``). Columns of errors move along with their number:
``c_stderr`` stays, ``c_low`` and ``c_high`` keep their distance, which is exact but for formulas. What a test says
stays, too: its law includes the noise.

Of a long line, all ranges would be too many in all replicates, and only those that a query reads are made. A range
needs two prefix sums, so that of a line whose ranges a query names few sums matter. Conditions of WHERE, and of joins
that keep rows of both sides, that say something of the columns of one table alone hold for every row of it that the
query reads; the places at which these ranges begin and stop are all that its replicates need. The conditions stay in
the query, so that more places change nothing.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, cast

import duckdb
import numpy as np
import scipy.sparse as sp
from sqlglot import exp
from sqlglot.errors import SqlglotError

from dpsql.common.arrays import Floats, Ints
from dpsql.common.quoting import identifier
from dpsql.errors import NotSupportedError, SQLError
from dpsql.reconstruct import evaluate
from dpsql.reconstruct.combined import White
from dpsql.reconstruct.quantiles import replicated
from dpsql.release import RangeTable, ReleaseTable
from dpsql.release.columns import Coded, Numbers, coded, fetched, stacked
from dpsql.release.limits import QUERY_SECONDS
from dpsql.release.range_table import write_ranges
from dpsql.running.minimum import Mask, hidden
from dpsql.running.result_tables import Estimates, Planned, days_shown
from dpsql.sql import Answer
from dpsql.sql.outer.core_tables import core_columns
from dpsql.sql.outer.relation import ERRORS, HIDDEN, gathered
from dpsql.sql.outer.sandbox import Sandbox
from dpsql.workloads.compile.line_batch import Lined
from dpsql.workloads.expr.batch import Core, Derived, KeyOutput, Measured, Ranked
from dpsql.workloads.expr.formulas import has_its_law

from .law import Law
from .lineage import Columns, qualified
from .partitioned import REPLICATE, Query, Table, parsed, table_of

_UNIT = White("gaussian", 1.0)
Laid: TypeAlias = tuple[str, str, Any]
"""A column: its name, DuckDB type and values."""


@dataclass(frozen=True, eq=False)
class Stacked(Table):
    """A result in all replicates, one below the other. ``companions``: columns that say how far others may be off."""

    companions: frozenset[str] = frozenset()


def results_of(
    law: Law, count: int, seconds: float, *, sample: bool = False, places: Ints | None = None
) -> dict[str, Stacked]:
    """All results of a release in ``count`` replicates, by name; ``sample``: of other samples of rows, too.

    ``places``: of all ranges of a line, those that begin and stop at these alone. NotSupportedError where one cannot
    be made again.
    """
    estimates = law.values(count, sample=sample, places=places)
    planned, compiled = cast("Planned", law.combination), law.combination.compiled
    if isinstance(compiled, Lined) and compiled.line.family == "ranges":
        return _of_ranges(law, planned, compiled, estimates, places)
    cores = iter(planned.cores)
    made: dict[str, Stacked] = {}
    for answer in planned.queries:
        noisy = {}
        for _ in answer.cores:
            core, slices = next(cores)
            noisy[core.name] = _core(planned, core, slices, estimates)
        made[answer.name] = next(iter(noisy.values())) if answer.outer is None else _after(answer, noisy, made, seconds)
    shown = {}
    for table, answer in zip(law.record.listed, planned.queries, strict=False):
        shown[answer.name] = _as_shown(table, made[answer.name])
    return shown


def _of_ranges(law: Law, planned: Planned, compiled: Lined, sums: Floats, places: Ints | None) -> dict[str, Stacked]:
    """Results of all ranges: replicates are the groups of one more key, so that one view has the ranges of them all."""
    times = len(sums)
    made: dict[str, Stacked] = {}
    each = len(compiled.line)
    views = [table for table in law.record.tables if not table.listed]
    for released, (core, slices) in zip(views, planned.cores, strict=True):
        table = released if places is None else released.at(places)
        parts = [slices[column.output] for column in core.columns if isinstance(column, Measured)]
        numbers = []
        for number, part in zip(table.numbers, parts, strict=True):
            moved = sums[1:, part.start // each : part.stop // each].ravel()
            both = Numbers(np.concatenate([number.sums.data, moved]))
            numbers.append(replace(number, sums=both, scale=number.scale * times))
        which = tuple(np.repeat(np.arange(times), table.groups).tolist())
        keys = [(values * times, is_other * times) for values, is_other in table.keys]
        held = replace(
            table,
            shown=((REPLICATE, "BIGINT", ("key", len(keys))), *table.shown),
            numbers=tuple(numbers),
            keys=(*keys, (which, (False,) * len(which))),
        )
        beside = frozenset(name for name, _, (part, _) in table.shown if f"_{part}" in ERRORS)
        columns: list[Laid] = [(name, kind, ()) for name, kind, _ in held.shown]
        made[table.name] = Stacked(columns, table.noisy, held, beside)
    return made


def _as_shown(table: ReleaseTable, stacked: Stacked) -> Stacked:
    """The columns that the release shows; with errors or without."""
    names = [name for name, _, _ in table.columns]
    held = {name: column for name, *column in stacked.columns}
    if not set(names) <= held.keys():
        raise _failed(table.name)
    noisy = dict(stacked.noisy)
    columns = [(REPLICATE, *held[REPLICATE]), *((name, *held[name]) for name in names)]
    return Stacked(columns, [(name, noisy[name]) for name in names], companions=stacked.companions & set(names))


def _failed(name: str) -> NotSupportedError:
    return NotSupportedError(
        f"{name} shows the numbers under its statement, which failed on what came out; its own columns of errors stay, "
        "so leave errors out"
    )


def _core(planned: Planned, core: Core, slices: Sequence[slice], estimates: Floats) -> Stacked:
    """A noisy table in all replicates."""
    times = len(estimates)
    first: dict[str, tuple[str, Any]] = {
        name: (kind, values) for name, kind, values in Estimates(planned, estimates[0]).columns(core, slices)
    }
    columns: list[Laid] = []
    noisy: list[tuple[str, bool]] = []
    companions: set[str] = set()
    groups = 1
    for column, info in zip(core.columns, core_columns(core), strict=True):
        kind, held = first[info.name]
        groups = len(held)
        if isinstance(column, KeyOutput):
            for name in (info.name, *(beside for _, beside in info.companions)):
                columns.append((name, first[name][0], _tiled(first[name][1], times)))
                noisy.append((name, False))
            continue
        small = None if core.minimum is None else hidden(core, column, estimates[0], planned, slices)
        still = isinstance(column, Derived) and has_its_law(column.formula)
        moved = _tiled(held, times) if still else _replicates(planned, core, column, slices, estimates, held, small)
        columns.append((info.name, kind, moved))
        noisy.append((info.name, not still))
        for suffix, name in info.companions:
            beside = _tiled(first[name][1], times)
            if suffix in HIDDEN:  # what the release shows, whatever noise would have shown
                columns.append((name, first[name][0], beside))
                noisy.append((name, False))
                continue
            if suffix != "_stderr" and isinstance(moved, Numbers) and isinstance(beside, Numbers):
                shift = moved.data - np.tile(held.data, times)
                beside = Numbers(beside.data + shift, beside.null)
            columns.append((name, first[name][0], beside))
            noisy.append((name, suffix != "_stderr"))
            companions.add(name)
    which = Coded(tuple(range(times)), np.repeat(np.arange(times, dtype=np.int32), groups))
    return Stacked([(REPLICATE, "BIGINT", which), *columns], noisy, companions=frozenset(companions))


def _replicates(
    planned: Planned,
    core: Core,
    column: Measured | Derived | Ranked,
    slices: Sequence[slice],
    estimates: Floats,
    first: Numbers | Coded,
    small: Mask | None,
) -> Numbers | Coded:
    """A private column in all replicates, the first being that of the release; ``small`` numbers are in none."""
    times = len(estimates)
    if isinstance(column, Measured):
        found = estimates[:, slices[column.output]] + float(core.outputs[column.output].constant)
    elif isinstance(column, Derived):
        parts = [estimates[:, part] + float(o.constant) for part, o in zip(slices, core.outputs, strict=True)]
        stack = np.stack(parts, axis=2).reshape(-1, len(parts))
        exact = sp.csr_array((stack.size, 1))  # without error, whatever the noise, as values alone are needed
        certain = np.tile(np.stack([planned.errors[part] == 0 for part in slices], axis=1), (times, 1))
        found = evaluate(column.formula, stack, exact, _UNIT, bounds=column.bounds, certain=certain).value
    else:
        prefixes = [slices[output] for output in column.prefixes]
        counts = np.stack([estimates[:, part] for part in prefixes], axis=2)
        rows, divisor = planned.answers.rows(prefixes, planned.noise), planned.compiled.common_steps
        found = replicated(column, counts, rows, planned.noise, divisor=divisor)
    kind = column.type if isinstance(column, Ranked) else "TIMESTAMP" if isinstance(first, Coded) else "DOUBLE"
    if kind != "DOUBLE":
        dates = days_shown(found.ravel(), kind)
        shown = np.tile([date is not None for date in first.values()], times)
        return coded(date if seen else None for date, seen in zip(dates, shown.tolist(), strict=True))
    found = found.reshape(times, -1)
    if small is not None:
        found[:, small] = np.nan
    assert isinstance(first, Numbers)  # noqa: S101 - as every number that is no date
    if isinstance(column, Ranked) and first.null is not None:
        found[:, first.null] = np.nan
    found[0] = np.where(first.null, np.nan, first.data) if first.null is not None else first.data
    null = np.isnan(found).ravel()
    return Numbers(np.where(null, 0.0, found.ravel()), null if null.any() else None)


def _tiled(column: Numbers | Coded, times: int) -> Numbers | Coded:
    if isinstance(column, Coded):
        return Coded(column.distinct, np.tile(column.codes, times))
    return Numbers(np.tile(column.data, times), None if column.null is None else np.tile(column.null, times))


def _after(answer: Answer, noisy: Mapping[str, Stacked], made: Mapping[str, Stacked], seconds: float) -> Stacked:
    """The result of a statement's outer SQL in all replicates."""
    assert answer.outer is not None  # noqa: S101 - narrows the type for the checker
    relation, unions = gathered(answer.outer)
    tables: dict[str, Table] = {name: made[name] for name in answer.reads}
    left = dict(noisy)
    for name, union in unions.items():
        parts = [left.pop(table.name) for table in union.tables]
        lengths = [len(part.columns[0][2]) for part in parts]
        bits = [
            (bit, "INTEGER", Coded(tuple(values), np.repeat(np.arange(len(values), dtype=np.int32), lengths)))
            for bit, values in union.bits
        ]
        flags = {column: flag for part in parts for column, flag in part.noisy}
        columns = [*stacked([part.columns for part in parts]), *bits]
        tables[name] = Table(columns, [*flags.items(), *((bit, False) for bit, _ in union.bits)])
    tables |= left
    with Sandbox() as sandbox:
        query = Query(parsed(relation.sql(True)), tables)
        query.stack(sandbox)
        said = None
        with contextlib.suppress(SQLError):
            said = query.run(sandbox, "dpsql_result", time.monotonic() + seconds)
        if said is None:
            raise _failed(answer.name)
        kinds = [(name, kind) for name, kind in table_of(sandbox, "dpsql_result")]
        values = fetched(sandbox.connection, "dpsql_result", [(f'"{name}"', kind) for name, kind in kinds])
    columns = [(name, kind, held) for (name, kind), held in zip(kinds, values, strict=True)]
    companions = {name for column in answer.outer.columns for suffix, name in column.companions if suffix in ERRORS}
    noisy_columns = list(zip((name for name, _, _ in columns[1:]), said.noisy, strict=True))
    return Stacked(columns, noisy_columns, companions=frozenset(companions))


def places_read(
    tree: exp.Expr, read: Sequence[tuple[exp.Table, Columns]], chosen: Collection[int], table: RangeTable, most: int
) -> Ints | None:
    """The places from 0 to n that the ranges of ``table`` begin and stop at, as far as a query reads them, rising.

    ``read``: the released tables of the query, of which those numbered ``chosen`` are this one. None where more than
    ``most`` ranges may be read, or the query does not say which.
    """
    clean = {name.lower() for name, noisy in table.noisy if not noisy}
    try:
        whole, _ = qualified(tree, read)
        nodes = {node.name: node for node in whole.find_all(exp.Table)}
        found = [
            (node.alias_or_name, list(_conditions(node, clean)))
            for node in (nodes[f"dpsql_read_{number}"] for number in chosen)
        ]
    except (SqlglotError, KeyError, ValueError, TypeError, AttributeError, RecursionError):
        return None
    low, high = (next((n for n, _, (what, _) in table.shown if what == part), None) for part in ("from", "to"))
    if low is None or high is None:
        return None
    with Sandbox() as sandbox:
        line = replace(table, name="dpsql_line")
        write_ranges(sandbox.connection, line, "main")
        places = [_places(sandbox, line, (low, high), *each, most) for each in found]
    known = [each for each in places if each is not None]
    return np.unique(np.concatenate([[0], *known])).astype(np.int64) if len(known) == len(places) else None


def _places(
    sandbox: Sandbox, line: RangeTable, ends: tuple[str, str], alias: str, conditions: Sequence[exp.Expr], most: int
) -> Ints | None:
    if not conditions:
        return None
    low, high = map(identifier, ends)
    chosen = " AND ".join(f"({each.sql('duckdb', identify=True)})" for each in conditions)
    made = (
        f"CREATE OR REPLACE TABLE dpsql_ranges AS SELECT DISTINCT {low} AS low, {high} AS high "  # noqa: S608
        f"FROM {identifier(line.name)} AS {identifier(alias)} WHERE {chosen} LIMIT {most + 1}"
    )
    points = identifier(line.parts[0])
    with contextlib.suppress(duckdb.Error):
        if sandbox.run(made, QUERY_SECONDS) or sandbox.connection.table("dpsql_ranges").shape[0] > most:
            return None
        found = sandbox.connection.execute(
            f"SELECT place FROM {points} WHERE low IN (SELECT low FROM dpsql_ranges) "  # noqa: S608
            "OR high IN (SELECT high FROM dpsql_ranges)"
        )
        return np.asarray(found.fetchnumpy()["place"], dtype=np.int64)
    return None


def _conditions(node: exp.Table, clean: Collection[str]) -> Iterator[exp.Expr]:
    """What every row that a SELECT reads of a table must hold, of its columns without noise."""
    select = node.find_ancestor(exp.Select)
    beside = node.parent
    if select is None or beside is None or beside.parent is not select:
        return
    joins = select.args.get("joins") or []
    kept = ("", "INNER", "CROSS")
    if any(join.side or join.args.get("method") or (join.kind or "") not in kept for join in joins):
        return
    where = select.args.get("where")
    clauses: list[exp.Expr | None] = [
        where.this if where is not None else None,
        *(join.args.get("on") for join in joins),
    ]
    for clause in (held for held in clauses if held is not None):
        for part in clause.flatten() if isinstance(clause, exp.And) else [clause]:
            named = list(part.find_all(exp.Column))
            mine = all(column.table == node.alias_or_name and column.name.lower() in clean for column in named)
            if named and mine and part.find(exp.Query) is None:
                yield part
