"""Queries: one SELECT over private rows as a core to be measured and, where it asks for more, outer SQL.

Items that are keys, linear in counts and sums, or formulas over them are columns of the core's noisy
table. HAVING, ORDER BY, LIMIT, windows and every other function of them are outer SQL over it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sqlglot import exp

from dpsql.policy.values import fold as fold_name
from dpsql.reconstruct.formulas import Leaf
from dpsql.sql.admitted import check_admitted
from dpsql.sql.aggregates import CONSTANT, FORMULA, LINEAR, RANKED, Collector, kind
from dpsql.sql.computed import Computed
from dpsql.sql.flatten import aggregates
from dpsql.sql.grouping import Grouping, group
from dpsql.sql.joins import RowScope, distinct_table, unit_of
from dpsql.sql.outer import ERRORS, OTHER, ColumnInfo, Item, Named, Relation, Selected, companion_names, hole, quoted
from dpsql.sql.predicates import truth
from dpsql.sql.refusals import check_clauses, not_an_aggregate
from dpsql.sql.scope import Scope
from dpsql.sql.statements import refuse, weight_of
from dpsql.workload.batch import CaseKey, Core, CoreColumn, Derived, Key, KeyOutput, Measured, Query, Ranked, Table
from dpsql.workload.conditions import TRUE, And, Condition, gather

MAX_ROWS = 200_000

_PRIVATE = (LINEAR, FORMULA, RANKED)

Nested = Callable[[exp.Query], Relation]


@dataclass(frozen=True)
class Read:
    """A SELECT over private rows, understood: its cores, its outer SQL (None where the one core is all), its tables."""

    cores: tuple[Core, ...]
    outer: Selected | None
    tables: tuple[Table, ...] = field(repr=False)


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
    reader = _Reader(select, rows, computed, label, nested)
    reader.read(names)
    return reader.finished(whole)


class _Reader:
    """One SELECT on its way to a core."""

    def __init__(self, select: exp.Select, rows: RowScope, computed: Computed, label: str, nested: Nested) -> None:
        check_clauses(select, label.rpartition("#")[0])
        self.select = select
        self.rows = rows
        self.label = label
        self.nested = nested
        self.computed = computed
        self.scope = Scope(rows.find, self.computed)
        condition = truth(rows.where, self.scope).true if rows.where is not None else TRUE
        self.condition: Condition = gather(And, rows.condition, condition)
        self.collector = Collector(self.condition, self.scope, lambda node: unit_of(rows, node))
        self.columns: dict[object, tuple[str, CoreColumn]] = {}
        self.sources: list[Relation] = []
        self.grouping_bits: dict[tuple[int, ...], str] = {}
        self.items: list[Item] = []
        self.plain: list[tuple[str, str]] = []  # (final name, core column) of items that are core columns as they are
        self.is_plain = True
        # What the scan answers, for the guard at the end.
        self.private: list[Any] = [] if rows.where is None else [rows.where]
        self.grouping = self._grouping()
        self.key_numbers = {text: number for number, text in enumerate(self.grouping.keys)}
        # A key over an expression is a case key, or the domain of a computed column.
        self.has_expression_keys = any(
            isinstance(key, CaseKey) or fold_name(key.column) not in rows.table.columns
            for key in self.grouping.keys.values()
        )

    # -- keys ----------------------------------------------------------------------------------

    def _grouping(self) -> Grouping:
        every = [
            _unwrapped(item)
            for item in self.select.expressions
            if not aggregates(item) and kind(_unwrapped(item)) != CONSTANT
        ]
        return group(self.select, self.scope, self.canonical, self._grouped, every)

    def canonical(self, node: exp.Expression) -> str:
        """The expression as text, its columns by the names under which they are known: equal for equal ones."""
        while isinstance(node, exp.Paren):
            node = node.this
        if isinstance(node, exp.Column):
            return quoted(self.rows.find(node).name)
        out = node.copy()
        for column in list(out.find_all(exp.Column)):
            column.replace(exp.to_identifier(self.rows.find(column).name, quoted=True))
        return str(out.sql("duckdb", comments=False))

    def _grouped(self, node: exp.Expression) -> exp.Expression:
        """What an item of GROUP BY stands for, noted for the guard."""
        found = self._meant(node)
        if not isinstance(found, exp.Anonymous):
            self.private.append(found)
        return found

    def _meant(self, node: exp.Expression) -> exp.Expression:
        """What an item of GROUP BY stands for: itself, a position in SELECT, or an alias."""
        while isinstance(node, exp.Paren):
            node = node.this
        if isinstance(node, exp.Literal) and not node.is_string and str(node.this).isdecimal():
            item = _unwrapped(self._position(node, "GROUP BY"))
            if isinstance(item, exp.Literal):
                raise refuse(f"GROUP BY {node.this} is a constant; group by a column with declared groups", node)
            return item
        if isinstance(node, exp.Column) and not node.table and not self._is_column(node):
            return self._alias(node) or node
        return node

    def _position(self, node: exp.Expression, clause: str) -> exp.Expression:
        position = str(node.this).lstrip("0")[:9]
        if not position or not 1 <= int(position) <= len(self.select.expressions):
            raise refuse(f"{clause} {str(node.this)[:20]} is not a position in SELECT", node)
        found: exp.Expression = self.select.expressions[int(position) - 1]
        return found

    def _is_column(self, node: exp.Column) -> bool:
        return fold_name(node.name) in {fold_name(name) for name in self.rows.schema}

    def _alias(self, node: exp.Column) -> exp.Expression | None:
        for item in self.select.expressions:
            if isinstance(item, exp.Alias) and fold_name(item.alias) == fold_name(node.name):
                return _unwrapped(item)
        return None

    def _key_number(self, node: exp.Expression) -> int | None:
        """The number of the key that the expression is, if it is one."""
        if isinstance(node, exp.Column):
            if isinstance(node.this, exp.Star) or not self._is_column(node):
                return None
            return self.key_numbers.get(self.canonical(node))
        if not self.has_expression_keys or isinstance(node, exp.Literal) or aggregates(node):
            return None
        columns = node.find_all(exp.Column)
        if not all(self._is_column(column) for column in columns):
            return None
        return self.key_numbers.get(self.canonical(node))

    # -- items ---------------------------------------------------------------------------------

    def read(self, names: Sequence[str]) -> None:
        """Understand the items, then every clause that is left to the outer SQL."""
        for item, name in zip(self.select.expressions, names, strict=True):
            node = _unwrapped(item)
            if isinstance(node, exp.Star) or (isinstance(node, exp.Column) and isinstance(node.this, exp.Star)):
                raise refuse("raw rows are private; select COUNT(*), SUM(column) or another aggregate", item)
            self._item(node, name, bool(item.alias))
        self.tail = self._tail()
        self.order = self._order()
        if not self.collector.outputs:
            raise refuse("the statement has no aggregate; select COUNT(*), COUNT_IF(...) or SUM(column)", self.select)
        for node in self.private:
            check_admitted(node)

    def _item(self, node: exp.Expression, name: str, aliased: bool) -> None:
        number = self._key_number(node)
        if number is not None:
            self._key_item(number, name, aliased)
            return
        if isinstance(node, exp.Column) and self._is_column(node):
            column = self.rows.find(node)
            raise refuse(f"{column.name} is a raw value, which is private; aggregate it, or add it to GROUP BY", node)
        found = kind(node)
        if found in _PRIVATE:
            self._show(self._number_column(node, found, name), name, ERRORS)
            return
        self.is_plain = False
        rounded = node.this if isinstance(node, exp.Round) else None
        companions: tuple[tuple[str, str], ...] = ()
        if rounded is not None and kind(rounded) in _PRIVATE:
            held = self._number_column(rounded, kind(rounded), name)
            companions = self._companions(held, ERRORS)
        self.items.append(Item(self._sql(self._outer(node)), name, companions))

    def _key_item(self, number: int, name: str, aliased: bool) -> None:
        key = list(self.grouping.keys.values())[number]
        labels = key.labels if isinstance(key, CaseKey) else ()
        if len(labels) > 1 and labels[1].name != "other":  # a range: where it begins, where it ends
            stem = name if aliased else labels[0].name.removesuffix("_from")
            for at, end in enumerate(("_from", "_to")):
                self._show(self._key_column(number, at), f"{stem}{end}", ())
            return
        shown = name if aliased or not labels or not labels[0].name.endswith("_to") else labels[0].name
        self._show(self._key_column(number), shown, OTHER if _has_other(key) else ())

    def _show(self, column: str, name: str, suffixes: Sequence[str]) -> None:
        self.plain.append((name, column))
        self.items.append(Item(quoted(column), name, self._companions(column, suffixes)))

    @staticmethod
    def _companions(column: str, suffixes: Sequence[str]) -> tuple[tuple[str, str], ...]:
        return tuple((suffix, quoted(column + suffix)) for suffix in suffixes)

    def _key_column(self, number: int, label: int = 0) -> str:
        """The core's column of a key, by the name that it has inside."""
        key = list(self.grouping.keys.values())[number]
        name = f"k{number}" if label == 0 else f"k{number}l{label}"
        return self.columns.setdefault(("key", number, label), (name, KeyOutput(name, key, label)))[0]

    def _number_column(self, node: exp.Expression, found: int, name: str) -> str:
        """The core's column of a private number."""
        self.private.append(node)
        title = name or str(node.sql("duckdb", comments=False))
        if found == LINEAR:
            output = self.collector.output(node, name)
            inside = f"c{output}"
            return self.columns.setdefault(("output", output), (inside, Measured(inside, output, title)))[0]
        if found == RANKED:
            ranked = self.collector.ranked(node)
            inside = f"m{len(self.columns)}"
            return self.columns.setdefault(("ranked", ranked), (inside, replace(ranked, name=inside, title=title)))[0]
        formula = self.collector.formula(node)
        if isinstance(formula, Leaf):
            inside = f"c{formula.index}"
            measured = Measured(inside, formula.index, title)
            return self.columns.setdefault(("output", formula.index), (inside, measured))[0]
        inside = f"d{len(self.columns)}"
        return self.columns.setdefault(("formula", formula), (inside, Derived(inside, formula, title=title)))[0]

    # -- outer SQL -----------------------------------------------------------------------------

    def _outer(self, node: exp.Expression) -> exp.Expression:
        """The expression over the core's columns."""
        number = self._key_number(node) if not isinstance(node, exp.Paren) else None
        if number is not None:
            return exp.to_identifier(self._key_column(number), quoted=True)
        if isinstance(node, exp.Column):
            meant = self._alias(node) if not node.table and not self._is_column(node) else None
            if meant is None:
                column = self.rows.find(node)
                raise refuse(
                    f"{column.name} is a raw value, which is private; aggregate it, or add it to GROUP BY", node
                )
            return exp.Paren(this=self._outer(meant))
        if isinstance(node, exp.Grouping | exp.GroupingId):
            return exp.to_identifier(self._bits(node), quoted=True)
        if isinstance(node, exp.Query | exp.Subquery):
            return self._subquery(node.this if isinstance(node, exp.Subquery) else node)
        if isinstance(node, exp.Window):
            return self._window(node)
        found = kind(node)
        if found in _PRIVATE:
            return exp.to_identifier(self._number_column(node, found, ""), quoted=True)
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
            raise refuse("a subquery here is not answered; make it a view of its own", query)
        self.sources.append(self.nested(query))
        # The cores come first among the sources.
        return exp.to_identifier(hole(len(self.grouping.sets) + len(self.sources) - 1), quoted=False)

    def _bits(self, node: exp.Expression) -> str:
        numbers = []
        for part in node.expressions:
            number = self._key_number(_unwrapped(part))
            if number is None:
                raise refuse("GROUPING takes columns of GROUP BY", part)
            numbers.append(number)
        return self.grouping_bits.setdefault(tuple(numbers), f"g{len(self.grouping_bits)}")

    def _tail(self) -> str:
        written = ""
        for clause, keyword in (("having", "WHERE"), ("qualify", "QUALIFY")):
            node = self.select.args.get(clause)
            if node is not None:
                self.is_plain = False
                written += f" {keyword} {self._sql(self._outer(node.this))}"
        return written

    def _order(self) -> str:
        order = self.select.args.get("order")
        written = ""
        if order is not None:
            self.is_plain = False
            written = " ORDER BY " + ", ".join(self._ordered(part) for part in order.expressions)
        for clause in ("limit", "offset"):
            node = self.select.args.get(clause)
            if node is not None:
                self.is_plain = False
                value = node.expression if isinstance(node, exp.Limit | exp.Offset) else None
                if value is None or kind(value) != CONSTANT:
                    raise refuse(f"{clause.upper()} takes a constant", node)
                written += " " + node.sql("duckdb", comments=False).strip()  # with PERCENT, where it stands
        return written

    def _ordered(self, part: exp.Expression) -> str:
        node = part.this
        if isinstance(node, exp.Var) and fold_name(node.name) == "all":
            named: list[exp.Expression] = [exp.to_identifier(item.name, quoted=True) for item in self.items]
        elif isinstance(node, exp.Literal) and not node.is_string:
            at = next(i for i, item in enumerate(self.select.expressions) if item is self._position(node, "ORDER BY"))
            named = [exp.to_identifier(self.items[at].name, quoted=True)]
        elif isinstance(node, exp.Column) and not node.table and self._alias(node) is not None:
            named = [exp.to_identifier(node.name, quoted=True)]
        else:
            named = [self._outer(node)]
        options = {key: value for key, value in part.args.items() if key != "this"}
        return ", ".join(exp.Ordered(this=one, **options).sql("duckdb") for one in named)

    @staticmethod
    def _sql(node: exp.Expression) -> str:
        return str(node.sql("duckdb", comments=False))

    # -- the end -------------------------------------------------------------------------------

    def finished(self, whole: str | None) -> Read:
        """The cores, and the outer SQL unless the one core is the result."""
        distinct = self.select.args.get("distinct")
        if distinct is not None and distinct.args.get("on"):
            raise refuse("DISTINCT ON is not answered; use QUALIFY row_number() OVER (...) = 1", self.select)
        if whole is not None and self.is_plain and self.grouping.simple and distinct is None:
            columns = [replace(self._column(column), name=name) for name, column in self.plain]
            core, used = self._core(tuple(range(len(self.grouping.keys))), columns, whole)
            return Read((core,), None, used)
        cores: list[Core] = []
        tables: list[Table] = []
        branches: list[str] = []
        for number, keys in enumerate(self.grouping.sets):
            mine = [
                column
                for _, column in self.columns.values()
                if not isinstance(column, KeyOutput) or any(self._is_key(column, key) for key in keys)
            ]
            label = self.label if len(self.grouping.sets) == 1 else f"{self.label}.{number + 1}"
            core, used = self._core(keys, mine, label)
            cores.append(core)
            tables.extend(used)
            bits = "".join(
                f", {_grouping_bits(asked, keys)} AS {quoted(name)}" for asked, name in self.grouping_bits.items()
            )
            branches.append(f"SELECT *{bits} FROM {hole(number)}")  # noqa: S608
        sources = [Named(core.name, core_columns(core)) for core in cores]
        items = tuple(self.items)
        if distinct is not None:
            items = tuple(replace(item, companions=()) for item in items)
        outer = Selected(
            items,
            f"FROM ({' UNION ALL BY NAME '.join(branches)}){self.tail}",
            (*sources, *self.sources),
            "DISTINCT " if distinct is not None else "",
            self.order,
        )
        return Read(tuple(cores), outer, tuple(tables))

    def _is_key(self, column: KeyOutput, number: int) -> bool:
        return column.name == f"k{number}" or column.name.startswith(f"k{number}l")

    def _column(self, name: str) -> CoreColumn:
        return next(column for inside, column in self.columns.values() if inside == name)

    def _core(
        self, numbers: Sequence[int], columns: Sequence[CoreColumn], label: str
    ) -> tuple[Core, tuple[Table, ...]]:
        """The core over the keys of those numbers, and the tables of its queries."""
        every = list(self.grouping.keys.values())
        keys: tuple[Key, ...] = tuple(every[number] for number in numbers)
        weight = weight_of(self.select)
        collector = self.collector
        places: list[tuple[int, int]] = []
        outputs = [o for i, o in enumerate(collector.outputs) if i not in collector.units]
        queries: list[Query] = []
        tables: list[Table] = []
        if outputs:
            queries.append(Query(label, self.rows.table.name, keys, tuple(outputs), weight))
            tables.append(self.computed.table())
        for number, output in enumerate(collector.outputs):
            if number not in collector.units:
                places.append((0, outputs.index(output)))
                continue
            units = distinct_table(self.computed.table(), collector.units[number], keys)
            places.append((len(queries), 0))
            queries.append(Query(label, units.name, keys, (output,), weight))
            tables.append(units)
        core = Core(label, tuple(queries), tuple(places), tuple(columns))
        if core.rows * len(core.outputs) > MAX_ROWS:
            raise refuse(
                f"{self.label.rpartition('#')[0]} has {core.rows:,} groups; at most {MAX_ROWS:,} numbers are released "
                "by a statement: group by fewer columns",
                self.select,
            )
        return core, tuple(tables)


def core_columns(core: Core) -> tuple[ColumnInfo, ...]:
    """The columns of a core's noisy table with their companions, as ``tables`` writes them."""
    suffixes: list[tuple[str, ...]] = []
    for column in core.columns:
        if isinstance(column, KeyOutput):
            suffixes.append(OTHER if column.label == 0 and _has_other(column.key) else ())
        else:
            suffixes.append(ERRORS)
    pairs = [(at, suffix) for at, found in enumerate(suffixes) for suffix in found]
    names = iter(companion_names([column.name for column in core.columns], pairs))
    return tuple(
        ColumnInfo(column.name, tuple((suffix, next(names)) for suffix in found))
        for column, found in zip(core.columns, suffixes, strict=True)
    )


def core_types(core: Core) -> list[tuple[str, str]]:
    """(name, DuckDB type) of the columns of a core's noisy table, companions among them."""
    found = []
    for column, info in zip(core.columns, core_columns(core), strict=True):
        kind, beside = "DOUBLE", "DOUBLE"
        if isinstance(column, KeyOutput):
            key, beside = column.key, "BOOLEAN"
            kind = key.labels[column.label].type if isinstance(key, CaseKey) else key.type
        elif isinstance(column, Ranked):
            kind = column.type
        found.append((info.name, kind))
        ends = {"_low": kind, "_high": kind}
        found.extend((name, ends.get(suffix, beside)) for suffix, name in info.companions)
    return found


def _has_other(key: Key) -> bool:
    if isinstance(key, CaseKey):
        return len(key.labels) > 1 and key.labels[1].name == "other"
    return key.other


def _grouping_bits(asked: Sequence[int], present: Sequence[int]) -> int:
    """GROUPING(a, b): a bit for each of its columns, the first the highest, set where the column is not grouped."""
    bits = 0
    for number in asked:
        bits = 2 * bits + (number not in present)
    return bits


def _unwrapped(item: exp.Expression) -> exp.Expression:
    node = item.this if isinstance(item, exp.Alias) else item
    while isinstance(node, exp.Paren):
        node = node.this
    return node
