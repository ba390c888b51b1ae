"""Wanted errors: which half-width is asked of every number of a batch, from public information alone.

``Wanted`` is what a call says; with the hints of the batch (``/*+ MAX_ERROR(50) */``) it becomes a ``Goal``: one
half-width for every number.

Errors of counts, sums and their linear combinations do not depend on the answer. Those of averages, ratios and
quantiles do, and a relative error is one by its meaning; both need a guess of the answer, made of public figures
alone and in one way: a group has its even share of the ``expected_rows`` that the policy declares of its table (or
of the rows that the caller expects there); its rows hold the middle of the declared bounds, or lie evenly over
the declared values where a quantile asks for them; conditions keep all rows; ranges, which overlap, share nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np

from dpsql.common.arguments import is_real
from dpsql.common.arrays import Floats, Matrix
from dpsql.common.notes import ERROR, Note
from dpsql.errors import DataError, nearest, quoted
from dpsql.planning.options import PlanOptions
from dpsql.planning.prepare import Prepared, cores_of
from dpsql.policy.values import fold
from dpsql.privacy.noise import Noise, gaussian_noise
from dpsql.reconstruct import RowsOfAnswers, evaluate, quantile, rank_rows
from dpsql.sql import Answer
from dpsql.workloads.expr.batch import CaseKey, Core, Derived, Key, KeyOutput, Measured, Output, Ranked, Table
from dpsql.workloads.expr.formulas import narrowed
from dpsql.workloads.expr.terms import Measures

OBJECTIVES = ("least", "balanced", "total", "max")


@dataclass(frozen=True)
class Wanted:
    """What a call asks. ``by_name``: half-widths of a result or of "result.column"; ``expected``: rows of a group.

    ``objective``: "least" is the strategy that needs the least budget; the others are those of these objectives.
    """

    max_error: float | None = None
    by_name: tuple[tuple[str, float], ...] = ()
    relative: float | None = None
    alpha: float = 0.05
    simultaneous: bool = False
    expected: tuple[tuple[str, float], ...] = ()
    objective: str = "least"

    @property
    def empty(self) -> bool:
        """Whether nothing is asked, so that hints must say it all."""
        return self.max_error is None and self.relative is None and not self.by_name


def targets_of(options: PlanOptions) -> Wanted:
    """The wanted errors of a call, checked. ``max_error``: a positive number, or one by result or "result.column".

    Raises DataError for figures that are not positive and finite, both of ``max_error`` and ``relative``, unknown
    objectives.
    """
    max_error, relative, alpha, objective = options.max_error, options.relative, options.alpha, options.objective
    expected = options.expected
    if max_error is not None and relative is not None:
        raise DataError("max_error and relative are both given; keep one of the two")
    if not _number(alpha) or not 0 < float(alpha) < 1:
        raise DataError("alpha is 1 - confidence and lies between 0 and 1, such as 0.05")
    if not isinstance(options.simultaneous, bool):
        raise DataError("simultaneous is True (all intervals hold together) or False (each by itself)")
    if objective is not None and (not isinstance(objective, str) or objective not in OBJECTIVES):
        raise DataError(f"objective {quoted(objective)} is not known; use {', '.join(map(repr, OBJECTIVES))}")
    one: float | None = None
    named: list[tuple[str, float]] = []
    if isinstance(max_error, Mapping):
        named = [(name, _positive(f"max_error of {name}", value)) for name, value in _named("max_error", max_error)]
        if not named:
            raise DataError("max_error is an empty mapping; name the results, such as max_error={'q1': 50}")
    elif max_error is not None:
        one = _positive("max_error", max_error)
    if expected is not None and not isinstance(expected, Mapping):
        raise DataError("expected takes rows of a group by result, such as expected={'q1': 1000}")
    rows = [(name, _positive(f"expected rows of {name}", value)) for name, value in _named("expected", expected or {})]
    return Wanted(
        one,
        tuple(named),
        None if relative is None else _positive("relative", relative),
        float(alpha),
        options.simultaneous,
        tuple(rows),
        objective or "least",
    )


def _named(option: str, given: Mapping[str, object]) -> list[tuple[str, object]]:
    """The items of a mapping by results."""
    for name in given:
        if not isinstance(name, str):
            raise DataError(f"{option} takes names of results, such as {option}={{'q1': 50}}; one is {quoted(name)}")
    return list(given.items())


def _number(value: object) -> bool:
    return is_real(value)


def _positive(name: str, value: object) -> float:
    found = float(value) if _number(value) else math.nan  # type: ignore[arg-type]
    if not (math.isfinite(found) and found > 0):
        raise DataError(f"{name} must be a positive finite number, such as {name.split()[0]}=50; it is {quoted(value)}")
    return found


@dataclass(frozen=True, eq=False)
class DerivedGoal:
    """A half-width asked of an average, ratio or quantile in every group, at the guessed ``estimates`` (k,) of a group.

    For a quantile they are those of its prefix counts.
    """

    core: Core = field(repr=False)
    slices: tuple[slice, ...] = field(repr=False)
    column: Derived | Ranked
    target: float
    estimates: Floats

    def reach(self, rows: object, noise: Noise, alpha: float, divisor: int) -> float:
        """The largest half-width of a group at the guess. ``rows``: of ``parts``."""
        return at_guess(self.column, self.estimates, self.core.rows, rows, noise, alpha, divisor)[1]

    @property
    def parts(self) -> tuple[slice, ...]:
        """The numbers that it is made of."""
        return parts_of(self.column, self.slices)


def rows_for(column: Derived | Ranked, answers: RowsOfAnswers, parts: Sequence[slice], noise: Noise) -> Matrix:
    """The rows of its ``parts``, as ``at_guess`` takes them."""
    return rank_rows(answers, parts, noise) if isinstance(column, Ranked) else answers.rows(parts, noise)


def parts_of(column: Derived | Ranked, slices: tuple[slice, ...]) -> tuple[slice, ...]:
    """The numbers that an average, ratio or quantile is made of."""
    return tuple(slices[at] for at in _outputs(column))


def _outputs(column: Derived | Ranked) -> tuple[int, ...]:
    """The numbers of the outputs that it is made of."""
    return column.prefixes if isinstance(column, Ranked) else narrowed(column.formula)[1]


def at_guess(
    column: Derived | Ranked, estimates: Floats, groups: int, rows: object, noise: Noise, alpha: float, divisor: int
) -> tuple[float, float]:
    """(root mean square standard error, largest half-width) of all groups, each with the same estimates.

    Half-widths are the longer sides of intervals; infinite where one has no end.
    """
    stderr, low, high, value = _worked_out(column, estimates, groups, rows, noise, alpha, divisor)
    sides = np.maximum(value - low, high - value)
    return float(np.sqrt(np.mean(stderr**2))), float(np.max(np.where(np.isfinite(sides), sides, np.inf)))


def _worked_out(
    column: Derived | Ranked, estimates: Floats, groups: int, rows: object, noise: Noise, alpha: float, divisor: int
) -> tuple[Floats, Floats, Floats, Floats]:
    """(standard error, low, high, value) of every group, all groups with the same estimates."""
    table = np.tile(estimates, (groups, 1)) if estimates.ndim == 1 else estimates
    if isinstance(column, Ranked):
        ranks = quantile(column, table, rows, noise, alpha, divisor=divisor)
        return ranks.stderr, ranks.low, ranks.high, ranks.value
    done = evaluate(narrowed(column.formula)[0], table, rows, noise, alpha, bounds=column.bounds, divisor=divisor)
    return done.stderr, done.low, done.high, done.value


@dataclass(frozen=True, eq=False)
class Goal:
    """A half-width for every number of a batch, result column by result column (slices of W's rows).

    ``measured``: of measured columns. ``steer``: what the strategy is chosen by: that, and for parts of averages and
    quantiles what the slope of the formula at the guess makes of it. ``numbers``: how many are promised.
    """

    measured: tuple[tuple[slice, float], ...] = field(repr=False)
    steer: tuple[tuple[slice, float], ...] = field(repr=False)
    derived: tuple[DerivedGoal, ...]
    numbers: int

    def targets(self, numbers: int) -> Floats:
        """``steer`` for each of the ``numbers`` of a batch; what no promise rests on is as rough as the rest allows."""
        out = np.full(numbers, np.inf)
        for part, target in self.steer:
            out[part] = np.minimum(out[part], target)
        known = np.isfinite(out)
        # Where every wish is past all numbers, none says anything of another.
        out[~known] = 1e3 * float(out[known].max()) if known.any() else 1.0
        return out


def goal_of(prepared: Prepared, targets: Wanted) -> Goal:
    """What every number of the batch is asked, by the call and by the batch's hints.

    A hint counts for its own SELECT; the call for all others, or for the results that it names.
    Raises DataError for results without a wanted error, unknown names, two different wishes for one result, and
    where a guess is needed and no ``expected_rows`` are declared.
    """
    reading = Reading(prepared, targets)
    measured: list[tuple[slice, float]] = []
    steer: list[tuple[slice, float]] = []
    derived: list[DerivedGoal] = []
    count = 0
    for name, core, slices in reading.cores:
        for column in core.columns:
            if isinstance(column, KeyOutput):
                continue
            count += core.rows
            label = f"{name}.{column.title or column.name}"
            if isinstance(column, Measured):
                guess = partial(reading.answer, name, core, core.outputs[column.output])
                measured.append((slices[column.output], reading.target(name, label, core, guess)))
                continue
            found = reading.derived(name, label, core, slices, column)
            derived.append(found)
            steer.extend(_steered(found))
    reading.check_names()
    return Goal(tuple(measured), (*measured, *steer), tuple(derived), count)


class Reading:
    """The wishes of a call, held against a batch."""

    def __init__(self, prepared: Prepared, targets: Wanted) -> None:
        self.prepared, self.targets = prepared, targets
        answers = prepared.understood.answers
        names = [answer.name for answer in answers for _ in answer.cores]
        held = cores_of(answers, prepared.compiled.spans)
        self.cores = [(name, core, slices) for name, (core, slices) in zip(names, held, strict=True)]
        self.by_name = {fold(name): value for name, value in targets.by_name}
        self.expected = {fold(name): value for name, value in targets.expected}
        self.used: set[str] = set()
        self.known: dict[str, str] = {fold(answer.name): answer.name for answer in answers}

    def target(self, name: str, label: str, core: Core, guess: Callable[[], float]) -> float:
        """The half-width asked of a column; ``guess()`` is its answer, where that is needed."""
        self.known[fold(label)] = label
        called = [key for key in (fold(label), fold(name)) if key in self.by_name]
        self.used.update(called)
        hint = core.queries[0].max_error
        if called:
            value = self.by_name[called[0]]
            if hint is not None and hint != value:
                raise DataError(
                    f"{name} is asked ±{value:g} by the call and ±{hint:g} by its hint MAX_ERROR; keep one of the two"
                )
            return value
        if hint is not None:
            return hint
        if self.targets.max_error is not None:
            return self.targets.max_error
        if self.targets.relative is None:
            raise DataError(
                f"{label} has no wanted error; give its statement a hint, SELECT /*+ MAX_ERROR(50) */ ..., or give "
                "max_error for all statements without one"
            )
        expected = float(guess())
        if not (math.isfinite(expected) and expected != 0):
            raise DataError(
                f"{label} is expected to be 0, so that no error is relative to it; give max_error in its own units"
            )
        return self.targets.relative * abs(expected)

    def check_names(self) -> None:
        """DataError for names that no result of the batch has."""
        for name in (*self.by_name, *self.expected):
            if name not in self.known:
                raise DataError(
                    f"the batch has no result {name}: {nearest(name, list(self.known.values()), 'its results are:')}"
                )

    def rows(self, name: str, core: Core, query: int) -> float:
        """The guessed rows of a group of ``core``, in the table of one of its queries."""
        if fold(name) in self.expected:
            return self.expected[fold(name)]
        table = self._table(core, query)
        rows = table.policy.expected_rows
        if rows is None:
            raise DataError(
                f"the error wanted of {name} depends on how many rows its groups have; declare expected_rows of "
                f"{table.policy.name} in the policy, give expected={{'{name}': 1000}}, or ask for max_error of its "
                "counts and sums"
            )
        share = self._counted(table, rows) / math.prod(len(key) for key in core.keys if not overlapping(key))
        source = table.source
        return share / source.limit if source is not None and source.counts_units else share

    def _counted(self, table: Table, rows: float) -> float:
        """How many of a table's ``rows`` count under its limits, by public figures.

        Units are taken to have as many rows as the policy lets count, so that fewer rows of a unit (``rows_per_unit``)
        are a share of the rows; where the unit's column refers to another table, there are no more units than rows
        there.
        """
        policy = table.policy
        counted = rows / policy.reduction
        refers = {fold(column): fold(target) for column, (target, _) in policy.references.items()}
        tables = {fold(name): one for name, one in self.prepared.policy.tables.items()}
        units = tables.get(refers.get(fold(policy.unit), ""))
        if units is not None and units.expected_rows is not None and policy.max_rows_per_unit is not None:
            counted = min(counted, float(units.expected_rows * policy.max_rows_per_unit))
        return counted

    def _table(self, core: Core, query: int) -> Table:
        return self.prepared.understood.tables[core.queries[query].table]

    def answer(self, name: str, core: Core, output: Output) -> float:
        """The guessed answer of one linear output in a group."""
        at = core.outputs.index(output)
        query = core.places[at][0]
        table = self._table(core, query)
        measures, added = Measures(table), None if table.source is None else table.source.added
        total = Fraction(output.constant)
        for term in output.terms:
            measure = measures.of(term)
            each = Fraction(1) if measure is None else measure.mid if added is None else added.row.mid
            if measure is not None and term.power == 2:
                each = (measure.upper - measure.lower) ** 2 / 12  # of values spread evenly
            total += term.coefficient * each * Fraction(self.rows(name, core, query))
        return float(total)

    def derived(
        self, name: str, label: str, core: Core, slices: tuple[slice, ...], column: Derived | Ranked
    ) -> DerivedGoal:
        """The goal of an average, ratio or quantile."""
        estimates = self.estimates(name, core, column)
        target = self.target(name, label, core, lambda: float(answer_at(column, estimates[None, :])[0]))
        return DerivedGoal(core, slices, column, target, estimates)

    def estimates(self, name: str, core: Core, column: Derived | Ranked) -> Floats:
        """The guessed parts (k,) of an average, ratio or quantile in a group."""
        if isinstance(column, Ranked):
            rows = self.rows(name, core, core.places[column.prefixes[0]][0])
            return np.asarray(rows * np.arange(1, len(column.prefixes) + 1) / len(column.prefixes))
        return np.array([self.answer(name, core, core.outputs[at]) for at in _outputs(column)])


def overlapping(key: Key) -> bool:
    """Whether groups share rows: all ranges or prefixes of a column."""
    return isinstance(key, CaseKey) and key.text.startswith(("dp_ranges(", "dp_prefixes("))


def answer_at(column: Derived | Ranked, estimates: Floats) -> Floats:
    """The value (g,) of a formula or quantile at ``estimates`` (g x k), without noise."""
    groups, outputs = estimates.shape
    rows = np.zeros((groups * outputs, 1))
    return _worked_out(column, estimates, groups, rows, gaussian_noise(1, Fraction(1)), 0.05, 1)[3]


def _steered(goal: DerivedGoal) -> Iterator[tuple[slice, float]]:
    """The half-widths of its parts with which a formula would have about the one asked of it.

    By its slopes at the guess, an even share of the variance to each part; a quantile moves by what a value's share
    of the rows lets its rank be off.
    """
    column, k = goal.column, len(goal.estimates)
    if isinstance(column, Ranked):
        width = float(column.values[-1] - column.starts[0])
        least = max(goal.target * float(goal.estimates[-1]) / width, 0.5) if width else 0.5
        yield from ((part, least) for part in goal.parts)
        return
    step = 1e-4 * np.maximum(np.abs(goal.estimates), 1.0)
    moved = np.vstack([goal.estimates + np.diag(step), goal.estimates - np.diag(step)])
    values = answer_at(column, moved)
    slopes = np.abs(values[:k] - values[k:]) / (2 * step)
    used = np.flatnonzero(np.isfinite(slopes) & (slopes > 0))
    for at in used:
        yield goal.parts[at], goal.target / (float(slopes[at]) * math.sqrt(used.size))


def hint_notes(results: Sequence[Answer], cores: Sequence[tuple[Core, tuple[slice, ...]]], widths: Any) -> list[Note]:
    """A note for each result whose hint MAX_ERROR a given budget does not meet; ``cores``: those of ``results``."""
    names = [result.name for result in results for _ in result.cores]
    found: dict[str, tuple[float, float]] = {}
    for name, (core, slices) in zip(names, cores, strict=True):
        hint = core.queries[0].max_error
        parts = [slices[column.output] for column in core.columns if isinstance(column, Measured)]
        largest = max((float(widths[part].max(initial=0.0)) for part in parts), default=0.0)
        if hint is not None and largest > hint * (1 + 1e-9) and largest > found.get(name, (0.0, 0.0))[0]:
            found[name] = largest, hint
    return [
        Note(
            f"{name} asks for ±{hint:g} by its hint and gets ±{largest:.4g}; plan without a budget to find the "
            "one it needs",
            ERROR,
        )
        for name, (largest, hint) in found.items()
    ]


def targets_text(targets: Wanted, alpha: float) -> str:
    """What was asked, in words; ``alpha``: the level of the plan's intervals."""
    parts = []
    if targets.max_error is not None:
        parts.append(f"±{targets.max_error:g}")
    if targets.relative is not None:
        parts.append(f"±{100 * targets.relative:g}% of what is expected")
    parts += [f"±{value:g} for {name}" for name, value in targets.by_name[:4]]
    if len(targets.by_name) > 4:
        parts.append(f"{len(targets.by_name) - 4} more")
    asked = ", ".join(parts) or "what the hints of the batch ask"
    level = f"{100 * (1 - targets.alpha):g}"
    of = f"each number in {level} of 100 releases"
    if targets.simultaneous:
        of = f"all numbers together in {level} of 100 releases (each in {100 * (1 - alpha):.6g})"
    return f"{asked}, {of}; this is the least budget for it"
