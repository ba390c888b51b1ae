"""The joint law of what a release shows: the measurements that it rests on, and the numbers that follow from them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import scipy.sparse as sp

from dpsql.arrays import Floats, Ints
from dpsql.earlier import Combination
from dpsql.errors import DataError, NotSupportedError
from dpsql.privacy.entries import Entry
from dpsql.reconstruct.combined import Observed, deviations_of
from dpsql.release import ReleaseRecord
from dpsql.release.books import Books
from dpsql.release.by_result import no_result
from dpsql.release.payload import unpack
from dpsql.running.past_releases import PastReleases
from dpsql.running.planned_again import PlannedAgain

from .noise import drawn, replicates, seed_of
from .sampling import sampled

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
            found[1:, answers.answered] += answers.moved(whitened(one, seed, count) for seed, one in pairs)
        else:
            for row, moves in zip(
                found[1:], held.moved(drawn(held.noise, self.seeds[0], count, len(held.y))), strict=True
            ):
                row += moves if places is None else moves[:, places]
        if sample:
            found[1:] += sampled(held, self.seeds[0], count)
        return found


def whitened(one: Observed, seed: int, count: int) -> Floats:
    """Replicates of a measurement's noise (count x p), in units of its deviations."""
    return replicates(one.noise, seed, count, one.matrix.shape[0]) / deviations_of([one])[0]


class Laws:
    """The laws of one ledger's releases, found once each."""

    def __init__(self, books: Books, past: PastReleases) -> None:
        self._books = books
        self._past = past
        self._held: dict[int, Law] = {}

    def of(self, release: int) -> Law:
        """The law of a release. Cost: its batch is understood and solved again. Raises NotSupportedError."""
        return self.of_all([release])[release]

    def of_all(self, releases: Iterable[int]) -> dict[int, Law]:
        """The laws of several releases, for which ledger and schemas are read once. Raises as ``of``."""
        wanted = list(dict.fromkeys(releases))
        lacking = [release for release in wanted if release not in self._held]
        if lacking:
            entries = {entry.id: entry for entry in self._books.entries() if entry.released is not None}
            schemas = self._past.schemas()
            for release in lacking:
                self._held[release] = self._found(release, entries, schemas)
        return {release: self._held[release] for release in wanted}

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

    def _found(self, release: int, entries: Mapping[int, Entry], schemas: Mapping[str, Mapping[str, str]]) -> Law:
        entry = entries.get(release)
        if entry is None or entry.charge.noise not in ("gaussian", "laplace", "none"):
            raise NotSupportedError(
                f"release {release} has no noise that replicates could draw again; leave errors out"
            )
        combination = self._past.behind(entry, entries, float(entry.description.get("alpha", _ALPHA)), schemas)
        if combination is None:
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
