"""``dpsql schedule``, ``dpsql release --due`` and ``dpsql budget --periods``: tables that grow."""

from __future__ import annotations

import argparse
import sys

from dpsql.extensions.periods.connection import Standing
from dpsql.extensions.periods.period_budgets import calendar
from dpsql.privacy.schedules import Schedule
from dpsql.surfaces import inputs, output

_SHADES = "·▁▂▃▄▅▆▇█"


def add(options: argparse.Namespace) -> None:
    """Have a batch released of every period."""
    with inputs.connected_as(Standing, options) as con:
        if options.epsilon is None and options.rho is None:
            options.usage("the budget of a period is missing; give --epsilon E, --epsilon E --delta D, or --rho R")
        budget = (options.epsilon, options.delta, options.rho)
        how = {"every": options.every, "table": options.table, "first": options.first, "label": options.label or ""}
        how |= {"horizon": options.horizon, "windows": _windows(options)}
        made = con.schedules.add(inputs.batch(options), *budget, name=options.name, **how)
        errors = con.schedules.errors(made)
        if options.json:
            said = {"errors": [dict(zip(("periods", "alone", "horizon"), row, strict=True)) for row in errors]}
            output.print_json({**_record(made), **(said if errors else {})})
        elif not options.quiet:
            which = f"{len(made.factors):,} periods" if made.factors else "every period"
            when = "all numbers and periods" if made.factors else "all numbers, after long"
            print(
                f"{made.name} releases {', '.join(made.views)} of {which} of {made.table} from {made.first} on, "
                f"at {_cost(made)} each. Nothing was charged; 'dpsql release --due' releases what is over."
            )
            if errors:
                rows = [[_sum(made, window), f"{alone:.4g}", f"{over:.4g}"] for window, alone, over in errors]
                print(f"standard errors, root mean square over {when}:")
                heads = ("sum over", "each period alone", "the horizon")
                print(output.grid(heads, ["VARCHAR", "DOUBLE", "DOUBLE"], rows, indent=2))


def list_(options: argparse.Namespace) -> None:
    """The standing batches, and how far each is."""
    with inputs.connected_as(Standing, options) as con:
        found = [(one, con.schedules.progress(one)) for one in con.schedules.standing()]
        if options.json:
            output.print_json({"schedules": [{**_record(one), **held.as_dict()} for one, held in found]})
            return
        rows = [
            [one.name, one.table, one.first, _cost(one), ", ".join(one.views), held.released, held.due, held.cut_off]
            for one, held in found
        ]
        heads = ("schedule", "table", "from", "each", "results", "released", "due", "charged, not released")
        kinds = [*["VARCHAR"] * 5, *["BIGINT"] * 3]
        print(output.grid(heads, kinds, rows) if rows else "There are no schedules.")


def remove(options: argparse.Namespace) -> None:
    """Release nothing more of a standing batch."""
    with inputs.connected_as(Standing, options) as con:
        made = con.schedules.remove(options.name)
        if options.json:
            output.print_json({"removed": made.name})
        elif not options.quiet:
            print(f"{made.name} is removed; what it released stays.")


def due(options: argparse.Namespace) -> int:
    """Release what is over; 1 where a period of a schedule was refused."""
    if options.workload or options.file is not None or options.sql is not None or options.dry_run:
        options.usage("--due releases the standing batches alone; add a batch with 'dpsql schedule add'")
    with (
        inputs.connected_as(Standing, options) as con,
        output.Progress(quiet=options.quiet, what="releasing") as progress,
    ):
        found = con.schedules.release_due(progress)
        new, failed = [one for one in found if one.new], [one for one in found if one.failure]
        if options.json:
            output.print_json({"due": [dict(one.__dict__) for one in found], "released": len(new)})
        else:
            for one in new:
                print(f"{one.schedule} of {one.period}: release {one.release}")
            if not options.quiet:
                print(
                    f"{len(new)} released now, {len(found) - len(new) - len(failed)} were before, {len(failed)} refused"
                )
        for one in failed:
            print(f"dpsql: {one.schedule} of {one.period}: {one.failure}", file=sys.stderr)
    return 1 if failed else 0


def periods(options: argparse.Namespace) -> None:
    """The budget of every closed period, as a calendar and as a table."""
    with inputs.connected_as(Standing, options) as con:
        _show_periods(con, options)


def _show_periods(con: Standing, options: argparse.Namespace) -> None:
    found = con.budget_by_period()
    if options.json:
        output.print_json({"dataset": con.policy.dataset, "periods": [dict(one.__dict__) for one in found]})
        return
    if not found:
        print("No period of a table is over: the policy declares none, or the first still runs.")
        return
    for table, account in dict.fromkeys((one.table, one.account) for one in found):
        mine = [one for one in found if (one.table, one.account) == (table, account)]
        print(f"{table}, {account} account: {mine[0].text[0]} for each period; · nothing spent, █ all")
        for label, shares in calendar(mine):
            print(f"  {label}  {''.join(map(_mark, shares))}")
        rows = [[one.period, one.text[1], one.text[2], one.releases] for one in mine if one.releases]
        if rows:
            heads, kinds = ("period", "spent", "left", "charges"), ["VARCHAR"] * 3 + ["BIGINT"]
            print(output.grid(heads, kinds, rows, indent=2))


def _mark(share: float) -> str:
    """The fuller, the more of a period's part is spent."""
    return _SHADES[0] if share <= 0 else _SHADES[max(1, min(8, round(8 * share)))]


def _windows(options: argparse.Namespace) -> list[int]:
    """The numbers of --windows."""
    listed = [] if options.windows is None else options.windows.split(",")
    if listed and options.horizon is None:
        options.usage("--windows are those of a horizon; add --horizon N")
    if not all(part.strip().isascii() and part.strip().isdigit() for part in listed):
        options.usage(f"--windows {options.windows!r} is no list of numbers; write such as --windows 7,30")
    return [int(part) for part in listed]


def _sum(one: Schedule, window: int) -> str:
    if window == len(one.factors):
        return "all so far"
    return f"{window:,} period{'s' if window > 1 else ''}"


def _cost(one: Schedule) -> str:
    if one.rho is not None:
        return f"rho {one.rho}"
    return f"epsilon {one.epsilon}" + (f", delta {one.delta}" if one.delta is not None else "")


def _record(one: Schedule) -> dict[str, object]:
    left_out = ("removed", "kernel", "factors", "strategy")
    held = {name: value for name, value in one.as_dict().items() if name not in left_out}
    return {**held, **({"horizon": len(one.factors) or "endless"} if one.kernel else {})}
