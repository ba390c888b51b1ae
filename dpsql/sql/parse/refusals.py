"""Refusals of a SELECT: the clauses and functions that are not answered, and what to write instead."""

from __future__ import annotations

import functools

from sqlglot import exp

from dpsql.errors import SQLError, nearest
from dpsql.sql.parse.names import empty_database
from dpsql.sql.parse.quoted import shown
from dpsql.sql.parse.statements import refuse

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
    "sample": "USING SAMPLE",
}
_POST = {
    exp.ArrayAgg: "a list of raw values is private; GROUP BY the column's declared groups",
    exp.GroupConcat: "a list of raw values is private; GROUP BY the column's declared groups",
    exp.AnyValue: "one person's value is private; GROUP BY the column, or aggregate it",
    exp.First: "one person's value is private; aggregate the column",
    exp.Last: "one person's value is private; aggregate the column",
    exp.ArgMax: "one person's value is private; aggregate the column",
    exp.ArgMin: "one person's value is private; aggregate the column",
    exp.Mode: "MODE stands beside its groups alone; ask it in a statement of its own",
}

# Clauses of a SELECT without aggregates, which would pick among its rows.
_RAW = {
    "distinct": "would show which values exist; GROUP BY the column's declared groups",
    "limit": "depends on other rows; aggregate the rows first",
    "offset": "depends on other rows; aggregate the rows first",
    "qualify": "depends on other rows; aggregate the rows first",
}


def _aggregated(item: exp.Expression) -> bool:
    """Whether an item aggregates rows, by other than a window's own function."""
    stack = [item]
    while stack:
        part = stack.pop()
        if isinstance(part, exp.Window):
            function = part.this.this if isinstance(part.this, exp.Filter) else part.this
            stack.extend([*function.iter_expressions(), *(p for k, v in part.args.items() if k != "this"
                                                          for p in (v if isinstance(v, list) else [v])
                                                          if isinstance(p, exp.Expression))])  # fmt: skip
        elif isinstance(part, exp.AggFunc | exp.WithinGroup):
            return True
        elif not isinstance(part, exp.Query):
            stack.extend(part.iter_expressions())
    return False


def check_clauses(select: exp.Select, statement: str) -> None:
    """Refuse the clauses of a SELECT over private rows that are not answered, by the parser's words for them."""
    for clause, value in select.args.items():
        if value and clause not in _ANSWERED:
            node = value[0] if isinstance(value, list) else value
            at = node if isinstance(node, exp.Expr) and node.meta else select
            shown = _CLAUSE.get(clause, clause.strip("_").upper())
            code = "sample" if clause == "sample" else "not-answered"
            raise refuse(
                f"{shown} {_REFUSED.get(clause, 'is not answered; leave it out')} ({statement})", at, code=code
            )
    if select.args.get("kind"):
        raise refuse("SELECT AS STRUCT or VALUE is not answered; write plain columns", select)
    if select.args.get("group") is None and not any(map(_aggregated, select.expressions)):
        for item in select.expressions:
            window = item.find(exp.Window)
            if window is not None:
                raise refuse(
                    "a window over rows looks at other rows; write it over groups, OVER after GROUP BY, or PARTITION "
                    "BY the unit in a subquery",
                    window,
                    code="row-window",
                )
        for clause, why in _RAW.items():
            if select.args.get(clause):
                raise refuse(f"{clause.upper()} over private rows {why}", select, code="chosen-rows")
    if select.args.get("from_") is None:
        raise refuse("the statement reads no table; write FROM a table of the policy", select)


def not_an_aggregate(node: exp.Expression, answered: str) -> SQLError:
    """The refusal of an expression that stands where an aggregate must; ``answered``: the names of aggregates."""
    for kind, message in _POST.items():
        if isinstance(node, kind):
            return refuse(message, node, code="aggregate")
    if isinstance(node, exp.Column):
        return refuse(f"{shown(node)} is a raw value, which is private; aggregate it", node, code="raw-value")
    return refuse(
        f"{shown(node)} is not an admitted aggregate; use one of {answered}, with FILTER, or MODE by itself",
        node,
        code="aggregate",
    )


def unanswered_around(column: exp.Expr, answered: str) -> SQLError | None:
    """The refusal of the function around a raw value that is an aggregate, though the parser takes it for none."""
    node = column.parent
    while node is not None and not isinstance(node, exp.Query):
        found = no_function(node)
        if found is not None:
            return found
        name = called(node) if isinstance(node, exp.Func) else ""
        if name.lower() in duckdb_functions()[1]:
            return refuse(f"{name} is an aggregate that is not answered; use one of {answered}", node, code="aggregate")
        node = node.parent
    return None


def no_function(node: exp.Expr) -> SQLError | None:
    """The refusal of a call of what DuckDB has no function for."""
    if not isinstance(node, exp.Anonymous) or called(node).lower().startswith("dp_"):
        return None
    name, every = called(node), duckdb_functions()[0]
    if name.lower() in every:
        return None
    likely = [known.lower() for known in ("COUNT", "COUNT_IF", "SUM", "AVG", "MIN", "MAX", "MEDIAN")]
    found = nearest(name, likely)
    if not found.startswith("did you mean"):
        found = nearest(name, every)
    said = f": {found}" if found.startswith("did you mean") else "; docs/sql.md lists those that are answered"
    return refuse(f"DuckDB has no function {name}{said}", node, code="function")


def called(node: exp.Func) -> str:
    """The name of the function that is called."""
    return str(node.this) if isinstance(node, exp.Anonymous) else node.sql_name()


@functools.cache
def duckdb_functions() -> tuple[frozenset[str], frozenset[str]]:
    """The names of DuckDB's functions, and of those that aggregate, macros over them among these."""
    rows = (
        empty_database()
        .cursor()
        .execute(
            "SELECT lower(function_name), function_type, coalesce(lower(macro_definition), '') FROM duckdb_functions()"
        )
        .fetchall()
    )
    plain = {name for name, kind, _ in rows if kind == "aggregate"}
    over = {name for name, _, text in rows if any(f"{one}(" in text.replace('"', "") for one in plain)}
    return frozenset(name for name, _, _ in rows), frozenset(plain | over)
