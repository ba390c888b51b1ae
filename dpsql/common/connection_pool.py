"""DuckDB instances that stay open for the next time: opening one takes ten times as long as most of what is done in it.

Who keeps some says by a key what each of them can reach, so that none is handed to work that may reach something else.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import duckdb

K = TypeVar("K")


class SpareInstances(dict[K, duckdb.DuckDBPyConnection]):
    """At most ``most`` instances that nobody uses, by their keys; those used last stand last. Threads may share it."""

    def __init__(
        self, most: int, close: Callable[[duckdb.DuckDBPyConnection], object] = duckdb.DuckDBPyConnection.close
    ) -> None:
        super().__init__()
        self.most, self.close = most, close
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forked)

    @contextlib.contextmanager
    def taken(self, key: K, opened: Callable[[], duckdb.DuckDBPyConnection]) -> Iterator[duckdb.DuckDBPyConnection]:
        """The instance of ``key``, or one that is opened now. After an error of any kind it is closed, else kept."""
        connection = self.pop(key, None) or opened()
        with contextlib.ExitStack() as unless_kept:
            unless_kept.callback(self.close, connection)
            yield connection
            for old in list(self)[: max(0, len(self) + 1 - self.most)]:
                oldest = self.pop(old, None)
                if oldest is not None:
                    self.close(oldest)
            if self.setdefault(key, connection) is connection:  # another thread may have kept its own
                unless_kept.pop_all()

    def _forked(self) -> None:
        left_to_the_parent(self.values())
        self.clear()


def left_to_the_parent(connections: Iterable[duckdb.DuckDBPyConnection]) -> None:
    """In a forked child: the parent's are not used, and not closed even at its end, as their threads are not there."""
    for connection in connections:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))
