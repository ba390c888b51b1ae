"""Teams of counts of units and the rows that they are counted by, over all that one unit adds to them together.

What a unit adds to a source of rows and one count of units is ``Tied``, to several counts of units ``Patterns``. A team
is planned by its list, by groups or orbits that are alike, or, where it has less error, as if each source were by
itself. Its lower bound is over what a unit adds to all of them, whichever way it is planned.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.linalg import LinAlgError
from scipy import sparse

from dpsql.common.arrays import Floats, Sparse
from dpsql.errors import DataError
from dpsql.linalg.basis import choose_basis
from dpsql.linalg.columns import disjoint_blocks, distinct_columns
from dpsql.strategies.choose import team_bounds
from dpsql.strategies.choose.class_queries import moved_by, piece_of, planned_alike
from dpsql.strategies.choose.random_rows import least_of_random_rows
from dpsql.strategies.choose.rows_by_grouping import rows_by_grouping
from dpsql.strategies.choose.sources import NEAR, WRITTEN, Source, Sources, Team, rows_of, scaled, shares_of
from dpsql.strategies.choose.task import Task
from dpsql.strategies.choose.team_bounds import Proof
from dpsql.strategies.core.bound_over_tables import least_of_tables
from dpsql.strategies.core.certificate import Certificate, dual_value
from dpsql.strategies.core.integer import Piece
from dpsql.strategies.core.reduce import Block, cholesky, reduce_workload
from dpsql.strategies.core.symmetric import Part, solve
from dpsql.strategies.gaussian.exchangeable_cells import AlikeOptimum, Sum, longest_tied
from dpsql.strategies.gaussian.exchangeable_patterns import longest_unions, solve_alike_patterns
from dpsql.strategies.gaussian.groups import plan_tied_groups
from dpsql.strategies.pure.row_mixing import symmetric_root
from dpsql.strategies.pure.tied_groups import plan_pure_groups
from dpsql.workloads.families.contributions import MOST_LISTED, Tied
from dpsql.workloads.families.kinds import kinds_of, sources_of
from dpsql.workloads.families.matrix import Workload
from dpsql.workloads.families.patterns import Patterns
from dpsql.workloads.families.reach import reach_tied
from dpsql.workloads.families.units_and_rows import reach_of_rows, reach_of_units

_NEAR_ROWS = 1.06  # as ``NEAR``, where rows are planned together with several counts of units
_NEAR_MANY = 1.2  # the same for rows of very many groups and one count of units
_SHARED = (1.0, 0.8, 0.6, 0.4, 0.2)  # how much of what groups share is taken off, where it may be too much
_SHARES = 999  # of the sensitivity that units may have beside rows which are tried
_LISTED_UNIONS = 120  # entries of unlike groups up to which long unions of them are listed
_LISTED_SUMS = 600  # corners up to which long sums of them are listed


class SameRows(Sources):
    """Plans sources over the same rows; ``apart`` plans each as if it were by itself, ``anew`` another workload."""

    def __init__(
        self,
        task: Task,
        apart: Callable[[Sequence[Source]], list[Team]],
        anew: Callable[[Task], tuple[tuple[Piece, ...], float, Callable[[], float]]],
    ) -> None:
        super().__init__(task)
        self.apart, self.anew = apart, anew

    def tied(self, mine: Sequence[Source], tied: Tied) -> Team:
        """Rows and the units that they count, by orbits, as if each were by itself, or by a list of long sums.

        The lower bound is of what is listed of their contributions, whichever has the least error.
        """
        V = replace(self.only(mine, single=True), contributions=sparse.csr_array(tied.columns), _cache={})
        c, deadline = tied.label.size, self.task.deadline
        label = np.unique(tied.label, return_inverse=True)[1]
        found: list[Team] = []

        def far(moved: Floats) -> float | None:
            found = reach_tied(moved.T @ moved, tied)
            return None if found is None else float(found)

        longest = partial(longest_tied, tied=tied)
        alike = self._in_groups(V, tied, far)
        if alike is not None:
            if alike.error <= (NEAR if 2 * c <= WRITTEN else _NEAR_MANY) * alike.lower:
                return alike
            found.append(alike)
        planned = None
        if 2 * c <= WRITTEN:
            # What no unit is counted by is like nothing else.
            again = np.repeat([0, 1], c) + np.where(np.tile(tied.label, 2) < 0, 2, 0)
            close = 0.9 * self.task.tolerance
            planned = planned_alike(V, np.tile(label, 2), longest, close, deadline, again, alone=tied.nobody)
        if planned is not None:
            solved, piece = planned
            piece = self.placed(piece, mine)
            team = self.within((piece,), solved.error, V, far)
            found += [replace(team, lower=solved.lower)] if team is not None else []
        if all(team.error > (1.0 + 2.0 * self.task.tolerance) * team.lower for team in found):
            apart = self.apart(mine)
            shares, total = shares_of([team.error for team in apart], self.task.noise)
            pieces = [piece for team, share in zip(apart, shares, strict=True) for piece in scaled(team.pieces, share)]
            meeting = _meeting(self.W, mine, tied)
            lower = self._each_whatever(meeting or mine[:1], tied) if tied.nobody or meeting else 0.0
            if not meeting and all(team.lower <= lower for team in found):
                lower = max(lower, self._least(V, tied.some()))
            found.append(Team(tuple(pieces), total, lower, None))
        best, lower = min(found, key=lambda team: team.error), max(team.lower for team in found)
        if best.error > NEAR * lower:
            more = self._listed_sums(V, longest, far)
            best, lower = min([best, *more], key=lambda team: team.error), max([lower, *(team.lower for team in more)])
        return replace(best, lower=lower)

    def _each_whatever(self, mine: Sequence[Source], tied: Tied) -> float:
        """A lower bound of units that move rows alone, as nobody's do, or both sources, each as is worst for it."""
        teams = [self.apart([source]) for source in mine]
        if any(len(one) > 1 for one in teams):
            return 0.0
        norms = team_bounds.norms_of([(team.lower, team.proof, team.mean) for (team,) in teams])
        return least_of_tables(norms, np.array([[1.0, 0.0], [1.0, 1.0]])[not tied.nobody :, : len(norms)])

    def over_same_rows(self, mine: Sequence[Source], patterns: Sequence[Patterns]) -> list[Team]:
        """Teams of counts of units over the same rows, and of the others; or as if each count were by itself.

        The lower bound is of what a unit adds to such counts together, whichever has the least error.
        """
        one, grouped = patterns[0], None
        whole_kind = len(patterns) == 1 and len(one.parts) == len(mine)
        if whole_kind and one.rows is not None and not one.listable:
            grouped = rows_by_grouping(self.W, [mine[i] for i in one.parts], one, self._of_grouping)
        if grouped is not None and one.columns.shape[1] > WRITTEN and grouped.error < self.task.known:
            return [replace(grouped, later=lambda: self._least_together(mine, one))]
        teams = self._together(mine, patterns)
        # Rows and units apart lose more than a tenth.
        near = NEAR if all(one.rows is None for one in patterns) else _NEAR_ROWS
        if len(teams) == len(patterns) and all(team.settled or team.error <= near * team.lower for team in teams):
            return teams
        # The units alone, and each by itself.
        tried = [teams, self.apart(mine)]
        if any(one.rows is not None for one in patterns):
            tried.insert(1, self._together(mine, [one.without_rows() for one in patterns]))
        possible = [team for team in tried if all(one.pieces for one in team)]
        found = [(team, shares_of([one.error for one in team], self.task.noise)) for team in possible]
        best, (shares, total) = min(found, key=lambda one: one[1][1])
        if best is teams:
            return teams

        def lower() -> float:
            lowers = [team.lower for team in teams]
            for number, one in enumerate(patterns):
                if not teams[number].pieces and not lowers[number]:
                    lowers[number] = self._least_together([mine[i] for i in one.parts], one)
            return team_bounds.together(lowers, [team.proof for team in teams], [team.mean for team in teams])

        pieces = [piece for team, share in zip(best, shares, strict=True) for piece in scaled(team.pieces, share)]
        whole = Team(tuple(pieces), total, 0.0, None)
        if whole_kind and one.rows is not None and one.classes is None:
            held = [grouped, *(self._rows_apart(mine, one, team) for team in possible)]
            whole = min([whole, *filter(None, held)], key=lambda team: team.error)
        self.task.below(whole.error)
        return [replace(whole, later=lower)]

    def _least_together(self, mine: Sequence[Source], patterns: Patterns) -> float:
        """A lower bound over what a unit adds to ``mine``, of random rows or a few vectors; 0.0 for too many."""
        V = self._moved_by(patterns, mine)
        if patterns.rows is None or patterns.classes is not None:
            return self._least(V, patterns.some())
        random = least_of_random_rows(V, patterns, self.task.tolerance, self.task.deadline)
        return random if V.changes > _LISTED_SUMS else max(random, self._least(V, patterns.some()))

    def _of_grouping(self, V: Workload) -> Team:
        """One count of units and rows by the same groups, over what V's units change."""
        task = self.task_of(V)
        if V.units is not None and V.units.listable:
            optimum = task.optimum()
            return Team(optimum.pieces, optimum.upper, optimum.lower, None)
        return Team(*self.anew(task)[:2], 0.0, None)

    def _rows_apart(self, mine: Sequence[Source], patterns: Patterns, teams: Sequence[Team]) -> Team | None:
        """Teams, each of rows or of units, at the shares that are best for what a unit moves of both together.

        None where a team has both.
        """
        V = self._moved_by(patterns, mine)
        N = V.changes - patterns.cells.shape[1]
        sides: tuple[list[Team], list[Team]] = ([], [])
        for team in teams:
            used = [V.moved(piece.rows) for piece in team.pieces]
            which = [any(abs(one[:, part]).sum() > 0 for one in used) for part in (slice(N), slice(N, None))]
            if all(which):
                return None
            sides[which[1]].append(team)
        held = [shares_of([one.error for one in side], self.task.noise) for side in sides]
        pieces, K = [], []
        for side, (shares, _), part in zip(sides, held, (slice(N), slice(N, None)), strict=True):
            pieces.append(
                tuple(p for team, share in zip(side, shares, strict=True) for p in scaled(team.pieces, share))
            )
            moved = np.concatenate([moved_by(piece, V)[:, part] for piece in pieces[-1]])
            K.append(moved.T @ moved)
        units, rows = (
            reach_of_units(patterns.without_rows(), K[0]),
            reach_of_rows(K[1], patterns.most, nobody=patterns.nobody),
        )
        both = min(units.size, rows.size)
        share = np.linspace(0.0, 1.0, _SHARES + 2)[1:-1]
        far = (np.outer(share, units[:both]) + np.outer(1.0 - share, rows[:both])).max(axis=1)
        errors = (held[0][1] / share + held[1][1] / (1.0 - share)) * far
        at = int(np.argmin(errors))
        weights = (share[at] / far[at]) ** 0.5, ((1.0 - share[at]) / far[at]) ** 0.5
        joined = (*scaled(pieces[0], float(weights[0])), *scaled(pieces[1], float(weights[1])))
        return Team(joined, float(errors[at]), 0.0, None)

    def _together(self, mine: Sequence[Source], patterns: Sequence[Patterns]) -> list[Team]:
        """A team for each of the patterns, then those of the other sources."""
        held = [[mine[number] for number in one.parts] for one in patterns]
        rest = [one for one in mine if not any(one in sources for sources in held)]
        teams = [self._patterned(*one) for one in zip(patterns, held, strict=True)]
        return [*teams, *(self.apart(rest) if rest else [])]

    def _patterned(self, patterns: Patterns, mine: Sequence[Source]) -> Team:
        """Counts over the same rows: by the list of what a unit adds to them, or by orbits of groups.

        Without pieces, at an infinite error and without a bound, where neither is possible.
        """
        V = self._moved_by(patterns, mine)
        if patterns.count <= MOST_LISTED:
            return self.listed(mine, replace(V, contributions=sparse.csr_array(patterns.listed()), _cache={}))
        kinds, found = kinds_of(patterns), None
        if kinds is not None:
            weighed = sparse.diags_array(np.sqrt(np.asarray(V.inner.diagonal()))) @ V.moved(V.span)
            gram = (weighed.T @ weighed).toarray()
            apart = patterns.rows is not None and patterns.classes is None and V.changes > team_bounds.LARGEST
            found = solve_alike_patterns(gram, kinds, 0.9 * self.task.tolerance, self.task.deadline, apart=apart)
        if found is None:
            return self._unlike(V, patterns)
        solved, far = found
        if apart:
            return self._in_two(V, patterns, mine, found)
        piece = self.placed(piece_of(V, solved), mine)
        factor = cholesky(piece.gram) @ piece.columns.toarray().astype(np.float64)
        proof = Proof(factor @ solved.moment() @ factor.T, factor @ solved.first)
        return Team(scaled((piece,), far**-0.5), solved.error * far, solved.lower, proof)

    def _in_two(
        self, V: Workload, patterns: Patterns, mine: Sequence[Source], found: tuple[AlikeOptimum, float]
    ) -> Team:
        """Units and rows in a piece of each, which are too many for one: the best of all that measure them apart."""
        solved, far = found
        N = V.changes - patterns.cells.shape[1]
        pieces = []
        for sources, part in ((mine[:-1], slice(N)), (mine[-1:], slice(N, None))):
            columns = sparse.csr_array(patterns.columns[:, part])
            own = replace(self.only(sources, single=True), contributions=columns, _cache={})
            pieces.append(self.placed(piece_of(own, solved, part), sources))
        settled = far <= 1.0 + self.task.tolerance
        return Team(scaled(tuple(pieces), far**-0.5), solved.error * far, solved.lower, None, settled=settled)

    def _unlike(self, V: Workload, patterns: Patterns) -> Team:
        """Counts over the same rows whose groups are not alike: by a list of long unions.

        Beside the optimum over the list one that takes all groups as alike, of which less is known to be long. Without
        pieces where there are rows, and without a bound, too, where groups are many.
        """
        if V.changes > _LISTED_UNIONS or patterns.classes is not None:
            return Team((), np.inf, 0.0, None)

        def far(moved: Floats) -> float:
            return np.inf if patterns.rows is not None else float(reach_of_units(patterns, moved.T @ moved)[-1])

        found = self._listed_sums(V, partial(longest_unions, kinds=sources_of(patterns), told=False), far)
        lower = max([self._least(V, patterns.some()), *(team.lower for team in found)])
        if patterns.rows is not None or not found:
            return Team((), np.inf, lower, None)
        best = min(found, key=lambda team: team.error)
        if len(best.pieces) == 1 and best.pieces[0].columns.shape[0] == V.changes:
            piece = best.pieces[0]
            X = piece.root.T @ piece.root
            off = ~np.eye(len(X), dtype=bool)
            alike = np.where(off, X[off].mean(), np.diag(X).mean())
            for share in (0.5, 1.0):
                try:
                    root = symmetric_root(share * alike + (1.0 - share) * X, piece.gram)
                except LinAlgError:
                    continue
                other = replace(piece, root=root)
                team = self.within((other,), other.trace(root), V, far)
                best = min([best, *filter(None, [team])], key=lambda team: team.error)
        return replace(best, lower=lower)

    def _moved_by(self, patterns: Patterns, mine: Sequence[Source]) -> Workload:
        """The queries on these sources, and the columns of the patterns as what a unit changes."""
        return replace(self.only(mine, single=True), contributions=sparse.csr_array(patterns.columns), _cache={})

    def tied_pure(self, mine: Sequence[Source], tied: Tied) -> Team | None:
        """Rows and the units that they count, each group by itself; None where groups are not alike."""
        V = replace(self.only(mine, single=True), contributions=sparse.csr_array(tied.columns), _cache={})
        group, task = self._one_group(V), self.task
        if group is None:
            return None
        found = plan_pure_groups(group, tied, task.deadline, task.work, in_blocks=task.in_blocks)
        return None if found is None else Team((found[0],), found[1], 0.0, None)

    def _one_group(self, V: Workload) -> Block | None:
        """The problem of every group, where it is one; None, too, where a group by itself is too large."""
        try:
            problems = reduce_workload(V, self.task.deadline)
        except DataError:
            return None
        return problems[0] if len(problems) == 1 else None

    def _in_groups(self, V: Workload, tied: Tied, far: Callable[[Floats], float | None]) -> Team | None:
        """Rows and units of groups that are alike: each group by itself, or, where that is farther off, together."""
        number, _ = disjoint_blocks(sparse.csc_array(V.moved(V.span)), np.arange(V.span.shape[0]))
        group = self._one_group(V) if number > 1 else None
        found = None if group is None else plan_tied_groups(group, tied, self.task.tolerance, self.task.deadline)
        if found is None:
            return None
        apart = Team((found.apart,), found.error, found.lower, None)
        if found.error <= (1.0 + self.task.tolerance) * found.lower or found.apart.rows.shape[0] > WRITTEN:
            return apart
        best = apart
        for share in _SHARED:
            piece = found.joint(V, share)
            joint = self.within((piece,), piece.trace(piece.root), V, far)
            if joint is not None and joint.error < best.error:
                best = replace(joint, lower=found.lower)
            if joint is None or best.error <= (1.0 + self.task.tolerance) * best.lower:
                break
        return best

    def _listed_sums(
        self, V: Workload, longest: Callable[[Floats], list[Sum]], far: Callable[[Floats], float | None]
    ) -> list[Team]:
        """The optimum over single columns of V's contributions and long sums of them, which join as they are found."""
        if V.changes > _LISTED_SUMS:
            return []
        basis = choose_basis(V.span, V.inner)
        gram, columns = basis.gram(V.inner), sparse.csc_array(V.moved(basis.rows))
        Y, listed = columns.toarray().astype(np.float64), set[bytes]()

        def joined(metric: Floats, least: float) -> list[Floats]:
            """Sums, over the basis, that are longer than ``least`` and not listed yet."""
            new = []
            for value, at, times in longest(Y.T @ metric @ Y)[: 2 * V.changes]:
                key = at.tobytes() + times.tobytes()
                if value > least and key not in listed:
                    listed.add(key)
                    new.append(Y[:, at] @ times)
            return new

        def worst(metrics: tuple[Floats, ...]) -> list[Floats] | None:
            new = joined(metrics[0], 1.0 + self.task.tolerance)
            return [np.array(new)] if new else None

        part = Part(1.0, cholesky(gram), np.vstack([Y.T, *joined(gram, 0.0)]))
        found = solve([part], 0.9 * self.task.tolerance, self.task.deadline, worst=worst)
        piece = Piece(basis.rows, cholesky(found.metrics[0]), columns, gram)
        team = self.within((piece,), found.upper, V, far)
        return [] if team is None else [replace(team, lower=found.lower)]

    def _least(self, V: Workload, some: Sparse) -> float:
        """No more than the least error over ``some`` contributions: of many queries over all of these as often."""
        few = replace(V, contributions=sparse.csr_array(some), _cache={})
        try:
            if V.span.shape[0] > _LISTED_SUMS:
                return dual_value(few, Certificate(np.arange(few.changes), np.ones(few.changes)))
            return self.task_of(few).optimum().lower
        except DataError:  # too large
            return 0.0


def _meeting(W: Workload, mine: Sequence[Source], tied: Tied) -> list[Source]:
    """Both sources, of the first what rows of a unit do that are alike to it and may be of any classes in which they
    have it counted; none where there are no such rows.

    As with visits by state and persons by month: what a unit may do to one of the two it may do whatever it does to the
    other.
    """
    rows, units = (one.part for one in mine)
    few = units.most <= min(rows.times, tied.limit) and rows.times <= tied.most
    if not (few and rows.most == 1 and units.label is None):
        return []
    held = sparse.hstack([rows.corners, tied.more], format="csc", dtype=np.int64)
    asked, alike = np.split(distinct_columns(held).label, [rows.corners.shape[1]])
    both = (alike >= 0) & (tied.label >= 0)
    pairs = np.unique(np.stack([alike, tied.label])[:, both], axis=1)
    met, often = np.unique(pairs[0], return_counts=True)
    kept = np.flatnonzero(np.isin(asked, met[often == units.corners.shape[1]]) & (asked >= 0))
    if not kept.size:
        return []
    label = None if rows.label is None else rows.label[kept]
    part = replace(rows, corners=sparse.csc_array(rows.corners)[:, kept], label=label)
    return [Source(part, rows_of(W, part)), mine[1]]
