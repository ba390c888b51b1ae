"""Strategies where one unit moves several sources, in more ways than are listed.

What a unit can change (``dpsql.workload.families.contributions``) is a choice for each source, so that the ways
multiply: a source by 50 groups that a unit may all be in has 2^50 on its own. The sources of one kind of unit are
gathered into teams. A team is planned over all that a unit can change of its sources together: by its list, or by
orbits where groups are alike (``dpsql.strategy.gaussian.alike_groups``). Teams are measured apart. Team i at share
alpha_i of the sensitivity has the error E_i / alpha_i^2; for Gaussian noise the squares of the shares add up to 1 and
the least total is (sum_i E_i^1/2)^2, for Laplace noise the shares do and it is (sum_i E_i^1/3)^3. ``team_bounds``
bounds the teams together from below. Different kinds of unit are problems of their own, each at full sensitivity.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from time import monotonic

import numpy as np
from scipy import linalg, sparse

from dpsql.arrays import Floats, Ints
from dpsql.errors import DataError, InternalError
from dpsql.linalg import inner as algebra
from dpsql.linalg.basis import choose_basis
from dpsql.linalg.columns import disjoint_blocks, distinct_columns
from dpsql.strategy.choose import team_bounds
from dpsql.strategy.choose.by_grouping import by_grouping
from dpsql.strategy.choose.class_queries import (
    across_classes,
    alike_sums,
    by_class,
    moved_by,
    piece_of,
    planned_alike,
    rows_only,
)
from dpsql.strategy.choose.task import Task, drafts
from dpsql.strategy.choose.team_bounds import Proof
from dpsql.strategy.core.blocks import standing
from dpsql.strategy.core.certificate import Certificate, dual_value
from dpsql.strategy.core.integer import Piece, finish
from dpsql.strategy.core.matrix_strategy import MatrixStrategy
from dpsql.strategy.core.parts import union_piece
from dpsql.strategy.core.reduce import cholesky, reduce_workload
from dpsql.strategy.core.time_left import TimeLeft
from dpsql.strategy.gaussian.alike_cells import Sum, longest_sums, longest_tied
from dpsql.strategy.gaussian.alike_groups import orbits, solve_alike
from dpsql.strategy.gaussian.alike_patterns import solve_alike_patterns
from dpsql.strategy.gaussian.tied_groups import plan_tied_groups
from dpsql.strategy.pure.halves import halves
from dpsql.strategy.pure.tied_groups import plan_pure_groups
from dpsql.workload.compile.unlisted import bounded_norm, longest_by_products, longest_sum, reach_tied
from dpsql.workload.families.contributions import MOST_LISTED, Contributions, Part, Tied
from dpsql.workload.families.kinds import kinds_of
from dpsql.workload.families.matrix import Workload
from dpsql.workload.families.patterns import Patterns

METHOD = "by-source"

_WRITTEN = 1500  # groups up to which the contrasts between them are written out as rows of B
_CLASSES = 4  # weights of groups of one source that are told apart
_DIGITS = 9
_NEAR = 1.02  # error over the lower bound up to which nothing else is tried
_NEAR_ROWS = 1.06  # the same where rows are planned together with units
_FAR = 1.5  # error over the lower bound from which on sums of corners that are alike are planned
_ALIKE = 20_000_000  # steps of finding these
_DRAFTED = 4_000  # parts of queries by class up to which these are planned
_WRITTEN_OUT = 2**25  # entries of what all corners move of a strategy
_SHARED = (1.0, 0.8, 0.6, 0.4, 0.2)  # how much of what groups share is taken off, where it may be too much
_ROUNDED = 2**30  # of the largest entry, where integers say how far a unit moves them
_LISTED_SUMS, _ROUNDS = 600, 6  # corners up to which long sums of them are listed, and how often more are added


@dataclass(frozen=True, eq=False)
class _Source:
    """What a unit adds to one source, and the spanning rows of W that read it."""

    part: Part
    rows: Ints


@dataclass(frozen=True, eq=False)
class _Team:
    """Sources planned together: pieces of sensitivity 1 to a unit, their error and a lower bound with its proof."""

    pieces: tuple[Piece, ...]
    error: float
    lower: float
    proof: Proof | None


def strategy_by_source(
    W: Workload,
    noise: str,
    tolerance: float,
    time: TimeLeft,
    say: Callable[[str], None],
    work: float,
    in_blocks: bool = False,
) -> MatrixStrategy:
    """The strategy of least computed error by teams of sources, for ``W.units``, whose parts W reads one by one.

    Raises DataError where a query reads two sources, and as selections of the teams do.
    """
    pieces, error, lower = plan_by_source(W, noise, tolerance, time, say, work, in_blocks)
    least = lower if noise == "gaussian" else None
    return finish(W, METHOD, noise, pieces, error, tolerance, least, ((METHOD, error),), time.deadline)


def plan_by_source(
    W: Workload,
    noise: str,
    tolerance: float,
    time: TimeLeft,
    say: Callable[[str], None],
    work: float,
    in_blocks: bool = False,
) -> tuple[tuple[Piece, ...], float, float]:
    """(pieces that together have sensitivity 1 to ``W.units``, error, lower bound, 0 for Laplace noise).

    ``in_blocks``: with "laplace", whether rows may be in blocks.
    """
    units = W.units
    if units is None:
        raise InternalError("strategy: a workload without units has no sources to plan by")
    found: list[Piece] = []
    planned: set[int] = set()
    error = lower = 0.0
    for kind, parts in enumerate(units.units):
        mine = [_Source(part, rows) for part in parts if (rows := _rows_of(W, part)).size]
        planned.update(row for one in mine for row in one.rows.tolist())
        if not mine:
            continue
        planner = _Planner(W, noise, tolerance, time, say, work, in_blocks)
        # The list of one source is all that a listed unit does: it is planned already.
        known = units.listable and len(parts) == 1
        tied = units.tied.get(kind) if len(mine) == len(parts) == 2 else None
        patterns = units.patterns.get(kind, ()) if len(mine) == len(parts) else ()
        if noise == "laplace":
            teams = [planner.laplace(one, not known) for one in mine]
        elif tied is not None:
            teams = [planner.tied(mine, tied)]
        elif patterns:
            teams = planner.over_same_rows(mine, patterns)
        else:
            teams = planner.gaussian(mine)
        shares, total = _shares([team.error for team in teams], noise)
        together = planner.tied_pure(mine, tied) if tied is not None and noise == "laplace" else None
        if together is not None and together.error < total:
            teams, shares, total = [together], np.ones(1), together.error
        for team, share in zip(teams, shares, strict=True):
            found.extend(_scaled(team.pieces, float(share)))
        error += total
        lower += team_bounds.together([team.lower for team in teams], [team.proof for team in teams])
    if len(planned) < np.count_nonzero(np.diff(sparse.csr_array(W.span).indptr)):
        raise InternalError("strategy: a query of the batch reads no source of a unit")
    return tuple(found), error, lower


def _rows_of(W: Workload, part: Part) -> Ints:
    """The spanning rows that the part's corners move."""
    return np.flatnonzero(np.diff(sparse.csr_array(abs(W.span) @ abs(part.corners)).indptr)).astype(np.int64)


def _shares(errors: Sequence[float], noise: str) -> tuple[Floats, float]:
    """Shares of the sensitivity of least total error, and that error."""
    power = 4 if noise == "gaussian" else 3
    root = np.asarray(errors) ** (1.0 / power)
    if noise == "gaussian":
        return root / float(np.sqrt((root**2).sum())), float((root**2).sum()) ** 2
    return root / float(root.sum()), float(root.sum()) ** 3


class _Planner:
    """Plans teams of one kind of unit."""

    def __init__(
        self,
        W: Workload,
        noise: str,
        tolerance: float,
        time: TimeLeft,
        say: Callable[[str], None],
        work: float,
        in_blocks: bool = False,
    ) -> None:
        assert W.units is not None  # noqa: S101 - asked before
        self.in_blocks = in_blocks
        self.W, self.noise, self.tolerance, self.time, self.say, self.work = W, noise, tolerance, time, say, work
        self.common = W.units.common

    def gaussian(self, mine: Sequence[_Source]) -> list[_Team]:
        """Teams: all that fits one list or one set of orbits together, else source by source."""
        groups = [one for one in mine if self._classes(one) is not None]
        if all(one.part.most == 1 for one in groups):  # then a list is as short, and sees more of what they share
            groups = []
        others = [one for one in mine if one not in groups]
        listed = prod(1 + one.part.count for one in others) - 1
        if groups and listed <= MOST_LISTED:
            together = self._alike(groups, others)
            if together is not None:
                return [together]
        teams: list[_Team] = []
        if groups:
            together = self._alike(groups, []) if len(groups) > 1 else None
            teams += [together] if together is not None else [self._alone(one, len(mine) > 1) for one in groups]
        if others:
            whole = listed <= MOST_LISTED
            teams += [self._listed(others)] if whole else [self._alone(one, len(mine) > 1) for one in others]
        return teams

    def laplace(self, source: _Source, listed: bool = True) -> _Team:
        """One source by its single corners, of which ``most`` add up in L1, by its list, if ``listed`` and short, or by
        differences between halves of its groups.
        """
        most = source.part.most
        found = [self._drafted([source], single=True, by=most)]
        if most > 1:
            found += [self._drafted([source])] if listed and source.part.count <= MOST_LISTED else []
            halved = self._halved(source)
            found += [halved] if halved is not None else []
            with contextlib.suppress(DataError):  # a grouping may be too large
                grouped = by_grouping(self._only([source], single=True), source.part, self._grouping)
                found += [self._held(*grouped, source.part)] if grouped is not None else []
        return min(found, key=lambda team: team.error)

    def _held(self, piece: Piece, error: float, part: Part) -> _Team:
        """A piece, and its ``error`` at sensitivity 1, at the sensitivity that it is known to have."""
        scale = float(np.abs(piece.root).max()) / _ROUNDED
        mixing = np.rint(piece.root / scale).astype(np.int64)
        far = bounded_norm(1, mixing, piece.rows, [part], blocks=piece.blocks) * scale / self.common
        return _Team(_scaled((piece,), 1.0 / far), error * far**2, 0.0, None)

    def _grouping(self, V: Workload, share: float) -> tuple[tuple[Piece, ...], float]:
        """The best for one grouping of a source, as it is seen there."""
        assert V.units is not None  # noqa: S101 - given
        limits = self.tolerance, self.time, self.say, share * self.work
        planner = _Planner(V, "laplace", *limits, self.in_blocks)
        ((part,),) = V.units.units
        team = planner.laplace(_Source(part, np.arange(V.span.shape[0])))
        by = planner.common / self.common
        return _scaled(team.pieces, 1.0 / by), team.error * by**2

    def _drafted(self, mine: Sequence[_Source], *, single: bool = False, by: int = 1) -> _Team:
        """The best draft for Laplace noise over a list, of sensitivity 1 where what is listed adds up ``by`` times."""
        V = self._only(mine, single=single)
        task = Task(V, "laplace", self.tolerance, self.time, self.say, self.work, turned=True, in_blocks=self.in_blocks)
        error, _, pieces = min(drafts(task, "auto"), key=lambda draft: standing(draft[1], draft[0]))
        return _Team(_scaled(pieces, 1.0 / by), error * by**2, 0.0, None)

    def _halved(self, source: _Source) -> _Team | None:
        """One source by differences between halves of its groups; None where its corners are no groups."""
        part, n = source.part, self.W.shape[1]
        diagonal, groups = self.W.inner.diagonal(), part.corners.shape[1]
        single = part.corners.nnz == groups and part.label is None and bool((part.corners.data == 1).all())
        if diagonal is None or not single or not 2 <= groups <= _WRITTEN:
            return None
        entries = part.corners.indices.astype(np.int64)
        held = sparse.csc_array(self.W.span[source.rows])[:, entries].astype(np.float64)
        gram = (held.T @ sparse.diags_array(diagonal[source.rows]) @ held).toarray()
        root, error = halves(gram, part.most, self.tolerance, self.time.deadline)
        often = part.times // self.common
        ones = (np.ones(groups, dtype=np.int64), (np.arange(groups), entries))
        rows = sparse.csr_array(ones, shape=(groups, n))
        return _Team((Piece(rows, root / often, sparse.csc_array(rows @ rows.T), gram),), error * often**2, 0.0, None)

    def _classes(self, source: _Source) -> list[tuple[float, Ints]] | None:
        """(squared weight, entries of x) of each class of alike groups, each group asked by itself; else None."""
        diagonal, corners = self.W.inner.diagonal(), source.part.corners
        span = sparse.csr_array(self.W.span[source.rows])
        groups = corners.shape[1]
        single = corners.nnz == groups and source.part.label is None and bool((corners.data == 1).all())
        if diagonal is None or not single or span.nnz != span.shape[0] or groups > _WRITTEN:
            return None
        weights = np.zeros(self.W.span.shape[1])
        np.add.at(weights, span.indices, diagonal[source.rows] * span.data.astype(np.float64) ** 2)
        held = weights[corners.indices]
        values = np.unique(held.round(_DIGITS - int(np.floor(np.log10(held.max())))) if held.min() > 0 else held)
        if held.min() <= 0 or values.size > _CLASSES:
            return None
        nearest = np.abs(held[:, None] - values[None, :]).argmin(axis=1)
        return [
            (float(held[nearest == k].mean()), corners.indices[nearest == k].astype(np.int64))
            for k in range(values.size)
        ]

    def _only(self, mine: Sequence[_Source], *, single: bool = False) -> Workload:
        """The queries on these sources and what a unit changes of them: one corner of each at a time if ``single``."""
        rows = np.unique(np.concatenate([one.rows for one in mine]))
        held = tuple(replace(one.part, most=1) if single else one.part for one in mine)
        columns = Contributions((held,), self.W.shape[1]).columns
        common = Contributions((held,), self.W.shape[1]).common
        diagonal = self.W.inner.diagonal()
        if diagonal is None:
            raise DataError("strategy: queries that are no list of rows are not planned by source")
        inner = algebra.Diagonal(np.sqrt(diagonal[rows]))
        groups = None if self.W.groups is None else self.W.groups[rows]
        span = sparse.csr_array(self.W.span[rows])
        return Workload(span, inner, columns * (common // self.common), groups, self.W.name)

    def _listed(self, mine: Sequence[_Source], V: Workload | None = None) -> _Team:
        """All that a unit can change of these sources, one by one; or what it changes of ``V``."""
        V = V or self._only(mine)
        task = Task(V, "gaussian", self.tolerance, self.time, self.say, self.work)
        optimum = task.optimum()
        places, lam = optimum.certificate.places, optimum.certificate.weights
        few = sum(block.count * block.rank for block in task.blocks()) <= team_bounds.LARGEST
        proof = team_bounds.of_list(choose_basis(V.span, V.inner), V, places, lam / float(lam.sum())) if few else None
        return _Team(optimum.pieces, optimum.upper, optimum.lower, proof)

    def _alone(self, source: _Source, several: bool = True) -> _Team:
        """One source: by orbits or its list where these are few, else by its single corners, measured apart."""
        most = source.part.most
        if most == 1:
            return self._listed([source])
        team = self._alike([source], []) if self._classes(source) is not None else None
        if team is not None:
            return team
        if source.part.count <= MOST_LISTED:
            return self._listed([source])
        alike = self._cells(source, several) if source.part.label is not None else None
        if alike is not None and alike.error <= _NEAR * alike.lower:
            return alike
        others = self._classed(source)
        if alike is None:
            return others
        best, proven = min(alike, others, key=lambda one: one.error), max(alike, others, key=lambda one: one.lower)
        return replace(best, lower=proven.lower, proof=proven.proof)

    def _random_groups(self, source: _Source) -> float:
        """A lower bound of units in s of the g groups of one source at random, s <= most; 0 where it takes long.

        Each is moved with probability r = s / g and two of them with r (s - 1) / (g - 1), so that M is at least
        s (g - s) / (g - 1) times that of one group at random.
        """
        V = self._only([source], single=True)
        groups = source.part.corners.shape[1]
        if source.part.label is not None:
            return 0.0
        if V.span.nnz != V.span.shape[0] and V.span.shape[0] > team_bounds.LARGEST:
            return 0.0
        s = min(source.part.most, (groups + 1) // 2)
        equal = Certificate(np.arange(V.changes), np.ones(V.changes))
        return s * (groups - s) / max(1, groups - 1) * dual_value(V, equal)

    def _cells(self, source: _Source, several: bool) -> _Team | None:
        """One source of which a unit has a cell in each of some classes, classes and corners alike up to a few.

        ``several``: there are other teams, to whose proof this one's is joined.
        """
        part, V = source.part, self._only([source], single=True)
        if part.corners.shape[1] > _WRITTEN:
            return None
        label = np.unique(part.labels, return_inverse=True)[1]
        longest = partial(longest_sums, label=label, most=part.most)
        planned = planned_alike(V, label, longest, 0.9 * self.tolerance, self.time.deadline)
        if planned is None:
            return None
        cells, found, piece = planned
        far = longest_by_products(found.metric[cells.orbit], label, part.most)
        piece = self._placed(piece, [source])
        team = _Team(_scaled((piece,), far**-0.5), found.error * far, 0.0, None)
        factor = cholesky(piece.gram) @ piece.columns.toarray().astype(np.float64) if several else None
        proof = None if factor is None else Proof(factor @ found.second[cells.orbit] @ factor.T, factor @ found.first)
        return replace(team, lower=found.lower, proof=proof)

    def _placed(self, piece: Piece, mine: Sequence[_Source]) -> Piece:
        """The piece without coordinates of queries where these are not all of the batch."""
        return piece if sum(one.rows.size for one in mine) == self.W.span.shape[0] else replace(piece, placed=None)

    def tied(self, mine: Sequence[_Source], tied: Tied) -> _Team:
        """Rows and the units that they count, by orbits, as if each were by itself, or by a list of long sums.

        The lower bound is of what is listed of their contributions, whichever has the least error.
        """
        V = replace(self._only(mine, single=True), contributions=sparse.csr_array(tied.columns), _cache={})
        c, deadline = tied.label.size, self.time.deadline
        label = np.unique(tied.label, return_inverse=True)[1]
        found: list[_Team] = []

        def far(moved: Floats) -> float | None:
            found = reach_tied(moved.T @ moved, tied)
            return None if found is None else float(found)

        longest = partial(longest_tied, tied=tied)
        alike = self._in_groups(V, tied, far)
        if alike is not None:
            if alike.error <= _NEAR * alike.lower or 2 * c > _WRITTEN:
                return alike
            found.append(alike)
        planned = None
        if 2 * c <= _WRITTEN:
            # What no unit is counted by is like nothing else.
            again = np.repeat([0, 1], c) + np.where(np.tile(tied.label, 2) < 0, 2, 0)
            planned = planned_alike(V, np.tile(label, 2), longest, 0.9 * self.tolerance, deadline, again)
        if planned is not None:
            _, solved, piece = planned
            piece = self._placed(piece, mine)
            team = self._within((piece,), solved.error, V, far)
            found += [replace(team, lower=solved.lower)] if team is not None else []
        if all(team.error > (1.0 + 2.0 * self.tolerance) * team.lower for team in found):
            apart = self.gaussian(mine)
            shares, total = _shares([team.error for team in apart], self.noise)
            pieces = [piece for team, share in zip(apart, shares, strict=True) for piece in _scaled(team.pieces, share)]
            found.append(_Team(tuple(pieces), total, 0.0, None))
        best, lower = min(found, key=lambda team: team.error), max(team.lower for team in found)
        if best.error > _NEAR * lower:
            more = self._listed_sums(V, longest, far)
            best, lower = min([best, *more], key=lambda team: team.error), max([lower, *(team.lower for team in more)])
        if lower == 0.0:
            few = replace(V, contributions=sparse.csr_array(tied.some()), _cache={})
            lower = Task(few, "gaussian", self.tolerance, self.time, self.say, self.work).optimum().lower
        return replace(best, lower=lower)

    def over_same_rows(self, mine: Sequence[_Source], patterns: Sequence[Patterns]) -> list[_Team]:
        """Teams of counts of units over the same rows, and of the others; or as if each count were by itself.

        The lower bound is of what a unit adds to such counts together, whichever has the least error.
        """
        teams = self._together(mine, patterns)
        # Rows and units apart lose more than a tenth.
        near = _NEAR if all(one.rows is None for one in patterns) else _NEAR_ROWS
        if len(teams) == len(patterns) and all(team.error <= near * team.lower for team in teams):
            return teams
        # The units alone, and each by itself.
        tried = [teams, self.gaussian(mine)]
        if any(one.rows is not None for one in patterns):
            tried.insert(1, self._together(mine, [one.without_rows() for one in patterns]))
        possible = [team for team in tried if all(one.pieces for one in team)]
        found = [(team, _shares([one.error for one in team], self.noise)) for team in possible]
        best, (shares, total) = min(found, key=lambda one: one[1][1])
        if best is teams:
            return teams
        lower = team_bounds.together([team.lower for team in teams], [team.proof for team in teams])
        pieces = [piece for team, share in zip(best, shares, strict=True) for piece in _scaled(team.pieces, share)]
        return [_Team(tuple(pieces), total, lower, None)]

    def _together(self, mine: Sequence[_Source], patterns: Sequence[Patterns]) -> list[_Team]:
        """A team for each of the patterns, then those of the other sources."""
        held = [[mine[number] for number in one.parts] for one in patterns]
        rest = [one for one in mine if not any(one in sources for sources in held)]
        teams = [self._patterned(*one) for one in zip(patterns, held, strict=True)]
        return [*teams, *(self.gaussian(rest) if rest else [])]

    def _patterned(self, patterns: Patterns, mine: Sequence[_Source]) -> _Team:
        """Counts over the same rows: by the list of what a unit adds to them, or by orbits of groups.

        Without pieces, at an infinite error, where neither is possible.
        """
        V = replace(self._only(mine, single=True), contributions=sparse.csr_array(patterns.columns), _cache={})
        if patterns.count <= MOST_LISTED:
            return self._listed(mine, replace(V, contributions=sparse.csr_array(patterns.listed()), _cache={}))
        kinds, found = kinds_of(patterns), None
        if kinds is not None:
            scaled = sparse.diags_array(np.sqrt(np.asarray(V.inner.diagonal()))) @ V.moved(V.span)
            gram = (scaled.T @ scaled).toarray()
            found = solve_alike_patterns(gram, kinds, 0.9 * self.tolerance, self.time.deadline)
        if found is None:
            few = replace(V, contributions=sparse.csr_array(patterns.some()), _cache={})
            lower = Task(few, "gaussian", self.tolerance, self.time, self.say, self.work).optimum().lower
            return _Team((), np.inf, lower, None)
        cells, solved, far = found
        piece = self._placed(piece_of(V, cells, solved.metric), mine)
        factor = cholesky(piece.gram) @ piece.columns.toarray().astype(np.float64)
        proof = Proof(factor @ solved.second[cells.orbit] @ factor.T, factor @ solved.first)
        return _Team(_scaled((piece,), far**-0.5), solved.error * far, solved.lower, proof)

    def tied_pure(self, mine: Sequence[_Source], tied: Tied) -> _Team | None:
        """Rows and the units that they count, each group by itself; None where groups are not alike."""
        V = replace(self._only(mine, single=True), contributions=sparse.csr_array(tied.columns), _cache={})
        try:
            problems = reduce_workload(V, self.time.deadline)
        except DataError:  # a group by itself is too large
            return None
        limits = self.time.deadline, self.work
        found = plan_pure_groups(problems[0], tied, *limits, in_blocks=self.in_blocks) if len(problems) == 1 else None
        return None if found is None else _Team((found[0],), found[1], 0.0, None)

    def _in_groups(self, V: Workload, tied: Tied, far: Callable[[Floats], float | None]) -> _Team | None:
        """Rows and units of groups that are alike: each group by itself, or, where that is farther off, together."""
        number, _ = disjoint_blocks(sparse.csc_array(V.moved(V.span)), np.arange(V.span.shape[0]))
        if number < 2:
            return None
        try:
            problems = reduce_workload(V, self.time.deadline)
        except DataError:  # a group by itself is too large
            return None
        found = plan_tied_groups(problems[0], tied, self.tolerance, self.time.deadline) if len(problems) == 1 else None
        if found is None:
            return None
        apart = _Team((found.apart,), found.error, found.lower, None)
        if found.error <= (1.0 + self.tolerance) * found.lower or found.apart.rows.shape[0] > _WRITTEN:
            return apart
        best = apart
        for share in _SHARED:
            piece = found.joint(V, share)
            joint = self._within((piece,), piece.trace(piece.root), V, far)
            if joint is not None and joint.error < best.error:
                best = replace(joint, lower=found.lower)
            if joint is None or best.error <= (1.0 + self.tolerance) * best.lower:
                break
        return best

    def _listed_sums(
        self, V: Workload, longest: Callable[[Floats], list[Sum]], far: Callable[[Floats], float | None]
    ) -> list[_Team]:
        """The optimum over single columns of V's contributions and long sums of them, which join as they are found."""
        N, found = V.changes, list[_Team]()
        if N > _LISTED_SUMS:
            return []
        basis = choose_basis(V.span, V.inner)
        seen = cholesky(basis.gram(V.inner)) @ V.moved(basis.rows).toarray().astype(np.float64)
        held: dict[bytes, Sum] = {}
        K = seen.T @ seen
        for _ in range(_ROUNDS):
            held |= {one[1].tobytes() + one[2].tobytes(): one for one in longest(K)[: 2 * N]}
            sums = list(held.values())
            place = (
                np.concatenate([at for _, at, _ in sums]),
                np.repeat(np.arange(len(sums)), [s[1].size for s in sums]),
            )
            listed = sparse.csc_array((np.concatenate([s[2] for s in sums]), place), shape=(N, len(sums)))
            assert V.contributions is not None  # noqa: S101 - narrows the type for the checker: units have corners
            both = sparse.csr_array(sparse.hstack([V.contributions, V.contributions @ listed], format="csr"))
            together = replace(V, contributions=both, _cache={})
            optimum = Task(together, "gaussian", self.tolerance, self.time, self.say, self.work).optimum()
            team = self._within(optimum.pieces, optimum.upper, V, far)
            found += [replace(team, lower=optimum.lower)] if team is not None else []
            if team is None or team.error <= _NEAR * optimum.lower or monotonic() > self.time.deadline:
                break
            moved = np.concatenate([moved_by(piece, V) for piece in optimum.pieces])
            K = moved.T @ moved
        return found

    def _classed(self, source: _Source) -> _Team:
        """One source of which a unit has a corner in each of ``most`` classes.

        The optimum for one corner most times, as without classes; what is measured class by class, every query by its
        part in each class, whose squares add up over most classes; and this beside queries over several classes as they
        are. Each by what its longest sum is known not to exceed. Bounded by units with a corner in most classes at
        random, and by those whose corners are alike.
        """
        V, most = self._only([source], single=True), source.part.most
        optimum = Task(V, "gaussian", self.tolerance, self.time, self.say, self.work).optimum()
        team = _Team(_scaled(optimum.pieces, 1.0 / most), optimum.upper * most**2, 0.0, None)
        across = across_classes(sparse.csr_array(abs(V.span) @ abs(source.part.corners)), source.part.labels)
        # Where no query is about several classes, all are in their parts as they are.
        drafts: list[list[tuple[Workload, float]]] = []
        parts = by_class(V, source.part) if across.any() else V
        if across.any() and parts.span.shape[0] <= _DRAFTED:
            apart = (parts, most**0.5)
            drafts = [[apart], [apart, (rows_only(V, np.flatnonzero(across)), float(most))]]
        found = [self._within(optimum.pieces, optimum.upper, V, _far(source))]
        for draft in drafts:
            try:
                piece, error = self._union(V, draft)
            except DataError:  # parts of queries by class may be too many
                continue
            found.append(self._within((piece,), error, V, _far(source)))
        proof = team_bounds.of_random_classes(source.part, across, V, optimum.certificate)
        lower = self._random_groups(source) if proof is None else team_bounds.squared_root_trace(proof.second)
        lower = max(lower, optimum.lower)
        team = min([team, *filter(None, found)], key=lambda one: one.error)
        alike = self._of_alike(source, V) if team.error > lower * _FAR else None
        if alike is not None and alike.proof is not None:
            team = min(team, alike, key=lambda one: one.error)
            mixed = [alike.proof] if proof is None else [team_bounds.mixed(alike.proof, proof, t) for t in (1.0, 0.9)]
            bounds = [(team_bounds.squared_root_trace(one.second), one) for one in mixed]
            best = max(bounds, key=lambda bound: bound[0])
            if best[0] > lower:
                lower, proof = best
        return replace(team, lower=lower, proof=proof)

    def _union(self, V: Workload, parts: Sequence[tuple[Workload, float]]) -> tuple[Piece, float]:
        """All parts of V in one piece, each planned by itself and divided by how far its sums are expected to go."""
        order = iter([by for _, by in parts])

        def planned(part: Workload) -> tuple[tuple[Piece, ...], float]:
            by = next(order)
            found = Task(part, "gaussian", self.tolerance, self.time, self.say, self.work).optimum()
            return _scaled(found.pieces, 1.0 / by), found.upper * by**2

        return union_piece(V, tuple(part for part, _ in parts), planned, "gaussian")

    def _within(
        self, pieces: tuple[Piece, ...], error: float, V: Workload, longest: Callable[[Floats], float | None]
    ) -> _Team | None:
        """``pieces`` scaled until no sum of corners is longer than 1, and their ``error`` then; None for large ones.

        ``longest``: of what each corner of V moves (p x N) what no sum exceeds, squared.
        """
        if sum(piece.root.shape[0] * piece.copies for piece in pieces) * V.changes > _WRITTEN_OUT:
            return None
        far = longest(np.concatenate([moved_by(piece, V) for piece in pieces]))
        if far is None:
            return None
        return _Team(_scaled(pieces, far**-0.5), error * far, 0.0, None)

    def _of_alike(self, source: _Source, V: Workload) -> _Team | None:
        """The optimum over sums of corners that are most alike, and single ones, held within 1 for all sums.

        None where corners are too many.
        """
        basis, label, most = choose_basis(V.span, V.inner), source.part.labels, source.part.most
        if basis.rows.shape[0] > team_bounds.LARGEST // 2 or most * label.size**2 > _ALIKE:
            return None
        corners = cholesky(basis.gram(V.inner)) @ V.moved(basis.rows).toarray().astype(np.float64)
        sums = alike_sums(corners.T @ corners, label, most)
        # Single corners, too, so that every difference between corners is seen.
        assert V.contributions is not None  # noqa: S101 - narrows the type for the checker: units have corners
        both = sparse.hstack([V.contributions, V.contributions @ sums], format="csr")
        together = replace(V, contributions=sparse.csr_array(both), _cache={})
        optimum = Task(together, "gaussian", self.tolerance, self.time, self.say, self.work).optimum()
        places, lam = optimum.certificate.places, optimum.certificate.weights
        proof = team_bounds.of_list(basis, together, places, lam / float(lam.sum()))
        team = self._within(optimum.pieces, optimum.upper, V, _far(source))
        return None if team is None else replace(team, lower=optimum.lower, proof=proof)

    def _alike(self, mine: Sequence[_Source], others: Sequence[_Source]) -> _Team | None:
        """Sources by groups that are alike, beside others whose contributions are listed, by orbits; None for many."""
        n = self.W.shape[1]
        factor, moved, basis = np.zeros((0, 0)), np.zeros((0, 0)), sparse.csr_array((0, n), dtype=np.int64)
        if others:
            V = self._only(others)
            chosen = choose_basis(V.span, V.inner)
            basis, factor = sparse.csr_array(chosen.rows), cholesky(chosen.gram(V.inner))
            columns = sparse.csc_array(V.moved(basis))
            moved = columns[:, distinct_columns(columns).keep].toarray().astype(np.float64)
        classes = [(t, *one) for t, source in enumerate(mine) for one in self._classes(source) or ()]
        groups, gammas = [entries.size for _, _, entries in classes], [weight for _, weight, _ in classes]
        most = np.array([source.part.most for source in mine])
        times = np.array([source.part.times // self.common for source in mine])
        held = orbits(factor, moved, groups, gammas, [t for t, _, _ in classes], most, times)
        if held is None:
            return None
        found = solve_alike(held, 0.9 * self.tolerance, self.time.deadline)
        w, C = factor.shape[0], cholesky(found.metric)
        entries = np.concatenate([one for _, _, one in classes])
        place = (np.arange(entries.size), entries)
        ones = sparse.csr_array((np.ones(entries.size, dtype=np.int64), place), shape=(entries.size, n))
        contrasts = [x**0.5 * (np.eye(g) - 1.0 / g) for x, g in zip(found.contrasts, groups, strict=True)]
        root = np.zeros((C.shape[0] + entries.size, w + entries.size))
        root[: C.shape[0]] = np.concatenate([C[:, :w], np.repeat(C[:, w:], groups, axis=1)], axis=1)
        root[C.shape[0] :, w:] = linalg.block_diag(*contrasts)
        gram = np.asarray(linalg.block_diag(factor.T @ factor, np.diag(np.repeat(gammas, groups))))
        joined = sparse.csr_array(sparse.vstack([basis, ones], format="csr"))
        piece = Piece(joined, root, sparse.csc_array(joined @ ones.T), gram)
        return _Team((piece,), found.upper, found.lower, team_bounds.of_orbits(held, found))


def _far(source: _Source) -> Callable[[Floats], float | None]:
    """What no sum of a source's corners exceeds, squared, of what each moves."""
    return partial(longest_sum, label=source.part.labels, most=source.part.most)


def _scaled(pieces: tuple[Piece, ...], by: float) -> tuple[Piece, ...]:
    return tuple(replace(piece, root=piece.root * by) for piece in pieces)
