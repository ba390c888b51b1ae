"""Labels of time: strftime, monthname and dayname, as texts of a date or time."""

from __future__ import annotations

import re
from dataclasses import replace

from sqlglot import exp

from dpsql.errors import InternalError
from dpsql.sql.parse.quoted import shown
from dpsql.sql.parse.statements import refuse
from dpsql.sql.values.calendar import if_near, infinities, line_type, moment, utc
from dpsql.sql.values.evaluation import evaluate_one
from dpsql.sql.values.row_cost import LONGEST_WANTED
from dpsql.sql.values.typed import Typed
from dpsql.workloads.expr.values import Call, Constant

_SPECIFIER = re.compile(r"%-?.", re.DOTALL)
UNITS = {
    **dict.fromkeys(("%Y", "%y", "%-y"), "year"),
    **dict.fromkeys(("%b", "%h", "%B", "%m", "%-m"), "month"),
    **dict.fromkeys(("%G", "%V"), "week"),
    **dict.fromkeys(("%a", "%A", "%w", "%u", "%d", "%-d", "%j", "%-j", "%U", "%W", "%x"), "day"),
    **dict.fromkeys(("%H", "%-H", "%I", "%-I", "%p"), "hour"),
    **dict.fromkeys(("%M", "%-M"), "minute"),
    **dict.fromkeys(("%S", "%-S", "%c", "%X"), "second"),
    **dict.fromkeys(("%f", "%g", "%n"), "microsecond"),
    **dict.fromkeys(("%%", "%z", "%Z"), ""),
}
"""The specifiers of strftime, each with the unit that it tells apart; a zone is UTC's and tells nothing apart."""


def specifiers(form: str) -> list[str]:
    """The specifiers of a format, in order."""
    return _SPECIFIER.findall(form)


def formatted(t: Typed, form: object, node: exp.Expr) -> Typed:
    """strftime(t, form) with a constant format."""
    if not isinstance(form, str) or not form or len(form.encode()) > LONGEST_WANTED:
        raise refuse(
            f"{shown(node)} takes a date and one constant format of 1 to {LONGEST_WANTED:,} bytes, such as '%Y-%m'",
            node,
            code="function",
        )
    unknown = [found for found in specifiers(form) if found not in UNITS]
    if unknown or not _is_read(form):
        what = unknown[0] if unknown else "its last sign"
        raise refuse(f"{shown(node)}: strftime has no {what}; write %Y, %m, %d, %H and the like", node, code="function")
    t = moment(utc(t), node)
    call = Call("strftime", (t.value, Constant(form, "VARCHAR")), "VARCHAR")
    words = tuple(
        (test, Constant(word, "VARCHAR"))
        for (test, _), word in zip(
            infinities(t.value, line_type(t.kind), line_type(t.kind)), ("-infinity", "infinity"), strict=True
        )
    )
    value = if_near(t, call, "VARCHAR", words)
    return Typed("text", value, nulls=t.nulls or value is not call, gap=t.gap)


def _is_read(form: str) -> bool:
    """Whether DuckDB reads a format."""
    day = Constant(0, "DATE")
    try:
        return evaluate_one(Call("strftime", (day, Constant(form, "VARCHAR")), "VARCHAR"), "text") is not None
    except InternalError:
        return False


def name_of(function: str, t: Typed, node: exp.Expr) -> Typed:
    """monthname(t) or dayname(t); NULL for infinite dates."""
    t = moment(utc(t), node)
    value = if_near(t, Call(function, (t.value,), "VARCHAR"), "VARCHAR")
    return replace(Typed("text", value), nulls=t.nulls or not isinstance(value, Call))
