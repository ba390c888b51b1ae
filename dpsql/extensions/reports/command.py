"""The commands ``dpsql report plan`` and ``dpsql report release``."""

from __future__ import annotations

import argparse
from pathlib import Path

from dpsql.extensions.reports.report import report_plan as plan_page
from dpsql.extensions.reports.report import report_release as release_page
from dpsql.release.files import write_text
from dpsql.surfaces import formats, inputs, output
from dpsql.surfaces.commands import planned


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
    _write(release_page(store, options.release), options)


def _write(page: str, options: argparse.Namespace) -> None:
    if options.output == "-":
        print(page, end="")
        return
    write_text(page, Path(options.output))
    if options.json:
        output.print_json({"written": str(Path(options.output).absolute()), "bytes": len(page.encode())})
    elif not options.quiet:
        print(f"Written to {options.output}; open it in a browser or print it, it needs no network.")
