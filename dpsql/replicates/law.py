"""The joint law of what a release shows: the measurements that it rests on, and the numbers that follow from them.

Sampling adds to the noise where the rows of a table are taken for independent draws of a population. Had another sample
of about as many rows been drawn, the N rows of a cell would be a Poisson number of them, and its entries of x would
move with the covariance of sums of N independent rows: Var(count) = N, Cov(count, sum u) = sum u, Var(sum u) = sum u^2,
for values u in [-1, 1] about the middle of the bounds (a marked Poisson process). N and sum u are the least-squares
estimates of what was released, of least length where several x agree with it; sum u^2 as well where a variance was
asked of the column, else it is taken at the most that bounds allow: N. Sums of several columns move together as far as
their counts do, and independently beside. W times these moves is added to each replicate, so that everything that is
computed from the release moves as it would from one sample to the next.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import cast

import numpy as np
import scipy.sparse as sp
from scipy.sparse.linalg import lsqr

from dpsql.common.arrays import Floats, Ints
from dpsql.errors import DataError, NotSupportedError
from dpsql.privacy.entries import Entry
from dpsql.reconstruct.combined import Observed
from dpsql.reconstruct.spread import as_dense, over_deviations
from dpsql.registry import needed
from dpsql.release import ReleaseRecord
from dpsql.release.books import Books
from dpsql.release.by_result import no_result
from dpsql.release.payload import unpack
from dpsql.running.earlier import Combination
from dpsql.running.past_releases import PastReleases
from dpsql.running.planned_again import PlannedAgain
from dpsql.workloads.compile.layout import Layout

from .noise import drawn, normals, replicates, seed_of

_ALPHA = 0.05
MOST_NUMBERS = 200_000_000
"""Numbers, or measurements, of a release in all its replicates."""


@dataclass(frozen=True, eq=False)
class Law:
    """A release and how its numbers follow from measurements: x_hat = R y, R of ``combination.answers``.

    ``seeds``: of the noise of each measurement that ``combination`` observes. Two releases that rest on one measurement
    have its seed in common, so that their replicates vary together. ``unbiased``: the release shows x_hat itself, and
    not numbers near it that a table could have.
    """

    record: ReleaseRecord
    combination: Combination | PlannedAgain = field(repr=False)
    seeds: tuple[int, ...] = field(repr=False)
    unbiased: bool = True

    @property
    def measured(self) -> dict[int, Observed]:
        """The measurements, by the seed of their noise."""
        held = self.combination
        if isinstance(held, Combination):
            return dict(zip(self.seeds, held.answers.observed, strict=True))
        # What is asked of a measurement by itself is its size and its noise.
        empty = sp.csr_array((len(held.y), 0))
        return {self.seeds[0]: Observed(empty, held.compiled.common_steps, held.y, held.noise)}

    def values(self, count: int, *, sample: bool = False, places: Ints | None = None) -> Floats:
        """x_hat and ``count`` replicates of it, (1 + count x m): x_hat + R z*; of other samples where ``sample``.

        Of ranges of a line (1 + count x r x (n + 1)), or of the sums at ``places``. Raises DataError for too many.
        """
        held = self.combination
        size = max(held.values.size, *(len(one.y) for one in self.measured.values()))
        if (1 + count) * size > MOST_NUMBERS:
            raise DataError(
                f"{count:,} replicates of {size:,} rows are too many, at most {MOST_NUMBERS:,} rows fit; ask for "
                "fewer, or release a coarser result"
            )
        shown = held.values if places is None else held.values[:, places]
        found = np.tile(shown, (1 + count, *[1] * shown.ndim))
        if isinstance(held, Combination):
            answers = held.answers
            pairs = zip(self.seeds, answers.observed, strict=True)
            found[1:, answers.answered] += answers.propagate(whitened(one, seed, count) for seed, one in pairs)
        else:
            for row, moves in zip(
                found[1:], held.propagate(drawn(held.noise, self.seeds[0], count, len(held.y))), strict=True
            ):
                row += moves if places is None else moves[:, places]
        if sample:
            found[1:] += sampled(held, self.seeds[0], count)
        return found


def whitened(one: Observed, seed: int, count: int) -> Floats:
    """Replicates of a measurement's noise (count x p), in units of its deviations."""
    return as_dense(over_deviations(replicates(one.noise, seed, count, one.matrix.shape[0]), one.noise))


class Laws:
    """The laws of one ledger's releases, found once each."""

    def __init__(self, books: Books, past: PastReleases) -> None:
        self._books = books
        self._past = past
        self._laws: dict[int, Law] = {}

    def of(self, release: int) -> Law:
        """The law of a release. Cost: its batch is understood and solved again. Raises NotSupportedError."""
        return self.of_all([release])[release]

    def of_all(self, releases: Iterable[int]) -> dict[int, Law]:
        """The laws of several releases, for which ledger and schemas are read once. Raises as ``of``."""
        wanted = list(dict.fromkeys(releases))
        lacking = [release for release in wanted if release not in self._laws]
        if lacking:
            entries = {entry.id: entry for entry in self._books.entries() if entry.released is not None}
            schemas = self._past.schemas()
            for release in lacking:
                self._laws[release] = self._law_of(release, entries, schemas)
        return {release: self._laws[release] for release in wanted}

    def first_name(self, release: int, name: str) -> str:
        """What the batch of a release calls the result that is shown as ``name`` by now. Raises NoResultError."""
        return self.first_names([(release, name)])[release, name]

    def first_names(self, places: Iterable[tuple[int, str]]) -> dict[tuple[int, str], str]:
        """``first_name`` of several results."""
        entries, found = {entry.id: entry for entry in self._books.entries()}, {}
        for release, name in places:
            entry = entries[release]
            called = [
                first
                for shown, first in zip(entry.shown, entry.results, strict=True)
                if shown is not None and shown.lower() == name.lower()
            ]
            if not called:
                raise no_result(f"release {release}", name, entry.views)
            found[release, name] = called[0]
        return found

    def _law_of(self, release: int, entries: Mapping[int, Entry], schemas: Mapping[str, Mapping[str, str]]) -> Law:
        entry = entries.get(release)
        if entry is None or entry.charge.noise not in ("gaussian", "laplace", "none"):
            raise NotSupportedError(
                f"release {release} has no noise that replicates could draw again; leave errors out"
            )
        combination = self._past.behind(entry, entries, float(entry.description.get("alpha", _ALPHA)), schemas)
        if combination is None:
            for kind in {"horizon", "schedule"} & entry.description.keys():
                needed(kind)  # which says which extension is not installed
            raise NotSupportedError(
                f"the noise of release {release} cannot be drawn again: its batch was measured adaptively, is planned "
                "otherwise by now, or the policy has changed since; its own columns of errors stay, so leave errors out"
            )
        record, own = unpack(self._books.ledger().release(release).payload or b"")
        seeds = tuple(
            seed_of(entry.dataset, release, own.y) if number == release else self._seed(entries[number])
            for number in combination.rests_on
        )
        return Law(record, combination, seeds, entry.description.get("estimates", "unbiased") == "unbiased")

    def _seed(self, entry: Entry) -> int:
        _, measurement = unpack(self._books.ledger().release(entry.id).payload or b"")
        return seed_of(entry.dataset, entry.id, measurement.y)


_APART = 0x5A4D504C45
"""Takes the seed of sampling apart from those of noise."""


def sampled(combination: Combination | PlannedAgain, seed: int, count: int) -> Floats:
    """Moves (count x m) of a release's numbers from sample to sample. Raises NotSupportedError where it cannot tell."""
    compiled = combination.compiled if isinstance(combination, Combination) else combination.prepared.over_cells
    if compiled is None or compiled.matrix is None:
        raise NotSupportedError(
            'population="sample" needs the cells of a batch one by one; of blocks of histograms with very many cells '
            "and of long lines leave it out"
        )
    W = sp.csr_array(sp.diags_array(np.asarray(compiled.scale, dtype=np.float64)) @ compiled.rows.astype(np.float64))
    x = cast("Floats", lsqr(W, combination.values, atol=1e-12, btol=1e-12, iter_lim=10_000)[0])
    moves = [_moves(layout, x) for layout in compiled.layouts]
    factor = sp.hstack(moves, format="csr")
    return np.asarray((W @ (factor @ normals(seed ^ _APART, count, factor.shape[1]).T)).T)


def _moves(layout: Layout, x: Floats) -> sp.csr_array:
    """F (n x latent): how the entries of x that a table fills move with independent normal variables."""
    several = layout.multiplicity > 1 or layout.source.distinct
    if several or layout.boxes is not None or layout.every is not None:
        raise NotSupportedError(
            f'population="sample" takes the rows of {layout.source.table} as drawn independently, each in one cell: a '
            "unit with several rows and a batch of boxes are not told apart like that; leave it out"
        )
    entry = layout.entry[:, (layout.entry >= 0).any(axis=0)]
    atoms, cells = np.unique(entry, axis=1), np.zeros(len(x))
    used = atoms[0][atoms[0] >= 0]
    if (atoms[0] < 0).any():
        raise NotSupportedError(
            f'population="sample" needs to know how many rows of {layout.source.table} a sum is of: release COUNT(*), '
            "too"
        )
    np.add.at(cells, used, 1.0)
    N = np.maximum(x[atoms[0]], 0.0) / cells[atoms[0]]  # of cells that share a count, equal parts
    rows, columns, values = [atoms[0]], [np.arange(len(N))], [np.sqrt(N)]
    latent = len(N)
    squares = {measure.column: k for k, measure in enumerate(layout.measures, 1) if measure.power == 2}
    for k, measure in enumerate(layout.measures, 1):
        there = np.flatnonzero(atoms[k] >= 0)
        at, n = atoms[k][there], N[there]
        whole = np.zeros(len(x))
        np.add.at(whole, at, n)
        with np.errstate(invalid="ignore", divide="ignore"):
            mean = np.clip(np.nan_to_num(x[at] / whole[at]), -1.0, 1.0)  # of cells that share a sum, one mean
        second = np.ones(len(n))
        beside = squares.get(measure.column)
        if measure.power == 1 and beside is not None and (atoms[beside][there] >= 0).all():
            held = np.zeros(len(x))
            np.add.at(held, atoms[beside][there], n)
            with np.errstate(invalid="ignore", divide="ignore"):
                of_square = np.nan_to_num(x[atoms[beside][there]] / held[atoms[beside][there]])
            second = np.clip((of_square + 1) / 2, 0.0, 1.0)  # a square is measured as 2 u^2 - 1
        rows += [at, at]
        columns += [there, latent + np.arange(len(there))]
        values += [mean * np.sqrt(n), np.sqrt(n * np.maximum(second - mean**2, 0.0))]
        latent += len(there)
    where = np.concatenate(rows), np.concatenate(columns)
    return sp.csr_array((np.concatenate(values), where), shape=(len(x), latent))
