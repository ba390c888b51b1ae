"""What ``dpsql ledger`` does: back the ledger up, put a backup back, verify it."""

from __future__ import annotations

import argparse
from pathlib import Path

from dpsql.errors import listed
from dpsql.surfaces import inputs, output


def backup(options: argparse.Namespace) -> None:
    """Copy the ledger as it is at one moment."""
    with inputs.connected(options) as con:
        links = con.ledger.backup(options.file)
        if options.json:
            output.print_json({"backup": Path(options.file).absolute(), "ledger": con.ledger_path, "links": links})
        elif not options.quiet:
            print(f"{options.file} is the ledger as of now, {links} links, checked.")


def restore(options: argparse.Namespace) -> None:
    """Put a backup in the ledger's place, and charge what it lacks."""
    with inputs.connected(options) as con:
        done = con.ledger.restore(options.file, lost=True if options.lost == "" else options.lost)
        state = con.budget
        aside = {"The ledger that was there": done.kept, "A releases file with more than the ledger has": done.releases}
        if options.json:
            found = {"restored": con.ledger_path, "links": done.links, "lost": list(done.lost)}
            kept = {"kept": done.kept, "releases_kept": done.releases, "suspended": list(done.suspended)}
            output.print_json({**found, **kept, "budget": output.budget_json(state)})
        elif not options.quiet:
            charged = listed(done.lost, 3) or "nothing"
            print(f"{con.ledger_path} is restored from {options.file}; for what came after it {charged} is charged.")
            for what, path in aside.items():
                if path is not None:
                    print(f"{what} is kept as {path}.")
            if done.suspended:
                print(
                    f"{listed(done.suspended, 5)} cannot ask until resumed, as somebody may have been suspended since "
                    "the backup; what was lost counts for each of them ('dpsql analyst list', 'dpsql analyst resume')."
                )
            print(state)


def verify(options: argparse.Namespace) -> None:
    """Hold ledger, anchor and releases file against each other."""
    with inputs.connected(options) as con:
        found = con.ledger.verify()
        if options.json:
            links = {"links": found.links, "charges": found.charges, "releases": found.releases}
            output.print_json({"ok": True, **links, "anchor": found.anchor, "written": found.written})
            return
        if options.quiet:
            return
        anchor = "there is no anchor, so an older copy would go unnoticed"
        if found.anchor is not None:
            anchor = f"the anchor has link {found.anchor}"
        behind = found.releases - found.written
        written = "the releases file has them all" if not behind else f"the releases file lacks {behind}, to be written"
        print(f"ok: {found.links} links, {found.charges} charges, {found.releases} releases; {anchor}; {written}")
