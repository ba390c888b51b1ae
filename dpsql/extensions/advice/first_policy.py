"""The TOML text of a first policy, from the schema alone, for the custodian to confirm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal

from dpsql.extensions.advice.proposals import Proposal
from dpsql.measure import Declared
from dpsql.policy.text import CONFIRM, HEAD, budget_text
from dpsql.policy.types import column_type
from dpsql.policy.values import Bound, Key, dotted, quote, shown

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

LARGEST = "# The most rows that one unit can have, as far as that is public: what is cut is measured up to there."
ROWS = "# expected_rows =   # about how many rows count, if that is public: plans tell by it what the noise hides"


def skeleton(
    tables: Mapping[str, Declared],
    dataset: str,
    proposals: Mapping[str, Proposal],
    *,
    sources: Mapping[str, str] | None = None,
    budget: tuple[str, str] | None = None,
) -> str:
    """TOML text of a first policy, from what the database declares of its tables alone.

    Bounds of CHECK constraints, members of ENUM types and the files of tables that are no database's (``sources``) are
    written as "# confirm:" lines, and so are the budget, the unit and every column: the text is a policy only after a
    person has confirmed them, and a column is closed until then.
    ``proposals``: the unit of each table. ``budget``: the epsilon and delta that a person
    decided, else they are to be confirmed. Minima and maxima of the data are never suggested,
    since they are private.
    """
    lines = [HEAD, f"dataset = {quote(dataset)}\n", budget_text(budget)]
    for name, table in tables.items():
        source = (sources or {}).get(name)
        lines.append(f"[{dotted('tables', name)}]")
        if source is not None:
            lines.append(f"source = {quote(source)}")
        lines += [*_unit_lines(proposals[name]), "", f"[{dotted('tables', name, 'columns')}]"]
        for column, type_text in table.columns.items():
            bounds, members = table.bounds.get(column), table.members.get(column)
            lines += _column_lines(column, type_text, bounds, members, source, column in table.required)
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
    if proposal.most is not None and proposal.most > 1 and "." not in (proposal.unit or ""):
        lines += [LARGEST, f"{CONFIRM}largest_unit = {100 * proposal.most}"]
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
