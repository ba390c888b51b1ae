"""Expressions and clauses of a SELECT written over the columns of its core's noisy table, as outer SQL."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sqlglot import exp

from dpsql.policy.values import fold
from dpsql.sql.aggregate.aggregates import CONSTANT, kind
from dpsql.sql.aggregate.cores import PRIVATE, CoreDraft
from dpsql.sql.outer.relation import Item, Relation, hole
from dpsql.sql.parse.refusals import not_an_aggregate
from dpsql.sql.parse.statements import refuse
from dpsql.sql.parse.trees import DUCKDB, written
from dpsql.sql.resolve.select_names import unwrapped

Nested = Callable[[exp.Query], Relation]


class OverCore:
    """Writes what is not measured over what is; ``nested`` reads a subquery that stands in an expression.

    ``sources`` are the subqueries read so far, ``bits`` the names of what GROUPING(...) asks for, by its keys.
    """

    def __init__(self, draft: CoreDraft, nested: Nested) -> None:
        self.draft = draft
        self.names = draft.names
        self.nested = nested
        self.sources: list[Relation] = []
        self.bits: dict[tuple[int, ...], str] = {}

    def sql(self, node: exp.Expression) -> str:
        """The expression over the core's columns, as text."""
        return written(self._outer(node), copy=False)  # the tree is made here, for this

    def _outer(self, node: exp.Expression) -> exp.Expression:
        draft = self.draft
        number = draft.key_number(node) if not isinstance(node, exp.Paren) else None
        if number is not None:
            return exp.to_identifier(draft.key_column(number), quoted=True)
        if isinstance(node, exp.Column):
            meant = self.names.alias(node) if not node.table and not self.names.is_column(node) else None
            if meant is None:
                column = draft.rows.find(node)
                raise refuse(
                    f"{column.name} is a raw value, which is private; aggregate it, or add it to GROUP BY",
                    node,
                    code="raw-value",
                )
            return exp.Paren(this=self._outer(meant))
        if isinstance(node, exp.Grouping | exp.GroupingId):
            return exp.to_identifier(self._bits(node), quoted=True)
        if isinstance(node, exp.Query | exp.Subquery):
            return self._subquery(node.this if isinstance(node, exp.Subquery) else node)
        if isinstance(node, exp.Window):
            return self._window(node)
        found = kind(node)
        if found in PRIVATE:
            return exp.to_identifier(draft.number_column(node, found, ""), quoted=True)
        if isinstance(node, exp.AggFunc | exp.Filter | exp.WithinGroup):
            raise not_an_aggregate(node)
        return self._mapped(node)

    def _mapped(self, node: exp.Expression) -> exp.Expression:
        """The node with its parts over the core's columns."""

        def over(value: object) -> object:
            if isinstance(value, list):
                return [over(part) for part in value]
            if isinstance(value, exp.Identifier | exp.DataType | exp.Star):
                return value.copy()
            return self._outer(value) if isinstance(value, exp.Expression) else value

        if isinstance(node, exp.In) and node.args.get("query"):
            query = node.args["query"]
            held = self._subquery(query.this if isinstance(query, exp.Subquery) else query)
            return exp.In(this=self._outer(node.this), query=held)
        return type(node)(**{key: over(value) for key, value in node.args.items()})

    def _window(self, node: exp.Window) -> exp.Expression:
        """A window over groups: its function works on columns of the core, and is no private aggregate."""
        if node.args.get("alias"):
            raise refuse("a named window is not answered; write the window into OVER (...)", node)
        out = self._mapped(exp.Window(**{key: value for key, value in node.args.items() if key != "this"}))
        function = node.this
        if isinstance(function, exp.Filter):
            where = exp.Where(this=self._outer(function.expression.this))
            out.set("this", exp.Filter(this=self._mapped(function.this), expression=where))
        else:
            out.set("this", self._mapped(function))
        return out

    def _subquery(self, query: exp.Expression) -> exp.Expression:
        if not isinstance(query, exp.Query):
            raise refuse("a subquery here is not answered; make it a view of its own", query, code="subquery")
        self.sources.append(self.nested(query))
        # The union of the cores comes first among the sources.
        return exp.to_identifier(hole(len(self.sources)), quoted=False)

    def _bits(self, node: exp.Expression) -> str:
        numbers = []
        for part in node.expressions:
            number = self.draft.key_number(unwrapped(part))
            if number is None:
                raise refuse("GROUPING takes columns of GROUP BY", part)
            numbers.append(number)
        return self.bits.setdefault(tuple(numbers), f"g{len(self.bits)}")

    # -- clauses -------------------------------------------------------------------------------

    def conditions(self) -> str:
        """The conditions of HAVING and QUALIFY."""
        text = ""
        for clause, keyword in (("having", "WHERE"), ("qualify", "QUALIFY")):
            node = self.names.select.args.get(clause)
            if node is not None:
                text += f" {keyword} {self.sql(node.this)}"
        return text

    def order(self, items: Sequence[Item]) -> str:
        """ORDER BY, LIMIT and OFFSET; ``items`` are those of the outer SELECT."""
        select = self.names.select
        order = select.args.get("order")
        text = ""
        if order is not None:
            text = " ORDER BY " + ", ".join(self._ordered(part, items) for part in order.expressions)
        for clause in ("limit", "offset"):
            node = select.args.get(clause)
            if node is not None:
                value = node.expression if isinstance(node, exp.Limit | exp.Offset) else None
                if value is None or kind(value) != CONSTANT:
                    raise refuse(f"{clause.upper()} takes a constant", node)
                text += " " + written(node).strip()  # with PERCENT, where it stands
        return text

    def _ordered(self, part: exp.Expression, items: Sequence[Item]) -> str:
        node = part.this
        if isinstance(node, exp.Var) and fold(node.name) == "all":
            named: list[exp.Expression] = [exp.to_identifier(item.name, quoted=True) for item in items]
        elif isinstance(node, exp.Literal) and not node.is_string:
            meant = self.names.position(node, "ORDER BY")
            at = next(i for i, item in enumerate(self.names.select.expressions) if item is meant)
            named = [exp.to_identifier(items[at].name, quoted=True)]
        elif isinstance(node, exp.Column) and not node.table and self.names.alias(node) is not None:
            named = [exp.to_identifier(node.name, quoted=True)]
        else:
            named = [self._outer(node)]
        options = {key: value for key, value in part.args.items() if key != "this"}
        return ", ".join(exp.Ordered(this=one, **options).sql(DUCKDB) for one in named)
