"""The commands ``dpsql report plan`` and ``dpsql report release``."""

from __future__ import annotations

import argparse
from contextlib import suppress
from pathlib import Path

from dpsql.common.notes import BIAS
from dpsql.driver.opening import connect
from dpsql.errors import Error
from dpsql.extensions.reports.report import report_plan as plan_page
from dpsql.extensions.reports.report import report_release as release_page
from dpsql.planning.remarks import clamped
from dpsql.privacy.state import BudgetState
from dpsql.release import ReleaseStore
from dpsql.release.files import write_text
from dpsql.surfaces import formats, inputs, output
from dpsql.surfaces.commands import planned
from dpsql.surfaces.inputs import release_record
from dpsql.workloads.expr.terms import summed

_CLAMPED = (
    "in sums and averages {} (clamped); values beyond a bound make these too low or too high by an amount that is not "
    "measured (bias), and no interval includes it"
)


def report_plan(options: argparse.Namespace) -> None:
    """Write a plan as an HTML page; free."""
    with inputs.connected(options) as con:
        formats.check_file(options, con.ledger_path, con.releases_path, con.policy.path, options.database)
        held = planned(con, options, inputs.batch(options))
        _write(plan_page(held, con.budget), options)


def report_release(options: argparse.Namespace) -> None:
    """Write a release as an HTML page, from the releases file alone."""
    store = inputs.released(options)
    formats.check_file(options, store.path)
    _write(release_page(store, options.release, *_beside(options, store)), options)


def _beside(options: argparse.Namespace, store: ReleaseStore) -> tuple[tuple[str, ...], BudgetState | None]:
    """What a release leaves out of its numbers, and what is spent in all, where the policy that says so is at hand."""
    if options.policy is None:
        return (), None
    with connect(policy=options.policy) as con:
        state, notes = con.budget, dict[str, None]()
        with suppress(Error):  # a release whose batch is understood no more
            sql = str(release_record(store, options.release)[0]["sql"])
            notes |= dict.fromkeys(note for each in con._losses_of(sql).values() for note in each.notes)
            batch = con._past.meaning(sql)
            notes |= dict.fromkeys(str(note) for note in batch.notes if note.changes == BIAS)
            if bounds := clamped(summed(batch.queries, batch.tables)):
                notes[_CLAMPED.format(bounds)] = None
    return tuple(notes), state


def _write(page: str, options: argparse.Namespace) -> None:
    if options.output == "-":
        print(page, end="")
        return
    write_text(page, Path(options.output))
    if options.json:
        output.print_json({"written": str(Path(options.output).absolute()), "bytes": len(page.encode())})
    elif not options.quiet:
        print(f"Written to {options.output}; open it in a browser or print it, it needs no network.")
