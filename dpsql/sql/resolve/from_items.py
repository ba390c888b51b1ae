"""What FROM names: rows of tables of the policy, or relations (WITH queries that aggregate, earlier results).

Rows come from tables, from views that the policy names, and from row-wise WITH queries and derived tables over rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from sqlglot import exp

from dpsql.policy import Policy
from dpsql.policy.values import fold
from dpsql.sql.outer.relation import Named, Relation
from dpsql.sql.parse.statements import Hints, hints_of, parse, refuse
from dpsql.sql.resolve import selects
from dpsql.sql.resolve.flatten import Base, Rows, expanded, is_row_wise, rows_of
from dpsql.sql.values.scope import find_table
from dpsql.workload.expr.batch import Table


@dataclass(frozen=True)
class With:
    """A query that WITH names, where it stands: it sees the names before it."""

    name: str
    query: exp.Query
    columns: tuple[str, ...] | None
    scope: Withs


Withs: TypeAlias = Mapping[str, With]
"""The WITH queries that a query sees, by their folded names."""


class FromItems:
    """The items of FROM in one statement; ``reads`` are the earlier results among them.

    ``results`` are the earlier results by their folded names, ``relation`` reads a query that is no rows.
    """

    def __init__(
        self,
        policy: Policy,
        tables: Mapping[str, Table],
        results: Mapping[str, Named],
        relation: Callable[[exp.Expr, Withs, Sequence[str] | None], Relation],
    ) -> None:
        self.policy = policy
        self.tables = tables
        self.results = results
        self.relation = relation
        self.reads: dict[str, None] = {}
        self._found: dict[tuple[int, tuple[str, ...]], tuple[exp.Expr, Rows | Relation]] = {}

    def within(self, tree: exp.Expr, scope: Withs) -> Withs:
        """The scope within a query: what its WITH adds."""
        clause = tree.args.get("with_") or tree.args.get("with")
        if clause is None:
            return scope
        if clause.args.get("recursive"):
            raise refuse(
                "WITH RECURSIVE is not answered; write the steps as queries of their own", tree, code="recursive"
            )
        inside = dict(scope)
        for part in clause.expressions:
            alias = part.args["alias"]
            listed = tuple(column.name for column in alias.args.get("columns") or ()) or None
            inside[fold(alias.name)] = With(alias.name, part.this, listed, dict(inside))
        return inside

    def of(self, select: exp.Select, scope: Withs) -> list[tuple[str, Rows | Relation]]:
        """What the items of a SELECT's FROM are, each with the alias under which it is read."""
        return [self._item(node, scope) for node in selects.sources_of(select)]

    def _item(self, node: exp.Expression, scope: Withs) -> tuple[str, Rows | Relation]:
        alias = node.args.get("alias")
        name = str(node.alias_or_name)
        listed = tuple(column.name for column in (alias.args.get("columns") or ())) if alias is not None else ()
        if isinstance(node, exp.Subquery):
            return name, self._named(node.this, scope, listed or None)
        if not isinstance(node, exp.Table) or not isinstance(node.this, exp.Identifier):
            raise refuse(
                "FROM takes tables of the policy, WITH queries, results and subqueries", node, code="not-a-table"
            )
        plain = not node.args.get("db") and not node.args.get("catalog")
        if plain and fold(node.name) in scope:
            held = scope[fold(node.name)]
            return name, self._named(held.query, held.scope, listed or held.columns)
        view = self.policy.view(node.name) if plain else None
        if view is not None:
            return name, self._view(node, view, listed or None)
        if plain and fold(node.name) in self.results and not selects.declares(self.tables, node.name):
            held_result = self.results[fold(node.name)]
            self.reads[held_result.name] = None
            return name, held_result
        if listed:
            raise refuse("a table alias with column names is not answered; use the columns' own names", node)
        table = find_table(node, self.policy, self.tables)
        return name, Rows((Base(name, node, tuple(table.schema)),))

    def _named(self, query: exp.Expr, scope: Withs, columns: Sequence[str] | None) -> Rows | Relation:
        """A WITH query or derived table: rows where it is row-wise over rows, else a relation; worked out once."""
        key = (id(query), tuple(columns or ()))
        if key in self._found:
            return self._found[key][1]
        inside = self.within(query, scope)
        if isinstance(query, exp.Select) and selects.sources_of(query):
            sources = self.of(query, inside)
            if is_row_wise(query) and all(isinstance(source[1], Rows) for source in sources):
                rows = self._row_wise(query, sources, columns)  # type: ignore[arg-type]
                self._found[key] = query, rows  # with the query, so that no other has its id
                return rows
        found = self.relation(query, scope, columns)
        self._found[key] = query, found
        return found

    def _row_wise(self, query: exp.Select, sources: Sequence[tuple[str, Rows]], columns: Sequence[str] | None) -> Rows:
        if hints_of(query) != Hints():
            raise refuse(
                "a hint is for what is counted or summed, and this SELECT gives rows; write it right after the SELECT "
                "that aggregates them",
                query,
                code="hint",
            )
        whole = expanded(query, [(alias, rows.names) for alias, rows in sources])
        names = [str(item.alias_or_name) or item.sql("duckdb") for item in whole.expressions]
        return rows_of(whole, sources, selects.renamed(names, columns, query))

    def _view(self, node: exp.Table, text: str, columns: Sequence[str] | None) -> Rows:
        """A view that the policy names: row-wise over tables of the policy."""
        (statement,) = parse(text)
        found = self._named(statement.tree, {}, columns)
        if not isinstance(found, Rows):
            raise refuse(
                f"view {node.name} of the policy is not row-wise; it must keep rows apart",
                node,
                code="view-not-row-wise",
            )
        return found
