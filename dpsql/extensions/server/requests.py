"""``dpsql requests``: batches of analysts that wait for the custodian's yes or no."""

from __future__ import annotations

import argparse
from pathlib import Path

from dpsql.errors import one_line, printable
from dpsql.policy import Policy
from dpsql.privacy.ledger import Ledger
from dpsql.privacy.requests import BatchRequest, numbered
from dpsql.release.books import budget_of
from dpsql.surfaces import output

_SHOWN = 60  # characters of a batch in a list


def list_(options: argparse.Namespace) -> None:
    """Every request that waits; with ``--all`` those that were decided, too."""
    found = [one for one in _ledger(options).requests() if options.all or one.state == "waiting"]
    if options.json:
        output.print_json({"requests": [_record(one) for one in found]})
        return
    rows = [
        [one.number, _moment(one.time), one.label, one.charge.guarantee, one.summary, one_line(one.sql)[:_SHOWN]]
        for one in found
    ]
    heads = ("request", "time (UTC)", "analyst", "cost", "state", "batch")
    kinds = ["BIGINT", *["VARCHAR"] * 5]
    print(output.grid(heads, kinds, rows) if rows else f"No request {'was made' if options.all else 'waits'}.")


def show(options: argparse.Namespace) -> None:
    """One request: who asks, the whole batch, and its plan."""
    one = numbered(_ledger(options).requests(), options.number)
    if options.json:
        output.print_json({**_record(one), "plan": one.plan})
        return
    print(f"Request {one.number} of {one.label}, {_moment(one.time)} UTC: {printable(one.summary)}\n")
    print("\n".join(printable(line) for line in one.sql.strip().splitlines()))
    print("\n" + "\n".join(printable(line) for line in one.plan.splitlines()))


def approve(options: argparse.Namespace) -> None:
    """Let the batch be charged once, when its analyst asks for it again."""
    _decide(options, approve=True)


def refuse(options: argparse.Namespace) -> None:
    """Keep the batch from being charged."""
    _decide(options, approve=False)


def _decide(options: argparse.Namespace, *, approve: bool) -> None:
    one = _ledger(options).decide(options.number, approve=approve, note=options.note or "")
    if options.json:
        output.print_json(_record(one))
    elif not options.quiet:
        then = f"; {one.label} may be charged {one.charge.guarantee} for it once" if approve else ""
        print(f"Request {one.number} is {one.state}{then}.")


def _ledger(options: argparse.Namespace) -> Ledger:
    policy = Policy.load(Path(options.policy))
    ledger = Path(options.ledger) if options.ledger is not None else Path(options.policy).with_suffix(".ledger")
    anchor = options.anchor if options.anchor is not None else policy.place("anchor")
    return Ledger.open(ledger.absolute(), policy.dataset, budget_of(policy), anchor=anchor)


def _moment(time: str) -> str:
    return time[:19].replace("T", " ")


def _record(one: BatchRequest) -> dict[str, object]:
    return {
        "request": one.number,
        "time": one.time,
        "analyst": one.label,
        "state": one.state,
        "guarantee": one.charge.guarantee,
        "account": one.charge.account,
        "amount": one.charge.amount,
        "decided": one.decided,
        "note": one.note,
        "release": one.release,
        "sql": one.sql,
    }
