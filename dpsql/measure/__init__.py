"""Measurement: the only room that touches private data, draws noise and spends.

Neighbouring relation: all rows of one privacy unit are added or removed, in every private table that
shares the unit (``dpsql.policy.units``); in a table with unit "row", one row of it.

Guarantee. Let B be the integers that are measured, L the common steps of the measures, D the largest norm (L2 for
Gaussian, L1 for Laplace noise), in exact integers, by which one unit can move L B x. A row that counts lies in at most
one cell of each layout of its table and moves its entry of x by (1, z), z in the box [-1, 1]^s of its measures (0 for
NULL); norms are convex, so the corners of the box decide. A unit moves at most k rows that count and leaves all others
as they are (``dpsql.workloads.expr.rows``), in all layouts that share it, so that D is the largest norm over the finite
set of its contributions (``dpsql.workloads.families.contributions``), or a bound of it. y = L B x + noise, with integer
noise calibrated to D by the charge: rounded Gaussian noise of variance D^2 / mu^2 is mu-GDP (post-processing of the
Gaussian mechanism, as L B x is an integer), discrete Laplace noise of scale D / epsilon is epsilon-DP. So is noise in
blocks of that scale (``dpsql.privacy.noise``), D in the norm that adds up the largest change of each block of rows.

A release of a horizon (``Job.over``) reads earlier periods as well, which have paid for it: see ``Job._check_over``.

Order: the charge is committed, all noise is drawn, then each table is scanned by generated statements without WHERE
(one, or a few where a table has many layouts; of very many the regions of its rows are read), then the noisy result is
committed to the ledger in the transaction that marks it released. x is that of one state of all tables, or nothing is
released (``unchanged.opened``): D bounds what a unit moves within one. A crash at any step leaves the charge. Exact
values live in the frames of ``observe`` and what it calls alone.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeVar

from dpsql.engines.base import Engine, Opening, TableSource
from dpsql.engines.declared import Declared, read_declared
from dpsql.engines.duckdb import ConnectionEngine, FileEngine
from dpsql.engines.limits import Limits
from dpsql.measure.failed_sources import noting_failure, refuse_failed
from dpsql.measure.job import Job, Mechanism
from dpsql.measure.shield import shielded
from dpsql.privacy.ledger import Ledger

__all__ = [
    "ConnectionEngine",
    "Declared",
    "Engine",
    "FileEngine",
    "Job",
    "Limits",
    "Mechanism",
    "Opening",
    "TableSource",
    "measure",
    "read_declared",
    "read_schemas",
]

E = TypeVar("E", bound=Engine)
T = TypeVar("T")


def read_schemas(engine: Engine, sources: Iterable[TableSource]) -> dict[str, dict[str, str]]:
    """Column types of every table, by table and column name. Public: no row is read."""
    return engine.schemas(tuple(sources))


def measure(job: Mechanism[E, T], engine: E, ledger: Ledger, payload: Callable[[int, T], bytes]) -> tuple[int, T]:
    """Charge, measure and record one release; its number and what was observed, such as the noisy y (Python ints).

    ``payload(release, y)`` serialises what the ledger keeps; it sees the noisy values only.
    Raises IntegrityError where a schema is no longer the plan's, InternalError where DuckDB does not run the
    scan on generated rows (nothing is charged),
    BudgetError and LedgerError as ``Ledger.charge``, OperationalError where a scan fails
    (the charge stands).
    """
    refuse_failed(engine, ledger, job.reads.values())
    job.check(engine, ledger)
    charge_id = job.charge_id or secrets.token_hex(16)
    release = ledger.charge(job.charge, charge_id, job.description, label=job.label, before=job.aside)
    # Noise and exact values live in frames of ``observe``, of which nothing survives but y.
    y = noting_failure(engine, ledger, release, job.reads, lambda: shielded(partial(job.observe, engine), job.failed))
    ledger.record(release, payload(release, y))
    return release, y
