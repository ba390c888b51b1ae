"""Quotients that PostgreSQL would truncate: statements are read in DuckDB's dialect, where 7 / 2 is 3.5."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sqlglot import exp

from dpsql.sql.parse.trees import nodes, written

Columns = Mapping[str, Mapping[str, str]]
"""DuckDB types by table and column, names in lower case."""

_INTEGERS = frozenset({"TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER"})
_LARGE = frozenset({"BIGINT", "UINTEGER"})  # whose sum is numeric in PostgreSQL
_SHOWN = 80  # characters of a quotient


def truncation_notice(queries: Iterable[tuple[exp.Expr, Iterable[exp.Table]]], columns: Columns) -> str:
    """What to say of the first quotient of two whole numbers in queries and the tables they name; "" without one.

    By public types alone. Operands of which these do not tell that they are whole numbers count as others.
    """
    for tree, tables in queries:
        divisions = [node for node in nodes(tree) if isinstance(node, exp.Div)]
        types = _types(tree, tables, columns) if divisions else {}
        for node in divisions:
            if _kind(node.this, types) and _kind(node.expression, types):
                left, right = written(node.this), written(node.expression)
                shown = (
                    f"{left} / {right}, and {left} // {right}" if len(left + right) <= _SHOWN else "a / b, and a // b"
                )
                return (
                    f"whole numbers are divided as in DuckDB, 7 / 2 = 3.5, where PostgreSQL would truncate: "
                    f"{shown} truncates"
                )
    return ""


def _types(tree: exp.Expr, tables: Iterable[exp.Table], columns: Columns) -> dict[str, str]:
    """The type of each column name that has one type in all tables named, and no other meaning in the query."""
    found: dict[str, set[str]] = {}
    for table in tables:
        for name, kind in columns.get(table.name.lower(), {}).items():
            found.setdefault(name, set()).add(kind)
    others = {node.alias.lower() for node in nodes(tree) if isinstance(node, exp.Alias)}
    others |= {
        name.lower() for node in nodes(tree) if isinstance(node, exp.TableAlias) for name in node.alias_column_names
    }
    return {name: min(kinds) for name, kinds in found.items() if len(kinds) == 1 and name not in others}


def _kind(node: exp.Expr, types: Mapping[str, str]) -> str:
    """The type of an expression that is a whole number in DuckDB and in PostgreSQL; "" for any other."""
    kind = ""
    if isinstance(node, exp.Literal):
        kind = "" if node.is_string or not node.is_int else "INTEGER" if abs(int(node.this)) < 2**31 else "BIGINT"
    elif isinstance(node, exp.Column):
        kind = types.get(node.name.lower(), "")
    elif isinstance(node, exp.Count):
        kind = "BIGINT"
    elif isinstance(node, exp.Sum):
        argument = _kind(node.this, types)
        kind = "" if not argument or argument in _LARGE else "BIGINT"
    elif isinstance(node, exp.Cast) and not isinstance(node, exp.TryCast):
        kind = node.to.sql("duckdb").upper()
    elif isinstance(node, exp.Paren | exp.Neg | exp.Abs | exp.Min | exp.Max | exp.Filter | exp.Window):
        kind = _kind(node.this, types)
    elif isinstance(node, exp.Add | exp.Sub | exp.Mul | exp.Mod | exp.IntDiv | exp.Coalesce):
        parts = [node.this, *(node.expressions if isinstance(node, exp.Coalesce) else [node.expression])]
        kinds = {_kind(part, types) for part in parts}
        kind = "" if "" in kinds else min(kinds & _LARGE, default="INTEGER")
    return kind if kind.split("(")[0] in {*_INTEGERS, "INT"} else ""
