"""MWEM: a few measured queries, chosen by the data, and a table made up to agree with them.

Multiplicative weights with the exponential mechanism (Hardt, Ligett and McSherry 2012): each round selects, privately,
a query that the made-up table answers badly, measures it, and corrects the table. The error depends on the data: no
certificate holds for it, and what is planned here is an estimate, by runs on public stand-ins for the data. What may be
selected is "mwem": the rows of the workload, or "mwem-strategy": the rows of the strategy that is planned for it, as
Li and Miklau 2013, section 6.3, suggest: the building blocks of the workload, each of which corrects many answers.

Budget (all exact, pure). Half of epsilon is for measuring, in rounds + 1 equal parts: the number of rows, which is
not public, and one query a round. The other half is for selecting, one part a round.

Candidates are weighed by what one unit can change of them (their reach): a score is the distance between true and
made-up answer in that unit. Weights of hints do not count.

What a run says of its own errors (``Mwem.stretch``, free: a function of the transcript). The estimates are of as many
rows as the policy expects, and of stand-ins. Both can be wrong, and the transcript tells:

- It has the noisy number of rows. With c times the rows and epsilon / c everything is c times as large, to the letter.
  At the same epsilon there is less noise beside the rows, so that it should be no larger (assumed, not proved). So
  errors are taken c times, c = noisy rows / expected ones, where c > 1.
- The selected candidates are about the worst answered ones, and their noisy answers say how far off the made-up table
  was. Where that is more, by root mean squares over the later half of the rounds, than it was on stand-ins of so many
  rows, the errors are taken so many times more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

import numpy as np
from scipy import sparse

from dpsql.common.arrays import Csr, Floats, Matrix
from dpsql.errors import DataError
from dpsql.extensions.adaptive.steps import ROUNDS as HOW_MANY
from dpsql.extensions.adaptive.steps import Step, later
from dpsql.extensions.papers.multiplicative_weights import Fit, Model, model_of
from dpsql.linalg.forms import is_sparse
from dpsql.strategies.core.matrix_strategy import MatrixStrategy
from dpsql.strategies.core.stand_ins import stand_in_rays
from dpsql.strategies.selection import select
from dpsql.workloads.cells.integers import Factored
from dpsql.workloads.compile.compiled import Compiled
from dpsql.workloads.compile.cone import Cone, cone_of

MOST_RAYS = 2**16
MOST_CANDIDATES = 2**16
MOST_ENTRIES = 2**24
ROUNDS = (2, 4, 8, 16, 32)
"""The numbers of rounds that are tried."""
_SIMULATION_SEED = 20121204
_TRIED, _RUNS = 2, 8
"""Runs on each kind of stand-in: for each number of rounds, and for the errors in the end."""


@dataclass(frozen=True, eq=False)
class Mwem:
    """What an MWEM run may select, and how often: public, fixed before any data are read.

    ``candidates`` (1 + m x n, integer csr): row 0 counts the rows of the table, the others may be selected. ``reach``
    (1 + m,): how far one unit can move each of L times them, exact. ``rounds``; ``epsilon`` of all of it together.
    ``tried``: (rounds, estimated total squared error). ``rows``: those that the estimates are for; ``misfit``: how far
    off selected candidates were found on the stand-ins, as ``misfit_of``.
    """

    method: str
    candidates: Csr = field(repr=False)
    reach: tuple[int, ...] = field(repr=False)
    model: Model = field(repr=False)
    rounds: int
    epsilon: Fraction
    tried: tuple[tuple[int, float], ...] = ()
    rows: int = 1
    misfit: float = 0.0
    noise: str = "laplace"
    blocks: tuple[int, ...] = ()
    objective: str = "total"
    gap: None = None
    lower_bound: None = None

    @property
    def measured(self) -> Factored:
        """The candidates as what is multiplied with x."""
        p = self.candidates.shape[0]
        return Factored(sparse.eye_array(p, dtype=np.int64, format="csr"), self.candidates)

    @property
    def stops(self) -> tuple[int, ...]:
        """Every row is a candidate."""
        return tuple(range(1, self.candidates.shape[0] + 1))

    @property
    def weights(self) -> tuple[int, ...]:
        """Every distance counts once; what it is compared by is the candidate's own reach."""
        return (1,) * len(self.reach)

    @property
    def steep(self) -> tuple[int, ...]:
        """A unit moves a distance no further than the candidate."""
        return self.reach

    @property
    def spends(self) -> Fraction:
        """epsilon of the whole run."""
        return self.rounds * self.each_selection + (self.rounds + 1) * self.each_measure

    def course(self) -> MwemCourse:
        """A run at its beginning."""
        return MwemCourse(self)

    @property
    def shape(self) -> tuple[int, int]:
        """(whole numbers of a transcript, n): the total, and a query and its answer a round."""
        return (1 + 2 * self.rounds, self.candidates.shape[1])

    @property
    def considered(self) -> tuple[tuple[str, float], ...]:
        """(rounds, estimated error) of what was tried."""
        return tuple((f"{rounds} rounds", error) for rounds, error in self.tried)

    @property
    def each_measure(self) -> Fraction:
        """epsilon of one measurement: half of all, in rounds + 1 parts."""
        return self.epsilon / 2 / (self.rounds + 1)

    @property
    def each_selection(self) -> Fraction:
        """epsilon of one selection: half of all, a part a round."""
        return self.epsilon / 2 / self.rounds

    @property
    def described(self) -> str:
        """One line of a plan's text."""
        what = "rows of the strategy" if self.method == "mwem-strategy" else "rows of the workload"
        return (
            f"{self.method}, {self.rounds} rounds over {self.candidates.shape[0] - 1:,} {what}: half of epsilon "
            "selects, half measures the number of rows and one row a round, with integer Laplace noise; errors are "
            "estimated, not certified"
        )

    def stretch(self, transcript: Sequence[int]) -> float:
        """By what the estimated errors are multiplied once a transcript is there, at least 1; as the module says."""
        larger = max(1.0, transcript[0] / self.model.scale / self.rows)
        if not self.misfit:
            return larger
        fit, found = self.model.start(transcript[0]), []
        for number, answer in zip(transcript[1::2], transcript[2::2], strict=True):
            found.append(misfit_of(fit, number, answer))
            fit.learn(number, answer)
        return larger * max(1.0, later(found) / (self.misfit * larger))


class MwemCourse:
    """A run of ``Mwem``: the number of rows, then a selection and a measurement a round."""

    def __init__(self, run: Mwem) -> None:
        self.run = run
        self.fit: Fit | None = None
        self._left = run.rounds

    def step(self) -> Step | None:
        """The next round."""
        if self.fit is None:
            return Step(0, self.run.each_measure)
        if not self._left:
            return None
        self._left -= 1
        known = self.fit.whole_answers()
        return Step(None, self.run.each_measure, selection=self.run.each_selection, first=1, estimate=known)

    def learn(self, number: int, _: int, answer: Sequence[int]) -> None:
        """Take in a noisy answer, in units of 1/L."""
        if self.fit is None:
            self.fit = self.run.model.start(answer[0])
        else:
            self.fit.learn(number, answer[0])


def misfit_of(fit: Fit, number: int, answer: int) -> float:
    """How far off the made-up table is from a noisy answer that it has not learnt, in what one row can change."""
    model = fit.model
    return (answer / model.scale - fit.answer(number)) / float(model.norms[number])


def mwem(
    compiled: Compiled,
    method: str,
    epsilon: Fraction,
    rows: int,
    *,
    rounds: int | None = None,
    blocks: Callable[[], MatrixStrategy] | None = None,
    progress: Callable[[str], None] | None = None,
) -> tuple[Mwem, Floats]:
    """An MWEM run for a batch, and the estimated mean squared errors (m,) of its numbers.

    ``rows``: the number of rows that the policy expects, public; a stand-in of the data has so many. ``rounds``: those
    of ``ROUNDS`` with the least estimated total error are taken, unless given. ``blocks`` finds the strategy whose rows
    "mwem-strategy" selects among. A stand-in does not know which group is large, so the numbers of a result column
    share one estimate. Cost: some 50 runs without data, seconds for 2^16 rays. Raises DataError for batches that
    it is not for, with what to do instead.
    """
    if rounds is not None and (isinstance(rounds, bool) or not isinstance(rounds, int) or not 1 <= rounds <= 1000):
        raise DataError(HOW_MANY)
    cone = _cone(compiled, method)
    candidates = _candidates(compiled, cone, method, blocks)
    common, (layout,) = compiled.common_steps, compiled.layouts
    model = model_of(candidates, cone.rays, common)
    # |entries| are integers below 2^53, as floats exact.
    reach = tuple(int(norm) * common * layout.multiplicity for norm in model.norms.tolist())
    answers = sparse.csr_array(sparse.diags_array(compiled.scale) @ (compiled.rows @ cone.rays))
    weight = np.divide(compiled.objective, compiled.scale, out=np.zeros(len(compiled.scale)), where=compiled.scale != 0)
    weight, say = weight**2, progress or (lambda _: None)
    tried: list[tuple[int, float]] = []
    for number in ROUNDS if rounds is None else (rounds,):
        run = Mwem(method, candidates, reach, model, number, epsilon)
        say(f"{number} rounds")
        errors, _ = _simulated(run, rows, answers, _TRIED)
        tried.append((number, float((errors * weight).sum())))
    best = min(tried, key=lambda t: t[1])[0]
    chosen = Mwem(method, candidates, reach, model, best, epsilon, tuple(tried), rows)
    errors, misfit = _simulated(chosen, rows, answers, _RUNS)
    for span in compiled.spans:
        part = slice(span.start, span.stop)
        errors[part] = errors[part].mean()
    errors[np.diff(compiled.rows.indptr) == 0] = 0.0
    return replace(chosen, misfit=misfit), errors


def _cone(compiled: Compiled, method: str) -> Cone:
    """The batch's cone, where the mechanism is for it. Raises DataError."""
    said = f"method={method!r}"
    tables = [layout.table for layout in compiled.layouts]
    if len(tables) > 1:
        raise DataError(f"{said} is for batches over one table; this one reads {', '.join(dict.fromkeys(tables))}")
    if compiled.layouts[0].source.distinct:
        raise DataError(f"{said} is for counts and sums of rows; leave COUNT(DISTINCT ...) out, or use method='auto'")
    cone = cone_of(compiled)
    size = cone.rays.shape[1]
    if size > MOST_RAYS:
        raise DataError(
            f"{said} keeps a weight for each cell and corner of its sums, {size:,} here, at most {MOST_RAYS:,}; ask "
            "for fewer or coarser groups, or use method='auto'"
        )
    if cone.counts[0] is None:
        raise DataError(
            f"{said} needs the number of rows in each cell, and a sum here is asked without any count; add COUNT(*) to "
            "its SELECT, or use method='auto'"
        )
    return cone


def _candidates(compiled: Compiled, cone: Cone, method: str, blocks: Callable[[], MatrixStrategy] | None) -> Csr:
    """Row 0 counts all rows; the others are distinct, not zero, and of integers."""
    n = compiled.rows.shape[1]
    counts = cone.counts[0]
    assert counts is not None  # noqa: S101 - held by _cone
    total = sparse.csr_array((np.ones(len(counts), dtype=np.int64), (np.zeros(len(counts), int), counts)), shape=(1, n))
    if method == "mwem":
        rows = sparse.csr_array(compiled.rows[compiled.answered]).astype(np.int64)
    else:
        found = blocks() if blocks is not None else select(compiled.workload(compiled.objective), "laplace")
        # As for any product of integers that is measured: entries are far below 2^63 (Factored.check holds it).
        mixing = sparse.csr_array(found.mixing) if not is_sparse(found.mixing) else found.mixing
        rows = sparse.csr_array(mixing @ found.basis).astype(np.int64)
    rows.eliminate_zeros()
    rows.sort_indices()
    seen: dict[bytes, int] = {}
    for i in range(rows.shape[0]):
        part = slice(rows.indptr[i], rows.indptr[i + 1])
        if part.stop > part.start:
            seen.setdefault(rows.indices[part].tobytes() + b"/" + rows.data[part].tobytes(), i)
    if len(seen) > MOST_CANDIDATES or rows.nnz > MOST_ENTRIES:
        raise DataError(
            f"method={method!r} selects among {len(seen):,} rows with {rows.nnz:,} entries, at most "
            f"{MOST_CANDIDATES:,} with {MOST_ENTRIES:,}; ask for fewer statements in one batch, or use method='auto'"
        )
    return sparse.csr_array(sparse.vstack([total, rows[sorted(seen.values())]], format="csr"))


def _simulated(run: Mwem, rows: int, answers: Matrix, runs: int) -> tuple[Floats, float]:
    """Mean squared errors (m,) of the batch's numbers over ``runs`` of each kind of stand-in, and their misfit.

    In floats, for estimates.
    """
    draws = np.random.default_rng(_SIMULATION_SEED)
    total, misfits = np.zeros(answers.shape[0]), []
    units = run.reach[0] / run.model.scale  # rows of a unit
    for _ in range(runs):
        for w in stand_in_rays(answers.shape[1], rows, draws):
            asked = run.model.queries @ w
            fit = run.model.start(round(float(asked[0]) * run.model.scale + _laplace(draws, run, 0)))
            found = []
            for _ in range(run.rounds):
                scores = np.abs(asked - fit.answers())[1:] / run.model.norms[1:]
                exponent = float(run.each_selection) * scores / (2 * units)
                number = 1 + int(np.argmax(exponent + draws.gumbel(size=len(exponent))))
                answer = round(float(asked[number]) * run.model.scale + _laplace(draws, run, number))
                found.append(misfit_of(fit, number, answer))
                fit.learn(number, answer)
            total += (answers @ (fit.w - w)) ** 2
            misfits.append(later(found))
    return np.asarray(total / (3 * runs)), float(np.sqrt(np.mean(np.square(misfits))))


def _laplace(draws: np.random.Generator, run: Mwem, number: int) -> float:
    return float(draws.laplace()) * run.reach[number] / float(run.each_measure)
