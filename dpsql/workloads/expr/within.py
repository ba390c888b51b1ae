"""What rows that satisfy a condition can still be, column by column: which groups WHERE rules out for every table."""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass, field
from functools import cached_property

from dpsql.workloads.expr.conditions import (
    FALSE,
    TRUE,
    And,
    Condition,
    Constant,
    LineAtom,
    OpaqueAtom,
    Or,
    atoms,
    gather,
)
from dpsql.workloads.expr.lines import Interval


@dataclass(frozen=True)
class Within:
    """The rows of ``condition``, which is public: what follows from it holds for any data.

    A column is looked at by itself: ``a = 1 AND b = 2 OR a = 3`` leaves 1 and 3 of a, and everything of b.
    """

    condition: Condition = TRUE
    _on: dict[str, LineAtom | Constant] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def columns(self) -> frozenset[str]:
        """The columns that the condition compares with constants."""
        return frozenset(atom.column for atom in atoms(self.condition) if isinstance(atom, LineAtom))

    def on(self, column: str) -> LineAtom | Constant:
        """The values of the column that such a row can have: TRUE for all, FALSE for none."""
        if column not in self.columns and self.condition != FALSE:
            return TRUE
        if column not in self._on:
            self._on[column] = _projected(self.condition, column)
        return self._on[column]

    def excludes(self, condition: Condition) -> bool:
        """Whether no such row can satisfy ``condition``, as far as one column at a time shows it."""
        if isinstance(condition, Constant):
            return not condition.truth
        if isinstance(condition, And):
            return any(self.excludes(part) for part in condition.operands)
        if isinstance(condition, Or):
            return all(self.excludes(part) for part in condition.operands)
        if isinstance(condition, OpaqueAtom):
            return self.condition == FALSE
        held = self.on(condition.column)
        if isinstance(held, Constant):
            return not held.truth
        if held.on_null and condition.on_null:
            return False
        return not any(meets(interval, held.intervals) for interval in condition.intervals)

    def places(self, column: str, low: int, high: int) -> tuple[int, int]:
        """The first and last whole number between ``low`` and ``high`` that such a row can have there.

        Where there is none, ``low`` and ``high``.
        """
        held = self.on(column)
        if not isinstance(held, LineAtom) or not held.intervals:
            return low, high
        start, stop = held.intervals[0][0], held.intervals[-1][1]
        first = low if start is None else max(low, math.ceil(start[0]) if start[1] == 0 else math.floor(start[0]) + 1)
        last = high if stop is None else min(high, math.ceil(stop[0]) - 1 if stop[1] == 0 else math.floor(stop[0]))
        return (first, last) if first <= last else (low, high)


EVERYTHING = Within()


def _projected(condition: Condition, column: str) -> LineAtom | Constant:
    if isinstance(condition, Constant):
        return condition
    if isinstance(condition, And | Or):
        found = gather(type(condition), *(_projected(part, column) for part in condition.operands))
        return found if isinstance(found, LineAtom | Constant) else TRUE
    return condition if isinstance(condition, LineAtom) and condition.column == column else TRUE


def meets(interval: Interval, ascending: tuple[Interval, ...]) -> bool:
    """Whether an interval has a value in common with one of several, disjoint and ascending."""
    low, high = interval
    # The last that begins below the end: those before it end below its beginning.
    at = len(ascending) if high is None else bisect_left(ascending, 1, key=lambda held: _begins(held, high))
    if at == 0:
        return False
    end = ascending[at - 1][1]
    return low is None or end is None or low < end


def _begins(interval: Interval, cut: tuple[object, int]) -> int:
    """0 where the interval begins below the cut, else 1."""
    return int(interval[0] is not None and interval[0] >= cut)
