"""Notes on a plan: what its answers leave out, what makes errors larger, and what else could be done."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from dpsql.common.arrays import Json
from dpsql.common.notes import BIAS, ERROR, HINT, Note
from dpsql.errors import Error, listed
from dpsql.planning.figures import budget_name, counted, figure
from dpsql.planning.one_by_one import HELD
from dpsql.planning.planned_batch import PlannedBatch
from dpsql.privacy.charge import Charge
from dpsql.workloads.compile.sensitivity import sensitivity_of
from dpsql.workloads.compile.sparse_counts import compile_sparse
from dpsql.workloads.expr.batch import KeyOutput, Measured
from dpsql.workloads.expr.measures import Measure

_QUICKLY_BOUNDED = 256  # cells up to which a bound for pure noise takes next to no time
_MANY_GROUPS = 1_000  # of a count by groups, from which on most may be empty
_MANY_ROWS = 1_000_000  # from which on it is no matter of course that a table has so many


def remarks(plan: PlannedBatch, rows: Sequence[Json], *, details: bool = False) -> list[tuple[str, Note]]:
    """Labelled notes in the order of what they may change; ``rows`` are those of ``plan_rows``.

    First what may make a number wrong or biased, then what makes errors larger, then hints. ``details`` adds names of
    strategies, and leaves out that no proof is there, which the strategy's own line says.
    """
    found = [("Limits", Note(text, BIAS)) for text in limits_text(plan)]
    found += [("Note", note) for note in plan.notes]
    hidden, guessed, worse = hidden_text(plan, rows), "", ""
    if not plan.estimated:
        guessed, worse = undeclared_text(plan, rows), worse_text(rows)
    found += [("Warning", Note(text, ERROR)) for text in (hidden, guessed) if text]
    found += [("Note", Note(text, ERROR)) for text in (worse, "" if details else unproven_text(plan)) if text]
    instead = [*_alternatives(plan, details=details), *filter(None, [_pure_instead(plan)])]
    found += [("Other way", Note(text, HINT)) for text in instead]
    if plan.local_comparison is not None:
        found.append(("Local", Note(str(plan.local_comparison), HINT)))
    return sorted(found, key=lambda labelled: labelled[1].changes)


def limits_text(plan: PlannedBatch) -> list[str]:
    """What limits of the policy cut from the answers, a sentence or more each, which no error of the plan covers.

    This is the one place that says it: how much was cut stands here once it is measured. Empty where nothing is cut.
    """
    cuts = [*dict.fromkeys(_rows_cut(plan)), *dict.fromkeys(_values_cut(plan))]
    if not cuts:
        return []
    unknown = "How many rows this concerns is not measured, and no" if plan.cut is None else "No"
    return [f"{'; '.join(cuts)}. {unknown} error below includes it."]


def _rows_cut(plan: PlannedBatch) -> Iterator[str]:
    """Sources of which only some rows of a unit count."""
    for source in dict.fromkeys(layout.source for layout in plan.compiled.layouts):
        if source.unit is None or source.single or source.public or (source.of is not None and not source.of.keys):
            continue
        if source.added is not None:
            bounds = listed([bound.text.removeprefix("at most ") for bound in source.added.bounds])
            yield f"what each {source.unit.name} in {source.table} adds is cut to {bounds}"
            continue
        of = f"each {source.unit.name} in {source.table}"
        yield f"at most {counted(source.most, 'row')} of {of} count, the others are cut"


def _values_cut(plan: PlannedBatch) -> Iterator[str]:
    """Columns that are summed between bounds."""
    bounds = clamped(measure for layout in plan.compiled.layouts for measure in layout.measures)
    if bounds:
        yield f"in sums and averages {bounds}; WHERE compares values as they are"


def clamped(measures: Iterable[Measure]) -> str:
    """As what values beyond the bounds of summed columns count; empty where no number is summed."""
    bounds: dict[str, str] = {}
    for measure in measures:
        if measure.line.kind in ("integer", "decimal", "real"):
            low, high = (f"{float(end):,.10g}" for end in (measure.lower, measure.upper))
            name = measure.column
            bounds[name] = f"values of {name} below {low} count as {low}, and above {high} as {high}"
    return ", ".join(bounds.values())


def unproven_text(plan: PlannedBatch) -> str:
    """That no proof says how near the errors are to the least; empty where one does, or where the call names a way."""
    made = plan.without_earlier or plan
    if made.gap is not None or plan.estimated or plan.named:
        return ""
    if plan.strategy.noise != "gaussian":
        return "lower errors may be possible; plan.explain() says how low, if known"
    what = "a smaller largest error" if plan.strategy.objective == "max" else "smaller errors"
    return f"{what} may be possible; no proof says how much smaller"


def hidden_text(plan: PlannedBatch, rows: Sequence[Json]) -> str:
    """Which answers the noise is likely to hide, as their intervals are as wide as what is expected; empty for none."""
    hidden = [row for row in rows if row["expected"] and row["half_width"] >= abs(row["expected"])]
    if not hidden:
        return ""
    named = [
        f"{row['result']}.{row['column']} (±{figure(row['half_width'])}, about {figure(row['expected'])} expected)"
        for row in hidden
    ]
    return (
        f"the noise is likely to hide {listed(named, 3)}, if expected_rows spread evenly over the groups; ask for "
        f"fewer or coarser groups, or spend more: plan.what_if() or dpsql plan --what-if shows errors{_sparse(plan)}"
    )


def undeclared_text(plan: PlannedBatch, rows: Sequence[Json]) -> str:
    """Which errors rest on no declared number of rows, and which counts need very many; empty for none.

    ``expected`` of an average, ratio or quantile is None where its group's size is assumed.
    """
    tables = [layout.source.table for layout in plan.compiled.layouts]
    silent = [table for table in dict.fromkeys(tables) if table not in plan.expected_rows]
    guessed = [row for row in rows if row["group_rows"] is not None and row["expected"] is None]
    outputs = [
        core.outputs[column.output] if isinstance(column, Measured) and core.keys else None
        for core, _ in plan.cores
        for column in core.columns
        if not isinstance(column, KeyOutput)
    ]
    needed = [
        (row["numbers"] * row["half_width"], row)
        for row, output in zip(rows, outputs, strict=False)
        if output is not None and output.counts and row["expected"] is None
    ]
    counts = [(total, row) for total, row in needed if total >= _MANY_ROWS]
    if not silent or not (guessed or counts):
        return ""
    said = []
    if guessed:
        size = figure(guessed[0]["group_rows"])
        said.append(f"errors marked '~' assume {size} rows in each group and are larger where there are fewer")
    if counts:
        total, row = max(counts, key=lambda pair: pair[0])
        said.append(
            f"the noise hides most of {row['result']}.{row['column']} (±{figure(row['half_width'])} in each of "
            f"{row['numbers']:,} groups) unless there are some {total / 1e6:,.0f} million rows"
        )
    many = _sparse(plan) if counts else ""
    return (
        f"nothing declares how many rows there are in {listed(silent, 3)}: {', and '.join(said)}; add expected_rows "
        f"to the policy, a public guess that changes no answer{many}"
    )


def _sparse(plan: PlannedBatch) -> str:
    """The method that shows the large ones of very many groups alone, where the batch is one for it; else empty."""
    if plan.origin is None or plan.charge.epsilon is None or plan.compiled.numbers < _MANY_GROUPS:
        return ""
    understood = plan.origin.prepared.understood
    try:
        compile_sparse(understood.queries, understood.tables)
    except Error:
        return ""
    return "; method='sparse' shows the groups that stand out of the noise alone, and lists no empty ones"


def worse_text(rows: Sequence[Json]) -> str:
    """Which columns of counts and sums the batch serves worse than each alone would be; empty for none."""
    worse = [
        f"{row['result']}.{row['column']} ({row['stderr'] / row['naive_stderr']:.2f} times the error)"
        for row in rows
        if row["group_rows"] is None and row["stderr"] and row["stderr"] > HELD**0.5 * (row["naive_stderr"] or np.inf)
    ]
    if not worse:
        return ""
    return (
        f"smaller errors would result if each column were asked by itself, with its share of the budget, for "
        f"{listed(worse, 3)}; ask for it in a batch of its own, or let it count more with /*+ WEIGHT(2) */"
    )


def cut_short(plan: PlannedBatch, limit: float, late: Sequence[str]) -> str:
    """What a time limit left out of the search for the plan, ``late`` as of ``planning.prepare.watched``, and by how
    much more time could make its error less, where a bound tells that at once.
    """
    squared, gap = squared_error(plan.strategy.objective).replace("balanced", "mean"), plan.gap
    left_out = listed(sorted({name for name in late if name}))
    said = f"the time limit of {limit:g} s ended the search" + (f" before {left_out}" if left_out else "")
    if gap is not None:
        return f"{said}; the {squared} is at most {1 + gap:.2f} times the least of any plan with such noise"
    least = plan.least_of_pure if plan.compiled.cells <= _QUICKLY_BOUNDED else None
    if least is not None:
        return f"{said}; the {squared} is at most {least[0]:.2f} times the least of {least[1]}"
    return f"{said}; how near the {squared} is to the least is not known"


def squared_error(objective: str) -> str:
    """What an objective minimises, in words."""
    return {"max": "largest squared error", "balanced": "balanced squared error"}.get(objective, "total squared error")


def _pure_instead(plan: PlannedBatch) -> str:
    """How large errors would be of a pure budget, which the policy has none of; empty where they would not be smaller.

    Of the same measurements, where one unit moves a single one of them at a time: Laplace noise has the variance
    2 / epsilon^2 where the Gaussian one has 1 / mu^2.
    """
    origin, charge = plan.origin, plan.charge
    if origin is None or charge.noise != "gaussian" or origin.request.epsilon is None or plan.estimated:
        return ""
    pure = origin.state.account("pure")
    measured = plan.strategy.measured
    if plan.rests_on or measured.shape[0] > _QUICKLY_BOUNDED or (pure is not None and pure.total_units):
        return ""
    l1, squared = (sensitivity_of(noise, measured, plan.compiled.layouts) for noise in ("laplace", "gaussian"))
    ratio = (2.0 * float(charge.mu_squared)) ** 0.5 / float(origin.request.epsilon)
    if l1 * l1 != squared or ratio >= 1.0:
        return ""
    return (
        f"pure noise at epsilon {float(origin.request.epsilon):g} would have {ratio:.2f} times the error; it takes a "
        "pure budget, pure_epsilon in the policy"
    )


def _alternatives(plan: PlannedBatch, *, details: bool) -> list[str]:
    chosen = plan.error
    what = "largest error" if plan.strategy.objective == "max" else "error"
    return [
        f"{other.charge.guarantee}, paid from the {budget_name(other.charge.account)}"
        + (f" ({other.method}): " if details else ": ")
        + ("at least " if other.at_least else "")
        + ("the same target" if plan.wanted else f"{(other.error / chosen) ** 0.5:.2f} times the {what}")
        + ("" if other.affordable else f", but {_short_of(plan, other.charge)}")
        for other in plan.alternatives
    ]


def _short_of(plan: PlannedBatch, charge: Charge) -> str:
    """Why a charge cannot be made: the cap on one release, or what its account has left."""
    if plan.origin is not None and not plan.origin.state.budget.allows(charge):
        return "that is more than the policy lets one release cost"
    return f"the {budget_name(charge.account)} has less than that left"
