"""What ``dpsql releases`` and ``dpsql sql`` do: list, show, query, rename, drop, export, rebuild."""

from __future__ import annotations

import argparse
import logging
import re
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from dpsql.common.quoting import identifier
from dpsql.driver.connection import Connection
from dpsql.driver.opening import connect
from dpsql.errors import LedgerError, OperationalError, ProgrammingError, SQLError, listed, one_line
from dpsql.policy import Policy
from dpsql.policy.limits import changed_limits, limits_by_release, limits_in
from dpsql.privacy.ledger import Entry
from dpsql.privacy.state import BudgetState
from dpsql.release import Result
from dpsql.release.files import export_database, export_table, export_tables
from dpsql.release.limits import QUERY_SECONDS
from dpsql.sql.routing import tables_read
from dpsql.surfaces import formats, inputs, output

log = logging.getLogger("dpsql")

_NOW = 0
"""In place of a release: the policy as it is now."""


def list_(options: argparse.Namespace) -> None:
    """List every charge of the ledger."""
    with inputs.connected(options) as con:
        state = con.budget
        entries = list(state.charges)
        changed = _changed_limits(con, entries)
        if options.json:
            releases = [{**entry_json(entry), "limits_changed": changed[entry.id]} for entry in entries]
            output.print_json({"releases": releases, "limits_changed_since": changed[_NOW]})
            return
        if not entries:
            print(f"Nothing was released yet; there is no charge in {con.ledger_path}.")
            return
        columns = ("id", "time (UTC)", "label", "guarantee", "account", "cost", "results")
        output.show(output.grid(columns, ("BIGINT", *["VARCHAR"] * 6), [_row(entry, state) for entry in entries]))
        lines = [
            f"{'the policy now' if release == _NOW else f'release {release}'}: {line}"
            for release, found in changed.items()
            for line in found
        ]
        if lines:
            print("\nLimits that changed:")
            output.show("\n".join(f"  {one_line(line)}" for line in lines))


def _changed_limits(con: Connection, entries: Sequence[Entry]) -> dict[int, list[str]]:
    """What is otherwise in the limits of each release than in the one before, and in the policy by now (`_NOW`)."""
    now = limits_in(con.policy.tables, con.policy.tables)
    return limits_by_release([*((entry.id, entry.limits) for entry in entries), (_NOW, now)])


def _warn_of_limits(name: str, options: argparse.Namespace) -> None:
    """Log where a result was released under other limits than the policy has now, or the release before it had."""
    if options.policy is None:
        return
    with connect(policy=options.policy) as con:
        if not con.ledger_path.exists():
            return
        try:
            entries = con.releases()
        except LedgerError:
            return  # ``inputs.released`` said so
        shown = [entry for entry in entries if name.lower() in [view.lower() for view in entry.views]]
        if not shown:
            return
        release = shown[-1]
        found = _changed_limits(con, entries)[release.id]
        now = limits_in(con.policy.tables, release.limits)
        found += changed_limits(release.limits, now, f" in release {release.id}")
        for line in dict.fromkeys(found):
            log.warning("limits changed: %s", one_line(line))


def show(options: argparse.Namespace) -> None:
    store = inputs.released(options)
    _warn_of_limits(options.name, options)
    formats.check(options, 1, store.path)
    view = f"dp.{identifier(options.name)}"
    whole = re.fullmatch(r"(r[0-9]+)\.(.+)", options.name, re.IGNORECASE)
    if whole and options.name not in store.names():
        view = f"{whole[1]}.{identifier(whole[2])}"
    _deliver(store.sql(f"SELECT * FROM {view}", seconds=None), options.name, options)  # noqa: S608


def sql(options: argparse.Namespace) -> None:
    """Run one SELECT over the releases; free."""
    limit = QUERY_SECONDS if options.timeout is None else options.timeout or None  # 0: none
    query = inputs.text(options.query, options)
    if options.population == "sample" and not options.errors:
        options.usage("--population sample goes with --errors")
    if options.errors:
        return _with_errors(query, limit, options)
    store = inputs.released(options)
    formats.check(options, 1, store.path)
    try:
        found = store.sql(query, seconds=limit)
    except (SQLError, OperationalError):
        asked = "" if options.policy is None else tables_read(query, Policy.load(Path(options.policy)), store.names)
        if not asked:
            raise
    else:
        return _deliver(found, "result", options)
    raise ProgrammingError(
        "dpsql sql reads what is released, and this asks a public table: query it with DuckDB itself"
        if asked == "public"
        else "dpsql sql reads what is released, and this asks a private table; dpsql run measures it, dpsql plan shows "
        "the errors first, for free"
    )


def _with_errors(query: str, limit: float | None, options: argparse.Namespace) -> None:
    """Deliver the answer with errors beside its numbers, which the ledger's releases have."""
    if options.policy is None:
        options.usage("--errors draws the noise of releases again, which the ledger knows; give --policy FILE")
    with inputs.connected(options, query_timeout=limit) as con:
        formats.check(options, 1, con.releases_path)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            population = "sample" if options.population == "sample" else None
            found = con.sql(query, errors=True, alpha=options.alpha, population=population)
        for one in said:
            log.warning("%s", one.message)
        _deliver(found, "result", options)


def rename(options: argparse.Namespace) -> None:
    """Show a result under another name from now on."""
    with inputs.connected(options) as con:
        con.rename(options.name, options.to, release=options.release)
        if options.json:
            output.print_json({"renamed": options.name, "to": options.to, "releases": con.releases_path})
        elif not options.quiet:
            print(f"{one_line(options.name)} is shown as {one_line(options.to)} from now on.")


def drop(options: argparse.Namespace) -> None:
    """Take results out of the releases file; refunds nothing."""
    if not options.name and options.release is None:
        options.usage("there is nothing to drop; give a NAME, or --release ID for all results of one release")
    with inputs.connected(options) as con:
        before = _views(con.releases())
        con.drop(*options.name, release=options.release)
        gone = [name for name in before if name not in _views(con.releases())]
        spent = con.budget.spent
        if options.json:
            output.print_json({"dropped": gone, "refunded": 0, "spent": spent, "releases": con.releases_path})
        elif not options.quiet:
            names = ", ".join(one_line(name) for _, name in gone)
            print(f"Dropped {names}. Nothing is given back: the ledger keeps the charge and the noisy numbers, and the")
            print("same batch is answered from them again at no cost, which shows its results again.")


def rebuild(options: argparse.Namespace) -> None:
    """Make the releases file anew from the ledger."""
    with inputs.connected(options) as con:
        if not con.ledger_path.exists():
            raise LedgerError(f"there is no ledger at {con.ledger_path}; name it with --ledger")
        count = con.rebuild()
        if options.json:
            output.print_json({"rebuilt": count, "releases": con.releases_path})
        elif not options.quiet:
            print(f"{con.releases_path} holds {count} release{'' if count == 1 else 's'}.")


def export(options: argparse.Namespace) -> None:
    """Write the results of one release as files, as a database or as one document."""
    store = inputs.released(options)
    held, _ = inputs.release_record(store, options.release)
    release, names = int(held["release_id"]), _chosen(held, options.result)
    kind, target = formats.chosen(options), options.output
    if kind == "duckdb":
        if target is None or formats.is_folder(target):
            options.usage("a duckdb database is a file; name a new one with -o")
        export_database(store, release, names, Path(target))
    elif kind in ("csv", "parquet"):
        formats.check(options, len(names), store.path)
        if target is None:
            formats.to_stdout(kind, lambda path: export_table(store, release, names[0], kind, path))
            return
        if formats.is_folder(target):
            export_tables(store, release, names, kind, Path(target))
        else:
            export_table(store, release, names[0], kind, Path(target))
    else:
        formats.check(options, 1, store.path)
        tables = [(name, store.table(release, name)) for name in names]
        formats.deliver(
            options,
            tables,
            lambda: "\n\n".join(f"{name}\n{output.table_text(result)}" for name, result in tables),
            lambda: held | {"tables": [{"name": name, **output.table_json(result)} for name, result in tables]},
        )
        if target is None:
            return
    if not options.quiet and not options.json:
        print(f"Release {release}, {len(names)} result{'' if len(names) == 1 else 's'}, as {kind} in {target}")


def _deliver(result: Result, name: str, options: argparse.Namespace) -> None:
    formats.deliver(options, [(name, result)], lambda: output.table_text(result), lambda: output.table_json(result))


def _chosen(entry: inputs.Record, requested: list[str]) -> list[str]:
    """The requested results of a release, all of them by default."""
    names = {name.lower(): name for name in entry["names"]}
    if not names:
        raise ProgrammingError(f"all results of release {entry['release_id']} were dropped; there is nothing to export")
    for name in requested:
        if name.lower() not in names:
            known = ", ".join(names.values())
            raise ProgrammingError(f"release {entry['release_id']} has no result {one_line(name)}; it has {known}")
    return [names[name.lower()] for name in requested] or list(names.values())


def _views(entries: list[Entry]) -> list[tuple[int, str]]:
    return [(entry.id, name) for entry in entries if entry.released is not None for name in entry.views]


def entry_json(entry: Entry) -> dict[str, object]:
    return {
        "release": entry.id,
        "time": entry.time,
        "released": entry.released,
        "label": entry.label,
        "guarantee": entry.charge.guarantee,
        "purse": entry.charge.account,
        "measure": entry.charge.measure,
        "cost": entry.charge.amount,
        "results": list(entry.results),
        "views": list(entry.views),
        "limits": entry.limits,
    }


def _row(entry: Entry, state: BudgetState) -> list[object]:
    names = entry.views
    shown = listed(names, 3)
    if entry.released is None:
        shown = "charged, nothing recorded"
    elif not names:
        shown = "all dropped" if entry.results else ""
    elif len(names) < len(entry.results):
        shown = f"{len(entry.results) - len(names)} dropped; {shown}"
    if entry.measures_nothing:
        shown = ""
    when = entry.time[:19].replace("T", " ")
    account = state.account(entry.charge.account)
    # As the budget says it: a share of an account that counts what does not add up in epsilon.
    cost = "" if account is None else state.figures(replace(account, spent_units=entry.charge.units))[1]
    return [entry.id, when, entry.label, entry.charge.guarantee, entry.charge.account, cost, shown]
