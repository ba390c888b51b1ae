"""Intervals that include what limits cut: ``run(intervals="total")``. Post-processing.

A number of a result counts or sums rows, and its interval holds what the rows that count give. Rows that limits cut
come on top: at most as many as the loss of their table, all of which may be of one group. So of a count the upper end
rises by the upper end of the loss and the lower end stays; of a sum each end moves by that loss times what one row can
add by its declared bounds. A count of all rows without groups is short of the whole loss, so that its lower end
rises by the lower end of the loss. The truth is outside where the noise of the number or that of the loss is beyond its
half-width: each end of the interval of the loss has a chance of 2.5 %, which adds to that of the number only where the
whole loss is of its rows, and there both would have to err on one side.

Averages, ratios and quantiles are refused: what is cut may move them anywhere within their bounds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

from dpsql.common.arrays import Values
from dpsql.errors import DataError
from dpsql.planning.plan import Plan
from dpsql.policy.values import fold
from dpsql.release import ReleaseTable, ResultTable
from dpsql.release.cut import Cut, Losses
from dpsql.release.release import Release
from dpsql.sql import Answer
from dpsql.sql.outer.core_tables import core_columns
from dpsql.workloads.expr.batch import Core, KeyOutput, Measured, Output, Table
from dpsql.workloads.expr.conditions import Constant

Growth = tuple[float, float]
"""How far the lower and the upper end of an interval move."""


def check_total(plan: Plan, losses: Mapping[str, Losses]) -> None:
    """Raises DataError, before any charge, where the intervals of a plan cannot include what limits cut."""
    bounded = {layout.table for layout in plan.compiled.layouts if layout.source.added is not None}
    for answer in plan.queries:
        if any(query.table in bounded for core in answer.cores for query in core.queries):
            raise DataError(
                f"intervals='total' of {answer.name}: what is cut of the sums of a unit is not measured; leave it out"
            )
        cuts, notes = losses[answer.name].cuts, losses[answer.name].notes
        if len(cuts) < len(notes):
            missing = next(note for note in notes if note not in map(str, cuts.values()))
            raise DataError(f"intervals='total' of {answer.name}: {missing}; measure it first, with con.losses(...)")
        if cuts:
            _growths(answer, plan, cuts)


def with_losses_in(release: Release, plan: Plan) -> Release:
    """The release with intervals that include what limits cut of the rows that each number counts."""
    listed, tables = {table.name: table for table in release.record.listed}, list[ResultTable]()
    for answer, table in zip(plan.queries, release.record.tables, strict=True):
        cuts = release.losses[answer.name].cuts
        tables.append(_widened(listed[table.name], _growths(answer, plan, cuts)) if cuts else table)
    sentences = {
        name: replace(losses, notes=tuple(cut.sentence(included=True) for cut in losses.cuts.values()))
        for name, losses in release.losses.items()
    }
    return replace(release, record=replace(release.record, tables=tuple(tables)), losses=sentences)


def _growths(answer: Answer, plan: Plan, cuts: Mapping[str, Cut]) -> dict[str, Growth]:
    """By the names of the columns of a result that are ends of intervals how far they move. DataError as said."""
    if answer.outer is not None or len(answer.cores) != 1 or any(core.is_view for core in answer.cores):
        raise DataError(
            f"intervals='total' is for counts and sums by group as SELECT has them, and {answer.name} has more to do "
            "after the noise; ask for the counts and sums alone, or leave it out"
        )
    (core,) = answer.cores
    growths: dict[str, Growth] = {}
    for column, info in zip(core.columns, core_columns(core), strict=True):
        if isinstance(column, KeyOutput):
            continue
        if not isinstance(column, Measured):
            raise DataError(
                f"intervals='total' is for counts and sums: what is cut may move {answer.name}."
                f"{column.title or column.name} anywhere within its bounds; ask for SUM and COUNT, or leave it out"
            )
        low, high = _growth(core, column.output, plan, cuts, f"{answer.name}.{column.title or column.name}")
        beside = dict(info.companions)
        growths |= {beside["_low"]: (low, 0.0), beside["_high"]: (0.0, high)}
    return growths


def _growth(core: Core, number: int, plan: Plan, cuts: Mapping[str, Cut], named: str) -> Growth:
    """How far the ends of the interval of one output move."""
    query = core.queries[core.places[number][0]]
    sources = {layout.table: layout.source for layout in plan.compiled.layouts}
    cut = cuts.get(sources[query.table].table)
    if cut is None:
        return 0.0, 0.0
    output, tables = core.outputs[number], {} if plan.origin is None else plan.origin.prepared.understood.tables
    least, most = _of_a_row(output, tables.get(query.table), named)
    plain = output.terms[0] if len(output.terms) == 1 and not core.keys and output.counts else None
    if plain is not None and plain.condition == Constant(True) and not sources[query.table].distinct:
        return float(plain.coefficient) * cut.rows_low, most * cut.rows_high
    return least * cut.rows_high, most * cut.rows_high


def _of_a_row(output: Output, table: Table | None, named: str) -> Growth:
    """The least and the most that one row adds to an output, 0 among them: it may meet no condition."""
    ends = (0.0, 0.0)
    for term in output.terms:
        low, high = Fraction(0), Fraction(1)
        if term.column is not None:
            column = None if table is None else table.columns.get(fold(term.column))
            if column is None or column.policy.lower is None or column.policy.upper is None or term.power != 1:
                raise DataError(f"intervals='total': no bounds are declared of what {named} sums; leave it out")
            low = min(Fraction(str(column.policy.lower)), Fraction(0))
            high = max(Fraction(str(column.policy.upper)), Fraction(0))
        pair = (float(term.coefficient * low), float(term.coefficient * high))
        ends = ends[0] + min(pair), ends[1] + max(pair)
    return ends


def _widened(table: ReleaseTable, growths: Mapping[str, Growth]) -> ReleaseTable:
    columns = [
        (name, kind, _shifted(values, sum(growths[name])) if name in growths else values)
        for name, kind, values in table.columns
    ]
    return ReleaseTable(table.name, table.named, tuple(columns))


def _shifted(values: Values, by: float) -> Sequence[float | None]:
    return [None if value is None else float(value) + by for value in values]
