"""How far long work is, in words: said where it is done, heard by whoever shows it.

Texts depend on public input alone. Once rows are read nothing is said, so that of a scan only its time is shown: how
many rows it has read, or what share, would tell how many there are. Nobody's hearing changes what is done.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from typing import TextIO

Say = Callable[[str], None]
PATIENCE = 2.0
"""Seconds before somebody who did not ask how it goes is told."""
MEASURING = "reading rows"  # the last stage; the ledger is charged by then

_WIDTH = 100  # characters of a stage

log = logging.getLogger("dpsql")
_hear: ContextVar[Say | None] = ContextVar("progress", default=None)


def say(text: str) -> None:
    """Tell the log, and whoever hears of it here."""
    log.debug("%s", text)
    hear = _hear.get()
    if hear is not None:
        hear(text)


def is_heard() -> bool:
    """Whether somebody hears of it here."""
    return _hear.get() is not None


@contextmanager
def heard_by(hear: Say) -> Iterator[None]:
    """Within, ``hear`` is called with every text, before whoever heard of it outside."""
    outside = _hear.get()

    def both(text: str) -> None:
        hear(text)
        if outside is not None:
            outside(text)

    before = _hear.set(both)
    try:
        yield
    finally:
        _hear.reset(before)


class Line:
    """The stage and its seconds on one line, redrawn each second after the first two.

    ``write`` shows a text in place of the last one. ``tick`` redraws the line by the ``clock``; a thread calls it.
    """

    def __init__(self, write: Say, clock: Callable[[], float] = time.monotonic) -> None:
        self._write, self._clock, self._start = write, clock, clock()
        self._stage, self._shown = "", False
        self._over = threading.Event()

    def __call__(self, text: str) -> None:
        """Hear of a stage."""
        self._stage = text

    def tick(self) -> None:
        """Write the line where there is something to say."""
        passed = self._clock() - self._start
        if self._stage and passed >= PATIENCE:
            self._write(f"{self._stage[:_WIDTH]}, {passed:.0f} s")
            self._shown = True

    def _tick_on(self) -> None:
        while not self._over.wait(1.0):
            self.tick()

    def __enter__(self) -> Say:
        here = copy_context()  # routes output to the cell of a notebook
        threading.Thread(target=here.run, args=(self._tick_on,), name="dpsql-progress", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        """Clear the line."""
        self._over.set()
        if self._shown:
            self._write("")


def over_line(stream: TextIO) -> Say:
    """What writes a text over the last line of a terminal."""
    return lambda text: print(f"\r\x1b[K{text}", end="", file=stream, flush=True)


@contextmanager
def shown(stream: TextIO | None = None) -> Iterator[None]:
    """Within, long work is shown on ``stream`` (stderr) where that is a terminal and nobody else hears of it."""
    stream = sys.stderr if stream is None else stream
    if is_heard() or stream is None or not stream.isatty():
        yield
        return
    with Line(over_line(stream)) as line, heard_by(line):
        yield
