"""PIVOT as the SELECT that it stands for: GROUP BY, and each aggregate with a FILTER for each value of ON.

In DuckDB the values of a column without IN are those that its rows hold, and so are the columns of the result. Here
they are the declared ones: which columns a result has must not depend on the rows.
"""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Callable, Sequence
from decimal import Decimal
from fractions import Fraction
from math import prod

from sqlglot import exp

from dpsql.policy.values import fold
from dpsql.sql.parse.names import result_names, text_of
from dpsql.sql.parse.quoted import shown
from dpsql.sql.parse.statements import refuse
from dpsql.sql.values.literals import is_constant
from dpsql.workloads.expr.batch import CaseKey, Key
from dpsql.workloads.expr.lines import Scalar
from dpsql.workloads.expr.regions import KeyDomain

MAX_COLUMNS = 1_000

Values = Callable[[exp.Expression], Sequence[Scalar] | None]
"""The values that a column of what is read can have; None where they are not declared."""


def in_from(node: exp.Expression) -> exp.Pivot | None:
    """FROM t PIVOT (sum(n) FOR a IN (...)) as PIVOT t ON a IN (...) USING sum(n); None where FROM has no PIVOT."""
    pivots = node.args.get("pivots")
    if not pivots:
        return None
    pivot = pivots[0]
    if len(pivots) > 1 or pivot.args.get("unpivot"):
        raise refuse("FROM takes one PIVOT and no UNPIVOT; write UNION ALL", node)
    source = node.copy()
    source.set("pivots", None)
    source.set("alias", None)
    fields = [field.copy() for field in pivot.args.get("fields") or []]
    using = [one.copy() for one in pivot.expressions]
    return exp.Pivot(this=source, expressions=fields, using=using, group=pivot.args.get("group"))


def pivoted(pivot: exp.Pivot, names: Sequence[str], values: Values, *, private: bool) -> exp.Select:
    """The SELECT that a PIVOT stands for, over the very same item of FROM.

    ``names`` are the columns of what it reads, ``private`` whether those are rows. Raises SQLError where the values of
    ON are unknown, for too many columns, and for UNPIVOT.
    """
    if pivot.args.get("unpivot"):
        raise refuse("UNPIVOT is not answered; write UNION ALL of one SELECT for each column", pivot)
    using = list(pivot.args.get("using") or []) or [None]
    fields = [_field(part, values) for part in pivot.expressions]
    count = prod(len(held) for _, held in fields) * len(using)
    if count > MAX_COLUMNS:
        raise refuse(
            f"PIVOT makes {count:,} columns, at most {MAX_COLUMNS:,} are answered: list fewer values with IN, or GROUP "
            "BY the column",
            pivot,
            code="too-many-groups",
        )
    group = pivot.args.get("group")
    keys = list(group.expressions) if group is not None else _others(pivot, names, private)
    suffixes = _suffixes(using, names)
    items: list[exp.Expression] = [key.copy() for key in keys]
    for chosen in itertools.product(*(held for _, held in fields)):
        tests = [_equals(field, value) for (field, _), (value, _) in zip(fields, chosen, strict=True)]
        for one, suffix in zip(using, suffixes, strict=True):
            name = "_".join([*(text for _, text in chosen), *suffix])
            items.append(exp.Alias(this=_filtered(one, tests), alias=exp.to_identifier(name, quoted=True)))
    out = exp.Select(expressions=items, from_=exp.From(this=pivot.this))
    if keys:
        out.set("group", exp.Group(expressions=[key.copy() for key in keys]))
    return out


def labels_of(key: Key) -> tuple[Scalar, ...]:
    """The values of a key's groups, without NULL and OTHER."""
    if isinstance(key, KeyDomain):
        return tuple(key.values)
    return tuple(label for label in key.labels[0].values if label is not None) if isinstance(key, CaseKey) else ()


def _field(part: exp.Expression, values: Values) -> tuple[exp.Expression, list[tuple[exp.Expression, str]]]:
    """A column of ON, and its values with their texts."""
    if isinstance(part, exp.In):
        listed = []
        for one in part.expressions:
            named = isinstance(one, exp.PivotAlias | exp.Alias)
            value = one.this if named else one
            if not is_constant(value):
                raise refuse("PIVOT ... IN takes constants", one)
            listed.append((value, str(one.alias) if named else text_of(value)))
        if not listed:
            raise refuse("PIVOT ... IN takes one constant at least", part)
        return part.this, listed
    found = values(part)
    if not found:
        raise refuse(
            f"PIVOT ON {shown(part)} needs its values, which are the columns of the result; write ON "
            f"{shown(part)} IN (...)",
            part,
            code="unknown-groups",
        )
    texts = [(value, text_of(value)) for value in map(_constant, found)]
    return part, sorted(texts, key=lambda pair: pair[1])  # DuckDB sorts the texts


def _others(pivot: exp.Pivot, names: Sequence[str], private: bool) -> list[exp.Expression]:
    """The columns that a PIVOT without GROUP BY groups by: all that it does not name."""
    if private:
        raise refuse(
            "PIVOT without GROUP BY groups by all other columns; write GROUP BY with those that you want", pivot
        )
    parts = [*pivot.expressions, *(pivot.args.get("using") or [])]
    used = {fold(column.name) for part in parts for column in part.find_all(exp.Column)}
    return [exp.column(exp.to_identifier(name, quoted=True)) for name in names if fold(name) not in used]


def _suffixes(using: Sequence[exp.Expression | None], names: Sequence[str]) -> list[list[str]]:
    """What follows the values in the name of a column: the alias of its aggregate, of several also DuckDB's name."""
    schema = dict.fromkeys(names, "DOUBLE")
    found: list[list[str]] = []
    for one in using:
        if one is None or (len(using) == 1 and not isinstance(one, exp.Alias)):
            found.append([])
        else:
            found.append([one.alias if isinstance(one, exp.Alias) else result_names([one], schema)[0]])
    return found


def _filtered(using: exp.Expression | None, tests: Sequence[exp.Expression]) -> exp.Expression:
    """An aggregate over the rows of one value."""
    node = (
        exp.Count(this=exp.Star()) if using is None else (using.this if isinstance(using, exp.Alias) else using).copy()
    )
    held = list(tests)
    if isinstance(node, exp.Filter):
        held.append(exp.Paren(this=node.expression.this))
        node = node.this
    if not isinstance(node, exp.AggFunc | exp.WithinGroup):
        raise refuse("PIVOT ... USING takes aggregates", using)
    where = held[0]
    for test in held[1:]:
        where = exp.And(this=where, expression=test)
    return exp.Filter(this=node, expression=exp.Where(this=where))


def _equals(field: exp.Expression, value: exp.Expression) -> exp.Expression:
    if isinstance(value, exp.Null):
        return exp.Is(this=field.copy(), expression=exp.Null())
    return exp.EQ(this=field.copy(), expression=value.copy())


def _constant(value: Scalar) -> exp.Expression:
    """A value as SQL writes it."""
    if isinstance(value, bool):
        return exp.Boolean(this=value)
    if isinstance(value, str):
        return exp.Literal.string(value)
    if isinstance(value, dt.date):
        kind = exp.DType.TIMESTAMP if isinstance(value, dt.datetime) else exp.DType.DATE
        text = value.replace(tzinfo=None).isoformat(" ") if isinstance(value, dt.datetime) else value.isoformat()
        return exp.Cast(this=exp.Literal.string(text), to=exp.DataType(this=kind))
    number = str(Decimal(value.numerator) / Decimal(value.denominator)) if isinstance(value, Fraction) else str(value)
    found: exp.Expression = exp.Literal.number(number.removeprefix("-"))
    return exp.Neg(this=found) if number.startswith("-") else found
