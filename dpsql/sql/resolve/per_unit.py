"""Aggregates of each unit: ``SELECT patient_id, COUNT(*) AS n FROM visits GROUP BY patient_id`` as rows of units.

A derived table that groups by the privacy unit has one row for each unit, which follows from the rows of that unit
alone. So it is a table like any other, of one row a unit, whose columns are the aggregates; what is computed of them,
HAVING included, is written into the SELECT that reads it. Guarantee and proof: ``dpsql.workloads.expr.rows``.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

from sqlglot import exp

from dpsql.errors import SQLError
from dpsql.policy import ColumnPolicy, Policy, TablePolicy
from dpsql.policy.settings import fix
from dpsql.policy.types import column_type
from dpsql.policy.values import fold
from dpsql.sql.aggregate.keys import key_of
from dpsql.sql.aggregate.table import aggregate_of, answered
from dpsql.sql.parse.quoted import shown
from dpsql.sql.parse.statements import refuse
from dpsql.sql.parse.trees import called, made_column, standing_for
from dpsql.sql.resolve.flatten import Base, Rows, aggregates
from dpsql.sql.resolve.joins import RowScope
from dpsql.sql.resolve.relations import relations_of
from dpsql.sql.resolve.select_names import SelectNames, unwrapped
from dpsql.sql.values.computed import Computed
from dpsql.sql.values.expressions import lowered, row_value, value_of
from dpsql.sql.values.predicates import truth
from dpsql.sql.values.scope import Scope, declaring
from dpsql.sql.values.typed import Typed, exact, flat, type_of
from dpsql.sql.values.typed import whole as as_type
from dpsql.workloads.expr.batch import Column, Table
from dpsql.workloads.expr.cap import Cap
from dpsql.workloads.expr.conditions import TRUE, And, Condition, LineAtom, gather
from dpsql.workloads.expr.lines import Line, line_of
from dpsql.workloads.expr.regions import KeyDomain
from dpsql.workloads.expr.rows import EVERY, Along, OfUnit, RowSource, Units
from dpsql.workloads.expr.values import Cast, Constant, Stored, Test

# A derived table with one of these looks at several units at once.
_OVER_UNITS = ("distinct", "limit", "offset", "qualify", "windows", "sample", "pivots", "laterals")
_MOST = 2**62
_LONGEST = 60


def is_per_unit(select: exp.Select, rows: RowScope) -> bool:
    """Whether a SELECT with GROUP BY groups by the unit of its rows."""
    group = select.args.get("group")
    if group is None or rows.table.source is None or rows.table.source.unit is None:
        return False
    names = SelectNames(select, rows)
    return rows.table.source.unit.name == EVERY or any(rows.is_unit(names.meant(item)) for item in _items(select))


def units_of(
    select: exp.Select, rows: RowScope, computed: Computed, names: Sequence[str], *, several: bool = False
) -> tuple[list[Table], Rows]:
    """The tables of units that a SELECT makes of ``rows``, and the SELECT's columns over one, called ``names``.

    There are two where it has HAVING: an outer join reads the one that keeps to it by itself. ``computed`` keeps what
    is computed for each row. Where a unit may have ``several`` rows they are by further columns, too. Raises SQLError
    for other groups that do not follow from the unit, and for clauses and
    aggregates that are not answered.
    """
    for clause in _OVER_UNITS:
        if select.args.get(clause):
            raise refuse(
                f"{clause.upper()} beside GROUP BY {_unit(rows).name} looks at several units at once; leave it out",
                select,
                code="per-unit",
            )
    draft = _Draft(select, rows, computed, several)
    columns = tuple((name, draft.over(item)) for name, item in zip(names, select.expressions, strict=True))
    having = select.args.get("having")
    where = None if having is None else draft.over(having.this)
    if where is None:
        table = draft.table(None)
        return [table], draft.over_table(table, None, columns)
    table, few = draft.table(None), draft.table(where)
    return [table, few], replace(draft.over_table(table, where, columns), filtered=draft.over_table(few, None, columns))


def public_rows(select: exp.Select, policy: Policy, tables: Mapping[str, Table]) -> RowScope | None:
    """The rows of one public table by the column that a SELECT groups by, all together by TRUE; None for any other."""
    relations = relations_of(select, policy, tables).every
    if len(relations) != 1 or not relations[0].table.policy.public or not _items(select):
        return None
    relation = relations[0]
    table = relation.table
    where = select.args.get("where")
    columns = {
        fold(name): Column(name, kind, line_of(kind), ColumnPolicy(name, where=table.policy.key("columns", name)))
        for name, kind in table.schema.items()
        if column_type(kind).kind != "other"
    }
    columns |= table.columns
    alone = RowScope.alone(replace(relation, table=replace(table, columns=columns)), where and where.this)
    key = SelectNames(select, alone).meant(_items(select)[0])
    if isinstance(key, exp.Boolean):
        unit = Stored(EVERY, "BOOLEAN")
    elif isinstance(key, exp.Column):
        name = alone.find(key).name
        unit = Stored(name, table.schema[name])
    else:
        return None
    of = None if table.source is None else table.source.of
    again = of is not None and unit.name == of.unit
    source = RowSource(
        table.name if of is None else of.of.table,
        unit=unit,
        limit=1 if again else _MOST,
        protects=f"nothing: {table.policy.name} is public",
        single=again,
        of=of,
        public=True,
    )
    return RowScope.alone(replace(relation, table=replace(alone.table, source=source)), alone.where)


def _items(select: exp.Select) -> list[exp.Expression]:
    clause = select.args["group"]
    items = list(clause.expressions)
    if clause.args.get("all"):
        items += [unwrapped(item) for item in select.expressions if not aggregates(item)]
    return items


def _unit(rows: RowScope) -> Stored:
    unit = rows.table.source.unit if rows.table.source is not None else None
    assert unit is not None  # noqa: S101 - rows without a unit are not grouped by one
    return unit


@dataclass
class _Draft:
    """The columns of a table of units while a SELECT is read."""

    select: exp.Select
    rows: RowScope
    computed: Computed
    several: bool = False
    # By function, canonical text and condition.
    _aggregates: dict[tuple[str, str, Condition], tuple[OfUnit, Column]] = field(default_factory=dict)
    along: tuple[Along, Column] | None = None

    def __post_init__(self) -> None:
        self.names = SelectNames(self.select, self.rows)
        self.scope = Scope(self.rows.find, self.computed, truth)
        where = TRUE if self.rows.where is None else truth(self.rows.where, self.scope).true
        self.where: Condition = gather(And, self.rows.condition, where)
        self.unit = _unit(self.rows)
        self.alias = f"{self.rows.table.policy.name} by {self.unit.name}"
        source = self.rows.table.source
        assert source is not None  # noqa: S101 - as above
        self.source: RowSource = source
        for argument in ("rollup", "cube", "grouping_sets", "totals"):
            if self.select.args["group"].args.get(argument):
                raise self._several(self.select)
        self.keys = [self.names.meant(item) for item in _items(self.select)]
        follows = set(self._following())
        self.further: dict[str, exp.Expression] = {}
        for key in self.keys:
            if isinstance(key, exp.Rollup | exp.Cube | exp.GroupingSets | exp.Tuple):
                raise self._several(key)
            for column in key.find_all(exp.Column):
                if not self.rows.is_unit(column) and self._source(column) not in follows:
                    if not self.several or self.source.public:
                        raise self._several(column)
                    self.further[self.names.canonical(key)] = key
        self._keys = {self.names.canonical(key) for key in self.keys if not self.rows.is_unit(key)}

    def _several(self, node: exp.Expr) -> Exception:
        return refuse(
            f"GROUP BY {self.unit.name} with {shown(node)} beside it may have several rows of a unit; group by "
            f"{self.unit.name} alone, and write MIN, MAX or COUNT_IF of the rest",
            node,
            code="per-unit",
        )

    def _following(self) -> Iterator[str]:
        """The joins whose row is one for all rows of a unit: found by the unit, or by what such a join found."""
        if self.source.single:
            yield ""
        known: set[str] = set()
        for join in self.source.joins:
            if all(left == self.unit or left.source in known for left, _ in join.pairs):
                known.add(join.name)
                yield join.name

    def _source(self, node: exp.Column) -> str:
        column = self.rows.find(node)
        return column.value.source if isinstance(column.value, Stored) else ""

    # -- expressions -----------------------------------------------------------------------------

    def over(self, item: exp.Expression) -> exp.Expression:
        """An item of SELECT or a condition of HAVING over the columns of the table of units."""
        item = item.this if isinstance(item, exp.Alias) else item
        aliased = isinstance(item, exp.Column) and not item.table and not self.names.is_column(item)
        if aliased and isinstance(item, exp.Column):
            item = self.names.alias(item) or item
        return self._over(item.copy())

    def _over(self, node: exp.Expression) -> exp.Expression:
        if not isinstance(node, exp.Column) and self.further and self.names.canonical(node) in self.further:
            return standing_for(self.one_row(node, node, None, TRUE, "min"), node)
        if isinstance(node, exp.Ordered):
            return self._along(node)
        inner: exp.Expression = node
        where: Condition = TRUE
        if isinstance(node, exp.Filter):
            inner, where = node.this, truth(node.expression.this, self.scope).true
        elif isinstance(node, exp.IgnoreNulls) and isinstance(node.this, exp.AnyValue):
            inner = node.this
        if inner is not node or isinstance(node, exp.AggFunc):
            return standing_for(self._aggregate(inner, where, node), node)
        if isinstance(node, exp.Window | exp.WithinGroup | exp.Query):
            raise self._unanswered(node)
        if isinstance(node, exp.Column):
            return standing_for(self._column(node), node)
        for name, value in list(node.args.items()):
            if isinstance(value, list):
                node.set(name, [self._over(part) if isinstance(part, exp.Expression) else part for part in value])
            elif isinstance(value, exp.Expression) and not isinstance(value, exp.DataType | exp.Identifier):
                node.set(name, self._over(value))
        return node

    def _column(self, node: exp.Column) -> exp.Expression:
        if not node.table and not self.names.is_column(node):
            meant = self.names.alias(node)
            if meant is not None:
                return exp.Paren(this=self._over(meant.copy()))
        if self.rows.is_unit(node):
            return self._named(self.unit.name)
        canonical = self.names.canonical(node)
        if canonical not in self._keys:
            raise refuse(
                f"{shown(node)} has a value in each row of a unit; write MIN, MAX or another aggregate of it, or add "
                "it to GROUP BY",
                node,
                code="per-unit",
            )
        return self.one_row(node, node, None, TRUE, "min")

    def _aggregate(self, node: exp.Expression, where: Condition, whole_node: exp.Expression) -> exp.Expression:
        aggregate = aggregate_of(node)
        if aggregate is None or aggregate.unit is None or not aggregate.reads(node):
            raise self._unanswered(node)
        made = aggregate.unit(self, node, whole_node, where)
        return made if isinstance(made, exp.Column) else called(made, whole_node.sql("duckdb", comments=False))

    def _unanswered(self, node: exp.Expression) -> Exception:
        return refuse(
            f"{shown(node)} over the rows of a unit is not answered; write one of {answered(units=True)}",
            node,
            code="per-unit",
        )

    def _along(self, node: exp.Ordered) -> exp.Expression:
        """The value for each of which there is a row: no SQL says so, but what ``semi_joins`` makes of EXISTS."""
        value, line, column = row_value(node.this, self.scope)
        name = self._fresh("".join(c if c.isprintable() else " " for c in node.this.sql("duckdb"))[:_LONGEST])
        policy = copy.copy(column.policy)
        fix(policy, "name", name)
        fix(policy, "nulls", True)
        fix(policy, "public", False)
        self.computed.column(value, line, line.type, name)
        self.along = Along(name, value, line, not node.args.get("desc")), Column(name, column.type, line, policy)
        return self._named(name)

    # -- aggregates ------------------------------------------------------------------------------

    @property
    def most(self) -> int:
        """The most rows of a unit."""
        return self.source.limit

    def counted(self, whole: exp.Expression, where: Condition, what: str = "") -> exp.Expression:
        """How many rows of the unit satisfy a condition: at most the declared number of its rows."""
        line = Line("integer", "BIGINT", 0, _MOST)
        least = Fraction(int(where == TRUE))
        policy = ColumnPolicy("n", lower=least, upper=Fraction(self.most), nulls=False)
        one = Constant(1, "BIGINT")
        each = Line("integer", "BIGINT", 1, 1)
        return self._aggregated(whole, OfUnit("", "count", one, each, line), where, "BIGINT", policy, what)

    def summed(self, whole: exp.Expression, argument: exp.Expression, where: Condition) -> exp.Expression:
        """The sum of whole numbers or decimals: between so many least and so many greatest values."""
        level = self.whole_number(argument, "SUM")
        most = self.most
        low, high = min(level.low, level.low * most), max(level.high, level.high * most)
        unit = None if level.unit == 1 else level.unit
        line = Line("integer", "HUGEINT", -_MOST, _MOST, unit=unit)
        policy = ColumnPolicy("s", lower=low * level.unit, upper=high * level.unit, nulls=level.nulls or where != TRUE)
        each = Line("integer", "BIGINT", level.low, level.high)
        made = OfUnit("", "sum", as_type(level.value, "BIGINT"), each, line)
        return self._aggregated(whole, made, where, "HUGEINT", policy)

    def whole_number(self, argument: exp.Expression, called: str) -> Typed:
        """The argument of a SUM and the like, each row clamped to the declared bounds, as a multiple of a whole number.

        ``called``: the aggregate, for messages.
        """
        t = value_of(argument, self.scope, clamped=True)
        if t.kind == "boolean":
            t = exact(Cast(t.value, "BIGINT"), 0, 1, "integer", t)
        if t.kind != "exact":
            raise refuse(
                f"{called}({shown(argument)}) of a unit adds up whole numbers and decimals alone, as the sum of "
                "DOUBLEs depends on their order; declare a step for the column, or write CAST(... AS DECIMAL(18, 2))"
                if t.numeric
                else f"{called} of a unit needs numbers; {shown(argument)} is {t.words}",
                argument,
                code="per-unit",
            )
        if t.gap:
            around = "write LEAST(GREATEST(..., 0), 100) around it"
            remedy = declaring("lower and upper", self.scope.column(t.gap[0]).policy, "")
            raise refuse(
                f"{called}({shown(argument)}) needs bounds: {remedy + ', or ' if remedy else ''}{around}",
                argument,
                code="no-bounds",
            )
        level = flat(t, argument)
        if type_of(level.low, level.high) != "BIGINT":
            raise refuse(
                f"{called}({shown(argument)}) adds up numbers of more than 64 bits for a unit; use smaller ones",
                argument,
                code="overflow",
            )
        return level

    def middle(self, whole: exp.Expression, level: Typed, where: Condition) -> exp.Expression:
        """The median of whole numbers."""
        nulls = level.nulls or where != TRUE
        policy = ColumnPolicy("m", lower=Fraction(level.low), upper=Fraction(level.high), nulls=nulls)
        value, line = as_type(level.value, "BIGINT"), line_of("DOUBLE")
        each = Line("integer", "BIGINT", level.low, level.high)
        return self._aggregated(whole, OfUnit("", "median", value, each, line), where, "DOUBLE", policy)

    def distinct(self, whole: exp.Expression, argument: exp.Expr, where: Condition) -> exp.Expression:
        """How many values the rows of a unit have: at most the declared number of its rows."""
        value, each, _ = row_value(argument, self.scope)
        line = Line("integer", "BIGINT", 0, _MOST)
        policy = ColumnPolicy("n", lower=Fraction(0), upper=Fraction(self.most), nulls=False)
        return self._aggregated(whole, OfUnit("", "distinct", value, each, line), where, "BIGINT", policy)

    def one_row(
        self,
        whole: exp.Expression,
        argument: exp.Expression,
        by: exp.Expression | None,
        where: Condition,
        function: str,
    ) -> exp.Expression:
        """A value that a row of the unit has, with the declared domain of its column; ``by`` says which row."""
        value, line, column = row_value(argument, self.scope)
        kind = {"text": "VARCHAR", "real": "DOUBLE"}.get(line.kind, column.type)
        policy = copy.copy(column.policy)
        fix(policy, "nulls", column.policy.nulls or where != TRUE or by is not None)
        fix(policy, "public", False)
        key = None if by is None else row_value(by, self.scope)[:2]
        return self._aggregated(whole, OfUnit("", function, value, line, line, key), where, kind, policy)

    def _aggregated(
        self,
        node: exp.Expression,
        made: OfUnit,
        where: Condition,
        kind: str,
        policy: ColumnPolicy,
        what: str = "",
    ) -> exp.Expression:
        """The column of an aggregate, one for equal ones, which gives ``made`` its name and its condition."""
        key = f"{what} {made.function}", self.names.canonical(node), where
        if key not in self._aggregates:
            text = " ".join([*([what] if what else []), node.sql("duckdb", comments=False)])
            name = self._fresh("".join(c if c.isprintable() else " " for c in text)[:_LONGEST])
            policy = copy.copy(policy)
            fix(policy, "name", name)
            condition = None if where == TRUE else lowered(where, self.scope)
            made = replace(made, name=name, where=condition)
            for part, its_line in ((made.value, made.each), *((made.by,) if made.by is not None else ())):
                self.computed.column(part, its_line, its_line.type, text)  # its cost is checked over all of a batch
            self._aggregates[key] = made, Column(name, kind, made.line, policy)
        return self._named(self._aggregates[key][1].name)

    def _named(self, name: str) -> exp.Column:
        return made_column(exp.to_identifier(name, quoted=True), exp.to_identifier(self.alias, quoted=True))

    def _fresh(self, text: str) -> str:
        taken = {fold(self.unit.name), *(fold(column.name) for column in self._columns())}
        name, copies = text, 1
        while fold(name) in taken:
            copies += 1
            name = f"{text} #{copies}"
        return name

    def _columns(self) -> list[Column]:
        return [column for _, column in (*self._aggregates.values(), *([] if self.along is None else [self.along]))]

    # -- the table -------------------------------------------------------------------------------

    def over_table(
        self, table: Table, where: exp.Expression | None, columns: Sequence[tuple[str, exp.Expression]]
    ) -> Rows:
        """The rows of a table of units where a condition of HAVING holds, with these columns."""
        node = exp.Table(this=exp.to_identifier(table.name, quoted=True))
        node.set("alias", exp.TableAlias(this=exp.to_identifier(self.alias, quoted=True)))
        return Rows((Base(self.alias, node, tuple(table.schema)),), (), where, tuple(columns))

    def table(self, having: exp.Expression | None) -> Table:
        """The table of units with all that was asked of it; where ``having`` holds, a condition over its columns."""
        base, unit = self.rows.table, self.unit
        where = None if self.where == TRUE else lowered(self.where, self.scope)
        made = tuple(column for column, _ in self._aggregates.values())
        columns = {fold(column.name): column for column in self._columns()}
        kind = "VARCHAR" if unit.type.upper().startswith("ENUM") else unit.type
        own = base.columns.get(fold(unit.name)) if not unit.source else None
        if own is not None:
            columns[fold(unit.name)] = replace(own, type=kind, value=None)
        schema = {unit.name: kind, **{column.name: column.line.type for column in self._columns()}}
        found = Table("", TablePolicy(base.policy.name, public=True, where=base.policy.where), columns, schema)
        found = replace(found, evaluate=base.evaluate)
        kept = None if having is None else self._test(having, found)
        along = None if self.along is None else self.along[0]
        keys = tuple((shown(key), *row_value(key, self.scope)[:2]) for key in self.further.values())
        units = Units(self.source, where, unit.name, made, kept, along, keys)
        name = f"{base.name} by {unit.name} #{hashlib.sha256(repr(units).encode()).hexdigest()[:16]}"
        source = RowSource(
            self.source.table,
            unit=Stored(unit.name, kind),
            limit=self.source.limit if keys else 1,
            protects=self.source.protects,
            caps=self._one_each(),
            single=not keys,
            of=units,
        )
        return replace(found, name=name, policy=self._policy(), source=source)

    def _one_each(self) -> tuple[Cap, ...]:
        """That a unit has one row in each group of the one further column, if it is shown and its groups declared."""
        if len(self.further) != 1:
            return ()
        ((text, node),) = self.further.items()
        shown_as = self._aggregates.get((" min", text, TRUE))
        try:
            key = key_of(node, self.scope)
        except SQLError:
            return ()
        if shown_as is None or not isinstance(key, KeyDomain):
            return ()
        column = shown_as[1]
        if column.policy.other:  # several values that are not declared are several rows, in one group
            return ()
        parts = tuple(LineAtom(column.name, (point,)) for point in key.points if point is not None)
        if self.computed.named(key.column).line != column.line or not parts:
            return ()
        return (Cap(column.name, column.line, None, parts, 1, None, f"1 row for each value of {shown(node)}"),)

    def _policy(self) -> TablePolicy:
        base, unit = self.rows.table.policy, self.unit
        if base.public:
            return TablePolicy(base.name, public=True, unique=(unit.name,), where=base.where)
        reference = base.references.get(unit.name) if not unit.source else None
        references = {} if reference is None else {unit.name: reference}
        return TablePolicy(
            base.name,
            unit=unit.name,
            max_rows_per_unit=self.source.limit if self.further else 1,
            minimum=base.minimum,
            unique=() if self.further else (unit.name,),
            references=references,
            where=base.where,
        )

    def _test(self, having: exp.Expression, table: Table) -> Test:
        """A condition over the columns of a table of units, as the scan asks it."""

        def column_of(node: exp.Column) -> Column:
            column = table.columns.get(fold(node.name))
            if column is None:  # the unit's own, of which a policy need not say anything
                raise refuse(
                    f"column {self.unit.name} of {table.policy.name} is not declared in the policy, so it cannot be "
                    f"used; the custodian may add it under {table.policy.key('columns')}",
                    node,
                    code="unknown-column",
                )
            return column

        scope = Scope(column_of, Computed(table), truth)
        return lowered(truth(having, scope).true, scope)
