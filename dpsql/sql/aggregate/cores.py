"""Cores on their way: the keys of a SELECT, and the columns that its items and its outer SQL ask of the noisy table."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from typing import Any

from sqlglot import exp

from dpsql.policy.values import fold
from dpsql.reconstruct.formulas import Leaf
from dpsql.sql.aggregate.aggregates import CONSTANT, FORMULA, LINEAR, RANKED, Collector, kind
from dpsql.sql.aggregate.grouping import finest, group, to_drop
from dpsql.sql.aggregate.range_keys import check_core, long_key
from dpsql.sql.parse.statements import hints_of, refuse
from dpsql.sql.parse.trees import nodes, written
from dpsql.sql.resolve.batch_tables import distinct_table
from dpsql.sql.resolve.flatten import aggregates
from dpsql.sql.resolve.joins import RowScope
from dpsql.sql.resolve.select_names import SelectNames, unwrapped
from dpsql.sql.values.admitted import check_admitted
from dpsql.sql.values.computed import Computed
from dpsql.sql.values.predicates import truth
from dpsql.sql.values.scope import Scope
from dpsql.workload.expr.batch import (
    CaseKey,
    Core,
    CoreColumn,
    Derived,
    Key,
    KeyOutput,
    Measured,
    Query,
    RangeKey,
    Table,
)
from dpsql.workload.expr.conditions import TRUE, And, Condition, gather

MAX_ROWS = 200_000

PRIVATE = (LINEAR, FORMULA, RANKED)


class CoreDraft:
    """The core of one SELECT, gathered while its items and clauses are read.

    Inside, keys are called k0, k1, ... and numbers c0, d1, m2, ...; equal ones are one column. ``columns`` has them in
    the order in which they were first asked for.
    """

    def __init__(self, names: SelectNames, computed: Computed) -> None:
        self.names = names
        self.select = names.select
        self.rows: RowScope = names.rows
        self.computed = computed
        self.scope = Scope(self.rows.find, computed, truth)
        where = self.rows.where
        condition: Condition = TRUE if where is None else truth(where, self.scope).true
        self.collector = Collector(gather(And, self.rows.condition, condition), self.scope, self.rows.is_unit)
        self.columns: dict[object, CoreColumn] = {}
        # What the scan answers, for the guard at the end.
        self._private: list[Any] = [] if where is None else [where]
        self.grouping = group(self.select, self.scope, names.canonical, self._grouped, self._every())
        self.keys: tuple[Key, ...] = tuple(self.grouping.keys.values())
        self._key_numbers = {text: number for number, text in enumerate(self.grouping.keys)}
        # A key over an expression is a case key, or the domain of a computed column.
        self._has_expression_keys = any(
            isinstance(key, CaseKey | RangeKey) or fold(key.column) not in self.rows.table.columns for key in self.keys
        )

    def _every(self) -> list[exp.Expression]:
        """The items that GROUP BY ALL groups by."""
        return [
            unwrapped(item)
            for item in self.select.expressions
            if not aggregates(item) and kind(unwrapped(item)) != CONSTANT
        ]

    def _grouped(self, node: exp.Expression) -> exp.Expression:
        """What an item of GROUP BY stands for, noted for the guard."""
        found = self.names.meant(node)
        if not isinstance(found, exp.Anonymous):
            self._private.append(found)
        return found

    # -- columns -------------------------------------------------------------------------------

    def key_number(self, node: exp.Expression) -> int | None:
        """The number of the key that the expression is, if it is one."""
        names = self.names
        if isinstance(node, exp.Column):
            if isinstance(node.this, exp.Star) or not names.is_column(node):
                return None
            return self._key_numbers.get(names.canonical(node))
        if not self._has_expression_keys or isinstance(node, exp.Literal) or aggregates(node):
            return None
        columns = [part for part in nodes(node) if isinstance(part, exp.Column)]
        if not all(names.is_column(column) for column in columns):
            return None
        return self._key_numbers.get(names.canonical(node))

    def key_column(self, number: int, label: int = 0) -> str:
        """The column of a key, by the name that it has inside."""
        name = f"k{number}" if label == 0 else f"k{number}l{label}"
        return self.columns.setdefault(("key", number, label), KeyOutput(name, self.keys[number], label)).name

    def number_column(self, node: exp.Expression, found: int, name: str) -> str:
        """The column of a private number of that kind; ``name`` is what it is called where it is an item."""
        self._private.append(node)
        if found == LINEAR:
            return self._output(self.collector.output(node, name), node, name)
        if found == RANKED:
            ranked = self.collector.ranked(node)
            key: tuple[str, object] = ("ranked", ranked)
            if key not in self.columns:
                self.columns[key] = replace(ranked, name=f"m{len(self.columns)}", title=_title(node, name))
            return self.columns[key].name
        formula = self.collector.formula(node)
        if isinstance(formula, Leaf):
            return self._output(formula.index, node, name)
        key = ("formula", formula)
        if key not in self.columns:
            self.columns[key] = Derived(f"d{len(self.columns)}", formula, title=_title(node, name))
        return self.columns[key].name

    def _output(self, output: int, node: exp.Expression, name: str) -> str:
        key = ("output", output)
        if key not in self.columns:
            self.columns[key] = Measured(f"c{output}", output, _title(node, name))
        return self.columns[key].name

    def column(self, name: str) -> CoreColumn:
        """The column of that name inside."""
        return next(column for column in self.columns.values() if column.name == name)

    def of_keys(self, numbers: Sequence[int]) -> list[CoreColumn]:
        """The columns of a grouping set: all numbers, and the keys that it has."""
        chosen = set(numbers)
        return [
            column
            for column in self.columns.values()
            if not isinstance(column, KeyOutput) or _key_number(column.name) in chosen
        ]

    # -- the end -------------------------------------------------------------------------------

    def check(self) -> None:
        """Refuse a SELECT without aggregates, and what the scan would be asked and does not know."""
        if not self.collector.outputs:
            raise refuse("the statement has no aggregate; select COUNT(*), COUNT_IF(...) or SUM(column)", self.select)
        for node in self._private:
            check_admitted(node)

    def core(
        self, numbers: Sequence[int], columns: Sequence[CoreColumn], label: str, statement: str, *, whole: bool = False
    ) -> tuple[Core, tuple[Table, ...]]:
        """The core over the keys of those numbers, and the tables of its queries; ``whole``: it is all of a result."""
        # A line runs fastest.
        keys = tuple(sorted((self.keys[number] for number in numbers), key=lambda key: isinstance(key, RangeKey)))
        hints = hints_of(self.select)
        asked = (hints.weight, hints.max_error)
        collector = self.collector
        places: list[tuple[int, int]] = []
        outputs = [o for i, o in enumerate(collector.outputs) if i not in collector.units]
        own = count()
        queries: list[Query] = []
        tables: list[Table] = []
        if outputs:
            queries.append(Query(label, self.rows.table.name, keys, tuple(outputs), *asked))
            tables.append(self.computed.table())
        for number, output in enumerate(collector.outputs):
            if number not in collector.units:
                places.append((0, next(own)))
                continue
            units = distinct_table(self.computed.table(), collector.units[number], keys)
            places.append((len(queries), 0))
            queries.append(Query(label, units.name, keys, (output,), *asked))
            tables.append(units)
        core = Core(label, tuple(queries), tuple(places), tuple(columns))
        check_core(core, self.select, whole=whole)
        if long_key(keys) is None and core.rows * len(core.outputs) > MAX_ROWS:
            each = f" of {len(core.outputs):,} numbers" if len(core.outputs) > 1 else ""
            most = max(1, MAX_ROWS // len(core.outputs))
            fewer = (
                f"group by fewer columns, or coarser ones: drop or coarsen {to_drop(keys, most)}"
                if keys
                else "split it"
            )
            raise refuse(
                f"{statement} has {core.rows:,} groups{each}; at most {MAX_ROWS:,} numbers are released "
                f"by a statement; the most groups have {finest(keys) or 'no columns'}: {fewer}",
                self.select,
                code="too-many-groups",
            )
        return core, tuple(tables)


def _title(node: exp.Expression, name: str) -> str:
    return name or written(node)


@functools.cache
def _key_number(name: str) -> int:
    """The number of the key that k7 or k7l1 is a column of."""
    return int(name[1:].partition("l")[0])
