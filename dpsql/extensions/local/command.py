"""The command ``dpsql synthesize``: rows released once, each randomised, and questions about them."""

from __future__ import annotations

import argparse

from dpsql.extensions.local.connection import ReleasingLocally
from dpsql.extensions.local.local_release import LocalRelease
from dpsql.surfaces import formats, inputs, output


def synthesize(options: argparse.Namespace) -> None:
    """Release with --columns and --epsilon; with --ask, answer from what was released."""
    releasing = options.columns is not None
    if releasing == (options.ask is not None):
        options.usage("give --columns and --epsilon to release, or --ask SQL to ask a release; one of the two")
    if releasing and (options.epsilon is None or options.output is not None or options.format is not None):
        options.usage("a release needs --epsilon E, and --format and --output are for answers of --ask")
    asking = options.estimator != "unbiased" or options.bounds or not options.errors or options.alpha != 0.05
    if releasing and asking:
        options.usage("--estimator, --bounds, --alpha and --no-errors are for --ask")
    if not releasing and (options.epsilon is not None or options.ids is not None or options.name is not None):
        options.usage("--epsilon, --ids and --name are for a release; a question costs nothing")
    _synthesized(options) if releasing else _ask(options)


def _synthesized(options: argparse.Namespace) -> None:
    with inputs.connected_as(ReleasingLocally, options) as con:
        made = con.synthesize(
            options.table,
            _names(options.columns),
            options.epsilon,
            ids=_names(options.ids),
            name=options.name,
            label=options.label,
        )
        state = con.budget
        if options.json:
            spent = {"cost": made.cost, "budget": output.budget_json(state), "releases": con.releases_path}
            output.print_json({**_local_json(made), **spent})
            return
        columns = ", ".join(made.columns)
        beside = f" beside {', '.join(made.ids)}" if made.ids else ""
        print(
            f"Released {made.rows:,} rows of {made.table} as {made.name}: {columns}{beside}, randomised over "
            f"{made.combinations:,} combinations.\nGuarantee  {made.guarantee}"
        )
        if not options.quiet:
            print(f"\nRelease {made.id}, spent epsilon {made.cost:g} of the local account; in {con.releases_path}")
            print(f"Ask it: dpsql synthesize {options.table} --policy {options.policy} --ask 'SELECT COUNT(*) ...'")
            print(state)


def _ask(options: argparse.Namespace) -> None:
    with inputs.connected_as(ReleasingLocally, options) as con:
        formats.check(options, 1, con.ledger_path, con.releases_path, con.policy.path, options.database)
        made = con.synthetic(options.table)
        if options.bounds:
            result = made.bounds(options.ask)
        else:
            result = made.sql(options.ask, estimator=options.estimator, errors=options.errors, alpha=options.alpha)
        formats.deliver(
            options,
            [("result", result)],
            lambda: output.table_text(result),
            lambda: {"release": _local_json(made), **output.table_json(result)},
        )
        if not options.quiet and formats.chosen(options) == "table" and not options.output:
            print(f"\nEstimated from {made.rows:,} rows of {made.name} (release {made.id}, {made.guarantee}); free.")


def _local_json(made: LocalRelease) -> dict[str, object]:
    return {
        **{"id": made.id, "name": made.name, "table": made.table, "columns": list(made.columns)},
        **{"ids": list(made.ids), "rows": made.rows, "combinations": made.combinations, "epsilon": made.epsilon},
        "guarantee": made.guarantee,
    }


def _names(given: str | None) -> list[str]:
    return [] if given is None else [name.strip() for name in given.split(",") if name.strip()]
