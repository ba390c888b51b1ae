"""What the limits of a policy cut of the rows that a batch counts: known from the ledger, or the price of knowing it.

A release of the kind `KIND` has, for each limit on the rows of a unit, a noisy histogram of the units
(which an extension measures). From it follows, as post-processing and for every figure
of the limit at once, how many rows are cut (``dpsql.reconstruct.unit_histogram``).

A batch loses at most what is cut of the whole table: the rows that count are chosen among those that it counts, of a
unit as many as the limit lets, so that one with fewer of them loses fewer. Rows without a unit are one owner and in
no histogram: what is cut of them is not part of any figure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from dpsql.common.numerics import ALPHA
from dpsql.errors import BudgetError, DataError
from dpsql.planning.plan import Plan
from dpsql.policy import Policy, TablePolicy
from dpsql.policy.at_most import AtMost
from dpsql.privacy.accountant import Budget, Request, charge_for
from dpsql.privacy.noise import Noise
from dpsql.reconstruct.intervals import half_widths
from dpsql.reconstruct.unit_histogram import Estimate, UnitHistogram, beyond, ends_of
from dpsql.release.books import Books
from dpsql.release.cut import Cut, Losses
from dpsql.release.payload import unpack
from dpsql.sql.outer.answers import Answer
from dpsql.workloads.expr.batch import Core
from dpsql.workloads.expr.rows import RowSource

KIND = "losses"
Measured = Mapping[tuple[str, str], tuple[UnitHistogram, int]]
"""The most precise histogram of each table and limit, with its release."""
NEAR = 0.1
"""How near the measured loss should be to the true one for the price that is said: in shares of the expected rows."""


@dataclass(frozen=True)
class Limit:
    """A limit on the rows of a unit, in words. ``of`` names the histogram that tells what it cuts: units by a number of
    rows each, of which those beyond ``figure`` are cut, or ``least`` of them (``UnitHistogram.rows_beyond``).
    """

    text: str
    of: str
    figure: int
    least: str = "same"
    bound: AtMost | None = None


def limits_of(table: TablePolicy, most: int | None = None, *, spread: bool = True) -> list[Limit]:
    """The limits of a table: ``max_rows_per_unit``, or ``most`` where fewer rows of a unit count; and, where a batch is
    held to them (``spread``), what ``at_most`` says.
    """
    rows = table.max_rows_per_unit or 1
    least, name = min(rows, most or rows), "max_rows_per_unit" if (most or rows) >= rows else "rows_per_unit"
    limits = [Limit(f"{name} = {least}", "rows", least)]
    for bound in table.at_most if spread else ():
        if bound.rows is not None:
            part, of = AtMost(bound.per, rows=bound.rows), f"rows after the first of each {bound.per}"
            limits.append(Limit(f"at most {part}", of, bound.rows - 1, "same" if bound.rows == 1 else "none", part))
        if bound.groups is not None:
            part = AtMost(bound.per, groups=bound.groups)
            limits.append(Limit(f"at most {part}", f"rows of units with more than {part}", 0, "one", part))
    return limits


def histograms_of(policy: Policy) -> dict[str, list[Limit]]:
    """By table the limits that a histogram can be measured of."""
    counted = [table for table in policy.tables.values() if not table.not_counted and table.largest_unit is not None]
    return {table.name: limits_of(table) for table in counted}


@dataclass(eq=False)
class LedgerLosses:
    """What one connection's ledger says of the losses of its data version."""

    books: Books
    _read: dict[int, dict[tuple[str, str], UnitHistogram]] = field(default_factory=dict)

    def histograms(self, policy: Policy) -> Measured:
        """The histograms of all tables whose unit and ``largest_unit`` are still those that were measured."""
        best: dict[tuple[str, str], tuple[UnitHistogram, int]] = {}
        for entry in self.books.entries() if self.books.path.exists() else ():
            same = entry.released is not None and entry.dataset == self.books.dataset
            if not same or entry.description.get("kind") != KIND:
                continue
            if entry.id not in self._read:
                measured = unpack(self.books.ledger().release(entry.id).payload or b"")[1]
                self._read[entry.id] = dict(_histograms(entry.description["histograms"], measured.y, measured.law))
            for key, histogram in self._read[entry.id].items():
                table = policy.tables.get(key[0])
                if table is None or entry.description["limits"][key[0]].get("unit") != table.unit:
                    continue
                precise = key not in best or histogram.noise.variance <= best[key][0].noise.variance
                if precise and histogram.ends[-1] == table.largest_unit:
                    best[key] = histogram, entry.id
        return best

    def of_plan(self, plan: Plan, policy: Policy, budget: Budget) -> dict[str, Losses]:
        """What is measured of each result of a plan, by its name."""
        return self.of(plan.queries, {layout.table: layout.source for layout in plan.compiled.layouts}, policy, budget)

    def of(
        self, answers: Sequence[Answer], sources: Mapping[str, RowSource], policy: Policy, budget: Budget
    ) -> dict[str, Losses]:
        """The same of statements over ``sources``, by the names that their queries have for them."""
        if all(source.unit is None for source in sources.values()):
            return dict.fromkeys((answer.name for answer in answers), Losses({}, ()))
        by_result: dict[str, Losses] = {}
        measured: Measured = {}
        for answer in answers:
            read = {source.table: source for core in answer.cores for source in _cut_in(core, sources)}
            measured = self.histograms(policy) if read and not measured else measured
            cuts, notes = dict[str, Cut](), list[str]()
            for name, source in read.items():
                limits = limits_of(policy.tables[name], source.limit, spread=bool(source.caps))
                if len(limits) == 1 and limits[0].figure >= (policy.tables[name].largest_unit or math.inf):
                    continue  # nobody has more rows than count
                if is_measured(name, limits, measured):
                    cuts[name] = cut_by(name, limits, measured)
                notes.append(str(cuts[name]) if name in cuts else unmeasured(policy, name, limits, budget))
            by_result[answer.name] = joined([Losses(cuts, tuple(notes)), *(by_result[name] for name in answer.reads)])
        return by_result


def bought_with_a_run(policy: Policy, measured: Measured) -> str:
    """What the next charged run measures beside its batch, by the policy's [budget] losses; empty for nothing."""
    limits = [(name, limit) for name, limits in histograms_of(policy).items() for limit in limits]
    if policy.budget.losses is None or all(is_measured(name, [limit], measured) for name, limit in limits):
        return ""
    measure = "epsilon" if policy.budget.rho is None else "rho"
    return (
        f"the next run also measures what limits cut, for {measure} {float(policy.budget.losses):g}, once for this "
        "version of the data: a release of its own, as [budget] losses says"
    )


def joined(each: Iterable[Losses]) -> Losses:
    """What is measured of several results together."""
    losses = list(each)
    cuts = {table: cut for one in losses for table, cut in one.cuts.items()}
    return Losses(cuts, tuple(dict.fromkeys(note for one in losses for note in one.notes)))


def is_measured(table: str, limits: Iterable[Limit], measured: Measured) -> bool:
    """Whether there is a histogram for each of the limits of a table."""
    return all((table, limit.of) in measured for limit in limits)


def cut_by(table: str, limits: Sequence[Limit], measured: Measured) -> Cut:
    """What limits that are measured cut of a table together.

    Each of them cuts at most all of it and no row is cut twice: the loss is at least the largest and at most the sum.
    """
    histograms = [measured[table, limit.of][0] for limit in limits]
    pairs = list(zip(histograms, limits, strict=True))
    rows = _together([one.rows_beyond(limit.figure, limit.least) for one, limit in pairs])
    units = _together([one.units_beyond(limit.figure) for one, limit in pairs])
    whole = histograms[0].rows()  # the first limit is that on all rows of a unit
    total = max(whole.value, rows.value, 1.0)
    return Cut(
        *(table, ", ".join(limit.text for limit in limits)),
        *(rows.value, rows.stderr, rows.low, rows.high),
        *(units.value, units.low, units.high),
        rows_of_table=total,
        share=rows.value / total,
        share_low=min(1.0, rows.low / max(whole.high, 1.0)),
        share_high=min(1.0, rows.high / max(whole.low, 1.0)),
        at_most=rows.low <= 0.0,
        release=measured[table, limits[0].of][1],
    )


def unmeasured(policy: Policy, name: str, limits: Sequence[Limit], budget: Budget) -> str:
    """The sentence for a table of which nothing was measured: what it would take, from what is public."""
    table, amount = policy.tables[name], "epsilon" if budget.rho is None else "rho"
    left_out = f"what is cut of {name} ({', '.join(limit.text for limit in limits)}) is left out of intervals"
    if table.not_counted:
        return f"{left_out} and not measured: {table.not_counted}"
    if table.largest_unit is None:
        place = table.key("largest_unit")
        return f"{left_out} and not measured: declare {place}, the most rows that one {table.unit} can have"
    weights = beyond(table.largest_unit, min(limits[0].figure, table.largest_unit - 1))
    labels = [policy.labels[other] for other, each in histograms_of(policy).items() for _ in each]
    together = labels.count(policy.labels[name])  # in so many histograms a unit is
    try:
        if table.expected_rows is None:
            width = _width(weights, together, Fraction(1, 10), budget)
            would = f"`dpsql policy check --losses --{amount} 0.1` would bring its noise within {width:,.0f} rows"
        else:
            price = _price(weights, together, NEAR * table.expected_rows, budget)
            there = price <= (budget.rho or budget.pure_epsilon or budget.epsilon or 0)
            how = f"`dpsql policy check --losses --{amount} {float(price):g}`"
            how = how if there else f"{amount} {float(price):g}, more than the budget holds for it,"
            would = f"{how} would bring its noise within {100 * NEAR:g} % of the rows"
    except (BudgetError, DataError):
        would = "no budget pays for a histogram that would tell it"
    return f"{left_out} and not measured: {would}"


def _width(weights: np.ndarray, together: int, amount: Fraction, budget: Budget) -> float:
    """The half-width of the noise in a sum over one of ``together`` histograms that are bought for an amount."""
    request = Request(epsilon=amount) if budget.rho is None else Request(rho=amount)
    laws = [charge.calibrate(together) for charge in charge_for(request, budget)]
    return min(float(half_widths(weights[None, :], law, ALPHA)[0]) for law in laws)


def _price(weights: np.ndarray, together: int, target: float, budget: Budget) -> Fraction:
    """The least amount, to two digits, for which the noise in the sum has the target half-width, between 1e-6 and 1e4.

    DataError where that is not enough.
    """
    low, high = Fraction(1, 10**6), Fraction(10**4)
    if _width(weights, together, high, budget) > target:
        raise DataError("no budget tells so much")
    while high > low * Fraction(101, 100):
        middle = Fraction((float(low) * float(high)) ** 0.5)
        low, high = (low, middle) if _width(weights, together, middle, budget) <= target else (middle, high)
    step = Fraction(10) ** (int(np.floor(np.log10(float(high)))) - 1)
    return -(-high // step) * step


def _cut_in(core: Core, sources: Mapping[str, RowSource]) -> Iterator[RowSource]:
    """The sources of a core of whose rows a limit may leave some out."""
    for query in core.queries:
        source = sources.get(query.table)
        if source is None or source.unit is None or source.single or source.public or source.of is not None:
            continue
        if source.added is not None:
            continue  # whose bounds cut what a unit adds, not its rows
        if source.counts_units and query.rows <= source.limit:
            continue  # units that are counted in as many groups as there are
        yield source


def _together(each: Sequence[Estimate]) -> Estimate:
    largest = max(each, key=lambda one: one.value)
    return Estimate(largest.value, largest.stderr, max(one.low for one in each), sum(one.high for one in each))


def _histograms(
    listed: Iterable[Mapping[str, object]], y: Sequence[int], law: Noise
) -> Iterator[tuple[tuple[str, str], UnitHistogram]]:
    """The histograms of a release, by table and limit, from what it measured."""
    place = 0
    for one in listed:
        ends = ends_of(int(str(one["largest"])))
        yield (str(one["table"]), str(one["of"])), UnitHistogram(ends, tuple(y[place : place + len(ends)]), law)
        place += len(ends)
