"""What FROM names: rows of tables of the policy, or relations (WITH queries that aggregate, earlier results).

Rows come from tables, from views that the policy names, and from WITH queries and derived tables over rows that are
row-wise or group by the privacy unit.

Sets of units are UNION, INTERSECT and EXCEPT of columns that hold the unit, as conditions on the rows of one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from sqlglot import exp

from dpsql.errors import SQLError
from dpsql.policy import Policy
from dpsql.policy.values import fold
from dpsql.sql.outer.relation import Named, Relation
from dpsql.sql.parse.quoted import reading
from dpsql.sql.parse.statements import Hints, Statement, hints_of, refuse, without_place
from dpsql.sql.resolve import selects
from dpsql.sql.resolve.flatten import Base, Rows, aggregates, flattened, is_row_wise, rows_of
from dpsql.sql.resolve.joins import read_rows
from dpsql.sql.resolve.pivots import in_from
from dpsql.sql.resolve.relations import whole
from dpsql.sql.resolve.semi_joins import Catalog, grouped_first, with_joins
from dpsql.sql.resolve.stars import aliases_written, expanded
from dpsql.sql.resolve.unit_windows import windows_in, within_units
from dpsql.sql.values.computed import Computed
from dpsql.sql.values.scope import find_table
from dpsql.workloads.expr.batch import Table


@dataclass(frozen=True)
class With:
    """A query that WITH names, where it stands: it sees the names before it."""

    name: str
    query: exp.Query
    columns: tuple[str, ...] | None
    scope: Withs


Withs: TypeAlias = Mapping[str, With]
"""The WITH queries that a query sees, by their folded names."""


@dataclass(frozen=True)
class Context:
    """What the statements of a batch share: the policy, its tables and the rows of units that statements read.

    ``results`` are the earlier results by their folded names, ``bases`` the tables that statements read alone.
    ``computed`` keeps, by table, what is computed for a row, ``of_units`` the same for the rows that rows of units are
    made of. ``copies`` are trees that are freed in the end.
    """

    policy: Policy
    tables: dict[str, Table]
    results: dict[str, Named] = field(default_factory=dict)
    bases: dict[str, Table] = field(default_factory=dict)
    computed: dict[str, Computed] = field(default_factory=dict)
    of_units: dict[str, Computed] = field(default_factory=dict)
    copies: list[exp.Select] = field(default_factory=list)

    def base_tables(self, rows: Rows) -> list[Table]:
        """The tables that rows are of."""
        return [find_table(base.node, self.policy, self.tables) for base in rows.bases]

    def is_public(self, rows: Rows) -> bool:
        """Whether rows are of public tables alone."""
        return all(table.policy.public for table in self.base_tables(rows))


class FromItems:
    """The items of FROM in one statement; ``reads`` are the earlier results among them.

    ``relation`` reads a query that is no rows, ``parse`` the text of a view.
    """

    def __init__(
        self,
        context: Context,
        relation: Callable[[exp.Expr, Withs, Sequence[str] | None], Relation],
        parse: Callable[[str], Sequence[Statement]],
    ) -> None:
        self.context = context
        self.policy, self.tables, self.results = context.policy, context.tables, context.results
        self.relation = relation
        self.parse = parse
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

    def read(self, select: exp.Select, scope: Withs) -> tuple[exp.Select, list[tuple[str, Rows | Relation]]]:
        """A SELECT with its IN and EXISTS over rows among its joins, and what its FROM reads."""
        sources = self.of(select, scope)
        if any(not isinstance(source, Rows) for _, source in sources):
            return select, sources

        def inside(query: exp.Select) -> list[tuple[str, Rows]] | None:
            found = self.of(query, self.within(query, scope)) if selects.sources_of(query) else []
            rows = [(alias, source) for alias, source in found if isinstance(source, Rows)]
            return rows if rows and len(rows) == len(found) else None

        def by_unit(query: exp.Select) -> bool:
            found, below = self.read(query, self.within(query, scope))
            try:
                return self._of_units(found, below, None) is not None  # type: ignore[arg-type]
            except SQLError as error:
                if error.code != "public-table":
                    raise
            raise refuse(
                "IN and EXISTS over several public tables are not answered; these hold no secret, so ask DuckDB for "
                "the values and write them as a list",
                query,
                code="subquery",
            )

        joined = with_joins(select, Catalog(inside, by_unit, self._is_date, self._public_key))
        if joined is select and len(sources) == 2:
            joined = grouped_first(select, sources, self._key(sources[0][1]))  # type: ignore[arg-type]
        return (select, sources) if joined is select else (joined, self.of(joined, scope))

    def _is_date(self, sources: Sequence[tuple[str, Rows]], column: exp.Column) -> bool:
        """Whether a column of ``sources`` is one of a table, and a DATE."""
        rows = [rows for alias, rows in sources if not column.table or fold(alias) == fold(column.table)]
        if any(each.columns is not None for each in rows):
            return False
        tables = [table for each in rows for table in self.context.base_tables(each)]
        kinds = [kind for table in tables for name, kind in table.schema.items() if fold(name) == fold(column.name)]
        return kinds == ["DATE"]

    def _key(self, rows: Rows) -> tuple[str, ...]:
        """The declared key of rows that are those of one private table."""
        if len(rows.bases) != 1 or rows.columns is not None:
            return ()
        (table,) = self.context.base_tables(rows)
        return () if table.policy.public else table.policy.unique

    def _public_key(self, rows: Rows) -> tuple[str, ...] | None:
        """The declared key of the public table that rows are of, none left out of it or some; None of others."""
        if len(rows.bases) != 1:
            return None
        (table,) = self.context.base_tables(rows)
        return table.policy.unique if table.policy.public else None

    def _item(self, node: exp.Expression, scope: Withs) -> tuple[str, Rows | Relation]:
        alias = node.args.get("alias")
        name = str(node.alias_or_name)
        listed = tuple(column.name for column in (alias.args.get("columns") or ())) if alias is not None else ()
        pivot = in_from(node)
        if pivot is not None:
            return self._pivot(node, pivot, scope)
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
        view = self.policy.view(node.name) if plain and self.policy.views else None
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

    def _pivot(self, node: exp.Expression, pivot: exp.Pivot, scope: Withs) -> tuple[str, Relation]:
        """FROM t PIVOT (...), under the alias that follows it or the table's own; worked out once."""
        alias = node.args["pivots"][0].args.get("alias")
        name = str(alias.name) if alias is not None else str(node.alias_or_name)
        held = self._found.get((id(node), ()))
        found = self.relation(pivot, scope, None) if held is None else held[1]
        self._found[id(node), ()] = node, found
        return name, found  # type: ignore[return-value]

    def _named(self, query: exp.Expr, scope: Withs, columns: Sequence[str] | None) -> Rows | Relation:
        """A WITH query or derived table: rows where it is row-wise over rows, else a relation; worked out once."""
        key = (id(query), tuple(columns or ()))
        if key in self._found:
            return self._found[key][1]
        inside = self.within(query, scope)
        operation = query.unnest()
        if isinstance(operation, exp.SetOperation):
            made = combined_units(operation)
            if made is not None and all(self._are_units(side, inside) for side in made[1]):
                combined = self._named(made[0], scope, columns)
                self._found[key] = query, combined
                return combined
        if isinstance(query, exp.Select) and selects.sources_of(query):
            select, sources = self.read(query, inside)
            if windows_in(select) and all(isinstance(source[1], Rows) for source in sources):
                select, sources = self._with_windows(select, sources)  # type: ignore[arg-type]
            if is_row_wise(select) and all(isinstance(source[1], Rows) for source in sources):
                rows = self._row_wise(select, sources, columns)  # type: ignore[arg-type]
                self._found[key] = query, rows  # with the query, so that no other has its id
                return rows
            if select.args.get("distinct") and not select.args.get("group"):
                select = _grouped_by_all(select)
            if select.args.get("group") and all(isinstance(source[1], Rows) for source in sources):
                units = self._of_units(select, sources, columns, several=True)  # type: ignore[arg-type]
                if units is not None:
                    self._found[key] = query, units
                    return units
        found = self.relation(query, scope, columns)
        self._found[key] = query, found
        return found

    def _with_windows(
        self, select: exp.Select, sources: list[tuple[str, Rows]]
    ) -> tuple[exp.Select, list[tuple[str, Rows | Relation]]]:
        """A SELECT over rows with the windows that keep to one unit as columns of its table; else as it is."""
        whole = expanded(select, [(alias, rows.names) for alias, rows in sources])
        flat = flattened(whole, sources)
        if flat.args.get("joins"):
            raise refuse(
                "a window over joined rows is not answered; write it in a subquery over its own table, and join that",
                windows_in(select)[0],
                code="row-window",
            )
        rows = read_rows(flat, self.policy, self.tables)
        computed = Computed(rows.table)
        made = within_units(flat, rows, computed)
        if made is None:
            return select, list(sources)
        table, out, read = made
        self.tables[table.name] = table
        self.context.of_units[table.name] = computed
        return out, [(read.bases[0].alias, read)]

    def _are_units(self, query: exp.Select, scope: Withs) -> bool:
        """Whether the column of a SELECT is the unit of its rows."""
        select, sources = self.read(query, scope)
        grouped = select.copy()
        grouped.set("distinct", exp.Distinct())
        grouped = _grouped_by_all(grouped)
        rows = all(isinstance(source[1], Rows) for source in sources)
        return rows and self._of_units(grouped, sources, None) is not None  # type: ignore[arg-type]

    def _check_no_hint(self, query: exp.Select) -> None:
        if hints_of(query) != Hints():
            raise refuse(
                "a hint is for what is counted or summed, and this SELECT gives rows; write it right after the SELECT "
                "that aggregates them",
                query,
                code="hint",
            )

    def _row_wise(self, query: exp.Select, sources: Sequence[tuple[str, Rows]], columns: Sequence[str] | None) -> Rows:
        self._check_no_hint(query)
        whole = expanded(query, [(alias, rows.names) for alias, rows in sources])
        names = [str(item.alias_or_name) or item.sql("duckdb") for item in whole.expressions]
        whole = aliases_written(whole, [name for _, rows in sources for name in rows.names], row_wise=True)
        return rows_of(whole, sources, selects.renamed(names, columns, query))

    def _of_units(
        self,
        query: exp.Select,
        sources: Sequence[tuple[str, Rows]],
        columns: Sequence[str] | None,
        *,
        several: bool = False,
    ) -> Rows | None:
        """A query that groups by the privacy unit as rows of units; None for one that does not.

        ``several``: by other columns, too, so that a unit has several rows.
        """
        from dpsql.sql.resolve.per_unit import is_per_unit, public_rows, units_of

        flat = flattened(query, sources)
        rows = public_rows(flat, self.policy, self.tables) or read_rows(flat, self.policy, self.tables)
        if not is_per_unit(flat, rows):
            return None
        self._check_no_hint(query)
        names = [str(item.alias_or_name) or item.sql("duckdb") for item in query.expressions]
        computed = Computed(rows.table)
        tables, found = units_of(flat, rows, computed, selects.renamed(names, columns, query), several=several)
        self.tables.update((table.name, table) for table in tables)
        self.context.of_units[tables[0].name] = computed
        return found

    def _view(self, node: exp.Table, text: str, columns: Sequence[str] | None) -> Rows:
        """A view that the policy names: row-wise over tables of the policy. Nothing of it has a place in the batch."""
        (statement,) = self.parse(text)
        try:
            with reading(statement.batch):
                found = self._named(statement.tree, {}, columns)
        except SQLError as error:
            said = f"view {node.name} of the policy: {without_place(error)}"
            raise refuse(said, node, code=error.code) from None
        if not isinstance(found, Rows):
            raise refuse(
                f"view {node.name} of the policy is not row-wise; it must keep rows apart",
                node,
                code="view-not-row-wise",
            )
        return found.placeless()


def _grouped_by_all(select: exp.Select) -> exp.Select:
    """SELECT DISTINCT of what is no aggregate as GROUP BY ALL; the same object for any other."""
    if select.args["distinct"].args.get("on") or any(aggregates(item) for item in select.expressions):
        return select
    out = select.copy()
    out.set("distinct", None)
    out.set("group", exp.Group(all=True))
    return out


def combined_units(tree: exp.SetOperation) -> tuple[exp.Select, list[exp.Select]] | None:
    """UNION, INTERSECT or EXCEPT of one column each as one SELECT DISTINCT, with the SELECTs that it combines.

    INTERSECT and EXCEPT are IN and NOT IN, of what is not NULL; UNION of two parts of one table is OR. None for others.
    """
    if not tree.args.get("distinct", True) or any(tree.args.get(key) for key in ("by_name", "order", "limit", "with_")):
        return None
    sides: list[exp.Select] = []
    found: list[exp.Select] = []
    for side in (tree.this.unnest(), tree.expression.unnest()):
        inner = combined_units(side) if isinstance(side, exp.SetOperation) else None
        mine = inner[0] if inner is not None else side
        plain = {"expressions", "from_", "joins", "where", "distinct"}
        if not isinstance(mine, exp.Select) or {key for key, value in mine.args.items() if value} - plain:
            return None
        items = [item.this if isinstance(item, exp.Alias) else item for item in mine.expressions]
        if len(items) != 1 or not isinstance(items[0], exp.Column):
            return None
        sides.append(mine)
        found.extend(inner[1] if inner is not None else [mine])
    left, right = sides
    out = left.copy()
    conditions = [side.args["where"].this.copy() if side.args.get("where") else None for side in sides]
    if isinstance(tree, exp.Union):
        items = [side.expressions[0].unalias() for side in sides]
        if any(side.args.get("joins") for side in sides) or left.args["from_"] != right.args["from_"]:
            return None
        if items[0] != items[1]:
            return None
        some = [exp.Paren(this=condition) for condition in conditions if condition is not None]
        out.set("where", exp.Where(this=exp.Or(this=some[0], expression=some[1])) if len(some) == 2 else None)
    else:
        asked = out.expressions[0].this if isinstance(out.expressions[0], exp.Alias) else out.expressions[0]
        among: exp.Expression = exp.In(this=asked.copy(), query=exp.Subquery(this=right.copy()))
        if isinstance(tree, exp.Except):
            among = exp.Not(this=exp.Coalesce(this=among, expressions=[exp.Boolean(this=False)]))
        given = [exp.Not(this=exp.Is(this=asked.copy(), expression=exp.Null())), among]
        out.set("where", exp.Where(this=whole([*(exp.Paren(this=c) for c in conditions[:1] if c is not None), *given])))
    out.set("distinct", exp.Distinct())
    return out, found
