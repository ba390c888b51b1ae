"""Suggestions: what to drop, coarsen or bound more tightly, with the effect of each worked out by planning again."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from time import monotonic
from typing import Any

import numpy as np
from scipy import sparse

from dpsql.common.arrays import Floats
from dpsql.errors import Error
from dpsql.extensions.advice.what_if import TOLERANCE, Cost, comparable, costs, origin_of
from dpsql.planning.options import PlanOptions
from dpsql.planning.planned_batch import PlannedBatch
from dpsql.planning.prepare import Chooser, Prepared, prepare, scaled_sensitivity
from dpsql.planning.target_errors import overlapping
from dpsql.policy import Policy
from dpsql.policy.at_most import AtMost
from dpsql.release import Result
from dpsql.workloads.compile.compiled import Compiled
from dpsql.workloads.expr.batch import Key

Use = tuple[str, tuple[slice, ...], tuple[Key, ...], int]
"""A core that is grouped by a key: its result, its numbers, its keys, and which of them it is."""

_WORTH = 0.95  # error over error before, up to which a suggestion is worth a line
_KEYS, _COLUMNS = 6, 6  # that are tried
_LISTED = 12


@dataclass(frozen=True)
class Suggestion:
    """A change of the batch or of the policy and its effect. ``error``: standard error after it over that before.

    ``kind``: "drop", "coarsen", "bound", "rows" or "spread"; ``about``: whose error that is.
    """

    kind: str
    subject: str
    about: str
    error: float
    text: str


def suggest(
    plan: PlannedBatch, time_limit: float | None = 30.0, costed: tuple[Cost, ...] | None = None
) -> tuple[Suggestion, ...]:
    """Changes that would lower errors by at least 5 %, most helpful first; each planned again at the same charge.

    Statements to drop; keys with at least 4 groups to pair up neighbours of; columns to declare with half the bounds;
    units to count half the rows of, or to count one row of in each group, or rows of half as many groups. ``costed``:
    ``costs`` of the plan, where they are there already. Whether a bound or a coarser group still
    serves the question is the custodian's and the analyst's to judge.
    """
    began = monotonic()
    found: list[Suggestion] = []
    for cost in costs(plan, time_limit=time_limit) if costed is None else costed:
        if cost.times is not None and 1 / cost.times <= _WORTH:
            text = f"drop {cost.result}: the errors of all others fall by {1 - 1 / cost.times:.0%}"
            found.append(Suggestion("drop", cost.result, "the other statements", 1 / cost.times, text))
    tries: tuple[Callable[[PlannedBatch], Iterator[Suggestion]], ...] = (_coarser, _tighter, _fewer_rows, _spread)
    for attempt in tries:
        for suggestion in attempt(plan):
            if suggestion.error <= _WORTH:
                found.append(suggestion)
            if time_limit is not None and monotonic() - began > time_limit:
                break
    return tuple(sorted(found, key=lambda s: s.error)[:_LISTED])


def suggestions(plan: PlannedBatch, time_limit: float | None = 30.0) -> Result:
    """``suggest`` as a table: kind, subject, about, error (after over before), suggestion."""
    rows = [(s.kind, s.subject, s.about, s.error, s.text) for s in suggest(plan, time_limit)]
    kinds = ("VARCHAR", "VARCHAR", "VARCHAR", "DOUBLE", "VARCHAR")
    return Result(("kind", "subject", "about", "error", "suggestion"), kinds, rows)


# -- coarser groups -----------------------------------------------------------------------------------------


def _coarser(plan: PlannedBatch) -> Iterator[Suggestion]:
    """Neighbouring groups of a key in pairs: half as many numbers of each statement grouped by it."""
    compiled, units = plan.compiled.matrix, comparable(plan)
    if compiled is None or units is None:
        return
    keys: dict[str, list[Use]] = {}
    names = [answer.name for answer in plan.queries for _ in answer.cores]
    for name, (core, slices) in zip(names, plan.cores, strict=True):
        for at, key in enumerate(core.keys):
            if len(key) >= 4 and not overlapping(key):
                keys.setdefault(key.name, []).append((name, slices, core.keys, at))
    for label, uses in sorted(keys.items(), key=lambda item: -_groups(item[1]))[:_KEYS]:
        merged = paired(compiled, uses)
        if merged is None:
            continue
        others = np.ones(compiled.numbers, dtype=np.bool_)
        for part in (part for _, slices, _, _ in uses for part in slices):
            others[part] = False
        # All other numbers, where there are some; else those of the key, each now about two groups.
        alone = not others.any()
        mine = np.diff(merged.rows.indptr) > 0 if alone else others
        errors = _errors(plan, merged)
        old, new = _mean((np.asarray(plan.errors) * units)[mine]), _mean((errors * units)[mine])
        if old <= 0:
            continue
        about = "each number, which is then about two groups," if alone else "the other statements"
        where = ", ".join(dict.fromkeys(name for name, *_ in uses))
        text = (
            f"pair up the groups of {label} in {where} ({_groups(uses)} to {(_groups(uses) + 1) // 2}): the error of "
            f"{about} falls by {1 - new / old:.0%}"
        )
        yield Suggestion("coarsen", label, about.rstrip(","), new / old, text)


def _groups(uses: list[Use]) -> int:
    _, _, keys, at = uses[0]
    return len(keys[at])


def _errors(plan: PlannedBatch, compiled: Compiled) -> Floats:
    """Standard errors of ``compiled`` planned at the plan's charge."""
    chosen = Chooser(compiled, cached=False).strategy(plan.charge.noise, PlanOptions(tolerance=TOLERANCE))
    noise = plan.charge.calibrate(scaled_sensitivity(chosen, compiled), chosen.blocks)
    return np.asarray(chosen.answers_of(compiled).errors(noise, compiled.common_steps))


def _mean(values: Floats) -> float:
    return float(np.sqrt(np.mean(values**2))) if values.size else 0.0


def paired(compiled: Compiled, uses: list[Use]) -> Compiled | None:
    """W with the rows of neighbouring groups added up, in the place of the first; None where their scales differ."""
    scale, numbers = compiled.scale, compiled.numbers
    into = np.arange(numbers)
    for _, slices, keys, at in uses:
        shape = [len(key) for key in keys]
        labels = [np.asarray(label) for label in np.unravel_index(np.arange(math.prod(shape)), shape)]
        labels[at] = labels[at] // 2 * 2
        first = np.ravel_multi_index(labels, shape)
        for part in slices:
            into[part] = part.start + first
    # One scale for both rows: the smaller, of which the other must be a multiple.
    base = scale.copy()
    np.minimum.at(base, into, scale)
    factor = scale / base[into]
    whole = np.rint(factor)
    if (scale <= 0).any() or (np.abs(factor - whole) > 1e-9).any():
        return None
    times = sparse.csr_array((whole.astype(np.int64), (into, np.arange(numbers))), shape=(numbers, numbers))
    merged = sparse.csr_array(times @ compiled.rows)
    merged.eliminate_zeros()
    return replace(compiled, rows=merged, scale=base, objective=compiled.objective * base / scale)


# -- tighter policies ---------------------------------------------------------------------------------------


def _tighter(plan: PlannedBatch) -> Iterator[Suggestion]:
    """Half the bounds of each summed column that is no key."""
    prepared = origin_of(plan).prepared
    if prepared.compiled.line is not None:
        return
    keys = {key.name for core, _ in plan.cores for key in core.keys}
    summed: dict[tuple[str, str], list[slice]] = {}
    for core, slices in plan.cores:
        for output, part in zip(core.outputs, slices, strict=True):
            for term in output.terms:
                if term.column is not None and term.column not in keys:
                    held = summed.setdefault((core.queries[0].table, term.column), [])
                    held.extend([part] if part not in held else [])
    for (table, column), parts in list(summed.items())[:_COLUMNS]:
        policy = prepared.understood.tables[table].policy
        declared = {name.lower(): held for name, held in policy.columns.items()}.get(column.lower())
        if declared is None or not isinstance(declared.lower, Fraction) or not isinstance(declared.upper, Fraction):
            continue
        low, high = _half(declared.lower, declared.upper, declared.step)
        again = _planned_under(plan, policy.name, {declared.name: {"lower": low, "upper": high}})
        if again is None:
            continue
        old, new = (_mean(np.concatenate([np.asarray(e)[part] for part in parts])) for e in (plan.errors, again))
        if old <= 0:
            continue
        text = (
            f"declare {declared.name} from {_shown(low)} to {_shown(high)} instead of {_shown(declared.lower)} to "
            f"{_shown(declared.upper)}: the standard error of its sums falls from {old:.4g} to {new:.4g}, and values "
            "beyond count as the bound"
        )
        yield Suggestion("bound", f"{policy.name}.{declared.name}", f"sums of {declared.name}", new / old, text)


def _half(lower: Fraction, upper: Fraction, step: Fraction | None) -> tuple[Fraction, Fraction]:
    """Bounds of half the width: from the end at 0 where there is one, else about the middle; on the column's grid."""
    grid = step or (Fraction(1) if lower.denominator == upper.denominator == 1 else Fraction(1, 10**6))
    half, quarter = (Fraction(round((upper - lower) / parts / grid)) * grid for parts in (2, 4))
    if lower == 0:
        return lower, lower + half
    return (upper - half, upper) if upper == 0 else (lower + quarter, upper - quarter)


def _shown(value: Fraction) -> str:
    return str(value.numerator) if value.denominator == 1 else f"{float(value):.12g}"


def _fewer_rows(plan: PlannedBatch) -> Iterator[Suggestion]:
    """The plan if half as many rows of a unit counted."""
    prepared, units = origin_of(plan).prepared, comparable(plan)
    if units is None:
        return
    used = {prepared.understood.tables[core.queries[0].table].policy.name for core, _ in plan.cores}
    for name in sorted(used):
        rows = prepared.policy.table(name).max_rows_per_unit
        if rows is None or rows < 2:
            continue
        fewer = rows // 2
        again = _planned_under(plan, name, {}, max_rows_per_unit=fewer)
        if again is None:
            continue
        old, new = (_mean(np.asarray(e) * units) for e in (plan.errors, again))
        text = (
            f"count at most {fewer} rows of a unit of {name} instead of {rows} (rows_per_unit={fewer}): all errors "
            f"fall by {1 - new / old:.0%}, and further rows of a unit are left out"
        )
        yield Suggestion("rows", name, "all numbers", new / old, text)


def _spread(plan: PlannedBatch) -> Iterator[Suggestion]:
    """The plan if a unit had one row in each group of a key, or rows in half as many of its groups."""
    prepared, units = origin_of(plan).prepared, comparable(plan)
    if units is None:
        return
    keys = {
        (prepared.understood.tables[core.queries[0].table].policy.name, key.name): len(key)
        for core, _ in plan.cores
        for key in core.keys
    }
    for (name, per), groups in list(keys.items())[:_KEYS]:
        table = prepared.policy.table(name)
        rows = table.max_rows_per_unit
        if rows is None or rows < 2 or any((bound.per or "").lower() == per.lower() for bound in table.at_most):
            continue
        fewer = min(rows, groups) // 2
        bounds = {"rows = 1": AtMost(per, rows=1)}
        if fewer:
            bounds[f"groups = {fewer}"] = AtMost(per, groups=fewer)
        for figure, bound in bounds.items():
            again = _planned_under(plan, name, {}, at_most=(*table.at_most, bound))
            if again is None:
                continue
            old, new = (_mean(np.asarray(e) * units) for e in (plan.errors, again))
            what = "one row for each" if bound.rows else f"rows of {fewer} groups" if fewer > 1 else "rows of one group"
            text = (
                f'count of a unit of {name} {what} of {per} (at_most = [{{ {figure}, per = "{per}" }}]): all errors '
                f"fall by {1 - new / old:.0%}, and further rows of a unit are left out"
            )
            yield Suggestion("spread", f"{name}.{per}", "all numbers", new / old, text)


def _planned_under(plan: PlannedBatch, table: str, columns: Mapping[str, Mapping[str, Any]], **changed: Any) -> Any:
    """The errors of the same batch at the same charge under a changed policy; None where that is no policy for it."""
    prepared = origin_of(plan).prepared
    try:
        policy = _changed(prepared.policy, table, columns, changed)
        again: Prepared = prepare(prepared.sql, policy, prepared.schemas)
        again = again.weighed(plan.charge.noise, plan.strategy.objective)
        if again.compiled.numbers != plan.compiled.numbers:
            return None
        chosen = Chooser(again.compiled, cached=False).strategy(
            plan.charge.noise, PlanOptions(tolerance=TOLERANCE, objective=plan.strategy.objective)
        )
        noise = plan.charge.calibrate(scaled_sensitivity(chosen, again.compiled), chosen.blocks)
        return chosen.answers_of(again.compiled).errors(noise, chosen.as_measured(again.compiled).common_steps)
    except Error:
        return None


def _changed(
    policy: Policy, table: str, columns: Mapping[str, Mapping[str, Any]], changed: Mapping[str, Any]
) -> Policy:
    held = policy.table(table)
    new = {name: replace(column, **columns.get(name, {})) for name, column in held.columns.items()}
    return replace(policy, tables={**policy.tables, held.name: replace(held, columns=new, **changed)})
