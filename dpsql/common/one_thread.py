"""Linear algebra on one thread while a plan is made, whatever the environment says.

Plans solve thousands of small problems: OpenBLAS on several threads takes up to six times the processor's time for them
and longer by the clock, too. The libraries that numpy and scipy bring along are told so; how many threads they had is
put back when the last plan of the process is made. A library that is not found, or knows no such call, keeps its own.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import threading
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

Threads = tuple[Callable[[], int], Callable[[int], None]]

_FOLDERS = ("{}.libs", "{}/.dylibs")  # where wheels have their libraries, by Linux and Windows, and by macOS
_NAMES = tuple(f"{{}}openblas_{{}}_num_threads{end}" for end in ("64_", ""))
_LOCK = threading.Lock()
_INSIDE: list[int] = []  # of each library the number of threads before; empty outside of plans
_depth = 0


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Linear algebra of the whole process takes one thread inside."""
    global _depth
    with _LOCK:
        _depth += 1
        if _depth == 1:
            _INSIDE[:] = [get() for get, _ in _libraries()]
            for _, put in _libraries():
                put(1)
    try:
        yield
    finally:
        with _LOCK:
            _depth -= 1
            if _depth == 0:
                for (_, put), before in zip(_libraries(), _INSIDE, strict=True):
                    put(before)


@functools.cache
def _libraries() -> tuple[Threads, ...]:
    """How each library of numpy's and scipy's wheels is asked for its number of threads, and told one."""
    found = []
    for package in ("numpy", "scipy"):
        spec = find_spec(package)
        if spec is None or spec.origin is None:
            continue
        for folder in _FOLDERS:
            for file in sorted((Path(spec.origin).parents[1] / folder.format(package)).glob("*openblas*")):
                threads = _threads(file)
                if threads is not None:
                    found.append(threads)
    return tuple(found)


def _threads(file: Path) -> Threads | None:
    """The two calls of a library; None where it has none."""
    try:
        library = ctypes.CDLL(str(file))
    except OSError:
        return None
    for prefix in ("scipy_", ""):
        for name in _NAMES:
            get, put = (getattr(library, name.format(prefix, verb), None) for verb in ("get", "set"))
            if get is not None and put is not None:
                get.argtypes, get.restype = [], ctypes.c_int
                put.argtypes, put.restype = [ctypes.c_int], None
                return get, put
    return None
