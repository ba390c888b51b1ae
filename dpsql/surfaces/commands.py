"""What each subcommand does: read its options, call the library, show the outcome as text or JSON."""

from __future__ import annotations

import argparse
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

from dpsql.connection import Connection, connect
from dpsql.drafting import draft_policy
from dpsql.errors import LedgerError, OperationalError
from dpsql.plan import Plan
from dpsql.policy import BUDGET_FIGURES, BudgetPolicy, ColumnPolicy, TablePolicy
from dpsql.policy.smartnoise import policy_from_smartnoise
from dpsql.privacy.amounts import show
from dpsql.privacy.ledger import Entry
from dpsql.release import ReleaseStore, Result
from dpsql.sql.options import read_options
from dpsql.surfaces import output


def plan(options: argparse.Namespace) -> None:
    """Show what a batch would release and with which errors; free."""
    with _connect(options) as con:
        planned = _plan(con, options, _batch(options))
        if options.json:
            shown = output.plan_json(planned)
            output.print_json(shown | {"explanation": planned.explain()} if options.explain else shown)
        else:
            print(planned.explain() if options.explain else output.plan_text(planned))


def run(options: argparse.Namespace) -> None:
    """Plan a batch, spend its budget, show the noisy tables."""
    with _connect(options) as con:
        planned = _plan(con, options, _batch(options))
        release = con.run(planned, fresh=options.fresh, errors=options.errors, label=options.label)
        state = con.budget
        if options.json:
            output.print_json(output.release_json(release, state))
            return
        print(output.release_text(release))
        if not options.quiet:
            spent = f"spent {release.guarantee}" if release.cost else "free: these answers were in the ledger already"
            where = f"{con.releases_path}, schema dp" if con.releases_path.exists() else "the ledger alone"
            print(f"\nRelease {release.id}, {spent}; in {where}")
            print(state)


def budget(options: argparse.Namespace) -> None:
    """Show what is left of the budget."""
    with _connect(options) as con:
        state = con.budget
        if options.json:
            kept = {"exists": con.ledger_path.exists(), "path": con.ledger_path}
            spending = {
                "charges": [_entry_json(entry) for entry in state.charges],
                "unreleased": [entry.id for entry in state.unreleased],
            }
            output.print_json({"dataset": con.policy.dataset, **output.budget_json(state), **spending, "ledger": kept})
            return
        print(state)
        if not con.ledger_path.exists():
            print(f"There is no ledger at {con.ledger_path} yet; the first run makes it.")


def releases_list(options: argparse.Namespace) -> None:
    """List every charge of the ledger."""
    with _connect(options) as con:
        entries = con.releases()
        if options.json:
            output.print_json({"releases": [_entry_json(entry) for entry in entries]})
            return
        if not entries:
            print(f"Nothing was released yet; there is no charge in {con.ledger_path}.")
            return
        columns = ("id", "time (UTC)", "label", "guarantee", "purse", "cost", "results")
        types = ("BIGINT", *["VARCHAR"] * 4, "DOUBLE", "VARCHAR")
        print(output.grid(columns, types, [_entry_row(entry) for entry in entries]))


def releases_show(options: argparse.Namespace) -> None:
    """Show one released table."""
    _show(_store(options).sql(f'SELECT * FROM dp."{options.name.replace(chr(34), chr(34) * 2)}"'), options)  # noqa: S608


def releases_rebuild(options: argparse.Namespace) -> None:
    """Make the releases file anew from the ledger."""
    with _connect(options) as con:
        if not con.ledger_path.exists():
            raise LedgerError(f"there is no ledger at {con.ledger_path}; name it with --ledger")
        count = con.rebuild()
        if options.json:
            output.print_json({"rebuilt": count, "releases": con.releases_path})
        elif not options.quiet:
            print(f"{con.releases_path} holds {count} release{'' if count == 1 else 's'}.")


def sql(options: argparse.Namespace) -> None:
    """Run one SELECT over the releases; free."""
    _show(_store(options).sql(_text(options.query, options)), options)


def policy_check(options: argparse.Namespace) -> None:
    """Hold a policy against the tables' types; show what it declares."""
    with connect(options.database, policy=options.policy) as con:
        schemas = con.schemas()
        held = con.policy
        if options.json:
            tables = {name: _table_json(table, schemas.get(name, {})) for name, table in held.tables.items()}
            budget = {name: float(value) for name, value in _budget(held.budget)}
            output.print_json({"ok": True, "dataset": held.dataset, "budget": budget, "tables": tables})
            return
        if not options.quiet:
            figures = ", ".join(f"{name} {show(value)}" for name, value in _budget(held.budget))
            print(f"Data set {held.dataset}, budget {figures}")
            for name, table in held.tables.items():
                print(f"\n{name}: {_table_line(table)}")
                rows = [
                    [column.name, _type_of(column.name, schemas.get(name, {})), *_column_row(column)]
                    for column in table.columns.values()
                ]
                if rows:
                    print(output.grid(("column", "type", "domain", "nulls"), ["VARCHAR"] * 4, rows, indent=2))
            print()
        print("ok")
        for name, table in held.tables.items():
            if table.counts is not None:
                print(f"note: {name} is a table of counts, which this version declares but does not answer")


def policy_init(options: argparse.Namespace) -> None:
    """Print a first policy, made from the schema alone, for the custodian to confirm."""
    sources = {_stem(Path(source)): source for source in options.source}
    if len(sources) < len(options.source):
        options.usage("two of the sources have one file name, and a table is called after it; rename one")
    if options.database is None and not sources:
        options.usage("there is nothing to read a schema from; give --database FILE or --source FILE")
    for path in [*sources.values(), *([options.database] if options.database else [])]:
        if not Path(path).is_file():
            raise OperationalError(f"{path} is not a file; check the path")
    database = None if options.database is None else Path(options.database).absolute()
    dataset = options.dataset or f"{_stem(Path(options.database or options.source[0]))}-1"
    text, tables = draft_policy(database, sources, dataset)
    if options.json:
        output.print_json({"policy": text, "tables": tables})
    else:
        print(text, end="")


def policy_renew(options: argparse.Namespace) -> None:
    """Declare that the policy's data set is a new version of the one that its ledger knows."""
    with connect(policy=options.policy, ledger=options.ledger, anchor=options.anchor) as con:
        con.renew(options.was)
        if options.json:
            output.print_json({"dataset": con.policy.dataset, "was": options.was, **output.budget_json(con.budget)})
        elif not options.quiet:
            print(f"The data set is {output.one_line(con.policy.dataset)} now; what was spent stays spent.")
            print(con.budget)


def policy_import(options: argparse.Namespace) -> None:
    """Print a first policy made from SmartNoise's YAML metadata, for the custodian to complete."""
    text, tables = policy_from_smartnoise(
        _file(options.metadata, "metadata", ""), options.dataset, epsilon=options.epsilon, delta=options.delta
    )
    if options.json:
        output.print_json({"policy": text, "tables": tables})
    else:
        print(text, end="")


def _connect(options: argparse.Namespace) -> Connection:
    return connect(
        options.database,
        policy=options.policy,
        ledger=options.ledger,
        releases=options.releases,
        anchor=options.anchor,
        memory_limit=getattr(options, "memory_limit", None),
        scan_timeout=getattr(options, "scan_timeout", None),
    )


def _store(options: argparse.Namespace) -> ReleaseStore:
    """The releases alone: who queries them needs neither the private tables nor the ledger."""
    if options.releases is not None:
        return ReleaseStore(options.releases)
    if options.policy is None:
        options.usage("there is nothing to query; give --releases FILE, or --policy FILE to find it beside")
    with connect(policy=options.policy) as con:
        return ReleaseStore(con.releases_path)


def _plan(con: Connection, options: argparse.Namespace, text: str) -> Plan:
    if options.epsilon is None and options.rho is None and not any(read_options(text)[1]):
        options.usage("the budget is missing; give --epsilon E, --epsilon E --delta D, or --rho R")
    progress = output.Progress(quiet=options.quiet)
    try:
        return con.plan(
            text,
            options.epsilon,
            options.delta,
            options.rho,
            alpha=options.alpha,
            time_limit=options.time_limit,
            progress=progress,
            objective=options.objective,
        )
    finally:
        progress.done()


def _batch(options: argparse.Namespace) -> str:
    """The SQL text of a batch: --sql, a file, or stdin."""
    return (
        _file(options.file) if options.sql is None and options.file not in (None, "-") else _text(options.file, options)
    )


def _text(argument: str | None, options: argparse.Namespace) -> str:
    """SQL given as ``argument`` ("-" for stdin) or with --sql."""
    if (argument is None) == (options.sql is None):
        options.usage("the SQL is missing or given twice; give an argument, - for stdin, or --sql TEXT")
    if argument != "-":
        return str(options.sql if argument is None else argument)
    failure = ""
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        failure = f"byte {error.start} is not UTF-8; send it as UTF-8"
    raise OperationalError(f"the text on stdin: {failure}")


def _file(path: str, what: str = "batch", otherwise: str = ", or give the SQL itself with --sql") -> str:
    failure = ""
    try:
        return Path(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        failure = f"{error.strerror or 'unreadable'}; check the path{otherwise}"
    except UnicodeDecodeError as error:
        failure = f"byte {error.start} is not UTF-8; save it as UTF-8"
    raise OperationalError(f"{what} file {path}: {failure}")


def _show(result: Result, options: argparse.Namespace) -> None:
    if options.json:
        output.print_json(output.table_json(result))
    else:
        print(output.table_text(result))


def _entry_json(entry: Entry) -> dict[str, Any]:
    return {
        "release": entry.id,
        "time": entry.time,
        "released": entry.released,
        "label": entry.label,
        "guarantee": entry.charge.guarantee,
        "purse": entry.charge.purse,
        "cost": entry.charge.amount,
        "results": list(entry.results),
    }


def _entry_row(entry: Entry) -> list[object]:
    names = entry.results
    shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    if entry.released is None:
        shown = "charged, nothing recorded"
    when = entry.time[:19].replace("T", " ")
    return [entry.id, when, entry.label, entry.charge.guarantee, entry.charge.purse, entry.charge.amount, shown]


def _budget(declared: BudgetPolicy) -> list[tuple[str, Fraction]]:
    """The figures of a budget that are not 0."""
    return [(name, getattr(declared, name)) for name in BUDGET_FIGURES if getattr(declared, name)]


def _table_line(table: TablePolicy) -> str:
    if table.public:
        return "public"
    unit = "one row" if table.unit == "row" else f"all rows of one {table.unit}, at most {table.max_rows_per_unit}"
    parts = [f"privacy unit is {unit}"]
    if table.source is not None:
        parts.append(f"from {table.source}")
    if table.expected_rows is not None:
        parts.append(f"about {table.expected_rows:,} rows are expected")
    return ", ".join(parts)


def _table_json(table: TablePolicy, schema: dict[str, str]) -> dict[str, Any]:
    return {
        "public": table.public,
        "unit": table.unit,
        "source": table.source,
        "columns": [
            {
                "name": column.name,
                "type": _type_of(column.name, schema),
                "values": None if column.values is None else list(column.values),
                "lower": column.lower,
                "upper": column.upper,
                "step": column.step,
                "other": column.other,
                "nulls": column.nulls,
            }
            for column in table.columns.values()
        ],
    }


def _column_row(column: ColumnPolicy) -> list[str]:
    """Domain and NULLs of a column, in words."""
    domain = "conditions only"
    if column.values is not None:
        domain = ", ".join(str(v).lower() if isinstance(v, bool) else str(v) for v in column.values) + (
            ", other" if column.other else ""
        )
    elif column.lower is not None:
        step = "" if column.step is None else f" in steps of {_figure(column.step)}"
        domain = f"{_figure(column.lower)} to {_figure(column.upper)}{step}"
    return [domain, "a group" if column.nulls else "none"]


def _figure(value: object) -> str:
    if not isinstance(value, Fraction) or value.denominator == 1:
        return str(value)
    return f"{float(value):.12g}"


def _type_of(name: str, schema: dict[str, str]) -> str:
    """The type without ENUM members, which may have been made from rows."""
    kind = next((kind for column, kind in schema.items() if column.lower() == name.lower()), "")
    return "ENUM" if kind.startswith("ENUM(") else kind


def _stem(path: Path) -> str:
    name = path.name
    return name[: -len(".csv.gz")] if name.lower().endswith(".csv.gz") else path.stem
