"""Completion of tables, columns, released views and options inside ``%dpsql`` and ``%%dpsql``.

Names come from the policy and from what is released: both are public, and asking for them is free.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dpsql.driver.connection import Connection
from dpsql.errors import Error
from dpsql.extensions.notebook.line import COMMANDS, CONNECT_OPTIONS, OPTIONS, read_line

if TYPE_CHECKING:
    from IPython.core.completer import CompletionContext
    from IPython.core.interactiveshell import InteractiveShell


_MAGIC = re.compile(r"\s*%%?dpsql\b")
_ASSIGNED = re.compile(r"\s*[\w.,\s]+=\s*(?=%dpsql\b)")
_WORD = re.compile(r'(?:"[^"]*|[^\W\d]\w*)?\Z')
_TABLE_PLACE = re.compile(r"\b(?:from|join|describe|desc|summarize|table)\s+(?:[\w.\"]+\s*,\s*)*\Z", re.IGNORECASE)
_QUALIFIER = re.compile(r'((?:"[^"]+"|[^\W\d]\w*)(?:\.(?:"[^"]+"|[^\W\d]\w*))?)\.\Z')
_NAMED = re.compile(
    r'\b(?:from|join)\s+((?:"[^"]+"|\w+)(?:\.(?:"[^"]+"|\w+))?)(?:\s+(?:as\s+)?([^\W\d]\w*))?', re.IGNORECASE
)
_IN_QUOTES = re.compile(r"'(?:[^']|'')*\Z")
_CLOSED = re.compile(r"'(?:[^']|'')*'|--[^\n]*\n|/\*.*?\*/", re.DOTALL)
_PLAIN = re.compile(r"[a-z_]\w*", re.ASCII | re.IGNORECASE)
_KEYWORDS = (
    *("SELECT", "FROM", "WHERE", "GROUP BY", "ORDER BY", "HAVING", "LIMIT", "AND", "OR", "NOT", "BETWEEN", "IN", "IS"),
    *("NULL", "AS", "JOIN", "WITH", "CASE", "WHEN", "THEN", "ELSE", "END", "CREATE OR REPLACE VIEW", "COUNT(*)"),
    *("COUNT_IF", "COUNT", "SUM", "AVG", "MEDIAN", "QUANTILE_CONT", "ROLLUP", "CUBE", "GROUPING SETS", "FILTER"),
)


@dataclass(frozen=True)
class Matches:
    """What could stand in place of ``fragment``, the text before the cursor: (text, kind) pairs."""

    fragment: str
    items: tuple[tuple[str, str], ...]


def complete(before: str, whole: str, con: Connection | None, names: Iterable[str] = ()) -> Matches | None:
    """Completions at the end of ``before``, the text of a cell up to the cursor; None outside the magics.

    ``whole`` is the whole cell, whose FROM may stand below the cursor; ``names`` are those of the connections.
    """
    before, whole = _ASSIGNED.sub("", before, count=1), _ASSIGNED.sub("", whole, count=1)
    magic = _MAGIC.match(before)
    if magic is None:
        return None
    text = before[magic.end() :]
    if "\n" not in text:
        found = _on_the_line(text, names)
        if found is not None:
            return found
    sql = _CLOSED.sub(" ", text)
    if _IN_QUOTES.search(sql) or con is None:
        return None
    start = _WORD.search(sql)
    fragment = start[0] if start else ""
    ahead = sql[: len(sql) - len(fragment)]
    tables = _Tables(con)
    qualifier = _QUALIFIER.search(ahead)
    if qualifier is not None:
        items = list(tables.below(_bare(qualifier[1]), whole[magic.end() :]))
    elif _TABLE_PLACE.search(ahead):
        items = list(tables.names())
    else:
        used = tables.used(whole[magic.end() :])
        items = [(column, "column") for name in used or tables.declared() for column in tables.columns(name)]
        items += tables.names()
        items += [(word, "keyword") for word in _KEYWORDS]
    return _matching(fragment, items)


def _on_the_line(text: str, names: Iterable[str]) -> Matches | None:
    """Options, their values and commands; None where SQL begins."""
    start = text.rsplit(None, 1)[-1] if text and not text[-1].isspace() else ""
    ahead = text[: len(text) - len(start)]
    if re.search(r"(?:^|\s)(?:-c|--connection)\s+\Z", ahead):
        return _matching(start, [(name, "connection") for name in names])
    connecting = re.match(r"\s*connect\s", text) is not None
    if start.startswith("-"):
        return _matching(start, [(name, "option") for name in (CONNECT_OPTIONS if connecting else OPTIONS)])
    rest: str | None = None
    try:
        rest = read_line(ahead, {}).rest
    except Error:
        rest = None  # an option without its value yet
    if rest == "" and not connecting:
        words = [(word, "command") for word in COMMANDS] + [(name, "connection") for name in names]
        found = _matching(start, [*words, *((word, "keyword") for word in ("SELECT", "FROM", "WITH", "SHOW TABLES"))])
        return found if found.items else None
    return Matches(start, ()) if connecting else None


def _matching(fragment: str, items: Iterable[tuple[str, str]]) -> Matches:
    lowered = fragment.lower().lstrip('"')
    kept = dict.fromkeys(item for item in items if item[0].lower().lstrip('"').startswith(lowered))
    return Matches(fragment, tuple(kept))


class _Tables:
    """Tables, views and released views of a connection, with their columns."""

    def __init__(self, con: Connection) -> None:
        self._con = con
        self._released = _released(con)

    def declared(self) -> list[str]:
        return list(self._con.policy.tables)

    def names(self) -> Iterator[tuple[str, str]]:
        yield from ((_written(name), "table") for name in self._con.policy.tables)
        yield from ((_written(name), "view") for name in self._con.policy.views)
        yield from ((_written(name), "released view") for name in self._released)

    def columns(self, name: str) -> list[str]:
        policy = self._con.policy
        for known, table in policy.tables.items():
            if name.lower() in (known.lower(), known.lower().removeprefix("main.")):
                return [_written(column) for column in table.columns]
        for known, sql in policy.views.items():
            if name.lower() == known.lower():  # what it selects is not worked out: the columns that it may have
                used = [table for table in policy.tables if re.search(rf"\b{re.escape(table)}\b", sql)]
                return [column for table in used for column in self.columns(table)]
        held = {known.lower(): columns for known, columns in self._released.items()}
        return [_written(column) for column in held.get(name.lower().removeprefix("dp."), ())]

    def used(self, sql: str) -> list[str]:
        """Names after FROM and JOIN that are known."""
        return [name for name, _ in _named(sql) if self.columns(name)]

    def below(self, name: str, sql: str) -> Iterator[tuple[str, str]]:
        """What may stand after ``name.``: a schema's tables, or columns of a table or of what an alias stands for."""
        if name.lower() == "dp":
            yield from ((_written(view), "released view") for view in self._released)
            return
        meant = next((table for table, alias in _named(sql) if alias.lower() == name.lower()), name)
        yield from ((column, "column") for column in self.columns(meant))
        for known in self._con.policy.tables:
            if known.lower().startswith(f"{name.lower()}."):
                yield _written(known[len(name) + 1 :]), "table"


def _named(sql: str) -> list[tuple[str, str]]:
    return [(_bare(found[1]), found[2] or "") for found in _NAMED.finditer(_CLOSED.sub(" ", sql))]


def _bare(name: str) -> str:
    return name.replace('"', "")


def _written(name: str) -> str:
    """A name as SQL takes it; a dotted name of the policy keeps its dots."""
    return ".".join(part if _PLAIN.fullmatch(part) else f'"{part}"' for part in name.split("."))


def _released(con: Connection) -> Mapping[str, tuple[str, ...]]:
    """Columns of the released views, by name. Free."""
    found: dict[str, list[str]] = {}
    try:
        if con.releases_path.exists():
            rows = con.sql(
                "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = 'dp' "
                "AND table_name <> 'releases' ORDER BY table_name, ordinal_position"
            )
            for table, column in rows:
                found.setdefault(str(table), []).append(str(column))
    except Error:
        found = {}  # a busy releases file: the policy's names are enough
    return {name: tuple(columns) for name, columns in found.items()}


def register(shell: InteractiveShell, magic: Any) -> None:
    """Offer completions inside the magics to ``shell``."""
    from IPython.core.completer import SimpleCompletion, context_matcher

    @context_matcher(identifier=_IDENTIFIER, priority=100)  # type: ignore[untyped-decorator,unused-ignore]
    def matcher(context: CompletionContext) -> dict[str, object]:
        found = _at(context, magic.completing)
        if found is None:
            return {"completions": []}
        items = [SimpleCompletion(text=text, type=kind) for text, kind in found.items]
        return {"completions": items, "suppress": True, "ordered": True, "matched_fragment": found.fragment}

    unregister(shell)
    shell.Completer.custom_matchers.append(matcher)


def unregister(shell: InteractiveShell) -> None:
    """Take the completions back."""
    held = shell.Completer.custom_matchers
    held[:] = [other for other in held if getattr(other, "matcher_identifier", None) != _IDENTIFIER]


_IDENTIFIER = "dpsql"


def _at(context: CompletionContext, completing: Callable[[str], tuple[Connection | None, list[str]]]) -> Matches | None:
    whole = str(context.full_text)
    lines = whole.split("\n")
    if context.cursor_position > len(lines[context.cursor_line]):  # the old call counts through the whole text
        before = whole[: context.cursor_position]
    else:
        before = "\n".join([*lines[: context.cursor_line], lines[context.cursor_line][: context.cursor_position]])
    if before != whole and len(before) == len(context.token) and whole.endswith(context.token):
        before = whole  # the old call without a place counts from the token's start
    if "dpsql" not in before:
        return None
    if not whole.lstrip().startswith("%%"):  # a line magic in a cell of Python: its line alone
        before = before.split("\n")[-1]
        whole = lines[context.cursor_line] if len(lines) > context.cursor_line else before
    try:
        con, names = completing(before)
        return complete(before, whole, con, names)
    except Error:
        return None  # a broken ledger is for the cell to say
