"""Strategies where one unit moves several sources, in more ways than are listed.

What a unit can change (``dpsql.workloads.families.contributions``) is a choice for each source, so that the ways
multiply: a source by 50 groups that a unit may all be in has 2^50 on its own. The sources of one kind of unit are
gathered into teams. A team is planned over all that a unit can change of its sources together: by its list, or by
orbits where groups are alike (``dpsql.strategies.gaussian.groups``). Teams are measured apart. Team i at share
alpha_i of the sensitivity has the error E_i / alpha_i^2; for Gaussian noise the squares of the shares add up to 1 and
the least total is (sum_i E_i^1/2)^2, for Laplace noise the shares do and it is (sum_i E_i^1/3)^3. ``team_bounds``
bounds the teams together from below. Different kinds of unit are problems of their own, each at full sensitivity.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import prod

import numpy as np
import scipy
from scipy import sparse

from dpsql.common.arrays import Floats, Ints
from dpsql.errors import DataError, InternalError
from dpsql.linalg.basis import choose_basis
from dpsql.linalg.columns import distinct_columns
from dpsql.strategies.choose import team_bounds
from dpsql.strategies.choose.by_grouping import by_grouping
from dpsql.strategies.choose.class_queries import (
    across_classes,
    alike_sums,
    by_class,
    planned_alike,
    rows_only,
)
from dpsql.strategies.choose.over_same_rows import SameRows
from dpsql.strategies.choose.sources import NEAR, WRITTEN, Source, Sources, Team, rows_of, scaled, shares_of
from dpsql.strategies.choose.task import BY_SOURCE, Task, drafts
from dpsql.strategies.choose.team_bounds import Proof
from dpsql.strategies.core.blocks import standing
from dpsql.strategies.core.certificate import Certificate, dual_value
from dpsql.strategies.core.integer import Piece, finish
from dpsql.strategies.core.matrix_strategy import MatrixStrategy
from dpsql.strategies.core.parts import union_piece
from dpsql.strategies.core.reduce import cholesky
from dpsql.strategies.core.symmetric import solve
from dpsql.strategies.core.time_left import unlisted_seconds
from dpsql.strategies.gaussian.exchangeable_cells import longest_sums
from dpsql.strategies.gaussian.groups import parts_of_groups
from dpsql.strategies.pure.halves import halves
from dpsql.strategies.pure.pattern_blocks import pattern_piece
from dpsql.workloads.compile.unlisted import bounded_norm
from dpsql.workloads.families.contributions import MOST_LISTED, Part
from dpsql.workloads.families.matrix import Workload
from dpsql.workloads.families.reach import longest_by_products, longest_sum

_CLASSES = 4  # weights of groups of one source that are told apart
_DIGITS = 9
_FAR = 1.5  # error over the lower bound from which on sums of corners that are alike are planned
_ALIKE = 20_000_000  # steps of finding these
_DRAFTED = 4_000  # parts of queries by class up to which these are planned
_ROUNDED = 2**30  # of the largest entry, where integers say how far a unit moves them


def strategy_by_source(task: Task) -> MatrixStrategy:
    """The strategy of least computed error by teams of sources, for the task's units, whose parts W reads one by one.

    Raises DataError where a query reads two sources, as selections of the teams do, above ``task.known``, and where
    that is known and there is no time to finish another strategy.
    """
    seconds = unlisted_seconds(task.W)
    if task.known < np.inf and not task.time.fits(seconds):
        raise DataError("strategy: another plan of the batch is there, and no time for a further one; allow more time")
    task.time = task.time.searches_for(seconds)
    pieces, error, least = plan_by_source(task)
    task.below(error)
    tried = ((BY_SOURCE, error),)
    found = finish(task.W, BY_SOURCE, task.noise, pieces, error, task.tolerance, None, tried, task.time.deadline)
    task.below(found.expected)
    return replace(found, lower_bound=least() or None) if task.noise == "gaussian" else found


def plan_by_source(task: Task) -> tuple[tuple[Piece, ...], float, Callable[[], float]]:
    """(pieces of sensitivity 1 to the task's units together, error, what gives a lower bound for Gaussian noise)."""
    W, noise, units = task.W, task.noise, task.W.units
    if units is None:
        raise InternalError("strategy: a workload without units has no sources to plan by")
    found: list[Piece] = []
    planned: set[int] = set()
    error, kinds = 0.0, list[list[Team]]()
    for kind, parts in enumerate(units.units):
        mine = [Source(part, rows) for part in parts if (rows := rows_of(W, part)).size]
        planned.update(row for one in mine for row in one.rows.tolist())
        if not mine:
            continue
        task.say(f"{BY_SOURCE}: {len(mine)} sources of a unit")
        planner = _Planner(task)
        same = SameRows(task, planner.gaussian, plan_by_source)
        # The list of one source is all that a listed unit does: it is planned already.
        known = units.listable and len(parts) == 1
        tied = units.tied.get(kind) if len(mine) == len(parts) == 2 else None
        patterns = units.patterns.get(kind, ()) if len(mine) == len(parts) else ()
        if noise == "laplace":
            teams = [planner.laplace(one, not known) for one in mine]
        elif tied is not None:
            teams = [same.tied(mine, tied)]
        elif patterns:
            teams = same.over_same_rows(mine, patterns)
        else:
            teams = planner.gaussian(mine)
        shares, total = shares_of([team.error for team in teams], noise)
        together = same.tied_pure(mine, tied) if tied is not None and noise == "laplace" else None
        if together is not None and together.error < total:
            teams, shares, total = [together], np.ones(1), together.error
        for team, share in zip(teams, shares, strict=True):
            found.extend(scaled(team.pieces, float(share)))
        error += total
        kinds.append(teams)
    if len(planned) < np.count_nonzero(np.diff(sparse.csr_array(W.span).indptr)):
        raise InternalError("strategy: a query of the batch reads no source of a unit")
    return tuple(found), error, lambda: sum(map(_bound_of, kinds))


def _bound_of(teams: Sequence[Team]) -> float:
    """A lower bound of the teams of one kind of unit."""
    lowers = [team.lower if team.later is None else team.later() for team in teams]
    return team_bounds.together(lowers, [team.proof for team in teams], [team.mean for team in teams])


class _Planner(Sources):
    """Plans teams of one kind of unit."""

    def gaussian(self, mine: Sequence[Source]) -> list[Team]:
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
        teams: list[Team] = []
        if groups:
            together = self._alike(groups, []) if len(groups) > 1 else None
            teams += [together] if together is not None else [self._alone(one, len(mine) > 1) for one in groups]
        if others:
            whole = listed <= MOST_LISTED
            teams += [self.listed(others)] if whole else [self._alone(one, len(mine) > 1) for one in others]
        return teams

    def laplace(self, source: Source, listed: bool = True) -> Team:
        """``_laplace``, once for queries that differ in how much all of them together weigh.

        Rounds that hold columns weigh the batch anew and again, sources of one column as a whole.
        """
        units, diagonal = self.W.units, self.W.inner.diagonal()
        if units is None or diagonal is None:
            return self._laplace(source, listed)
        span, weights, task = sparse.csr_array(self.W.span[source.rows]), diagonal[source.rows], self.task
        by = float(weights.max())
        shape = (span.indptr.tobytes(), span.indices.tobytes(), span.data.tobytes(), (weights / by).round(12).tobytes())
        key = (source.part, listed, task.in_blocks, task.tolerance, task.work, source.rows.tobytes(), *shape)
        if key not in units.cache:
            units.cache[key] = by, self._laplace(source, listed)
        held: tuple[float, Team] = units.cache[key]
        times, team = by / held[0], held[1]
        if times == 1.0:
            return team
        pieces = tuple(replace(piece, gram=piece.gram * times) for piece in team.pieces)
        return replace(team, pieces=pieces, error=team.error * times)

    def _laplace(self, source: Source, listed: bool) -> Team:
        """One source by its single corners, of which ``most`` add up in L1, in one block of the gauge of what a unit
        changes of it, by its list, if ``listed`` and short, or by differences between halves of its groups.
        """
        most = source.part.most
        found = [self._drafted([source], single=True, by=most)]
        if most > 1:
            piece = pattern_piece(self.W, source.rows, source.part, self.common) if self.task.in_blocks else None
            found += [Team((piece,), piece.trace(piece.root), 0.0, None)] if piece is not None else []
            found += [self._drafted([source])] if listed and source.part.count <= MOST_LISTED else []
            halved = self._halved(source, min(team.error for team in found))
            found += [halved] if halved is not None else []
            with contextlib.suppress(DataError):  # a grouping may be too large
                grouped = by_grouping(self.only([source], single=True), source.part, self._grouping)
                found += [self._held(*grouped, source.part)] if grouped is not None else []
        return min(found, key=lambda team: team.error)

    def _held(self, piece: Piece, error: float, part: Part) -> Team:
        """A piece, and its ``error`` at sensitivity 1, at the sensitivity that it is known to have."""
        scale = float(np.abs(piece.root).max()) / _ROUNDED
        mixing = np.rint(piece.root / scale).astype(np.int64)
        far = bounded_norm(1, mixing, piece.rows, [part], blocks=piece.blocks) * scale / self.common
        return Team(scaled((piece,), 1.0 / far), error * far**2, 0.0, None)

    def _grouping(self, V: Workload, share: float) -> tuple[tuple[Piece, ...], float]:
        """The best for one grouping of a source, as it is seen there."""
        assert V.units is not None  # noqa: S101 - given
        task = self.task_of(V, "laplace")
        task.work *= share
        planner = _Planner(task)
        ((part,),) = V.units.units
        team = planner.laplace(Source(part, np.arange(V.span.shape[0])))
        by = planner.common / self.common
        return scaled(team.pieces, 1.0 / by), team.error * by**2

    def _drafted(self, mine: Sequence[Source], *, single: bool = False, by: int = 1) -> Team:
        """The best draft for Laplace noise over a list, of sensitivity 1 where what is listed adds up ``by`` times."""
        V = self.only(mine, single=single)
        task = self.task_of(V, "laplace", turned=True)
        error, _, pieces = min(drafts(task, "auto"), key=lambda draft: standing(draft[1], draft[0]))
        return Team(scaled(pieces, 1.0 / by), error * by**2, 0.0, None)

    def _halved(self, source: Source, known: float) -> Team | None:
        """One source by differences between halves of its groups; None where its corners are no groups.

        None, too, where these are proven to have more error than ``known``.
        """
        part, n = source.part, self.W.shape[1]
        diagonal, groups = self.W.inner.diagonal(), part.corners.shape[1]
        single = part.corners.nnz == groups and part.label is None and bool((part.corners.data == 1).all())
        if diagonal is None or not single or not 2 <= groups <= WRITTEN:
            return None
        entries = part.corners.indices.astype(np.int64)
        held = sparse.csc_array(self.W.span[source.rows])[:, entries].astype(np.float64)
        gram = (held.T @ sparse.diags_array(diagonal[source.rows]) @ held).toarray()
        often = part.times // self.common
        made = halves(gram, part.most, self.task.tolerance, self.task.deadline, known / often**2)
        if made is None:
            return None
        root, error = made
        ones = (np.ones(groups, dtype=np.int64), (np.arange(groups), entries))
        rows = sparse.csr_array(ones, shape=(groups, n))
        return Team((Piece(rows, root / often, sparse.csc_array(rows @ rows.T), gram),), error * often**2, 0.0, None)

    def _classes(self, source: Source) -> list[tuple[float, Ints]] | None:
        """(squared weight, entries of x) of each class of alike groups, each group asked by itself; else None."""
        diagonal, corners = self.W.inner.diagonal(), source.part.corners
        span = sparse.csr_array(self.W.span[source.rows])
        groups = corners.shape[1]
        single = corners.nnz == groups and source.part.label is None and bool((corners.data == 1).all())
        if diagonal is None or not single or span.nnz != span.shape[0] or groups > WRITTEN:
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

    def _alone(self, source: Source, several: bool = True) -> Team:
        """One source: by orbits or its list where these are few, else by its single corners, measured apart."""
        most = source.part.most
        if most == 1:
            return self.listed([source])
        team = self._alike([source], []) if self._classes(source) is not None else None
        if team is not None:
            return team
        if source.part.count <= MOST_LISTED:
            return self.listed([source])
        alike = self._cells(source, several) if source.part.label is not None else None
        if alike is not None and alike.error <= NEAR * alike.lower:
            return alike
        others = self._classed(source)
        if alike is None:
            return others
        best, proven = min(alike, others, key=lambda one: one.error), max(alike, others, key=lambda one: one.lower)
        return replace(best, lower=proven.lower, proof=proven.proof, mean=proven.mean)

    def _random_groups(self, source: Source) -> tuple[float, float | None]:
        """A lower bound of units in s of the g groups of one source at random, s <= most; 0 where it takes long.

        Each is moved with probability r = s / g and two of them with r (s - 1) / (g - 1), so that M is at least
        s (g - s) / (g - 1) times that of one group at random. With |m| of that, which is less than what it is.
        """
        V = self.only([source], single=True)
        groups = source.part.corners.shape[1]
        if source.part.label is not None:
            return 0.0, None
        if V.span.nnz != V.span.shape[0] and V.span.shape[0] > team_bounds.LARGEST:
            return 0.0, None
        s = min(source.part.most, (groups + 1) // 2)
        equal = Certificate(np.arange(V.changes), np.ones(V.changes))
        times, places = s * (groups - s) / max(1, groups - 1), np.arange(V.changes)
        mean = team_bounds.mean_of(V, places, np.full(V.changes, 1.0 / V.changes))
        return times * dual_value(V, equal), None if mean is None else times**0.5 * mean

    def _cells(self, source: Source, several: bool) -> Team | None:
        """One source of which a unit has a cell in each of some classes, classes and corners alike up to a few.

        ``several``: there are other teams, to whose proof this one's is joined.
        """
        part, V = source.part, self.only([source], single=True)
        if part.corners.shape[1] > WRITTEN:
            return None
        label = np.unique(part.labels, return_inverse=True)[1]
        longest = partial(longest_sums, label=label, most=part.most)
        planned = planned_alike(V, label, longest, 0.9 * self.task.tolerance, self.task.deadline)
        if planned is None:
            return None
        found, piece = planned
        far = longest_by_products(found.metric, label, part.most)
        piece = self.placed(piece, [source])
        team = Team(scaled((piece,), far**-0.5), found.error * far, 0.0, None)
        factor = cholesky(piece.gram) @ piece.columns.toarray().astype(np.float64) if several else None
        proof = None if factor is None else Proof(factor @ found.moment() @ factor.T, factor @ found.first)
        return replace(team, lower=found.lower, proof=proof)

    def _classed(self, source: Source) -> Team:
        """One source of which a unit has a corner in each of ``most`` classes.

        The optimum for one corner most times, as without classes; what is measured class by class, every query by its
        part in each class, whose squares add up over most classes; and this beside queries over several classes as they
        are. Each by what its longest sum is known not to exceed. Bounded by units with a corner in most classes at
        random, and by those whose corners are alike.
        """
        V, most = self.only([source], single=True), source.part.most
        optimum = self.task_of(V).optimum()
        # Of groups that every query asks for one by one squares add up.
        corners = source.part.corners
        single = source.part.label is None and V.span.nnz == V.span.shape[0] and corners.nnz == corners.shape[1]
        far = float(most if single else most**2)
        team = Team(scaled(optimum.pieces, far**-0.5), optimum.upper * far, 0.0, None)
        across = across_classes(sparse.csr_array(abs(V.span) @ abs(corners)), source.part.labels)
        # Where no query is about several classes, all are in their parts as they are.
        drafts: list[list[tuple[Workload, float]]] = []
        parts = by_class(V, source.part) if across.any() else V
        if across.any() and parts.span.shape[0] <= _DRAFTED:
            apart = (parts, most**0.5)
            drafts = [[apart], [apart, (rows_only(V, np.flatnonzero(across)), float(most))]]
        found = [self.within(optimum.pieces, optimum.upper, V, _far(source))]
        for draft in drafts:
            try:
                piece, error = self._union(V, draft)
            except DataError:  # parts of queries by class may be too many
                continue
            found.append(self.within((piece,), error, V, _far(source)))
        proof = team_bounds.of_random_classes(source.part, across, V, optimum.certificate)
        lower, mean = self._random_groups(source) if proof is None else (proof.bound, None)
        if lower < optimum.lower:
            lower, mean = optimum.lower, None
        team = min([team, *filter(None, found)], key=lambda one: one.error)
        alike = self._of_alike(source, V) if team.error > lower * _FAR else None
        if alike is not None and alike.proof is not None:
            team = min(team, alike, key=lambda one: one.error)
            mixed = [alike.proof] if proof is None else [team_bounds.mixed(alike.proof, proof, t) for t in (1.0, 0.9)]
            bounds = [(team_bounds.squared_root_trace(one.second), one) for one in mixed]
            best = max(bounds, key=lambda bound: bound[0])
            if best[0] > lower:
                lower, proof = best
        return replace(team, lower=lower, proof=proof, mean=mean)

    def _union(self, V: Workload, parts: Sequence[tuple[Workload, float]]) -> tuple[Piece, float]:
        """All parts of V in one piece, each planned by itself and divided by how far its sums are expected to go."""
        order = iter([by for _, by in parts])

        def planned(part: Workload) -> tuple[tuple[Piece, ...], float]:
            by = next(order)
            found = self.task_of(part).optimum()
            return scaled(found.pieces, 1.0 / by), found.upper * by**2

        return union_piece(V, tuple(part for part, _ in parts), planned, "gaussian")

    def _of_alike(self, source: Source, V: Workload) -> Team | None:
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
        optimum = self.task_of(together).optimum()
        places, lam = optimum.certificate.places, optimum.certificate.weights
        proof = team_bounds.of_list(basis, together, places, lam / float(lam.sum()))
        team = self.within(optimum.pieces, optimum.upper, V, _far(source))
        return None if team is None else replace(team, lower=optimum.lower, proof=proof)

    def _alike(self, mine: Sequence[Source], others: Sequence[Source]) -> Team | None:
        """Sources by groups that are alike, beside others whose contributions are listed, by orbits; None for many."""
        n = self.W.shape[1]
        factor, moved, basis = np.zeros((0, 0)), np.zeros((0, 0)), sparse.csr_array((0, n), dtype=np.int64)
        if others:
            V = self.only(others)
            chosen = choose_basis(V.span, V.inner)
            basis, factor = sparse.csr_array(chosen.rows), cholesky(chosen.gram(V.inner))
            columns = sparse.csc_array(V.moved(basis))
            moved = columns[:, distinct_columns(columns).keep].toarray().astype(np.float64)
        classes = [(t, *one) for t, source in enumerate(mine) for one in self._classes(source) or ()]
        groups, gammas = [entries.size for _, _, entries in classes], [weight for _, weight, _ in classes]
        most = np.array([source.part.most for source in mine])
        times = np.array([source.part.times // self.common for source in mine])
        parts = parts_of_groups(factor, moved, groups, gammas, [t for t, _, _ in classes], most, times)
        if parts is None:
            return None
        found = solve(parts, 0.9 * self.task.tolerance, self.task.deadline)
        metric, apart = found.metrics
        w, C = factor.shape[0], cholesky(metric)
        entries = np.concatenate([one for _, _, one in classes])
        place = (np.arange(entries.size), entries)
        ones = sparse.csr_array((np.ones(entries.size, dtype=np.int64), place), shape=(entries.size, n))
        contrasts = [x**0.5 * (np.eye(g) - 1.0 / g) for x, g in zip(apart, groups, strict=True)]
        root = np.zeros((C.shape[0] + entries.size, w + entries.size))
        root[: C.shape[0]] = np.concatenate([C[:, :w], np.repeat(C[:, w:], groups, axis=1)], axis=1)
        root[C.shape[0] :, w:] = scipy.linalg.block_diag(*contrasts)
        gram = np.asarray(scipy.linalg.block_diag(factor.T @ factor, np.diag(np.repeat(gammas, groups))))
        joined = sparse.csr_array(sparse.vstack([basis, ones], format="csr"))
        piece = Piece(joined, root, sparse.csc_array(joined @ ones.T), gram)
        return Team((piece,), found.upper, found.lower, team_bounds.of_parts(*parts, found.weights))


def _far(source: Source) -> Callable[[Floats], float | None]:
    """What no sum of a source's corners exceeds, squared, of what each moves."""
    return partial(longest_sum, label=source.part.labels, most=source.part.most)
