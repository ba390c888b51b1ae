"""A query over all replicates at once: one statement, each table partitioned by its replicate.

The query stands in a LATERAL join beside the numbers of the replicates and reads, of each table, the rows of its own:
DuckDB turns that into joins, groups and windows by replicate (Neumann and Kemper 2015). What it cannot turn, or turns
otherwise than the query says of the first and the last replicate, runs once for each replicate.

Before that it is told which released results a query reads, and whether its errors can be worked out at all.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import duckdb
from sqlglot import exp, parse_one
from sqlglot.errors import SqlglotError

from dpsql.common.quoting import identifier
from dpsql.errors import OperationalError, SQLError
from dpsql.release import Result
from dpsql.release.columns import write_table
from dpsql.release.range_table import RangeTable, write_ranges
from dpsql.release.reading import first_line
from dpsql.sql.outer.sandbox import Sandbox, changing_function, is_plain
from dpsql.sql.routing import named_tables

from .lineage import Columns, Lineage, lineage

REPLICATE = "dpsql_replicate"
_NUMBERS = frozenset(
    [
        "DOUBLE",
        "FLOAT",
        "DECIMAL",
        "TINYINT",
        "SMALLINT",
        "INTEGER",
        "BIGINT",
        "HUGEINT",
        "UTINYINT",
        "USMALLINT",
        "UINTEGER",
        "UBIGINT",
        "UHUGEINT",
    ]
)
MOST_APART = 200
"""Replicates of a query that runs once for each: statements take a millisecond or more."""
_CLOSE = 1e-9


@dataclass(frozen=True, eq=False)
class Table:
    """A released table in all replicates: ``columns``, ``REPLICATE`` first, and which of the others noise reaches.

    ``ranges``: in place of the columns' values, where it has all ranges of a line; its last key is the replicate.
    """

    columns: Sequence[tuple[str, str, Any]] = field(repr=False)
    noisy: Columns
    ranges: RangeTable | None = field(default=None, repr=False)

    @property
    def times(self) -> int:
        """How many replicates there are, the release itself among them."""
        return len(self.columns[0][2].distinct) if self.ranges is None else int(self.ranges.keys[-1][0][-1]) + 1

    def write(self, sandbox: Sandbox, name: str) -> None:
        """Write it as a table, or as a view over sums."""
        if self.ranges is None:
            write_table(sandbox.connection, name, self.columns)
        else:
            write_ranges(sandbox.connection, replace(self.ranges, name=name), "main")


def is_number(kind: str) -> bool:
    """Whether a DuckDB type is one of numbers."""
    return kind.split("(")[0] in _NUMBERS and "[" not in kind


@dataclass(frozen=True)
class Ran:
    """A query in all replicates: (name, type) of its columns, what noise reaches, and the places of its divisors.

    ``divisors[i]``: of column i, among the columns that follow those of the query. ``order``: the place of a column
    that numbers the rows of a replicate in the order in which the query gives them; None where they stand in it.
    ``ordered``: whether one or the other holds. ``times``: replicates that it ran over, the release among them.
    ``failed``: on the numbers of how many of them it failed; these have no rows.
    """

    columns: Sequence[tuple[str, str]]
    lineage: Lineage
    divisors: tuple[tuple[int, ...], ...]
    order: int | None
    ordered: bool
    times: int
    failed: int = 0

    @property
    def noisy(self) -> tuple[bool, ...]:
        """Whether noise reaches each column."""
        return self.lineage.noisy


@dataclass(frozen=True, eq=False)
class Query:
    """A query over released tables: ``tables`` in all replicates, and ``named`` the key that a table of it goes by."""

    tree: exp.Expr = field(repr=False)
    tables: Mapping[str, Table] = field(repr=False)
    named: Callable[[exp.Table], str] = field(default=lambda node: node.name, repr=False)

    @property
    def times(self) -> int:
        """Replicates, the release itself among them."""
        return next(iter(self.tables.values())).times

    @property
    def clean(self) -> frozenset[str]:
        """The names of columns that noise reaches in none of the tables, in lower case."""
        columns = [column for table in self.tables.values() for column in table.noisy]
        return frozenset(n.lower() for n, _ in columns) - {n.lower() for n, noisy in columns if noisy}

    def stack(self, sandbox: Sandbox) -> None:
        """Write the tables."""
        for number, table in enumerate(self.tables.values()):
            table.write(sandbox, f"dpsql_stack_{number}")

    def run(self, sandbox: Sandbox, into: str, end: float, *, places: bool = False, ordered: bool = False) -> Ran:
        """Run it in all replicates, into a table ``into`` of the sandbox, in their order, once ``stack`` wrote tables.

        ``places``: name columns c0, c1, ..., with those that ``Ran`` tells of after them; else as the query does. Of
        those that run one by one, ``MOST_APART`` do. ``ordered``: the query's order of rows is needed. ``end``: until
        when. Raises SQLError for what is not understood or fails, OperationalError once time is over.
        """
        one = _Text.of(self, self.tree)
        described, said = sandbox.describe(one.over("0"))
        if said:
            raise SQLError(said)
        found = lineage(self.tree, self._read(), [name for name, _ in described])
        names = [f"c{number}" for number in range(len(described))] if places else [name for name, _ in described]
        attempts = [_beside(self.tree, found)] if places else []
        for more, divisors, order in (*attempts, (None, (), None)):
            if ordered and order is None:
                continue
            text = one if more is None else _Text.of(self, more)
            count = len(described) + sum(map(len, divisors)) + (order is not None)
            listed = [*names, *(f"c{number}" for number in range(len(names), count))]
            if text.partitioned(sandbox, listed, into, self.times, end):
                return Ran(described, found, divisors, order, order is not None, self.times)
        apart = one.over(f"getvariable('{REPLICATE}')")
        times = min(self.times, MOST_APART) if places else self.times
        return Ran(described, found, (), None, True, times, _one_by_one(sandbox, apart, names, into, times, end))

    def _read(self) -> list[tuple[exp.Table, Columns]]:
        keyed = [(node, self.named(node)) for node in named_tables(self.tree)]
        return [(node, self.tables[key].noisy) for node, key in keyed if key in self.tables]


def _beside(tree: exp.Expr, lineage: Lineage) -> tuple[exp.Expr | None, tuple[tuple[int, ...], ...], int | None]:
    """The query with its divisors and the places of its rows as further columns, where it can have such."""
    count = len(lineage.noisy)
    divisors, at = [], count
    for mine in lineage.divisors:
        divisors.append(tuple(range(at, at + len(mine))))
        at += len(mine)
    more = [text for mine in lineage.divisors for text in mine]
    order = None
    if isinstance(tree, exp.Select) and not tree.args.get("distinct") and tree.args.get("order"):
        keys = [_unnamed(tree, key) for key in tree.args["order"].expressions]
        more.append(f"row_number() OVER (ORDER BY {', '.join(keys)})")
        order = at
    if not (more and isinstance(tree, exp.Select)):
        return None, (), None
    return tree.copy().select(*more, dialect="duckdb", copy=False), tuple(divisors), order


def _unnamed(tree: exp.Select, key: exp.Expr) -> str:
    """A key of ORDER BY, with what SELECT calls by a name or a number written out."""
    written = {item.alias.lower(): item.this for item in tree.expressions if isinstance(item, exp.Alias)}
    copy = key.copy()
    of = copy.this if isinstance(copy, exp.Ordered) else copy
    if isinstance(of, exp.Literal) and not of.is_string and int(of.this) <= len(tree.expressions):
        of.replace(tree.expressions[int(of.this) - 1].unalias().copy())
    for column in list(copy.find_all(exp.Column)):
        if not column.table and column.name.lower() in written:
            column.replace(exp.paren(written[column.name.lower()].copy()))
    return copy.sql("duckdb")


@dataclass(frozen=True)
class _Text:
    """A query as text with a mark in place of each of its released tables, and the numbers of these."""

    sql: str
    holes: tuple[int, ...]

    @classmethod
    def of(cls, query: Query, tree: exp.Expr) -> _Text:
        order = list(tree.walk())
        numbers = {key: number for number, key in enumerate(query.tables)}
        read = [(node, query.named(node)) for node in named_tables(tree)]
        marks = [
            (next(at for at, node in enumerate(order) if node is table), numbers[k])
            for table, k in read
            if k in numbers
        ]
        copy = tree.copy()
        copied = list(copy.walk())
        for number, (place, _) in enumerate(marks):
            node = copied[place]
            if not node.args.get("alias"):
                node.set("alias", exp.TableAlias(this=exp.to_identifier(node.name, quoted=True)))
            node.set("this", exp.to_identifier(f"dpsql_hole_{number}_"))
            node.set("db", None)
            node.set("catalog", None)
        return cls(copy.sql("duckdb"), tuple(table for _, table in marks))

    def over(self, replicate: str) -> str:
        """The text over the rows of one replicate."""
        text = self.sql
        for number, table in enumerate(self.holes):
            rows = f"(SELECT * EXCLUDE ({REPLICATE}) FROM dpsql_stack_{table} WHERE {REPLICATE} = {replicate})"  # noqa: S608
            text = text.replace(f"dpsql_hole_{number}_", rows)
        return text

    def partitioned(self, sandbox: Sandbox, names: Sequence[str], into: str, times: int, end: float) -> bool:
        """Make a table of all replicates in one statement; False where that cannot be done, and nothing is made."""
        listed = ", ".join(map(identifier, names))
        made = (
            f"SELECT dpsql_all.range AS {REPLICATE}, q.* FROM range({times}) dpsql_all, "  # noqa: S608
            f"LATERAL ({self.over('dpsql_all.range')}) q({listed}) ORDER BY 1"
        )
        try:
            if sandbox.run(f"CREATE TABLE {identifier(into)} AS {made}", max(end - time.monotonic(), 0.01)):
                raise _late()
        except duckdb.Error:
            return False
        if self._agrees(sandbox, listed, into, times):
            return True
        sandbox.drop(into)
        return False

    def _agrees(self, sandbox: Sandbox, listed: str, into: str, times: int) -> bool:
        """Whether the first and the last replicate hold what the query gives of them alone."""
        kinds = [kind for _, kind in table_of(sandbox, into)[1:]]
        named = [f"c{number}" for number in range(len(kinds))]
        sums = ", ".join(
            f"count({c}), sum({c}::DOUBLE), sum(abs({c}::DOUBLE))"
            if is_number(kind)
            else f"count({c}), sum(hash({c})), 0"
            for c, kind in zip(named, kinds, strict=True)
        )
        for which in {0, times - 1}:
            of = [self.over(str(which)), f"SELECT {listed} FROM {identifier(into)} WHERE {REPLICATE} = {which}"]  # noqa: S608
            asked = [f"SELECT count(*), {sums} FROM ({one}) q({', '.join(named)})" for one in of]  # noqa: S608
            try:
                first, second = (sandbox.connection.execute(one).fetchall()[0] for one in asked)
            except duckdb.Error:
                return False
            if not all(_like(a, b) for a, b in zip(first, second, strict=True)):
                return False
        return True


def parsed(sql: str) -> exp.Expr:
    """The tree of one query. Raises SQLError."""
    failure = ""
    try:
        return parse_one(sql, dialect="duckdb")
    except SqlglotError as error:
        failure = first_line(error)
    raise SQLError(f"errors=True cannot read the query ({failure}); write it more plainly, or leave errors out")


def table_of(sandbox: Sandbox, name: str) -> list[tuple[str, str]]:
    """(name, type) of a table's columns."""
    rows = sandbox.connection.execute(f"DESCRIBE {identifier(name)}").fetchall()
    return [(str(row[0]), str(row[1])) for row in rows]


def _late() -> OperationalError:
    return OperationalError(
        "the query took too long over all replicates; narrow it, allow it more time (query_timeout= of connect, "
        "--timeout on the command line), or leave errors out"
    )


def _like(a: object, b: object) -> bool:
    if isinstance(a, float) and isinstance(b, float) and math.isfinite(a) and math.isfinite(b):
        return abs(a - b) <= _CLOSE * max(abs(a), abs(b), 1.0)
    return repr(a) == repr(b)


def _one_by_one(sandbox: Sandbox, text: str, names: Sequence[str], into: str, times: int, end: float) -> int:
    """Run a query once for each replicate; how many it failed on. Raises SQLError where it fails on the release."""
    held, failures = sandbox.connection, []
    listed = ", ".join(map(identifier, names))
    for number in range(times):
        if time.monotonic() > end:
            raise _late()
        held.execute(f"SET VARIABLE {REPLICATE} = {number}")
        rows = f"SELECT {number}::BIGINT AS {REPLICATE}, q.* FROM ({text}) q({listed})"  # noqa: S608
        begin = f"CREATE TABLE {identifier(into)} AS" if number == 0 else f"INSERT INTO {identifier(into)}"
        try:
            held.execute(f"{begin} {rows}")
        except duckdb.Error as error:
            failures.append(first_line(error))
        if number == 0 and failures:
            break
    if failures and number == 0:
        raise SQLError(failures[0])
    return len(failures)


MOST_ROWS = 10_000
"""Rows of an answer whose errors are worked out."""


def by_period(tree: exp.Expr, series: Mapping[str, str], unnamed: Mapping[str, Mapping[str, int]]) -> exp.Expr:
    """The query with each view of releases of several periods written out as a query over these."""
    for node in [node for node in named_tables(tree) if isinstance(node.this, exp.Identifier)]:
        name, schema = node.name.lower(), node.db.lower()
        if schema in ("", "dp") and name in series and (schema or name not in unnamed):
            alias = node.args.get("alias") or exp.TableAlias(this=exp.to_identifier(node.name, quoted=True))
            written = exp.Subquery(this=parsed(series[name]), alias=alias)
            for part in ("joins", "laterals", "pivots"):
                if node.args.get(part):
                    written.set(part, node.args[part])
            node.replace(written)
    return tree


def release_of(
    node: exp.Table, shown: Mapping[str, tuple[int, str]], unnamed: Mapping[str, Mapping[str, int]]
) -> tuple[int, str] | None:
    """(release, result) that a table of a query is; None for what is no result."""
    name, schema = node.name.lower(), node.db.lower()
    if re.fullmatch(r"r[1-9][0-9]*", schema):
        return int(schema[1:]), name
    if not schema and name in unnamed:
        releases = set(unnamed[name].values())
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
