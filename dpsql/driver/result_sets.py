"""Result sets of a cursor that need no charge: released ones as they are shown, probes, lists, and SQL over releases.

Nothing here spends. What a statement asks of private tables is answered by its columns alone, which are public.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import duckdb

from dpsql.driver.session import Session
from dpsql.errors import NotSupportedError, SQLError
from dpsql.free_sql.bounds import check
from dpsql.free_sql.parse import check_length
from dpsql.release import Result, ResultTable
from dpsql.release.limits import MOST_ROWS, Question, answer_within, fetched
from dpsql.sql import Answer
from dpsql.sql.outer.probes import answer_probes, over_empty_tables, plainly_empty, shown_columns
from dpsql.sql.outer.relation import OPTIONAL
from dpsql.sql.outer.sandbox import Sandbox
from dpsql.sql.parse.statements import Statement
from dpsql.sql.routing import Piece, Route

Row: TypeAlias = "tuple[Any, ...]"
"""The values of a row, of whatever types its columns have."""


@dataclass(frozen=True)
class ResultSet:
    """One result set: column names, DuckDB types, rows."""

    names: Sequence[str]
    kinds: Sequence[str]
    rows: Sequence[Row]


def result_set(table: ResultTable, answer: Answer, errors: bool) -> ResultSet:
    """A result as it was released; without ``errors`` the columns go that say how far numbers may be off, or OTHER."""
    hidden: set[str] = set()
    names = [name for name, _ in table.noisy]
    if not errors:
        shown = shown_columns(answer)
        hidden = {name for column in shown for suffix, name in column.companions if suffix in OPTIONAL}
        if [name for column in shown for name in (column.name, *(beside for _, beside in column.companions))] != names:
            # Outer SQL failed on the numbers that came out, and the result is the noisy table under it.
            hidden = {f"{name}{suffix}" for name in names for suffix in OPTIONAL}
    result = table.result(hidden)
    return ResultSet(result.columns, result.types, result.rows)


def probed(
    con: Session,
    statements: Sequence[Statement],
    understood: Callable[[Sequence[Statement]], tuple[Answer, ...]],
    *,
    errors: bool,
) -> list[ResultSet]:
    """The columns that statements such as ``... WHERE 1 = 0`` would have, and no row."""
    failure: SQLError
    try:
        answers = understood([plainly_empty(statement) for statement in statements])
        return [ResultSet(*held) for held in answer_probes(statements, answers, errors=errors)]
    except SQLError as error:
        failure = error
    # Rows are never answered, but which columns they have is public.
    sets = []
    for statement in statements:
        held = over_empty_tables(statement.tree.sql("duckdb"), con.policy, con.schemas())
        if held is None or statement.named:
            raise failure
        sets.append(ResultSet(*held))
    return sets


def described(con: Session, piece: Piece) -> ResultSet:
    """The declared columns of a table of the policy; anything else about it that is no SELECT is refused."""
    named = piece.tables[0]
    if piece.word in ("DESCRIBE", "DESC") and named.parent is None:  # a name, no query around it
        held = over_empty_tables(piece.text, con.policy, con.schemas())
        if held is not None:
            return ResultSet(*held)
    raise NotSupportedError(
        f"{piece.word} is not answered for the private {named.sql('duckdb')[:60]}; DESCRIBE shows its columns, and "
        "a SELECT with LIMIT 0 those of a query"
    )


def read(
    con: Session,
    piece: Piece,
    going: Route,
    ask: Callable[[str], Result] | None = None,
    question: Question | None = None,
) -> ResultSet:
    """The result of one statement that asks no private table.

    ``ask``: what asks the releases, by default the connection's ``sql``; who holds the ``question`` may stop the rest.
    """
    if piece.text.upper().split() in (["SHOW", "TABLES"], ["SHOW", "ALL", "TABLES"]):
        return _tables(con)
    con._books.catch_up()
    if con.releases_path.exists() or not going.constant:
        held = (ask or con.sql)(piece.text)
        return ResultSet(held.columns, held.types, held.fetchall())
    return answer_within(lambda asked: _constant(piece.text, asked), con._query_timeout, question=question)


def _constant(text: str, question: Question) -> ResultSet:
    """The result of a statement without tables, in a DuckDB of its own."""
    check_length(text)
    failure = ""
    with Sandbox() as sandbox:
        try:
            question.on(sandbox.connection)
            sandbox.connection.extract_statements(text)  # which says what is wrong with its syntax
            if check(text, sandbox.connection, lambda path: None) is None:
                raise SQLError("this statement does not run over the releases; write it as a SELECT")
            cursor = sandbox.connection.execute(text)
            columns = cursor.description or []
            rows = fetched(cursor, MOST_ROWS, question)
            return ResultSet([str(d[0]) for d in columns], [str(d[1]) for d in columns], rows)
        except duckdb.Error as error:
            if isinstance(error, duckdb.InterruptException) and question.is_late():
                raise
            failure = str(error).strip().splitlines()[0]
    raise SQLError(failure)


def _tables(con: Session) -> ResultSet:
    """What can be asked, by name: released views, which are free, tables and views of the policy."""
    rows = [(name, "released") for name in con._view_names()]
    rows += [(name, "public" if table.public else "private") for name, table in con.policy.tables.items()]
    rows += [(name, "private view") for name in con.policy.views]
    return ResultSet(["name", "kind"], ["VARCHAR", "VARCHAR"], rows)
