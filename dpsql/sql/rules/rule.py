"""Rules: the stages by which a statement becomes counts and sums, each with a precondition that is checked.

A rule that loses the place of a column, or meets a tree that no rule before it should have made, ends in an
InternalError before any charge, so that no other query than the user's is answered.

Whoever listens (``listening``) hears what each rule made, in order; it costs nothing otherwise. Each SELECT passes
the rules from ``qualify`` on by itself: one that stands in FROM before the one that reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Generic, TypeVar

from sqlglot import exp

from dpsql.errors import InternalError
from dpsql.sql.parse.trees import columns_in, is_made, place

Given = TypeVar("Given")
Made = TypeVar("Made")
Heard = list[tuple[str, str]]
_UNPLACED = frozenset({"true", "false", "null"})  # names behind a table's, as in t.true, to which the parser gives none
_LISTENER: ContextVar[Heard | None] = ContextVar("stages", default=None)


@dataclass(frozen=True)
class Rule(Generic[Given, Made]):
    """A stage: its name, what it does, its precondition in words, and the node that breaks it, or None.

    ``apply`` makes its result, which ``text`` shows to people. Raises InternalError, with the place, if the
    precondition does not hold, and what ``apply`` raises.
    """

    name: str
    does: str
    requires: str
    broken: Callable[[Given], exp.Expr | None]
    apply: Callable[[Given], Made]
    text: Callable[[Made], str]

    def __call__(self, given: Given) -> Made:
        """What the rule makes of ``given``."""
        node = self.broken(given)
        if node is not None:
            line, column, _ = place(node)
            raise InternalError(f"rule {self.name} requires {self.requires}; broken at line {line}, column {column}")
        made = self.apply(given)
        heard = _LISTENER.get()
        if heard is not None:
            heard.append((self.name, self.text(made)))
        return made


def tree_text(tree: exp.Expr) -> str:
    """A tree as SQL of several lines."""
    return tree.sql("duckdb", pretty=True)


def unplaced(tree: exp.Expr) -> exp.Expr | None:
    """The first column without a place in the user's text that no rule made; None where there is none. Cost: a walk."""
    for node in columns_in(tree):
        if node.this.meta_get("start") is None and not is_made(node) and node.name.lower() not in _UNPLACED:
            return node
    return None


@contextmanager
def listening() -> Iterator[Heard]:
    """What every rule makes of what is understood inside: names of rules, and texts."""
    heard: Heard = []
    token = _LISTENER.set(heard)
    try:
        yield heard
    finally:
        _LISTENER.reset(token)
