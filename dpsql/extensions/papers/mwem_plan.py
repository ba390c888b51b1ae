"""Plans of the papers' MWEM: ``method="mwem"`` and ``"mwem-strategy"``. Public and free."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from dpsql.errors import DataError
from dpsql.extensions.adaptive.adaptive_plan import AdaptivePlan, Rounds, plan_in_rounds
from dpsql.extensions.papers.mwem import MOST_RAYS, mwem
from dpsql.planning.estimated import TranscriptAnswers
from dpsql.planning.options import PlanOptions
from dpsql.planning.prepare import Chooser, prepare
from dpsql.policy import Policy
from dpsql.privacy.accountant import BudgetState, Request
from dpsql.privacy.charge import Charge
from dpsql.privacy.noise import pure_noise
from dpsql.strategies import MatrixStrategy
from dpsql.workloads.compile.compiled import Compiled, compile_batch
from dpsql.workloads.compile.cone import cone_of


def make_mwem_plan(
    sql: str,
    policy: Policy,
    schemas: Mapping[str, Mapping[str, str]],
    state: BudgetState,
    request: Request,
    options: PlanOptions,
) -> AdaptivePlan:
    """Plan a batch for MWEM over its cells, or over the rows of a strategy. Free: reads no row and spends nothing.

    Paid with pure epsilon alone. The policy's ``expected_rows`` are needed for the estimates; the number of rows is
    measured. Raises SQLError, PolicyError, DataError and BudgetError before any data are touched.
    """
    method = options.method
    prepared = prepare(sql, policy, schemas, options.progress, rows_per_unit=options.rows_per_unit)
    understood, compiled = prepared.understood, prepared.compiled
    if compiled.blocks and method == "mwem-strategy":
        raise DataError(
            "method='mwem-strategy' selects among the rows of one strategy, and this batch is measured block by block; "
            "use method='mwem', or ask for fewer columns in one batch"
        )
    if compiled.blocks and compiled.cells <= MOST_RAYS:
        compiled = compile_batch(understood.queries, understood.tables, boxes=False)
    if compiled.matrix is None:
        raise DataError(
            f"method={method!r} keeps a weight for each cell, {compiled.cells:,} here, at most {MOST_RAYS:,}; ask for "
            "fewer or coarser columns in one batch, or use method='adaptive'"
        )
    cells = compiled.matrix

    def rounds(charge: Charge, expected: int) -> Rounds:
        assert charge.epsilon is not None  # noqa: S101 - as the charge is pure
        strategy, squares = mwem(
            *(cells, method, charge.epsilon, expected),
            rounds=options.rounds,
            blocks=lambda: _blocks(cells, options),
            progress=options.progress,
        )
        noise = pure_noise(strategy.reach[0], strategy.each_measure)
        over_rays = (cells.rows @ cone_of(cells).rays).astype(np.float64).tocsr()
        over_rays.data *= np.repeat(cells.scale, np.diff(over_rays.indptr))
        return cells, strategy, noise, TranscriptAnswers(strategy, over_rays, squares)

    return plan_in_rounds(prepared, cells, state, request, options, rounds)


def _blocks(compiled: Compiled, options: PlanOptions) -> MatrixStrategy:
    """The strategy whose rows are the building blocks of the batch."""
    found = Chooser(compiled).strategy("laplace", replace(options, objective=None))
    assert isinstance(found, MatrixStrategy)  # noqa: S101 - of a compiled batch
    return found
