"""Counts of units over the same rows, each planned together with the rows that are counted by its groups.

COUNT(*) and COUNT(DISTINCT unit) by region, by sex and in all read the same rows of a unit, and one plan of all
groupings, over all that a unit can add to them together, is often too large. Norms of measurements add up in squares,
so that each count of units is planned with the rows by the same groups, over all that a unit adds to these two
(``Tied``), at a share of the sensitivity.

A query of rows goes with the finest count of units of which it reads one group alone, so that a team has one problem
for each group; queries that read several groups of every count are a team of rows alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from scipy import sparse

from dpsql.common.arrays import Csr, Floats, Ints
from dpsql.errors import DataError
from dpsql.linalg import inner as algebra
from dpsql.linalg.columns import distinct_columns
from dpsql.strategies.choose.sources import Source, Team, scaled, shares_of
from dpsql.strategies.choose.team_bounds import LARGEST
from dpsql.strategies.core.integer import Piece
from dpsql.strategies.core.parts import joined_piece
from dpsql.strategies.core.reduce import merge_cells
from dpsql.workloads.compile.unlisted_pure import distinct_corners
from dpsql.workloads.families.contributions import Contributions, tied_to
from dpsql.workloads.families.matrix import Workload
from dpsql.workloads.families.patterns import Patterns

_ALIKE = 100  # groups of which one may be planned with another weight than it has, so that all are alike


def rows_by_grouping(
    W: Workload, mine: Sequence[Source], patterns: Patterns, plan: Callable[[Workload], Team]
) -> Team | None:
    """The team of ``mine``, the counts of ``patterns`` and their rows last, by grouping, without a bound; else None.

    ``plan``: of a workload over what its own units change.
    """
    diagonal = W.inner.diagonal()
    if patterns.rows is None or patterns.classes is not None or diagonal is None or W.units is None:
        return None
    *counts, rows = mine
    home = _home(sparse.csr_array(W.span[rows.rows]), patterns, patterns.rows)
    planned: list[Team] = []
    lifted: list[Csr] = []
    for t in range(-1, len(counts)):
        queries = np.zeros(0, dtype=np.int64) if t < 0 else counts[t].rows
        span, weight = _of_groups(W, rows.rows[home == t], diagonal, patterns, t)
        if not queries.size + weight.size:
            continue
        span = sparse.csr_array(sparse.vstack([span, W.span[queries]]))
        own = Workload(span, algebra.Diagonal(np.sqrt(np.append(weight, diagonal[queries]))), None, None, W.name)
        merged, classes = merge_cells(own)
        parts = [rows.part] if t < 0 else [rows.part, counts[t].part]
        corners = [sparse.csc_array(classes @ part.corners) for part in parts]
        seen = [distinct_corners(own, part, own) for own, part in zip(corners, parts, strict=True) if own.nnz]
        tied = {0: tied_to(patterns, t).through(classes)} if len(seen) == 2 else {}
        units = Contributions((tuple(seen),), merged.span.shape[1], tied)
        try:
            team = plan(Workload(merged.span, merged.inner, units.columns, None, W.name, units=units))
        except DataError:
            return None
        by = units.divisor / W.units.divisor  # of which sensitivities are multiples
        pieces = scaled(team.pieces, 1.0 / by)
        planned.append(replace(team, pieces=pieces, error=team.error * by**2))
        lifted += [sparse.csr_array(piece.rows @ classes) for piece in planned[-1].pieces]
    if sum(piece.root.shape[0] * piece.copies for team in planned for piece in team.pieces) <= LARGEST:
        piece, error = joined_piece(W, [(team.pieces, team.error) for team in planned], lifted, "gaussian")
        return Team((piece,), error, 0.0, None)
    shares, total = shares_of([team.error for team in planned], "gaussian")
    at, found = iter(lifted), list[Piece]()
    for team, share in zip(planned, shares, strict=True):
        found += scaled(tuple(replace(p, rows=next(at), placed=None) for p in team.pieces), float(share))
    return Team(tuple(found), total, 0.0, None)


def _home(span: Csr, patterns: Patterns, rows: Ints) -> Ints:
    """The count of units with whose groups each query of rows (of ``span``, q x n) goes, -1 for none.

    The one whose group has the fewest entries of x, and of several the one of the most groups. ``rows``: the entry of
    each column that counts its rows.
    """
    n, read = span.shape[1], np.flatnonzero(np.diff(span.indptr))
    often, home = np.full(span.shape[0], n + 1), np.full(span.shape[0], -1)
    for t in np.argsort([np.unique(cells).size for cells in patterns.cells], kind="stable").tolist():
        low, high = np.full(n, n), np.full(n, -1)
        inside = (rows >= 0) & (patterns.cells[t] >= 0)
        np.minimum.at(low, rows[inside], patterns.cells[t, inside])
        np.maximum.at(high, rows[inside], patterns.cells[t, inside])
        group = np.where(low == high, high, -1)
        size = np.bincount(group[group >= 0], minlength=n)
        ends = [reach.reduceat(group[span.indices], span.indptr[read]) for reach in (np.minimum, np.maximum)]
        single = (ends[0] == ends[1]) & (ends[0] >= 0)
        entries = np.where(single, size[ends[1]], n + 1)
        better = single & (entries <= often[read])
        often[read[better]], home[read[better]] = entries[better], t
    return home


def _of_groups(W: Workload, queries: Ints, diagonal: Floats, patterns: Patterns, t: int) -> tuple[Csr, Floats]:
    """The different ``queries`` of W, of rows by the groups of count ``t``, and their squared weights.

    If few groups differ they are planned as the others: a group of another count may have just the rows of a group of
    this one, so that one query is of both. It has the median weight here, and is planned with both counts.
    """
    span, weight = sparse.csr_array(W.span[queries]), diagonal[queries]
    if t < 0 or not queries.size or patterns.rows is None:
        return span, weight
    found = distinct_columns(sparse.csr_array(span.T))
    span, weight = sparse.csr_array(span[found.keep]), np.bincount(found.label, weight).astype(np.float64)
    if np.count_nonzero(weight > np.median(weight)) * _ALIKE <= weight.size:
        weight = np.minimum(weight, np.median(weight))
    counted = (patterns.rows >= 0) & (patterns.cells[t] >= 0)
    group, entry = np.unique(np.stack([patterns.cells[t][counted], patterns.rows[counted]]), axis=1)
    missing = np.setdiff1d(group, group[np.isin(entry, span.indices)])
    if missing.size * _ALIKE > np.unique(group).size:
        return span, weight
    mine = np.isin(group, missing)
    place = np.searchsorted(missing, group[mine]), entry[mine]
    rest = sparse.csr_array((np.ones(place[0].size, dtype=np.int64), place), shape=(missing.size, span.shape[1]))
    return sparse.csr_array(sparse.vstack([span, rest])), np.append(weight, np.full(missing.size, np.median(weight)))
