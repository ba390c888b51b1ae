"""Grains: where along its one column of dates or times a value can change, and what stands for all moments.

Most values look at less than the moment: month(t) at the month, strftime(t, '%H:%M') at the minute, a CASE over both
at the finer of the two. Between two places where a value can change it is one value, so that one place of each piece
tells the groups. Nothing here is relied on for privacy: a group is a condition on the column, whatever its label.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from dpsql.common.numerics import DAY
from dpsql.sql.values import labels
from dpsql.sql.values.buckets import starts_of
from dpsql.sql.values.civil import MICROS, day_number, plus_months, truncation
from dpsql.sql.values.zones import transitions
from dpsql.workloads.expr.lines import line_of
from dpsql.workloads.expr.values import Call, CaseValue, Cast, Compared, Constant, Node, Stored, Value, parts, walk

MAX_PIECES = 50_000
_EARLIEST, _LATEST = day_number(1, 1, 1), day_number(10_000, 1, 1)
"""The days that a policy can declare."""
_OF_PART = {
    **dict.fromkeys(("year", "decade", "century", "millennium"), "year"),
    **dict.fromkeys(("isoyear", "week", "yearweek"), "week"),
    **dict.fromkeys(("day", "dayofyear", "dayofweek", "isodow"), "day"),
    **{name: name for name in ("quarter", "month", "hour", "minute", "second")},
}
_NAMES = {"monthname": "month", "dayname": "day"}
_MONTHS = {"month": 1, "quarter": 3, "year": 12, "decade": 120, "century": 1200, "millennium": 12_000}
_ORDER = ("microsecond", "second", "minute", "hour", "day", "week", "month", "quarter", "year")

Next: TypeAlias = Callable[[int], int]
"""The least place after another at which a value may be another."""


@dataclass(frozen=True)
class Moving:
    """A date or time that rises with its column: its number at a place, and the place where it reaches a number.

    ``reach`` may stop sooner, where a zone's clock goes back.
    """

    at: Callable[[int], int]
    reach: Callable[[int, int], int]

    def then(self, function: Callable[[int], int], least: Callable[[int], int]) -> Moving:
        """A rising function of it; ``least``: the least number at which the function is at least another."""
        return Moving(lambda n: function(self.at(n)), lambda n, target: max(n + 1, self.reach(n, least(target))))


def pieces(value: Value, base: Stored, low: int, high: int) -> list[tuple[int, int]] | None:
    """The pieces of ``low`` to ``high`` on each of which ``value`` is one value; None where they are too many."""
    changes = _Reader(base, low, high).changes(value)
    found: list[tuple[int, int]] = []
    at = low
    while at <= high:
        after = min((change(at) for change in changes), default=high + 1)
        after = min(max(after, at + 1), high + 1)
        found.append((at, after - 1))
        if len(found) > MAX_PIECES:
            return None
        at = after
    return found


class _Reader:
    """Reads a value over one column between two places."""

    def __init__(self, base: Stored, low: int, high: int) -> None:
        self.base = base
        self.low = low
        self.high = high

    def changes(self, node: Node) -> list[Next]:
        """Where the value may change."""
        of_unit = self._of_unit(node)
        if of_unit is not None:
            return of_unit
        moving = self.moving(node)
        if moving is not None:
            return [lambda n: moving.reach(n, moving.at(n) + 1)]
        tests = _guards(node)
        return [change for part in parts(node) if part not in tests for change in self.changes(part)]

    def _of_unit(self, node: Node) -> list[Next] | None:
        """A function that looks at a unit of time, of what moves; None for anything else."""
        if not isinstance(node, Call):
            return None
        found = _looked_at(node)
        if found is None:
            return None
        unit, operands = found
        out: list[Next] = []
        for operand in operands:
            if any(isinstance(part, Stored) for part in walk(operand)):
                moving = self.moving(operand)
                if moving is None:
                    return None
                out.append(_each(moving, unit, DAY if operand.type == "DATE" else 1))
        return out

    def moving(self, node: Node) -> Moving | None:
        """A date or time that rises with the column; None for anything else."""
        if node == self.base:
            return Moving(lambda n: n, lambda n, target: max(n + 1, target))
        if isinstance(node, CaseValue) and node.default is not None:
            return self.moving(node.default) if len(_guards(node)) == len(node.branches) else None
        if isinstance(node, Cast):
            return self._cast(node)
        if not isinstance(node, Call):
            return None
        if node.function == "make_timestamp" and isinstance(node.arguments[0], Call):
            inner = node.arguments[0]
            return self.moving(inner.arguments[0]) if inner.function == "epoch_us" else None
        rising = _rising(node)
        if rising is not None:
            operand, function, least = rising
            inside = self.moving(operand)
            return None if inside is None else inside.then(function, least)
        if node.function == "timezone":
            return self._zoned(node)
        return None

    def _cast(self, node: Cast) -> Moving | None:
        moving = self.moving(node.this)
        kinds = node.this.type, node.type
        if moving is None or kinds[0] == kinds[1]:
            return moving
        if kinds == ("TIMESTAMP", "DATE"):
            return moving.then(lambda n: n // DAY, lambda target: target * DAY)
        if kinds == ("DATE", "TIMESTAMP"):
            return moving.then(lambda n: n * DAY, lambda target: -(-target // DAY))
        return None

    def _zoned(self, node: Call) -> Moving | None:
        """The clock of a zone, which moves with the moments but for where its offset changes."""
        inside = self.moving(node.arguments[1])
        if inside is None:
            return None
        known = transitions(node, inside.at(self.low), inside.at(self.high))
        if known is None:
            return None
        begins, offsets = [start for start, _ in known], [offset for _, offset in known]

        def place(n: int) -> int:
            return max(0, _last(begins, inside.at(n)))

        def reach(n: int, target: int) -> int:
            number = place(n)
            wanted = target - offsets[number]
            if number + 1 < len(begins):
                wanted = min(wanted, begins[number + 1])
            return max(n + 1, inside.reach(n, wanted))

        return Moving(lambda n: inside.at(n) + offsets[place(n)], reach)


def _last(ascending: Sequence[int], number: int) -> int:
    """The place of the last that is at most ``number``; -1 where there is none."""
    low, high = 0, len(ascending)
    while low < high:
        middle = (low + high) // 2
        if ascending[middle] <= number:
            low = middle + 1
        else:
            high = middle
    return low - 1


def _guards(node: Node) -> tuple[Node, ...]:
    """The tests of a CASE that no date of a policy passes: they keep far and infinite dates out of a function."""
    if not isinstance(node, CaseValue):
        return ()
    return tuple(test for test, _ in node.branches if isinstance(test, Compared) and _is_far(test.right))


def _is_far(node: Value) -> bool:
    if not isinstance(node, Constant) or not isinstance(node.value, int) or isinstance(node.value, bool):
        return False
    kind = line_of(node.type).kind
    day = node.value if kind == "date" else node.value // DAY if kind in {"timestamp", "timestamptz"} else 0
    return not _EARLIEST <= day <= _LATEST


def _looked_at(node: Call) -> tuple[str, Sequence[Value]] | None:
    """The unit that a function of time looks at, and its operands."""
    if node.function in _OF_PART:
        return _OF_PART[node.function], node.arguments
    if node.function in _NAMES:
        return _NAMES[node.function], node.arguments
    if node.function == "strftime" and isinstance(node.arguments[1], Constant):
        units = {labels.UNITS[found] for found in labels.specifiers(str(node.arguments[1].value))} - {""}
        if "week" in units and units & {"month", "year"}:
            units.add("day")
        return min(units, key=_ORDER.index, default="year"), node.arguments[:1]
    if node.function == "date_diff" and isinstance(node.arguments[0], Constant):
        unit = str(node.arguments[0].value)
        # Where DuckDB's weeks begin differs from version to version.
        return {"decade": "year", "century": "year", "week": "day"}.get(unit, unit), node.arguments[1:]
    return None


def _each(moving: Moving, unit: str, step: int) -> Next:
    """The next beginning of a unit; ``step``: microseconds in one of the number's own steps."""
    after = following(unit)
    return lambda n: moving.reach(n, -(-after(moving.at(n) * step) // step))


def following(unit: str) -> Callable[[int], int]:
    """The beginning of the unit after that of a moment, in microseconds."""
    if unit == "microsecond":
        return lambda n: n + 1
    start = truncation(unit)
    if unit in MICROS:
        return lambda n: start(n) + MICROS[unit]
    return lambda n: plus_months(start(n), _MONTHS[unit])


Rising: TypeAlias = tuple[Value, Callable[[int], int], Callable[[int], int]]


def _rising(node: Call) -> Rising | None:
    """A function of a date or time that rises: its operand, itself, and the least number where it reaches another."""
    if node.function == "+" and len(node.arguments) == 2:
        return _shifted(*node.arguments)
    if node.function == "time_bucket":
        starts = starts_of(node)
        return None if starts is None else _steps(node.arguments[1], *starts)
    if node.function == "date_trunc" and isinstance(node.arguments[0], Constant):
        unit = str(node.arguments[0].value)
        return _steps(node.arguments[1], truncation(unit), following(unit))
    if node.function == "last_day":
        own = DAY if node.arguments[0].type == "DATE" else 1
        month, after = truncation("month"), following("month")
        return (
            node.arguments[0],
            lambda n: after(n * own) // DAY - 1,
            lambda target: -(-month(target * DAY) // own),
        )
    return None


def _steps(operand: Value, start: Callable[[int], int], after: Callable[[int], int]) -> Rising:
    """The beginning of the step that holds a number; ``after`` gives that of the next one."""
    return operand, start, lambda target: target if start(target) == target else after(target)


def _shifted(operand: Value, by: Value) -> Rising | None:
    if isinstance(by, Constant) and isinstance(by.value, int):
        days = by.value
        return operand, lambda n: n + days, lambda target: target - days
    if not isinstance(by, Call) or not isinstance(by.arguments[0], Constant):
        return None
    amount = int(by.arguments[0].value or 0)
    if by.function == "to_microseconds":
        return operand, lambda n: n + amount, lambda target: target - amount
    if by.function != "to_months":
        return None

    def least(target: int) -> int:
        # A shift of months cuts the day to the month's last: at most four days, and their times, fall together.
        low, high = plus_months(target, -amount) - 5 * DAY, plus_months(target, -amount) + 5 * DAY
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if plus_months(middle, amount) >= target else (middle, high)
        return high

    return operand, lambda n: plus_months(n, amount), least


# -- what repeats --------------------------------------------------------------------------------

_REPEATS = {
    **{name: frozenset({name}) for name in ("hour", "minute", "second")},
    **dict.fromkeys(("dayofweek", "isodow", "dayname"), frozenset({"weekday"})),
    **dict.fromkeys(("quarter", "month", "monthname"), frozenset({"month"})),
    **dict.fromkeys(("day", "dayofyear", "week"), frozenset({"day"})),
}
_SPECIFIED = {
    **dict.fromkeys(("%a", "%A", "%w", "%u"), "weekday"),
    **dict.fromkeys(("%b", "%h", "%B", "%m", "%-m"), "month"),
    **dict.fromkeys(("%d", "%-d", "%j", "%-j", "%U", "%W", "%V"), "day"),
    **dict.fromkeys(("%H", "%-H", "%I", "%-I", "%p"), "hour"),
    **dict.fromkeys(("%M", "%-M"), "minute"),
    **dict.fromkeys(("%S", "%-S"), "second"),
    **dict.fromkeys(("%X",), "second minute hour"),
    **dict.fromkeys(("%%", "%z", "%Z"), ""),
}


def repeating(value: Value, base: Stored) -> tuple[int, ...] | None:
    """Moments that stand for all, in microseconds, where a value looks at parts that repeat alone; None elsewhere."""
    looked = _repeats(value, base)
    if looked is None:
        return None
    start = day_number(2000, 1, 1)
    if "day" in looked or looked >= {"month", "weekday"}:
        days: Sequence[int] = range(start, start + 28 * 365 + 7)  # months, days of the month and of the week: 28 years
    elif "month" in looked:
        days = [day_number(2000, month, 1) for month in range(1, 13)]
    else:
        days = range(start + 2, start + 9) if "weekday" in looked else (start,)
    times = [0]
    for unit, count in (("hour", 24), ("minute", 60), ("second", 60)):
        if unit in looked:
            times = [time + number * MICROS[unit] for time in times for number in range(count)]
    if len(days) * len(times) > MAX_PIECES:
        return None
    return tuple(day * DAY + time for day in days for time in times)


def _repeats(node: Node, base: Stored) -> frozenset[str] | None:
    """The parts that a value looks at, where they repeat; None where it looks at more."""
    if isinstance(node, Stored):
        return None
    if isinstance(node, Call):
        looked = _REPEATS.get(node.function)
        if node.function == "strftime" and isinstance(node.arguments[1], Constant):
            found = [_SPECIFIED.get(one) for one in labels.specifiers(str(node.arguments[1].value))]
            known = [words for words in found if words is not None]
            looked = frozenset(" ".join(known).split()) if len(known) == len(found) else None
        if looked is not None:
            return looked if _is_clock(node.arguments[0], base) else None
    tests = _guards(node)
    inside = [_repeats(part, base) for part in parts(node) if part not in tests]
    out = [one for one in inside if one is not None]
    return frozenset().union(*out) if len(out) == len(inside) else None


def _is_clock(node: Value, base: Stored) -> bool:
    """Whether a date or time runs with the column: itself, shifted, cast, or in a zone."""
    while node != base:
        if isinstance(node, CaseValue) and node.default is not None and len(_guards(node)) == len(node.branches):
            node = node.default
        elif isinstance(node, Cast):
            node = node.this
        elif isinstance(node, Call) and node.function in {"make_timestamp", "epoch_us", "+"}:
            node = node.arguments[0]
        elif isinstance(node, Call) and node.function == "timezone":
            node = node.arguments[1]
        else:
            return False
    return True
