"""From values to TOML text: a policy written back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType

from dpsql.errors import one_line
from dpsql.policy.at_most import AtMost
from dpsql.policy.columns import ColumnPolicy
from dpsql.policy.model import BUDGET_FIGURES, BUDGET_RULES, BudgetPolicy, TablePolicy
from dpsql.policy.periods import Periods
from dpsql.policy.values import Bound, dotted, quote, shown

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
LOSSES = """\
# The first run also spends this epsilon to measure what max_rows_per_unit cuts, which every result then says.
losses = 0.02
"""


_MANY_LOSSES = Fraction(1, 5)  # of a smaller budget the losses are left out


def budget_text(budget: tuple[str, str] | None = None, *, losses: bool = True) -> str:
    """The budget of a first policy: the epsilon and delta that a person decided, or figures to be confirmed; and
    ``losses``, but of a small budget.
    """
    whole = BUDGET.format(*((CONFIRM, "1.0", "1e-9") if budget is None else ("", *budget)))
    return whole + LOSSES * (losses and (budget is None or Fraction(budget[0]) >= _MANY_LOSSES))


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
    for name in ("max_rows_per_unit", "max_periods_per_unit", "largest_unit", "expected_rows", "minimum"):
        value = getattr(table, name)
        if value is not None:
            lines.append(f"{name} = {value}")
    if table.at_most:
        lines.append(f"at_most = [{', '.join(bound_text(bound) for bound in table.at_most)}]")
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


def bound_text(bound: AtMost) -> str:
    """What declares a bound, as an item of ``at_most``."""
    settings = bound.settings
    ordered = sorted(settings, key=lambda name: name == "per")
    return f"{{ {', '.join(f'{name} = {shown(settings[name])}' for name in ordered)} }}"


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
