"""Questions in flight: of all who ask one question of a ledger at the same moment, one measures and pays for it.

The ledger answers a question again for free once its answer is recorded. Between charge and record there is none, so
whoever measures holds a claim on the question from before the charge until after the record, and whoever else asks
waits for it, looks into the ledger again, and finds the answer there. That holds for threads of a connection, for
connections, and for processes.

A claim is an advisory lock of the operating system, which it frees however its holder ends: a holder that is killed, or
whose scan fails, leaves its charge and no claim, and the next in line measures and pays for itself. So nobody waits for
the dead, and a claim decides nothing but who waits: what is spent and released is the ledger's to decide, and holds
without claims. Nobody takes a claim while holding another, nor waits for one inside a transaction of the ledger, so
that there is no deadlock.

On Linux a claim is one byte of an empty file beside the ledger, ``<ledger>.claims``, at a place that the question's key
gives: an "open file description" lock (fcntl(2)), which two threads of a process hold against each other, too. Other
questions take other bytes and do not wait (two of 2^62 bytes are the same for different questions at no rate that
matters; these would wait for each other, no more). Elsewhere the whole file is locked: any two measurements over one
ledger wait for each other. Where the folder's file system has no locks (some network mounts), nothing waits and each
asker pays, as if each had said ``fresh``.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

from dpsql.release.lock import exclusive

_held: set[int] = set()  # descriptors of claims of this process


@contextlib.contextmanager
def claimed(ledger: Path, key: str) -> Iterator[None]:
    """Hold the claim on a question of ``ledger``; waits for whoever holds it, without a limit of its own.

    A scan ends by ``scan_timeout``, and Ctrl-C ends the waiting. Where no claim can be had, none is held (see above).
    """
    path = os.path.realpath(ledger) + ".claims"
    if sys.platform != "linux" or struct.calcsize("P") != 8:
        with exclusive(path, math.inf):
            yield
        return
    descriptor = -1
    with contextlib.suppress(OSError):  # a folder that cannot be written holds no ledger: its own refusal says so
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    if descriptor < 0:
        yield
        return
    _held.add(descriptor)
    try:
        with contextlib.suppress(OSError):
            _lock(descriptor, key)
        yield
    finally:
        if descriptor in _held:  # not in a child that was forked meanwhile
            _held.discard(descriptor)
            os.close(descriptor)


if sys.platform == "linux":
    import fcntl

    def _lock(descriptor: int, key: str) -> None:
        """Lock the byte of ``key``, once nobody else has it; closing the descriptor frees it."""
        place = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") >> 2
        # struct flock of 64-bit Linux: type, whence, start, length, pid.
        wanted = struct.pack("hhqqi0q", fcntl.F_WRLCK, os.SEEK_SET, place, 1, 0)
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLKW, wanted)

    def _forked() -> None:
        """A child shares the open files of its parent, and would keep their claims beyond the parent's death."""
        for descriptor in _held:
            os.close(descriptor)
        _held.clear()

    os.register_at_fork(after_in_child=_forked)
