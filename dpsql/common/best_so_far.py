"""The best result so far of work that may be interrupted, offered by the step that found it.

A result is offered as a function that makes it: most are never looked at, and to make one may take seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Generic, TypeVar

T = TypeVar("T")
Make = Callable[[], T]


class Offers(Generic[T]):
    """Results of one kind, each better than the one before."""

    def __init__(self, name: str) -> None:
        self._hear: ContextVar[Callable[[Make[T]], None] | None] = ContextVar(name, default=None)

    def offer(self, make: Make[T]) -> None:
        """Offer a result to whoever hears of it."""
        hear = self._hear.get()
        if hear is not None:
            hear(make)

    @contextmanager
    def heard_by(self, hear: Callable[[Make[T]], None] | None) -> Iterator[None]:
        """Within, ``hear`` hears of results, or nobody does."""
        before = self._hear.set(hear)
        try:
            yield
        finally:
            self._hear.reset(before)

    @contextmanager
    def taken(self) -> Iterator[Callable[[Make[T]], None]]:
        """What offers results from here; within, nobody hears of those of the parts of the work."""
        hear = self._hear.get()
        with self.heard_by(None):
            yield hear or (lambda _: None)
