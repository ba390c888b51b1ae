"""What the parser may say of an admitted node: an argument that nobody reads must not be lost.

The parser marks some of a text's meaning in arguments of a node: NOT LIKE as a mark on LIKE,
RESPECT NULLS, EXCLUDE, a cast's format. Whatever is set and is not listed here is refused.
"""

from __future__ import annotations

from collections.abc import Mapping

from sqlglot import exp

from dpsql.sql.parse.statements import refuse
from dpsql.sql.parse.trees import nodes
from dpsql.sql.values.functions import NAMED
from dpsql.sql.values.text_functions import RULES

_TWO = frozenset({"this", "expression"})
_ONE = frozenset({"this"})
_READ: dict[type[exp.Expr], frozenset[str]] = {
    **dict.fromkeys((exp.And, exp.Or, exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE), _TWO),
    **dict.fromkeys((exp.Is, exp.NullSafeEQ, exp.NullSafeNEQ, exp.Add, exp.Sub, exp.Mul, exp.Filter), _TWO),
    **dict.fromkeys((exp.Not, exp.Neg, exp.Paren, exp.Boolean, exp.Null, exp.Where), _ONE),
    exp.From: _ONE,
    **dict.fromkeys((exp.Like, exp.ILike), frozenset({"this", "expression", "negate"})),
    exp.Between: frozenset({"this", "low", "high"}),
    exp.In: frozenset({"this", "expressions"}),
    exp.Div: frozenset({"this", "expression", "typed", "safe"}),
    exp.Star: frozenset(),
    exp.Case: frozenset({"this", "ifs", "default"}),
    exp.If: frozenset({"this", "true", "false"}),
    exp.Cast: frozenset({"this", "to"}),
    exp.TryCast: frozenset({"this", "to", "safe"}),
    exp.DataType: frozenset({"this", "expressions"}),
    # Functions of values (functions.py, text_functions.py).
    **dict.fromkeys((exp.IntDiv, exp.Mod), _TWO),
    **dict.fromkeys((exp.Abs, exp.Sign, exp.Floor, exp.Ceil, exp.Trunc), _ONE),
    **dict.fromkeys((exp.Year, exp.Quarter, exp.Month, exp.Week, exp.WeekOfYear, exp.Day, exp.DayOfMonth), _ONE),
    **dict.fromkeys((exp.DayOfYear, exp.DayOfWeek, exp.DayOfWeekIso, exp.Hour, exp.Minute, exp.Second), _ONE),
    **dict.fromkeys((exp.Date, exp.Var, exp.DataTypeParam), _ONE),
    **dict.fromkeys((exp.Greatest, exp.Least), frozenset({"this", "expressions", "ignore_nulls"})),
    **dict.fromkeys((exp.TimestampTrunc, exp.DateTrunc, exp.Interval), frozenset({"this", "unit"})),
    **dict.fromkeys((exp.DateAdd, exp.DateSub, exp.Extract), _TWO),
    exp.Round: frozenset({"this", "decimals"}),
    exp.DateDiff: frozenset({"this", "expression", "unit", "date_part_boundary"}),
    exp.WidthBucket: frozenset({"this", "min_value", "max_value", "num_buckets"}),
    **{kind: frozenset(name for name, _ in rule.takes) for kind, rule in RULES.items()},
    exp.Trim: frozenset({"this", "expression", "position"}),
    exp.DPipe: frozenset({"this", "expression", "safe"}),
    exp.Concat: frozenset({"expressions", "safe", "coalesce"}),
    exp.RegexpExtract: frozenset({"this", "expression", "group", "parameters", "null_if_pos_overflow"}),
    exp.RegexpReplace: frozenset({"this", "expression", "replacement", "modifiers", "single_replace"}),
    **dict.fromkeys((exp.Sqrt, exp.Cbrt, exp.Exp, exp.Ln, exp.IsNan, exp.IsInf), _ONE),
    **dict.fromkeys((exp.Log, exp.Pow, exp.Escape), _TWO),
    exp.SplitPart: frozenset({"this", "delimiter", "part_index"}),
    exp.TimeToStr: frozenset({"this", "format"}),
    **dict.fromkeys((exp.Monthname, exp.Dayname, exp.LastDay, exp.TimeToUnix), _ONE),
    exp.DateBin: frozenset({"this", "expression", "unit"}),
    exp.AtTimeZone: frozenset({"this", "zone"}),
    exp.Pad: frozenset({"this", "expression", "fill_pattern", "is_left"}),
    exp.DateFromParts: frozenset({"year", "month", "day"}),
    exp.Anonymous: frozenset({"this", "expressions"}),
    exp.Column: frozenset({"this", "table"}),
    exp.Identifier: frozenset({"this", "quoted"}),
    exp.Literal: frozenset({"this", "is_string"}),
    exp.Alias: frozenset({"this", "alias"}),
    exp.TableAlias: _ONE,
    exp.Table: frozenset({"this", "db", "alias"}),
    exp.Nullif: _TWO,
    exp.Coalesce: frozenset({"this", "expressions"}),
    exp.Distinct: frozenset({"expressions"}),
    exp.Order: frozenset({"expressions"}),
    exp.Ordered: frozenset({"this", "desc", "nulls_first"}),
}


def is_admitted(node: exp.Expression) -> bool:
    """Whether a node is one that scans answer: of one value for each row, whatever it stands in."""
    if isinstance(node, exp.Anonymous):
        return str(node.this).lower() in NAMED
    return type(node) in _READ and not isinstance(node, exp.AggFunc)


def check_admitted(tree: exp.Expr, aggregates: Mapping[type[exp.Expr], frozenset[str]] | None = None) -> None:
    """Refuse a node that is not listed, or that carries an argument that is not read.

    For what a scan answers: conditions, group keys, aggregates, whose arguments ``aggregates`` lists. Run once it has
    been understood: it guards against the parser, not the user. Outer SQL is written again with all its arguments and
    needs no such guard.
    """
    for node in nodes(tree):
        read = _READ.get(type(node), (aggregates or {}).get(type(node)))
        if read is None:
            raise refuse(f"{node.key.upper()} is not answered; leave it out", node)
        for name, value in node.args.items():
            if value and name not in read:
                raise refuse(f"{name.strip('_').upper()} of {node.key.upper()} is not answered; leave it out", node)
