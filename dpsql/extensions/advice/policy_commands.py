"""What ``dpsql policy`` does: check a policy, draft a first one, import one, declare a new version of the data."""

from __future__ import annotations

import argparse
import glob
import logging
import sys
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import dpsql
from dpsql.errors import Error, OperationalError, PolicyError, listed, nearest, one_line
from dpsql.extensions.advice.drafting import draft_policy, policy_advice
from dpsql.extensions.advice.policy_advice import undecided
from dpsql.extensions.advice.proposals import Proposal
from dpsql.extensions.discovery.coverage import Checks, Coverage, opened
from dpsql.policy import BUDGET_FIGURES, BudgetPolicy, ColumnPolicy, TablePolicy
from dpsql.privacy.amounts import exact
from dpsql.privacy.amounts import show as show_figure
from dpsql.running.found_domains import FoundDomain
from dpsql.running.losses import histograms_of
from dpsql.surfaces import inputs, output

log = logging.getLogger("dpsql")

_BUDGET = ("epsilon", "delta", "rho")
_MOST_VALUES, _LONGEST_VALUE = 100, 200  # of a domain that is shown in words


def check(options: argparse.Namespace) -> None:
    """Hold a policy against the tables' types; show what it declares, and what its author should look at again."""
    try:
        still_open = undecided(Path(options.policy).read_text(encoding="utf-8", errors="replace"))
    except OSError:
        still_open = {}  # connect says what is wrong with the file
    wrong: tuple[str, ...] = ()
    try:
        con = dpsql.connect(options.database, policy=options.policy, ledger=options.ledger, anchor=options.anchor)
        schemas = con.schemas()
    except PolicyError as error:
        named = {key for keys in still_open.values() for key in keys}
        named |= {key.rpartition(".")[0] for key in named}
        missing = tuple(f"{key} is missing" for key in named)
        wrong = tuple(said for said in error.errors if not said.startswith(missing))
    if wrong or still_open:
        raise PolicyError(*wrong, *still_open)
    with con:
        if any(getattr(options, name) is not None for name in _BUDGET):
            _cover(con, options)
            return
        if options.dry_run or options.fresh or options.losses:
            options.usage(
                "--losses, --dry-run and --fresh are for counts of the rows that domains miss and limits cut, and of "
                "broken keys; give --epsilon, too"
            )
        held = con.policy
        inputs.warn_of_ledger(con)
        advised = policy_advice(held, schemas, options.database)
        for line in advised:
            log.warning("%s", line)
        if options.json:
            tables = {name: _table_json(table, schemas.get(name, {})) for name, table in held.tables.items()}
            budget = {name: float(value) for name, value in _budget(held.budget)}
            found = {"ok": True, "dataset": held.dataset, "budget": budget, "tables": tables, "warnings": advised}
            output.print_json(found)
            return
        if not options.quiet:
            figures = ", ".join(f"{name} {show_figure(value)}" for name, value in _budget(held.budget))
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


def _cover(con: dpsql.Connection, options: argparse.Namespace) -> None:
    """Say how many rows each domain misses and what breaks keys and references, counted privately, and what limits cut;
    the last alone with --losses; or at which cost.
    """
    budget = [getattr(options, name) for name in _BUDGET]
    schemas, limited = con.schemas(), histograms_of(con.policy)
    if not options.losses:
        for refused in Checks.of(opened(con.policy, schemas), schemas).refused:
            log.warning("%s", refused)
    if options.dry_run:
        plans = [] if options.losses else [con.plan_coverage(*budget)]
        losses = [con.plan_losses(*budget)] if limited or options.losses else []
        if options.json:
            of_losses = {"losses": output.plan_json(losses[0])} if losses else {}
            output.print_json({**(output.plan_json(plans[0]) if plans else {}), **of_losses})
        else:
            output.show("\n\n".join(map(str, [*plans, *losses])))
        return
    found = None if options.losses else con.coverage(*budget, fresh=options.fresh)
    if limited or options.losses:
        con._buy_losses(*budget, fresh=options.fresh, label="")
    cuts = [con.losses(name).cut for name in limited]
    if options.json:
        counted: dict[str, object] = {}
        if found is not None:
            counted = {"id": found.id, "guarantee": found.guarantee, "cost": found.cost}
            counted |= {name: [vars(one) for one in getattr(found, name)] for name in ("missed", "broken")}
        of_limits = {"cut": [vars(one) for one in cuts]} if limited else {}
        output.print_json({**counted, **of_limits, "budget": output.budget_json(con.budget)})
        return
    print("\n\n".join([*(_grids(found) if found else []), *(output.prose(str(cut)) for cut in cuts)]))
    if not options.quiet:
        releases = [f"release {found.id}, {found.guarantee}"] if found else []
        releases += [f"what limits cut: release {cuts[0].release}"] if cuts else []
        print(f"\n{'; '.join(releases)}\n{con.budget}")


def _grids(coverage: Coverage) -> list[str]:
    """What domains miss, and what breaks keys and references, as tables."""
    outside = [[f"{m.table}.{m.column}", *_counted(m.rows, m.stderr, m.low, m.high)] for m in coverage.missed]
    broken = [
        [
            f"{one.table} ({', '.join(one.columns)})" + (f" to {one.target}" if one.target else ""),
            "rows" if one.unit == "row" else f"units ({one.unit})",
            *_counted(one.number, one.stderr, one.low, one.high),
        ]
        for one in coverage.broken
    ]
    errors = ("std error", "low", "high")
    return [
        output.grid((*heads, *errors), [*["VARCHAR"] * (len(heads) - 1), *["DOUBLE"] * 4], rows)
        for heads, rows in ((("domain", "rows outside"), outside), (("key or reference", "counted", "broken"), broken))
        if rows
    ]


def _counted(*numbers: float | None) -> list[str]:
    return ["" if number is None else f"{round(number):,}" for number in numbers]


def show(options: argparse.Namespace) -> None:
    """Show what is public by now: the policy with the domains that were found, each with its release."""
    with dpsql.connect(options.database, policy=options.policy, ledger=options.ledger, anchor=options.anchor) as con:
        held, schemas = con.policy, con.schemas()
        found = {(domain.table, domain.column.name): domain for domain in con.found_domains}
        if options.toml and not options.json:
            print(held.to_toml(), end="")
            return
        if options.json:
            listed = [
                {"table": table, "column": column, "release": domain.release, "dataset": domain.dataset}
                for (table, column), domain in found.items()
            ]
            tables = {name: _table_json(table, schemas.get(name, {})) for name, table in held.tables.items()}
            output.print_json({"dataset": held.dataset, "policy": held.to_toml(), "tables": tables, "found": listed})
            return
        figures = ", ".join(f"{name} {show_figure(value)}" for name, value in _budget(held.budget))
        print(f"Data set {held.dataset}, budget {figures}")
        for name, table in held.tables.items():
            print(f"\n{name}: {_table_line(table)}")
            rows = [
                [
                    *(column.name, _type_of(column.name, schemas.get(name, {})), *_column_row(column)),
                    _origin(found.get((name, column.name)), column),
                ]
                for column in table.columns.values()
            ]
            if rows:
                heads = ("column", "type", "domain", "nulls", "from")
                print(output.grid(heads, ["VARCHAR"] * len(heads), rows, indent=2))
        if found:
            print(f"\nAs a policy file: dpsql policy show {options.policy} --toml")


def _origin(domain: FoundDomain | None, column: ColumnPolicy) -> str:
    """Where a column's domain comes from."""
    if domain is not None:
        return f"release {domain.release} on {domain.dataset}"
    return "" if column.values is None and column.lower is None else "the policy"


def init(options: argparse.Namespace) -> None:
    """Print a first policy for the custodian to confirm, made from the schema alone, or found privately."""
    if options.discover:
        _survey(options)
        return
    if any(getattr(options, name) is not None for name in _BUDGET) or options.dry_run:
        options.usage("a budget and --dry-run are for --discover, which spends; a first policy is made without")
    sources: dict[str, str] = {}
    for given in options.source:
        name, place = _named_source(given)
        if name in sources:
            options.usage(f"two of the sources would be table {name}; name one of them, as in visits={place}")
        sources[name] = place
    if options.database is None and not sources:
        options.usage("there is nothing to read a schema from; give --database FILE or --source PLACE")
    for place in sources.values():
        if _is_pattern(place) and not glob.glob(place, recursive=True):
            raise OperationalError(f"no file matches {place}; check the pattern")
        if not _is_pattern(place) and not Path(place).exists():
            raise OperationalError(f"{place} is not a file or folder; check the path")
    if options.database is not None and not Path(options.database).is_file():
        raise OperationalError(f"{options.database} is not a file; check the path")
    database = None if options.database is None else Path(options.database).absolute()
    first = _stem(Path(options.database)) if options.database is not None else next(iter(sources))
    asked = sys.stdin.isatty() and sys.stderr.isatty() and not (options.json or options.quiet)
    chosen = (_ask_table, _ask_budget) if asked else ()
    text, tables = draft_policy(database, sources, options.dataset or f"{first}-1", *chosen)
    if options.json:
        output.print_json({"policy": text, "tables": tables})
    else:
        print(text, end="")


def _survey(options: argparse.Namespace) -> None:
    """Print the whole policy that a survey finds, or what that would cost."""
    if options.source or options.dataset is not None or options.policy is None:
        options.usage(
            "--discover needs a policy whose unit and budget are decided, which it charges: dpsql policy init "
            "--source PLACE > FILE, confirm them there, then dpsql policy init --discover --policy FILE --epsilon 0.5"
        )
    budget = [getattr(options, name) for name in _BUDGET]
    with dpsql.connect(options.database, policy=options.policy, ledger=options.ledger, anchor=options.anchor) as con:
        if options.dry_run:
            plan = con.plan_survey(*budget, max_groups=options.max_groups or 1)
            if options.json:
                parts = [{"table": p.table, "column": p.column, "stderr": p.stderr, "said": str(p)} for p in plan.parts]
                spent = {"guarantee": plan.charge.guarantee, "purse": plan.charge.account, "cost": plan.charge.amount}
                output.print_json({**spent, "parts": parts, "skipped": plan.skipped})
            else:
                print(plan)
            return
        found = con.survey(*budget, max_groups=options.max_groups or 1, fresh=options.fresh)
        if options.json:
            spent = {"id": found.id, "guarantee": found.guarantee, "cost": found.cost}
            output.print_json({"policy": found.to_toml(), **spent, "budget": output.budget_json(con.budget)})
            return
        print(found.to_toml(), end="")
        if not options.quiet:
            print(f"release {found.id}: {found.guarantee}\n{con.budget}", file=sys.stderr)


def _ask_table(table: str, columns: Mapping[str, str], proposed: Proposal) -> Proposal:
    """What a person at the terminal decides of a table: its unit, and about how many rows it has."""
    chosen = _ask_unit(table, columns, proposed)
    while not chosen.public:
        rows = _answer("  about how many rows everybody may know that it has, for plans alone (Enter: leave out): ")
        if not rows:
            break
        if (number := _whole(rows)) is not None:
            return replace(chosen, rows=number)
        print("  write a whole number such as 20000", file=sys.stderr)
    return chosen


def _whole(text: str) -> int | None:
    """A positive whole number that somebody wrote; None for anything else."""
    return int(text) if text.isascii() and text.isdigit() and 1 <= int(text[:16]) <= 10**15 else None


def _ask_unit(table: str, columns: Mapping[str, str], proposed: Proposal) -> Proposal:
    """The unit that a person at the terminal decides; what was proposed, to be confirmed in the file, if they do not.

    Questions stand on stderr, since stdout is the policy.
    """
    likely = [proposed.unit] if proposed.unit else []
    print(
        f"\n{one_line(table)}: who is protected? A column that marks a person, row if every row is somebody else, or "
        "public if everybody may see the table.",
        file=sys.stderr,
    )
    ids = ", ".join(map(one_line, [*likely, *proposed.others])) or "none of its columns looks like one"
    print(f"  Columns that identify something: {ids}", file=sys.stderr)
    while True:
        unit = _answer("  unit (Enter: decide in the file): ")
        named = next((column for column in columns if column.lower() == unit.lower()), unit)
        if not unit:
            return proposed
        if unit in ("row", "public"):
            return replace(proposed, unit=None, most=None, references={}, public=unit == "public", decided=True)
        if named in columns or unit == proposed.unit:
            break
        print(f"  {one_line(table)} has no column {one_line(unit)}; {nearest(unit, columns)}", file=sys.stderr)
    linked = proposed.references if named == proposed.unit else {}
    while True:
        most = _answer(f"  at most how many rows of one {one_line(named)} count (Enter: decide in the file): ")
        if not most:
            return replace(proposed, unit=named, most=proposed.most or 5, references=linked, person=True)
        if (number := _whole(most)) is not None:
            return replace(proposed, unit=named, most=number, references=linked, person=True, decided=True)
        print("  write a whole number such as 5", file=sys.stderr)


def _ask_budget() -> tuple[str, str] | None:
    """Epsilon and delta of the whole budget that a person at the terminal decides, None where they leave it open."""
    print("\nThe budget: how much may all releases together show of one unit, for ever?", file=sys.stderr)
    while epsilon := _answer("  epsilon, such as 1; above 10 promises little (Enter: decide in the file): "):
        delta = _answer("  delta, far below 1 over the number of units (Enter: 1e-9): ") or "1e-9"
        try:
            held = BudgetPolicy(exact("epsilon", epsilon), exact("delta", delta))
        except Error as error:
            print(f"  {one_line(str(error))}", file=sys.stderr)
            continue
        return show_figure(held.epsilon or Fraction(0)), show_figure(held.delta or Fraction(0))
    return None


def _answer(question: str) -> str:
    print(question, end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip()


def _named_source(given: str) -> tuple[str, str]:
    """(table, place) of NAME=PLACE, or of a place, after which the table is called: file, folder, or what is fixed.

    A folder is written with a slash at its end, as a policy knows it.
    """
    name, sign, place = given.partition("=")
    # a=b/c.parquet may be a path of its own; a name has no slash, and a path that is there is one
    if not sign or not name or Path(given).exists() or "/" in name:
        name, place = "", given
    if not _is_pattern(place) and Path(place).is_dir() and not place.endswith("/"):
        place += "/"
    if name:
        return name, place
    parts = [part for part in Path(place).parts if not _is_pattern(part)]
    last = Path(place).name
    if _is_pattern(last):  # visits_*.csv is visits, flights/*/*.parquet is flights
        fixed = last[: min(last.index(char) for char in "*?[" if char in last)].rstrip("_-. ")
        return fixed or (_stem(Path(parts[-1])) if parts and parts[-1] not in ("/", "..") else "data"), place
    return _stem(Path(place)) or "data", place


def _is_pattern(place: str) -> bool:
    return any(char in place for char in "*?[")


def renew(options: argparse.Namespace) -> None:
    """Declare that the policy's data set is a new version of the one that its ledger knows."""
    with dpsql.connect(options.database, policy=options.policy, ledger=options.ledger, anchor=options.anchor) as con:
        con.renew(options.was)
        if options.json:
            output.print_json({"dataset": con.policy.dataset, "was": options.was, **output.budget_json(con.budget)})
        elif not options.quiet:
            print(f"The data set is {one_line(con.policy.dataset)} now; what was spent stays spent.")
            print(con.budget)


def confirm(options: argparse.Namespace) -> None:
    """Say that the tables are as they were though files were written to, and sound though a scan failed."""
    with dpsql.connect(options.database, policy=options.policy, ledger=options.ledger, anchor=options.anchor) as con:
        changed = con.changed_files()
        con.confirm_files()
        if options.json:
            output.print_json({"dataset": con.policy.dataset, "confirmed": list(changed)})
        elif not options.quiet:
            which = listed([f"table {name}" if name else "the database" for name in changed])
            done = f"The files of {which} count as those of" if changed else "No file was written to under"
            print(f"{done} {one_line(con.policy.dataset)}.")


def _budget(declared: BudgetPolicy) -> list[tuple[str, Fraction]]:
    """The figures of a budget that are not 0."""
    return [(name, getattr(declared, name)) for name in BUDGET_FIGURES if getattr(declared, name)]


def _table_line(table: TablePolicy) -> str:
    if table.public:
        return "public"
    unit = "one row" if table.unit == "row" else f"all rows of one {table.unit}, at most {table.max_rows_per_unit}"
    parts = [f"privacy unit is {unit}", *(f"at most {bound}" for bound in table.at_most)]
    if table.periods is not None:
        most = "" if table.max_periods_per_unit is None else f", units in up to {table.max_periods_per_unit} of them"
        parts.append(f"released by periods, {table.periods}{most}")
    if table.source is not None:
        parts.append(f"from {table.source}")
    if table.expected_rows is not None:
        parts.append(f"about {table.expected_rows:,} rows are expected")
    if table.minimum is not None:
        parts.append(f"counts that may lie under {table.minimum:,} are not shown")
    return ", ".join(parts)


def _table_json(table: TablePolicy, schema: dict[str, str]) -> dict[str, object]:
    return {
        "public": table.public,
        "unit": table.unit,
        "max_rows_per_unit": table.max_rows_per_unit,
        "minimum": table.minimum,
        "at_most": [{**dict.fromkeys(("per", "rows", "groups")), **bound.settings} for bound in table.at_most],
        "periods": None if table.periods is None else {**table.periods.rule, "wait": table.periods.wait},
        "max_periods_per_unit": table.max_periods_per_unit,
        "source": table.source,
        "columns": [
            {
                "name": column.name,
                "type": _type_of(column.name, schema),
                "values": None if column.values is None else list(column.values),
                "lower": column.lower,
                "upper": column.upper,
                "step": column.step,
                "other": column.other if column.other_label is None else column.other_label,
                "nulls": column.nulls,
            }
            for column in table.columns.values()
        ],
    }


def _column_row(column: ColumnPolicy) -> list[str]:
    """Domain and NULLs of a column, in words."""
    domain = "conditions only"
    if column.values is not None:
        values = [_short(str(v).lower() if isinstance(v, bool) else str(v)) for v in column.values[:_MOST_VALUES]]
        more = len(column.values) - len(values)
        rest = ([f"{more:,} more"] if more else []) + ([column.other_label or "other"] if column.other else [])
        domain = ", ".join([*values, *rest])
    elif column.lower is not None:
        step = "" if column.step is None else f" in steps of {_figure(column.step)}"
        domain = f"{_figure(column.lower)} to {_figure(column.upper)}{step}"
    return [domain, "a group" if column.nulls else "none"]


def _short(text: str) -> str:
    """A value in one line: it may hold anything, and be as long as anything."""
    cut = one_line(text[:_LONGEST_VALUE])
    return f"{cut}..." if len(text) > _LONGEST_VALUE else cut


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
