"""Queries: one SELECT over private rows as a core to be measured and, where it asks for more, outer SQL.

Items that are keys, linear in counts and sums, or formulas over them are columns of the core's noisy
table. HAVING, ORDER BY, LIMIT, windows and every other function of them are outer SQL over it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from sqlglot import exp

from dpsql.common.quoting import identifier
from dpsql.errors import SQLError
from dpsql.policy.values import fold
from dpsql.sql.aggregate.aggregates import kind, rank_of
from dpsql.sql.aggregate.table import CONSTANT, Several, aggregate_of, answered, misplaced
from dpsql.sql.cores import PRIVATE, CoreDraft
from dpsql.sql.outer.core_tables import core_columns
from dpsql.sql.outer.relation import HIDDEN, OTHER, Item, Named, Relation, Selected, United, beside_numbers, hole
from dpsql.sql.parse.quoted import shown
from dpsql.sql.parse.refusals import check_clauses, unanswered_around
from dpsql.sql.parse.statements import refuse
from dpsql.sql.parse.trees import DUCKDB, written
from dpsql.sql.resolve.joins import RowScope
from dpsql.sql.resolve.select_names import SelectNames, unwrapped
from dpsql.sql.values.computed import Computed
from dpsql.workloads.expr.batch import Core, Table
from dpsql.workloads.expr.regions import KeyDomain

Nested = Callable[[exp.Query], Relation]
_MOST_NESTED = 2_000
"""Aliases that are written out within others; each could hold the one before it twice."""


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
        self.in_having = False
        self._numbers: dict[str, None] = {}
        self._nested = 0
        self._within = False

    def sql(self, node: exp.Expression) -> str:
        """The expression over the core's columns, as text."""
        return written(self._outer(node), copy=False)  # the tree is made here, for this

    def item(self, node: exp.Expression) -> str:
        """An item of SELECT over the core's columns; where small counts are hidden, by all its numbers together."""
        self._numbers.clear()
        text = self.sql(node)
        if self.draft.rows.minimum is None:
            return text
        judge = self.draft.together(list(self._numbers), written(node))
        return text if judge is None else f"CASE WHEN {identifier(judge + HIDDEN[0])} THEN NULL ELSE {text} END"

    def _outer(self, node: exp.Expression) -> exp.Expression:
        draft = self.draft
        number = draft.key_number(node) if not isinstance(node, exp.Paren) else None
        if number is not None:
            return exp.to_identifier(draft.key_column(number), quoted=True)
        if isinstance(node, exp.Column):
            # In HAVING an alias means the item, even where a column has its name.
            named = not node.table and (self.in_having or not self.names.is_column(node))
            meant = self.names.alias(node) if named else None
            if meant is None:
                raise _raw_value(draft, node)
            return self._meant(meant, node)
        if isinstance(node, exp.Grouping | exp.GroupingId):
            return exp.to_identifier(self._bits(node), quoted=True)
        if isinstance(node, exp.Query | exp.Subquery):
            return self._subquery(node.this if isinstance(node, exp.Subquery) else node)
        if isinstance(node, exp.Window):
            return self._window(node)
        found = kind(node)
        if found in PRIVATE:
            name = draft.number_column(node, found, "")
            self._numbers[name] = None
            return exp.to_identifier(name, quoted=True)
        if isinstance(node, exp.AggFunc | exp.Filter | exp.WithinGroup):
            raise misplaced(node)
        return self._mapped(node)

    def _meant(self, item: exp.Expression, alias: exp.Column) -> exp.Expression:
        """What an alias stands for. Raises SQLError where aliases of aliases come to too many."""
        self._nested += self._within
        if self._nested > _MOST_NESTED:
            raise refuse("the aliases of the SELECT come to too large expressions; use fewer", alias, code="too-large")
        self._within, before = True, self._within
        found = exp.Paren(this=self._outer(item))
        self._within = before
        return found

    def _mapped(self, node: exp.Expression) -> exp.Expression:
        """The node with its parts over the core's columns."""
        if isinstance(node, exp.In) and node.args.get("query"):
            query = node.args["query"]
            held = self._subquery(query.this if isinstance(query, exp.Subquery) else query)
            return exp.In(this=self._outer(node.this), query=held)
        return type(node)(**{key: self._part(value) for key, value in node.args.items()})

    def _part(self, value: object) -> object:
        if isinstance(value, list):
            return [self._part(part) for part in value]
        if isinstance(value, exp.Identifier | exp.DataType | exp.Star):
            return value.copy()
        return self._outer(value) if isinstance(value, exp.Expression) else value

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
                self.in_having = clause == "having"
                text += f" {keyword} {self.sql(node.this)}"
        self.in_having = False
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


# Clauses that are left to the outer SQL.
_OUTER = ("having", "qualify", "order", "limit", "offset")


@dataclass(frozen=True)
class Read:
    """A SELECT over private rows, understood: its cores, its outer SQL (None where the one core is all), its tables.

    ``again``: the same for another statement that asks the same, by its label and ``whole`` (``read_select``).
    """

    cores: tuple[Core, ...]
    outer: Selected | None
    tables: tuple[Table, ...] = field(repr=False)
    again: Callable[[str, str | None], Read] = field(repr=False, compare=False)


def read_select(
    select: exp.Select,
    rows: RowScope,
    computed: Computed,
    names: Sequence[str],
    label: str,
    nested: Nested,
    *,
    whole: str | None,
) -> Read:
    """Understand a SELECT with aggregates over the rows of ``rows``.

    ``computed`` keeps the columns that the batch computes of that table. ``names`` are the SELECT's columns',
    ``label`` names its cores, ``nested`` reads a subquery that stands in an expression.
    ``whole`` is the name of the result that the core's table itself may be, where nothing is left to do.
    Raises SQLError with the place of what cannot be answered.
    """
    check_clauses(select, label.rpartition("#")[0])
    reader = _Reader(select, rows, computed, nested)
    reader.read(names)
    return reader.finished(label, whole)


class _Reader:
    """One SELECT on its way to a core and outer SQL."""

    def __init__(self, select: exp.Select, rows: RowScope, computed: Computed, nested: Nested) -> None:
        self.select = select
        self.beside = beside_numbers(rows.minimum)
        self.names = SelectNames(select, rows)
        self.draft = CoreDraft(self.names, computed)
        self.over = OverCore(self.draft, nested)
        self.items: list[Item] = []
        self.plain: list[tuple[str, str]] = []  # (final name, core column) of items that are core columns as they are
        self.is_plain = not any(select.args.get(clause) for clause in _OUTER)

    # -- items ---------------------------------------------------------------------------------

    def read(self, names: Sequence[str]) -> None:
        """Understand the items, then every clause that is left to the outer SQL."""
        for item, name in zip(self.select.expressions, names, strict=True):
            node = unwrapped(item)
            if isinstance(node, exp.Star) or (isinstance(node, exp.Column) and isinstance(node.this, exp.Star)):
                raise refuse(
                    "raw rows are private; select COUNT(*), SUM(column) or another aggregate", item, code="raw-value"
                )
            self._item(node, name, bool(item.alias))
        self.conditions = self.over.conditions()
        self.order = self.over.order(self.items)
        self.draft.check()

    def _item(self, node: exp.Expression, name: str, aliased: bool) -> None:
        number = self.draft.key_number(node)
        if number is not None:
            self._key_item(number, name, aliased)
            return
        if isinstance(node, exp.Column) and self.names.is_column(node):
            raise _raw_value(self.draft, node)
        aggregate = aggregate_of(rank_of(node))
        if aggregate is not None and aggregate.columns is not None:
            self._several(node, aggregate.columns, f"{name}_" if aliased else "")
            return
        found = kind(node)
        if found in PRIVATE:
            self._show(self.draft.number_column(node, found, name), name, self.beside)
            return
        self.is_plain = False
        rounded = node.this if isinstance(node, exp.Round) else None
        companions: tuple[tuple[str, str], ...] = ()
        if rounded is not None and kind(rounded) in PRIVATE:
            held = self.draft.number_column(rounded, kind(rounded), name)
            companions = self._companions(held, self.beside)
        self.items.append(Item(self.over.item(node), name, companions))

    def _several(self, node: exp.Expression, columns: Several, prefix: str) -> None:
        """The columns that dp_regression and the like stand for; rows of theirs by UNNEST."""
        self.is_plain = False
        for column, rows in self.draft.several(node, columns):

            def laid(suffix: str, rows: Sequence[str] = rows) -> str:
                held = [f'{row[:-1]}{suffix}"' if suffix else row for row in rows]
                return f"unnest([{', '.join(held)}])" if len(held) > 1 else held[0]

            beside = tuple((suffix, laid(suffix)) for suffix in self.beside) if column.errors else ()
            self.items.append(Item(laid(""), f"{prefix}{column.name}", beside))

    def _key_item(self, number: int, name: str, aliased: bool) -> None:
        key = self.draft.keys[number]
        labels = () if isinstance(key, KeyDomain) else key.labels
        if len(labels) > 1 and labels[1].name != "other":  # a range: where it begins, where it ends
            stem = name if aliased else labels[0].name.removesuffix("_from")
            for at, end in enumerate(("_from", "_to")):
                self._show(self.draft.key_column(number, at), f"{stem}{end}", ())
            return
        shown = name if aliased or not labels or not labels[0].name.endswith("_to") else labels[0].name
        self._show(self.draft.key_column(number), shown, OTHER if key.has_other else ())

    def _show(self, column: str, name: str, suffixes: Sequence[str]) -> None:
        self.plain.append((name, column))
        self.items.append(Item(identifier(column), name, self._companions(column, suffixes)))

    @staticmethod
    def _companions(column: str, suffixes: Sequence[str]) -> tuple[tuple[str, str], ...]:
        return tuple((suffix, identifier(column + suffix)) for suffix in suffixes)

    # -- the end -------------------------------------------------------------------------------

    def finished(self, label: str, whole: str | None) -> Read:
        """The cores, and the outer SQL unless the one core is the result."""
        draft, statement = self.draft, label.rpartition("#")[0]
        distinct = self.select.args.get("distinct")
        if distinct is not None and distinct.args.get("on"):
            raise refuse("DISTINCT ON is not answered; use QUALIFY row_number() OVER (...) = 1", self.select)
        if whole is not None and self.is_plain and draft.grouping.simple and distinct is None:
            columns = [replace(draft.column(column), name=name) for name, column in self.plain]
            core, used = draft.core(tuple(range(len(draft.keys))), columns, whole, statement, whole=True)
            return Read((core,), None, used, self.finished)
        cores: list[Core] = []
        tables: list[Table] = []
        for number, keys in enumerate(draft.grouping.sets):
            named = label if len(draft.grouping.sets) == 1 else f"{label}.{number + 1}"
            core, used = draft.core(keys, draft.of_keys(keys), named, statement)
            cores.append(core)
            tables.extend(used)
        sets = draft.grouping.sets
        bits = tuple(
            (name, tuple(_grouping_bits(asked, keys) for keys in sets)) for asked, name in self.over.bits.items()
        )
        united = United(label, tuple(Named(core.name, core_columns(core)) for core in cores), bits)
        items = tuple(self.items)
        if distinct is not None:
            items = tuple(replace(item, companions=()) for item in items)
        outer = Selected(
            items,
            f"FROM {hole(0)}{self.conditions}",
            (united, *self.over.sources),
            "DISTINCT " if distinct is not None else "",
            self.order,
        )
        return Read(tuple(cores), outer, tuple(tables), self.finished)


def _raw_value(draft: CoreDraft, node: exp.Column) -> SQLError:
    misread = unanswered_around(node, answered(units=False))
    if misread is not None:
        return misread
    draft.rows.find(node)  # a column that no table has is refused as that
    said = f"{shown(node)} is a raw value, which is private; aggregate it, or add it to GROUP BY"
    return refuse(said, node, code="raw-value")


def _grouping_bits(arguments: Sequence[int], present: Sequence[int]) -> int:
    """GROUPING(a, b): a bit for each of its columns, the first the highest, set where the column is not grouped."""
    bits = 0
    for number in arguments:
        bits = 2 * bits + (number not in present)
    return bits
