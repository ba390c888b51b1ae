"""Pure noise where rows, and the units that they are counted by, fall into groups that are alike.

Each group has a problem of its own (``dpsql.strategies.gaussian.groups``): a row of it moves by f_j, if it has the
unit counted there, or m_j, at its corner j. A unit with rows in s <= l of the groups, at most k in all, has all but
s - 1 of them in one group. If every group is measured by itself by rows A, norms of groups add up, and none is above

    max of  k |A m_j|,  l |A f_j|,  (s - 1) max_i |A f_i| + |A (f_j + (k - s) m_j)|,

which is convex in s, so that s = 1 and s = l decide. With counts n and d of rows and units, f = (1, 1), m = (1, 0), the
units d and the further rows n - d are moved by s and by k - s at most: by k together, as far as the rows alone. For
l = k groups that is an error of 3 k^2 a group in units of 2 / epsilon^2, where n and d side by side have 8 k^2.

Rows are sought as elsewhere (``row_mixing``, ``norm_blocks``) over the columns k m_j, f_j + (k - 1) m_j, l f_j and
l f_j + (k - l) m_j, whose norms are never more than that, and are judged by the maximum.
"""

from __future__ import annotations

import numpy as np
import scipy

from dpsql.common.arrays import Floats
from dpsql.strategies.core.copies import spread
from dpsql.strategies.core.integer import Piece
from dpsql.strategies.core.reduce import Block, cholesky
from dpsql.strategies.gaussian.groups import corners_of_group
from dpsql.strategies.pure import norm_blocks, row_mixing
from dpsql.workloads.families.contributions import Tied


def plan_pure_groups(
    block: Block, tied: Tied, deadline: float, work: float, *, in_blocks: bool
) -> tuple[Piece, float] | None:
    """(a piece of sensitivity 1 that measures every group by itself, its error); None where groups are not alike.

    ``block``: one of a workload whose contributions are ``tied.columns``, with its copies.
    """
    g, d = block.count, block.rank
    if g < 2 or block.solo:
        return None
    whole = spread(Piece(block.basis, np.eye(d), block.columns, block.gram), block.copies)
    corners = corners_of_group(whole, tied, g, d)
    if corners is None:
        return None
    first, more = corners
    most, limit = tied.most, min(tied.limit, g)
    ends = first + (most - 1) * more, limit * first, limit * first + (most - limit) * more, most * more
    Y = np.unique(np.concatenate(ends if tied.nobody else ends[:-1]), axis=0).T
    if np.linalg.matrix_rank(Y) < d:
        return None
    metric = np.asarray(scipy.linalg.inv(Y @ Y.T / float(np.abs(Y).max()) ** 2))
    starts = [np.eye(d), row_mixing.symmetric_root(metric, block.gram), cholesky(metric)]
    drafts: list[tuple[Floats, tuple[int, ...]]] = [(start, ()) for start in starts]
    drafts += [(row_mixing.turned_search(block.gram, Y, start, deadline, work), ()) for start in starts[1:2]]
    if in_blocks:
        found = norm_blocks.search(block.gram, Y, starts[:1], deadline, work)
        drafts.append((found.C, found.blocks if max(found.blocks) > 1 else ()))
    pieces = []
    for root, blocks in drafts:
        far = _farthest(root, blocks, first, more, tied, limit)
        piece = Piece(block.basis, root / far, block.columns, block.gram, blocks=blocks)
        pieces.append((g * piece.trace(piece.root), piece))
    error, best = min(pieces, key=lambda one: one[0])
    return spread(best, block.copies), error


def _farthest(root: Floats, blocks: tuple[int, ...], first: Floats, more: Floats, tied: Tied, limit: int) -> float:
    """The maximum of the module."""
    sizes, most = blocks or (1,) * root.shape[0], tied.most

    def longest(moves: Floats) -> float:
        return float(norm_blocks.norms(root @ moves.T, sizes).max())

    heavy = [(s - 1) * longest(first) + longest(first + (most - s) * more) for s in (1, limit)]
    return max(most * longest(more) * tied.nobody, limit * longest(first), *heavy)
