"""The stages by which a statement becomes counts and sums, and what each of them made of it.

Whoever listens (``listening``) hears every stage that a statement passes, in order; nobody pays for it otherwise. Each
SELECT passes the last stages by itself: one that stands in FROM before the one that reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from sqlglot import exp


@dataclass(frozen=True)
class Stage:
    """A stage: its name, and what it does."""

    name: str
    does: str


STAGES = (
    Stage("parse", "the text as a tree, statement by statement"),
    Stage("spell", "synonyms rewritten in the forms that later stages read"),
    Stage("qualify", "stars and aliases written out; IN, EXISTS and PIVOT as joins and conditions"),
    Stage("flatten", "row-wise subqueries, WITH and views of the policy written into the SELECT that reads them"),
    Stage("join", "the table whose rows are counted, and the one row that each finds in a joined table"),
    Stage("unit", "the privacy unit of each row, and how many rows of one count"),
    Stage("aggregate", "counts and sums to be measured, by groups"),
    Stage("formula", "answers computed from them, and the SQL over these, at no cost"),
)
"""All stages, in order."""

Heard = list[tuple[str, str]]
_LISTENER: ContextVar[Heard | None] = ContextVar("stages", default=None)


@contextmanager
def listening() -> Iterator[Heard]:
    """What every stage makes of what is understood inside: names of stages, and texts."""
    heard: Heard = []
    token = _LISTENER.set(heard)
    try:
        yield heard
    finally:
        _LISTENER.reset(token)


def reached(stage: str, made: exp.Expr | Callable[[], str]) -> None:
    """``made`` is what the stage of that name made: a tree, or a text that is written if somebody listens."""
    heard = _LISTENER.get()
    if heard is not None:
        heard.append((stage, made.sql("duckdb", pretty=True) if isinstance(made, exp.Expr) else made()))
