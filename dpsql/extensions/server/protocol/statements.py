"""What a client's text asks for: batches of queries, and the commands of a session between them.

A command is a statement that asks no table: SET, SHOW, BEGIN, EXPLAIN and the like. All queries that stand
together are one batch with one charge. Each part keeps its place: what stands around it is blanked out, so that
lines and columns of its errors are those of the whole text.

DECLARE, FETCH and CLOSE are commands, too: a query whose rows a client takes a few at a time, by name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from dpsql.errors import SQLError

COMMANDS = frozenset({
    *("SET", "RESET", "SHOW", "DISCARD", "DEALLOCATE", "LISTEN", "UNLISTEN", "NOTIFY", "EXPLAIN", "COPY"),
    *("BEGIN", "START", "COMMIT", "END", "ROLLBACK", "ABORT", "SAVEPOINT", "RELEASE"),
    *("DECLARE", "FETCH", "MOVE", "CLOSE", "PREPARE", "EXECUTE", "LOCK"),
})  # fmt: skip
# What SHOW lists by DuckDB's word is a query.
_LISTS = re.compile(r"SHOW\s+(?:ALL\s+)?TABLES\b", re.IGNORECASE)

# Whatever may hold a semicolon that ends no statement, then the semicolon.
_PIECES = re.compile(
    r"""\b[eE]'(?:\\.|''|[^'\\])*'|'(?:[^']|'')*'|"(?:[^"]|"")*"|--[^\n]*|/\*.*?(?:\*/|\Z)"""
    r"""|\$([A-Za-z_]\w*)?\$.*?(?:\$\1\$|\Z)|;""",
    re.DOTALL,
)
_SPACE = re.compile(r"(?:\s|\ufeff|--[^\n]*|/\*.*?(?:\*/|\Z))*", re.DOTALL)
_WORD = re.compile(r"[A-Za-z_]+")


@dataclass(frozen=True)
class Part:
    """A part of a text: ``word`` is its command, or empty for a batch; ``text`` has it in its place.

    ``bare`` is the same without what stands around it.
    """

    word: str
    text: str
    bare: str
    queries: int = 0


def parts_of(text: str) -> list[Part]:
    """The commands and batches of a text, in order; none where it holds nothing but blanks and comments."""
    found: list[Part] = []
    together: list[tuple[int, int]] = []

    def batch() -> None:
        if together:
            start, stop = together[0][0], together[-1][1]
            found.append(Part("", _blanked(text, start, stop), text[start:stop].strip(), len(together)))
            together.clear()

    for start, stop in _spans(text):
        word = first_word(text[start:stop])
        if word in COMMANDS and not _LISTS.match(text[start:stop].lstrip()):
            batch()
            found.append(Part(word, _blanked(text, start, stop), text[start:stop].strip()))
        else:
            together.append((start, stop))
    batch()
    return found


def statements_of(text: str) -> list[str]:
    """The statements of a text, without what stands between them."""
    return [text[start:stop].strip() for start, stop in _spans(text)]


def first_word(text: str) -> str:
    """The first word in capitals, after blanks and comments."""
    blank = _SPACE.match(text)
    found = _WORD.match(text, blank.end() if blank else 0)
    return found[0].upper() if found else ""


def without(part: Part, stop: int) -> Part:
    """A part without its first ``stop`` characters, as ``EXPLAIN`` before a batch; what is left keeps its place."""
    start = part.text.index(part.bare[:1]) if part.bare else 0
    text = _blanked(part.text, start + stop, len(part.text))
    return Part("", text, text.strip(), 1)


def _spans(text: str) -> list[tuple[int, int]]:
    """Where the statements stand that are more than blanks and comments."""
    cuts = [found.start() for found in _PIECES.finditer(text) if found[0] == ";"]
    starts = [0, *(cut + 1 for cut in cuts)]
    spans = []
    for start, stop in zip(starts, [*cuts, len(text)], strict=True):
        blank = _SPACE.match(text, start, stop)
        begin = blank.end() if blank else start
        if begin < stop:
            spans.append((begin, stop))
    return spans


def _blanked(text: str, start: int, stop: int) -> str:
    """The text with blanks for all that stands outside ``start`` to ``stop``."""
    return re.sub(r"[^\n]", " ", text[:start]) + text[start:stop]


_NAME = r"(?P<name>\"[^\"]+\"|\w+)"
_DECLARE = re.compile(
    rf"DECLARE\s+{_NAME}\s+(?:(?:BINARY|INSENSITIVE|ASENSITIVE|NO\s+SCROLL)\s+)*CURSOR\s+"
    r"(?P<hold>(?:WITH|WITHOUT)\s+HOLD\s+)?FOR\s+",
    re.IGNORECASE,
)
_FETCH = re.compile(
    r"FETCH\s+(?:(?P<next>NEXT)\s+|(?:FORWARD\s+)?(?:(?P<count>\d{1,18})|(?P<all>ALL))\s+|(?P<one>FORWARD)\s+)?(?:(?:FROM|IN)\s+)?"
    + _NAME,
    re.IGNORECASE,
)
_CLOSE = re.compile(rf"CLOSE\s+{_NAME}", re.IGNORECASE)


@dataclass(frozen=True)
class Declared:
    """A cursor that is declared: its name, its query, and whether it outlives its transaction."""

    name: str
    part: Part
    holds: bool


def declared(part: Part) -> Declared:
    """What DECLARE says. Raises SQLError."""
    found = _DECLARE.match(part.bare)
    batch = without(part, found.end()) if found else part
    if found is None or not batch.bare:
        raise SQLError("DECLARE is not understood; write DECLARE name CURSOR FOR SELECT ...", code="syntax")
    return Declared(_plain(found["name"]), batch, bool(found["hold"]) and found["hold"].upper().startswith("WITH "))


def fetched(part: Part) -> tuple[str, int]:
    """Which cursor FETCH names, and how many of the next rows it takes; 0 for all. Raises SQLError."""
    found = _FETCH.fullmatch(part.bare)
    if found is None or found["count"] == "0":
        raise SQLError("FETCH is not understood; write FETCH FORWARD 100 FROM name", code="syntax")
    return _plain(found["name"]), 0 if found["all"] else int(found["count"] or 1)


def closed(part: Part) -> str:
    """Which cursor CLOSE names; ALL for all of them. Raises SQLError."""
    found = _CLOSE.fullmatch(part.bare)
    if found is None:
        raise SQLError("CLOSE is not understood; write CLOSE name", code="syntax")
    return _plain(found["name"])


def _plain(name: str) -> str:
    return name[1:-1] if name.startswith('"') else name.lower()
