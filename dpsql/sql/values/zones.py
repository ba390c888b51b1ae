"""Time zones: t AT TIME ZONE 'Europe/Berlin', by the rules that DuckDB's ICU knows.

A zone's clock goes back once a year, so that what is computed of local times rises with the moments no more.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from dpsql.common.numerics import DAY
from dpsql.errors import InternalError
from dpsql.sql.parse.quoted import shown
from dpsql.sql.parse.statements import refuse
from dpsql.sql.values.calendar import if_near, infinities, moment_of, near
from dpsql.sql.values.evaluation import evaluate, evaluate_one
from dpsql.sql.values.typed import MOMENTS, Typed
from dpsql.workloads.expr.lines import line_of
from dpsql.workloads.expr.values import Call, CaseValue, Compared, Constant, Stored

_MOST_DAYS = 80_000
_ZONED = line_of("TIMESTAMP WITH TIME ZONE").type


def at_zone(zone: object, t: Typed, node: exp.Expr) -> Typed:
    """The local time of a TIMESTAMPTZ, or the moment that a local TIMESTAMP stands for; NULL in far years."""
    if not isinstance(zone, str):
        raise refuse(f"{shown(node)} takes a constant time zone, such as 'Europe/Berlin'", node, code="function")
    if not _is_zone(zone):
        raise refuse(f"{shown(node)}: DuckDB knows no time zone {zone[:40]!r}", node, code="function")
    name = Constant(zone, "VARCHAR")
    if t.kind != "timestamptz":
        local = moment_of(t, node)
        call = Call("timezone", (name, local.value), _ZONED)
        value = if_near(local, call, _ZONED, infinities(local.value, "TIMESTAMP", _ZONED))
        low, high = _a_day_around(local)
        return Typed("timestamptz", value, low=low, high=high, nulls=True, gap=local.gap)
    first, last = (Constant(end, _ZONED) for end in near("timestamp"))
    null = Constant(None, "TIMESTAMP")
    outside = (Compared(t.value, "<", first), null), (Compared(t.value, ">", last), null)
    found = Call("timezone", (name, t.value), "TIMESTAMP")
    value = CaseValue((*infinities(t.value, _ZONED, "TIMESTAMP"), *outside), found, "TIMESTAMP")
    low, high = _a_day_around(t)
    return Typed("timestamp", value, low=low, high=high, nulls=True, gap=t.gap)


def _a_day_around(t: Typed) -> tuple[int, int]:
    """The range of a moment in other zones: no zone is a day away."""
    return max(MOMENTS[0], t.low - DAY), min(MOMENTS[1], t.high + DAY)


def _is_zone(zone: str) -> bool:
    moment = Constant(0, _ZONED)
    try:
        return evaluate_one(Call("timezone", (Constant(zone, "VARCHAR"), moment), "TIMESTAMP"), "timestamp") is not None
    except InternalError:
        return False


def transitions(call: Call, low: int, high: int) -> list[tuple[int, int]] | None:
    """(moment, offset from there on) between two moments, by DuckDB's own rules; None where they are too far apart.

    ``call`` is of ``timezone`` as ``at_zone`` makes it. Offsets are compared from day to day.
    """
    days = range(low // DAY, high // DAY + 2)
    if len(days) > _MOST_DAYS:
        return None
    kind = call.arguments[1].type
    at = Stored("moment", kind)
    local = Call("timezone", (call.arguments[0], at), call.type)

    def offsets(places: Sequence[int]) -> list[int]:
        found = evaluate(local, "timestamp", at, line_of(kind), tuple(places))
        return [int(shifted) - place for shifted, place in zip(found, places, strict=True)]

    places = [day * DAY for day in days]
    held = offsets(places)
    open_ = [(a, b, one) for a, b, one, other in zip(places, places[1:], held, held[1:], strict=False) if one != other]
    while any(b - a > 1 for a, b, _ in open_):
        middles = [(a + b) // 2 for a, b, _ in open_]
        open_ = [
            (middle, b, one) if offset == one else (a, middle, one)
            for (a, b, one), middle, offset in zip(open_, middles, offsets(middles), strict=True)
        ]
    changed = [b for _, b, _ in open_]
    return [(places[0], held[0]), *zip(changed, offsets(changed), strict=True)]
