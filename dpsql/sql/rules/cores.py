"""A core while its SELECT is read: GROUP BY's keys and grouping sets, and what is asked of the noisy table.

GROUPING SETS, ROLLUP and CUBE are the papers' data cubes: a query for each set of keys. dp_marginals(k, a, b, ...)
stands for all sets of 1 to k of its columns. dp_ranges(c) and dp_prefixes(c) are keys whose groups are
all ranges of the column's declared values, or all that begin at the first.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import combinations, count, pairwise, product
from math import comb, prod

from sqlglot import exp

from dpsql.common.quoting import identifier
from dpsql.errors import listed
from dpsql.policy.values import fold
from dpsql.sql.aggregate.aggregates import Collector, kind
from dpsql.sql.aggregate.joined_keys import joined
from dpsql.sql.aggregate.keys import key_of
from dpsql.sql.aggregate.pieces import makes_steps, pieces_of
from dpsql.sql.aggregate.range_keys import NAMES, check_core, range_key
from dpsql.sql.aggregate.statistics import Shown, is_two_valued
from dpsql.sql.aggregate.table import ARGUMENTS, CONSTANT, FORMULA, LINEAR, RANKED, Several
from dpsql.sql.parse.statements import hints_of, refuse
from dpsql.sql.parse.trees import nodes, written
from dpsql.sql.resolve.batch_tables import distinct_table, one_row_each, sums_table
from dpsql.sql.resolve.flatten import aggregates
from dpsql.sql.resolve.joins import RowScope
from dpsql.sql.resolve.select_names import SelectNames, unwrapped
from dpsql.sql.values.admitted import check_admitted
from dpsql.sql.values.computed import Computed
from dpsql.sql.values.literals import is_constant
from dpsql.sql.values.predicates import not_null, truth
from dpsql.sql.values.scope import Scope
from dpsql.workloads.expr.batch import (
    Column,
    Core,
    CoreColumn,
    Derived,
    Key,
    KeyOutput,
    Measured,
    Piece,
    Query,
    Ranked,
    Table,
    unit_sum_name,
)
from dpsql.workloads.expr.conditions import TRUE, And, Condition, LineAtom, gather
from dpsql.workloads.expr.formulas import Formula, Leaf, Root, Sum, leaves
from dpsql.workloads.expr.regions import KeyDomain
from dpsql.workloads.expr.within import Within

MAX_SETS = 2**15
_FEW_STEPS = 10

Resolved = Callable[[exp.Expression], exp.Expression]

_SETS = (exp.Rollup, exp.Cube, exp.GroupingSets)


@dataclass(frozen=True)
class Grouping:
    """``keys`` by canonical text, in order of appearance, and the grouping sets as numbers of keys."""

    keys: dict[str, Key]
    sets: tuple[tuple[int, ...], ...]

    @property
    def simple(self) -> bool:
        """Whether all keys are in the one grouping set."""
        return self.sets == (tuple(range(len(self.keys))),)


class _Keys:
    """Collects keys as GROUP BY names them."""

    def __init__(
        self, select: exp.Select, scope: Scope, canonical: Callable[[exp.Expression], str], resolved: Resolved
    ) -> None:
        self.select = select
        self.scope = scope
        self.canonical = canonical
        self.resolved = resolved
        self.keys: dict[str, Key] = {}

    def number(self, node: exp.Expression) -> int:
        """The number of the key that an item of GROUP BY names."""
        node = self.resolved(node)
        text = self.canonical(node)
        if text not in self.keys:
            name = _function(node)
            self.keys[text] = range_key(node, name, self.scope) if name in NAMES else key_of(node, self.scope)
        return list(self.keys).index(text)

    def sets(self, item: exp.Expression) -> list[tuple[int, ...]]:
        """The grouping sets that one item of GROUP BY stands for."""
        if isinstance(item, exp.Rollup):
            parts = [self.one(part) for part in item.expressions]
            return [sum(parts[:stop], ()) for stop in range(len(parts), -1, -1)]
        if isinstance(item, exp.Cube):
            parts = [self.one(part) for part in item.expressions]
            if 2 ** len(parts) > MAX_SETS:
                keys = list(self.keys.values())
                raise refuse(
                    f"CUBE of {len(parts)} makes 2^{len(parts)} groupings, at most {MAX_SETS:,} are released: cube at "
                    f"most {MAX_SETS.bit_length() - 1}, or write GROUP BY dp_marginals(2, ...) for pairs; "
                    f"the most groups have {finest([keys[number] for number in sorted(set(sum(parts, ())))])}",
                    item,
                    code="too-many-groups",
                )
            sizes = range(len(parts), -1, -1)
            return [sum(chosen, ()) for size in sizes for chosen in combinations(parts, size)]
        if isinstance(item, exp.GroupingSets):
            return [one for part in item.expressions for one in self.sets(part)]
        if _function(item) == "dp_marginals":
            return self.marginals(item)
        return [self.one(item)]

    def one(self, item: exp.Expression) -> tuple[int, ...]:
        """The keys of one element of a set: an expression, or several in parentheses; a constant item adds none."""
        if isinstance(item, exp.Tuple):
            return sum((self.one(part) for part in item.expressions), ())
        return () if is_constant(self.resolved(item)) else (self.number(item),)

    def marginals(self, item: exp.Expression) -> list[tuple[int, ...]]:
        order, *columns = item.expressions
        try:
            most = int(order.this) if isinstance(order, exp.Literal) and not order.is_string else 0
        except ValueError:
            most = 0
        if not 1 <= most <= len(columns):
            raise refuse(
                "dp_marginals takes how many columns to combine, from 1 to their number, and then the columns: "
                "dp_marginals(2, a, b, c)",
                item,
            )
        count = sum(comb(len(columns), size) for size in range(1, most + 1))
        if count > MAX_SETS:
            fits = [k for k in range(1, most) if sum(comb(len(columns), size) for size in range(1, k + 1)) <= MAX_SETS]
            fewer = f"combine at most {fits[-1]} of them, or name" if fits else "name"
            keys = [list(self.keys.values())[number] for number in sorted({self.number(c) for c in columns[:MAX_SETS]})]
            raise refuse(
                f"dp_marginals({most}) of {len(columns)} columns makes {count:,} groupings, at most {MAX_SETS:,} are "
                f"released: {fewer} fewer columns; the most groups have {finest(keys)}",
                item,
                code="too-many-groups",
            )
        numbers = [self.number(column) for column in columns]
        return [chosen for size in range(1, most + 1) for chosen in combinations(numbers, size)]


def group(
    select: exp.Select,
    scope: Scope,
    canonical: Callable[[exp.Expression], str],
    resolved: Resolved,
    every: Sequence[exp.Expression],
) -> Grouping:
    """The keys and grouping sets of a SELECT.

    ``canonical`` writes an expression so that equal ones are equal texts; ``resolved`` turns an item of GROUP BY
    (a position, an alias) into the expression that it stands for; ``every`` are the items that GROUP BY ALL means.
    Raises SQLError past 32,768 sets.
    """
    clause = select.args.get("group")
    if clause is None:
        return Grouping({}, ((),))
    keys = _Keys(select, scope, canonical, resolved)
    items: list[exp.Expression] = list(clause.expressions)
    # Some versions of the parser hold ROLLUP and its like in arguments of GROUP BY, some among its items.
    for argument in ("rollup", "cube", "grouping_sets"):
        items.extend(part for part in clause.args.get(argument) or [] if isinstance(part, _SETS))
    if clause.args.get("totals"):
        raise refuse("GROUP BY ... WITH TOTALS is not DuckDB's; write GROUP BY ROLLUP (...)", select)
    if clause.args.get("all"):
        items.extend(every)
    parts = [keys.sets(item) for item in items]
    count = 1
    for part in parts:
        count *= len(part)
        if count > MAX_SETS:
            raise refuse(
                f"GROUP BY makes more than {MAX_SETS:,} groupings; combine fewer columns; the most groups have "
                f"{finest(list(keys.keys.values()))}",
                select,
                code="too-many-groups",
            )
    sets = [tuple(sorted(set(sum(chosen, ())))) for chosen in product(*parts)]
    return Grouping(keys.keys, tuple(sets))


def finest(keys: Sequence[Key]) -> str:
    """The keys with the most groups, for messages: names and sizes, at most six."""
    ordered = sorted(keys, key=len, reverse=True)
    named = ", ".join(f"{_cut(key.name)} ({len(key):,})" for key in ordered[:6])
    return named + (" ..." if len(ordered) > 6 else "")


def to_drop(keys: Sequence[Key], most: int) -> str:
    """The fewest keys without which at most ``most`` groups are left, the most groups first, for messages."""
    ordered = sorted(keys, key=len, reverse=True)
    left = prod(len(key) for key in ordered)
    named: list[str] = []
    for key in ordered:
        left //= len(key)
        named.append(_cut(key.name))
        if left <= most:
            break
    return listed(named)


def _cut(name: str) -> str:
    return name if len(name) <= 30 else name[:27] + "..."


def _function(node: exp.Expression) -> str:
    """The folded name of a function that the parser does not know; empty for anything else."""
    return fold(str(node.this)) if isinstance(node, exp.Anonymous) else ""


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
        scope = Scope(self.rows.find, computed, truth)
        where = self.rows.where
        condition: Condition = TRUE if where is None else truth(where, scope).true
        condition = gather(And, self.rows.condition, condition)
        self.scope = replace(scope, within=Within(condition))
        self.collector = Collector(condition, self.scope, self.rows.is_unit)
        self.columns: dict[object, CoreColumn] = {}
        # What the scan answers, for the guard at the end.
        self._private: list[exp.Expr] = [] if where is None else [where]
        self.grouping = group(self.select, self.scope, names.canonical, self._grouped, self._every())
        self.keys: tuple[Key, ...] = tuple(self.grouping.keys.values())
        self.collector.by_unit = not any(key.name.startswith(tuple(NAMES)) for key in self.keys)
        self._key_numbers = {text: number for number, text in enumerate(self.grouping.keys)}
        # A key over an expression is a case key, or the domain of a computed column.
        self._has_expression_keys = any(
            not isinstance(key, KeyDomain) or fold(key.column) not in self.rows.table.columns for key in self.keys
        )

    def _every(self) -> list[exp.Expression]:
        """The items that GROUP BY ALL groups by."""
        return [
            unwrapped(item)
            for item in self.select.expressions
            if not aggregates(item) and kind(unwrapped(item)) != CONSTANT and not self._of_aliases(item)
        ]

    def _of_aliases(self, item: exp.Expression) -> bool:
        """Whether an item is worked out from others alone, by their aliases."""
        columns = [part for part in nodes(item) if isinstance(part, exp.Column)]
        return bool(columns) and all(
            not column.table and not self.names.is_column(column) and self.names.alias(column) is not None
            for column in columns
        )

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

    def number_column(self, node: exp.Expression, kind: int, name: str) -> str:
        """The column of a private number of that kind; ``name`` is what it is called where it is an item."""
        self._private.append(node)
        if kind == LINEAR:
            formula = self.collector.linear(node, name)
        elif kind == RANKED:
            ranked = self.collector.ranked(node)
            key: tuple[str, object] = ("ranked", ranked)
            if key not in self.columns:
                self.columns[key] = replace(ranked, name=f"m{len(self.columns)}", title=_title(node, name))
            return self.columns[key].name
        else:
            formula = self.collector.formula(node)
        if isinstance(formula, Leaf):
            return self._output(formula.index, node, name)
        return self._formula(formula, _title(node, name))

    def _formula(self, formula: Formula, title: str) -> str:
        key = ("formula", formula)
        if key not in self.columns:
            self.columns[key] = Derived(f"d{len(self.columns)}", formula, title=title)
        return self.columns[key].name

    def together(self, columns: Sequence[str], title: str) -> str | None:
        """The column of the numbers of several columns at once, which is there to be judged; None of fewer than two."""
        used = {at for name in columns for at in _outputs(self.column(name))}
        if len(columns) < 2 or len(used) < 2:
            return None
        return self._formula(Root(Sum(tuple(Leaf(at) for at in sorted(used)))), title)  # no more than a sum, not linear

    def several(self, node: exp.Expression, columns: Several) -> list[tuple[Shown, list[str]]]:
        """The ``columns`` that dp_regression and the like stand for, and of their rows what SQL says each is."""
        self._private.append(node)
        collector, function = self.collector, node
        while isinstance(function, exp.Paren | exp.Filter):
            if isinstance(function, exp.Filter):
                collector = collector.filtered(function)
            function = function.this
        found = []
        for column in columns(function, collector):
            title = f"{fold(str(function.this))}.{column.name}"
            rows = [
                written(exp.Literal.string(row)) if isinstance(row, str)
                else str(row) if isinstance(row, int)
                else identifier(self._formula(row, title))
                for row in column.rows
            ]  # fmt: skip
            found.append((column, rows))
        return found

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
        if not self.collector.outputs and any(isinstance(column, Ranked) for column in self.columns.values()):
            raise refuse("the statement is NULL for all data, as WHERE leaves no value of what it asks", self.select)
        if not self.collector.outputs:
            raise refuse("the statement has no aggregate; select COUNT(*), COUNT_IF(...) or SUM(column)", self.select)
        for node in self._private:
            check_admitted(node, ARGUMENTS)

    def core(
        self, numbers: Sequence[int], columns: Sequence[CoreColumn], label: str, statement: str, *, whole: bool = False
    ) -> tuple[Core, tuple[Table, ...]]:
        """The core over the keys of those numbers, and the tables of its queries; ``whole``: it is all of a result."""
        # A line runs fastest.
        keys = tuple(sorted((self.keys[number] for number in numbers), key=lambda key: not key.listed))
        hints = hints_of(self.select)
        asked = (hints.weight, hints.max_error)
        collector = self.collector
        places: list[tuple[int, int]] = []
        table = self.computed.table()
        rowwise = one_row_each(table, keys)  # then units need not be counted one by one
        shown = dict(zip(map(id, keys), joined(keys, table, self.scope.within), strict=True))
        keys = tuple({id(one.key): one.key for one in shown.values()}.values())
        columns = [
            replace(column, key=shown[id(column.key)].key, label=shown[id(column.key)].first + column.label)
            if isinstance(column, KeyOutput)
            else column
            for column in columns
        ]
        alone = {number: asked for number, asked in collector.separate.items() if asked[1] is not None or not rowwise}
        outputs = [o for i, o in enumerate(collector.outputs) if i not in alone]
        own = count()
        queries: list[Query] = []
        tables: list[Table] = []
        if outputs:
            queries.append(Query(label, self.rows.table.name, keys, tuple(outputs), *asked))
            tables.append(table)
        for number, output in enumerate(collector.outputs):
            if number not in alone:
                places.append((0, next(own)))
                continue
            counted = alone[number]
            if isinstance(counted[1], Column):
                units = sums_table(table, counted[0], keys, counted[1])
            else:
                units = distinct_table(table, counted[0], keys, counted[1])
            places.append((len(queries), 0))
            queries.append(Query(label, units.name, keys, (output,), *asked))
            tables.append(units)
        core = Core(label, tuple(queries), tuple(places), tuple(columns), self.rows.minimum)
        if core.minimum is not None:
            within = [output for at, output in enumerate(collector.outputs) if at not in alone]
            summed = {term.column for output in within for term in output.terms if term.column is not None}
            pieces = {name: self._pieces(name) for name in sorted(summed)}
            columns_now = {**table.columns}
            for column in (what for _, what in alone.values() if isinstance(what, Column)):
                name = unit_sum_name(column)
                columns_now[fold(name)] = replace(column, name=name)
                pieces[name] = self._pieces(column.name)
            core = replace(core, table=replace(table, columns=columns_now), pieces=pieces)
        check_core(core, self.select, whole=whole)
        most_numbers = self.rows.table.most_numbers
        if core.line is None and core.rows * len(core.outputs) > most_numbers:
            each = f" of {len(core.outputs):,} numbers" if len(core.outputs) > 1 else ""
            most = max(1, most_numbers // len(core.outputs))
            fewer = (
                f"group by fewer columns, or coarser ones: drop or coarsen {to_drop(keys, most)}"
                if keys
                else "split it"
            )
            separate = not any(key.name.startswith(tuple(NAMES)) for key in keys)  # a row is in one group at most
            if separate and len(core.outputs) == 1 and core.outputs[0].counts and most_numbers == Table.most_numbers:
                fewer += "; or list those groups alone that noise does not hide, with method='sparse'"
            raise refuse(
                f"{statement} has {core.rows:,} groups{each}; at most {most_numbers:,} numbers are released "
                f"by a statement; the most groups have {finest(keys) or 'no columns'}: {fewer}",
                self.select,
                code="too-many-groups",
            )
        return core, tuple(tables)

    def _pieces(self, column: str) -> tuple[Piece, ...] | None:
        """The pieces of a summed column; one that has two values by its bounds, or computed steps, is cut at each."""
        held = self.scope.column(column)
        node = self.computed.summed.get(column)
        pieces = (Piece(not_null(held), varying=column),) if node is None else pieces_of(node, self.scope)
        steps = held.line.high or 0 if held.line.kind == "grid" else 0
        if pieces is None or len(pieces) != 1 or not pieces[0].varying:
            return pieces
        if not is_two_valued(held) and not (1 <= steps <= _FEW_STEPS and node is not None and makes_steps(node)):
            return pieces
        lower, upper = held.ends
        places: list[Fraction | float | str] = [*map(Fraction, range(1, steps + 1))]
        places = places or [held.line.place((lower + upper) / 2)]
        cuts = [None, *map(held.line.below, places), None]
        values = [lower + (upper - lower) * k / len(places) for k in range(len(places) + 1)]
        return tuple(
            Piece(gather(And, pieces[0].condition, LineAtom(column, (part,))), value)
            for value, part in zip(values, pairwise(cuts), strict=True)
        )


def _title(node: exp.Expression, name: str) -> str:
    return name or written(node)


def _outputs(column: CoreColumn) -> Iterator[int]:
    """The outputs that a column is worked out of."""
    if isinstance(column, Measured):
        yield column.output
    elif isinstance(column, Derived):
        yield from leaves(column.formula)
    elif isinstance(column, Ranked):
        yield column.prefixes[-1]


@functools.cache
def _key_number(name: str) -> int:
    """The number of the key that k7 or k7l1 is a column of."""
    return int(name[1:].partition("l")[0])
