"""A batch as it is asked of one period: the table that grows stands for its rows of some days alone."""

from __future__ import annotations

import datetime as dt

from sqlglot import exp
from sqlglot.errors import ParseError

from dpsql.common.quoting import identifier
from dpsql.errors import SQLError
from dpsql.policy import TablePolicy
from dpsql.policy.values import fold
from dpsql.sql.parse.tokens import first_line, replaced, tokens_of
from dpsql.sql.parse.trees import DUCKDB
from dpsql.sql.routing import named_tables


def of_days(text: str, declared: TablePolicy, first: dt.date, end: dt.date) -> str:
    """The batch ``text`` with a table that has periods replaced by its rows from ``first`` to before ``end``.

    Each place where the text names it becomes a derived table under the same name. Raises SQLError where the text
    cannot be read, names the table nowhere, or gives its name to something else.
    """
    assert declared.periods is not None  # noqa: S101 - its callers know
    failure = ""
    trees: list[exp.Expr | None] = []
    try:
        trees = DUCKDB.parser().parse(tokens_of(text), text)
    except (ParseError, RecursionError) as error:
        failure = first_line(str(error))
    if failure:
        raise SQLError(f"syntax error: {failure}; DuckDB's dialect is read", code="syntax")
    day = identifier(declared.periods.column)
    wanted = fold(declared.name).removeprefix("main.")
    found: dict[int, tuple[int, int, str]] = {}
    for node in (node for tree in trees if tree is not None for node in _tables(tree)):
        parts = [part for part in (node.args.get("db"), node.this) if part is not None]
        written = fold(".".join(part.name for part in parts)).removeprefix("main.")
        if written != wanted or "end" not in node.this.meta:
            continue
        start, stop = parts[0].meta["start"], node.this.meta["end"] + 1
        rows = f"(SELECT * FROM {text[start:stop]} WHERE {day} >= DATE '{first}' AND {day} < DATE '{end}')"  # noqa: S608
        found[start] = start, stop, rows if node.alias else f"{rows} AS {identifier(node.name)}"
    if not found:
        raise SQLError(
            f"the batch does not read {declared.name}, whose periods it is to be released by; select from it"
        )
    return replaced(text, [found[at] for at in sorted(found)])


def check_no_day(text: str, declared: TablePolicy) -> None:
    """SQLError where a batch that ``of_days`` reads names the column of days: the cells of two periods might differ."""
    assert declared.periods is not None  # noqa: S101 - its callers know
    for tree in DUCKDB.parser().parse(tokens_of(text), text):
        for column in () if tree is None else tree.find_all(exp.Column):
            if fold(column.name) == fold(declared.periods.column):
                raise SQLError(
                    f"a batch over a horizon asks nothing of {declared.periods.column} but its period, which it has "
                    "without being asked; leave the column out, or release the batch of each period alone"
                )


def _tables(tree: exp.Expr) -> list[exp.Table]:
    """The tables that a statement names; the name that it gives its own result is none of them."""
    query = tree.expression if isinstance(tree, exp.Create) else tree
    return [] if query is None else list(named_tables(query))
