"""What the commands do that advise: expected workloads released, and what-if beside a plan."""

from __future__ import annotations

import argparse
from typing import cast

from dpsql.extensions.advice.connection import Advising
from dpsql.extensions.advice.plan import Advised
from dpsql.surfaces import inputs, output
from dpsql.surfaces.commands import check_payable, explained, planned


def release(options: argparse.Namespace) -> int:
    """Release an expected workload once, so that analysts ask within it for free, and say what is free from then on."""
    with inputs.connected_as(Advising, options) as con:
        written = con.workload(options.workload, table=options.table) if options.workload else ""
        given = options.file is not None or options.sql is not None
        if not written and not given:
            options.usage("the workload is missing; give --workload 'ranges(age)', or SQL as for run")
        text = "; ".join(part for part in (written, inputs.batch(options).rstrip("; \n") if given else "") if part)
        if not options.dry_run:
            check_payable(con, options, text)
        held = planned(con, options, text)
        if options.dry_run:
            if options.json:
                output.print_json({**output.plan_json(held), "sql": text})
            else:
                output.show(str(held))
            return 0
        made = con.run(held, fresh=options.fresh, label=options.label)
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
            return 0
        if not options.quiet:
            output.show(str(held))
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
    return 0


def what_if(options: argparse.Namespace) -> int:
    """Show a plan, and beside it other budgets, what each statement costs the others, and what to change."""
    with inputs.connected_as(Advising, options) as con:
        plan = cast(Advised, planned(con, options, inputs.batch(options)))
        if options.json:
            shown = output.plan_json(plan) | ({"explanation": plan.explain()} if options.explain else {})
            tables = {"curve": plan.curve(), "marginal_costs": plan.marginal_costs(), "suggestions": plan.suggestions()}
            shown |= {"what_if": {name: output.table_json(table) for name, table in tables.items()}}
            output.print_json(shown)
        else:
            explained(plan, options)
            with output.Progress(quiet=options.quiet, what="planning again") as progress:
                progress("without each statement, with coarser groups and tighter bounds")
                text = plan.what_if()
            output.show("\n" + text)
    return 0 if plan.affordable else 1
