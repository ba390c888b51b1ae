"""Pure noise over one source of which a unit has a corner in each of many classes: grouping by grouping.

What a unit changes of the counts by month is one of few patterns, and of those by ward twelve times one of them,
though together they are too many to be listed. Norms of measurements add up, so that each grouping is planned over what
a unit changes of it alone, at a share of the sensitivity, and all are joined (``dpsql.strategies.core.parts``).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy import sparse

from dpsql.common.arrays import Csr, Ints
from dpsql.linalg import inner as algebra
from dpsql.strategies.core.integer import Piece
from dpsql.strategies.core.parts import joined_piece
from dpsql.strategies.core.reduce import merge_cells
from dpsql.workloads.compile.unlisted_pure import distinct_corners
from dpsql.workloads.families.contributions import Contributions, Part
from dpsql.workloads.families.matrix import Workload

_GROUPINGS, _QUERIES = 12, 1500  # that are planned so: a joint reconstruction takes long
_SHARE = 0.3  # of the work, which groupings have together: they are smaller than the whole

Planned = tuple[tuple[Piece, ...], float]


def by_grouping(V: Workload, part: Part, plan: Callable[[Workload, float], Planned]) -> tuple[Piece, float] | None:
    """(one piece for all queries of V, its error) of sensitivity 1 to what a unit changes by ``part``; else None.

    ``plan``: of a workload over what a unit changes of it, its units, and a share of the work.
    """
    diagonal = V.inner.diagonal()
    labels: Ints = np.zeros(0, dtype=np.int64) if V.groups is None else np.unique(V.groups)
    if diagonal is None or not 1 < labels.size <= _GROUPINGS or diagonal.size > _QUERIES:
        return None
    planned: list[Planned] = []
    lifted: list[Csr] = []
    for label in labels:
        mine = np.flatnonzero((V.groups == label) & (diagonal > 0))
        if not mine.size:
            continue
        own = Workload(sparse.csr_array(V.span[mine]), algebra.Diagonal(np.sqrt(diagonal[mine])), None, None, V.name)
        merged, classes = merge_cells(own)
        moved = sparse.csc_array(classes @ part.corners)
        units = Contributions(((distinct_corners(moved, part, moved),),), merged.span.shape[1])
        found = plan(
            Workload(merged.span, merged.inner, units.columns, None, V.name, units=units), _SHARE / labels.size
        )
        planned.append(found)
        lifted += [sparse.csr_array(piece.rows @ classes) for piece in found[0]]
    return joined_piece(V, planned, lifted, "laplace")
