"""A lock of threads that share one value, which a forked process does not inherit from a thread that it lacks."""

from __future__ import annotations

import os
import threading
import weakref


class ThreadLock:
    """A reentrant lock, used by ``with``.

    A thread that is inside while another one forks does not exist in the child and would never leave there: the child
    gets a free lock instead. So a value behind it must be changed in one last step.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        _locks.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def _forked(self) -> None:
        if self._lock.acquire(blocking=False):  # nobody is inside, or the thread that forked
            self._lock.release()
        else:
            self._lock = threading.RLock()


_locks: weakref.WeakSet[ThreadLock] = weakref.WeakSet()


def _forked() -> None:
    for lock in list(_locks):
        lock._forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
