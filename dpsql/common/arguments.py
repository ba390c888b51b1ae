"""Checks of arguments at public calls: one line a parameter, one error for a value that is not of its kind.

``@taking(n=whole(1), W=one_of(Workload))`` over a function checks what is passed for ``n`` and ``W`` before it runs.
Wrong keywords stay Python's own TypeErrors. What is passed by leaving it out is not checked. Where memory runs out in
the function, that is one error, too (``dpsql.common.interrupted_calls``).
"""

from __future__ import annotations

import functools
import inspect
import math
import os
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from operator import index
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import numpy as np

from dpsql.common.interrupted_calls import guarded
from dpsql.errors import DataError

P = ParamSpec("P")
R = TypeVar("R")
Check = Callable[[object], bool]
LARGEST = 2**24
"""Cells or queries of a workload that is written out; figures of more are no use and take all memory."""


def taking(**checks: tuple[Check, str]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A function whose arguments are checked: DataError that names the first that is not what its check says."""

    def around(function: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(function)

        @guarded
        @functools.wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            given = signature.bind(*args, **kwargs).arguments
            for name, (fits, said) in checks.items():
                if name in given and not fits(given[name]):
                    found = type(given[name]).__name__
                    raise DataError(f"{function.__name__}: {name} must be {said}, not this {found}; give one")
            return function(*args, **kwargs)

        return checked

    return around


def check_fields(value: object, **checks: tuple[Check, str]) -> None:
    """As ``taking``, for the fields of a value that checks itself."""
    for name, (fits, said) in checks.items():
        if not fits(getattr(value, name)):
            raise DataError(f"{name} must be {said}, not this {type(getattr(value, name)).__name__}; give one")


def one_of(*kinds: type) -> tuple[Check, str]:
    """An instance of one of these classes."""
    return lambda value: isinstance(value, kinds), " or ".join(f"a {kind.__name__}" for kind in kinds)


def all_of(*kinds: type) -> tuple[Check, str]:
    """Any number of instances of these classes, of ``*args``."""
    fits, said = one_of(*kinds)
    return lambda values: isinstance(values, tuple) and all(map(fits, values)), said


def is_whole(value: object, low: int = 0, high: int = LARGEST) -> bool:
    """Whether a value is a whole number in a range; True and False are none."""
    if isinstance(value, bool | np.bool_):
        return False
    try:
        return low <= index(value) <= high  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return False


def whole(low: int = -(2**63), high: int = LARGEST) -> tuple[Check, str]:
    """A whole number from ``low`` to ``high``."""
    least = f" from {low}" if low > -(2**63) else ""
    most = f" to {high}" if high < 2**63 - 1 else " or more" if least else ""
    return lambda value: is_whole(value, low, high), f"a whole number{least}{most}"


def is_real(value: object, low: float = -math.inf, high: float = math.inf) -> bool:
    """Whether a value is a number that a float holds, in a range."""
    kinds = int | float | Fraction | np.integer | np.floating
    # NumPy's spans of time are integers by class.
    if isinstance(value, bool | np.bool_ | np.timedelta64) or not isinstance(value, kinds):
        return False
    try:
        found = float(value)
    except (OverflowError, ValueError):
        return False
    return math.isfinite(found) and low <= found <= high


def real(low: float = -math.inf, high: float = math.inf) -> tuple[Check, str]:
    """A finite number from ``low`` to ``high``."""
    span = "" if low == -math.inf and high == math.inf else f" from {low:g} to {high:g}"

    def fits(value: object) -> bool:
        # NumPy takes neither fractions nor integers past its own.
        if isinstance(value, Fraction) or (isinstance(value, int) and abs(value) >= 2**63):
            return False
        return is_real(value, low, high)

    return fits, f"a finite number{span}"


def text() -> tuple[Check, str]:
    """A text that can be stored: no lone surrogates."""
    return lambda value: isinstance(value, str) and not any("\ud800" <= c <= "\udfff" for c in value), "a text"


def is_path(value: object) -> bool:
    """Whether a value can be the path of a file; a folder's own path, such as "." and "/", has no name and is none."""
    if not isinstance(value, str | os.PathLike):
        return False
    try:
        # A NUL ends a path, and some characters have no bytes in a file's name.
        return bool(Path(value).name) and b"\0" not in os.fsencode(value)
    except (TypeError, UnicodeEncodeError):
        return False


def path() -> tuple[Check, str]:
    """A check that an argument is the path of a file."""
    return is_path, "the path of a file"


def texts() -> tuple[Check, str]:
    """A check that an argument is a list of texts."""
    fits, _ = text()

    def every(value: object) -> bool:
        return isinstance(value, Sequence) and not isinstance(value, str) and all(fits(one) for one in value)

    return every, "a list of texts"


def several() -> tuple[Check, str]:
    """A sequence of any values, or a mapping of them by name."""

    def fits(value: object) -> bool:
        return isinstance(value, Sequence | Mapping | np.ndarray) and not isinstance(value, str | bytes | bytearray)

    return fits, "a list of values or a mapping of names to values"


def maybe(check: tuple[Check, str]) -> tuple[Check, str]:
    """What the check says, or None."""
    fits, said = check
    return lambda value: value is None or fits(value), f"{said} or None"


def sizes() -> tuple[Check, str]:
    """A size, or a sequence of sizes."""

    def fits(value: object) -> bool:
        several = isinstance(value, Sequence | np.ndarray) and not isinstance(value, str)
        listed: list[Any] = list(value) if several else [value]  # type: ignore[call-overload]
        if not all(is_whole(size, -(2**63)) for size in listed):
            return False
        return int(math.prod(listed)) <= LARGEST

    return fits, f"a size or several, of together 1 to {LARGEST}"


def matrix() -> tuple[Check, str]:
    """Rows of finite numbers of at most 1e150, whose squares floats hold."""

    def fits(value: object) -> bool:
        try:
            found: Any = value.toarray() if hasattr(value, "toarray") else value
            held = np.asarray(found, dtype=np.float64)
        except (TypeError, ValueError, OverflowError):
            return False
        return held.ndim == 2 and held.size > 0 and bool((np.abs(held) <= 1e150).all())

    return fits, "a matrix of finite numbers of at most 1e150"


def each_text() -> tuple[Check, str]:
    """A check that each of ``*args`` is a text."""
    fits, _ = text()
    return lambda values: isinstance(values, tuple) and all(map(fits, values)), "a text"


def either(first: tuple[Check, str], second: tuple[Check, str]) -> tuple[Check, str]:
    """What one of two checks says."""
    return lambda value: first[0](value) or second[0](value), f"{first[1]} or {second[1]}"


def numbers() -> tuple[Check, str]:
    """One finite number, or an array of such."""

    def fits(value: object) -> bool:
        try:
            found = np.asarray(value, dtype=np.float64)
        except (TypeError, ValueError, OverflowError):
            return False
        return found.size > 0 and bool(np.isfinite(found).all())

    return fits, "finite numbers"


def lists_of_whole() -> tuple[Check, str]:
    """A sequence of sequences of whole numbers, or of True and False."""

    def fits(value: object) -> bool:
        if not isinstance(value, Sequence | np.ndarray) or isinstance(value, str | bytes | bytearray):
            return False
        return all(np.asarray(one).dtype.kind in "iub" for one in value)

    return fits, "lists of column numbers"


def flag() -> tuple[Check, str]:
    """A check that an argument is True or False."""
    return lambda value: isinstance(value, bool), "True or False"


def function() -> tuple[Check, str]:
    """A check that an argument can be called."""
    return callable, "a function"
