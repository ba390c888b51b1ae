"""Local releases of a connection: made once, remembered by the ledger, asked any number of times."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from dpsql.common.arguments import flag, taking
from dpsql.common.arrays import Array, Values
from dpsql.common.interrupted_calls import guards_calls
from dpsql.errors import IntegrityError, InterfaceError, PolicyError, ProgrammingError, nearest
from dpsql.extensions.local.device import Categories, Domain
from dpsql.extensions.local.local_questions import ask, bounds_of, result_of
from dpsql.extensions.local.places import Places
from dpsql.extensions.local.released import Released, table_of_rows
from dpsql.measure import measure, read_schemas
from dpsql.measure.local import LocalJob, ReleasedColumn, public_rows
from dpsql.measure.sources import Holdings
from dpsql.policy import Policy, TablePolicy
from dpsql.policy.limits import limits_in
from dpsql.policy.types import Schemas
from dpsql.policy.units import units_in
from dpsql.policy.values import fold
from dpsql.privacy.accountant import local_charge
from dpsql.privacy.amounts import exact
from dpsql.privacy.charge import Charge
from dpsql.privacy.ledger import Entry
from dpsql.privacy.response import Codes, Response
from dpsql.release import ReleaseRecord, ReleaseTable, Result, check_name
from dpsql.release.books import Books
from dpsql.release.claims import claimed
from dpsql.release.payload import Measurement, local_of, pack, unpack
from dpsql.sql import table_of
from dpsql.sql.resolve.row_sources import source_of
from dpsql.workloads.expr.batch import Column, constant
from dpsql.workloads.expr.regions import KeyDomain, line_axis


@guards_calls
@dataclass(frozen=True, eq=False)
class LocalRelease:
    """A local release: randomised rows of a table, and estimates from them. Questions are free, and any number.

    ``name`` is its view in schema dp of the releases, ``rows`` how many rows it has, ``columns`` what was released of
    them, ``ids`` the public columns beside them. ``id`` numbers it in the ledger; ``cost`` is the epsilon that it was
    charged, 0 where it was made earlier; ``guarantee`` says for which neighbours.
    """

    id: int
    cost: float
    released: Released = field(repr=False)
    _load: Callable[[], ReleaseTable] = field(repr=False)
    _policy: Policy = field(repr=False)
    _schemas: Callable[[], Schemas] = field(repr=False)
    _public: Callable[[str, Mapping[str, str]], list[Values]] = field(repr=False)

    @property
    def name(self) -> str:
        """The name of the view."""
        return self.released.name

    @property
    def table(self) -> str:
        """The private table that was released."""
        return self.released.table

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that were randomised."""
        return self.released.domain.names

    @property
    def ids(self) -> tuple[str, ...]:
        """The public columns that were kept."""
        return tuple(name for name, _ in self.released.ids)

    @property
    def rows(self) -> int:
        return self.released.rows

    @property
    def epsilon(self) -> float:
        """The epsilon of one row."""
        return float(self.released.epsilon)

    @property
    def combinations(self) -> int:
        """k, the size of the joint domain."""
        return self.released.domain.size

    @property
    def guarantee(self) -> str:
        """What the release satisfies, and for which neighbours."""
        return self.released.guarantee

    @taking(errors=flag())
    def sql(self, query: str, *, estimator: str = "unbiased", errors: bool = True, alpha: float = 0.05) -> Result:
        """Answer a SELECT over the private table from the randomised rows; of several statements the last is shown.

        The table may be called by its own name or by the release's; public tables may be joined. COUNT, SUM and their
        combinations are unbiased estimates (Wang, Ying and Zhang 2015, Eq. 12), AVG and other formulas are worked out
        from them; each number ``c`` has ``c_stderr``, ``c_low`` and ``c_high`` at level 1 - ``alpha`` beside it, unless
        ``errors`` is False. ``estimator="proper"`` rounds counts and sums to possible answers (Eq. 14).
        Costs no privacy. Raises SQLError, among it for columns that were not released.
        """
        estimated = ask(query, self._places, self._policy, self._types, estimator=estimator, alpha=alpha)
        return result_of(estimated, errors=errors)

    def bounds(self, query: str) -> Result:
        """What is known of the errors of a query's numbers whatever the rows hold
        (``dpsql.extensions.local.local_questions.bounds_of``).

        Theorem 1's bounds are for number / scale: ``upper_bound`` holds at every n, ``lower_bound`` is asymptotic.
        """
        rows = bounds_of(ask(query, self._places, self._policy, self._types))
        kinds = {str: "VARCHAR", int: "BIGINT", float: "DOUBLE"}
        return Result.from_columns([(n, kinds[type(rows[0][n])], [row[n] for row in rows]) for n in rows[0]])

    @cached_property
    def _places(self) -> Places:
        return Places(self.released, self._load(), self._public)

    @cached_property
    def _types(self) -> Schemas:
        return self._schemas()


@dataclass(frozen=True, eq=False)
class Maker:
    """What a connection gives: its tables and its books."""

    holdings: Holdings
    books: Books

    def make(
        self,
        table: str,
        columns: Sequence[str],
        epsilon: object,
        *,
        ids: Sequence[str] = (),
        name: str | None = None,
        label: str = "",
    ) -> tuple[LocalRelease, ReleaseRecord]:
        """Randomise and release; see ``Connection.synthesize``."""
        schemas = self.holdings.schemas()
        held = self.holdings.policy.table(table)
        _check_table(held)
        types = {fold(column): (column, kind) for column, kind in schemas[held.name].items()}
        domain = Domain.declared(held, columns, schemas[held.name])
        kept = _public_columns(held, ids, domain, types)
        _check_units(self.holdings.policy, held, domain)
        rows = 1 if held.unit == "row" else held.max_rows_per_unit or 1
        response = Response.of(domain.size, exact("epsilon", epsilon, shortest=True))
        per_row = response.epsilon
        ledger = self.books.ledger()
        self.books.check_releases(ledger)
        released = Released(
            held.name,
            self._name(held, name),
            domain,
            tuple(types[fold(column.name)][1] for column in domain.columns),
            kept,
            per_row,
            rows,
            has_units=held.unit != "row",
        )
        charge = replace(local_charge(response.unit_epsilon(rows), ledger.budget), guarantee=released.guarantee)
        ledger.state().check(charge)
        job = self._job(released, held, schemas, response, charge, label)

        made: list[tuple[Released, ReleaseRecord]] = []

        def payload(release: int, observed: tuple[Codes, tuple[Array, ...]]) -> bytes:
            codes, public = observed
            whole = replace(released, rows=len(codes), release=release)
            record = _record(release, whole, table_of_rows(whole, codes, public), charge, label)
            made.append((whole, record))
            law = f"{response.keep} {response.lie}"
            return pack(record, Measurement((), "response", per_row, 1, law), whole.as_dict())

        with claimed(self.books.path, f"local release of {held.name}"):
            number, _ = measure(job, self.holdings.engine, ledger, payload)
        whole, record = made[0]
        return self._of(whole, number, charge.amount), record

    def find(self, name: str | None) -> LocalRelease:
        """The newest local release of that view or table; see ``Connection.synthetic``."""
        entries = [
            entry
            for entry in self.books.entries()
            if entry.released is not None and entry.description.get("kind") == "local"
        ]
        for entry in reversed(entries):
            known = [*entry.views, *entry.results, *map(str, entry.description.get("tables", ()))]
            if name is None or fold(name) in {fold(one) for one in known}:
                return self._read(self.books.ledger().release(entry.id))
        if not entries:
            raise ProgrammingError("nothing was released locally yet; release columns with synthesize first")
        views = [view for entry in entries for view in (*entry.views, *map(str, entry.description["tables"]))]
        hint = nearest(str(name), views)
        raise ProgrammingError(f"no local release is called {name!r}; {hint}")

    def _read(self, entry: Entry) -> LocalRelease:
        body = local_of(entry.payload or b"")
        if body is None:
            raise IntegrityError(f"release {entry.id} is no local release")
        return self._of(Released.of(body, entry.id), entry.id, 0.0)

    def _of(self, released: Released, number: int, cost: float) -> LocalRelease:
        def load() -> ReleaseTable:
            """What is asked is what the ledger gives back."""
            record, _ = unpack(self.books.ledger().release(number).payload or b"")
            (table,) = record.tables
            if not table.listed:
                raise IntegrityError(f"release {number} is no local release")
            return table

        return LocalRelease(number, cost, released, load, self.holdings.policy, self._public_schemas, self._public_rows)

    def _public_schemas(self) -> Schemas:
        return read_schemas(self.holdings.engine, list(self.holdings.public.values())) if self.holdings.public else {}

    def _public_rows(self, name: str, columns: Mapping[str, str]) -> list[Values]:
        return public_rows(self.holdings.engine, self.holdings.policy.table(name), self.holdings.public[name], columns)

    def _name(self, spec: TablePolicy, name: str | None) -> str:
        if name is not None:
            check_name(name)
            self.books.check_free([name])
            return name
        taken = {fold(view) for entry in self.books.entries() if entry.released is not None for view in entry.views}
        first = f"{spec.name.replace('.', '_')}_synthetic"
        names = (first, *(f"{first}_{number}" for number in range(2, len(taken) + 3)))
        return next(one for one in names if fold(one) not in taken)

    def _job(
        self, released: Released, spec: TablePolicy, schemas: Schemas, response: Response, charge: Charge, label: str
    ) -> LocalJob:
        tables = {name: table_of(declared, schemas[name]) for name, declared in self.holdings.policy.tables.items()}
        table = tables[spec.name]
        columns = tuple(
            _released_column(table.columns[fold(column.name)], column) for column in released.domain.columns
        )
        self.holdings.check_disjoint()
        description = {
            "kind": "local",
            "once": [f"{spec.name}.{column}" for column in released.domain.names],
            "names": [released.name],
            "tables": [spec.name],
            "units": units_in(self.holdings.policy.tables, [spec.name]),
            "limits": limits_in(self.holdings.policy.tables, [spec.name]),
            "columns": list(released.domain.names),
            "ids": [column for column, _ in released.ids],
            "combinations": released.domain.size,
            "epsilon_per_row": str(released.epsilon),
            "rows_per_unit": released.rows_per_unit,
            "noise": "response",
        }
        source = source_of(table, self.holdings.policy, tables)
        return LocalJob(
            columns,
            released.ids,
            response,
            charge,
            source,
            {name: dict(schemas[name]) for name in source.tables},
            self.holdings.sources,
            description,
            label,
        )


def _check_table(spec: TablePolicy) -> None:
    if spec.public:
        raise PolicyError(f"{spec.where} is public: query it directly, there is nothing to hide")
    if not spec.rows_public:
        raise PolicyError(
            f"{spec.key('rows_public')} is false, and a local release publishes the number of rows; write "
            "rows_public = true if everybody may know it"
        )
    if spec.counts is not None:
        raise PolicyError(f"{spec.key('counts')}: rows of a pre-aggregated table stand for many; give one row per unit")


def _check_units(policy: Policy, spec: TablePolicy, domain: Domain) -> None:
    """PolicyError where a column that says whose a row is would be released: how many rows a unit has is public."""
    unit = policy.units[spec.name]
    if unit is None:
        return
    own = unit.path[0].columns if unit.path else (unit.column,)
    for column in domain.columns:
        if fold(column.name) in {fold(name) for name in own}:
            raise PolicyError(
                f"{spec.key('columns', column.name)} says whose a row is: a local release protects what the rows of a "
                "unit say, not that they are its; leave the column out"
            )


def _public_columns(
    spec: TablePolicy, ids: Sequence[str], domain: Domain, types: Mapping[str, tuple[str, str]]
) -> tuple[tuple[str, str], ...]:
    """(name, type) of the columns that are kept as they are; PolicyError for one that is not public by the policy."""
    if isinstance(ids, str) or not isinstance(ids, Sequence) or not all(isinstance(name, str) for name in ids):
        example = ids if isinstance(ids, str) else "visit"
        raise InterfaceError(f'ids must be a list of names; write ["{example}"]')
    found = []
    for name in ids:
        column = spec.column(name)
        if not column.public:
            raise PolicyError(
                f"{column.where} is not public, so its values cannot be kept beside released ones; write public = true "
                "there if everybody knows them, or release the column itself"
            )
        found.append(types[fold(column.name)])
    for column_ in domain.columns:
        if spec.column(column_.name).public:
            raise PolicyError(f"{spec.key('columns', column_.name)} is public: name it under ids, it needs no noise")
    if len({name for name, _ in found}) < len(found):
        raise InterfaceError("ids names a column twice; name each once")
    return tuple(found)


def _released_column(column: Column, categories: Categories) -> ReleasedColumn:
    """Which category every region of a column is: declared values one each, the rest as in ``local.device.domain``."""
    points = tuple(column.line.point(constant(value)) for value in categories.values)
    keys = KeyDomain(column.name, column.type, categories.values, points, categories.other, categories.nulls)
    truths = line_axis(column.name, column.line, (), nulls=True, keys=keys)
    last = len(categories) - 1
    outside = len(categories.values) if categories.other else last if categories.nulls else 0
    key_of_region = np.asarray(truths.key_of_region)
    category = np.append(np.where(key_of_region < 0, outside, key_of_region), outside)
    return ReleasedColumn(truths.axis, category.astype(np.int64), len(categories))  # type: ignore[arg-type]


def _record(release: int, released: Released, table: ReleaseTable, charge: Charge, label: str) -> ReleaseRecord:
    listed = ", ".join([*(name for name, _ in released.ids), *released.domain.names])
    return ReleaseRecord(
        release_id=release,
        released_at=dt.datetime.now(dt.UTC),
        tables=(table,),
        label=label or None,
        guarantee=charge.guarantee,
        purse=charge.account,
        cost=charge.amount,
        noise="response",
        strategy=f"randomised response over {released.domain.size:,} combinations",
        queries=released.rows,
        sql=f"-- local release of {listed} of {released.table}, row by row",
        unit=f"one {'privacy unit' if released.has_units else 'row'} of {released.table}",
    )
