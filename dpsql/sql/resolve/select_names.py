"""What an expression of a SELECT stands for: a column of the rows, an item by its alias, or an item by its position."""

from __future__ import annotations

from sqlglot import exp

from dpsql.common.quoting import identifier
from dpsql.policy.values import fold
from dpsql.sql.parse.statements import refuse
from dpsql.sql.parse.trees import written
from dpsql.sql.resolve.joins import RowScope


class SelectNames:
    """The names of one SELECT over private rows: columns of ``rows`` come before aliases."""

    def __init__(self, select: exp.Select, rows: RowScope) -> None:
        self.select = select
        self.rows = rows
        self._columns = frozenset(fold(name) for name in rows.schema)
        self._aliases: dict[str, exp.Expression] = {}
        for item in select.expressions:
            if isinstance(item, exp.Alias):
                self._aliases.setdefault(fold(item.alias), unwrapped(item))

    def is_column(self, node: exp.Column) -> bool:
        """Whether some table of the rows has a column of that name, or the table that it names must have it."""
        return bool(node.table) or fold(node.name) in self._columns

    def alias(self, node: exp.Column) -> exp.Expression | None:
        """The item whose alias the name is."""
        return self._aliases.get(fold(node.name))

    def canonical(self, node: exp.Expression) -> str:
        """The expression as text, its columns by the names under which they are known: equal for equal ones."""
        while isinstance(node, exp.Paren):
            node = node.this
        if isinstance(node, exp.Column):
            return identifier(self.rows.find(node).name)
        out = node.copy()
        for column in list(out.find_all(exp.Column)):
            column.replace(exp.to_identifier(self.rows.find(column).name, quoted=True))
        return written(out, copy=False)

    def meant(self, node: exp.Expression) -> exp.Expression:
        """What an item of GROUP BY stands for: itself, a position in SELECT, or an alias."""
        while isinstance(node, exp.Paren):
            node = node.this
        if isinstance(node, exp.Literal) and not node.is_string and str(node.this).isdecimal():
            return unwrapped(self.position(node, "GROUP BY"))
        if isinstance(node, exp.Column) and not node.table and not self.is_column(node):
            return self.alias(node) or node
        return node

    def position(self, node: exp.Expression, clause: str) -> exp.Expression:
        """The item at a position, from 1; SQLError where there is none."""
        position = str(node.this).lstrip("0")[:9]
        if not position.isdecimal() or not 1 <= int(position) <= len(self.select.expressions):
            raise refuse(f"{clause} {str(node.this)[:20]} is not a position in SELECT", node)
        found: exp.Expression = self.select.expressions[int(position) - 1]
        return found


def unwrapped(item: exp.Expression) -> exp.Expression:
    """An item without its alias and parentheses."""
    node = item.this if isinstance(item, exp.Alias) else item
    while isinstance(node, exp.Paren):
        node = node.this
    return node
