"""Errors that travel: spread, intervals and presence beside every number that is computed from releases."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import duckdb
import numpy as np
from numpy.typing import NDArray
from sqlglot import exp

from dpsql.common.arrays import Floats, Ints
from dpsql.common.quoting import free_name
from dpsql.common.thread_lock import ThreadLock
from dpsql.errors import DataError, NotSupportedError, SQLError
from dpsql.reconstruct.combined import Observed
from dpsql.registry import needed
from dpsql.release import ReleaseStore, Result
from dpsql.release.books import Books
from dpsql.release.by_result import no_result
from dpsql.release.columns import Coded, Numbers
from dpsql.release.limits import QUERY_SECONDS
from dpsql.release.payload import unpack
from dpsql.release.reading import first_line
from dpsql.release.synthetic import SyntheticRows
from dpsql.running.past_releases import PastReleases
from dpsql.sql.outer.relation import ERRORS
from dpsql.sql.outer.sandbox import Sandbox
from dpsql.sql.routing import named_tables

from .intervals import Drawn, null_for_nan, replicates_for, spread_of
from .law import Law, Laws, whitened
from .matching import Rows, matched, unselected
from .merging import merged
from .partitioned import Query, Ran, by_period, check_query, is_number, parsed, release_of
from .ranks import with_ranks
from .stacked import Stacked, places_read, results_of

MOST_CELLS = 10_000_000
"""Rows of a table in all its replicates."""
_USUAL, _LARGE = 999, 199
_MANY_ROWS = 1_000
_MOST_NOISE, _LINEAR_CELLS = 1_000, 3_000_000
"""Measurements, and rows of a table in all its replicates, where these are more than usual to show what is linear."""
_TAIL = 25
"""Replicates beyond each end of an interval, at least."""
_LEAST_ALPHA = 0.005
_SAME = 1e-6
"""What the ledger's measurements give again is rounded, beside the answer."""
_UNSEEN = 1e-3
"""Or beside what noise moves it by: where sums are measured with counts in one matrix, of large integers, a count
is rounded by more than ``_SAME`` of a small answer, and by far less than changes an error that is shown."""
_KEPT = 8


@dataclass(eq=False)
class Replicates:
    """The replicates of one ledger's releases, as a connection asks for them. Free: post-processing throughout.

    Threads may share it; what ``past`` remembers is its own.
    """

    books: Books
    store: ReleaseStore
    past: PastReleases
    laws: Laws = field(init=False)
    _made: dict[tuple[int, int, bool, bytes], dict[str, Stacked]] = field(default_factory=dict)
    _drawn: dict[tuple[int, ...], Drawn] = field(default_factory=dict)
    _lock: ThreadLock = field(default_factory=ThreadLock)

    def __post_init__(self) -> None:
        self.laws = Laws(self.books, self.past)

    def draws(self, release: int, name: str, count: int) -> Result:
        """``count`` replicates of a result: column ``replicate`` (1, 2, ...), then those of the result without errors.

        The same numbers at every call; more replicates begin with the same ones. Results of one release, and of
        releases that rest on the same measurements, vary together: replicate 7 of one belongs to replicate 7 of the
        other. Raises NoResultError, NotSupportedError, DataError.
        """
        with self._lock:
            law = self.laws.of(release)
            _check_size(law, count)
            results = self._results(law, count, QUERY_SECONDS)
        made = {key.lower(): stacked for key, stacked in results.items()}
        place = [table.name.lower() for table in law.record.tables]
        if name.lower() not in made or name.lower() not in place:
            raise no_result(f"release {release}", name, law.record.names)
        found = made[name.lower()]
        if found.ranges is not None:
            raise NotSupportedError(
                f"{name} has all ranges of a line, worked out when they are asked for; ask for those that you need: "
                "con.sql(query, errors=True)"
            )
        which, *columns = found.columns
        columns = [column for column in columns if column[0] not in found.companions]
        numbers = np.asarray(which[2].distinct)[which[2].codes]
        kept = numbers > 0
        first = free_name("replicate", {column[0].lower() for column in columns})
        shown = [(first, "BIGINT", _some(which[2], kept))]
        return Result.from_columns([*shown, *((n, kind, _some(held, kept)) for n, kind, held in columns)])

    def synthetic_rows(self, release: int, n: int, seed: int) -> SyntheticRows:
        """``n`` rows that agree with the counts of a release (the extension ``synthetic`` makes them). Raises
        DataError, NotSupportedError.
        """
        entry = next((entry for entry in self.books.entries() if entry.id == release), None)
        batches = ("gaussian", "laplace", "none")
        if (
            entry is None
            or entry.released is None
            or entry.charge.noise not in batches
            or entry.charge.delta is not None
        ):
            raise DataError(f"release {release} is none of a batch; give the number of one that has tables of counts")
        record, _ = unpack(self.books.ledger().release(release).payload or b"")
        try:
            batch = self.past.meaning(record.sql)
        except SQLError:
            batch = None
        if batch is None or len(batch.answers) != len(record.tables):
            raise NotSupportedError(
                f"the policy has changed since release {release}, so that its groups are not known any more; release "
                "its batch again for synthetic rows"
            )
        rows: SyntheticRows = needed("synthetic_rows")(record, batch, n, seed)
        return rows

    def results_read(self, query: str, meant: Mapping[str, Mapping[str, int]]) -> dict[tuple[int, str], str]:
        """The results that a query reads, as release and name, with what their batches call them.

        ``meant``: what q1, q2, ... are to the asker. Raises SQLError.
        """
        _, _, read = self._read(query, meant)
        return self.laws.first_names({place for place in read if place is not None})

    def _read(
        self, query: str, meant: Mapping[str, Mapping[str, int]]
    ) -> tuple[exp.Expr, list[exp.Table], list[tuple[int, str] | None]]:
        """The tree of a query, its tables, and the result that each of them is."""
        tree = merged(by_period(parsed(query), self.store.series(), meant))
        shown = self.store.shown_by()
        nodes = [node for node in named_tables(tree) if isinstance(node.this, exp.Identifier)]
        return tree, nodes, [release_of(node, shown, meant) for node in nodes]

    def with_errors(
        self,
        query: str,
        bare: Result,
        unnamed: Mapping[str, Mapping[str, int]],
        alpha: float,
        seconds: float | None,
        *,
        sample: bool = False,
    ) -> tuple[Result, str]:
        """The answer ``bare`` of a query over the releases, errors beside the numbers that noise reaches, and "".

        ``c_stderr``, ``c_low`` and ``c_high`` beside a number c; ``c_present``, the share of the replicates that have
        the row with a number there, where noise decides which rows there are; of a column that is no number, the share
        that say the same. ``unnamed``: what q1, q2, ... are to the asker. ``sample``: intervals add what sampling does.
        A query that reads nothing noisy gets its answer alone, and why, in words. Raises SQLError, DataError,
        NotSupportedError, OperationalError.
        """
        if not _LEAST_ALPHA <= alpha < 1:
            raise DataError(
                f"alpha of computed numbers must be at least {_LEAST_ALPHA} and below 1, not {alpha!r}; 0.05 means 95 %"
            )
        tree, nodes, read = self._read(query, unnamed)
        shown = self.store.shown_by()
        named = {place for place in read if place is not None}
        if not isinstance(tree, exp.Query) or not named:
            return bare, "it reads no released numbers"
        if any(place is None for place in read):
            raise NotSupportedError("errors=True reads the results of releases alone; join other tables afterwards")
        check_query(query, tree, bare)
        tables = {}
        with self._lock:
            laws = self.laws.of_all(release for release, _ in named)
            first_names = self.laws.first_names(named)
            if sample and len(laws) > 1:
                raise NotSupportedError(
                    'population="sample" takes the results of one release, whose cells it knows together; release '
                    "them in one batch, or leave it out"
                )
            count = _count(laws, alpha)
            for release, name in sorted(named):
                places = self._places(laws, (release, name), tree, list(zip(nodes, read, strict=True)), count)
                if places is None:
                    _check_size(laws[release], count)
                results = self._results(laws[release], count, seconds or QUERY_SECONDS, sample=sample, places=places)
                tables[f"r{release}.{name}"] = results[first_names[release, name]]
            drawn = None if sample else self._noise(laws, count)

        def key(node: exp.Table) -> str:
            place = release_of(node, shown, unnamed)
            return "" if place is None else f"r{place[0]}.{place[1]}"

        answered = _Answered(bare, drawn, alpha, all(law.unbiased for law in laws.values()))
        failure = ""
        try:
            return _worked_out(Query(tree, tables, key), answered, time.monotonic() + (seconds or 10 * QUERY_SECONDS))
        except duckdb.Error as error:
            failure = first_line(error)
        raise SQLError(f"errors=True cannot work these out ({failure}); leave errors out")

    def _places(
        self,
        laws: Mapping[int, Law],
        which: tuple[int, str],
        tree: exp.Expr,
        read: Sequence[tuple[exp.Table, tuple[int, str] | None]],
        count: int,
    ) -> Ints | None:
        """Of all ranges of a line that are too many in all replicates, the places of those that a query reads."""
        if all(table.listed for table in laws[which[0]].record.tables):
            return None
        tables = {}
        for release, name in (place for _, place in read if place is not None):
            first = self.laws.first_name(release, name).lower()
            held = laws[release].record.tables
            tables[release, name] = next(table for table in held if table.name.lower() == first)
        table = tables[which]
        if table.listed or (count + 1) * table.stored <= MOST_CELLS:
            return None
        columns = [(node, tables[place].noisy) for node, place in read if place is not None]
        own = [number for number, (_, place) in enumerate(read) if place == which]
        return places_read(tree, columns, own, table, MOST_CELLS // (2 * (count + 1) * table.groups))

    def _results(
        self, law: Law, count: int, seconds: float, *, sample: bool = False, places: Ints | None = None
    ) -> dict[str, Stacked]:
        key = (law.record.release_id, count, sample, b"" if places is None else places.tobytes())
        if key not in self._made:
            while len(self._made) >= _KEPT:
                self._made.pop(next(iter(self._made)))
            self._made[key] = results_of(law, count, seconds, sample=sample, places=places)
        return self._made[key]

    def _noise(self, laws: Mapping[int, Law], count: int) -> Drawn | None:
        """The noise of all measurements that the releases rest on, each once; None where it is of too many numbers for
        replicates to show what is linear in it.
        """
        measured = _measured(laws)
        if replicates_for(sum(len(one.y) for one in measured.values())) > count:
            return None
        key = (*measured, count)
        if key not in self._drawn:
            while len(self._drawn) >= _KEPT:
                self._drawn.pop(next(iter(self._drawn)))
            white = [whitened(one, seed, count) for seed, one in measured.items()]
            self._drawn[key] = Drawn(tuple(measured.values()), np.concatenate(white, axis=1))
        return self._drawn[key]


def _count(laws: Mapping[int, Law], alpha: float) -> int:
    """How many replicates: fewer of large tables, more for ends far out, and to show what is linear in much noise."""
    largest = max(_rows(law) for law in laws.values())
    usual = max(_USUAL if largest <= _MANY_ROWS else _LARGE, int(np.ceil(2 * _TAIL / alpha)) - 1)
    numbers = sum(len(one.y) for one in _measured(laws).values())
    linear = replicates_for(numbers)
    fits = numbers <= _MOST_NOISE and linear * largest <= _LINEAR_CELLS
    return max(usual, linear) if fits else usual


def _rows(law: Law) -> int:
    """Of its largest result; of all ranges of a line, those of the sums that they are worked out of."""
    return max(table.stored for table in law.record.tables)


def _check_size(law: Law, count: int) -> None:
    rows = _rows(law)
    if (count + 1) * rows > MOST_CELLS:
        raise DataError(
            f"{count:,} replicates of {rows:,} rows are too many, at most {MOST_CELLS:,} rows fit; ask for fewer (of "
            "all ranges of a line, name the ends in WHERE), or release a coarser result"
        )


def _measured(laws: Mapping[int, Law]) -> dict[int, Observed]:
    """All measurements that the releases rest on, each once, by the seed of their noise."""
    return {seed: one for law in laws.values() for seed, one in law.measured.items()}


def _some(column: Numbers | Coded, flags: NDArray[np.bool_]) -> Numbers | Coded:
    if isinstance(column, Coded):
        return Coded(column.distinct, column.codes[flags])
    return Numbers(column.data[flags], None if column.null is None else column.null[flags])


@dataclass(frozen=True, eq=False)
class _Answered:
    """A query with its answer, and what its errors rest on. ``unbiased``: the releases show x_hat itself. ``drawn``:
    None where sampling moves the numbers as well, so that none is linear in the noise alone.
    """

    bare: Result
    drawn: Drawn | None
    alpha: float
    unbiased: bool

    def shown(self, ran: Ran, rows: Rows, values: Rows) -> Result:
        """The answer with errors beside its numbers: of ``values``, where ``rows`` says which rows there are."""
        names, count = list(self.bare.columns), len(self.bare)
        taken = {name.lower() for name in names}
        beside = {f"{name}{suffix}".lower() for name in names for suffix in ERRORS}
        times = ran.times - 1
        there = np.zeros((1 + times, count), dtype=np.bool_)
        inside = rows.place >= 0
        which, place = rows.replicate[inside], rows.place[inside]
        there[which, place] = True
        reached = [at for at in range(len(names)) if ran.noisy[at] and names[at].lower() not in beside & taken]
        columns: list[tuple[str, str, Any]] = []
        for at, (name, kind) in enumerate(zip(names, self.bare.types, strict=True)):
            columns.append((name, kind, self.bare.column_at(at)))
            presence = ran.lineage.rows and (at in reached or (not reached and at == 0))
            moved = np.full((1 + times, count), np.nan)
            moved[which, place] = rows.values[at][inside]
            if at in reached and is_number(kind):
                if not all(f"{name}{suffix}".lower() in taken for suffix in ERRORS):
                    columns += self._errors(ran, values, at, taken, self._level(ran, rows))
                share = (there & ~np.isnan(moved))[1:].mean(axis=0)
            elif at in reached:
                share, presence = (there & (moved == rows.answer[at]))[1:].mean(axis=0), True
            else:
                share = there[1:].mean(axis=0)
            if presence:
                columns.append((free_name(f"{name}_present", taken), "DOUBLE", Numbers(share)))
        return Result.from_columns(columns)

    def _level(self, ran: Ran, rows: Rows) -> float:
        """Alpha of the ends of a row that noise may have picked.

        Of m rows that contend for k places the picked ones have the larger noise: intervals at level alpha k / m keep
        the share of shown intervals that miss at alpha (Benjamini and Yekutieli 2005). Replicates vary about the
        answer, which varies about the truth, so that of rows that tie about half are ever picked in them; but picking
        moves numbers to one side, so that one end alone misses, and the two cancel.
        """
        picked = max(len(self.bare), 1) / max(rows.contenders, 1) if ran.lineage.rows else 1.0
        return self.alpha * min(1.0, picked)

    def _errors(self, ran: Ran, rows: Rows, at: int, taken: set[str], alpha: float) -> list[tuple[str, str, Any]]:
        """The columns of errors beside column ``at``; ends at level ``alpha``."""
        name, kind = self.bare.columns[at], ran.columns[at][1]
        answer = rows.answer[at]
        inside = rows.place >= 0
        where = rows.replicate[inside], rows.place[inside]

        def laid(column: int) -> Floats:
            """A column by replicate and row."""
            out = np.full((ran.times, len(answer)), np.nan)
            out[where] = rows.values[column][inside]
            return out

        moved, there = laid(at), np.zeros((ran.times, len(answer)), dtype=np.bool_)
        there[where] = True
        first = np.where(np.isfinite(moved[0]), moved[0], answer)
        with np.errstate(invalid="ignore"):
            moves = np.abs(moved - first)
            far = np.where(np.isfinite(moves), moves, 0.0).max(axis=0)
            apart = np.abs(first - answer) > np.maximum(_SAME * np.maximum(np.abs(answer), 1.0), _UNSEEN * far)
        if self.unbiased and apart.any():
            raise NotSupportedError(
                f"the numbers of {name} do not follow from the measurements in the ledger as this version reads them; "
                "the releases' own columns of errors stay, so leave errors out"
            )
        divisors = [(held[0], held[1:]) for held in map(laid, ran.divisors[at] if ran.divisors else ())]
        whole = kind not in ("DOUBLE", "FLOAT") and not kind.startswith("DECIMAL")
        drawn = self.drawn
        if drawn is not None and ran.times <= len(drawn.white):
            drawn = replace(drawn, white=drawn.white[: ran.times - 1])
        found = spread_of(first, moved[1:], there[1:], divisors, drawn, alpha, whole=whole)
        if whole:
            keys = [values for values, noisy in zip(rows.answer, ran.noisy, strict=False) if not noisy]
            found = with_ranks(found, moved, keys, alpha)
        low, high = found.low, found.high
        if not self.unbiased:  # what is shown lies within its interval
            low, high = np.fmin(low, answer), np.fmax(high, answer)
        ends = zip(ERRORS, (found.stderr, low, high), strict=True)
        return [
            (free_name(f"{name}{suffix}", taken), "DOUBLE", null_for_nan(np.where(np.isnan(answer), np.nan, values)))
            for suffix, values in ends
        ]


def _worked_out(query: Query, answered: _Answered, end: float) -> tuple[Result, str]:
    """The answer with its errors, or alone, and why. ``end``: until when."""
    bare, alpha = answered.bare, answered.alpha
    with Sandbox() as sandbox:
        query.stack(sandbox)
        ran = query.run(sandbox, "dpsql_all", end, places=True)
        if ran.failed > alpha / 2 * ran.times:
            raise SQLError(
                f"the query fails on {ran.failed} of {ran.times - 1} replicates of what it reads, on numbers that "
                "the release might as well have shown; guard against them, with GREATEST, NULLIF or TRY, or leave "
                "errors out"
            )
        if not any(ran.noisy) and not ran.lineage.rows:
            return bare, "noise reaches no column of it"
        rows = matched(sandbox, ran, bare, "dpsql_all")
        if rows is None:
            sandbox.drop("dpsql_all")
            ran = query.run(sandbox, "dpsql_all", end, places=True, ordered=True)
            rows = matched(sandbox, ran, bare, "dpsql_all")
        assert rows is not None  # noqa: S101 - rows in order are matched by their places
        free = unselected(query.tree, query.clean) if ran.lineage.rows else None
        if free is not None:
            ran_free = Query(free, query.tables, query.named).run(sandbox, "dpsql_free", end, places=True)
            same = ran_free.noisy == ran.noisy and ran_free.times == ran.times
            values = matched(sandbox, ran_free, bare, "dpsql_free") if same else None
            if values is not None and any(ran.noisy) and not all(ran.noisy):
                return answered.shown(replace(ran_free, lineage=ran.lineage), rows, values), ""
        return answered.shown(ran, rows, rows), ""
