"""What was read from a file, read again once the file was written to."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from dpsql.release.reading import state_of

T = TypeVar("T")

_SETTLED = 100_000_000  # nanoseconds


class Remembered(Generic[T]):
    """The value that ``read`` gives, kept while the file at ``path`` is as it is. Threads may share it.

    The file is looked at and never opened: closing a second handle of a SQLite file would let its locks go.
    """

    def __init__(self, path: Path, read: Callable[[], T]) -> None:
        self._path = path
        self._read = read
        self._held: tuple[object, T] | None = None

    def value(self) -> T:
        """The value as of now."""
        state = state_of(self._path)
        held = self._held
        if held is not None and state is not None and held[0] == state:
            return held[1]
        found = self._read()
        # What was written this moment may be written once more without another time.
        settled = state is not None and time.time_ns() - state[1] > _SETTLED
        self._held = (state, found) if settled else None
        return found
