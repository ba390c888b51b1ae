"""Refusals of a SELECT: the clauses and functions that are not answered, and what to write instead."""

from __future__ import annotations

from sqlglot import exp

from dpsql.errors import SQLError
from dpsql.sql.statements import refuse

_AFTERWARDS = "works on results, after the noise: leave it out and query the released view, e.g. SELECT * FROM {0} {1}"
_REFUSED: dict[str, str] = {
    "having": _AFTERWARDS.format("name", "WHERE n > 100"),
    "order": _AFTERWARDS.format("name", "ORDER BY n DESC"),
    "limit": _AFTERWARDS.format("name", "LIMIT 10"),
    "offset": _AFTERWARDS.format("name", "LIMIT 10 OFFSET 10"),
    "qualify": _AFTERWARDS.format("name", "QUALIFY ..."),
    "windows": _AFTERWARDS.format("name", "WINDOW ..."),
    "distinct": "would show which values exist; GROUP BY a column with declared groups instead",
    "joins": "is not answered; put the columns into one table, or query the released views together",
    "laterals": "is not answered; write a plain table",
    "with_": "is not answered; write the condition into WHERE",
    "sample": "is random and not row-local; leave it out",
    "pivots": "is not answered; GROUP BY the columns",
}
_CLAUSE = {
    "with_": "WITH",
    "order": "ORDER BY",
    "joins": "JOIN",
    "windows": "WINDOW",
    "laterals": "LATERAL",
    "sample": "TABLESAMPLE",
}
_POST = {
    exp.Avg: "AVG is not answered; select SUM(column) and COUNT(column) and divide them over the released view",
    exp.Min: "MIN shows one person's value; count ranges of the column instead",
    exp.Max: "MAX shows one person's value; count ranges of the column instead",
    exp.Median: "MEDIAN is not answered; count ranges of the column instead",
    exp.Coalesce: "COUNT and SUM are 0 over nothing; leave COALESCE out",
    exp.Mul: "a product of two aggregates is not linear; multiply over the released view",
    exp.Div: "a ratio of two aggregates is not linear; select both and divide over the released view",
    exp.Window: "a window works on results, after the noise; write it over the released view",
    exp.Cast: "a cast of an aggregate is not answered; cast over the released view (counts are DOUBLE)",
}


def clause_refusal(clause: str, statement: str) -> str:
    """Why a clause of SELECT or FROM, by the parser's word for it, is not answered in that statement."""
    shown = _CLAUSE.get(clause, clause.strip("_").upper())
    reason = _REFUSED.get(clause, "is not answered; leave it out")
    return f"{shown} {reason}".replace(" name", f" {statement}", 1)


def grouping_refusal(what: str) -> str:
    """Why ROLLUP, CUBE and the like, by the parser's word for them, are not answered."""
    return f"{what} is not answered; write each GROUP BY as a view of its own"


def not_an_aggregate(node: exp.Expression) -> SQLError:
    """The refusal of an expression that stands where an aggregate must."""
    for kind, message in _POST.items():
        if isinstance(node, kind):
            return refuse(message, node)
    if isinstance(node, exp.Column):
        return refuse(f"{node.sql('duckdb')} is a raw value, which is private; aggregate it", node)
    if isinstance(node, exp.Subquery | exp.Select | exp.Exists):
        return refuse("a subquery is not answered; make it a view of its own", node)
    return refuse(
        f"{node.sql('duckdb')[:60]} is not an admitted aggregate; use COUNT, COUNT_IF, SUM(column), with FILTER, "
        "and sums and multiples of them",
        node,
    )
