"""Qualify: stars, COLUMNS(...) and the aliases that an expression of the same SELECT uses, written out.

IN, EXISTS and PIVOT are joins and conditions by then: reading FROM makes these of them (``resolve/from_items.py``).

    >>> stage("qualify", "SELECT age // 10 AS d, COUNT(*) AS n FROM people WHERE d = 3 GROUP BY d")
    SELECT age // 10 AS d, COUNT(*) AS n FROM people WHERE (age // 10) = 3 GROUP BY d
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from sqlglot import exp

from dpsql.sql.outer.relation import Relation
from dpsql.sql.resolve.flatten import Rows
from dpsql.sql.resolve.from_items import Context
from dpsql.sql.resolve.stars import aliases_written, expanded, has_columns
from dpsql.sql.rules.rule import Rule, tree_text, unplaced


@dataclass(frozen=True)
class SelectInProgress:
    """A SELECT over rows of private tables on its way through the rules.

    ``tree`` is what the last rule made; ``select``, which names the columns, has its stars written out and nothing
    else. ``sources`` are FROM's items with their aliases. ``statement`` is the result's name, ``columns`` those that a
    view lists, ``texts`` the items as the user wrote them, where they are known. ``whole``: the result may be the
    core's own table. ``label`` makes a name for noisy tables, ``nested`` reads a subquery in an expression.
    """

    tree: exp.Select
    select: exp.Select
    sources: Sequence[tuple[str, Rows]]
    context: Context
    statement: str
    columns: Sequence[str] | None
    texts: Sequence[str | None] | None
    whole: bool
    label: Callable[[], str]
    nested: Callable[[exp.Query], Relation]

    @property
    def names(self) -> list[str]:
        """The names of all columns that FROM gives."""
        return [name for _, rows in self.sources for name in rows.names]


def _qualified(given: SelectInProgress) -> SelectInProgress:
    select, texts = given.tree, given.texts
    if has_columns(select):
        select, texts = expanded(select, [(alias, rows.names) for alias, rows in given.sources]), None
    tree = aliases_written(select, given.names, row_wise=False)
    if tree is not select:
        given.context.copies.append(tree)
    return given if tree is given.tree else replace(given, tree=tree, select=select, texts=texts)


QUALIFY: Rule[SelectInProgress, SelectInProgress] = Rule(
    "qualify",
    "stars and aliases written out; IN, EXISTS and PIVOT are joins and conditions by then",
    "that each column has its place in the text",
    broken=lambda given: unplaced(given.tree),
    apply=_qualified,
    text=lambda given: tree_text(given.tree),
)
