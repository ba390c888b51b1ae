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

A release of a horizon (``Job.over``) reads earlier periods as well, which have paid for it: see ``_check_over``.

Order: the charge is committed, all noise is drawn, then each table is scanned by generated statements without WHERE
(one, or a few where a table has many layouts; of very many the regions of its rows are read), then the noisy result is
committed to the ledger in the transaction that marks it released. x is that of one state of all tables, or nothing is
released (``unchanged.opened``): D bounds what a unit moves within one. A crash at any step leaves the charge. Exact
values live in the frames of ``_observe`` and what it calls alone.
"""

from __future__ import annotations

import datetime as dt
import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from fractions import Fraction
from functools import partial
from typing import TypeAlias

import numpy as np

from dpsql.engines.base import Engine, Opening, Scanning, TableSource
from dpsql.engines.declared import Declared, read_declared
from dpsql.engines.duckdb import ConnectionEngine, FileEngine
from dpsql.engines.limits import Limits
from dpsql.engines.rehearsal import passes_rehearsal
from dpsql.errors import IntegrityError, InternalError
from dpsql.measure.counts_over_same_rows import ENTRY, Keep, Kept
from dpsql.measure.failed_sources import noting_failure, refuse_failed
from dpsql.measure.job import Job, Multiplied, Scanned
from dpsql.measure.reading import kept_together, scans_of
from dpsql.measure.row_by_row import counted, pieces
from dpsql.measure.scan_sql import KEPT, WORD
from dpsql.measure.shield import shielded
from dpsql.measure.unchanged import checked_tables, opened
from dpsql.policy.periods import Periods
from dpsql.policy.values import fold
from dpsql.privacy.ledger import Ledger
from dpsql.privacy.periods import Reads
from dpsql.workloads.compile.confined import interval_of, is_confined, looks, looks_within
from dpsql.workloads.compile.layout import Layout
from dpsql.workloads.compile.over_periods import Over
from dpsql.workloads.compile.sensitivity import sensitivity_of
from dpsql.workloads.expr.conditions import union
from dpsql.workloads.expr.lines import line_of
from dpsql.workloads.expr.measures import Measure

__all__ = [
    "ConnectionEngine",
    "Declared",
    "Engine",
    "FileEngine",
    "Job",
    "Limits",
    "Opening",
    "TableSource",
    "measure",
    "read_declared",
    "read_schemas",
]

Scan: TypeAlias = "dict[str, np.ndarray]"

_KEEPING = FileEngine | ConnectionEngine
"""Engines that can keep rows for later scans."""

FAILED = (
    "the measurement failed; details may depend on private data and are not shown. "
    "What was charged stays charged; check memory and disk, then run again"
)


def read_schemas(engine: Engine, sources: Iterable[TableSource]) -> dict[str, dict[str, str]]:
    """Column types of every table, by table and column name. Public: no row is read."""
    return engine.schemas(tuple(sources))


def measure(
    job: Job, engine: Engine, ledger: Ledger, payload: Callable[[int, list[int]], bytes]
) -> tuple[int, list[int]]:
    """Charge, measure and record one release; its number and the noisy y (Python ints).

    ``payload(release, y)`` serialises what the ledger keeps; it sees the noisy values only.
    Raises IntegrityError where a schema is no longer the plan's, InternalError where DuckDB does not run the
    scan on generated rows (nothing is charged),
    BudgetError and LedgerError as ``Ledger.charge``, OperationalError where a scan fails
    (the charge stands).
    """
    refuse_failed(engine, ledger, read_by(job))
    _check_schemas(job, engine)
    _check_sensitivity(job)
    check_periods(job, job.over)
    if job.over is not None:
        _check_over(job, job.over, ledger)
    release = ledger.charge(job.charge, job.charge_id or secrets.token_hex(16), job.description, label=job.label)
    # The noise has no name here: beside y, in the frame of a later failure, it would give the exact values away.
    y = noting_failure(
        *(engine, ledger, release, job.sources),
        lambda: shielded(partial(_observe, job, engine, job.noise.sample(job.integers.shape[0])), FAILED),
    )
    ledger.record(release, payload(release, y))
    return release, y


def read_by(job: Scanned) -> list[TableSource]:
    """The sources of the tables that a job reads."""
    return [job.sources[name] for name in dict.fromkeys(n for layout in job.layouts for n in layout.source.tables)]


def _check_schemas(job: Scanned, engine: Engine) -> None:
    names = (table for layout in job.layouts for table in layout.source.tables)
    tables = checked_tables(engine, names, job.sources, job.schemas)
    for scan in scans_of(job.layouts, keeps=isinstance(engine, _KEEPING)):
        asked = scan.scan(job.sources)
        if tables is not None:
            tables.check(asked)
        elif not passes_rehearsal(asked, job.schemas):
            raise InternalError(
                "DuckDB cannot run the scan of this batch on generated rows; report the SQL and the policy "
                "(nothing was charged)"
            )


def _check_sensitivity(job: Job) -> None:
    """Work the sensitivity out again, from what will be measured and the cells that the scan fills.

    Over all that a unit can change in the layouts (``dpsql.workloads.families.contributions``), whatever the plan says.
    The plan's own figure is exact or a bound; this one, in floats, is right to 1e-5 and holds the two together. Before
    the charge; depends on public values only.
    """
    job.integers.check()
    order = 1 if job.charge.noise == "laplace" else 2
    if not job.rough <= float(Fraction(job.sensitivity, job.common_steps**order)) * (1.0 + 1e-4):
        raise IntegrityError("the plan's sensitivity is not that of its strategy; plan again (nothing was charged)")


def check_periods(job: Scanned, over: Over | None = None) -> None:
    """Hold the scans to the periods that the charge names. Depends on public values.

    No row elsewhere is in a cell, and no subquery or join of theirs looks at another row of the table. A release of a
    horizon names the last of its periods (``_check_over`` has the others).
    """
    reads = Reads.of(job.description)
    if reads is None:
        return
    periods = Periods(reads.column, reads.every, dt.date.fromisoformat(reads.first))
    numbers: list[int | None] = [periods.named(name) for name in reads.read]
    if over is not None:
        numbers = [*over.numbers] if numbers == [over.numbers[-1]] else [None]
    for layout in job.layouts:
        source = layout.source if layout.source.of is None else layout.source.of.of
        types = {fold(name): kind for name, kind in job.schemas[source.table].items()}
        line = line_of(types[fold(reads.column)])
        days = union([interval_of(periods, line, number) for number in numbers if number is not None])
        others = [look for look in looks(layout.source, layout.values.values()) if look.table == reads.table]
        within = is_confined(layout, reads.column, days) and all(looks_within(o, reads.column, days) for o in others)
        if source.table != reads.table or None in numbers or not within:
            raise IntegrityError(
                f"the batch counts rows outside of the periods of {reads.table} that it is charged to; plan again "
                "(nothing was charged)"
            )


def _check_over(job: Job, over: Over, ledger: Ledger) -> None:
    """Hold a release of a horizon to what its periods have paid. Before the charge; depends on public values.

    Neighbours: one row more or less of a table whose unit is the row. **Claim.** Release t of a horizon measures
    y_t = sum_(s <= t) C_ts L B x_s + z_t, x_s the cells of period s and z_t rounded Gaussian noise of variance
    D^2 / mu^2, fresh in each, D^2 = (max_s sum_t C_ts^2) D_B^2 with D_B the L2 norm by which one row moves L B x. All
    releases of the horizon together are mu-GDP for the row, whatever else the questions between them depended on.
    **Proof.** Let the row be of period s. Release t with t < s does not depend on it. Given what was released before,
    release t moves by C_ts L B c for the row's c, or by nothing where the row was not there yet, so it is mu_t-GDP with
    mu_t^2 = C_ts^2 D_B^2 mu^2 / D^2, a number that is fixed beforehand; by the composition of such releases all of them
    are GDP with the square root of sum_t mu_t^2 <= mu^2 (Dong, Roth and Su 2022, Cor. 2). So the charge mu^2 that names
    period s, made before s is read for the first time, pays for all that later releases read of s. Of an endless
    horizon sum_t C_ts^2 is the squared norm of its kernel, of however many t. A row whose day is
    changed moves each release as a row of one period or another, and is promised what ``dpsql.privacy.periods`` says.

    That is so where C is the same in each release and earlier charges are no smaller than this one; where t's noise is
    drawn for D^2; and where no release is measured twice: the id of its charge belongs to its place (`Ledger.record`).
    """
    one = sensitivity_of("gaussian", over.integers, over.layouts)
    again = one * job.common_steps**2
    if (
        job.charge.noise != "gaussian"
        or job.blocks
        or job.sensitivity != over.measured.l2_squared * again
        or job.integers.digest() != over.all_integers().digest()
        or job.rough > float(max(value * value for value in over.measured.row(over.place)) * one) * (1.0 + 1e-4)
        or job.description.get("horizon") != over.said
        or len(over.paid) != over.place
        or any(layout.source.unit is not None for layout in job.layouts)
    ):
        raise IntegrityError("the plan's noise is not that of its horizon; plan again (nothing was charged)")
    reads = Reads.of(job.description)
    charged = {entry.charge_id: entry for entry in ledger.entries()} if over.paid else {}
    for place, charge_id in enumerate(over.paid):
        known = charged.get(charge_id)
        period = over.periods.start(over.first + place).isoformat()
        mine = None if known is None else known.reads
        if (
            known is None
            or mine is None
            or reads is None
            or (mine.table, mine.rule, mine.read) != (reads.table, reads.rule, (period,))
            or known.description.get("horizon") != {**over.said, "place": place}
            or (known.charge.noise, known.dataset) != ("gaussian", ledger.dataset)
            or known.charge.units < job.charge.units
        ):
            raise IntegrityError(
                f"period {period} has not paid for this release of its horizon: it was charged otherwise, or of other "
                "data, or not at all; add a schedule of a new name from here on (nothing was charged)"
            )


def _observe(job: Multiplied, engine: Engine, noise: list[int]) -> list[int]:
    """y = L B x + noise; the exact vector dies with this frame."""
    # COUNT(*) is a BIGINT, and an entry of x moves by at most L for a row.
    exact = job.integers.times(_cells(job, engine).tolist(), 63 + job.common_steps.bit_length())
    return [value + z for value, z in zip(exact, noise, strict=True)]


def _cells(job: Multiplied, engine: Engine) -> np.ndarray:
    """L x, by the scans of a release."""
    x = np.zeros(job.integers.shape[1], dtype=object)
    scans, known = scans_of(job.layouts, keeps=isinstance(engine, _KEEPING)), dict[int, Kept]()
    with _opened(engine, job) as (held, keep):
        for scan in scans:
            if scan.rows:
                for layout, sums in counted(scan, pieces(held, keep(scan.scan(job.sources)))):
                    _add(x, layout, sums, job.common_steps)
                continue
            together, kept = scan.layout.together, None
            if together is not None:
                kept = known.get(id(together)) or kept_together(scan.layout, job.sources, keep)
                known[id(together)] = kept
            found = _inside(held.scan(scan.scan(job.sources, kept)), scan.layout)
            for layout, columns in scan.parts:
                _add(x, layout, {name: found[column] for name, column in columns.items()}, job.common_steps)
    return x


@contextmanager
def _opened(engine: Engine, job: Scanned) -> Iterator[tuple[Scanning, Keep]]:
    """The engine, opened once for all scans where it can be, and what it keeps for later ones meanwhile."""
    if not isinstance(engine, _KEEPING):
        yield engine, lambda asked: asked
        return
    names = (table for layout in job.layouts for table in layout.source.tables)
    with opened(engine, names, job.sources, job.schemas) as held, ExitStack() as stack:
        yield held, lambda asked: stack.enter_context(held.kept(asked))


def _inside(found: Scan, layout: Layout) -> Scan:
    """What a scan for several layouts found, less the groups without a region on some axis."""
    keys = [column for name, column in found.items() if name == KEPT or name.startswith("a")]
    if layout.every is None or not keys:
        return found
    inside = np.logical_and.reduce([np.asarray(column) >= 0 for column in keys])
    return {name: np.asarray(column, dtype=np.int64)[inside] for name, column in found.items()}


def _add(x: np.ndarray, layout: Layout, found: Scan, common: int) -> None:
    """Add one table's scan to x, in units of 1/L: L per row, L / steps per half step of a measure."""
    if "n" not in found:
        # A column for each entry.
        at = np.array([int(name.removeprefix(ENTRY)) for name in found])
        _add_at(x, at, np.array([column[0] for column in found.values()], dtype=np.int64), common)
        return
    counts = np.asarray(found["n"], dtype=np.int64)
    if layout.source.distinct or layout.together is not None:
        # The scan found the entries itself.
        at = np.asarray(found["a0"], dtype=np.int64)
        if layout.source.added is None:
            _add_at(x, at, counts, common)
        else:
            _add_sums(x, at, layout.measures[0], (found["s0_low"], found["s0_high"], counts), common)
        return
    regions = [np.asarray(found[f"a{i}"], dtype=np.int64) for i in range(len(layout.cells.axes))]
    cell = layout.cells.locate(regions) if regions else np.zeros(len(counts), dtype=np.int64)
    if layout.boxes is not None:
        # A row is counted by every block that holds for it, each in an entry of its own.
        inside = cell >= 0
        for entry, total in zip(layout.entry[:, 0], layout.boxes.totals(cell[inside], counts[inside]), strict=True):
            x[entry] += common * total
        return
    inside = (cell >= 0) & (cell < len(layout.cells))
    if KEPT in found:
        inside &= np.asarray(found[KEPT], dtype=np.int64) >= 0
    if not inside.all():
        cell, counts = cell[inside], counts[inside]
    _add_at(x, layout.entry[0][cell], counts, common)
    held = {name: np.asarray(column, dtype=np.int64)[inside] for name, column in found.items()}
    for number, measure_ in enumerate(layout.measures):
        if measure_.steps:
            sums = held[f"s{number}_low"], held[f"s{number}_high"], counts
            _add_sums(x, layout.entry[number + 1][cell], measure_, sums, common)


def _add_sums(
    x: np.ndarray, at: np.ndarray, measure_: Measure, sums: tuple[object, object, object], common: int
) -> None:
    """Add the sums of a measure to x[at], of u = z' + steps: their low words, high words, and numbers of rows."""
    unit = common // measure_.steps
    for column, by in zip(sums, (unit, unit * WORD, -unit * measure_.steps), strict=True):
        _add_at(x, at, np.asarray(column, dtype=np.int64), by)


def _add_at(x: np.ndarray, at: np.ndarray, values: np.ndarray, unit: int) -> None:
    """x[at] += unit * values where at >= 0; words are summed as 32-bit halves, which cannot overflow."""
    kept = at >= 0
    at, values = at[kept], values[kept]
    if not at.size:
        return
    first = int(at.min())  # one layout of many fills a short stretch of x
    at = at - first
    few = values.size < 2**20  # sums of so many 32-bit halves are exact in floats
    for shift, half in ((0, values & (WORD - 1)), (32, values >> 32)):
        if not half.any():
            continue
        if few:
            total = np.bincount(at, weights=half).astype(np.int64)
        else:
            total = np.zeros(int(at.max()) + 1, dtype=np.int64)
            np.add.at(total, at, half)
        used = np.flatnonzero(total)
        if used.size:
            x[first + used] += total[used].astype(object) * (unit << shift)
