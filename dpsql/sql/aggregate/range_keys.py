"""dp_ranges(c) and dp_prefixes(c): keys whose groups are all ranges, or prefixes, of a column's declared values.

Few groups are listed, one condition each, like those of any expression. Many are a ``RangeKey``, planned and released
in closed form: then nothing is left to do after the noise, for the result is a view that works out the rows that are
asked of it.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from fractions import Fraction

from sqlglot import exp

from dpsql.errors import SQLError
from dpsql.sql.aggregate.keys import key_of
from dpsql.sql.outer.answers import Answer
from dpsql.sql.parse.statements import refuse
from dpsql.sql.values.scope import Scope
from dpsql.workloads.expr.batch import CaseKey, Column, Core, KeyOutput, Measured, RangeKey
from dpsql.workloads.expr.conditions import LineAtom
from dpsql.workloads.expr.lines import Interval
from dpsql.workloads.expr.regions import KeyDomain, LabelColumn

NAMES = frozenset({"dp_ranges", "dp_prefixes"})
MAX_LISTED = {"dp_ranges": 200_000, "dp_prefixes": 1_000}
"""Groups that are planned one by one; more are planned in closed form."""
MAX_VALUES = 2**20
MAX_LISTED_VALUES = 20_000
"""Values that are no run of whole numbers or days: a scan compares with each."""
MAX_NUMBERS = 4_200_000
"""Numbers of prefixes, which are a table."""
_EPOCH = dt.date(1970, 1, 1)


def range_key(node: exp.Expression, name: str, scope: Scope) -> CaseKey | RangeKey:
    """The key dp_ranges(c) or dp_prefixes(c): groups from one declared value to another, both included."""
    arguments = node.expressions
    column = arguments[0] if len(arguments) == 1 else None
    while isinstance(column, exp.Paren):
        column = column.this
    if not isinstance(column, exp.Column):
        raise refuse(f"{name} takes one column with declared groups in order", node)
    held = scope.resolve(column)
    run = _run_of(held)
    n = run[1] if run else held.policy.size(held.type) or 0
    if n > (MAX_VALUES if run else MAX_LISTED_VALUES):
        what = "" if run else "that are no run of whole numbers or days "
        raise refuse(
            f"{name}({column.name}): the column has {n:,} declared values, at most "
            f"{MAX_VALUES if run else MAX_LISTED_VALUES:,} {what}are planned: declare fewer, such as a larger step",
            node,
            code="too-many-groups",
        )
    ends = tuple(f"{column.name}_{end}" for end in (("from", "to") if name == "dp_ranges" else ("to",)))
    text, family = f"{name}({column.name})", name.removeprefix("dp_")
    many = (n * (n + 1) // 2 if name == "dp_ranges" else n) > MAX_LISTED[name]
    if many and run is not None:
        return RangeKey(text, family, held.name, held.type, held.line, ends, range(run[0], run[0] + n), run[0])
    key = key_of(column, scope)
    if not isinstance(key, KeyDomain):
        raise refuse(f"{name} takes one column with declared groups in order", node)
    points = [point for point in key.points if point is not None]
    if len(points) < len(key.points) or points != sorted(points, key=lambda p: p[0] or (0, 0)):
        raise refuse(f"{name}({column.name}) needs values in ascending order in the policy", node)
    if many:
        return RangeKey(text, family, key.column, key.type, held.line, ends, key.values, None, tuple(points))
    firsts = range(n) if name == "dp_ranges" else range(1)
    pairs = [(low, high) for low in firsts for high in range(low, n)]
    conditions = tuple(LineAtom(key.column, _merged(points[low : high + 1])) for low, high in pairs)
    labels = tuple(
        LabelColumn(end, key.type, tuple(key.values[pair[at - len(ends)]] for pair in pairs))
        for at, end in enumerate(ends)
    )
    return CaseKey(text, labels, conditions)


def check_core(core: Core, select: exp.Select, *, whole: bool) -> None:
    """Refuse what cannot be worked out row by row when it is asked for. ``whole``: the core is all of the result."""
    key = core.line
    if key is None:
        return

    def refused(text: str) -> SQLError:
        return refuse(text, select, code="too-many-groups")

    if sum(not other.listed for other in core.keys) > 1:
        raise refused(f"a SELECT is grouped by one {key.text} at most")
    if not all(isinstance(column, KeyOutput | Measured) for column in core.columns):
        raise refused(
            f"{key.text} has {len(key):,} groups, so that only counts, sums and their linear combinations are "
            "released; release the sum and the count, and divide them in a query over the result"
        )
    if core.is_view and not whole:
        raise refused(
            f"{key.text} has {len(key):,} groups: its result is a view whose rows are worked out when they are asked "
            "for. Select the range and its numbers alone, without HAVING, ORDER BY, LIMIT, DISTINCT, grouping sets or "
            "expressions around them, and query the result afterwards"
        )
    numbers = core.rows * len(core.outputs)
    if not core.is_view and numbers > MAX_NUMBERS:
        raise refused(
            f"{key.text} makes {numbers:,} numbers, at most {MAX_NUMBERS:,} are released: group by fewer columns"
        )


def check_long(answers: Sequence[Answer]) -> None:
    """Refuse a statement that reads another's result of more rows than are listed."""
    long: dict[str, int] = {}
    for answer in answers:
        for name in answer.reads:
            if name in long:
                raise SQLError(
                    f"{answer.name} reads {name}, whose {long[name]:,} rows are worked out when they are asked for: "
                    "query the result once it is released",
                    code="too-many-groups",
                )
        for core in answer.cores:
            if core.is_view:
                long[answer.name] = core.rows


def _run_of(column: Column) -> tuple[int, int] | None:
    """(place of the first, number) of values that are a run of whole numbers or days; None for others."""
    policy, line = column.policy, column.line
    if policy.values is not None or policy.step not in (None, 1):
        return None
    low, high = policy.lower, policy.upper
    if line.kind == "integer" and line.unit is None and isinstance(low, Fraction) and isinstance(high, Fraction):
        if low.denominator != 1 or high.denominator != 1:
            return None
        first, last = int(low), int(high)
    elif line.kind == "date" and type(low) is dt.date and type(high) is dt.date:
        first, last = (low - _EPOCH).days, (high - _EPOCH).days
    else:
        return None
    ends = (-(2**62) if line.low is None else line.low, 2**62 if line.high is None else line.high)
    inside = max(ends[0], -(2**62)) <= first <= last <= min(ends[1], 2**62)
    return (first, last - first + 1) if inside else None


def _merged(points: Sequence[Interval]) -> tuple[Interval, ...]:
    """The values from the first to the last point: also what lies between two of them, but for gaps of a list."""
    out = [points[0]]
    for low, high in points[1:]:
        if low == out[-1][1]:
            out[-1] = (out[-1][0], high)
        else:
            out.append((low, high))
    return tuple(out)
