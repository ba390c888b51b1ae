"""Extents: how large the value of an expression can be, and how extents are combined."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import inf
from typing import TypeAlias

NUMBER = 64
"""Bytes that a number, date or Boolean takes at most, as text, too."""
TEXT = 1_000
"""Bytes that a text of a column is taken to have at most."""
ELEMENTS = 100
"""Elements that a list of a column is taken to have at most."""


@dataclass(frozen=True)
class Extent:
    """How large a value can be: its bytes and, of a number, its least and largest value.

    Of a list also how many ``elements`` it has and the bytes of ``each``. ``constant``: a text that is written out.
    ``type``: the DuckDB type of a value that is copied from a table's column, else nothing.
    """

    size: float = NUMBER
    least: float = -inf
    most: float = inf
    elements: float = 1
    each: float = NUMBER
    constant: str | None = None
    type: str = ""


Rule: TypeAlias = Callable[[Sequence[Extent]], Extent]
"""The extent of a call's result, from those of its arguments."""


def text(size: float) -> Extent:
    """A text of at most ``size`` bytes; whatever is split out of it is no longer."""
    return Extent(size, elements=size + 1, each=size)


def series(elements: float, each: float) -> Extent:
    """A list of at most so many elements, ``each`` of so many bytes."""
    return Extent(max(NUMBER, times(elements, each)), elements=elements, each=each)


def either(extents: Iterable[Extent]) -> Extent:
    """One of several values."""
    parts = list(extents) or [Extent()]
    return Extent(
        max(one.size for one in parts),
        min(one.least for one in parts),
        max(one.most for one in parts),
        max(one.elements for one in parts),
        max(one.each for one in parts),
        parts[0].constant if len(parts) == 1 else None,
        parts[0].type if len({one.type for one in parts}) == 1 else "",
    )


def times(a: float, b: float) -> float:
    """A product in which nothing times infinity is nothing."""
    return a * b if a and b else 0.0


def whole(extent: Extent) -> Extent:
    """A number rounded to a whole one, in whatever way."""
    return Extent(
        NUMBER,
        math.floor(extent.least) if math.isfinite(extent.least) else extent.least,
        math.ceil(extent.most) if math.isfinite(extent.most) else extent.most,
    )
