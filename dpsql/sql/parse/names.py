"""Names of result columns that have no alias: DuckDB's own, asked of an empty DuckDB.

DuckDB is asked about the user's own text of an expression that was admitted, or else about
what sqlglot writes for it; the database that names them has no tables, no files and no data.
"""

from __future__ import annotations

import bisect
import functools
import itertools
from collections.abc import Mapping, Sequence

import duckdb
from sqlglot import Token, TokenType, exp

from dpsql.common.quoting import identifier
from dpsql.policy.values import fold
from dpsql.sql.parse.tokens import items_of
from dpsql.sql.parse.trees import nodes, written

# Characters of a name that dpsql makes up itself.
_LONGEST = 200


def result_names(
    items: Sequence[exp.Expression], schema: Mapping[str, str], texts: Sequence[str | None] = ()
) -> list[str]:
    """The column names of SELECT ``items`` over a table with that schema, in order.

    ``texts`` are the items as the user wrote them, as far as they are known. The items must have been admitted. Where
    DuckDB cannot bind an item, at most 200 characters of its text name it.
    """
    names = []
    for item, own in itertools.zip_longest(items, texts):
        if isinstance(item, exp.Alias):
            names.append(str(item.alias))
        elif isinstance(item, exp.Column):
            names.append(next((name for name in schema if fold(name) == fold(item.name)), str(item.name)))
        else:
            found = [part for part in nodes(item) if isinstance(part, exp.Column)]
            used = {fold(column.name) for column in found}
            # A statement has one table, so that all its columns are qualified alike, if at all.
            qualifier = next((column.table for column in found if column.table), "t")
            kinds = tuple((name, kind) for name, kind in schema.items() if fold(name) in used)
            kinds = kinds or (("no_column", "INTEGER"),)
            name = None if own is None else _ask(own, kinds, qualifier)
            if name is None:
                text = written(item)
                name = _ask(text, kinds, qualifier)
            # DuckDB cannot bind all that is admitted, such as a constant beyond the column's type.
            names.append(text[:_LONGEST] if name is None else name)
    return names


@functools.lru_cache(maxsize=65_536)
def _ask(text: str, schema: tuple[tuple[str, str], ...], table: str) -> str | None:
    """DuckDB's name for an expression; None where it does not read it as one column."""
    columns = ", ".join(f"NULL::{plain_type(kind)} AS {identifier(name)}" for name, kind in schema)
    found = described(f"DESCRIBE SELECT {text} FROM (SELECT {columns}) AS {identifier(table)}")  # noqa: S608
    return None if found is None else found[0]


def text_of(constant: exp.Expression) -> str:
    """A constant as DuckDB writes it in a text, NULL as the word."""
    try:
        found = empty_database().cursor().execute(f"SELECT CAST({written(constant)} AS VARCHAR)").fetchone()
    except duckdb.Error:
        return written(constant)
    return "NULL" if found is None or found[0] is None else str(found[0])


def name_over(text: str, column: str) -> str:
    """DuckDB's name for an item with COLUMNS(*) over one column; the column's where it cannot tell."""
    return _ask(text, ((column, "DOUBLE"),), "t") or column


def names_of(question: str) -> list[str] | None:
    """The names of the columns that a SELECT without tables has; None where DuckDB does not run it."""
    try:
        found = empty_database().cursor().execute(f"DESCRIBE {question}").fetchall()
    except duckdb.Error:
        return None
    return [str(row[0]) for row in found]


def described(question: str) -> tuple[str, str] | None:
    """Name and type of the one column that DuckDB describes; None where it does not read it as one column."""
    try:
        cursor = empty_database().cursor()
        if len(cursor.extract_statements(question)) != 1:
            return None
        found = cursor.execute(question).fetchall()
    except duckdb.Error:
        return None
    return (str(found[0][0]), str(found[0][1])) if len(found) == 1 else None


def plain_type(kind: str) -> str:
    """A type of which NULL can be cast without knowing user types."""
    return "VARCHAR" if kind.upper().startswith("ENUM") else kind


@functools.cache
def empty_database() -> duckdb.DuckDBPyConnection:
    """A DuckDB without tables, files and data, which names and works out what depends on nothing else."""
    return duckdb.connect(
        ":memory:",
        config={"enable_external_access": "false", "threads": "1", "lock_configuration": "true"},
    )


Spans = tuple[tuple[int, int], ...]
_ENDS = frozenset({TokenType.FROM, TokenType.WHERE, TokenType.GROUP_BY})


class Source:
    """A batch's text and its tokens, cut at the semicolons.

    DuckDB names a column without an alias after its text as written: 1_000 and 1000 are two names. Tokens know their
    place in the text; the tree of an expression does not.
    """

    def __init__(self, text: str, tokens: Sequence[Token]) -> None:
        self.text = text
        self.tokens = list(tokens)
        self._semicolons = [i for i, token in enumerate(tokens) if token.token_type is TokenType.SEMICOLON]
        self._starts = [tokens[i].start for i in self._semicolons]

    def items(self, select: exp.Select) -> tuple[str, ...] | None:
        """The text of each item of a SELECT of the batch; None where the tokens do not tell it plainly.

        Cost: linear in the statement.
        """
        spans = self.spans(select)
        if spans is None:
            return None
        return tuple(self.text[self.tokens[i].start : self.tokens[j].end + 1] for i, j in spans)

    def spans(self, select: exp.Select) -> Spans | None:
        """The numbers of the first and the last token of each item."""
        within = next((part.meta["start"] for part in nodes(select) if part.meta_get("start") is not None), None)
        if within is None:
            return None
        number = bisect.bisect(self._starts, within)
        first = self._semicolons[number - 1] + 1 if number else 0
        last = self._semicolons[number] if number < len(self._semicolons) else len(self.tokens)
        tokens = self.tokens[first:last]
        heads = [i for i, token in enumerate(tokens) if token.token_type is TokenType.SELECT]
        if len(heads) != 1:
            return None
        found = items_of(tokens[heads[0] + 1 :], _ENDS)
        if len(found) > 1 and not found[-1]:
            found.pop()  # DuckDB reads a comma after the last item
        if len(found) != len(select.expressions) or not all(found):
            return None
        spans, at = [], first + heads[0] + 1
        for item in found:
            spans.append((at, at + len(item) - 1))
            at += len(item) + 1
        return tuple(spans)
