"""Trees: what the parser makes, walked and written out for batches of many statements."""

from __future__ import annotations

from collections.abc import Iterator

from sqlglot import exp
from sqlglot.dialects.dialect import Dialect

DUCKDB = Dialect.get_or_raise("duckdb")


def nodes(tree: exp.Expr) -> Iterator[exp.Expr]:
    """The node and all below it, level by level, as ``tree.walk()`` gives them but without its inner generators."""
    found = [tree]
    for node in found:  # which grows meanwhile
        yield node
        for value in node.args.values():
            if isinstance(value, exp.Expr):
                found.append(value)
            elif type(value) is list:
                found.extend([part for part in value if isinstance(part, exp.Expr)])


def written(tree: exp.Expr, *, copy: bool = True) -> str:
    """The tree as DuckDB reads it, without comments; ``copy=False`` where writing it may change it."""
    return str(tree.sql(DUCKDB, comments=False, copy=copy))
