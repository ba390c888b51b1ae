"""From values to TOML text: a policy written back, and a first one for the custodian to confirm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from fractions import Fraction

from dpsql.policy.columns import ColumnPolicy
from dpsql.policy.model import BUDGET_FIGURES, AtMost, BudgetPolicy, TablePolicy
from dpsql.policy.types import Schemas, column_type
from dpsql.policy.values import Bound, Key, dotted, quote, shown

Checks = Mapping[str, Mapping[str, tuple[Bound | int | Decimal, Bound | int | Decimal]]]
"""Table to column to (lower, upper) of a CHECK constraint."""

Enums = Mapping[str, Mapping[str, Sequence[Key]]]
"""Table to column to the members of its ENUM type, in order."""

HEAD = """\
# A policy is the custodian's public declaration. dpsql refuses what it does not declare, and takes
# everything in it for public. Read each line that starts with "# confirm:", correct it from what
# is known without looking at the rows, then remove the "# confirm: " in front of it.
"""

BUDGET = """\
# The whole budget of this data set, for ever: it cannot be raised once a ledger exists.
[budget]
# confirm: epsilon = 1.0
# confirm: delta = 1e-9
"""

UNIT = """\
# Whom one unit of noise protects: one row, or all rows of one value of a column,
# as in unit = "patient_id" with max_rows_per_unit = 5.
# confirm: unit = "row"
"""


def skeleton(
    schemas: Schemas,
    dataset: str,
    *,
    checks: Checks | None = None,
    enums: Enums | None = None,
    sources: Mapping[str, str] | None = None,
) -> str:
    """TOML text of a first policy, from the schema alone.

    ``checks`` holds the bounds of CHECK constraints and ``enums`` the members of ENUM types, both by
    table and column; ``sources`` the files of tables that are no database's. They are written as
    "# confirm:" lines, and so are the budget and the unit: the text is a policy only after a person
    has confirmed them. Minima and maxima of the data are never suggested, since they are private.
    """
    lines = [HEAD, f"dataset = {quote(dataset)}\n", BUDGET]
    for name, columns in schemas.items():
        source = (sources or {}).get(name)
        bounds = (checks or {}).get(name, {})
        members = (enums or {}).get(name, {})
        lines.append(f"[{dotted('tables', name)}]")
        if source is not None:
            lines.append(f"source = {quote(source)}")
        lines += [UNIT, f"[{dotted('tables', name, 'columns')}]"]
        for column, type_text in columns.items():
            lines += _column_lines(column, type_text, bounds.get(column), members.get(column), source)
        lines.append("")
    return "\n".join(lines).rstrip("\n") + "\n"


def _column_lines(
    name: str,
    type_text: str,
    bounds: tuple[Bound | int | Decimal, Bound | int | Decimal] | None,
    members: Sequence[Key] | None,
    source: str | None,
) -> list[str]:
    found = column_type(type_text)
    key = dotted(name)
    if found.kind == "other":
        return [f"# {key} is {found}, a type that dpsql does not work with"]
    csv = source is not None and source.lower().endswith((".csv", ".csv.gz"))
    typed = f', type = "{found}"' if csv else ""
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
    return [f"{key} = {{{' ' + typed[2:] + ' ' if typed else ''}}}  # {found}"]


def policy_text(dataset: str, budget: BudgetPolicy, tables: Mapping[str, TablePolicy], views: Mapping[str, str]) -> str:
    """TOML text of a policy that parses to an equal one."""
    lines = [f"dataset = {quote(dataset)}", "", "[budget]"]
    for name in BUDGET_FIGURES:
        value = getattr(budget, name)
        if value is not None:
            lines.append(f"{name} = {shown(value)}")
    for table in tables.values():
        lines += ["", f"[{dotted('tables', table.name)}]", *_table_lines(table)]
        if table.columns:
            lines.append(f"[{dotted('tables', table.name, 'columns')}]")
            lines += [f"{dotted(c.name)} = {_settings(c)}" for c in table.columns.values()]
    for name, sql in views.items():
        lines += ["", f"[{dotted('views', name)}]", f"sql = {quote(sql)}"]
    return "\n".join(lines) + "\n"


def _table_lines(table: TablePolicy) -> list[str]:
    lines = ["public = true"] if table.public else [f"unit = {quote(table.unit)}"]
    for name in ("source", "counts"):
        value = getattr(table, name)
        if value is not None:
            lines.append(f"{name} = {quote(value)}")
    for name in ("max_rows_per_unit", "expected_rows"):
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


def _bound_text(bound: AtMost) -> str:
    figures = [f"{name} = {getattr(bound, name)}" for name in ("rows", "groups") if getattr(bound, name) is not None]
    return f"{{ {', '.join([*figures, f'per = {quote(bound.per)}'])} }}"


def _settings(column: ColumnPolicy) -> str:
    parts = []
    if column.values is not None:
        parts.append("values = [" + ", ".join(shown(value) for value in column.values) + "]")
    for name in ("lower", "upper", "step"):
        value: Bound | Fraction | None = getattr(column, name)
        if value is not None:
            parts.append(f"{name} = {shown(value)}")
    if column.other:
        parts.append("other = true")
    if not column.nulls:
        parts.append("nulls = false")
    if column.public:
        parts.append("public = true")
    if column.type is not None:
        parts.append(f"type = {quote(column.type)}")
    return "{ " + ", ".join(parts) + " }" if parts else "{}"
