"""The ranges of a long line that a query reads, where all of them would be too many in all replicates.

A range needs two prefix sums, so that of a line whose ranges a query names few sums matter. Conditions of WHERE, and of
joins that keep rows of both sides, that say something of the columns of one table alone hold for every row of it that
the query reads; the places at which these ranges begin and stop are all that its replicates need. The conditions stay
in the query, so that more places change nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

import duckdb
import numpy as np
from sqlglot import exp
from sqlglot.errors import SqlglotError

from dpsql.arrays import Ints
from dpsql.quoting import identifier
from dpsql.release import RangeTable, ReleaseTable
from dpsql.release.limits import QUERY_SECONDS
from dpsql.release.range_table import write_ranges
from dpsql.sql.outer.sandbox import Sandbox

from .lineage import Columns, qualified


def columns_of(table: RangeTable) -> Columns:
    """Names of its columns, and whether noise reaches them."""
    return [(name, part in ("value", "low", "high")) for name, _, (part, _) in table.shown]


def released_columns(table: RangeTable | ReleaseTable) -> Columns:
    """Names of the columns of any result; where noise reaches some is not looked at here, and said of all."""
    return columns_of(table) if isinstance(table, RangeTable) else [(name, True) for name, _, _ in table.columns]


def places_read(
    tree: exp.Expr, read: Sequence[tuple[exp.Table, Columns]], own: Collection[int], table: RangeTable, most: int
) -> Ints | None:
    """The places from 0 to n that the ranges of ``table`` begin and stop at, as far as a query reads them, rising.

    ``read``: the released tables of the query, of which those numbered ``own`` are this one. None where more than
    ``most`` ranges may be read, or the query does not say which.
    """
    clean = {name.lower() for name, noisy in columns_of(table) if not noisy}
    try:
        whole, _ = qualified(tree, read)
        nodes = {node.name: node for node in whole.find_all(exp.Table)}
        found = [
            (node.alias_or_name, list(_conditions(node, clean)))
            for node in (nodes[f"dpsql_read_{number}"] for number in own)
        ]
    except (SqlglotError, KeyError, ValueError, TypeError, AttributeError, RecursionError):
        return None
    low, high = (next((n for n, _, (what, _) in table.shown if what == part), None) for part in ("from", "to"))
    if low is None or high is None:
        return None
    with Sandbox(once=True) as sandbox:
        line = replace(table, name="dpsql_line")
        write_ranges(sandbox.connection, line, "main")
        places = [_places(sandbox, line, (low, high), *each, most) for each in found]
    known = [each for each in places if each is not None]
    return np.unique(np.concatenate([[0], *known])).astype(np.int64) if len(known) == len(places) else None


def _places(
    sandbox: Sandbox, line: RangeTable, ends: tuple[str, str], alias: str, conditions: Sequence[exp.Expr], most: int
) -> Ints | None:
    if not conditions:
        return None
    low, high = map(identifier, ends)
    chosen = " AND ".join(f"({each.sql('duckdb', identify=True)})" for each in conditions)
    made = (
        f"CREATE OR REPLACE TABLE dpsql_ranges AS SELECT DISTINCT {low} AS low, {high} AS high "  # noqa: S608
        f"FROM {identifier(line.name)} AS {identifier(alias)} WHERE {chosen} LIMIT {most + 1}"
    )
    points = identifier(line.kept[0])
    with contextlib.suppress(duckdb.Error):
        if sandbox.run(made, QUERY_SECONDS) or sandbox.connection.table("dpsql_ranges").shape[0] > most:
            return None
        found = sandbox.connection.execute(
            f"SELECT place FROM {points} WHERE low IN (SELECT low FROM dpsql_ranges) "  # noqa: S608
            "OR high IN (SELECT high FROM dpsql_ranges)"
        )
        return np.asarray(found.fetchnumpy()["place"], dtype=np.int64)
    return None


def _conditions(node: exp.Table, clean: Collection[str]) -> Iterator[exp.Expr]:
    """What every row that a SELECT reads of a table must hold, of its columns without noise."""
    select = node.find_ancestor(exp.Select)
    beside = node.parent
    if select is None or beside is None or beside.parent is not select:
        return
    joins = select.args.get("joins") or []
    kept = ("", "INNER", "CROSS")
    if any(join.side or join.args.get("method") or (join.kind or "") not in kept for join in joins):
        return
    where = select.args.get("where")
    clauses: list[exp.Expr | None] = [
        where.this if where is not None else None,
        *(join.args.get("on") for join in joins),
    ]
    for clause in (held for held in clauses if held is not None):
        for part in clause.flatten() if isinstance(clause, exp.And) else [clause]:
            named = list(part.find_all(exp.Column))
            mine = all(column.table == node.alias_or_name and column.name.lower() in clean for column in named)
            if named and mine and part.find(exp.Query) is None:
                yield part
