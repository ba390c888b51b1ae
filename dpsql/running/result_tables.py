"""Answers: from noisy measurements to the tables that a release registers. Post-processing."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import singledispatch
from typing import Protocol, cast

import numpy as np

from dpsql.common.arrays import Array, Floats, Values
from dpsql.common.quoting import distinct_names
from dpsql.errors import IntegrityError, InterfaceError, SQLError
from dpsql.planning.plan import Plan
from dpsql.reconstruct import RangeErrors, RowsOfAnswers, evaluate, quantile, rank_rows
from dpsql.reconstruct.derived import Derived as Evaluated
from dpsql.reconstruct.spread import NoiseModel
from dpsql.release import RangeNumber, RangeTable, ReleaseTable, ResultTable
from dpsql.release.columns import Coded, Numbers, coded
from dpsql.release.payload import Measurement
from dpsql.running import post_process as afterwards
from dpsql.running.feasible import FromZero, feasible, holding
from dpsql.running.minimum import Mask, Scaled, hidden
from dpsql.running.post_process import OuterSQL, after_the_noise
from dpsql.sql import Answer
from dpsql.sql.outer.core_tables import core_columns
from dpsql.sql.outer.relation import ERRORS, ColumnInfo
from dpsql.workloads.compile.compiled import Batch
from dpsql.workloads.compile.line_batch import Lined
from dpsql.workloads.expr.batch import Core, CoreColumn, Derived, Key, KeyOutput, Measured, RangeKey, Ranked
from dpsql.workloads.expr.formulas import Bounds, Dated, Formula, narrowed

Columns = list[tuple[str, str, Values]]
Shown = tuple[ColumnInfo, ...]
_Values = Values | Floats
_Column = tuple[_Values, _Values, _Values, _Values, str]
"""(value, standard error, low, high, DuckDB type) of a private column."""

_EPOCH = dt.date(1970, 1, 1)


@singledispatch
def release_tables(
    plan: Plan, y: Sequence[int], *, errors: bool = True, rehearsal: bool = False, estimates: str = "unbiased"
) -> tuple[ResultTable, ...]:
    """The results of a plan from its noisy measurements ``y`` (p Python ints), in batch order.

    A result has the columns that its SELECT lists; each private column ``c`` is followed by
    ``c_stderr``, ``c_low`` and ``c_high`` unless ``errors`` is False, and a key ``k`` with an OTHER
    group by ``k_other``. A derived name that SELECT gives to a column of its own, in any case, gives
    way by a number: ``c_stderr_1``. Least squares with the measured integer strategy: unbiased,
    consistent between all results. Outer SQL runs over these tables in a DuckDB of its own; where it
    fails on the numbers that came out, takes too long or makes too much, the result is the noisy table that it was
    to read. ``rehearsal``: ``y`` is made up and nothing is charged yet, so that outer SQL that takes too long or
    makes too much is an SQLError instead. ``estimates``: "unbiased", or one of ``dpsql.running.feasible``.
    """
    if isinstance(plan.compiled, Lined) and plan.compiled.line.family == "ranges":
        sums = plan.answers.estimate(y, plan.compiled.common_steps)
        return range_tables(cast("Planned", plan), plan.compiled, sums, errors=errors)
    values = plan.answers.estimate(y, plan.compiled.common_steps)
    possible = None if estimates == "unbiased" and not plan.estimated else feasible(plan, y, estimates)
    held = cast("Planned", plan.after(y))  # its errors are arrays, as it has no ranges
    return tables_of(held, values, errors=errors, rehearsal=rehearsal, possible=possible)


def tables_again(
    plan: Plan, measurement: Measurement, *, errors: bool = True, estimates: str = "unbiased"
) -> tuple[ResultTable, ...]:
    """The results of a plan from what an earlier release of the same batch measured. Free.

    Raises IntegrityError where that was measured with another strategy than the plan's: two searches on machines or
    libraries that round differently may end with other integers. What rests on earlier releases is read with the
    integers that were kept of each.
    """
    if not plan.rests_on and plan.strategy.measured.digest() != measurement.strategy:
        raise IntegrityError(
            "the earlier release of this batch was measured with another strategy than this plan has, as other "
            "libraries or another number of threads may choose; plan where it was released, or pay again with fresh"
        )
    return release_tables(plan, measurement.y, errors=errors, estimates=estimates)


class Planned(Protocol):
    """What results are made from: a `Plan`, or the questions to a local release."""

    @property
    def queries(self) -> tuple[Answer, ...]: ...
    @property
    def cores(self) -> tuple[tuple[Core, tuple[slice, ...]], ...]: ...
    @property
    def errors(self) -> Floats: ...
    @property
    def widths(self) -> Floats: ...
    @property
    def noise(self) -> NoiseModel: ...
    @property
    def alpha(self) -> float: ...
    @property
    def answers(self) -> RowsOfAnswers: ...
    @property
    def compiled(self) -> Scaled: ...


class Possible(Protocol):
    """What is shown in place of unbiased numbers: values (m,) in their order, and the ends of their intervals."""

    @property
    def values(self) -> Floats: ...
    def interval(self, part: slice, constant: float, low: Floats, high: Floats, /) -> tuple[Floats, Floats]: ...


def tables_of(
    plan: Planned,
    values: Floats,
    *,
    errors: bool = True,
    rehearsal: bool = False,
    possible: Possible | None = None,
    groups: Array | None = None,
) -> tuple[ReleaseTable, ...]:
    """The results of a plan from estimates ``values`` (m,) of W's rows, constants left out; see ``release_tables``.

    ``possible``: what is shown instead of them, beside their errors (``dpsql.running.feasible``). ``groups``: the
    numbers of the groups that are there, where not all are.
    """
    room = afterwards.MOST_BYTES
    estimates = Estimates(plan, values, possible, groups)
    cores = iter(plan.cores)
    made: dict[str, ReleaseTable] = {}
    shown: dict[str, Shown] = {}
    with OuterSQL() as running:
        for answer in plan.queries:
            mine = [next(cores) for _ in answer.cores]
            noisy = [(core, estimates.columns(core, slices)) for core, slices in mine]
            if answer.outer is None:
                columns, shown[answer.name] = noisy[0][1], core_columns(noisy[0][0])
            else:
                columns, shown[answer.name], used = _after_outer(answer, noisy, made, shown, room, rehearsal, running)
                room -= used
            made[answer.name] = ReleaseTable(answer.name, answer.named, tuple(columns))
    return tuple(table if errors else _without_errors(table, shown[name]) for name, table in made.items())


def _without_errors(table: ReleaseTable, shown: Shown) -> ReleaseTable:
    """The result without the columns that say how far its numbers may be off."""
    left_out = {name for column in shown for suffix, name in column.companions if suffix in ERRORS}
    return replace(table, columns=tuple(column for column in table.columns if column[0] not in left_out))


def _after_outer(
    answer: Answer,
    noisy: Sequence[tuple[Core, Columns]],
    made: dict[str, ReleaseTable],
    shown: dict[str, Shown],
    room: int,
    rehearsal: bool,
    running: OuterSQL,
) -> tuple[Columns, Shown, int]:
    """The result of a statement's outer SQL over its noisy tables and earlier results, what shows what, its bytes.

    It runs with the columns of errors, as a statement may read those of an earlier result. ``room``: bytes of text
    that it may make.
    """
    assert answer.outer is not None  # noqa: S101 - narrows the type for the checker
    held = {core.name: columns for core, columns in noisy}
    columns, refused, size = after_the_noise(
        *(answer.outer, held, {name: made[name].columns for name in answer.reads}, room, running)
    )
    if refused and rehearsal:
        raise SQLError(
            f"{answer.name}: what is left to do after the noise {refused} (nothing was charged); simplify it, or "
            "release the groups alone and query the release",
            code="too-large",
        )
    if columns is not None:
        return columns, answer.outer.columns, size
    # The numbers are charged and must not be lost to a cast that they do not survive.
    if noisy:
        return *_titled(*noisy[0]), 0
    return list(made[answer.reads[0]].columns), shown[answer.reads[0]], 0


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
    return column.key.labels[column.label].name


@dataclass(frozen=True)
class Estimates:
    """All estimates ``values`` (m,) of a release, in the order of W's rows, as the numbers of its noisy tables."""

    plan: Planned
    values: Floats
    possible: Possible | None = None
    groups: Array | None = None
    _once: dict[object, Evaluated] = field(default_factory=dict, init=False, repr=False, compare=False)

    def columns(self, core: Core, slices: Sequence[slice]) -> Columns:
        """The columns of one core's noisy table, companions beside them."""
        found: Columns = []
        for column, info in zip(core.columns, core_columns(core), strict=True):
            beside = dict(info.companions)
            if isinstance(column, KeyOutput):
                kind, values, others = _key_values(core.keys, column.key, column.label, self.groups)
                found.append((info.name, kind, values))
                if "_other" in beside:
                    found.append((beside["_other"], "BOOLEAN", others))
                continue
            value, error, low, high, kind = self._number(core, column, slices)
            mark: Columns = []
            if core.minimum is not None:
                small = hidden(core, column, self.values, self.plan, slices)
                value, error, low, high = (_without(numbers, small) for numbers in (value, error, low, high))
                mark = [(beside["_hidden"], "BOOLEAN", coded(small.tolist()))]
            found.append((info.name, kind, _packed(value)))
            found.append((beside["_stderr"], "DOUBLE", _packed(error)))
            found.append((beside["_low"], kind, _packed(low)))
            found.append((beside["_high"], kind, _packed(high)))
            found += mark
        return found

    def _number(self, core: Core, column: Measured | Derived | Ranked, slices: Sequence[slice]) -> _Column:
        """(value, standard error, low, high, DuckDB type) of a private column, as shown."""
        value, error, low, high, kind = self.unbiased(core, column, slices)
        if self.possible is None:
            return value, error, low, high, kind
        if isinstance(column, Measured):
            constant = float(core.outputs[column.output].constant)
            low, high = self.possible.interval(slices[column.output], constant, np.asarray(low), np.asarray(high))
        if isinstance(self.possible, FromZero):
            return value, error, low, high, kind
        value = Estimates(self.plan, self.possible.values).unbiased(core, column, slices)[0]
        return value, error, *holding(value, low, high), kind

    def unbiased(self, core: Core, column: Measured | Derived | Ranked, slices: Sequence[slice]) -> _Column:
        """The same from ``values`` alone."""
        plan = self.plan
        if isinstance(column, Measured):
            part = slices[column.output]
            value = self.values[part] + float(core.outputs[column.output].constant)
            width = plan.widths[part]
            cut: list[Floats] = [value - width, value + width]
            if (limits := _limits(plan, [part])) is not None:
                cut = [np.clip(end, limits[0][:, 0], limits[1][:, 0]) for end in cut]
            return value, plan.errors[part], cut[0], cut[1], "DOUBLE"
        common = plan.compiled.common_steps
        if isinstance(column, Derived):
            formula, used = narrowed(column.formula)
            outputs = core.outputs
            estimates = np.stack([self.values[slices[at]] + float(outputs[at].constant) for at in used], axis=1)
            done = self._evaluated(formula, column.bounds, [slices[at] for at in used], estimates)
            if isinstance(formula, Dated):
                times = [days_shown(days, "TIMESTAMP") for days in (done.value, done.low, done.high)]
                return times[0], done.stderr, times[1], times[2], "TIMESTAMP"
            return done.value, done.stderr, done.low, done.high, "DOUBLE"
        parts = [slices[output] for output in column.prefixes]
        if not parts:  # no value that WHERE leaves
            nothing = np.full(core.rows, np.nan)
            return nothing, nothing, nothing, nothing, column.type
        prefixes = np.stack([self.values[part] for part in parts], axis=1)
        rows = rank_rows(plan.answers, parts, plan.noise)
        ranks = quantile(column, prefixes, rows, plan.noise, plan.alpha, divisor=common)
        empty = (plan.errors[parts[-1]] == 0) & (prefixes[:, -1] == 0)  # by the statement and the policy alone
        error = np.where(empty, np.nan, ranks.stderr)
        ends: list[_Values] = [ranks.value, ranks.low, ranks.high]
        if column.type != "DOUBLE":
            ends = [days_shown(days, column.type) for days in (ranks.value, ranks.low, ranks.high)]
        shown, low, high = (_without(numbers, empty) for numbers in ends)
        return shown, error, low, high, column.type

    def _evaluated(
        self, formula: Formula, bounds: Bounds | None, parts: Sequence[slice], estimates: Floats
    ) -> Evaluated:
        """The formula in every group; what statements ask for again is worked out once."""
        plan = self.plan

        def evaluated() -> Evaluated:
            rows, common = plan.answers.rows(parts, plan.noise), plan.compiled.common_steps
            certain = np.stack([plan.errors[part] == 0 for part in parts], axis=1)
            return evaluate(
                *(formula, estimates, rows, plan.noise, plan.alpha),
                bounds=bounds,
                divisor=common,
                certain=certain,
                limits=_limits(plan, parts),
            )

        matrix = plan.compiled.matrix if isinstance(plan.compiled, Batch) else None
        if matrix is None or not matrix.repeats:
            return evaluated()
        place = matrix.once.place
        key = formula, bounds, tuple(int(place[part.start]) for part in parts), estimates.tobytes()
        if key not in self._once:
            self._once[key] = evaluated()
        return self._once[key]


def days_shown(days: Floats, kind: str) -> list[dt.date | None]:
    """Days since 1970-01-01 as values of DATE, or of TIMESTAMP, to whose microseconds they are rounded; NaN as None."""
    start = _EPOCH if kind == "DATE" else dt.datetime.combine(_EPOCH, dt.time())
    return [None if day != day else start + dt.timedelta(days=day) for day in days.tolist()]


def _limits(plan: Planned, parts: Sequence[slice]) -> tuple[Floats, Floats] | None:
    """What the numbers of ``parts`` can be, each (g x parts), where values are counted; intervals end there."""
    if not isinstance(plan.compiled, Batch) or plan.compiled.ceilings is None:
        return None
    low, high = zip(*(plan.compiled.limits(part) for part in parts), strict=True)
    return np.stack(low, axis=1), np.stack(high, axis=1)


def _without(values: _Values, small: Mask) -> _Values:
    """The numbers, or dates, that are shown; the others NULL."""
    if isinstance(values, np.ndarray) and values.dtype.kind == "f":
        return np.where(small, np.nan, values)
    return [None if left_out else value for value, left_out in zip(values, small.tolist(), strict=True)]


def _packed(values: _Values) -> Numbers | Coded:
    """Numbers, NaN as NULL; dates as codes."""
    if isinstance(values, np.ndarray) and values.dtype.kind == "f":
        null = np.isnan(values)
        return Numbers(np.where(null, 0.0, values), null) if null.any() else Numbers(values)
    return coded(values)


def _key_values(keys: Sequence[Key], key: Key, label: int, groups: Array | None = None) -> tuple[str, Coded, Coded]:
    """A key's column in every row of the table, and whether the row is of its OTHER group."""
    labels = _labels(keys, key, groups)
    if not key.listed:  # prefixes, as their last values
        return key.type, Coded(tuple(key.value(at) for at in range(len(key))), labels), Coded((False,), 0 * labels)
    shown = key.labels[label]
    return shown.type, Coded(shown.values, labels), Coded(key.others, labels)


def _labels(keys: Sequence[Key], key: Key, groups: Array | None) -> Array:
    """The group of this key in every row of the table, or of ``groups`` of it; the last key runs fastest."""
    at = next(i for i, other in enumerate(keys) if other is key or other == key)
    shape = [len(other) for other in keys]
    if groups is not None:
        return np.unravel_index(groups, shape)[at].astype(np.int32)
    index = np.arange(len(key), dtype=np.int32).reshape([-1 if i == at else 1 for i in range(len(shape))])
    return np.ascontiguousarray(np.broadcast_to(index, shape)).ravel()


# -- all ranges of a long line ---------------------------------------------------------------------


def range_tables(plan: Planned, compiled: Lined, sums: Floats, *, errors: bool = True) -> tuple[RangeTable, ...]:
    """The results of a plan of ranges: prefix sums (r, n + 1) instead of rows. Raises InterfaceError."""
    if any(core.minimum is not None for core, _ in plan.cores):
        raise InterfaceError(
            f"the {len(compiled.line):,} groups of {compiled.line.text} are too many for a policy that hides small "
            "counts one by one; ask for coarser ranges"
        )
    return tuple(
        _range_table(plan, compiled.line, sums, answer, core, slices, errors=errors)
        for answer, (core, slices) in zip(plan.queries, plan.cores, strict=True)
    )


def _range_table(
    plan: Planned, line: RangeKey, sums: Floats, answer: Answer, core: Core, slices: Sequence[slice], *, errors: bool
) -> RangeTable:
    errors_of, widths_of = cast("tuple[RangeErrors, RangeErrors]", (plan.errors, plan.widths))  # it is a plan of ranges
    others = [key for key in core.keys if key != line]
    shown: list[tuple[str, str, tuple[str, int]]] = []
    numbers: list[RangeNumber] = []
    for column, info in zip(core.columns, core_columns(core), strict=True):
        beside = dict(info.companions)
        if isinstance(column, KeyOutput) and column.key == line:
            shown.append((info.name, line.type, ("from" if column.label == 0 else "to", 0)))
        elif isinstance(column, KeyOutput):
            at = next(number for number, key in enumerate(others) if key is column.key or key == column.key)
            shown.append((info.name, _key_values(others, column.key, column.label)[0], ("key", at)))
            if "_other" in beside:
                shown.append((beside["_other"], "BOOLEAN", ("other", at)))
        elif isinstance(column, Measured):
            part = slices[column.output]
            figures, half = errors_of[part], widths_of[part]
            held = Numbers(sums[part.start // figures.count : part.stop // figures.count].ravel())
            deviations = float(half.scale.max() / figures.scale.max()) if figures.scale.any() else 0.0
            constant = float(core.outputs[column.output].constant)
            at = len(numbers)
            numbers.append(RangeNumber(held, tuple(figures.scale.tolist()), constant, deviations))
            shown.append((info.name, "DOUBLE", ("value", at)))
            if errors:
                shown += [(beside[suffix], "DOUBLE", (suffix.removeprefix("_"), at)) for suffix in ERRORS]
    groups = [_key_values(others, key, 0)[1:] for key in others]
    return RangeTable(
        answer.name,
        answer.named,
        tuple(shown),
        tuple(line.values) if line.first is None else (line.first, len(line.values)),
        line.type,
        tuple(numbers),
        tuple((tuple(values), tuple(is_other)) for values, is_other in groups),
        None if errors_of.spread.lengths is None else Numbers(errors_of.spread.lengths),
        errors_of.spread.blocks,
        line.first is not None,
    )
