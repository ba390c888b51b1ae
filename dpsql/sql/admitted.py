"""What the parser may say of an admitted node: an argument that nobody reads must not be lost.

The parser marks some of a text's meaning in arguments of a node: NOT LIKE as a mark on LIKE,
RESPECT NULLS, EXCLUDE, a cast's format. Whatever is set and is not listed here is refused.
"""

from __future__ import annotations

from sqlglot import exp

from dpsql.sql.statements import refuse

_TWO = frozenset({"this", "expression"})
_ONE = frozenset({"this"})
_READ: dict[type[exp.Expr], frozenset[str]] = {
    **dict.fromkeys((exp.And, exp.Or, exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE), _TWO),
    **dict.fromkeys((exp.Is, exp.NullSafeEQ, exp.NullSafeNEQ, exp.Add, exp.Sub, exp.Mul, exp.Filter), _TWO),
    **dict.fromkeys((exp.Not, exp.Neg, exp.Paren, exp.Boolean, exp.Null, exp.Sum, exp.CountIf, exp.Where), _ONE),
    exp.From: _ONE,
    exp.Like: frozenset({"this", "expression", "negate"}),
    exp.Between: frozenset({"this", "low", "high"}),
    exp.In: frozenset({"this", "expressions"}),
    exp.Div: frozenset({"this", "expression", "typed", "safe"}),
    exp.Count: frozenset({"this", "big_int"}),
    exp.Star: frozenset(),
    exp.Case: frozenset({"ifs", "default"}),
    exp.If: frozenset({"this", "true"}),
    exp.Cast: frozenset({"this", "to"}),
    exp.DataType: frozenset({"this"}),
    exp.Column: frozenset({"this", "table"}),
    exp.Identifier: frozenset({"this", "quoted"}),
    exp.Literal: frozenset({"this", "is_string"}),
    exp.Alias: frozenset({"this", "alias"}),
    exp.TableAlias: _ONE,
    exp.Table: frozenset({"this", "db", "alias"}),
    **dict.fromkeys((exp.Avg, exp.Variance, exp.VariancePop, exp.Stddev, exp.StddevPop, exp.StddevSamp), _ONE),
    **dict.fromkeys((exp.Min, exp.Max, exp.Median), _ONE),
    **dict.fromkeys((exp.PercentileCont, exp.WithinGroup, exp.Nullif), _TWO),
    exp.Coalesce: frozenset({"this", "expressions"}),
    exp.Distinct: frozenset({"expressions"}),
    exp.Order: frozenset({"expressions"}),
    exp.Ordered: frozenset({"this", "nulls_first"}),
}


def check_admitted(tree: exp.Expression) -> None:
    """Refuse a node that is not listed, or that carries an argument that is not read.

    For what a scan answers: conditions, group keys, aggregates. Run once it has been understood: it guards
    against the parser, not the user. Outer SQL is written again with all its arguments and needs no such guard.
    """
    for node in tree.walk():
        read = _READ.get(type(node))
        if read is None:
            raise refuse(f"{node.key.upper()} is not answered; leave it out", node)
        for name, value in node.args.items():
            if value and name not in read:
                raise refuse(f"{name.strip('_').upper()} of {node.key.upper()} is not answered; leave it out", node)
