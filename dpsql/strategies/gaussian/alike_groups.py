"""Finds the parts where one unit is counted in some of many groups that are alike.

Of each of T sources a unit is counted in s_t <= l_t of g_t groups, which all weigh gamma_t; beside them it moves other
queries by one of N columns, or not at all. Exchanging groups of one source changes neither the Gram matrix nor the
contributions C (``dpsql.workloads.families.contributions``). An orbit of C is a column and the sizes s. Let u_t be the
sum of the groups of source t, which has gamma_t / g_t in the Gram matrix, and count each group r_t times. The parts are

- the other queries and the sums u, one copy, which an orbit moves by its column and r_t s_t;
- for each source the contrasts between its groups, g_t - 1 copies of dimension 1 of weight gamma_t, of which an orbit
  has the squared length r_t^2 (s_t - s_t^2 / g_t).

A step costs O(v^2 N) for v the other queries' rank and T, whatever the number of groups. Where the groups of one source
are of several classes, each class is a source here, and their sizes together are at most l.

With one source and nothing else X = a I + b J, with b < 0 where a unit may be in all groups: what all groups share
is subtracted, because a unit never changes one group up and another down.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
import scipy

from dpsql.common.arrays import Floats, Ints
from dpsql.strategies.core.symmetric import Lines, Part

_ORBITS = 40_000


def parts_of_groups(
    factor: Floats,
    others: Floats,
    groups: Sequence[int],
    weights: Sequence[float],
    source: Sequence[int],
    most: Ints,
    times: Ints,
) -> tuple[Part, Lines] | None:
    """The parts for units that move the other queries by a column of ``others`` (w x N), or not at all.

    ``groups`` g, ``weights`` gamma of each class of alike groups; class i is of source t = ``source[i]``, of whose
    groups at most ``most[t]`` count a unit, ``times[t]`` times each. ``factor`` (w x w) of the other queries. None
    above 40,000 orbits.
    """
    limits = [min(int(most[t]), g) for t, g in zip(source, groups, strict=True)]
    if (others.shape[1] + 1) * prod(limit + 1 for limit in limits) > _ORBITS:
        return None
    plain = np.concatenate([np.zeros((others.shape[0], 1)), others], axis=1)
    sizes = np.stack(np.meshgrid(*(np.arange(k + 1) for k in limits), indexing="ij"), axis=0).reshape(len(groups), -1)
    for t, limit in enumerate(most):
        sizes = sizes[:, sizes[np.asarray(source) == t].sum(axis=0) <= limit]
    n, k = plain.shape[1], sizes.shape[1]
    often = np.asarray(times, dtype=np.float64)[np.asarray(source)][:, None]
    columns = np.concatenate([np.repeat(plain, k, axis=1), np.tile(often * sizes, n)], axis=0)[:, 1:]
    number, gamma = np.asarray(groups, dtype=np.float64), np.asarray(weights, dtype=np.float64)
    squares = np.tile(often**2 * (sizes - sizes**2 / number[:, None]), n)[:, 1:]
    sums = np.diag(np.sqrt(gamma / number))
    root = np.asarray(scipy.linalg.block_diag(factor, sums)) if factor.size else sums
    return Part(1.0, root, columns.T), Lines(number - 1.0, np.sqrt(gamma), squares.T)
