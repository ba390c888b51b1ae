"""``dpsql release``: a custodian releases an expected workload once, so that analysts ask within it for free."""

from __future__ import annotations

import argparse

from dpsql.surfaces import commands, inputs, output


def arguments(command: argparse.ArgumentParser) -> None:
    """The options beside those of ``run``."""
    command.add_argument(
        "--workload",
        metavar="FAMILY",
        action="append",
        default=[],
        help="what is expected, repeatable: 'ranges(age)', 'prefixes(age)', 'marginals(2, sex, state)' (all groupings "
        "by up to 2 of them), 'groups(sex, state)', each perhaps 'of count, sum(cost)'; instead of SQL or beside it",
    )
    command.add_argument("--table", metavar="NAME", help="the private table, where the policy has several")
    command.add_argument("--dry-run", action="store_true", help="show the plan and spend nothing")


def release(options: argparse.Namespace) -> None:
    """Plan an expected workload, spend its budget, say what is free from then on."""
    with inputs.connected(options) as con:
        written = con.workload(options.workload, table=options.table) if options.workload else ""
        given = options.file is not None or options.sql is not None
        if not written and not given:
            options.usage("the workload is missing; give --workload 'ranges(age)', or SQL as for run")
        text = "; ".join(part for part in (written, inputs.batch(options).rstrip("; \n") if given else "") if part)
        planned = commands.planned(con, options, text)
        if options.dry_run:
            if options.json:
                output.print_json({**output.plan_json(planned), "sql": text})
            else:
                output.show(output.plan_text(planned))
            return
        made = con.run(planned, fresh=options.fresh, label=options.label)
        derived = con.answers_others(made.id)
        if options.json:
            output.print_json(
                {
                    "release": made.id,
                    "guarantee": made.guarantee,
                    "cost": made.cost,
                    "views": list(made.views),
                    "answers_others": derived,
                    "sql": text,
                    "budget": output.budget_json(con.budget),
                }
            )
            return
        if not options.quiet:
            output.show(output.plan_text(planned))
            print()
        spent = f"spent {made.guarantee}" if made.cost else "free: the ledger had it already"
        print(f"Release {made.id}, {spent}; {', '.join(made.views)}")
        print(
            "Questions within it are free from now on: run or execute them without a budget."
            if derived
            else "It is too large to be combined with other questions: its own statements are free from now on, others "
            "are not. Fewer columns, or several smaller workloads, would answer more."
        )
        if not options.quiet:
            print(con.budget)
