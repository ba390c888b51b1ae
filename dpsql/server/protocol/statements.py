"""What a client's text asks for: batches of queries, and the commands of a session between them.

A command is a statement that asks no table: SET, SHOW, BEGIN, EXPLAIN and the like. All queries that stand
together are one batch with one charge. Each part keeps its place: what stands around it is blanked out, so that
lines and columns of its errors are those of the whole text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

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
_SPACE = re.compile(r"(?:\s|--[^\n]*|/\*.*?(?:\*/|\Z))*", re.DOTALL)
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
            found.append(Part("", _kept(text, start, stop), text[start:stop].strip(), len(together)))
            together.clear()

    for start, stop in _spans(text):
        word = first_word(text[start:stop])
        if word in COMMANDS and not _LISTS.match(text[start:stop].lstrip()):
            batch()
            found.append(Part(word, _kept(text, start, stop), text[start:stop].strip()))
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
    text = _kept(part.text, start + stop, len(part.text))
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


def _kept(text: str, start: int, stop: int) -> str:
    """The text with blanks for all that stands outside ``start`` to ``stop``."""
    return re.sub(r"[^\n]", " ", text[:start]) + text[start:stop]
