"""The command ``dpsql discover``."""

from __future__ import annotations

import argparse

from dpsql.errors import one_line
from dpsql.extensions.discovery.discovering import Discovering
from dpsql.extensions.discovery.discovery import Discovery, Prospect
from dpsql.surfaces import formats, inputs, output


def discover(options: argparse.Namespace) -> None:
    """Find the values of a column privately, or say what that would cost."""
    with inputs.connected_as(Discovering, options) as con:
        given = (options.column, options.epsilon, options.delta, options.rho)
        how = {name: getattr(options, name) for name in ("max_groups", "max_bytes", "alphabet")}
        formats.check(options, 1, con.ledger_path, con.releases_path, con.policy.path, options.database)
        limit = options.unit_sum or options.unit_rows or options.unit_groups
        if options.dry_run and (options.bounds or limit):
            options.usage("--dry-run is for values: bounds cost what a batch at that budget costs")
        if options.dry_run:
            prospect = con.plan_discovery(*given, **how)
            if options.json:
                output.print_json(_prospect_json(prospect))
            else:
                print(prospect)
            return
        names = ("bounds", "unit_sum", "unit_rows", "unit_groups", "per", "sum_epsilon", "fresh", "label")
        how |= {name: getattr(options, name) for name in names}
        found = con.discover(*given, **how)
        state = con.budget
        formats.deliver(
            options,
            [(found.name, found.result)],
            lambda: output.table_text(found.result),
            lambda: {**_discovery_json(found), **output.table_json(found.result), "budget": output.budget_json(state)},
        )
        if options.quiet or formats.chosen(options) != "table" or options.output:
            return
        spent = f"spent {found.guarantee}" if found.cost else "free: the ledger had it already"
        count = len(found.values)
        said = f"{count:,} value{'' if count == 1 else 's'} of {found.table}.{found.column.name}, all others are OTHER"
        if options.bounds:
            said = f"Bounds of {found.table}.{found.column.name}, values outside are moved to the nearer one"
            said = said if found.bounds else "No bounds: too few rows for this budget"
        if limit:
            said = f"Limit of least error: {found.to_toml()}"
            said = said if found.to_toml() else "No limit: too few rows for this budget"
        print(f"\n{said}; release {found.id}, {spent}; in dp.{one_line(found.name)}\n{state}")


def _prospect_json(prospect: Prospect) -> dict[str, object]:
    aside = None if prospect.aside is None else prospect.aside[0].guarantee
    return {
        **{"table": prospect.table, "column": prospect.column, "unit": prospect.unit, "groups": prospect.groups},
        **{"guarantee": prospect.charge.guarantee, "purse": prospect.charge.account, "cost": prospect.charge.amount},
        **{"threshold": prospect.threshold, "stderr": prospect.stderr, "set_aside": aside},
    }


def _discovery_json(result: Discovery) -> dict[str, object]:
    return {
        **{"id": result.id, "name": result.name, "table": result.table, "column": result.column.name},
        **{"values": len(result.values), "cost": result.cost, "guarantee": result.guarantee, "toml": result.to_toml()},
    }
