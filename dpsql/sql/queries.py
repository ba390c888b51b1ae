"""Queries: a SELECT as group keys and linear combinations of conditional counts and sums.

Every aggregate becomes terms ``coefficient * COUNT`` or ``coefficient * SUM(column)`` over
the rows that satisfy a condition. Clauses that work on results, not on rows, are refused
with the way to write them over the released view.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

from sqlglot import exp

from dpsql.policy import Policy
from dpsql.policy.values import fold as fold_name
from dpsql.sql.admitted import check_admitted
from dpsql.sql.literals import fold, is_constant
from dpsql.sql.names import result_names
from dpsql.sql.predicates import Resolve, not_null, truth
from dpsql.sql.refusals import clause_refusal, grouping_refusal, not_an_aggregate
from dpsql.sql.scope import find_column, find_table, key_domain
from dpsql.sql.statements import Statement, refuse
from dpsql.workload.batch import Column, KeyOutput, Output, Query, Table, Term
from dpsql.workload.conditions import FALSE, TRUE, And, Condition, gather, negate
from dpsql.workload.regions import KeyDomain

MAX_ROWS = 200_000

_GROUPINGS: dict[type[exp.Expr], str] = {
    exp.Rollup: "ROLLUP",
    exp.Cube: "CUBE",
    exp.GroupingSets: "GROUPING SETS",
}
_ANSWERED = {"expressions", "from_", "where", "group", "kind", "operation_modifiers"}


def understand(statements: Sequence[Statement], policy: Policy, tables: Mapping[str, Table]) -> tuple[Query, ...]:
    """Turn the statements of a batch into queries over declared columns.

    Raises SQLError at the first statement that cannot be answered, with its place.
    """
    return tuple(_understood(statement, policy, tables) for statement in statements)


def _understood(statement: Statement, policy: Policy, tables: Mapping[str, Table]) -> Query:
    try:
        return _query(statement, policy, tables)
    except RecursionError:
        pass
    raise refuse(
        f"an expression of {statement.name} nests too deeply: fold its constants and split long chains",
        statement.select.expressions[0] if statement.select.expressions else None,
    )


def _query(statement: Statement, policy: Policy, tables: Mapping[str, Table]) -> Query:
    select = statement.select
    for clause, value in select.args.items():
        if value and clause not in _ANSWERED:
            node = value[0] if isinstance(value, list) else value
            at = node if isinstance(node, exp.Expression) and node.meta else select
            raise refuse(clause_refusal(clause, statement.name), at)
    if select.args.get("kind"):
        raise refuse("SELECT AS STRUCT or VALUE is not answered; write plain columns", select)
    source = select.args.get("from_")
    if source is None:
        raise refuse("the statement reads no table; write FROM a table of the policy", select)
    table, alias = _source(source.this, statement, policy, tables)

    def resolve(node: exp.Column) -> Column:
        return find_column(table, node, alias)

    where = select.args.get("where")
    condition = truth(where.this, resolve).true if where is not None else TRUE
    keys = _keys(select, table, resolve)
    columns = _columns(statement, table, condition, keys, resolve)
    check_admitted(select)
    query = Query(
        statement.name,
        statement.named,
        statement.replace,
        table.name,
        tuple(keys.values()),
        columns,
        statement.weight,
        statement.text,
    )
    if query.rows * len(query.outputs) > MAX_ROWS:
        raise refuse(
            f"{statement.name} has {query.rows:,} groups; at most {MAX_ROWS:,} numbers are released by a "
            "statement: group by fewer columns",
            select,
        )
    return query


def _source(
    node: exp.Expression, statement: Statement, policy: Policy, tables: Mapping[str, Table]
) -> tuple[Table, str | None]:
    if isinstance(node, exp.Subquery):
        raise refuse("a derived table is not answered; write its condition into WHERE", node)
    if not isinstance(node, exp.Table):
        raise refuse("FROM takes one table of the policy", node)
    for clause, value in node.args.items():
        if value and clause not in {"this", "db", "catalog", "alias"}:
            raise refuse(clause_refusal(clause, statement.name), node)
    alias = node.args.get("alias")
    if alias is not None and alias.args.get("columns"):
        raise refuse("a table alias with column names is not answered; use the columns' own names", node)
    return find_table(node, policy, tables), (alias.name if alias is not None else None)


def _keys(select: exp.Select, table: Table, resolve: Resolve) -> dict[str, KeyDomain]:
    group = select.args.get("group")
    if group is None:
        return {}
    # Some versions of the parser hold ROLLUP and its like in arguments of GROUP BY, some among its items.
    for clause in ("grouping_sets", "cube", "rollup", "totals"):
        if group.args.get(clause):
            raise refuse(grouping_refusal(clause.upper().replace("_", " ")), select)
    for item in group.expressions:
        for kind, what in _GROUPINGS.items():
            if isinstance(item, kind):
                raise refuse(grouping_refusal(what), select)
    nodes: list[exp.Expression] = list(group.expressions)
    if group.args.get("all"):
        nodes.extend(_bare(item) for item in select.expressions if not _aggregates(item))
    keys: dict[str, KeyDomain] = {}
    for node in nodes:
        column = resolve(_key_column(node, select, table))
        keys[column.name] = key_domain(column, table, node)
    return keys


def _key_column(node: exp.Expression, select: exp.Select, table: Table) -> exp.Column:
    """The column behind a GROUP BY item: itself, a position in SELECT, or an alias."""
    if isinstance(node, exp.Paren):
        return _key_column(node.this, select, table)
    if isinstance(node, exp.Literal) and not node.is_string and str(node.this).isdecimal():
        position = str(node.this).lstrip("0")[:9]
        if not position or not 1 <= int(position) <= len(select.expressions):
            raise refuse(f"GROUP BY {str(node.this)[:20]} is not a position in SELECT", node)
        item = _bare(select.expressions[int(position) - 1])
        if isinstance(item, exp.Literal):
            raise refuse(f"GROUP BY {position} is a constant; group by a column with declared groups", node)
        return _key_column(item, select, table)
    if isinstance(node, exp.Column):
        known = fold_name(node.name) in {fold_name(name) for name in table.schema}
        if not known and not node.table:
            for item in select.expressions:
                if isinstance(item, exp.Alias) and fold_name(item.alias) == fold_name(node.name):
                    aliased = item.this.unnest()
                    # An alias names an expression, never another alias.
                    return aliased if isinstance(aliased, exp.Column) else _key_column(aliased, select, table)
        return node
    raise refuse(f"GROUP BY {node.sql('duckdb')[:60]} is not answered; group by a column with declared groups", node)


def _bare(item: exp.Expression) -> exp.Expression:
    return item.this if isinstance(item, exp.Alias) else item


def _aggregates(item: exp.Expression) -> bool:
    return any(isinstance(part, exp.AggFunc | exp.Filter) for part in item.walk())


def _columns(
    statement: Statement, table: Table, condition: Condition, keys: Mapping[str, KeyDomain], resolve: Resolve
) -> tuple[KeyOutput | Output, ...]:
    select = statement.select
    columns: list[KeyOutput | Output] = []
    for item in select.expressions:
        # DuckDB is asked for names below, once every expression is known to be admitted.
        name = str(item.alias)
        node = _bare(item)
        while isinstance(node, exp.Paren):
            node = node.this
        if isinstance(node, exp.Star) or (isinstance(node, exp.Column) and isinstance(node.this, exp.Star)):
            raise refuse("raw rows are private; select COUNT(*), SUM(column) or another aggregate", item)
        if isinstance(node, exp.Column):
            column = resolve(node)
            if column.name not in keys:
                raise refuse(
                    f"{column.name} is a raw value, which is private; aggregate it, or add it to GROUP BY", item
                )
            columns.append(KeyOutput(name, keys[column.name]))
        else:
            columns.append(_output(name, node, condition, table, resolve))
    if not any(isinstance(column, Output) for column in columns):
        raise refuse("the statement has no aggregate; select COUNT(*), COUNT_IF(...) or SUM(column)", select)
    return tuple(replace(column, name=name) for column, name in zip(columns, _names(statement, table), strict=True))


def _names(statement: Statement, table: Table) -> list[str]:
    select = statement.select
    items = select.expressions
    if statement.columns is not None and len(statement.columns) > len(items):
        raise refuse(
            f"view {statement.name} names {len(statement.columns)} columns, its SELECT has {len(items)}", select
        )
    names = result_names(items, table.schema, statement.items)
    for number, name in enumerate(statement.columns or ()):
        names[number] = name
    if "" in names:
        raise refuse(f"a column of {statement.name} has an empty name; give it an alias", select)
    seen: set[str] = set()
    for number, name in enumerate(names):
        unique, copy = name, 0
        while unique.lower() in seen:
            copy += 1
            unique = f"{name}_{copy}"
        seen.add(unique.lower())
        names[number] = unique
    return names


def _output(name: str, node: exp.Expression, where: Condition, table: Table, resolve: Resolve) -> Output:
    linear = _Linear(where, table, resolve)
    linear.add(node, Fraction(1))
    terms = tuple(
        Term(coefficient, condition, column)
        for (condition, column), coefficient in linear.terms.items()
        if coefficient and condition != FALSE
    )
    if not linear.aggregates:
        raise refuse(f"{node.sql('duckdb')[:60]} holds no aggregate and is no group key", node)
    return Output(name, terms, linear.constant)


class _Linear:
    """A linear expression over aggregates, collected into terms."""

    def __init__(self, where: Condition, table: Table, resolve: Resolve) -> None:
        self.where = where
        self.table = table
        self.resolve = resolve
        self.terms: dict[tuple[Condition, str | None], Fraction] = {}
        self.constant = Fraction(0)
        self.aggregates = 0

    def add(self, node: exp.Expression, factor: Fraction) -> None:
        """Add ``factor`` times the expression ``node``."""
        stack = [(node, factor)]
        while stack:
            part, scale = stack.pop()
            # Sums are taken apart before anything asks for constants, which would walk a long chain at every link.
            if isinstance(part, exp.Paren):
                stack.append((part.this, scale))
            elif isinstance(part, exp.Neg):
                stack.append((part.this, -scale))
            elif isinstance(part, exp.Add):
                stack.extend([(part.expression, scale), (part.this, scale)])
            elif isinstance(part, exp.Sub):
                stack.extend([(part.expression, -scale), (part.this, scale)])
            elif isinstance(part, exp.Mul) and is_constant(part.expression):
                stack.append((part.this, _scaled(scale, _factor(part.expression), part)))
            elif isinstance(part, exp.Mul) and is_constant(part.this):
                stack.append((part.expression, _scaled(scale, _factor(part.this), part)))
            elif isinstance(part, exp.Div) and is_constant(part.expression):
                divisor = _factor(part.expression)
                if not divisor:
                    raise refuse("division by zero", part)
                stack.append((part.this, _scaled(scale, 1 / divisor, part)))
            elif is_constant(part):
                self.constant += scale * _factor(part)
            else:
                self._aggregate(part, scale, self.where)

    def _term(self, condition: Condition, column: str | None, coefficient: Fraction) -> None:
        key = (condition, column)
        self.terms[key] = self.terms.get(key, Fraction(0)) + coefficient

    def _aggregate(self, node: exp.Expression, scale: Fraction, where: Condition) -> None:
        if isinstance(node, exp.Filter):
            kept = truth(node.expression.this, self.resolve).true
            self._aggregate(node.this, scale, gather(And, where, kept))
            return
        self.aggregates += 1
        if isinstance(node, exp.Count):
            self._count(node, scale, where)
        elif isinstance(node, exp.CountIf):
            self._term(gather(And, where, truth(node.this, self.resolve).true), None, scale)
        elif isinstance(node, exp.Sum):
            self._sum(node.this, scale, where)
        else:
            raise not_an_aggregate(node)

    def _count(self, node: exp.Count, scale: Fraction, where: Condition) -> None:
        argument = node.this
        if node.expressions:
            raise refuse("COUNT takes one argument", node)
        if isinstance(argument, exp.Star) and any(argument.args.values()):
            raise refuse("COUNT takes *, without EXCLUDE, REPLACE or RENAME", node)
        if isinstance(argument, exp.Star) or argument is None:
            self._term(where, None, scale)
        elif isinstance(argument, exp.Column):
            self._term(gather(And, where, not_null(self.resolve(argument))), None, scale)
        elif isinstance(argument, exp.Distinct):
            raise refuse("COUNT(DISTINCT ...) is not linear in the rows; GROUP BY the column's declared groups", node)
        elif is_constant(argument):
            if fold(argument) is not None:
                self._term(where, None, scale)
        else:
            raise refuse("COUNT takes *, a column or a constant; count conditions with COUNT_IF", node)

    def _sum(self, argument: exp.Expression, scale: Fraction, where: Condition) -> None:
        while isinstance(argument, exp.Paren):
            argument = argument.this
        if isinstance(argument, exp.Column):
            self._term(where, self._summed(argument), scale)
        elif isinstance(argument, exp.Case):
            self._case(argument, scale, where)
        elif is_constant(argument):
            if fold(argument) is not None:
                self._term(where, None, scale * _factor(argument))
        elif isinstance(argument, exp.Distinct):
            raise refuse("SUM(DISTINCT ...) is not linear in the rows; leave DISTINCT out", argument)
        else:
            raise refuse(
                f"SUM takes a column with declared bounds or a CASE over conditions, not "
                f"{argument.sql('duckdb')[:60]}; sum the columns one by one",
                argument,
            )

    def _case(self, node: exp.Case, scale: Fraction, where: Condition) -> None:
        """SUM over CASE: each branch is a sum over the rows that reach it."""
        if node.this is not None:
            raise refuse("write CASE WHEN condition THEN value ... END", node)
        reached = where
        for branch in node.args.get("ifs") or []:
            holds = truth(branch.this, self.resolve).true
            self._sum(branch.args["true"], scale, gather(And, reached, holds))
            reached = gather(And, reached, negate(holds))
        default = node.args.get("default")
        if default is not None:
            self._sum(default, scale, reached)

    def _summed(self, node: exp.Column) -> str:
        column = self.resolve(node)
        if not column.line.numeric:
            raise refuse(f"SUM needs a number; {column.name} holds {column.type}", node)
        if column.policy.lower is None or column.policy.upper is None:
            raise refuse(
                f"SUM({column.name}) needs bounds: add lower and upper to "
                f"{self.table.policy.key('columns', column.name)} in the policy",
                node,
            )
        return column.name


def _factor(node: exp.Expression) -> Fraction:
    value = fold(node)
    if isinstance(value, bool) or not isinstance(value, int | float | Fraction):
        raise refuse("only numbers can be added to or multiplied with an aggregate", node)
    exact = Fraction(value).limit_denominator(10**12) if isinstance(value, float) else Fraction(value)
    if abs(exact) > 10**12 or exact.denominator > 10**12:
        raise refuse("a coefficient lies between 1e-12 and 1e12 and has at most 12 decimals", node)
    return exact


def _scaled(scale: Fraction, factor: Fraction, node: exp.Expression) -> Fraction:
    """A product of coefficients, held to what ``_factor`` allows one of them."""
    exact = scale * factor
    if abs(exact) > 10**12 or exact.denominator > 10**12:
        raise refuse("the coefficients of an aggregate multiply to beyond 1e12 or finer than 1e-12", node)
    return exact
