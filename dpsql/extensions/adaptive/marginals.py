"""Adaptive measurement at any width: rounds that choose which marginal of the batch to measure next.

The loop is that of AIM (McKenna, Mullins, Sheldon and Miklau 2022), on the residual basis in place of a model of all
cells (AIM + GReM: Mullins, Fuentes, Xiao, Kifer, Musco and Sheldon 2024), so that there is no limit to how many columns
go together. What may be measured are all marginals inside one that the batch asks for. Where those have more than
``MOST_NUMBERS`` numbers together, only the smallest up to ``WHEN_CUT`` may, and larger ones are made up of them: noise
leaves little of numbers of few rows. First each column alone; then in each round the exponential mechanism selects one
whose measurement should gain most,

    score_S = w_S (||x_S - e_S||_1 - p_S),        w_S = sum over wanted R of |R and S|,

e the feasible estimate of what is known so far (``dpsql.extensions.adaptive.adaptive_answers``), p_S the error that a
measurement would leave: what noise of that size does to e_S, once it is on the simplex again, drawn from a public seed.

Budget. A round at k costs k^2 (k for Laplace noise) times one at 1, of which ``rounds`` make nine tenths of the budget;
the columns take the tenth part, or as near to it as whole k are. A tenth of a round selects. k begins at 1 and doubles
when a measurement changed the estimate less than its noise does (annealing); what is left in the end goes to the
largest k that it pays for. A unit's change of a marginal of counts is at most the rows of it that count, in L1.

Errors depend on the data. They are estimated by one run on each of two public stand-ins of ``expected_rows`` rows, the
worse of both: columns by Zipf's law, apart from each other, and with four in ten rows of a kind that all columns share.
A release says more where its own answers were farther from the estimate than those of stand-ins, or its rows are more
than expected.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property, lru_cache
from itertools import combinations
from math import isqrt, prod, sqrt

import numpy as np

from dpsql.common.arrays import Floats
from dpsql.errors import DataError, InternalError
from dpsql.extensions.adaptive.adaptive_answers import MarginalModel, on_simplex
from dpsql.extensions.adaptive.steps import ROUNDS, Step, later
from dpsql.linalg.blocks import Plain, Residual
from dpsql.planning.estimated import GRID
from dpsql.reconstruct import ResidualAnswers
from dpsql.strategies.core.stand_ins import noise_like, stand_in_tables
from dpsql.strategies.marginals.multipliers import homes
from dpsql.workloads.compile.kronecker import KroneckerIntegers
from dpsql.workloads.compile.structured import MAX_NUMBERS, Structured, with_histograms

Axes = tuple[int, ...]

MOST_CANDIDATES, MOST_NUMBERS, WHEN_CUT = 2**12, MAX_NUMBERS, 2**20
_COLUMNS, _SELECTS = Fraction(1, 10), Fraction(1, 10)  # shares of the budget, and of a round
_GRID = 1 - Fraction(1, 2**20)  # what the grid of a selection's epsilon may leave to measurements is below 2^-20
_ROUGH = 30  # steps of an estimate between two rounds
_NOISE_SEED = 20241003


@dataclass(frozen=True, eq=False)
class AdaptiveMarginals:
    """A run that measures marginals of ``planned``, all over one table: public, fixed before any data are read.

    ``candidates`` (m,): sets of axes, the smaller ones first; ``beyond``: those asked that are none. ``unit``: rows of
    a unit that count. ``spends``: epsilon or mu^2. ``each_measure``, ``each_selection`` (an epsilon), ``each``: what a
    round at k = 1 measures at, selects at and costs in all; ``columns``: the k of the columns. ``rows``: how many the
    errors are estimated for; ``misfit``: how far from the estimate the answers of stand-ins were, in rows.
    """

    planned: Structured = field(repr=False)
    table: int
    candidates: tuple[Axes, ...] = field(repr=False)
    noise: str
    unit: int
    spends: Fraction
    each_measure: Fraction
    each_selection: Fraction
    each: Fraction
    columns: int
    rounds: int
    rows: int
    misfit: float = 0.0
    method: str = "adaptive"
    blocks: tuple[int, ...] = ()
    objective: str = "total"
    gap: None = None
    lower_bound: None = None
    considered: tuple[tuple[str, float], ...] = ()
    beyond: tuple[Axes, ...] = ()

    @cached_property
    def requested(self) -> tuple[Axes, ...]:
        """The sets of axes of the batch's blocks."""
        sizes = self.planned.sizes[self.table]
        return tuple(dict.fromkeys(_wide(block.axes, sizes) for block in self.planned.blocks))

    @cached_property
    def model(self) -> MarginalModel:
        """What answers are put together to."""
        return MarginalModel(self.planned.sizes[self.table], self.candidates, self.variance, self.beyond)

    @property
    def variance(self) -> float:
        """Of the noise of one measured entry, k times a count."""
        if self.noise == "gaussian":
            return float(self.unit**2 / self.each_measure)
        return float(2 * (self.unit / self.each_measure) ** 2)

    @cached_property
    def measured(self) -> KroneckerIntegers:
        """All candidates, one after the other."""
        home = homes(self.planned.histograms, [(self.table, 0, S) for S in self.candidates])
        sizes = self.planned.sizes[self.table]
        whole = (
            Residual(self.table, 0, S, home[self.table, 0, S], tuple(Plain(sizes[i]) for i in S), whole=True)
            for S in self.candidates
        )
        return KroneckerIntegers(self.planned.histograms, tuple(whole))

    @cached_property
    def stops(self) -> tuple[int, ...]:
        """Where each candidate ends."""
        return tuple(np.cumsum([prod(self.model.shape(S)) for S in self.candidates]).tolist())

    @property
    def reach(self) -> tuple[int, ...]:
        """A unit's rows are in one group each."""
        return (self.unit,) * len(self.candidates)

    @cached_property
    def weights(self) -> tuple[int, ...]:
        """w_S."""
        return tuple(sum(len(set(S) & set(R)) for R in self.requested) for S in self.candidates)

    @property
    def steep(self) -> tuple[int, ...]:
        """All scores are compared by the largest change of any."""
        return (max(self.weights) * self.unit,) * len(self.candidates)

    @property
    def shape(self) -> tuple[int, int]:
        """(rounds, n): how long a transcript is depends on the data."""
        return (self.rounds, self.measured.shape[1])

    @property
    def described(self) -> str:
        """One line of a plan's text."""
        noise = {"gaussian": "Gaussian", "laplace": "Laplace"}[self.noise]
        return (
            f"adaptive, rounds over {len(self.candidates):,} marginals of {self.stops[-1]:,} numbers: a tenth of the "
            f"budget measures the columns one by one, a tenth of the rest selects, all else measures what is selected, "
            f"with integer {noise} noise{self._left}; errors are estimated, not certified"
        )

    @property
    def _left(self) -> str:
        """What is said of larger marginals."""
        return f", and {len(self.beyond):,} larger ones are made up of them" if self.beyond else ""

    def price(self, times: int) -> Fraction:
        """What a round at k = ``times`` costs."""
        return self.each * times ** (2 if self.noise == "gaussian" else 1)

    def measure_at(self, times: int) -> Fraction:
        """What its measurement alone costs."""
        return self.each_measure * times ** (2 if self.noise == "gaussian" else 1)

    def largest(self, left: Fraction) -> int:
        """The largest k whose round ``left`` pays for; 0 where it pays for none."""
        whole = int(left / self.each)
        return isqrt(whole) if self.noise == "gaussian" else whole

    def course(self) -> MarginalCourse:
        """A run at its beginning."""
        return MarginalCourse(self)

    def replayed(self, transcript: Sequence[int]) -> MarginalCourse:
        """The run after a transcript. Raises InternalError where that is none."""
        return _replayed(self, tuple(transcript))

    def numbers(self, transcript: Sequence[int]) -> Floats:
        """The batch's numbers (m,) of a transcript."""
        return _numbers(self, tuple(transcript)).copy()

    def numbers_of(self, tables: dict[Axes, Floats]) -> Floats:
        """The batch's numbers (m,) of tables of all candidates."""
        total = np.asarray(next(iter(tables.values())).sum())
        sizes, held = self.planned.sizes[self.table], {}
        for axes in {block.axes for block in self.planned.blocks}:
            inside = _wide(axes, sizes)
            table = tables[inside] if inside else total
            held[self.table, 0, axes] = table.reshape([sizes[i] for i in axes])
        answers = ResidualAnswers(self.planned.blocks, (), self.planned.sizes, self.planned.numbers)
        return answers.numbers_of(held)

    def stretch(self, transcript: Sequence[int]) -> float:
        """By what the estimated errors are multiplied once a transcript is there, at least 1; as the module says."""
        course = self.replayed(transcript)
        first = self.stops[0]
        larger = max(1.0, sum(transcript[2 : 2 + first]) / transcript[1] / self.rows)
        return larger * max(1.0, later(course.misfits) / (self.misfit * larger)) if self.misfit else larger


@lru_cache(maxsize=4)
def _replayed(run: AdaptiveMarginals, transcript: tuple[int, ...]) -> MarginalCourse:
    course, at = run.course(), 0
    sizes = [stop - start for start, stop in zip((0, *run.stops), run.stops, strict=False)]
    while at < len(transcript):
        number, times = transcript[at], transcript[at + 1] if at + 1 < len(transcript) else 0
        if not 0 <= number < len(sizes):
            raise InternalError("a transcript names a marginal that there is not")
        answer, at = transcript[at + 2 : at + 2 + sizes[number]], at + 2 + sizes[number]
        course.learn(number, times, answer)
    return course


@lru_cache(maxsize=4)
def _numbers(run: AdaptiveMarginals, transcript: tuple[int, ...]) -> Floats:
    found = run.numbers_of(_replayed(run, transcript).fit.tables())
    return np.rint(found / GRID) * GRID if len(found) > MAX_NUMBERS else found


class MarginalCourse:
    """A run of ``AdaptiveMarginals``; ``misfits``: how far selected answers were from the estimate, noise taken off."""

    def __init__(self, run: AdaptiveMarginals) -> None:
        self.run = run
        self.fit = run.model.start()
        self.misfits: list[float] = []
        self._left = run.spends
        self._columns = [number for number, S in enumerate(run.candidates) if len(S) == 1]
        self._estimate: dict[Axes, Floats] = {}
        self._times, self._ends = 1, False

    def step(self) -> Step | None:
        """The next column, or the next round; None where nothing is left."""
        run = self.run
        if self._columns:
            number, times = self._columns[0], run.columns
            return Step(number, run.measure_at(times), times, transcript=(number, times))
        if self._left < 2 * run.price(self._times):  # one more, and what little that leaves
            self._ends, self._times = True, run.largest(self._left)
        if not self._times:
            return None
        known = self.estimate
        penalties = [round(w * self._left_over(S)) for w, S in zip(run.weights, run.candidates, strict=True)]
        return Step(
            None,
            run.measure_at(self._times),
            self._times,
            selection=run.each_selection * self._times,
            estimate=np.rint(np.concatenate([known[S].ravel() for S in run.candidates])).astype(np.int64).tolist(),
            penalties=penalties,
            transcript=(self._times,),
        )

    @property
    def estimate(self) -> dict[Axes, Floats]:
        """The estimate so far, roughly."""
        if not self._estimate:
            self._estimate = self.fit.guess(_ROUGH)
        return self._estimate

    def _left_over(self, axes: Axes) -> float:
        """The L1 error that a measurement of a marginal as it is estimated would leave."""
        table, noise = self.estimate[axes], np.random.default_rng(_NOISE_SEED)
        off = noise.normal(0.0, sqrt(self.run.variance) / self._times, table.shape)
        return float(np.abs(on_simplex(table + off) - table).sum())

    def learn(self, number: int, times: int, answer: Sequence[int]) -> None:
        """Take in the noisy answer of a step."""
        run, axes = self.run, self.run.candidates[number]
        if self._columns:
            self._columns.remove(number)
            self._left -= run.measure_at(times)
            self.fit.learn(axes, times, answer)
            return
        self._times, self._left = times, self._left - run.price(times)
        before, threshold = self.estimate[axes], self._left_over(axes)
        found = np.array(answer, dtype=np.float64).reshape(before.shape) / times
        noise = before.size * run.variance / times**2
        self.misfits.append(sqrt(max(float(np.sum((found - before) ** 2)) - noise, 0.0)))
        self.fit.learn(axes, times, answer)
        self._estimate = {}
        if not self._ends and float(np.abs(self.estimate[axes] - before).sum()) <= threshold:
            self._times *= 2


def adaptive_marginals(
    batch: Structured,
    noise: str,
    budget: Fraction,
    selecting: Callable[[Fraction], Fraction],
    rows: int,
    *,
    rounds: int | None = None,
    progress: Callable[[str], None] | None = None,
) -> tuple[AdaptiveMarginals, Floats]:
    """The run for a batch, and the estimated mean squared errors (m,) of its numbers.

    ``budget``: epsilon, or mu^2 for Gaussian noise; ``selecting(epsilon)``: what a selection costs of it. ``rows``: the
    number that the policy expects. ``rounds``: how many rounds at k = 1 the budget is cut into; one or 4 a column, by
    the least estimated error, if not given. Cost: four runs without data, seconds for some 100,000 numbers. Raises
    DataError for batches that it is not for, with what to do instead.
    """
    if rounds is not None and (isinstance(rounds, bool) or not isinstance(rounds, int) or not 1 <= rounds <= 1000):
        raise DataError(ROUNDS)
    table, found = _candidates(batch)
    batch, candidates = _measurable(batch, table, found)
    beyond = tuple(S for S in found if S not in set(candidates))
    single = sum(len(S) == 1 for S in candidates)
    say, tried = progress or (lambda _: None), []
    for number in sorted({max(8, single), max(16, 4 * single)}) if rounds is None else (rounds,):
        run = replace(_cut(batch, table, candidates, rows, _Payment(noise, budget, selecting), number), beyond=beyond)
        say(f"{number} rounds, on stand-ins for the data")
        tried.append((*_judged(run), run))
    _, errors, misfit, run = min(tried, key=lambda found: found[0])
    considered = tuple((f"{held.rounds} rounds", error) for error, _, _, held in tried)
    return replace(run, misfit=misfit, considered=considered), errors


@dataclass(frozen=True)
class _Payment:
    """The noise, the ``budget`` in its units, and what selecting at an epsilon takes of it."""

    noise: str
    budget: Fraction
    selecting: Callable[[Fraction], Fraction]


def _cut(
    batch: Structured,
    table: int,
    candidates: tuple[Axes, ...],
    rows: int,
    payment: _Payment,
    rounds: int,
) -> AdaptiveMarginals:
    """The run whose budget is cut into so many ``rounds`` and the columns."""
    noise, budget, selecting = payment.noise, payment.budget, payment.selecting
    single, power = sum(len(S) == 1 for S in candidates), 2 if noise == "gaussian" else 1
    paid = 1 - _SELECTS  # of a round: that is what a column costs at k = 1
    share = _COLUMNS / (1 - _COLUMNS) * rounds / (paid * single)
    columns = max(1, round(float(share) ** (1 / power)))
    each = budget * _GRID / (rounds + paid * single * columns**power)
    # The epsilon whose selection costs the tenth part of a round, never more; a grid makes it a short fraction.
    epsilon = _SELECTS * each
    if noise == "gaussian":
        epsilon = Fraction(int(sqrt(float(epsilon / selecting(Fraction(1)))) * 2**40), 2**40)
    measure = each - selecting(epsilon)
    unit = batch.layouts[batch.owners[table][0]].multiplicity
    run = AdaptiveMarginals(
        batch, table, candidates, noise, unit, budget, measure, epsilon, each, columns, rounds, rows
    )
    run.measured.check()
    return run


def _judged(run: AdaptiveMarginals) -> tuple[float, Floats, float]:
    """(mean L1 error, mean squared errors (m,), misfit) of a run on stand-ins: the worst of them, the numbers' own."""
    batch = run.planned
    total, errors, misfits = 0.0, np.zeros(batch.numbers), []
    for tables in stand_in_tables(run.model.sizes, (*run.candidates, *run.beyond), run.rows):
        course = simulated(run, tables)
        off = run.numbers_of(course.fit.tables()) - run.numbers_of(tables)
        errors = np.maximum(errors, _by_span(batch, off**2))
        total = max(total, float(np.abs(off).mean()))
        misfits.append(later(course.misfits))
    return total, errors, float(np.sqrt(np.mean(np.square(misfits))))


def _by_span(batch: Structured, squares: Floats) -> Floats:
    """The mean of each result column, at each of its numbers."""
    out = np.zeros_like(squares)
    for span in batch.spans:
        out[span.start : span.stop] = squares[span.start : span.stop].mean()
    return out


def _candidates(batch: Structured) -> tuple[int, tuple[Axes, ...]]:
    """The batch's table and the sets of axes inside those requested, the smaller sets first. Raises DataError."""
    said, other = "method='adaptive'", "use method='auto'"
    tables = {block.table for block in batch.blocks}
    if len(tables) != 1:
        names = ", ".join(batch.tables[t] for t in sorted(tables))
        raise DataError(f"{said} is for batches over one table; this one reads {names}: ask for each in a batch")
    (table,) = tables
    if any(block.component for block in batch.blocks):
        raise DataError(f"{said} is for counts of rows; leave sums and averages out, or {other}")
    largest = {_wide(block.axes, batch.sizes[table]) for block in batch.blocks}
    found = {T for S in largest for order in range(1, len(S) + 1) for T in combinations(S, order)}
    if not found or len(found) > MOST_CANDIDATES:
        raise DataError(
            f"{said} selects among {len(found):,} marginals, at least 1 and at most {MOST_CANDIDATES:,}; ask for fewer "
            f"columns in one batch, or {other}"
        )
    return table, tuple(sorted(found, key=lambda S: (len(S), S)))


def _measurable(batch: Structured, table: int, candidates: tuple[Axes, ...]) -> tuple[Structured, tuple[Axes, ...]]:
    """The batch with histograms of what may be measured, and that: all, or the smallest where those are too many."""
    sizes, held = batch.sizes[table], 0
    if sum(prod(sizes[i] for i in S) for S in candidates) <= MOST_NUMBERS:
        return batch, candidates
    kept, wanted = set(), {}
    for S in sorted(candidates, key=lambda S: (len(S) > 1, prod(sizes[i] for i in S), S)):
        held += prod(sizes[i] for i in S)
        if held <= WHEN_CUT or len(S) == 1:
            kept.add(S)
            home = next(block.axes for block in batch.blocks if set(S) <= set(block.axes))
            # An axis of one region keeps rows out that are in none of it.
            wanted[tuple(i for i in home if i in S or sizes[i] == 1)] = {0}
    return with_histograms(batch, {table: wanted}), tuple(S for S in candidates if S in kept)


def _wide(axes: Axes, sizes: tuple[int, ...]) -> Axes:
    """Those of more than one region."""
    return tuple(axis for axis in axes if sizes[axis] > 1)


def simulated(run: AdaptiveMarginals, tables: dict[Axes, Floats]) -> MarginalCourse:
    """A run over public tables, with noise of floats from a public seed: for estimates."""
    draws, course = np.random.default_rng(_NOISE_SEED), run.course()
    exact = np.concatenate([tables[S].ravel() for S in run.candidates])
    starts = np.array([0, *run.stops[:-1]])
    while (step := course.step()) is not None:
        number = step.number
        if number is None:
            off = np.add.reduceat(np.abs(exact - np.asarray(step.estimate)), starts)
            scores = (np.array(run.weights) * off - np.array(step.penalties)) / np.array(run.steep)
            number = int(np.argmax(float(step.selection) * scores / 2 + draws.gumbel(size=len(scores))))
        true = tables[run.candidates[number]].ravel()
        noisy = step.times * true + noise_like(run.noise, run.variance, true.size, draws)
        course.learn(number, step.times, np.rint(noisy).astype(np.int64).tolist())
    return course
