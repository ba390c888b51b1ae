"""From values to TOML text: a policy written back, and a first one for the custodian to confirm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from types import MappingProxyType
from typing import TYPE_CHECKING

from dpsql.errors import one_line
from dpsql.policy.columns import ColumnPolicy
from dpsql.policy.model import BUDGET_FIGURES, BUDGET_RULES, AtMost, BudgetPolicy, TablePolicy
from dpsql.policy.periods import Periods
from dpsql.policy.types import Schemas, column_type
from dpsql.policy.values import Bound, Key, dotted, quote, shown

if TYPE_CHECKING:
    from dpsql.policy.proposals import Proposal

Checks = Mapping[str, Mapping[str, tuple[Bound | int | Decimal, Bound | int | Decimal]]]
"""Table to column to (lower, upper) of a CHECK constraint."""

Enums = Mapping[str, Mapping[str, Sequence[Key]]]
"""Table to column to the members of its ENUM type, in order."""

CONFIRM = "# confirm: "

HEAD = """\
# A policy is the custodian's public declaration. dpsql refuses what it does not declare, and takes
# everything in it for public. Read each line that starts with "# confirm:", correct it from what
# is known without looking at the rows, then remove the "# confirm: " in front of it. A column whose
# line is deleted is closed; {} allows conditions on it; `dpsql policy check` refuses what is undecided.
"""

BUDGET = """\
# The whole budget of this data set, for ever: it cannot be raised once a ledger exists.
[budget]
{0}epsilon = {1}
{0}delta = {2}
"""

UNIT = """\
# Whom one unit of noise protects: all rows of one value of a column that marks a person, of which at most
# max_rows_per_unit count; or "row", one row alone, where every row is somebody else."""
THING = """\
# Whom one unit of noise protects: {} identifies something, and nothing says that it is a person. Name the column
# of those whose rows these are; or "row", if every row is somebody else. If everybody may see the table:
# public = true."""
NO_UNIT = """\
# Whom one unit of noise protects: no column looks like one that marks a person. Confirm "row" only if every
# row is somebody else; name the column if there is one. If everybody may see the table: public = true."""

ROWS = "# expected_rows =   # about how many rows count, if that is public: plans tell by it what the noise hides"


def budget_text(budget: tuple[str, str] | None = None) -> str:
    """The budget of a first policy: the epsilon and delta that a person decided, or figures to be confirmed."""
    return BUDGET.format(*((CONFIRM, "1.0", "1e-9") if budget is None else ("", *budget)))


def skeleton(
    schemas: Schemas,
    dataset: str,
    *,
    checks: Checks | None = None,
    enums: Enums | None = None,
    sources: Mapping[str, str] | None = None,
    required: Mapping[str, Set[str]] | None = None,
    proposals: Mapping[str, Proposal] | None = None,
    budget: tuple[str, str] | None = None,
) -> str:
    """TOML text of a first policy, from the schema alone.

    ``checks`` holds the bounds of CHECK constraints and ``enums`` the members of ENUM types, both by
    table and column; ``sources`` the files of tables that are no database's. They are written as
    "# confirm:" lines, and so are the budget, the unit and every column: the text is a policy only after a person
    has confirmed them, and a column is closed until then. ``required``: the NOT NULL columns of each table.
    ``proposals``: its unit; by default what names of columns tell. ``budget``: the epsilon and delta that a person
    decided, else they are to be confirmed. Minima and maxima of the data are never suggested,
    since they are private.
    """
    from dpsql.policy.proposals import propose

    proposals = propose(schemas, {}, {}) if proposals is None else proposals
    lines = [HEAD, f"dataset = {quote(dataset)}\n", budget_text(budget)]
    for name, columns in schemas.items():
        source = (sources or {}).get(name)
        bounds = (checks or {}).get(name, {})
        members = (enums or {}).get(name, {})
        lines.append(f"[{dotted('tables', name)}]")
        if source is not None:
            lines.append(f"source = {quote(source)}")
        lines += [*_unit_lines(proposals[name]), "", f"[{dotted('tables', name, 'columns')}]"]
        for column, type_text in columns.items():
            never_null = column in (required or {}).get(name, ())
            lines += _column_lines(column, type_text, bounds.get(column), members.get(column), source, never_null)
        lines.append("")
    return "\n".join(lines).rstrip("\n") + "\n"


def _unit_lines(proposal: Proposal) -> list[str]:
    if proposal.public:
        return ["public = true", *_key_lines(proposal)]
    lines = [NO_UNIT if proposal.unit is None else UNIT if proposal.person else THING.format(dotted(proposal.unit))]
    if proposal.others and not proposal.decided:
        lines.append(f"# Columns that identify something, too: {', '.join(dotted(name) for name in proposal.others)}")
    mark = "" if proposal.decided else CONFIRM
    lines.append(f"{mark}unit = {quote(proposal.unit or 'row')}")
    if proposal.most is not None:
        lines.append(f"{mark}max_rows_per_unit = {proposal.most}")
    lines.append(ROWS if proposal.rows is None else f"expected_rows = {proposal.rows}")
    lines += _key_lines(proposal)
    if proposal.references:
        listed = (f"{dotted(name)} = {quote('.'.join(target))}" for name, target in proposal.references.items())
        lines.append(f"{CONFIRM}references = {{ {', '.join(listed)} }}")
    return lines


def _key_lines(proposal: Proposal) -> list[str]:
    return [f"{CONFIRM}key = [{', '.join(quote(name) for name in proposal.key)}]"] if proposal.key else []


def _column_lines(
    name: str,
    type_text: str,
    bounds: tuple[Bound | int | Decimal, Bound | int | Decimal] | None,
    members: Sequence[Key] | None,
    source: str | None,
    never_null: bool,
) -> list[str]:
    found = column_type(type_text)
    key = dotted(name)
    if found.kind == "other":
        return [f"# {key} is {found}, a type that dpsql does not work with"]
    csv = source is not None and source.lower().endswith((".csv", ".csv.gz"))
    typed = (", nulls = false" if never_null else "") + (f', type = "{found}"' if csv else "")
    if members:
        listed = ", ".join(shown(member) for member in members)
        return [
            f"# {key}: an ENUM may have been made from the rows; keep only values that are public knowledge",
            f"# confirm: {key} = {{ values = [{listed}]{typed} }}  # {found}",
        ]
    if bounds is not None:
        low, high = shown(bounds[0]), shown(bounds[1])
        return [
            f"# {key}: the bounds of a CHECK constraint; keep them only if they are public knowledge",
            f"# confirm: {key} = {{ lower = {low}, upper = {high}{typed} }}  # {found}",
        ]
    return [f"{CONFIRM}{key} = {{{' ' + typed[2:] + ' ' if typed else ''}}}  # {found}"]


@dataclass(frozen=True)
class Remark:
    """What is written above a line of a policy; ``confirm``: the line itself is for the custodian to confirm."""

    text: str
    confirm: bool = False


def policy_text(
    dataset: str,
    budget: BudgetPolicy,
    tables: Mapping[str, TablePolicy],
    views: Mapping[str, str],
    places: Mapping[str, str | None],
    remarks: Mapping[str, Remark] = MappingProxyType({}),
) -> str:
    """TOML text of a policy that parses to an equal one; ``remarks`` on its lines, by their full keys."""
    lines = [f"dataset = {quote(dataset)}", *(f"{name} = {quote(at)}" for name, at in places.items() if at is not None)]
    lines += ["", "[budget]"]
    for name in BUDGET_FIGURES:
        value = getattr(budget, name)
        if value is not None:
            lines.append(f"{name} = {shown(value)}")
    lines += [f"{name} = true" for name in BUDGET_RULES if getattr(budget, name)]
    for table in tables.values():
        lines += ["", f"[{dotted('tables', table.name)}]"]
        for line in _table_lines(table):
            lines += _remarked(line, remarks.get(table.key(line.partition(" = ")[0])))
        if table.columns:
            lines.append(f"[{dotted('tables', table.name, 'columns')}]")
        for column in table.columns.values():
            lines += _remarked(column_text(column), remarks.get(column.where))
    for name, sql in views.items():
        lines += ["", f"[{dotted('views', name)}]", f"sql = {quote(sql)}"]
    return "\n".join(lines) + "\n"


def _remarked(line: str, remark: Remark | None) -> list[str]:
    if remark is None:
        return [line]
    return [f"# {one_line(remark.text)}", f"{CONFIRM}{line}" if remark.confirm else line]


def _table_lines(table: TablePolicy) -> list[str]:
    lines = ["public = true"] if table.public else [f"unit = {quote(table.unit)}"]
    for name in ("source", "counts"):
        value = getattr(table, name)
        if value is not None:
            lines.append(f"{name} = {quote(value)}")
    if table.periods is not None:
        lines.append(f"periods = {_periods_text(table.periods)}")
    for name in ("max_rows_per_unit", "max_periods_per_unit", "expected_rows", "minimum"):
        value = getattr(table, name)
        if value is not None:
            lines.append(f"{name} = {value}")
    if table.at_most:
        lines.append(f"at_most = [{', '.join(_bound_text(bound) for bound in table.at_most)}]")
    if table.rows_public:
        lines.append("rows_public = true")
    if table.unique:
        lines.append(f"key = [{', '.join(quote(name) for name in table.unique)}]")
    if table.references:
        listed = (f"{dotted(name)} = {quote('.'.join(target))}" for name, target in table.references.items())
        lines.append(f"references = {{ {', '.join(listed)} }}")
    return lines


def _periods_text(periods: Periods) -> str:
    parts = [f"column = {quote(periods.column)}", f"every = {quote(periods.every)}", f"first = {periods.first}"]
    parts += [f"wait = {periods.wait}"] if periods.wait else []
    return f"{{ {', '.join(parts)} }}"


def _bound_text(bound: AtMost) -> str:
    figures = [f"{name} = {getattr(bound, name)}" for name in ("rows", "groups") if getattr(bound, name) is not None]
    return f"{{ {', '.join([*figures, f'per = {quote(bound.per)}'])} }}"


def column_text(column: ColumnPolicy) -> str:
    """The line that declares a column."""
    return f"{dotted(column.name)} = {_settings(column)}"


def _settings(column: ColumnPolicy) -> str:
    parts = []
    if column.values is not None:
        parts.append("values = [" + ", ".join(shown(value) for value in column.values) + "]")
    for name in ("lower", "upper", "step"):
        value: Bound | Fraction | None = getattr(column, name)
        if value is not None:
            parts.append(f"{name} = {shown(value)}")
    if column.other:
        parts.append("other = true" if column.other_label is None else f"other = {quote(column.other_label)}")
    if not column.nulls:
        parts.append("nulls = false")
    if column.public:
        parts.append("public = true")
    if column.groups is not None:
        parts.append(f"groups = {quote(column.groups)}")
    if column.type is not None:
        parts.append(f"type = {quote(column.type)}")
    return "{ " + ", ".join(parts) + " }" if parts else "{}"
