"""What the commands that ask private tables do: options read, the library called, what comes back shown."""

from __future__ import annotations

import argparse
import sys
from dataclasses import fields, replace
from typing import Any

from dpsql.driver.connection import Connection
from dpsql.planning.options import PlanOptions
from dpsql.planning.plan import Plan
from dpsql.sql.parse.options import read_options
from dpsql.surfaces import formats, inputs, output
from dpsql.surfaces.releases import entry_json


def plan(options: argparse.Namespace) -> int:
    """Show what a batch would release and with which errors; free. 1 where the budget does not hold its charge."""
    with inputs.connected(options) as con:
        text = inputs.batch(options)
        if options.stages:
            from dpsql.planning.explain import stages_of, stages_text

            heard = stages_of(text, con.policy, con.schemas())
            if options.json:
                output.print_json({"stages": [{"stage": name, "made": made} for name, made in heard]})
            else:
                output.show(stages_text(heard))
            return 0
        held = planned(con, options, text)
        explained(held, options)
    return 0 if held.affordable else 1


def run(options: argparse.Namespace) -> None:
    """Plan a batch, spend its budget, show the noisy tables; without a budget, what earlier releases say for free."""
    with inputs.connected(options) as con:
        measured(con, options, inputs.batch(options))


def measured(con: Connection, options: argparse.Namespace, text: str) -> None:
    """Run a batch, and show its tables and what they cost."""
    files = con.ledger_path, con.releases_path, con.policy.path, options.database
    if not budget_named(options, text) and _may_be_free(options):
        formats.check(options, 1, *files)
        release = con.run(text, alpha=options.alpha, errors=options.errors, label=options.label)
        formats.check(options, len(list(release)), *files)
    else:
        check_payable(con, options, text)
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
    if formats.chosen(options) != "table":
        print(*release.notes, sep="\n", end="\n" * bool(release.notes), file=stream)
    print(f"\nRelease {release.id}, {spent}; in {where}\n{state}", file=stream)
    if options.output:
        print(f"Written to {options.output}")


def budget(options: argparse.Namespace) -> None:
    """Show what is left of the budget."""
    with inputs.connected(options) as con:
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


def budget_named(options: argparse.Namespace, text: str) -> bool:
    """Whether the options, the batch's hints or its OPTIONS say what to spend or which error to reach."""
    if options.epsilon is not None or options.rho is not None or options.max_error or options.relative is not None:
        return True
    if options.simultaneous or options.expected:
        return True
    return "MAX_ERROR" in text.upper() or any(read_options(text)[1])


def check_payable(con: Connection, options: argparse.Namespace, text: str) -> None:
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
    if not budget_named(options, text):
        options.usage("the budget is missing; give --epsilon E, --epsilon E --delta D, --rho R, or --max-error E")
    amounts = options.epsilon, options.delta, options.rho
    with output.Progress(quiet=options.quiet) as progress:
        heard = progress if getattr(options, "explain", False) else output.plainly(progress)
        return con.plan(text, *amounts, options=replace(_plan_options(options), progress=heard))


def _plan_options(options: argparse.Namespace) -> PlanOptions:
    """What the command line says of how to plan."""
    given = {field.name: getattr(options, field.name) for field in fields(PlanOptions) if hasattr(options, field.name)}
    given["max_error"] = _by_name(options, "--max-error", options.max_error, alone=True)
    given["expected"] = _by_name(options, "--expect", options.expected, alone=False)
    if getattr(options, "fresh", False) or getattr(options, "estimates", "") == "whole":
        given["earlier"] = False
    return PlanOptions(**given)


def _by_name(options: argparse.Namespace, flag: str, texts: list[str], *, alone: bool) -> Any:
    """A figure where it stands alone, else figures by result; None where none is given."""
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
    return named or None


def explained(plan: Plan, options: argparse.Namespace) -> None:
    """The plan on stdout."""
    if options.json:
        shown = output.plan_json(plan)
        if options.explain:
            shown |= {"explanation": plan.explain()}
        output.print_json(shown)
        return
    output.show(plan.explain() if options.explain else str(plan))
