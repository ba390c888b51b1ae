"""Refusals of a SELECT: the clauses and functions that are not answered, and what to write instead."""

from __future__ import annotations

from sqlglot import exp

from dpsql.errors import SQLError
from dpsql.sql.statements import refuse

_ANSWERED = frozenset(
    [
        "expressions",
        "from_",
        "where",
        "group",
        "joins",
        "having",
        "order",
        "limit",
        "offset",
        "qualify",
        "distinct",
        "with_",
        "kind",
        "operation_modifiers",
    ]
)
_REFUSED: dict[str, str] = {
    "windows": "is not answered; write the window into OVER (...)",
    "laterals": "is not answered; write a plain table",
    "sample": "is random and not row-local; leave it out",
    "pivots": "is not answered; GROUP BY the columns",
}
_CLAUSE = {
    "windows": "WINDOW",
    "laterals": "LATERAL",
    "sample": "TABLESAMPLE",
}
_POST = {
    exp.ApproxQuantile: "an approximate quantile is not answered; write QUANTILE_CONT(column, 0.5)",
    exp.ApproxDistinct: "the values that exist are private; GROUP BY declared groups, or count the privacy unit",
    exp.ArrayAgg: "a list of raw values is private; GROUP BY the column's declared groups",
    exp.GroupConcat: "a list of raw values is private; GROUP BY the column's declared groups",
    exp.AnyValue: "one person's value is private; GROUP BY the column, or aggregate it",
    exp.First: "one person's value is private; aggregate the column",
    exp.Last: "one person's value is private; aggregate the column",
    exp.ArgMax: "one person's value is private; aggregate the column",
    exp.ArgMin: "one person's value is private; aggregate the column",
}


def check_clauses(select: exp.Select, statement: str) -> None:
    """Refuse the clauses of a SELECT over private rows that are not answered, by the parser's words for them."""
    for clause, value in select.args.items():
        if value and clause not in _ANSWERED:
            node = value[0] if isinstance(value, list) else value
            at = node if isinstance(node, exp.Expr) and node.meta else select
            shown = _CLAUSE.get(clause, clause.strip("_").upper())
            raise refuse(f"{shown} {_REFUSED.get(clause, 'is not answered; leave it out')} ({statement})", at)
    if select.args.get("kind"):
        raise refuse("SELECT AS STRUCT or VALUE is not answered; write plain columns", select)
    if select.args.get("from_") is None:
        raise refuse("the statement reads no table; write FROM a table of the policy", select)


def not_an_aggregate(node: exp.Expression) -> SQLError:
    """The refusal of an expression that stands where an aggregate must."""
    for kind, message in _POST.items():
        if isinstance(node, kind):
            return refuse(message, node)
    if isinstance(node, exp.Column):
        return refuse(f"{node.sql('duckdb')} is a raw value, which is private; aggregate it", node)
    return refuse(
        f"{node.sql('duckdb')[:60]} is not an admitted aggregate; use COUNT, COUNT_IF, SUM, AVG, VAR_*, STDDEV_*, "
        "MIN, MAX, MEDIAN or QUANTILE_CONT, with FILTER",
        node,
    )
