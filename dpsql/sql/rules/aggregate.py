"""Aggregate: one SELECT over private rows as cores to be measured, and what is asked of them besides.

Items that are keys, linear in counts and sums, or formulas over them are columns of the core's noisy
table. HAVING, ORDER BY, LIMIT, windows and every other function of them are outer SQL over it (``formula``).

    >>> stage("aggregate", "SELECT ward, AVG(age) AS a FROM people GROUP BY ward")
    by ward (3 groups)
      [1] COUNT(*) where age IS NOT NULL of people
      [2] SUM(age) of people
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from sqlglot import exp

from dpsql.common.quoting import identifier
from dpsql.sql.aggregate.aggregates import kind, rank_of
from dpsql.sql.aggregate.table import Several, aggregate_of
from dpsql.sql.outer.core_tables import core_columns
from dpsql.sql.outer.relation import OTHER, Item, Named, Selected, United, beside_numbers, hole
from dpsql.sql.parse.names import result_names
from dpsql.sql.parse.quoted import texts_of
from dpsql.sql.parse.refusals import check_clauses
from dpsql.sql.parse.statements import refuse
from dpsql.sql.resolve import selects
from dpsql.sql.resolve.select_names import SelectNames, unwrapped
from dpsql.sql.rules.cores import PRIVATE, CoreDraft
from dpsql.sql.rules.formula import OverCore, UnmeasuredCores, raw_value
from dpsql.sql.rules.rule import Rule
from dpsql.sql.rules.unit import Owned
from dpsql.workloads.expr.batch import Core, Table
from dpsql.workloads.expr.condition_text import output_text
from dpsql.workloads.expr.regions import KeyDomain

# Clauses that are left to the outer SQL.
_OUTER = ("having", "qualify", "order", "limit", "offset")


class _Reader:
    """One SELECT on its way to a core and outer SQL."""

    def __init__(self, given: Owned) -> None:
        self.select = select = given.tree
        self.beside = beside_numbers(given.rows.minimum)
        self.names = SelectNames(select, given.rows)
        self.draft = CoreDraft(self.names, given.computed)
        self.over = OverCore(self.draft, given.nested)
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
            raise raw_value(self.draft, node)
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

    def measured(self, label: str, whole: str | None) -> UnmeasuredCores:
        """The cores, and the outer SQL unless the one core is the result, which ``whole`` names."""
        draft, statement = self.draft, label.rpartition("#")[0]
        distinct = self.select.args.get("distinct")
        if distinct is not None and distinct.args.get("on"):
            raise refuse("DISTINCT ON is not answered; use QUALIFY row_number() OVER (...) = 1", self.select)
        if whole is not None and self.is_plain and draft.grouping.simple and distinct is None:
            columns = [replace(draft.column(column), name=name) for name, column in self.plain]
            core, used = draft.core(tuple(range(len(draft.keys))), columns, whole, statement, whole=True)
            return UnmeasuredCores(self.select, (core,), used, None, self.measured)
        cores: list[Core] = []
        tables: list[Table] = []
        for number, keys in enumerate(draft.grouping.sets):
            named = label if len(draft.grouping.sets) == 1 else f"{label}.{number + 1}"
            core, used = draft.core(keys, draft.of_keys(keys), named, statement)
            cores.append(core)
            tables.extend(used)
        return UnmeasuredCores(
            self.select, tuple(cores), tuple(tables), lambda: self._outer(label, cores), self.measured
        )

    def _outer(self, label: str, cores: Sequence[Core]) -> Selected:
        """The outer SQL over the noisy tables of the cores."""
        distinct, sets = self.select.args.get("distinct"), self.draft.grouping.sets
        bits = tuple(
            (name, tuple(_grouping_bits(numbers, keys) for keys in sets)) for numbers, name in self.over.bits.items()
        )
        united = United(label, tuple(Named(core.name, core_columns(core)) for core in cores), bits)
        items = tuple(self.items)
        if distinct is not None:
            items = tuple(replace(item, companions=()) for item in items)
        return Selected(
            items,
            f"FROM {hole(0)}{self.conditions}",
            (united, *self.over.sources),
            "DISTINCT " if distinct is not None else "",
            self.order,
        )


def _grouping_bits(arguments: Sequence[int], present: Sequence[int]) -> int:
    """GROUPING(a, b): a bit for each of its columns, the first the highest, set where the column is not grouped."""
    bits = 0
    for number in arguments:
        bits = 2 * bits + (number not in present)
    return bits


# -- the rule ------------------------------------------------------------------------------------


def _names(given: Owned) -> list[str]:
    """The names of the result's columns; SQLError where one is empty or a view lists another number of them."""
    schema = {**dict.fromkeys(given.names, "DOUBLE"), **given.rows.schema}
    texts = texts_of(given.select.expressions) if given.texts is None else given.texts
    names = result_names(given.select.expressions, schema, texts)
    names = selects.renamed(names, given.columns, given.select, given.statement)
    if "" in names:
        raise refuse(f"a column of {given.statement} has an empty name; give it an alias", given.select)
    return names


def _measured(given: Owned) -> UnmeasuredCores:
    names, label = _names(given), given.label()
    check_clauses(given.tree, label.rpartition("#")[0])
    reader = _Reader(given)
    reader.read(names)
    return reader.measured(label, given.statement if given.whole else None)


def _text(made: UnmeasuredCores) -> str:
    """The numbers to be measured, core by core."""
    return "\n".join(line for core in made.cores for line in _lines(core, made))


def _lines(core: Core, made: UnmeasuredCores) -> Iterator[str]:
    tables = {table.name: table for table in made.tables}
    keys = " and ".join(f"{key.name} ({len(key):,} groups)" for key in core.keys)
    yield f"by {keys}" if keys else "of all rows together"
    for number, (output, (query, _)) in enumerate(zip(core.outputs, core.places, strict=True)):
        table = tables[core.queries[query].table]
        lines = {column.name: column.line for column in table.columns.values()}
        yield f"  [{number + 1}] {output_text(output, lines)} of {table.name.partition(' #')[0]}"


AGGREGATE: Rule[Owned, UnmeasuredCores] = Rule(
    "aggregate",
    "counts and sums to be measured, by groups",
    "that what is computed of rows is computed of those that count",
    broken=lambda given: None if given.computed.base is given.rows.table else given.tree,
    apply=_measured,
    text=_text,
)
