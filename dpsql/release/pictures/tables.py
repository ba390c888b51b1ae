"""What of a released table is a key, what a number, and how far each number may be off."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from dpsql.common.arrays import Floats
from dpsql.errors import InterfaceError

_NUMBERS = ("DOUBLE", "FLOAT", "DECIMAL")
_INTEGERS = ("INT", "INTEGER")
_TIMES = ("DATE", "TIMESTAMP")
_NORMAL = 1.959963984540054  # the 97.5 % point: an interval at 95 % where only a standard error is there


class Table(Protocol):
    """What a released table offers."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Names."""

    @property
    def types(self) -> tuple[str, ...]:
        """DuckDB's types."""

    def column(self, name: str) -> list[Any]:
        """Values."""


@dataclass(frozen=True)
class Number:
    """A column of numbers: values, and the ends of their intervals, NaN where there is none."""

    name: str
    values: Floats
    low: Floats
    high: Floats

    @property
    def bounded(self) -> bool:
        """Whether any value has an interval."""
        return bool(np.isfinite(self.low).any())

    @property
    def arms(self) -> Floats:
        """(2, rows) lengths of the error bars, 0 where unknown."""
        arms = np.stack([self.values - self.low, self.high - self.values])
        return np.asarray(np.where(np.isfinite(arms), np.maximum(arms, 0.0), 0.0))


@dataclass(frozen=True)
class Key:
    """A column of keys: raw values, how each is shown, and whether they have an order of their own."""

    name: str
    values: list[Any]
    shown: list[str]
    ordered: bool


@dataclass(frozen=True)
class Shape:
    """The keys and numbers of a table."""

    keys: tuple[Key, ...]
    numbers: tuple[Number, ...]
    rows: int

    def number(self, name: str | None) -> tuple[Number, ...]:
        """The number called ``name``, all of them without a name. Raises InterfaceError where there is none."""
        if name is None:
            return self.numbers
        found = tuple(number for number in self.numbers if number.name.lower() == name.lower())
        if not found:
            raise InterfaceError(
                f"no number {name!r} to draw; the result has {', '.join(n.name for n in self.numbers)}"
            )
        return found


def read(table: Table) -> Shape:
    """Keys and numbers of ``table``. Raises InterfaceError where there is nothing to draw."""
    kinds = dict(zip(table.columns, table.types, strict=True))
    lowered = {name.lower(): name for name in kinds}
    errors = {name: lowered[f"{name.lower()}_stderr"] for name in kinds if f"{name.lower()}_stderr" in lowered}
    beside = {
        lowered[name.lower() + end]
        for name in errors
        for end in ("_stderr", "_low", "_high")
        if name.lower() + end in lowered
    } | {lowered[f"{name.lower()}_present"] for name in kinds if f"{name.lower()}_present" in lowered}
    flags = {lowered[f"{name.lower()}_other"]: name for name in kinds if f"{name.lower()}_other" in lowered}
    first = next((at for at, name in enumerate(kinds) if name in errors), len(kinds) if errors else 0)
    names = [
        name
        for at, (name, kind) in enumerate(kinds.items())
        if name not in beside and (name in errors or (at >= first and kind.startswith(_NUMBERS)))
    ]
    if not names:  # no column of errors and no DOUBLE: whole numbers that were worked out of the releases
        names = [name for name, kind in kinds.items() if kind.endswith(_INTEGERS)][-1:]
    rows = len(table.column(table.columns[0])) if table.columns else 0
    if not names or not rows:
        raise InterfaceError(
            "the result has no numbers to draw; a picture needs rows with at least one column of numbers"
        )
    keys = [name for name in kinds if name not in beside and name not in names and name not in flags]
    return Shape(
        tuple(_key(table, name, kinds[name], flags) for name in keys),
        tuple(_number(table, name, errors, lowered) for name in names),
        rows,
    )


def _key(table: Table, name: str, kind: str, flags: dict[str, str]) -> Key:
    values = table.column(name)
    flag = next((flag for flag, key in flags.items() if key == name), None)
    others = table.column(flag) if flag is not None else [False] * len(values)
    shown = ["other" if other else _shown(value) for value, other in zip(values, others, strict=True)]
    return Key(name, values, shown, kind.endswith(_INTEGERS) or kind.startswith((*_NUMBERS, *_TIMES)))


def _shown(value: object) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def _number(table: Table, name: str, errors: dict[str, str], lowered: dict[str, str]) -> Number:
    values = floats(table.column(name))
    ends = [lowered.get(f"{name.lower()}_{end}") for end in ("low", "high")]
    if None not in ends:
        low, high = (floats(table.column(str(end))) for end in ends)
    elif name in errors:
        reach = _NORMAL * floats(table.column(errors[name]))
        low, high = values - reach, values + reach
    else:
        low = high = np.full(len(values), math.nan)
    return Number(name, values, low, high)


def floats(values: Sequence[object]) -> Floats:
    """Numbers as floats, NaN for NULL, infinity and what is no number."""

    def one(value: object) -> float:
        try:
            found = float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError):
            return math.nan
        return found if math.isfinite(found) else math.nan

    return np.array([one(value) for value in values], dtype=np.float64)
