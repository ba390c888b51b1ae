"""Trees: what the parser makes, walked, written out and kept for batches of many statements.

The parser's trees hold their parents, so that only Python's collector of cycles frees them. While a batch is read
nearly all of them are in use: the collector would look through them again and again, for a third of the time.
"""

from __future__ import annotations

import gc
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TypeVar

from sqlglot import ErrorLevel, exp
from sqlglot.dialects.dialect import Dialect

DUCKDB = Dialect.get_or_raise("duckdb")
_lock = threading.Lock()
_within = 0
_was_on = False
_silent: ContextVar[bool] = ContextVar("_silent", default=False)
_LEAVES = frozenset({exp.Identifier, exp.Literal, exp.DataType})
_STANDS_FOR = "dpsql_stands_for"
_MADE, _NAME, _AS_IT_IS = "dpsql_made", "dpsql_name", "dpsql_as_it_is"
Node = TypeVar("Node", bound=exp.Expr)
logging.getLogger("sqlglot").addFilter(lambda record: not _silent.get())


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


def columns_in(tree: exp.Expr, *, queries: bool = True) -> list[exp.Column]:
    """The columns of a tree, level by level; without ``queries`` not those of the queries in it."""
    columns: list[exp.Column] = []
    waiting = [tree]
    for node in waiting:  # which grows meanwhile
        if isinstance(node, exp.Column):
            columns.append(node)
        elif queries or node is tree or not isinstance(node, exp.Query):
            for value in node.args.values():
                if type(value) is list:
                    waiting.extend([part for part in value if isinstance(part, exp.Expr)])
                elif isinstance(value, exp.Expr) and type(value) not in _LEAVES:
                    waiting.append(value)
    return columns


def written(tree: exp.Expr, *, copy: bool = True) -> str:
    """The tree as DuckDB reads it, without comments; ``copy=False`` where writing it may change it."""
    return str(tree.sql(DUCKDB, comments=False, copy=copy, unsupported_level=ErrorLevel.IGNORE))


@dataclass(frozen=True)
class _Original:
    """What the user wrote where another expression stands; copies of a tree share it."""

    node: exp.Expr
    inside: bool

    def __deepcopy__(self, memo: object) -> _Original:
        return self


def standing_for(new: exp.Expression, old: exp.Expr, *, inside: bool = False) -> exp.Expression:
    """``new`` marked as what is read in place of ``old``, which messages quote instead.

    ``inside``: only where it is a part of another expression, for by itself ``new`` is what the user wrote, elsewhere.
    """
    mark, bare = _Original(old, inside), new.unnest()
    part: exp.Expr = new
    while part is not bare:
        part.meta[_STANDS_FOR] = mark
        part = part.this
    for part in [bare] if inside else nodes(bare):
        if part is bare or part.meta_get("start") is None:  # made, and not written by the user
            part.meta[_STANDS_FOR] = mark
    return new


def original(node: exp.Expr, *, inside: bool = False) -> exp.Expr:
    """A copy of an expression as the user wrote it, where parts of it stand for others; without parentheses around."""
    held = node.meta_get(_STANDS_FOR)
    if isinstance(held, _Original) and (inside or not held.inside):
        return original(held.node)
    if isinstance(node, exp.Paren) and not inside:
        return original(node.this)
    out = node.copy()
    for part in [part for part in nodes(out) if part is not out and part.meta_get(_STANDS_FOR) is not None]:
        part.replace(original(part, inside=True))
    return out


def place(node: exp.Expr) -> tuple[int, int, tuple[int, int]] | tuple[None, None, None]:
    """Line and column (from 1) of the first token under ``node`` that the parser remembers, and those of the last."""
    first: tuple[int, int, int] | None = None
    last: tuple[int, int, int] = (0, 0, 0)
    for part in node.walk():
        meta = part.meta
        if "start" in meta:
            width = meta["end"] - meta["start"]
            found = (meta["start"], meta["line"], max(1, meta["col"] - width))
            first = found if first is None else min(first, found)
            last = max(last, (meta["end"], meta["line"], max(1, meta["col"])))
    if first is None and node.parent is not None:
        return place(node.parent)  # CURRENT_DATE and the like: the parser remembers what holds them
    return (None, None, None) if first is None else (*first[1:], last[1:])


def made(tree: Node) -> Node:
    """``tree``, which a rule made: its columns are no names of the user's text, and have no place there."""
    for node in nodes(tree):
        if isinstance(node, exp.Column):
            node.meta[_MADE] = True
    return tree


def made_column(name: str | exp.Identifier, table: str | exp.Identifier | None = None) -> exp.Column:
    """A column that a rule makes."""
    return made(exp.column(name, table))


def is_made(node: exp.Expr) -> bool:
    """Whether a rule made a node, for itself or in place of what the user wrote."""
    return node.meta_get(_MADE) is not None or node.meta_get(_STANDS_FOR) is not None


def called(node: exp.Expression, name: str) -> exp.Expression:
    """``node``, which plans call ``name`` wherever it stands: what a unit's columns together are, AVG(age)."""
    bare = node.unnest()
    bare.meta[_NAME] = name
    if isinstance(bare, exp.Case) and len(bare.args["ifs"]) == 1 and bare.args.get("default") is None:
        called(bare.args["ifs"][0].args["true"], name)  # sums read it in the rows where it is not NULL
    return node


def as_they_are(node: exp.Expression) -> exp.Expression:
    """``node``, whose columns are read as they are: what is made of them has bounds of its own.

    A unit's count and sum are of all its rows, which may be more than the limit that their bounds are made of.
    """
    for part in node.find_all(exp.Column):
        part.meta[_AS_IT_IS] = True
    return node


def reads_as_it_is(node: exp.Expr) -> bool:
    """Whether a column is read as it is, also where others are held to their bounds."""
    return bool(node.meta_get(_AS_IT_IS))


def name_of(node: exp.Expr) -> str:
    """The text of an expression, with the names of its parts that have one."""
    if not any(part.meta_get(_NAME) is not None for part in nodes(node)):
        return node.sql(DUCKDB)
    return node.transform(_by_name).sql(DUCKDB)


def _by_name(node: exp.Expr) -> exp.Expr:
    name = node.meta_get(_NAME)
    return node if name is None else exp.Var(this=name)


def loosened(tree: exp.Expr) -> None:
    """Let the nodes of a tree that has been read forget their parents, so that it is freed without the collector."""
    for node in nodes(tree):
        node.parent = None


@contextmanager
def uncollected() -> Iterator[None]:
    """No collection of cycles within, in the whole process; afterwards it is as it was. Threads may overlap.

    The parser logs nothing within: what it does not read is refused, with a place.

    Memory: copies of trees that are dropped meanwhile stay until the end, about 6 kB for each statement.
    """
    global _within, _was_on
    with _lock:
        if not _within:
            _was_on = gc.isenabled()
            gc.disable()
        _within += 1
    silent = _silent.set(True)
    try:
        yield
    finally:
        _silent.reset(silent)
        with _lock:
            _within -= 1
            if not _within and _was_on:
                gc.enable()
