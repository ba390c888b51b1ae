"""Connection: plan a batch, run it, query its releases, see the budget."""

from __future__ import annotations

import datetime as dt
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import duckdb

from dpsql.errors import (
    DataError,
    IntegrityError,
    InterfaceError,
    LedgerError,
    OperationalError,
    ProgrammingError,
    nearest,
)
from dpsql.measure import ConnectionEngine, Engine, FileEngine, Job, TableSource, measure, read_schemas
from dpsql.plan import Plan, make_plan
from dpsql.policy import Policy, check_schema, csv_schema
from dpsql.privacy.accountant import Budget, BudgetState, fresh_state
from dpsql.privacy.ledger import Entry, Ledger
from dpsql.release import ReleaseRecord, ReleaseStore, Result
from dpsql.release.ownership import check_replaceable
from dpsql.release.payload import Measurement, pack, unpack
from dpsql.request import request_of
from dpsql.reuse import reuse_key, strategy_hash
from dpsql.tables import release_tables

log = logging.getLogger("dpsql")


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


class Connection:
    """Private tables, a policy, a ledger and the releases made of them. Make it with ``connect``.

    Trust: this object runs in the custodian's process and can read the private tables; hand
    analysts its plans, releases and error messages, not the object.
    """

    def __init__(
        self, engine: Engine, policy: Policy, ledger: Path, releases: Path, *, anchor: Path | None, label: str
    ) -> None:
        self.policy = policy
        self.ledger_path = ledger
        self.releases_path = releases
        self._engine = engine
        self._anchor = anchor
        self._label = label
        self._figures = _budget(policy)
        self._store = ReleaseStore(releases)
        self._ledger: Ledger | None = None
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

    def schemas(self) -> dict[str, dict[str, str]]:
        """The column types of all private tables, held against the policy. Reads no row."""
        self._check_open()
        found = read_schemas(self._engine, [*self._sources.values(), *self._public.values()])
        check_schema(self.policy, found)
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
        self._check_releases(ledger)
        self._check_names(plan, ledger)
        # A rehearsal over zeros: a name or value that has no stored form is refused before the charge.
        release_tables(plan, [0] * plan.strategy.shape[0], errors=errors)
        ledger.state().check(plan.charge)
        job = self._job(plan, key, self._label if label is None else label)

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
        return self._store.sql(query, parameters)

    @property
    def budget(self) -> BudgetState:
        """Total, spent and remaining budget; ``.purses`` for the detail."""
        self._check_open()
        if self._ledger is None and not self.ledger_path.exists() and not (self._anchor and self._anchor.exists()):
            return fresh_state(self._figures)
        return self._open_ledger().state()

    def releases(self) -> list[Entry]:
        """Every charge of the ledger, oldest first; ``released`` is None where nothing was recorded."""
        self._check_open()
        if not self.ledger_path.exists():
            return []
        return self._open_ledger().entries()

    def rebuild(self) -> int:
        """Make the releases database anew from the ledger; the number of releases in it.

        Raises LedgerError where there is no ledger: nothing was released.
        """
        self._check_open()
        if not self.ledger_path.exists():
            raise LedgerError(f"there is no ledger {self.ledger_path}; name the ledger of this policy with ledger=")
        check_replaceable(self._store.path)
        records = [unpack(entry.payload or b"")[0] for entry in self._open_ledger().releases()]
        self._store.rebuild(records)
        return len(records)

    def _register(self, record: ReleaseRecord, *, again: bool = False) -> None:
        failure = ""
        try:
            missing = self._missing_up_to(record.release_id)
            if missing:
                self._store.write(*missing)
            if again:
                self._store.point(record)
            if isinstance(self._engine, ConnectionEngine):
                self._store.attach_to(self._engine.connection)
        except (OperationalError, IntegrityError) as error:
            failure = str(error)
        if failure:
            # The answers are in the ledger and in the returned release: nothing is lost.
            log.warning("release %d is in the ledger but not registered: %s", record.release_id, failure)

    def _missing_up_to(self, release: int) -> list[ReleaseRecord]:
        """Releases up to this one that the file lacks, because it was busy, deleted or is new."""
        present = set(self._store.release_ids())
        ledger = self._open_ledger()
        return [
            unpack(ledger.release(entry.id).payload or b"")[0]
            for entry in ledger.entries()
            if entry.released is not None and entry.id <= release and entry.id not in present
        ]

    def _check_releases(self, ledger: Ledger) -> None:
        """A releases file that was made from another ledger, or another file, must not be taken for this one's."""
        try:
            made = self._store.moments()
        except (OperationalError, duckdb.Error):
            made = None
        if made is None:
            # Busy or damaged: it stays behind, and a rebuild makes it anew. Anything else is no releases file.
            check_replaceable(self._store.path)
            return
        if not made:
            return
        released = {entry.id for entry in ledger.entries() if entry.released is not None}
        foreign = not set(made) <= released
        if not foreign:
            last = max(made)
            record, _ = unpack(ledger.release(last).payload or b"")
            foreign = record.released_at != made[last]
        if foreign:
            raise OperationalError(
                f"the releases in {self.releases_path} were made from another ledger; name another file with "
                "releases=, or run 'dpsql releases rebuild' (nothing was charged)"
            )

    def _check_names(self, plan: Plan, ledger: Ledger) -> None:
        """The ledger decides, not the releases file, which may be busy, deleted or behind."""
        known = {
            str(name).lower()
            for entry in ledger.entries()
            if entry.released is not None
            for name in entry.description.get("names", ())
        }
        for query in plan.queries:
            if query.named and not query.replace and query.name.lower() in known:
                raise IntegrityError(
                    f"a view named {' '.join(query.name.split())} exists already; write CREATE OR REPLACE VIEW or "
                    "choose another name (nothing was charged)"
                )

    def _earlier(self, key: str) -> Release | None:
        if not self.ledger_path.exists():
            return None
        ledger = self._open_ledger()
        for entry in reversed(ledger.entries()):
            if entry.released is not None and entry.description.get("key") == key:
                record, _ = unpack(ledger.release(entry.id).payload or b"")
                self._register(record, again=_overtaken(record, ledger.entries()))
                return Release(entry.id, 0.0, entry.charge.guarantee, record)
        return None

    def _job(self, plan: Plan, key: str, label: str) -> Job:
        strategy, compiled = plan.strategy, plan.compiled
        description = {
            "key": key,
            "names": [query.name for query in plan.queries],
            "tables": list(dict.fromkeys(name for layout in compiled.layouts for name in layout.source.tables)),
            "statements": len(plan.queries),
            "numbers": len(compiled.scale),
            "cells": plan.cells,
            "noise": plan.charge.noise,
            "method": strategy.method,
            "strategy": strategy_hash(strategy.mixing, strategy.basis),
        }
        return Job(
            layouts=compiled.layouts,
            mixing=strategy.mixing,
            basis=strategy.basis,
            common_steps=compiled.common_steps,
            sensitivity=plan.sensitivity,
            charge=plan.charge,
            schemas=plan.schemas,
            sources={**self._sources, **self._public},
            description=description,
            label=label,
        )

    def _open_ledger(self) -> Ledger:
        if self._ledger is None:
            self._ledger = Ledger.open_or_create(
                self.ledger_path, self.policy.dataset, self._figures, anchor=self._anchor
            )
        return self._ledger

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
) -> Connection:
    """Connect to private tables under a policy.

    ``database``: a DuckDB file (attached read-only while it is scanned), an open DuckDB
    connection, or None where every table of the policy names a source. ``policy``: a TOML
    file or a ``Policy``. ``ledger`` is a file beside the policy file unless named, and must be
    named where the policy is not a file; ``releases`` is one beside the ledger unless named.
    ``anchor``: a file kept elsewhere that detects a restored copy of the ledger. ``label``: who
    asks, written beside every charge.
    Raises PolicyError, OperationalError. Reads no data and spends nothing.
    """
    held = policy if isinstance(policy, Policy) else Policy.load(Path(policy))
    if held.path is None and ledger is None:
        raise InterfaceError("the policy is not a file, so the ledger has no place of its own; give ledger=path")
    ledger_path = Path(ledger) if ledger is not None else Path(held.path or "").with_suffix(".ledger")
    releases_path = Path(releases) if releases is not None else ledger_path.with_suffix(".releases.duckdb")
    # Absolute, so that a later change of the working directory cannot lead to another ledger.
    ledger_path, releases_path = ledger_path.absolute(), releases_path.absolute()
    engine: Engine
    if isinstance(database, duckdb.DuckDBPyConnection):
        engine = ConnectionEngine(database)
    else:
        engine = FileEngine(None if database is None else Path(database).absolute())
    return Connection(
        engine,
        held,
        ledger_path,
        releases_path,
        anchor=None if anchor is None else Path(anchor).absolute(),
        label=label,
    )


def _overtaken(record: ReleaseRecord, entries: Sequence[Entry]) -> bool:
    """Whether a later release took one of the names of this one, so that its views must be set again."""
    names = {name.lower() for name in record.names}
    later = [entry for entry in entries if entry.id > record.release_id and entry.released is not None]
    return any(str(name).lower() in names for entry in later for name in entry.description.get("names", ()))


def _table_sources(policy: Policy, *, public: bool) -> dict[str, TableSource]:
    return {
        name: TableSource(name, policy.source_path(name), csv_schema(table) if table.is_csv else None)
        for name, table in policy.tables.items()
        if table.public == public
    }


def _budget(policy: Policy) -> Budget:
    declared = policy.budget
    return Budget.of(
        epsilon=declared.epsilon,
        delta=declared.delta,
        pure_epsilon=declared.pure_epsilon,
        rho=declared.rho,
        local_epsilon=declared.local_epsilon,
    )


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
        queries=len(plan.compiled.scale),
        gap=plan.gap,
        sql=plan.sql,
    )
