"""``connect``: a policy, the files beside it and the engine that reads its tables, as one connection."""

from __future__ import annotations

import contextlib
import datetime as dt
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import duckdb

from dpsql.common.arguments import is_path
from dpsql.common.interrupted_calls import guarded
from dpsql.driver.connection import Connection
from dpsql.driver.connection_state import CursorDefaults
from dpsql.errors import DataError, InterfaceError, PolicyError, quoted
from dpsql.measure import ConnectionEngine, FileEngine, Limits, Opening
from dpsql.planning.needed_budget import plain
from dpsql.policy import Policy
from dpsql.privacy.accountant import Request
from dpsql.registry import complete, provided
from dpsql.release.books import Places, check_places
from dpsql.release.limits import QUERY_SECONDS


@guarded
def connect(
    database: str | os.PathLike[str] | duckdb.DuckDBPyConnection | object | None = None,
    policy: Policy | str | os.PathLike[str] | None = None,
    *,
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
    query_timeout: float | None = QUERY_SECONDS,
    today: dt.date | str | None = None,
) -> Connection:
    """Connect to private tables under a policy.

    ``database``: a DuckDB file (attached read-only while it is scanned), an open DuckDB
    connection, a SparkSession (``docs/spark.md``), or None for the one that the policy names, or where every table of
    it names files as its source.
    ``policy``: a TOML file or a ``Policy``. ``ledger`` is a file beside the policy file unless named, and must be
    named where the policy is not a file; ``releases`` is one beside the ledger unless named.
    ``anchor``: a file kept elsewhere that detects a restored copy of the ledger; the policy may name it, too.
    ``label``: who asks, written beside every charge. ``memory_limit``: the most memory of a scan's own DuckDB
    instance, such as "4GB". ``scan_timeout``: seconds after which a scan is stopped; its charge stands.
    ``epsilon_per_release`` and ``delta_per_release``, or ``rho_per_release``: what a cursor spends on a batch that
    names no budget and that no earlier release answers. ``cursor_errors``: whether cursors show the columns of
    errors. ``query_timeout``: seconds after which a query over the releases is stopped, None for never. ``today``: the
    day that decides which periods of a growing table are closed, by default the day that it is (UTC).
    Raises PolicyError, DataError, OperationalError. Reads no data and spends nothing.
    """
    complete()
    toml = isinstance(database, str | os.PathLike) and str(os.fspath(database)).lower().endswith(".toml")
    if isinstance(database, Policy) or toml:
        raise InterfaceError("database is a policy; give the database first: connect('x.duckdb', policy='x.toml')")
    limits = Limits(memory_limit, scan_timeout)
    session = _session(database, limits)
    for name, place in {"database": database, "ledger": ledger, "releases": releases, "anchor": anchor}.items():
        held_open = name == "database" and (isinstance(place, duckdb.DuckDBPyConnection) or session is not None)
        if not (place is None or held_open or isinstance(place, str | os.PathLike)):
            raise InterfaceError(f"{name} must be the path of a file, not a {type(place).__name__}")
        if not (place is None or held_open or is_path(place)):
            raise InterfaceError(f"{name} must be the path of a file, and {quoted(str(place))} cannot be one")
    if policy is None:
        raise InterfaceError("the policy is missing; write connect('x.duckdb', policy='x.toml')")
    if not isinstance(policy, Policy | str | os.PathLike):
        raise InterfaceError(f"policy must be a Policy or the path of a file, not a {type(policy).__name__}")
    budget_per_release = (plain(epsilon_per_release), plain(delta_per_release), plain(rho_per_release))
    if any(amount is not None for amount in budget_per_release):
        Request.of(*budget_per_release)
    held = policy if isinstance(policy, Policy) else Policy.load(Path(policy))
    held = held if today is None else replace(held, today=day_of(today))
    if held.path is None and ledger is None:
        raise InterfaceError("the policy is not a file, so the ledger has no place of its own; give ledger=path")
    ledger_path = Path(ledger) if ledger is not None else Path(held.path or "").with_suffix(".ledger")
    releases_path = Path(releases) if releases is not None else ledger_path.with_suffix(".releases.duckdb")
    database = held.place("database") if database is None else database
    anchor = held.place("anchor") if anchor is None else anchor
    # Absolute, so that a later change of the working directory cannot lead to another ledger.
    ledger_path, releases_path = ledger_path.absolute(), releases_path.absolute()
    anchor_path = None if anchor is None else Path(anchor).absolute()
    file = None
    if not (database is None or isinstance(database, duckdb.DuckDBPyConnection) or session is not None):
        file = Path(database)  # type: ignore[arg-type]  # a path, as was checked above
    check_places(database=file, policy=held.path, ledger=ledger_path, releases=releases_path, anchor=anchor_path)
    engine: Opening
    if isinstance(database, duckdb.DuckDBPyConnection):
        _check_files(held)
        if memory_limit is not None:
            raise InterfaceError("memory_limit is for scans in an instance of their own; set it on your connection")
        engine = ConnectionEngine(database, limits)
    elif session is not None:
        _check_remote(held)
        engine = session()
    else:
        _check_files(held)
        engine = FileEngine(None if file is None else file.absolute(), limits)
    return Connection(
        engine,
        held,
        Places(ledger_path, releases_path, anchor_path),
        label=label,
        cursors=CursorDefaults(budget_per_release, cursor_errors),
        query_timeout=query_timeout,
    )


def day_of(today: object) -> dt.date:
    """A day as a date or its ISO 8601 text. Raises DataError."""
    with contextlib.suppress(ValueError):
        if isinstance(today, str):
            return dt.date.fromisoformat(today)
    if isinstance(today, dt.date) and not isinstance(today, dt.datetime):
        return today
    raise DataError(f"today={str(today)[:40]!r} is no day; write a date such as 2024-01-31, without time or zone")


def _session(database: object, limits: Limits) -> Callable[[], Opening] | None:
    """What makes the engine of an extension whose kind of session ``database`` is, None where it is none."""
    if database is None or isinstance(database, str | os.PathLike | duckdb.DuckDBPyConnection):
        return None
    opened = provided("engine")
    made: Callable[[], Opening] | None = None if opened is None else opened(database, limits)
    return made


def _check_files(policy: Policy) -> None:
    """Refuse tables of Spark where there is no session."""
    for table in policy.tables.values():
        if table.is_spark:
            raise PolicyError(
                f"{table.key('source')} is a table of Spark; pass the session: "
                "dpsql.connect(spark, policy=..., ledger=...)"
            )


def _check_remote(policy: Policy) -> None:
    """Refuse files where Spark counts: one policy has its tables in one place."""
    for table in policy.tables.values():
        if table.source is not None and not table.is_spark:
            raise PolicyError(
                f"{table.key('source')} names files and the connection is a Spark session, which would have another "
                'table of that name; write source = "spark:catalog.schema.table", or connect without a session'
            )
