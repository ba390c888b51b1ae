"""Long calls of linear algebra, for which Ctrl-C does not have to wait.

Python raises KeyboardInterrupt between two of its own steps, and one call over a matrix of thousands of rows takes
seconds. Such a call is made in a thread of its own: the main thread waits, can be interrupted, and leaves the call,
whose result nobody reads. That helps with calls that let other threads run meanwhile: products, numpy's ``eigh`` and
scipy's ``qr`` do, scipy's ``eigh`` does not. Sizes alone decide, so that results never depend on who calls.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import TypeVar

import numpy as np
import scipy

from dpsql.common.arrays import Floats

T = TypeVar("T")

_SHORT = 1e9  # multiplications of a product, a tenth of a second on a slow core; other calls say what they come to
_EIGH = 3.0  # a decomposition over n^3 multiplications


def interruptible(call: Callable[[], T], multiplications: float) -> T:
    """What ``call`` returns or raises; KeyboardInterrupt where the main thread is interrupted while it waits."""
    if multiplications < _SHORT or threading.current_thread() is not threading.main_thread():
        return call()
    pool = ThreadPoolExecutor(1, "dpsql-linear-algebra")
    try:
        return pool.submit(copy_context().run, call).result()
    finally:
        pool.shutdown(wait=False)


def product(left: Floats, right: Floats) -> Floats:
    """``left @ right`` of dense matrices."""
    return interruptible(lambda: np.asarray(left @ right), float(left.size) * right.shape[-1])


def eigh(symmetric: Floats) -> tuple[Floats, Floats]:
    """(eigenvalues in rising order, eigenvectors in columns), both by divide and conquer."""
    work = _EIGH * float(len(symmetric)) ** 3
    if work < _SHORT:
        values, vectors = scipy.linalg.eigh(symmetric, driver="evd", check_finite=False)
        return values, vectors
    found = interruptible(lambda: np.linalg.eigh(symmetric), work)
    return found.eigenvalues, found.eigenvectors
