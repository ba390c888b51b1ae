"""One writer at a time, across threads and processes."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator

from dpsql.errors import OperationalError

if sys.platform == "win32":
    import msvcrt

    def _try_lock(descriptor: int) -> bool:
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

    def _unlock(descriptor: int) -> None:
        with contextlib.suppress(OSError):
            os.lseek(descriptor, 0, os.SEEK_SET)
            msvcrt.locking(descriptor, msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    def _try_lock(descriptor: int) -> bool:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True

    def _unlock(descriptor: int) -> None:
        """Unlock for all processes that share the open file: a child that was forked meanwhile would keep the lock."""
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)


@contextlib.contextmanager
def exclusive(path: str, wait: float, mode: int = 0o666) -> Iterator[None]:
    """Hold ``<path>.lock``; the system frees it when the process ends, however it ends.

    wait: seconds. mode: of the file where it is made, less the umask. The file stays behind, empty: removing it would
    let two writers in.
    Raises OperationalError when the wait is over or the directory cannot be written.
    """
    name = path + ".lock"
    descriptor = -1
    with contextlib.suppress(OSError):
        descriptor = os.open(name, os.O_RDWR | os.O_CREAT, mode)
    if descriptor < 0:
        raise OperationalError(f"cannot create {name!r}; check the directory, then run 'dpsql releases rebuild'")
    try:
        deadline, holder = time.monotonic() + wait, os.getpid()
        while not _try_lock(descriptor):
            if time.monotonic() >= deadline:
                raise OperationalError(
                    f"another process has been writing {path!r} for {wait:g} s; "
                    "run 'dpsql releases rebuild' when it has finished"
                )
            time.sleep(0.01)
        try:
            yield
        finally:
            if os.getpid() == holder:  # not in a child that was forked meanwhile
                _unlock(descriptor)
    finally:
        os.close(descriptor)
