"""``dpsql plan --max-error`` and ``--what-if``: their options, and the plan as text or JSON."""

from __future__ import annotations

import argparse
from typing import Any

from dpsql.planning.plan import Plan
from dpsql.surfaces import output


def arguments(command: argparse.ArgumentParser) -> None:
    """The options that ask for an error in place of a budget."""
    command.add_argument(
        "--max-error",
        metavar="[NAME=]E",
        action="append",
        help="instead of a budget: spend the least that gives each number +-E (or those of result NAME; repeatable)",
    )
    command.add_argument(
        "--relative", metavar="R", type=_float, help="the same, +-R times what the policy's expected_rows let expect"
    )
    command.add_argument(
        "--simultaneous",
        action="store_true",
        help="with a wanted error: all intervals together, not each alone",
    )
    command.add_argument(
        "--expect",
        metavar="NAME=ROWS",
        action="append",
        help="with a wanted error: rows that a group of result NAME is guessed to have (repeatable)",
    )


def what_if_argument(command: argparse.ArgumentParser) -> None:
    """The option that plans again otherwise."""
    command.add_argument(
        "--what-if",
        action="store_true",
        help="also show error against budget, what each statement costs the others, and what to change",
    )


def wanted(options: argparse.Namespace) -> dict[str, Any]:
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
            value = _float(figure)
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


def _float(text: str) -> float:
    return float(text)


_float.__name__ = "number"  # what argparse calls it in a message


def explained(plan: Plan, options: argparse.Namespace) -> None:
    """The plan, and what-if where that was asked, on stdout."""
    if options.json:
        shown = output.plan_json(plan)
        if options.explain:
            shown |= {"explanation": plan.explain()}
        if options.what_if:
            shown |= {"what_if": what_if_json(plan)}
        output.print_json(shown)
        return
    output.show(plan.explain() if options.explain else output.plan_text(plan))
    if options.what_if:
        progress = output.Progress(quiet=options.quiet, what="planning again")
        progress("without each statement, with coarser groups and tighter bounds")
        try:
            text = plan.what_if()
        finally:
            progress.done()
        output.show("\n" + text)


def what_if_json(plan: Plan) -> dict[str, Any]:
    """The same figures for programs."""
    return {
        "curve": output.table_json(plan.curve()),
        "marginal_costs": output.table_json(plan.marginal_costs()),
        "suggestions": output.table_json(plan.suggestions()),
    }
