"""Whole tables for structured batches under Laplace noise: a few marginals, of which every answer uses all.

Measured are the counts (or the sums of a measure) themselves on sets S of axes, k_S times each. A row of the table is
in one cell of each, so the L1 sensitivity is sum_S k_S exactly. Of a residual T
(``dpsql.strategies.kronecker.structured``) the table on S, S containing T, holds k_S x_T with noise that is k_S^2 /
prod_(i in S - T) d_i times as precise as noise of variance 1 would be, and orthogonal to that of other residuals; so
least squares gives

    variance of w x = sum_T ||w_T||^2 / N_T,       N_T = sum over S containing T of k_S^2 / prod_(i in S - T) d_i,

for any row w of the batch, marginal or not. The sets are searched by exchange
(``dpsql.strategies.marginals.marginal_blocks``) for the costs e_T = sum of weight^2 ||w_T||^2; they need not be sets
that a statement groups by.

Components (counts, sums) and tables. At the best theta_S of each, sum theta = 1, a component has the error E / a^2 with
a the share of the sensitivity that it gets; r a, with r rows of a unit, adds up to 1 over the components of the tables
of one unit (``dpsql.workloads.compile.sensitivity``), so the best shares are a ~ (E / r)^1/3.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np

from dpsql.errors import SQLError
from dpsql.linalg.blocks import Plain, Residual
from dpsql.strategies.marginals.marginal_blocks import plan_spaces
from dpsql.strategies.marginals.multipliers import Place, Subset, homes, precisions, whole_multipliers
from dpsql.workloads.compile.histograms import homes_of
from dpsql.workloads.compile.structured import Structured, with_histograms

METHOD = "marginal-blocks"
MOST_CELLS = 2**16
"""Cells of a table that no statement groups by."""
MOST_TABLES = 6_000


def block_residuals(
    batch: Structured,
    costs: Mapping[Place, float],
    rows: Mapping[int, int],
    unit: Mapping[int, str],
    tolerance: float,
    effort: float = 1.0,
) -> tuple[Structured, tuple[Residual, ...], float] | None:
    """(The batch with histograms of the tables that are measured, these, their error sum e_T / N_T); None if too many.

    ``costs``: e_T of every residual that the batch asks anything of. ``rows``: how many rows a unit has in each table,
    ``unit``: whose they are. ``tolerance`` is what rounding to whole multipliers may cost. Cost: the search's.
    """
    parts: dict[tuple[int, int], dict[Subset, float]] = {}
    for (table, component, T), cost in costs.items():
        parts.setdefault((table, component), {})[T] = cost
    plans = {}
    for (table, component), mine in parts.items():
        sizes = batch.sizes[table]
        held = sorted(set(homes_of(mine).values()))  # the residuals that lie in no other
        if len(held) > MOST_TABLES:
            return None
        scaled = {T: max(cost, 1e-300) / prod(sizes[i] for i in T) for T, cost in mine.items()}
        plans[table, component] = plan_spaces(sizes, scaled, held, MOST_CELLS, effort)
    share = {key: np.cbrt(plan.error / rows[key[0]]) for key, plan in plans.items()}
    total: dict[str, float] = {}
    for (table, _), value in share.items():
        total[unit[table]] = total.get(unit[table], 0.0) + rows[table] * value
    wanted_k = {
        (table, component, S): share[table, component] / total[unit[table]] * weight
        for (table, component), plan in plans.items()
        for S, weight in zip(plan.blocks, plan.weights, strict=True)
    }
    measured = _rounded(batch, costs, wanted_k, rows, unit, tolerance)
    needed: dict[int, dict[Subset, set[int]]] = {}
    for table, component, S in measured:
        needed.setdefault(table, {}).setdefault(S, set()).add(component)
    refused = False
    try:
        extended = with_histograms(batch, needed)
    except SQLError:  # more cells than x may have
        refused = True
    if refused:
        return None
    home = homes(extended.histograms, measured)
    residuals = tuple(
        Residual(t, c, S, home[t, c, S], tuple(Plain(batch.sizes[t][i]) for i in S), k, whole=True)
        for (t, c, S), k in measured.items()
    )
    return extended, residuals, error_of(batch, costs, measured)


def error_of(batch: Structured, costs: Mapping[Place, float], measured: Mapping[Place, float]) -> float:
    """sum_T e_T / N_T at noise of variance 1; inf where a residual is in no table."""
    precision = precision_of(batch, costs, measured)
    return sum(cost / precision[place] if place in precision else float("inf") for place, cost in costs.items())


def precision_of(
    batch: Structured, costs: Mapping[Place, float], measured: Mapping[Place, float]
) -> dict[Place, float]:
    """N_T of every residual of ``costs`` that a table has. Cost: the tables times the residuals of their component."""
    spaces: dict[tuple[int, int], list[Subset]] = {}
    for table, component, T in costs:
        spaces.setdefault((table, component), []).append(T)
    tables: dict[tuple[int, int], dict[Subset, float]] = {}
    for (table, component, S), k in measured.items():
        tables.setdefault((table, component), {})[S] = float(k)
    return {
        (*key, T): value
        for key, mine in spaces.items()
        for T, value in precisions(batch.sizes[key[0]], mine, tables.get(key, {})).items()
    }


def _rounded(
    batch: Structured,
    costs: Mapping[Place, float],
    multipliers: Mapping[Place, float],
    rows: Mapping[int, int],
    unit: Mapping[int, str],
    tolerance: float,
) -> dict[Place, int]:
    """Whole numbers in proportion to ``multipliers``, doubled until the loss is within ``tolerance``."""

    def loss(k: Mapping[Place, int]) -> float:
        reach: dict[str, int] = {}
        for (table, _, _), times in k.items():
            reach[unit[table]] = reach.get(unit[table], 0) + rows[table] * times
        return float(max(reach.values())) ** 2 * error_of(batch, costs, k)

    return whole_multipliers(multipliers, loss, (1.0 + tolerance) * error_of(batch, costs, multipliers))


__all__ = ["METHOD", "block_residuals", "error_of", "precision_of"]
