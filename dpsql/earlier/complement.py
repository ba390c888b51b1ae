"""A batch planned beside earlier measurements: over joint cells, by the strategy that complements them.

Nothing here is private: noisy measurements are not even read, only what was measured and how noisily. The new
measurement is one of W's joint cells, B (L x) + z, with the exact sensitivity of B over these cells and the noise that
the charge pays for: what earlier releases measured changes which B is measured, never what is charged for it. The
guarantee of the release is that of its charge whatever the earlier outcomes are, since B depends on public values alone
(that B may depend on *which* batches were asked before is adaptive composition, which the ledger's sum covers).

Errors and intervals are those of generalised least squares over the old measurements and the new one. The earlier ones
are in the ledger for good, so that a plan stays valid whatever is released between it and its run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

import numpy as np
from scipy import sparse

from dpsql.earlier.search import METHOD, Complementing, ComplementStrategy, norms, rooted, rounded, search
from dpsql.errors import DataError, InternalError, SQLError
from dpsql.linalg.columns import distinct_columns
from dpsql.planning.prepare import Prepared, scaled_sensitivity
from dpsql.privacy.charge import Charge
from dpsql.reconstruct.combined import CombinedAnswers, Observed, White, combined_answers
from dpsql.reconstruct.spread import Floats, NoiseModel
from dpsql.strategy import MatrixStrategy, select
from dpsql.workload.cells.integers import Factored
from dpsql.workload.compile.compiled import Compiled, contributions_of
from dpsql.workload.compile.layout import Layout, common_multiplicity
from dpsql.workload.compile.sensitivity import by_unit
from dpsql.workload.families.matrix import Workload

from .combined import asked_of, joined, observed_of
from .joint import Joint, Past, distinct_cells, onto_joint

WORTH = 0.02
"""Earlier releases must take this part off the squared error of a plan for it to rest on them."""
MOST_SEARCHED = 600
"""Joint cells up to which a strategy is searched for; beyond, the batch's own is combined with what is known."""
_CAP = 1e6
"""Precision of one earlier number, beside a new measurement of sensitivity 1, that the search still tells apart."""


@dataclass(frozen=True, eq=False)
class ComplementAnswers:
    """``Answers`` from the new measurement y and the earlier ones; ``combined`` observes y last, as zeros before it is
    known.
    """

    combined: CombinedAnswers = field(repr=False)
    wanted: Any = field(repr=False)

    @property
    def law(self) -> White:
        """The law with which ``rows`` are read."""
        return self.combined.law

    def estimate(self, y: Sequence[int], divisor: int) -> Floats:
        """Generalised least squares (m,)."""
        *before, new = self.combined.observed
        return replace(self.combined, observed=(*before, replace(new, y=tuple(y), divisor=divisor))).values()

    def errors(self, noise: NoiseModel, divisor: int) -> Floats:
        """Standard errors (m,), of a new measurement with ``noise``."""
        return self._under(noise).errors()

    def widths(self, noise: NoiseModel, alpha: float, divisor: int) -> Floats:
        """Half-widths (m,) of the pointwise intervals at level 1 - alpha."""
        return self._under(noise).widths(None, alpha)

    def rows(self, parts: Sequence[slice], noise: NoiseModel) -> Any:
        """Rows of several columns of one result, to be read under ``law``; or under that of another new ``noise``."""
        return (self.combined if isinstance(noise, White) else self.under(noise).combined).rows(parts)

    def under(self, noise: NoiseModel) -> ComplementAnswers:
        """The answers, were the new measurement made with ``noise``."""
        return replace(self, combined=self._under(noise))

    def _under(self, noise: NoiseModel) -> CombinedAnswers:
        if isinstance(noise, White):
            return self.combined
        found = observed_complement(self, noise)
        if found is None:
            raise InternalError("earlier measurements and a new one of very different noise cannot be combined")
        return found


def observed_complement(answers: ComplementAnswers, noise: NoiseModel) -> CombinedAnswers | None:
    """The combined answers, were the new measurement made with ``noise``; None where not all numbers are determined."""
    *before, new = answers.combined.observed
    if noise == new.noise:
        return answers.combined
    return combined_answers(answers.wanted, [*before, replace(new, noise=noise)], answers.combined.divisor)


@dataclass(frozen=True, eq=False)
class Complement:
    """A measurement beside earlier ones. ``rests_on``: the releases; ``beside``: those whose batches made the cells.

    ``compiled``: the batch over joint cells. ``error``: what is minimised, as ``Plan.error``.
    """

    compiled: Compiled = field(repr=False)
    strategy: ComplementStrategy
    answers: ComplementAnswers = field(repr=False)
    rests_on: tuple[int, ...]
    beside: tuple[int, ...]
    error: float


@dataclass(frozen=True, eq=False)
class Setting:
    """A batch over joint cells with what earlier releases know of it; what any charge is planned from.

    ``fold`` (k x n): joint entries of x that neither the batch nor a measurement tells apart are one of k. ``known``
    (rows x k): what was measured, in standard errors; ``precision`` is its Gram matrix.
    """

    compiled: Compiled = field(repr=False)
    joint: Joint = field(repr=False)
    fold: sparse.csr_array = field(repr=False)
    corners: Any = field(repr=False)
    gram: Floats = field(repr=False)
    precision: Floats = field(repr=False)
    known: Floats = field(repr=False)
    space: Floats = field(repr=False)
    lift: sparse.csr_array = field(repr=False)

    def problem(self, charge: Charge) -> Complementing:
        """The search for one charge; what is known past ``_CAP`` times what it buys counts as that (``exact``)."""
        tau, precision = self.tau(charge), self.precision
        if self.exact(charge):
            A = self.known * np.sqrt(_CAP * tau / np.maximum(self._of_rows(), _CAP * tau))[:, None]
            precision = A.T @ A
        return Complementing(self.gram, precision, tau, self.corners, self.space)

    def exact(self, charge: Charge) -> bool:
        """Whether earlier measurements have so little noise, beside that of the charge, that the search rounds it up.

        Its floats would not hold both. Errors are those of the true noise; no least error is certified then.
        """
        return bool(self._of_rows().max(initial=0.0) > _CAP * self.tau(charge))

    def _of_rows(self) -> Floats:
        return np.asarray(np.einsum("ij,ij->i", self.known, self.known))

    def tau(self, charge: Charge) -> float:
        """The precision of a measurement of sensitivity 1 to a single row."""
        return 1.0 / (charge.unit_variance * common_multiplicity(self.compiled.layouts) ** 2)

    def keep(self) -> Any:
        """One entry of x for each folded one (k,)."""
        return self.fold.indices[self.fold.indptr[:-1]].astype(np.int64)

    def weighed(self, objective: Floats) -> Setting:
        """The same with other weights (m,) of W's rows."""
        compiled = replace(self.compiled, objective=objective)
        W = compiled.rows.tocsc()[:, self.keep()].toarray() * objective[:, None]
        return replace(self, compiled=compiled, gram=W.T @ W)


def setting_of(prepared: Prepared, pasts: Sequence[Past], first: frozenset[int] = frozenset()) -> Setting | None:
    """A batch beside ``pasts``; None where nothing of them touches it, or it is not one matrix over listed cells.

    None, too, where more summed columns meet in a joint cell than are planned together. Earlier releases that read
    other tables, too, are left out, as are batches whose tables share a privacy unit. Cost: one compilation of all
    batches together.
    """
    compiled = prepared.compiled
    if not isinstance(compiled, Compiled):
        return None
    names = {query.table for query in prepared.understood.queries}
    mine = [past for past in pasts if past.tables <= names]
    joint = joined(prepared, mine, first) if mine else None
    if joint is None or not joint.observations or not alone(compiled.layouts) or not alone(joint.layouts):
        return None
    lift = onto_joint(compiled.layouts, compiled.rows, joint.layouts, joint.rows)
    if lift is None:
        return None
    try:
        contributions = contributions_of(joint.layouts, joint.rows.shape[1])
    except SQLError:
        return None
    ratio = np.divide(joint.scale, compiled.scale, out=np.ones(len(joint.scale)), where=compiled.scale != 0)
    over = replace(
        compiled,
        layouts=joint.layouts,
        rows=joint.rows,
        scale=joint.scale,
        objective=compiled.objective * ratio,
        contributions=contributions,
    )
    whole = sparse.csr_array(sparse.vstack([*(o.matrix for o in joint.observations), joint.rows], format="csr"))
    fold = _fold(joint.layouts, whole)
    keep = fold.indices[fold.indptr[:-1]].astype(np.int64)
    W = joint.rows.tocsc()[:, keep].toarray() * over.objective[:, None]
    measured = []
    for one in observed_of(joint):
        A = np.asarray(one.matrix.tocsc()[:, keep].toarray(), dtype=np.float64)
        A *= one.divisor / float(one.noise.variance) ** 0.5
        measured.append(A)
    known = np.concatenate(measured)
    precision = known.T @ known
    touched = W.any(axis=0)
    if not np.any(precision[np.ix_(touched, touched)]):
        return None  # they know nothing of its cells
    return Setting(
        over,
        joint,
        fold,
        _corners(over, fold),
        W.T @ W,
        precision,
        known,
        np.concatenate([W, known]),
        sparse.csr_array(lift[:, keep]),
    )


def complement(
    setting: Setting,
    strategy: MatrixStrategy,
    charge: Charge,
    tolerance: float = 1e-3,
    deadline: float = inf,
) -> Complement | None:
    """The measurement that a charge pays for, beside earlier ones; None where not all numbers are determined.

    Gaussian noise: the strategy of least total error with its certified gap (``dpsql.earlier.search``). Laplace
    noise, and the least largest error: the best by computed error of that strategy, of ``strategy``, which the batch
    alone would have, and of the cells and queries measured themselves; nothing is certified.
    """
    problem, laplace = setting.problem(charge), charge.noise == "laplace"
    certifies = not laplace and strategy.objective == "total" and not setting.exact(charge)
    own = (strategy.mixing, sparse.csr_array(strategy.basis @ setting.lift))
    candidates: list[tuple[str, Any, sparse.csr_array]] = [(strategy.method, *own)]
    eye = sparse.eye_array(problem.size, dtype=np.int64, format="csr")
    lower = None
    if problem.size <= MOST_SEARCHED:
        start = np.asarray((sparse.csr_array(own[0]) @ own[1]).toarray(), dtype=np.float64)
        found = search(problem, [start], tolerance, deadline)
        lower = found.lower
        candidates.append((METHOD, rounded(problem, rooted(found.A.T @ found.A), laplace, tolerance)[0], eye))
    if laplace:
        candidates += _simple(setting, problem)
    priced = sorted(
        (
            (_value(setting, problem, mixing, basis, strategy, laplace), at)
            for at, (_, mixing, basis) in enumerate(candidates)
        ),
    )
    certified = lower if certifies else None
    considered = tuple((candidates[at][0], value * problem.tau) for value, at in priced)
    for _, at in priced:
        name, mixing, basis = candidates[at]
        basis = sparse.csr_array(basis @ setting.fold).astype(np.int64)
        made = _made(setting, Factored(mixing, basis), charge, strategy, certified, considered, name)
        if made is not None:
            return made
    return None


def measured_again(setting: Setting, integers: Factored, charge: Charge, strategy: MatrixStrategy) -> Complement | None:
    """The complement that was measured with ``integers`` at ``charge``; alone the batch would have ``strategy``."""
    return _made(setting, integers, charge, strategy, None, (), METHOD)


def _made(
    setting: Setting,
    integers: Factored,
    charge: Charge,
    strategy: MatrixStrategy,
    lower: float | None,
    considered: tuple[tuple[str, float], ...],
    name: str,
) -> Complement | None:
    compiled, problem = setting.compiled, setting.problem(charge)
    moved = integers.basis if compiled.contributions is None else integers.basis @ compiled.contributions
    l1, l2 = norms(problem, integers.mixing, moved)
    if not l1:
        return None
    made = ComplementStrategy(
        METHOD,
        charge.noise,
        integers.mixing,
        integers.basis,
        compiled.contributions,
        l1,
        l2,
        1.0,
        None if lower is None else lower * problem.tau,
        considered,
        strategy.planned,
        strategy.objective,
    )
    wanted = asked_of(setting.joint)
    new = Observed(
        sparse.csr_array(integers.mixing @ integers.basis),
        compiled.common_steps,
        (0,) * integers.shape[0],
        charge.calibrate(scaled_sensitivity(made, compiled)),
    )
    answers = combined_answers(wanted, [*observed_of(setting.joint), new], compiled.common_steps)
    if answers is None:
        return None
    scale = np.where(compiled.scale == 0, 1.0, compiled.scale)
    squares = (answers.errors() * compiled.objective / scale) ** 2
    error = float(squares.max() if strategy.objective == "max" else squares.sum())
    made = replace(
        made,
        expected=float(squares.sum()) * problem.tau,
        largest_error=error * problem.tau if strategy.objective == "max" else None,
    )
    rests_on = tuple(o.release for o in setting.joint.observations)
    return Complement(compiled, made, ComplementAnswers(answers, wanted), rests_on, setting.joint.beside, error)


def _simple(setting: Setting, problem: Complementing) -> list[tuple[str, Any, sparse.csr_array]]:
    """The cells, the queries, and each at Laplace noise, over the folded cells."""
    W = setting.compiled.rows[setting.compiled.answered]
    folded = Workload.from_rows(
        sparse.csr_array(W.tocsc()[:, setting.keep()]),
        setting.compiled.objective[setting.compiled.answered],
        contributions=problem.corners,
    )
    found = []
    for name in ("identity", "workload"):
        try:
            simple = select(folded, "laplace", name)
        except (DataError, InternalError):
            continue
        found.append((name, simple.mixing, sparse.csr_array(simple.basis)))
    return found


def _value(
    setting: Setting,
    problem: Complementing,
    mixing: Any,
    basis: sparse.csr_array,
    strategy: MatrixStrategy,
    laplace: bool,
) -> float:
    """The combined error of a candidate over the folded cells, as near as it is needed to rank them."""
    columns = basis if problem.corners is None else basis @ problem.corners
    l1, l2 = norms(problem, mixing, columns)
    if not l1:
        return inf
    A = np.asarray((sparse.csr_array(mixing) @ basis).toarray(), dtype=np.float64)
    reach = float(l1) ** 2 if laplace else float(l2)
    if strategy.objective != "max":
        return problem.value(A, reach)
    W = setting.compiled.rows.tocsc()[:, setting.keep()].toarray() * setting.compiled.objective[:, None]
    return problem.largest(A, reach, np.asarray(W, dtype=np.float64))


def alone(layouts: Sequence[Layout]) -> bool:
    """Whether no two tables share a unit and none counts units: sensitivities are those of single rows, times k."""
    return all(len(mates) == 1 for mates in by_unit(layouts)) and not any(layout.source.distinct for layout in layouts)


def _fold(layouts: Sequence[Layout], whole: sparse.csr_array) -> sparse.csr_array:
    """0/1 rows over the entries of x: cells with equal columns of ``whole`` are one, those of zeros are left out."""
    at_row, at_entry, start = [], [], 0
    for layout in layouts:
        cells = distinct_cells(layout.entry)
        stacked = sparse.vstack(
            [
                sparse.csc_array(whole)[:, np.maximum(entries, 0)]
                @ sparse.diags_array((entries >= 0).astype(np.int64), dtype=np.int64)
                for entries in cells
            ],
            format="csr",
        )
        label = distinct_columns(stacked).label
        numbers: dict[tuple[int, int], int] = {}
        for cell, mark in enumerate(label.tolist()):
            for place, entry in enumerate(cells[:, cell].tolist() if mark >= 0 else ()):
                if entry >= 0:
                    at_row.append(numbers.setdefault((mark, place), start + len(numbers)))
                    at_entry.append(entry)
        start += len(numbers)
    shape = (start, whole.shape[1])
    return sparse.csr_array((np.ones(len(at_row), dtype=np.int64), (at_row, at_entry)), shape=shape)


def _corners(compiled: Compiled, fold: sparse.csr_array) -> Any:
    """What one row can do to the folded entries; None for unit vectors."""
    if compiled.contributions is None:
        return None
    moved = sparse.csr_array(fold @ compiled.contributions)
    return sparse.csr_array(moved[:, distinct_columns(moved, up_to_sign=True).keep])
