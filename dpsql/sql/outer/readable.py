"""Prints the SQL that runs over noisy tables for people: with names that they know, without empty layers."""

from __future__ import annotations

import re
from collections.abc import Mapping

import sqlglot
from sqlglot import exp

from dpsql.sql.outer.relation import Relation

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z_0-9]*")


def readable(relation: Relation, tables: Mapping[str, str], columns: Mapping[str, str]) -> str:
    """The relation's query on one line, without columns of errors.

    ``tables`` and ``columns``: what readers call the noisy tables and their columns. Names are quoted where SQL asks
    for it; a subquery that only selects all of a table is that table, and ``x AS x`` is ``x``.
    """
    tree = sqlglot.parse_one(relation.sql(False), read="duckdb").transform(_without_layer)
    for name in list(tree.find_all(exp.Identifier)):
        known = tables if isinstance(name.parent, exp.Table) else columns
        shown = known.get(name.name, name.name)
        name.replace(exp.Identifier(this=shown, quoted=not _PLAIN.fullmatch(shown)))
    text = tree.transform(_without_alias).sql(dialect="duckdb")
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def _without_layer(node: exp.Expr) -> exp.Expr:
    """The source of a subquery that selects all of it and does nothing else."""
    while isinstance(node, exp.Subquery) and _selects_all(node.this):
        source = node.this.args["from_" if "from_" in node.this.args else "from"].this
        if source.alias and node.alias:
            return node
        node = source if not node.alias else exp.alias_(source, node.alias, table=True)
    return node


def _selects_all(query: exp.Expr) -> bool:
    given = {name for name, value in query.args.items() if value} if isinstance(query, exp.Select) else set()
    return given in ({"expressions", "from"}, {"expressions", "from_"}) and all(
        isinstance(one, exp.Star) and not any(one.args.values()) for one in query.expressions
    )


def _without_alias(node: exp.Expr) -> exp.Expr:
    """A column of an alias that is its own name."""
    same = isinstance(node, exp.Alias) and isinstance(node.this, exp.Column) and node.this.name == node.alias
    return node.this if same and not node.this.table else node
