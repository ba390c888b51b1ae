"""Which row of an answer a row of a replicate is: by the columns that noise does not reach, else by its place."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlglot import exp

from dpsql.common.arrays import Array, Floats, Values
from dpsql.release import Result
from dpsql.release.columns import Coded, Numbers, write_table
from dpsql.sql.outer.sandbox import Sandbox

from .partitioned import REPLICATE, Ran, is_number


@dataclass(frozen=True, eq=False)
class Rows:
    """Which row of the answer each row of a replicate is (-1: none), its replicate, and its columns as floats or codes.

    ``values[i]`` (all rows): the numbers of column i, NaN for NULL, or codes of its values. ``answer[i]``: of the
    answer itself. ``contenders``: how many rows any replicate has, those of the answer counted.
    """

    replicate: NDArray[np.int64]
    place: NDArray[np.int64]
    values: Sequence[Floats]
    answer: Sequence[Floats]
    contenders: int


def unselected(tree: exp.Expr, clean: Collection[str]) -> exp.Expr | None:
    """The query without what only leaves rows out, so that replicates have all numbers of a row that the answer shows.

    None where nothing does. WHERE stays where it decides what aggregates and windows see; of its conditions those that
    name ``clean`` columns alone, of no noise in any table, where the query reads nothing but tables.
    """
    if not isinstance(tree, exp.Select) or tree.args.get("distinct") is not None:
        return None
    copy = tree.copy()
    clauses = ["limit", "offset", "qualify", "having"]
    if tree.args.get("group") is None and not any(part.find(exp.AggFunc, exp.Window) for part in tree.expressions):
        clauses.append("where")
    held = [clause for clause in clauses if tree.args.get(clause) is not None]
    for clause in held:
        copy.set(clause, None)
    if "where" in held and tree.find(exp.Subquery, exp.CTE) is None:
        whole = tree.args["where"].this
        for part in whole.flatten() if isinstance(whole, exp.And) else [whole]:
            if part.find(exp.Query) is None and all(one.name.lower() in clean for one in part.find_all(exp.Column)):
                copy.where(part.copy(), copy=False)
    return copy if held else None


def matched(sandbox: Sandbox, ran: Ran, bare: Result, table: str) -> Rows | None:
    """Rows of the replicates beside those of the answer; None where only their order could tell and is not kept."""
    held = sandbox.connection
    count = len(ran.columns)
    columns = [(f"c{at}", kind, _whole(bare.column_at(at))) for at, (_, kind) in enumerate(ran.columns)]
    held.execute("DROP TABLE IF EXISTS dpsql_bare")
    write_table(held, "dpsql_bare", columns)
    discrete = [at for at, (_, kind) in enumerate(ran.columns) if ran.noisy[at] and not is_number(kind)]
    clean = [at for at in range(count) if not ran.noisy[at]]
    for keys in (clean, clean + discrete) if discrete and not ran.ordered else (clean,):
        numbers = _numbers(held, ran, keys, table)
        occurrence = _occurrence(numbers[0], numbers[1])
        if ran.ordered or not occurrence.any():
            return _placed(numbers, occurrence)
    return None


def _whole(column: Values) -> Values:
    return column if isinstance(column, Numbers | Coded) else list(column)


def _numbers(connection: Any, ran: Ran, keys: Sequence[int], table: str) -> list[Array]:
    """Replicate (-1: the answer), number of the key, and each column as float or code, of all rows of ``table``."""
    count = len(ran.columns)
    many = count + sum(map(len, ran.divisors))
    line = "rowid" if ran.order is None else f"c{ran.order}"
    listed = [f"c{at}" for at in range(many)]
    bare = ", ".join([f"c{at}" for at in range(count)] + [f"NULL AS c{at}" for at in range(count, many)])
    ranked = ", ".join(f"c{at}" for at in keys)
    shown = ["which", f"dense_rank() OVER (ORDER BY {ranked})" if keys else "1"]
    kinds = [kind for _, kind in ran.columns] + ["DOUBLE"] * (many - count)
    for name, kind in zip(listed, kinds, strict=True):
        shown.append(f"{name}::DOUBLE" if is_number(kind) else f"dense_rank() OVER (ORDER BY {name})::DOUBLE")
    both = (
        f"SELECT -1 AS which, rowid AS line, {bare} FROM dpsql_bare UNION ALL "  # noqa: S608
        f"SELECT {REPLICATE}, {line}, {', '.join(listed)} FROM {table}"
    )
    named = ", ".join(f"{sql} AS v{at}" for at, sql in enumerate(shown))
    query = connection.execute(
        f"SELECT * EXCLUDE (which, line) FROM (SELECT {named}, which, line FROM ({both})) ORDER BY which, line"  # noqa: S608
    )
    arrays = query.fetchnumpy()
    out: list[Array] = []
    for at in range(len(shown)):
        column = arrays[f"v{at}"]
        if at >= 2:
            column = np.ma.filled(np.ma.asarray(column, dtype=np.float64), np.nan)
        out.append(np.asarray(column))
    return out


def _occurrence(replicate: NDArray[np.int64], key: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many rows of the same replicate and key stand before each row."""
    order = np.lexsort((key, replicate))
    a, b = replicate[order], key[order]
    new = np.ones(len(order), dtype=np.bool_)
    new[1:] = (a[1:] != a[:-1]) | (b[1:] != b[:-1])
    starts = np.flatnonzero(new)
    within = np.arange(len(order)) - np.repeat(starts, np.diff(np.append(starts, len(order))))
    out = np.empty(len(order), dtype=np.int64)
    out[order] = within
    return out


def _placed(numbers: Sequence[Array], occurrence: NDArray[np.int64]) -> Rows:
    replicate, key, *values = numbers
    rows = int((replicate == -1).sum())  # those of the answer come first
    mark = key.astype(np.int64) * (int(occurrence.max(initial=0)) + 1) + occurrence
    order = np.argsort(mark[:rows])
    at = np.searchsorted(mark[:rows][order], mark[rows:])
    at = np.minimum(at, max(rows - 1, 0))
    place = order[at] if rows else np.zeros(0, dtype=np.int64)
    place = np.where(mark[:rows][place] == mark[rows:], place, -1) if rows else np.full(len(mark), -1)
    contenders = len(np.unique(mark))
    sides = [v[rows:] for v in values], [v[:rows] for v in values]
    return Rows(replicate[rows:].astype(np.int64), place, *sides, contenders)
