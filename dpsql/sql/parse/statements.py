"""Statements: the queries of a batch with the names of their results and their hints; refusals with their places."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from sqlglot import Token, TokenType, exp

from dpsql.errors import SQLError
from dpsql.sql.parse.names import Source
from dpsql.sql.parse.quoted import written_at
from dpsql.sql.parse.tokens import place_of
from dpsql.sql.parse.trees import loosened, nodes, original, place, written

# What joins call the columns of a subquery by the unit.
_JOINED = re.compile(r'\S+ by \S+ #[0-9a-f]{16}\([^()]*\)\??\.|"[^"]+ by [^"]+"\.')
_HINT = re.compile(r"(WEIGHT|MAX_ERROR)\s*\(\s*([0-9.eE+-]+)\s*\)", re.IGNORECASE)
_HINTS = re.compile(rf"\+\s*{_HINT.pattern}(?:[\s,]*{_HINT.pattern})*\s*", re.IGNORECASE)
_REACH = {"WEIGHT": (1e-6, 1e6), "MAX_ERROR": (1e-12, 1e15)}


@dataclass(frozen=True)
class Statement:
    """One query of a batch and the name of its result.

    ``name`` is the view's, or q1, q2, ... for the unnamed queries in their order (``named``
    says which). ``columns`` are the names listed after the view's name, or None. ``tree`` is a SELECT or
    a set operation. ``items`` are the texts of the SELECT's items as the user wrote them, where one
    of them needs a name and the texts are known. ``text_given``: ``text``, where it was written.
    ``source``: the whole statement as the user wrote it, where equal ones ask the same; else None. ``batch``: the text
    that it is a part of, which messages quote.
    """

    name: str
    named: bool
    replace: bool
    columns: tuple[str, ...] | None
    tree: exp.Select | exp.SetOperation = field(repr=False)
    items: tuple[str, ...] | None = field(default=None, repr=False, compare=False)
    text_given: str | None = field(default=None, repr=False, compare=False)
    source: str | None = field(default=None, repr=False, compare=False)
    batch: Source | None = field(default=None, repr=False, compare=False)

    @functools.cached_property
    def text(self) -> str:
        """The query as DuckDB would write it, without comments."""
        # Writing changes some trees, such as those of WITHIN GROUP, and a cursor reads its statements twice.
        if self.text_given is not None:
            return self.text_given
        again = self.tree.copy()
        text = written(again, copy=False)
        loosened(again)
        return text


_AT = re.compile(r" \(line [0-9]+, column [0-9]+\)$")


def refuse(message: str, node: exp.Expr | None = None, *, code: str = "not-answered") -> SQLError:
    """The error that refuses ``node``, with its place in the user's text; one line, whatever the text holds.

    ``code``: the kind of refusal, one of docs/sql.md.
    """
    found: tuple[int, int, tuple[int, int]] | tuple[None, None, None] = (None, None, None)
    while node is not None and found[0] is None:  # what has no token of its own is shown by what holds it
        ends = written_at(node) if isinstance(node, exp.Condition) else None
        found = place(original(node)) if ends is None else (*place_of(ends[0]), (ends[1].line, max(1, ends[1].col)))
        node = node.parent
    return SQLError(_one_line(message), *found, code=code)


def without_place(error: SQLError) -> str:
    """What an error says, without its place."""
    return _AT.sub("", str(error))


def _one_line(message: str) -> str:
    shown = _JOINED.sub("", "".join(c if c.isprintable() else " " for c in message))
    return shown if len(shown) <= 600 else shown[:600] + " ..."


@dataclass(frozen=True)
class Hints:
    """What the hints of a SELECT ask: a weight of its rows of W, and the half-width wanted of its private numbers."""

    weight: float = 1.0
    max_error: float | None = None


def hints_of(select: exp.Select) -> Hints:
    """The hints after SELECT, such as ``/*+ WEIGHT(4) MAX_ERROR(50) */``. SQLError for others and for repeated ones."""
    found: dict[str, float] = {}
    for comment in select.comments or []:
        if not comment.lstrip().startswith("+"):
            continue
        text = comment.strip()
        read = [(name.upper(), _within(name.upper(), number)) for name, number in _HINT.findall(text)]
        if not _HINTS.fullmatch(text) or any(value is None for _, value in read):
            raise refuse(
                f"the hint /*{comment}*/ is not known; write /*+ WEIGHT(4) */ with a number from 1e-6 to 1e6, or "
                "/*+ MAX_ERROR(50) */ with a positive one",
                select,
                code="hint",
            )
        for name, value in read:
            if name in found:
                raise refuse(f"the hint {name} stands twice; keep one of them", select, code="hint")
            found[name] = value or 0.0
    return Hints(found.get("WEIGHT", 1.0), found.get("MAX_ERROR"))


def refuse_stray_hints(tree: exp.Expr) -> None:
    """A hint that is not read must not pass silently for one that is."""
    for node in nodes(tree):
        for comment in node.comments or []:
            if comment.lstrip().startswith("+") and not isinstance(node, exp.Select):
                raise refuse(_stray(comment), node, code="hint")


def refuse_lost_hints(tokens: Sequence[Token], trees: Sequence[exp.Expr | None]) -> None:
    """A hint that the parser drops, as in ``COUNT(/*+ WEIGHT(2) */ *)``, must not pass for one that is read."""
    hints = [(token, text) for token in tokens for text in token.comments or [] if text.lstrip().startswith("+")]
    if not hints:
        return
    lost = Counter(text for _, text in hints)
    # What stands behind a semicolon is kept with it, and read by nobody.
    read = [tree for tree in trees if tree is not None and not isinstance(tree, exp.Semicolon)]
    lost.subtract(text for tree in read for node in nodes(tree) for text in node.comments or [])
    for token, text in hints:
        if lost[text] > 0 and token.token_type is not TokenType.SELECT:
            end = token.line, max(1, token.col)
            raise SQLError(_one_line(_stray(text)), *place_of(token), end, code="hint")


def _stray(hint: str) -> str:
    return f"the hint /*{hint}*/ stands where none is read; write it right after SELECT"


def _within(hint: str, text: str) -> float | None:
    least, most = _REACH[hint]
    try:
        value = float(text)
    except ValueError:
        return None
    return value if least <= value <= most else None
