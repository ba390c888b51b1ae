"""Batches without the collector: thousands of trees and cores only grow, and looking through them for garbage is slow.

The parser's trees hold their parents, so that only Python's collector of cycles frees them. While a batch is read
nearly all of them are in use: the collector would look through them again and again, for a third of the time.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_lock = threading.Lock()
_within = 0
_was_on = False


@contextmanager
def uncollected() -> Iterator[None]:
    """No collection of cycles within, in the whole process; afterwards it is as it was. Threads may overlap.

    Memory: copies of trees that are dropped meanwhile stay until the end, about 6 kB for each statement.
    """
    global _within, _was_on
    with _lock:
        if not _within:
            _was_on = gc.isenabled()
            gc.disable()
        _within += 1
    try:
        yield
    finally:
        with _lock:
            _within -= 1
            if not _within and _was_on:
                gc.enable()
