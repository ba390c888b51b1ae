"""The values of a column, found once, privately: what is asked, what it costs, and what comes back."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import numpy as np

from dpsql.common.arrays import Json
from dpsql.common.numerics import ALPHA
from dpsql.errors import DataError, IntegrityError, PolicyError
from dpsql.measure import measure
from dpsql.measure.discovery import DiscoveryJob, Found
from dpsql.measure.sources import Holdings
from dpsql.policy import ColumnPolicy, Policy, TablePolicy
from dpsql.policy.limits import limits_in
from dpsql.policy.text import column_text
from dpsql.policy.types import Schemas, column_type
from dpsql.policy.units import units_in
from dpsql.policy.values import Bound, Key, fold, shown
from dpsql.privacy import reserve
from dpsql.privacy.accountant import Request
from dpsql.privacy.charge import Charge
from dpsql.privacy.entries import Entry
from dpsql.privacy.finding import Way, gaussian_way, pure_way
from dpsql.privacy.pure_threshold import STRAYS, PureThreshold
from dpsql.privacy.shown_counts import intervals
from dpsql.privacy.state import BudgetState
from dpsql.privacy.threshold import Integers
from dpsql.privacy.universe import Universe
from dpsql.release import ReleaseRecord, ReleaseTable, Result
from dpsql.release.books import Books
from dpsql.release.claims import claimed
from dpsql.release.payload import Measurement, pack, unpack
from dpsql.running.found_domains import KIND, key_of, of_column, values_in
from dpsql.running.minimum import counted
from dpsql.sql import table_of
from dpsql.sql.resolve.row_sources import source_of, stored
from dpsql.workloads.expr.batch import Column

_OTHER_PRECISIONS = ("TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS")  # which GROUP BY does not take
_KINDS = ("text", "integer", "decimal", "boolean", "date", "timestamp", "timestamptz")


@dataclass(frozen=True, repr=False)
class Prospect:
    """What a discovery would cost and show, before anything is spent. Public and free.

    ``threshold``: values with fewer units (rows, where a row is the unit) are shown with a probability below one half.
    """

    table: str
    column: str
    unit: str
    groups: int
    way: Way = field(repr=False)
    aside: tuple[Charge, Mapping[str, Any]] | None = field(default=None, repr=False)
    minimum: int | None = field(default=None, repr=False)

    @property
    def threshold(self) -> int:
        """The count from which a value is shown with a probability of at least one half."""
        return self.way.law.least

    @property
    def charge(self) -> Charge:
        """What it takes of the budget."""
        return self.way.charge

    @property
    def stderr(self) -> float:
        """The standard deviation of the noise of one count."""
        return self.way.law.stderr

    def __str__(self) -> str:
        rule = self.way.law
        law, more = "Gaussian threshold", ""
        if isinstance(rule, PureThreshold):
            law, more = f"noise on every {rule.universe}", f", and fewer than {STRAYS:g} that nobody has are expected"
        of = "each in one value" if self.groups == 1 else f"each in at most {self.groups} values"
        lines = [
            f"{self.table}.{self.column}: {self.charge.guarantee}, for adding or removing one {self.unit}",
            f"  counts {self.unit}s, {of}; {law}, standard error {self.stderr:.4g}",
            f"  at this budget only values with more than about {about(self.threshold)} {self.unit}s can appear{more}",
        ]
        if self.aside is not None:
            lines.append(f"  first of this ledger: {self.aside[0].guarantee}")
        return "\n".join(lines)

    __repr__ = __str__


@dataclass(frozen=True, repr=False)
class Discovery:
    """The domain of a column, found privately: its ``values`` in order and their noisy ``counts``, or its ``bounds``.

    ``id`` numbers the release in the ledger; ``cost`` is what was charged, in the account's measure, 0 where the ledger
    had it already. ``column`` is the column's declaration by now, ``str(...)`` of it a line for the policy file.
    ``name``: the view of the counts with their errors in schema dp. Of bounds there are no values; ``outside`` is the
    expected share of rows with a value that lie outside of them, None for values.
    """

    id: int
    table: str
    column: ColumnPolicy
    cost: float
    guarantee: str
    result: Result
    name: str
    outside: float | None = None

    @property
    def bounds(self) -> tuple[Bound, Bound] | None:
        """Lower and upper bound, where these were asked for and found."""
        lower, upper = self.column.lower, self.column.upper
        return None if lower is None or upper is None else (lower, upper)

    @property
    def values(self) -> tuple[Key, ...]:
        """What was found; everything else is OTHER."""
        return self.column.values or ()

    @property
    def counts(self) -> tuple[float | None, ...]:
        """Noisy counts of units (rows, where a row is the unit), in the order of ``values``; None under a minimum."""
        return () if self.outside is not None else tuple(row[1] for row in self.result.fetchall())

    def to_toml(self) -> str:
        """The line by which the policy declares what was found."""
        return column_text(self.column)

    def __repr__(self) -> str:
        result = f"{len(self.values):,} values"
        if self.outside is not None:
            result = "no bounds" if self.bounds is None else "{} to {}".format(*map(shown, self.bounds))
        return (
            f"Discovery(id={self.id}, {self.table}.{self.column.name}: {result}, "
            f"cost={self.cost:.9g}, guarantee={self.guarantee!r})"
        )


@dataclass(frozen=True)
class DiscoveryQuery:
    """What ``Connection.discover`` was given: a column ("visits.diagnosis"), epsilon or rho, delta, groups a unit.

    ``universe``: the texts that are values, of what is found purely.
    """

    target: str
    request: Request
    delta: Fraction | None
    max_groups: int | None
    universe: Universe | None = None

    def __post_init__(self) -> None:
        if self.universe is not None and self.delta is not None:
            raise DataError("values of max_bytes are found without delta; leave delta out, or max_bytes")

    def __str__(self) -> str:
        of = self.universe
        texts = "" if of is None else f" {of.longest} bytes{'' if of.alphabet is None else f' of {of.alphabet}'}"
        amounts = (self.request.epsilon, self.request.rho, self.delta, self.max_groups or 1)
        return f"{fold(self.target)} {' '.join(str(amount) for amount in amounts)}{texts}"


@dataclass(eq=False)
class Finder:
    """Discoveries of one connection."""

    holdings: Holdings
    books: Books
    declared: Policy  # without what was found: a column may be found again

    def prospect(self, query: DiscoveryQuery) -> Prospect:
        """What a discovery would be; see ``Connection.discover`` for what is refused."""
        table, column = target_of(self.declared, query.target)
        groups = _groups(table, query.max_groups)
        if query.universe is not None:
            state, aside = self.books.state(), None
            way = pure_way(query.request, self.books.budget, groups, query.universe)
        else:
            state, there, aside = reserved(self.books)
            way = gaussian_way(query.request, query.delta, self.books.budget, groups, there.left)
        state.check(way.charge)
        prospect = Prospect(table.name, column.name, unit_word(table), groups, way, aside, table.minimum)
        check_reach(table, prospect)
        return prospect

    def find(self, query: DiscoveryQuery, *, fresh: bool, label: str) -> tuple[Discovery, ReleaseRecord]:
        """Charge, find and record; or the same discovery of this version of the data again, at no cost."""
        schemas = self.holdings.schemas()
        with claimed(self.books.path, "discovery"):  # one after the other: the first sets delta aside for all
            ledger = self.books.ledger()
            self.books.check_releases(ledger)
            earlier = None if fresh else self.earlier(query)
            if earlier is not None:
                return earlier
            prospect = self.prospect(query)
            target = table, declared = target_of(self.declared, query.target)
            name = view_name(table, declared, names_taken(self.books.entries()))
            job = self.job(prospect, target, schemas, name, str(query), label)
            made: list[ReleaseRecord] = []

            def payload(release: int, result: Found) -> bytes:
                values, counts = result
                record = _record(release, prospect, job, values_table(prospect, job, values, counts), label)
                made.append(record)
                law = prospect.way.law
                y = tuple(counts.tolist())
                return pack(record, Measurement(y, f"{law.kind} threshold", law.parameter, 1, str(law.least)))

            number, _ = measure(job, self.holdings.engine, ledger, payload)
        return _discovery(number, table, declared, prospect.charge.amount, made[0], job.column.type), made[0]

    def earlier(self, query: DiscoveryQuery) -> tuple[Discovery, ReleaseRecord] | None:
        """The newest discovery of this column on this version of the data, where it was asked in the same way."""
        table, declared = target_of(self.declared, query.target)
        _groups(table, query.max_groups)
        entry_and_record = earlier_release(self.books, str(query))
        if entry_and_record is None:
            return None
        entry, record = entry_and_record
        return _discovery(entry.id, table, declared, 0.0, record, str(entry.description["type"])), record

    def job(
        self,
        prospect: Prospect,
        target: tuple[TablePolicy, ColumnPolicy],
        schemas: Mapping[str, Mapping[str, str]],
        name: str,
        query: str = "",
        label: str = "",
    ) -> DiscoveryJob:
        """Everything public that a discovery in a ``target`` needs; its counts are to be the view ``name``."""
        policy, (table, declared) = self.declared, target
        tables = {name: table_of(table, schemas[name]) for name, table in policy.tables.items()}
        column: Column = tables[table.name].columns[fold(declared.name)]
        if isinstance(prospect.way.law, PureThreshold) and column_type(column.type).kind != "text":
            raise PolicyError(
                f"{declared.where} is {column_type(column.type)}, and max_bytes is of text; declare bounds, within "
                "which all values are groups, or find values with delta"
            )
        if column_type(column.type).kind not in _KINDS or column.type.upper() in _OTHER_PRECISIONS:
            raise PolicyError(
                f"{declared.where} is {column_type(column.type)}, whose values are no groups; find bounds with "
                "bounds=True, or group by ranges of it"
            )
        source = source_of(tables[table.name], policy, tables)
        self.holdings.check_disjoint()
        description = {
            "kind": KIND,
            "names": [name],
            "tables": [table.name],
            "table": table.name,
            "column": declared.name,
            "type": column.type,
            "units": units_in(policy.tables, source.tables),
            "limits": limits_in(policy.tables, source.tables),
            "asked": query,
            "groups": prospect.groups,
            "least": prospect.way.law.least,
            "noise": prospect.charge.noise,
        }
        return DiscoveryJob(
            stored(tables[table.name], declared.name, ""),
            column.line,
            source,
            prospect.way.law,
            prospect.charge,
            {name: dict(schemas[name]) for name in source.tables},
            self.holdings.sources,
            description,
            label,
            prospect.aside,
        )


def target_of(policy: Policy, target: str) -> tuple[TablePolicy, ColumnPolicy]:
    """The table and the column of "visits.diagnosis", checked. Raises PolicyError."""
    name, dot, column_name = target.rpartition(".")
    if not dot or not name or not column_name:
        raise DataError('discover() needs a table and a column, as in "visits.diagnosis"')
    table = policy.table(name)
    column = table.column(column_name)
    if table.public:
        raise PolicyError(f"{table.where} is public: query it directly, there is nothing to hide")
    if table.counts is not None:
        raise PolicyError(f"{table.key('counts')}: pre-aggregated tables are not answered; give one row per unit")
    if column.values is not None or column.lower is not None:
        raise PolicyError(f"{column.where} has a domain, which the policy declares; leave it out to find one")
    unit = policy.units[table.name]
    unit_columns = () if unit is None else unit.path[0].columns if unit.path else (unit.column,)
    if fold(column.name) in {fold(part) for part in unit_columns}:
        raise PolicyError(
            f"{column.where} says whose a row is: a value of it is one {unit_word(table)}, and none can be shown"
        )
    if [fold(part) for part in table.unique] == [fold(column.name)]:
        raise PolicyError(f"{column.where} is the table's key: a value of it is one row, and none can be shown")
    return table, column


def _groups(table: TablePolicy, max_groups: int | None) -> int:
    if table.unit == "row":
        if max_groups not in (None, 1):
            raise DataError("max_groups is 1 where the unit is a row, which has one value; leave it out")
        return 1
    if max_groups is None:
        raise DataError(
            f"max_groups is missing: say in how many values of the column one {unit_word(table)} counts at most; 1 "
            "adds least noise, more count more of who has several"
        )
    return max_groups


def unit_word(table: TablePolicy) -> str:
    return "row" if table.unit == "row" else table.unit.rpartition(".")[2]


def type_of(schemas: Schemas, table: TablePolicy, column: ColumnPolicy) -> str:
    """The type of a column in its table."""
    return next(kind for name, kind in schemas[table.name].items() if fold(name) == fold(column.name))


def check_reach(table: TablePolicy, prospect: Prospect) -> None:
    """DataError where no value of a table can have as many units as a threshold needs."""
    more = "shorter texts" if prospect.way.law.delta is None else "more delta"
    if table.expected_rows is not None and prospect.threshold > table.expected_rows:
        raise DataError(
            f"at this budget only values with more than about {about(prospect.threshold)} {prospect.unit}s can appear, "
            f"and {table.key('expected_rows')} is {table.expected_rows:,}: ask with more epsilon or {more}"
        )


def reserved(books: Books) -> tuple[BudgetState, reserve.Reserve, tuple[Charge, Json] | None]:
    """The accounts, the delta that thresholds may use, and what must be charged first to set it aside, if anything.

    The accounts and the reserve are those after that charge. PolicyError, BudgetError where no delta can be had.
    """
    reserve.check_possible(books.budget)
    state = books.state()
    there, aside = state.reserve, reserve.missing(state.budget, state.charges)
    if aside is not None:
        return after(state, aside[0]), reserve.Reserve(Fraction(str(aside[1]["delta"])), Fraction(0)), aside
    if there is None:
        raise reserve.too_late()
    return state, there, None


def earlier_release(books: Books, query: str) -> tuple[Entry, ReleaseRecord] | None:
    """The newest discovery of this version of the data that was asked in the same way, and its record."""
    for entry in reversed(books.entries()):
        same = entry.released is not None and entry.dataset == books.dataset
        if same and entry.description.get("kind") == KIND and entry.description.get("asked") == query:
            return entry, unpack(books.ledger().release(entry.id).payload or b"")[0]
    return None


def after(state: BudgetState, charge: Charge) -> BudgetState:
    """The accounts once ``charge`` is paid, as far as they hold it."""
    accounts = tuple(
        replace(a, spent_units=min(a.total_units, a.spent_units + charge.units)) if a.name == charge.account else a
        for a in state.accounts
    )
    return replace(state, accounts=accounts)


def about(count: int) -> str:
    """A count in two digits, rounded up."""
    step = 10 ** max(0, len(str(count)) - 2)
    return f"{-(-count // step) * step:,}"


def names_taken(entries: list[Entry]) -> set[str]:
    """The names of all views that a ledger's releases have, in lower case."""
    return {fold(view) for entry in entries if entry.released is not None for view in entry.views}


def view_name(table: TablePolicy, column: ColumnPolicy, taken: Collection[str], what: str = "") -> str:
    """A name for a view that no other result has: visits_diagnosis, visits_diagnosis_2, ..."""
    plain = f"{table.name}_{column.name}{what}".replace(".", "_").replace("\0", "")
    names = (plain, *(f"{plain}_{number}" for number in range(2, len(taken) + 3)))
    return next(name for name in names if fold(name) not in taken)


def values_table(prospect: Prospect, job: DiscoveryJob, texts: list[str], counts: Integers) -> ReleaseTable:
    """The counts of what was found, with errors; values that no policy can hold are left out, and are OTHER then."""
    keys = [key_of(text, job.column.type) for text in texts]
    declarable = np.array([key is not None for key in keys], dtype=bool)
    values, noisy = [key for key in keys if key is not None], counts[declarable]
    order = sorted(range(len(values)), key=lambda at: values[at])
    noisy = noisy[order]
    low, high = intervals(prospect.way.law, noisy, ALPHA)
    kind = "VARCHAR" if column_type(job.column.type).kind == "text" else job.column.type
    number = "n" if fold(prospect.column) != "n" else "n_rows"
    columns = (
        (prospect.column, kind, [values[at] for at in order]),
        (number, "DOUBLE", noisy.astype(float).tolist()),
        (f"{number}_stderr", "DOUBLE", [prospect.stderr] * len(order)),
        (f"{number}_low", "DOUBLE", low.astype(float).tolist()),
        (f"{number}_high", "DOUBLE", high.astype(float).tolist()),
    )
    return ReleaseTable(str(job.description["names"][0]), True, counted(number, columns, prospect.minimum))


def _record(release: int, prospect: Prospect, job: DiscoveryJob, table: ReleaseTable, label: str) -> ReleaseRecord:
    return ReleaseRecord(
        release_id=release,
        released_at=dt.datetime.now(dt.UTC),
        tables=(table,),
        label=label or None,
        guarantee=prospect.charge.guarantee,
        purse=prospect.charge.account,
        cost=prospect.charge.amount,
        noise=prospect.charge.noise,
        strategy=f"values from {prospect.way.law.least} on, intervals of counts that passed",
        queries=len(table),
        sql=f"-- the values of {prospect.table}.{prospect.column}, found privately",
        unit=f"one {prospect.unit} of {prospect.table}",
    )


def _discovery(
    number: int, table: TablePolicy, column: ColumnPolicy, cost: float, record: ReleaseRecord, kind: str
) -> Discovery:
    (view,) = record.tables
    if not view.listed:
        raise IntegrityError(f"release {number} is no discovery")
    values = values_in(view, kind)
    made = of_column(column, values) if values else column
    return Discovery(number, table.name, made, cost, record.guarantee, Result.from_columns(view.columns), view.name)
