"""Plans whose error depends on the data. Public and free; errors are estimated on stand-ins, not certified."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
import scipy
from scipy import sparse

from dpsql.common.arrays import Csr, Floats, Matrix
from dpsql.errors import InternalError
from dpsql.planning.named_strategy import pure_alone
from dpsql.planning.plan import Plan
from dpsql.privacy.accountant import BudgetState, Request, charge_for
from dpsql.privacy.charge import Charge
from dpsql.reconstruct import NoiseModel
from dpsql.workloads.compile.structured import MAX_NUMBERS

GRID = 2.0**-20
"""Of a row: numbers above ``MAX_NUMBERS`` are multiples of it, which the ledger keeps in half the bytes."""


@dataclass(frozen=True, eq=False)
class EstimatedPlan(Plan):
    """A plan whose errors depend on the data: ``errors`` are estimates, ``gap`` is None.

    ``errors`` are root mean squares over runs on public stand-ins for the data bias
    included, ``widths`` a normal law's multiples of them. Both are of as many rows as the policy expects; what a
    release states follows from its transcript, too (``after``).
    """

    strategy: Any = field(repr=False)

    @property
    def estimated(self) -> bool:
        """True: the errors depend on the data."""
        return True

    def after(self, y: Sequence[int]) -> Self:
        """The plan with the errors that the transcript ``y`` tells of: never smaller, larger where the table has more
        rows than expected, or others than the stand-ins (``stretch`` of the strategy). Post-processing; an estimate.
        """
        if not any(y):  # a rehearsal's zeros are no transcript
            return self
        stretch = self.strategy.stretch(list(y))
        widths = self.widths * stretch
        if self.compiled.numbers > MAX_NUMBERS:  # on the grid of the numbers, never narrower
            widths = np.ceil(widths / GRID) * GRID
        return replace(self, accuracy=replace(self.accuracy, errors=self.errors * stretch, widths=widths))

    @property
    def sensitivity(self) -> int:
        """The most by which one unit can move any candidate."""
        return int(max(self.strategy.reach))

    @property
    def error(self) -> float:
        """Estimated total squared error, each number in units of what one row can change."""
        matrix = self.compiled.matrix
        return float(np.square(np.asarray(self.errors) * (1.0 if matrix is None else matrix.weights)).sum())

    @property
    def gap(self) -> None:
        """None: nothing is certified."""
        return None

    @property
    def bound_ratio(self) -> float:
        """NaN: the bounds are for mechanisms whose noise does not depend on the data."""
        return float("nan")


@dataclass(frozen=True, eq=False)
class TranscriptAnswers:
    """Answers of the table that a transcript makes up; ``answers`` (m x R) are W's rows over its rays."""

    strategy: Any
    answers: Csr = field(repr=False)
    squares: Floats = field(repr=False)

    def estimate(self, y: Sequence[int], divisor: int) -> Floats:
        """W's rows on the made-up table (m,). A rehearsal's zeros are an empty transcript."""
        transcript = list(y)
        if not any(transcript):
            return np.zeros(self.answers.shape[0])
        return np.asarray(self.answers @ self.strategy.model.replayed(transcript).w)

    def errors(self, noise: NoiseModel, divisor: int) -> Floats:
        """Standard errors (m,), estimated by simulation."""
        return np.sqrt(self.squares)

    def widths(self, noise: NoiseModel, alpha: float, divisor: int) -> Floats:
        """A normal law's multiple of ``errors``."""
        return np.sqrt(self.squares) * float(-scipy.special.ndtri(alpha / 2))

    def rows(self, parts: Sequence[slice], noise: NoiseModel) -> Matrix:
        """There are none: the answers are no linear function of what is measured."""
        raise InternalError("a made-up table's answers are not linear in what was measured")


def no_rows() -> Csr:
    """Answers that follow from a transcript otherwise."""
    return sparse.csr_array((0, 0))


def charge_of(method: str, request: Request, state: BudgetState) -> Charge:
    """The way to pay: the first that the account affords, of Laplace noise alone for MWEM. Raises BudgetError."""
    charges = [c for c in charge_for(request, state.budget) if method == "adaptive" or c.noise == "laplace"]
    if not charges:
        raise pure_alone(method)
    return next((charge for charge in charges if state.affords(charge)), charges[0])
