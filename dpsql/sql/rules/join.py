"""Join: FROM as rows of one private table with at most one row of every other table beside each (``resolve/joins.py``).

>>> stage("join", "SELECT COUNT(*) AS n FROM visits AS v JOIN people AS p ON v.person = p.person WHERE p.age > 17")
rows of visits
each with at most one row of people, where person = people(person).person
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlglot import exp

from dpsql.sql.resolve.joins import RowScope, read_rows
from dpsql.sql.rules.qualify import SelectInProgress
from dpsql.sql.rules.rule import Rule, unplaced
from dpsql.workloads.expr.rows import Join


@dataclass(frozen=True)
class Joined(SelectInProgress):
    """A SELECT with the rows that it is about."""

    rows: RowScope


def _broken(given: SelectInProgress) -> exp.Expr | None:
    tree = given.tree
    read = [tree.args["from_"].this, *(join.this for join in tree.args.get("joins") or [])]
    return next((node for node in read if not isinstance(node, exp.Table)), None) or unplaced(tree)


def _joined(given: SelectInProgress) -> Joined:
    context = given.context
    return Joined(**vars(given), rows=read_rows(given.tree, context.policy, context.tables, context.bases))


def _text(given: Joined) -> str:
    """The rows that are counted, and what is joined to each."""
    source = given.rows.table.source
    if source is None:
        return f"rows of {given.rows.table.name}"
    base = f"rows of {source.table}" if source.of is None else f"one row for each {source.of.unit} of {source.table}"
    return "\n".join([base, *map(_join_text, source.joins)])


def _join_text(join: Join) -> str:
    pairs = dict.fromkeys((*join.pairs, *filter(None, (join.unit,))))
    equal = " AND ".join(f"{column_text(left)} = {column_text(right)}" for left, right in pairs)
    return f"each with at most one row of {join.table}, where {equal}"


def column_text(column: object) -> str:
    """A stored column with the join that has it."""
    source, name = getattr(column, "source", ""), getattr(column, "name", "")
    return f"{source}.{name}" if source else str(name)


JOIN: Rule[SelectInProgress, Joined] = Rule(
    "join",
    "the table whose rows are counted, and the one row that each finds in a joined table",
    "that FROM and joins name tables alone, and that each column has its place or stands for one that has",
    broken=_broken,
    apply=_joined,
    text=_text,
)
