"""Tables of counts that a release shows, read back by what its batch means: which groups of which columns they count.

A result is used as far as it shows what was measured: a column that is COUNT(*) over the rows of one table, for every
combination of its keys' groups. HAVING, LIMIT and joins of results take groups away; such results are left out, each
with its reason. Post-processing: the policy, the column types and what was released.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from dpsql.common.arrays import Floats, Ints, Values
from dpsql.release import ReleaseRecord, ReleaseTable
from dpsql.sql import Answer
from dpsql.sql.outer.answers import Understood
from dpsql.sql.outer.core_tables import core_columns
from dpsql.sql.outer.relation import Selected, United
from dpsql.workloads.expr.batch import CaseKey, Core, Key, KeyOutput, Measured
from dpsql.workloads.expr.conditions import TRUE, LineAtom
from dpsql.workloads.expr.regions import KeyDomain


@dataclass(frozen=True, eq=False)
class CountTable:
    """Counts of the rows of ``table`` by the groups of ``keys``, with their standard errors where these are shown."""

    result: str
    table: str
    keys: tuple[KeyDomain | CaseKey, ...]
    counts: Floats = field(repr=False)
    stderr: Floats | None = field(repr=False)


class _LeftOutError(Exception):
    """Why a result, or a part of it, is no table of counts."""


def counts_of(record: ReleaseRecord, batch: Understood) -> tuple[list[CountTable], list[str]]:
    """The tables of counts of a release, and why other results are left out."""
    found: list[CountTable] = []
    left_out: list[str] = []
    for answer, table in zip(batch.answers, record.tables, strict=True):
        try:
            if not table.listed:
                raise _LeftOutError("it holds all ranges of a line")
            for core, columns in _parts(answer, table):
                found += _counted(table.name, core, columns, batch)
        except _LeftOutError as reason:
            left_out.append(f"{table.name}: {reason}")
    return found, left_out


def _parts(answer: Answer, table: ReleaseTable) -> Iterator[tuple[Core, dict[str, Values]]]:
    """The noisy tables behind a result, with their columns, by the names that these have there, as it shows them."""
    held = {name: values for name, _, values in table.columns}
    if answer.outer is None:
        yield answer.cores[0], held
        return
    outer = answer.outer
    if not isinstance(outer, Selected) or outer.distinct or len(outer.sources) != 1:
        raise _LeftOutError("its SQL does more than show what was counted")
    (source,) = outer.sources
    if not isinstance(source, United):
        raise _LeftOutError("its SQL does more than show what was counted")
    shown = {}
    for item, info in zip(outer.items, outer.columns, strict=True):
        beside = zip(info.companions, item.companions, strict=True)
        for name, sql in ((info.name, item.sql), *((name, sql) for (_, name), (_, sql) in beside)):
            if name in held:
                shown[sql.removeprefix('"').removesuffix('"')] = held[name]
    cores = {core.name: core for core in answer.cores}
    mine = [cores[part.name] for part in source.tables]
    if len(mine) > 1 and (sum(core.rows for core in mine) != len(table) or outer.order):
        raise _LeftOutError(
            "its groupings are filtered or sorted"
        )  # where NULL is a group and where it is none is unknown
    begin = 0
    for core in mine:
        end = begin + core.rows if len(mine) > 1 else len(table)
        yield core, {name: values[begin:end] for name, values in shown.items()}
        begin = end


def _counted(result: str, core: Core, columns: dict[str, Values], batch: Understood) -> Iterator[CountTable]:
    infos = core_columns(core)
    for column, info in zip(core.columns, infos, strict=True):
        if not isinstance(column, Measured) or not core.outputs[column.output].counts or column.name not in columns:
            continue
        query = core.queries[core.places[column.output][0]]
        source = batch.tables[query.table].source
        terms = core.outputs[column.output].terms
        if source is not None and source.counts_units:
            raise _LeftOutError("it counts units, not rows")
        if len(terms) != 1 or terms[0].coefficient != 1:
            raise _LeftOutError("a number is no plain COUNT(*)")
        if not _is_everywhere(terms[0].condition):
            raise _LeftOutError("its WHERE leaves rows out")
        keys = tuple(_plain(key) for key in core.keys)
        place = _places(core, keys, columns)
        counts = np.array([np.nan if value is None else value for value in columns[column.name]], dtype=np.float64)
        if len(counts) != core.rows or np.isnan(counts).any() or len(np.unique(place)) != core.rows:
            raise _LeftOutError("it does not show every group")
        shape = tuple(len(key) for key in keys)
        errors = columns.get(dict(info.companions).get("_stderr", ""))
        yield CountTable(result, query.table, keys, _laid(counts, place, shape), _deviations(errors, place, shape))
        return
    raise _LeftOutError("it shows no COUNT(*)")


def _is_everywhere(condition: object) -> bool:
    """Whether a condition holds for all rows, but those whose references lead nowhere."""
    return condition == TRUE or (isinstance(condition, LineAtom) and condition.column.endswith(" found"))


def _plain(key: Key) -> KeyDomain | CaseKey:
    if not key.listed:
        raise _LeftOutError("it holds all ranges of a line")
    return key


def _places(core: Core, keys: Sequence[KeyDomain | CaseKey], columns: dict[str, Values]) -> Ints:
    """The cell of each row by what its key columns say."""
    infos = core_columns(core)
    place = np.zeros(core.rows, dtype=np.int64)
    for key in keys:
        marks: list[Values] = []
        groups: list[list[object]] = [[] for _ in range(len(key))]
        for column, info in zip(core.columns, infos, strict=True):
            if not isinstance(column, KeyOutput) or not (column.key is key or column.key == key):
                continue
            beside = dict(info.companions)
            named = [info.name, *([beside["_other"]] if "_other" in beside else [])]
            if any(name not in columns for name in named):
                continue
            marks += [columns[name] for name in named]
            for group, value, other in zip(groups, key.labels[column.label].values, key.others, strict=True):
                group += [value, other] if "_other" in beside else [value]
        known = {tuple(group): number for number, group in enumerate(groups)}
        if len(known) != len(key):
            raise _LeftOutError("it does not tell its groups apart")
        rows = [known.get(row, -1) for row in zip(*marks, strict=True)] if marks else [0] * core.rows
        if len(rows) != core.rows or min(rows, default=0) < 0:
            raise _LeftOutError("it does not show every group")
        place = place * len(key) + np.array(rows, dtype=np.int64)
    return place


def _laid(values: Floats, place: Ints, shape: tuple[int, ...]) -> Floats:
    out = np.zeros(values.shape)
    out[place] = values
    return out.reshape(shape)


def _deviations(errors: Values | None, place: Ints, shape: tuple[int, ...]) -> Floats | None:
    if errors is None:
        return None
    return _laid(np.array([0.0 if value is None else value for value in errors], dtype=np.float64), place, shape)
