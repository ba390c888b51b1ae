"""Queries: one SELECT over private rows as a core to be measured and, where it asks for more, outer SQL.

Items that are keys, linear in counts and sums, or formulas over them are columns of the core's noisy
table. HAVING, ORDER BY, LIMIT, windows and every other function of them are outer SQL over it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from sqlglot import exp

from dpsql.quoting import identifier
from dpsql.sql.aggregate.aggregates import kind
from dpsql.sql.aggregate.cores import PRIVATE, CoreDraft
from dpsql.sql.aggregate.over_cores import Nested, OverCore
from dpsql.sql.outer.core_tables import core_columns, has_other
from dpsql.sql.outer.relation import ERRORS, OTHER, Item, Named, Selected, United, hole
from dpsql.sql.parse.refusals import check_clauses
from dpsql.sql.parse.statements import refuse
from dpsql.sql.resolve.joins import RowScope
from dpsql.sql.resolve.select_names import SelectNames, unwrapped
from dpsql.sql.values.computed import Computed
from dpsql.workload.expr.batch import CaseKey, Core, RangeKey, Table

# Clauses that are left to the outer SQL.
_OUTER = ("having", "qualify", "order", "limit", "offset")


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
    check_clauses(select, label.rpartition("#")[0])
    reader = _Reader(select, rows, computed, label, nested)
    reader.read(names)
    return reader.finished(whole)


class _Reader:
    """One SELECT on its way to a core and outer SQL."""

    def __init__(self, select: exp.Select, rows: RowScope, computed: Computed, label: str, nested: Nested) -> None:
        self.select = select
        self.label = label
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
            column = self.draft.rows.find(node)
            raise refuse(
                f"{column.name} is a raw value, which is private; aggregate it, or add it to GROUP BY",
                node,
                code="raw-value",
            )
        found = kind(node)
        if found in PRIVATE:
            self._show(self.draft.number_column(node, found, name), name, ERRORS)
            return
        self.is_plain = False
        rounded = node.this if isinstance(node, exp.Round) else None
        companions: tuple[tuple[str, str], ...] = ()
        if rounded is not None and kind(rounded) in PRIVATE:
            held = self.draft.number_column(rounded, kind(rounded), name)
            companions = self._companions(held, ERRORS)
        self.items.append(Item(self.over.sql(node), name, companions))

    def _key_item(self, number: int, name: str, aliased: bool) -> None:
        key = self.draft.keys[number]
        labels = key.labels if isinstance(key, CaseKey | RangeKey) else ()
        if len(labels) > 1 and labels[1].name != "other":  # a range: where it begins, where it ends
            stem = name if aliased else labels[0].name.removesuffix("_from")
            for at, end in enumerate(("_from", "_to")):
                self._show(self.draft.key_column(number, at), f"{stem}{end}", ())
            return
        shown = name if aliased or not labels or not labels[0].name.endswith("_to") else labels[0].name
        self._show(self.draft.key_column(number), shown, OTHER if has_other(key) else ())

    def _show(self, column: str, name: str, suffixes: Sequence[str]) -> None:
        self.plain.append((name, column))
        self.items.append(Item(identifier(column), name, self._companions(column, suffixes)))

    @staticmethod
    def _companions(column: str, suffixes: Sequence[str]) -> tuple[tuple[str, str], ...]:
        return tuple((suffix, identifier(column + suffix)) for suffix in suffixes)

    # -- the end -------------------------------------------------------------------------------

    def finished(self, whole: str | None) -> Read:
        """The cores, and the outer SQL unless the one core is the result."""
        draft, statement = self.draft, self.label.rpartition("#")[0]
        distinct = self.select.args.get("distinct")
        if distinct is not None and distinct.args.get("on"):
            raise refuse("DISTINCT ON is not answered; use QUALIFY row_number() OVER (...) = 1", self.select)
        if whole is not None and self.is_plain and draft.grouping.simple and distinct is None:
            columns = [replace(draft.column(column), name=name) for name, column in self.plain]
            core, used = draft.core(tuple(range(len(draft.keys))), columns, whole, statement, whole=True)
            return Read((core,), None, used)
        cores: list[Core] = []
        tables: list[Table] = []
        for number, keys in enumerate(draft.grouping.sets):
            label = self.label if len(draft.grouping.sets) == 1 else f"{self.label}.{number + 1}"
            core, used = draft.core(keys, draft.of_keys(keys), label, statement)
            cores.append(core)
            tables.extend(used)
        sets = draft.grouping.sets
        bits = tuple(
            (name, tuple(_grouping_bits(asked, keys) for keys in sets)) for asked, name in self.over.bits.items()
        )
        united = United(self.label, tuple(Named(core.name, core_columns(core)) for core in cores), bits)
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
        return Read(tuple(cores), outer, tuple(tables))


def _grouping_bits(asked: Sequence[int], present: Sequence[int]) -> int:
    """GROUPING(a, b): a bit for each of its columns, the first the highest, set where the column is not grouped."""
    bits = 0
    for number in asked:
        bits = 2 * bits + (number not in present)
    return bits
