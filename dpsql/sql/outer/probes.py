"""Probes: statements that cannot depend on any row, such as ``WHERE 1=0`` and ``LIMIT 0``, answered without rows.

Tools send them to learn the columns of a query. Privacy: nothing is measured; an answer is a function of the
text, the policy and the column types, worked out over empty tables in a DuckDB of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

import duckdb
from sqlglot import exp

from dpsql.common.quoting import identifier
from dpsql.free_sql.bounds import check
from dpsql.free_sql.tables import Bounds
from dpsql.policy import Policy
from dpsql.policy.values import fold
from dpsql.sql.outer.answers import Answer
from dpsql.sql.outer.core_tables import core_columns, core_types
from dpsql.sql.outer.relation import OPTIONAL, ColumnInfo
from dpsql.sql.outer.sandbox import Sandbox
from dpsql.sql.parse.statements import Statement
from dpsql.workloads.expr.batch import Core, KeyOutput, Measured

Table: TypeAlias = "tuple[list[str], list[str], list[tuple[object, ...]]]"  # names, DuckDB types, rows

_CONSTANTS = (
    *(exp.Literal, exp.Boolean, exp.Null, exp.Neg, exp.Paren, exp.And, exp.Or, exp.Not),
    *(exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE, exp.Is),
)


def is_probe(statement: Statement) -> bool:
    """Whether the statement's own LIMIT is 0, or a constant in its WHERE lets no row pass.

    Then its result does not depend on what it selects from. Subqueries elsewhere would still count where it aggregates.
    """
    tree = statement.tree
    if _no_rows(tree):
        return True
    beside = [part for key, part in tree.args.items() if key not in {"from_", "joins", "with_", "where"}]
    parts = [one for part in beside for one in (part if isinstance(part, list) else [part])]
    nested = any(isinstance(one, exp.Expr) and one.find(exp.Query) is not None for one in parts)
    return not nested and _nothing_passes(tree)


def _no_rows(tree: exp.Expr) -> bool:
    limit = tree.args.get("limit")
    amount = limit.args.get("expression") if isinstance(limit, exp.Limit) else None
    return isinstance(amount, exp.Literal) and not amount.is_string and str(amount.this) == "0"


def _nothing_passes(tree: exp.Expr) -> bool:
    where = tree.args.get("where")
    todo = [] if where is None else [where.this]
    while todo:
        part = todo.pop()
        if isinstance(part, exp.Paren | exp.And):
            todo.extend(part.iter_expressions())
        elif isinstance(part, exp.Boolean | exp.Null):
            if not (isinstance(part, exp.Boolean) and part.this):
                return True
        elif all(isinstance(inner, _CONSTANTS) for inner in part.walk()) and _is_not_true(part):
            return True
    return False


def _is_not_true(condition: exp.Expr) -> bool:
    with Sandbox() as sandbox:
        try:
            row = sandbox.connection.execute(f"SELECT ({condition.sql('duckdb')}) IS TRUE").fetchone()
        except duckdb.Error:
            return False
    return row is not None and row[0] is False


def emptied(statement: Statement) -> Statement:
    """The statement with LIMIT 0: a probe of its columns."""
    return replace(statement, tree=statement.tree.limit(0))


def plainly_empty(statement: Statement) -> Statement:
    """The same probe with FALSE for a condition that lets no row pass: the front end refuses constant comparisons."""
    if not _nothing_passes(statement.tree):
        return statement
    tree = statement.tree.copy()
    tree.set("where", exp.Where(this=exp.false()))
    return replace(statement, tree=tree)


def shown_columns(answer: Answer) -> tuple[ColumnInfo, ...]:
    """The columns of a statement's result with their companions."""
    return core_columns(answer.cores[0]) if answer.outer is None else tuple(answer.outer.columns)


def answer_probes(statements: Sequence[Statement], answers: Sequence[Answer], *, errors: bool) -> list[Table]:
    """The results of a batch of probes, with the names and types that a release would have.

    A count or sum over nothing, without GROUP BY, is 0 with an error of 0, and whatever else would be there is NULL.
    """
    found: list[Table] = []
    with Sandbox() as sandbox:
        for statement, answer in zip(statements, answers, strict=True):
            for core in answer.cores:
                sandbox.create(core.name, core_types(core))
                if not core.keys and (core.name != answer.name or not _no_rows(statement.tree)):
                    _insert(sandbox, core.name, _over_nothing(core))
            if answer.outer is not None:
                sandbox.connection.execute(f"CREATE TABLE dpsql_result AS {answer.outer.sql(True)}")
                for core in answer.cores:
                    sandbox.drop(core.name)
                sandbox.connection.execute(f"ALTER TABLE dpsql_result RENAME TO {identifier(answer.name)}")
            kinds, _ = sandbox.describe(f"SELECT * FROM {identifier(answer.name)}")  # noqa: S608
            rows = sandbox.connection.execute(f"SELECT * FROM {identifier(answer.name)}").fetchall()  # noqa: S608
            hidden = set() if errors else _optional_columns(shown_columns(answer))
            kept = [at for at, (name, _) in enumerate(kinds) if name not in hidden]
            found.append((
                [kinds[at][0] for at in kept],
                [kinds[at][1] for at in kept],
                [tuple(row[at] for at in kept) for row in rows],
            ))  # fmt: skip
    return found


def _optional_columns(columns: Sequence[ColumnInfo]) -> set[str]:
    return {name for column in columns for suffix, name in column.companions if suffix in OPTIONAL}


def _over_nothing(core: Core) -> list[object]:
    """The one row of a core without keys over no rows: exact, so that it has no error."""
    row: list[object] = []
    for column, info in zip(core.columns, core_columns(core), strict=True):
        value = float(core.outputs[column.output].constant) if isinstance(column, Measured) else None
        row.append(value)
        beside = {"_stderr": 0.0, "_low": value, "_high": value, "_hidden": False}
        known = isinstance(column, Measured) and not isinstance(column, KeyOutput)
        row.extend(beside.get(suffix) if known else None for suffix, _ in info.companions)
    return row


def _insert(sandbox: Sandbox, name: str, row: Sequence[object]) -> None:
    marks = ", ".join("?" for _ in row)
    sandbox.connection.execute(f"INSERT INTO {identifier(name)} VALUES ({marks})", list(row))  # noqa: S608


def over_empty_tables(text: str, policy: Policy, schemas: Mapping[str, Mapping[str, str]]) -> Table | None:
    """What DuckDB makes of ``text`` over the policy's declared columns without rows; None where it refuses.

    For probes that ask for rows (``SELECT * FROM visits LIMIT 0``) and DESCRIBE.
    """
    with Sandbox() as sandbox:
        connection = sandbox.connection
        try:
            for name, table in policy.tables.items():
                types = {fold(column): (column, kind) for column, kind in schemas[name].items()}
                shown = [types[fold(c)] for c in table.columns] if not table.public else list(types.values())
                # The members of an ENUM may have been made from the data.
                plain = [(column, "VARCHAR" if kind.upper().startswith("ENUM") else kind) for column, kind in shown]
                listed = ", ".join(f"{identifier(column)} {kind}" for column, kind in plain)
                if not listed:
                    continue
                schema, _, last = name.rpartition(".")
                if schema:
                    connection.execute(f"CREATE SCHEMA IF NOT EXISTS {identifier(schema)}")
                connection.execute(f"CREATE TABLE {identifier(schema or 'main')}.{identifier(last)} ({listed})")
            for name, view in policy.views.items():
                connection.execute(f"CREATE VIEW {identifier(name)} AS {view}")
            names = {name.rpartition(".")[2].lower() for name in (*policy.tables, *policy.views)}
            if check(text, connection, lambda path: Bounds({}, 0, listed=False) if path[-1] in names else None) is None:
                return None
            cursor = connection.execute(text)
            described = cursor.description or []
            return [str(d[0]) for d in described], [str(d[1]) for d in described], cursor.fetchall()
        except duckdb.Error:
            return None
