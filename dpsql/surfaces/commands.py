"""What the commands that ask private tables do: options read, the library called, what comes back shown."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpsql.driver.connection import Connection
from dpsql.errors import one_line
from dpsql.planning.plan import Plan
from dpsql.release.files import write_text
from dpsql.sql.parse.options import read_options
from dpsql.surfaces import formats, inputs, output
from dpsql.surfaces.releases import entry_json
from dpsql.surfaces.schedules import due, periods

if TYPE_CHECKING:
    from dpsql.running.discovery import Discovery, Prospect
    from dpsql.running.local_release import LocalRelease


def plan(options: argparse.Namespace) -> int:
    """Show what a batch would release and with which errors; free. 1 where the budget does not hold its charge."""
    with inputs.connected(options) as con:
        held = planned(con, options, inputs.batch(options))
        explained(held, options)
    return 0 if held.affordable else 1


def run(options: argparse.Namespace) -> None:
    """Plan a batch, spend its budget, show the noisy tables; without a budget, what earlier releases say for free."""
    with inputs.connected(options) as con:
        text = inputs.batch(options)
        files = con.ledger_path, con.releases_path, con.policy.path, options.database
        if not budget_named(options, text) and _may_be_free(options):
            formats.check(options, 1, *files)
            release = con.run(text, alpha=options.alpha, errors=options.errors, label=options.label)
            formats.check(options, len(list(release)), *files)
        else:
            _check_payable(con, options, text)
            held = planned(con, options, text)
            formats.check(options, len(held.queries), *files)
            release = con.run(
                held, fresh=options.fresh, errors=options.errors, estimates=options.estimates, label=options.label
            )
        state = con.budget
        formats.deliver(
            options,
            [(name, release[name]) for name in release],
            lambda: output.release_text(release),
            lambda: output.release_json(release, state),
        )
        if options.quiet or formats.chosen(options) == "json":
            return
        spent = f"spent {release.guarantee}" if release.cost else "free: these answers were in the ledger already"
        if release.guarantee.startswith("free"):  # worked out from releases, which it names
            spent = release.guarantee
        where = f"{con.releases_path}, schema dp" if con.releases_path.exists() else "the ledger alone"
        # Where stdout is data, remarks go to stderr.
        stream = sys.stdout if formats.chosen(options) == "table" or options.output else sys.stderr
        print(f"\nRelease {release.id}, {spent}; in {where}\n{state}", file=stream)
        if options.output:
            print(f"Written to {options.output}")


def budget(options: argparse.Namespace) -> None:
    """Show what is left of the budget."""
    with inputs.connected(options) as con:
        if options.periods:
            return periods(con, options)
        state = con.budget
        if options.json:
            kept = {"exists": con.ledger_path.exists(), "path": con.ledger_path}
            spending = {
                "charges": [entry_json(entry) for entry in state.charges],
                "unreleased": [entry.id for entry in state.unreleased],
            }
            output.print_json({"dataset": con.policy.dataset, **output.budget_json(state), **spending, "ledger": kept})
            return
        print(state)
        if not con.ledger_path.exists():
            print(f"There is no ledger at {con.ledger_path} yet; the first run makes it.")


def report_plan(options: argparse.Namespace) -> None:
    """Write a plan as an HTML page; free."""
    from dpsql.surfaces.report import report_plan as page

    with inputs.connected(options) as con:
        formats.check_file(options, con.ledger_path, con.releases_path, con.policy.path, options.database)
        held = planned(con, options, inputs.batch(options))
        _write(page(held, con.budget), options)


def report_release(options: argparse.Namespace) -> None:
    """Write a release as an HTML page, from the releases file alone."""
    from dpsql.surfaces.report import report_release as page

    store = inputs.released(options)
    formats.check_file(options, store.path)
    _write(page(store, options.release), options)


def _write(page: str, options: argparse.Namespace) -> None:
    if options.output == "-":
        print(page, end="")
        return
    write_text(page, Path(options.output))
    if options.json:
        output.print_json({"written": str(Path(options.output).absolute()), "bytes": len(page.encode())})
    elif not options.quiet:
        print(f"Written to {options.output}; open it in a browser or print it, it needs no network.")


def budget_named(options: argparse.Namespace, text: str) -> bool:
    """Whether the options, the batch's hints or its OPTIONS say what to spend or which error to reach."""
    if options.epsilon is not None or options.rho is not None or wanted_error(options):
        return True
    return "MAX_ERROR" in text.upper() or any(read_options(text)[1])


def _check_payable(con: Connection, options: argparse.Namespace, text: str) -> None:
    """Refuse before a plan is made what could not be charged."""
    plain = options.method == "auto" and getattr(options, "estimates", "") in ("", "unbiased")
    amounts = options.epsilon, options.delta, options.rho
    plain = plain and options.rows_per_unit is None
    con._check_payable(text, amounts, options.label or "", plain=plain, fresh=options.fresh)


def _may_be_free(options: argparse.Namespace) -> bool:
    """Whether no option asks for something that earlier releases alone cannot give."""
    given = options.delta, options.objective, options.rounds, options.rows_per_unit
    plain = options.method == "auto" and options.estimates == "unbiased"
    return plain and options.earlier and not options.fresh and all(option is None for option in given)


def planned(con: Connection, options: argparse.Namespace, text: str) -> Plan:
    """The plan of a batch as the options ask for it; wrong usage where they name no budget and no wanted error."""
    wanted = wanted_error(options)
    if not budget_named(options, text):
        options.usage("the budget is missing; give --epsilon E, --epsilon E --delta D, --rho R, or --max-error E")
    with output.Progress(quiet=options.quiet) as progress:
        return con.plan(
            text,
            options.epsilon,
            options.delta,
            options.rho,
            alpha=options.alpha,
            time_limit=options.time_limit,
            progress=progress if getattr(options, "explain", False) else output.plainly(progress),
            objective=options.objective,
            method=options.method,
            rounds=options.rounds,
            rows_per_unit=options.rows_per_unit,
            earlier=options.earlier
            and not getattr(options, "fresh", False)
            and getattr(options, "estimates", "") != "whole",
            **wanted,
        )


def release(options: argparse.Namespace) -> int:
    """Release an expected workload once, so that analysts ask within it for free, and say what is free from then on."""
    if options.due:
        return due(options)
    with inputs.connected(options) as con:
        written = con.workload(options.workload, table=options.table) if options.workload else ""
        given = options.file is not None or options.sql is not None
        if not written and not given:
            options.usage("the workload is missing; give --workload 'ranges(age)', or SQL as for run")
        text = "; ".join(part for part in (written, inputs.batch(options).rstrip("; \n") if given else "") if part)
        if not options.dry_run:
            _check_payable(con, options, text)
        held = planned(con, options, text)
        if options.dry_run:
            if options.json:
                output.print_json({**output.plan_json(held), "sql": text})
            else:
                output.show(output.plan_text(held))
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
            output.show(output.plan_text(held))
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


def wanted_error(options: argparse.Namespace) -> dict[str, Any]:
    """The options as keywords of ``Connection.plan``; those that were not given are left out."""
    found: dict[str, Any] = {}
    if options.max_error:
        found["max_error"] = _by_name(options, "--max-error", options.max_error, alone=True)
    if options.relative is not None:
        found["relative"] = options.relative
    if options.simultaneous:
        found["simultaneous"] = True
    if options.expect:
        found["expected"] = _by_name(options, "--expect", options.expect, alone=False)
    return found


def _by_name(options: argparse.Namespace, flag: str, texts: list[str], *, alone: bool) -> float | dict[str, float]:
    named: dict[str, float] = {}
    for text in texts:
        name, equals, figure = text.rpartition("=")
        try:
            value = float(figure)
        except ValueError:
            options.usage(
                f"{flag} {text} ends in no number; write for example {flag} {'50' if alone else 'by_state=1000'}"
            )
        if not equals:
            if not alone or len(texts) > 1:
                options.usage(
                    f"{flag} {text} names no result; write {flag} NAME={figure}" + (", or one figure" * alone)
                )
            return value
        named[name] = value
    return named


def explained(plan: Plan, options: argparse.Namespace) -> None:
    """The plan, and what-if where that was asked, on stdout."""
    if options.json:
        shown = output.plan_json(plan)
        if options.explain:
            shown |= {"explanation": plan.explain()}
        if options.what_if:
            tables = {"curve": plan.curve(), "marginal_costs": plan.marginal_costs(), "suggestions": plan.suggestions()}
            shown |= {"what_if": {name: output.table_json(table) for name, table in tables.items()}}
        output.print_json(shown)
        return
    output.show(plan.explain() if options.explain else output.plan_text(plan))
    if options.what_if:
        with output.Progress(quiet=options.quiet, what="planning again") as progress:
            progress("without each statement, with coarser groups and tighter bounds")
            text = plan.what_if()
        output.show("\n" + text)


def synthesize(options: argparse.Namespace) -> None:
    """Release with --columns and --epsilon; with --ask, answer from what was released; with --rows, make rows of it."""
    releasing = options.columns is not None
    if options.rows is not None:
        return _made_up(options)
    if options.release is not None or options.seed is not None:
        options.usage("--release and --seed are for --rows")
    if releasing == (options.ask is not None):
        options.usage("give --columns and --epsilon to release, or --ask SQL to ask a release; one of the two")
    if releasing and (options.epsilon is None or options.output is not None or options.format is not None):
        options.usage("a release needs --epsilon E, and --format and --output are for answers of --ask")
    asking = options.estimator != "unbiased" or options.bounds or not options.errors or options.alpha != 0.05
    if releasing and asking:
        options.usage("--estimator, --bounds, --alpha and --no-errors are for --ask")
    if not releasing and (options.epsilon is not None or options.ids is not None or options.name is not None):
        options.usage("--epsilon, --ids and --name are for a release; a question costs nothing")
    _synthesized(options) if releasing else _asked(options)


def discover(options: argparse.Namespace) -> None:
    """Find the values of a column privately, or say what that would cost."""
    with inputs.connected(options) as con:
        given = (options.column, options.epsilon, options.delta, options.rho)
        how = {name: getattr(options, name) for name in ("max_groups", "weighted", "max_bytes", "alphabet")}
        formats.check(options, 1, con.ledger_path, con.releases_path, con.policy.path, options.database)
        if options.dry_run and options.bounds:
            options.usage("--dry-run is for values: bounds cost what a batch at that budget costs")
        if options.dry_run:
            prospect = con.plan_discovery(*given, **how)
            if options.json:
                output.print_json(_prospect_json(prospect))
            else:
                print(prospect)
            return
        found = con.discover(*given, **how, bounds=options.bounds, fresh=options.fresh, label=options.label)
        state = con.budget
        formats.deliver(
            options,
            [(found.name, found.result)],
            lambda: output.table_text(found.result),
            lambda: {**_found_json(found), **output.table_json(found.result), "budget": output.budget_json(state)},
        )
        if options.quiet or formats.chosen(options) != "table" or options.output:
            return
        spent = f"spent {found.guarantee}" if found.cost else "free: the ledger had it already"
        count = len(found.values)
        said = f"{count:,} value{'' if count == 1 else 's'} of {found.table}.{found.column.name}, all others are OTHER"
        if options.bounds:
            said = f"Bounds of {found.table}.{found.column.name}, values outside are moved to the nearer one"
            said = said if found.bounds else "No bounds: too few rows for this budget"
        print(f"\n{said}; release {found.id}, {spent}; in dp.{one_line(found.name)}\n{state}")


def _prospect_json(prospect: Prospect) -> dict[str, object]:
    aside = None if prospect.aside is None else prospect.aside[0].guarantee
    return {
        **{"table": prospect.table, "column": prospect.column, "unit": prospect.unit, "groups": prospect.groups},
        **{"guarantee": prospect.charge.guarantee, "purse": prospect.charge.account, "cost": prospect.charge.amount},
        **{"threshold": prospect.threshold, "stderr": prospect.stderr, "set_aside": aside},
    }


def _found_json(found: Discovery) -> dict[str, object]:
    return {
        **{"id": found.id, "name": found.name, "table": found.table, "column": found.column.name},
        **{"values": len(found.values), "cost": found.cost, "guarantee": found.guarantee, "toml": found.to_toml()},
    }


def _synthesized(options: argparse.Namespace) -> None:
    with inputs.connected(options) as con:
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


def _made_up(options: argparse.Namespace) -> None:
    """Rows that agree with the counts of an earlier release: a file, or a folder of one for each table."""
    if any(given is not None for given in (options.columns, options.ask, options.epsilon, options.ids, options.name)):
        options.usage("--rows makes rows of what was released; it goes with --release, --seed and --output alone")
    if options.output is None or formats.chosen(options) not in ("parquet", "table"):
        options.usage("--rows writes Parquet: name a file with -o rows.parquet, or a folder for several tables")
    with inputs.connected(options) as con:
        formats.check_file(options, con.ledger_path, con.releases_path, con.policy.path, options.database)
        made = con.synthetic_rows(options.table, options.rows, release=options.release, seed=options.seed or 0)
    made.write(options.output)
    if not options.quiet:
        shown = ", ".join(f"{len(made[name]):,} rows of {one_line(name)}" for name in made)
        print(f"Wrote {shown} to {options.output}; free. How far their counts are from the released ones:\n")
        print(output.table_text(made.agreement))
        for reason in made.left_out:
            print(f"Not used: {one_line(reason)}")


def _asked(options: argparse.Namespace) -> None:
    with inputs.connected(options) as con:
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
