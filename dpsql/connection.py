"""Connection: plan a batch, run it, query its releases, see the budget."""

from __future__ import annotations

import datetime as dt
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import duckdb

from dpsql.bookkeeping import Books, budget_of, check_places
from dpsql.cursor import Cursor
from dpsql.dbapi import Exceptions
from dpsql.errors import DataError, IntegrityError, InterfaceError, ProgrammingError, nearest
from dpsql.measure import (
    ConnectionEngine,
    Engine,
    FileEngine,
    Job,
    Limits,
    TableSource,
    check_apart,
    measure,
    read_schemas,
)
from dpsql.plan import Plan, make_plan
from dpsql.policy import Policy, TablePolicy, check_schema, csv_schema
from dpsql.privacy.accountant import BudgetState, Request
from dpsql.privacy.ledger import Entry, Ledger
from dpsql.release import ReleaseRecord, ReleaseStore, Result
from dpsql.release.payload import Measurement, pack, unpack
from dpsql.request import request_of
from dpsql.reuse import most_precise, questions, reuse_key, types_of
from dpsql.tables import release_tables


@dataclass(frozen=True)
class Release:
    """What a run released: ``rel["by_state"]`` is a result, ``rel.views`` their names.

    ``id`` numbers the release in the ledger; ``cost`` is what was charged, in the purse's
    measure (epsilon, or mu squared): 0 where an earlier release already had the answers.
    """

    id: int
    cost: float
    guarantee: str
    record: ReleaseRecord = field(repr=False)

    @property
    def views(self) -> tuple[str, ...]:
        """The names under which the results are registered in schema dp."""
        return self.record.names

    def __getitem__(self, name: str) -> Result:
        for table in self.record.tables:
            if table.name.lower() == name.lower():
                return Result.from_columns(table.columns)
        raise ProgrammingError(f"release {self.id} has no result {name}: {nearest(name, self.views)}")

    def __iter__(self) -> Iterator[str]:
        return iter(self.views)

    def __len__(self) -> int:
        return len(self.record.tables)


class Connection(Exceptions):
    """Private tables, a policy, a ledger and the releases made of them. Make it with ``connect``.

    Trust: this object runs in the custodian's process and can read the private tables; hand
    analysts its plans, releases and error messages, not the object.
    """

    def __init__(
        self,
        engine: Engine,
        policy: Policy,
        ledger: Path,
        releases: Path,
        *,
        anchor: Path | None,
        label: str,
        budget_per_release: tuple[object, object, object] = (None, None, None),
        cursor_errors: bool = False,
    ) -> None:
        self.policy = policy
        self.ledger_path = ledger
        self.releases_path = releases
        self._engine = engine
        self._label = label
        self._store = ReleaseStore(releases)
        self._books = Books(ledger, self._store, policy.dataset, budget_of(policy), anchor)
        self._budget_per_release = budget_per_release
        self._cursor_errors = cursor_errors
        self._lock = threading.RLock()
        self._closed = False
        self._sources = _table_sources(policy, public=False)
        self._public = _table_sources(policy, public=True)

    def __repr__(self) -> str:
        return f"<dpsql.Connection to {self.policy.dataset!r}, ledger {str(self.ledger_path)!r}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; ledger and releases are files and stay."""
        self._closed = True

    def cursor(self, *, errors: bool | None = None) -> Cursor:
        """A new cursor (PEP 249). Opens nothing, reads nothing, costs nothing.

        ``errors``: whether its results show ``c_stderr``, ``c_low`` and ``c_high`` beside each private number ``c``;
        by default what ``connect(cursor_errors=...)`` says.
        """
        self._check_open()
        return Cursor(self, errors=self._cursor_errors if errors is None else errors)

    def schemas(self) -> dict[str, dict[str, str]]:
        """The column types of all private tables, held against the policy. Reads no row."""
        self._check_open()
        found = read_schemas(self._engine, [*self._sources.values(), *self._public.values()])
        check_schema(self.policy, found)
        check_apart(self.policy, {**self._sources, **self._public})
        return found

    def plan(
        self,
        sql: str,
        epsilon: object = None,
        delta: object = None,
        rho: object = None,
        *,
        alpha: float = 0.05,
        tolerance: float = 1e-3,
        time_limit: float | None = None,
        progress: Callable[[str], None] | None = None,
        objective: str = "total",
    ) -> Plan:
        """What a batch would release, with an error bar on every number. Free.

        ``epsilon`` alone is pure where the policy keeps a pure purse and otherwise taken with the
        policy's delta; or ``epsilon`` and ``delta``; or ``rho``; or what the batch's OPTIONS say
        (``dpsql.sql.options``). ``objective``: the least "total" squared error, or the least largest one ("max").
        ``alpha`` = 1 - confidence of the intervals. Reads the column types of the tables, never a row. Raises SQLError,
        PolicyError, DataError, BudgetError, all before anything is spent.
        """
        self._check_open()
        request = request_of(sql, epsilon, delta, rho)
        if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not 0 < alpha < 1:
            raise DataError("alpha is 1 - confidence and lies between 0 and 1, such as 0.05")
        for name, value in (("tolerance", tolerance), ("time_limit", time_limit)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
                raise DataError(f"{name} must be a number, such as {name}=0.01")
        return make_plan(
            sql,
            self.policy,
            self.schemas(),
            self.budget,
            request,
            alpha=float(alpha),
            tolerance=tolerance,
            time_limit=time_limit,
            progress=progress,
            objective=objective,
        )

    def run(
        self,
        batch: Plan | str,
        epsilon: object = None,
        delta: object = None,
        rho: object = None,
        *,
        fresh: bool = False,
        errors: bool = True,
        label: str | None = None,
        **options: Any,
    ) -> Release:
        """Measure a plan, or plan a batch and measure it, and register its views.

        Spends what the plan says, once for the whole batch, before any row is read. The same
        batch at the same budget on the same data version is answered again from its earlier
        release at no cost, unless ``fresh``. ``errors=False`` leaves the error columns out;
        ``options`` go to ``plan``. Raises IntegrityError where a view name is taken (write
        CREATE OR REPLACE VIEW), BudgetError where the purse does not hold the charge.
        """
        self._check_open()
        if isinstance(batch, Plan):
            if epsilon is not None or delta is not None or rho is not None or options:
                raise InterfaceError("a plan has its budget and options; give them to plan(), not to run()")
            plan = batch
        else:
            plan = self.plan(batch, epsilon, delta, rho, **options)
        if plan.dataset != self.policy.dataset:
            raise IntegrityError(f"the plan was made for data set {plan.dataset!r}, this is {self.policy.dataset!r}")
        if plan.policy != self.policy.to_toml():
            raise IntegrityError("the plan was made under another policy of this data set; plan again")
        key = reuse_key(plan, errors)
        if not fresh:
            earlier = self._earlier(key)
            if earlier is not None:
                return earlier
        ledger = self._open_ledger()
        self._books.check_releases(ledger)
        self._books.check_free([q.name for q in plan.queries if q.named and not q.replace], ledger)
        # A rehearsal over zeros: a name or value that has no stored form is refused before the charge.
        release_tables(plan, [0] * plan.strategy.shape[0], errors=errors, rehearsal=True)
        ledger.state().check(plan.charge)
        job = self._job(plan, key, self._label if label is None else label, errors=errors)

        def payload(release: int, y: list[int]) -> bytes:
            tables = release_tables(plan, y, errors=errors)
            record = _record(release, plan, tables, job.label)
            noise = job.noise
            observed = Measurement(
                tuple(y), noise.kind, noise.parameter, job.common_steps, str(job.description["strategy"])
            )
            return pack(record, observed)

        release, _ = measure(job, self._engine, ledger, payload)
        # What users see is what the ledger gives back.
        record, _ = unpack(ledger.release(release).payload or b"")
        self._register(record)
        return Release(release, plan.charge.amount, plan.charge.guarantee, record)

    def sql(self, query: str, parameters: Sequence[object] | Mapping[str, object] | None = None) -> Result:
        """Run one SELECT over the releases (views of schema dp). Free; sees no private table."""
        self._check_open()
        self._books.catch_up()
        return self._store.sql(query, parameters)

    @property
    def budget(self) -> BudgetState:
        """Total, spent and remaining budget; ``.purses`` for the detail, ``.by_label()`` for who spent it.

        ``.charges`` says for what, ``.unreleased`` what was charged and never released.
        """
        self._check_open()
        return self._books.state()

    def releases(self) -> list[Entry]:
        """Every charge of the ledger, oldest first; ``released`` is None where nothing was recorded."""
        self._check_open()
        return self._books.entries()

    def rebuild(self) -> int:
        """Make the releases database anew from the ledger; the number of releases in it.

        Raises LedgerError where there is no ledger: nothing was released.
        """
        self._check_open()
        return self._books.rebuild()

    def renew(self, was: str) -> None:
        """Declare that the policy's ``dataset`` is a new version of the data set ``was``, a public event.

        For a policy whose ``dataset`` was changed because the data were: spending goes on where it was, answers of
        before are kept and no longer used again. ``was``: the name that the ledger knows; it never returns.
        Raises LedgerError where the ledger knows another, or has had the new name before.
        """
        self._check_open()
        self._books.renew(was)

    def commit(self) -> None:
        """Nothing to do: every charge and every release is committed when it is made (PEP 249)."""
        self._check_open()

    def rollback(self) -> None:
        """Gives nothing back: what was charged stays charged and what was released stays released (PEP 249).

        There is no transaction to undo; a refund would let whoever has seen an answer ask again for free.
        """
        self._check_open()

    def _register(self, record: ReleaseRecord, *, again: bool = False) -> None:
        attach = self._engine.connection if isinstance(self._engine, ConnectionEngine) else None
        self._books.register(record, attach, again=again)

    def _earlier(self, key: str) -> Release | None:
        found = self._books.earlier(key)
        if found is None:
            return None
        entry, record, overtaken = found
        self._register(record, again=overtaken)
        return Release(entry.id, 0.0, entry.charge.guarantee, record)

    def _answered(
        self,
        keys: Sequence[str],
        most: Sequence[float] | None,
        names: Sequence[str] | None,
        alpha: float | None,
    ) -> tuple[Release, list[int]] | None:
        """The most precise release that answers all of ``keys`` (``reuse.most_precise``), and its results for them."""
        found = most_precise(self._books.entries(), keys, most, names, alpha, types_of(self.schemas()))
        if found is None:
            return None
        entry, places = found
        if names is not None:
            again = self._earlier(str(entry.description["key"]))  # with its views, which a later release may have taken
            return None if again is None else (again, places)
        record, _ = unpack(self._open_ledger().release(entry.id).payload or b"")
        return Release(entry.id, 0.0, entry.charge.guarantee, record), places

    def _view_names(self) -> tuple[str, ...]:
        """Names of the released views, sorted; from the ledger, as the releases file may be busy or behind."""
        if not self.ledger_path.exists():
            return self._store.names()
        entries = self._books.entries()
        return tuple(sorted({name for entry in entries if entry.released is not None for name in entry.results}))

    def _job(self, plan: Plan, key: str, label: str, *, errors: bool = True) -> Job:
        strategy, compiled = plan.strategy, plan.compiled
        description = {
            "key": key,
            "questions": questions(plan),
            "types": types_of(plan.schemas),
            "errors": errors,
            "alpha": plan.alpha,
            "names": [query.name for query in plan.queries],
            "tables": list(dict.fromkeys(name for layout in compiled.layouts for name in layout.source.tables)),
            "statements": len(plan.queries),
            "numbers": compiled.numbers,
            "cells": plan.cells,
            "noise": plan.charge.noise,
            "method": strategy.method,
            "strategy": strategy.measured.digest(),
        }
        return Job(
            layouts=compiled.layouts,
            integers=strategy.measured,
            common_steps=compiled.common_steps,
            sensitivity=plan.sensitivity,
            charge=plan.charge,
            schemas=plan.schemas,
            sources={**self._sources, **self._public},
            description=description,
            label=label,
        )

    def _open_ledger(self) -> Ledger:
        return self._books.ledger()

    def _check_open(self) -> None:
        if self._closed:
            raise InterfaceError("the connection is closed; connect again")


def connect(
    database: str | os.PathLike[str] | duckdb.DuckDBPyConnection | None = None,
    *,
    policy: Policy | str | os.PathLike[str],
    ledger: str | os.PathLike[str] | None = None,
    releases: str | os.PathLike[str] | None = None,
    anchor: str | os.PathLike[str] | None = None,
    label: str = "",
    memory_limit: str | None = None,
    scan_timeout: float | None = None,
    epsilon_per_release: object = None,
    delta_per_release: object = None,
    rho_per_release: object = None,
    cursor_errors: bool = False,
) -> Connection:
    """Connect to private tables under a policy.

    ``database``: a DuckDB file (attached read-only while it is scanned), an open DuckDB
    connection, or None where every table of the policy names a source. ``policy``: a TOML
    file or a ``Policy``. ``ledger`` is a file beside the policy file unless named, and must be
    named where the policy is not a file; ``releases`` is one beside the ledger unless named.
    ``anchor``: a file kept elsewhere that detects a restored copy of the ledger. ``label``: who
    asks, written beside every charge. ``memory_limit``: the most memory of a scan's own DuckDB instance, such
    as "4GB". ``scan_timeout``: seconds after which a scan is stopped; its charge stands. ``epsilon_per_release`` and
    ``delta_per_release``, or ``rho_per_release``: what a cursor spends on a batch that names no budget and that no
    earlier release answers. ``cursor_errors``: whether cursors show the columns of errors.
    Raises PolicyError, DataError, OperationalError. Reads no data and spends nothing.
    """
    budget_per_release = (epsilon_per_release, delta_per_release, rho_per_release)
    if budget_per_release != (None, None, None):
        Request.of(*budget_per_release)
    held = policy if isinstance(policy, Policy) else Policy.load(Path(policy))
    if held.path is None and ledger is None:
        raise InterfaceError("the policy is not a file, so the ledger has no place of its own; give ledger=path")
    ledger_path = Path(ledger) if ledger is not None else Path(held.path or "").with_suffix(".ledger")
    releases_path = Path(releases) if releases is not None else ledger_path.with_suffix(".releases.duckdb")
    # Absolute, so that a later change of the working directory cannot lead to another ledger.
    ledger_path, releases_path = ledger_path.absolute(), releases_path.absolute()
    anchor_path = None if anchor is None else Path(anchor).absolute()
    file = None if database is None or isinstance(database, duckdb.DuckDBPyConnection) else Path(database)
    check_places(database=file, policy=held.path, ledger=ledger_path, releases=releases_path, anchor=anchor_path)
    limits = Limits(memory_limit, scan_timeout)
    engine: Engine
    if isinstance(database, duckdb.DuckDBPyConnection):
        if memory_limit is not None:
            raise InterfaceError("memory_limit is for scans in an instance of their own; set it on your connection")
        engine = ConnectionEngine(database, limits)
    else:
        engine = FileEngine(None if database is None else Path(database).absolute(), limits)
    return Connection(
        engine,
        held,
        ledger_path,
        releases_path,
        anchor=anchor_path,
        label=label,
        budget_per_release=budget_per_release,
        cursor_errors=cursor_errors,
    )


def _table_sources(policy: Policy, *, public: bool) -> dict[str, TableSource]:
    return {name: _table_source(policy, table) for name, table in policy.tables.items() if table.public == public}


def _table_source(policy: Policy, table: TablePolicy) -> TableSource:
    path, types = policy.source_path(table.name), csv_schema(table)
    return TableSource(table.name, path, types if table.is_csv else None, pattern=table.is_pattern, declared=types)


def _record(release: int, plan: Plan, tables: Any, label: str) -> ReleaseRecord:
    return ReleaseRecord(
        release_id=release,
        released_at=dt.datetime.now(dt.UTC),
        tables=tables,
        label=label or None,
        guarantee=plan.charge.guarantee,
        purse=plan.charge.purse,
        cost=plan.charge.amount,
        noise=plan.noise.kind,
        strategy=plan.strategy.method,
        queries=plan.compiled.numbers,
        gap=plan.gap,
        sql=plan.sql,
    )
