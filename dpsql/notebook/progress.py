"""How far planning is, in one output of the cell that is written over and emptied at the end."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from dpsql.surfaces.output import PATIENCE, Progress


class CellProgress:
    """Says nothing for two seconds, then once a second what planning is at. ``done`` takes it away again."""

    def __init__(self, show: Callable[..., Any], clock: Callable[[], float] = time.monotonic) -> None:
        self._show = show
        self._clock = clock
        self._start = clock()
        self._next = self._start + PATIENCE
        self._handle: Any = None

    def __call__(self, message: str) -> None:
        """Show ``message``, which depends on public input only."""
        now = self._clock()
        if now < self._next:
            return
        self._next = now + 1.0
        self._write(f"planning, {now - self._start:.0f} s: {message}")

    def done(self) -> None:
        """Empty the output, where there is one."""
        if self._handle is not None:
            self._write("")

    def _write(self, text: str) -> None:
        held = {"text/plain": text}
        if self._handle is None:
            self._handle = self._show(held, raw=True, display_id=True)
        else:
            self._handle.update(held, raw=True)


def progress_for(shell: Any, show: Callable[..., Any]) -> CellProgress | Progress:
    """In a kernel an output that can be written over; in a terminal the standard error stream."""
    return CellProgress(show) if getattr(shell, "kernel", None) is not None else Progress(quiet=False)
