"""Which released results a query reads, and whether its errors can be worked out at all."""

from __future__ import annotations

import re
from collections.abc import Mapping

from sqlglot import exp

from dpsql.errors import OperationalError, SQLError
from dpsql.release import Result
from dpsql.sql.outer.sandbox import changing_function, is_plain
from dpsql.sql.parse.routing import named_tables

from .partitioned import parsed

MOST_ROWS = 10_000
"""Rows of an answer whose errors are worked out."""


def by_period(tree: exp.Expr, series: Mapping[str, str], own: Mapping[str, Mapping[str, int]]) -> exp.Expr:
    """The query with each view of releases of several periods written out as a query over these."""
    for node in [node for node in named_tables(tree) if isinstance(node.this, exp.Identifier)]:
        name, schema = node.name.lower(), node.db.lower()
        if schema in ("", "dp") and name in series and (schema or name not in own):
            alias = node.args.get("alias") or exp.TableAlias(this=exp.to_identifier(node.name, quoted=True))
            written = exp.Subquery(this=parsed(series[name]), alias=alias)
            for part in ("joins", "laterals", "pivots"):
                if node.args.get(part):
                    written.set(part, node.args[part])
            node.replace(written)
    return tree


def release_of(
    node: exp.Table, shown: Mapping[str, tuple[int, str]], own: Mapping[str, Mapping[str, int]]
) -> tuple[int, str] | None:
    """(release, result) that a table of a query is; None for what is no result."""
    name, schema = node.name.lower(), node.db.lower()
    if re.fullmatch(r"r[1-9][0-9]*", schema):
        return int(schema[1:]), name
    if not schema and name in own:
        releases = set(own[name].values())
        return (releases.pop(), name) if len(releases) == 1 else None
    return shown.get(name) if schema in ("", "dp") else None


def check_query(query: str, tree: exp.Expr, bare: Result) -> None:
    """Whether a query with the answer ``bare`` can have errors. Raises SQLError, OperationalError."""
    changing = changing_function(query) or ("a sample" if tree.find(exp.TableSample) is not None else None)
    if changing is not None:
        raise SQLError(
            f"{changing} gives another result at every call, which errors=True would take for noise; leave it or the "
            "errors out"
        )
    if len(bare) > MOST_ROWS:
        raise OperationalError(
            f"the answer has {len(bare):,} rows, and errors=True works out those of {MOST_ROWS:,} at most; aggregate, "
            "add a LIMIT, or leave errors out"
        )
    for name, kind in zip(bare.columns, bare.types, strict=True):
        if not is_plain(kind):
            raise SQLError(
                f"the column {name!r} holds lists or structs ({kind}), beside which no error stands; unnest it"
            )
