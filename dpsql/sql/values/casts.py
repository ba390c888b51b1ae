"""Casts: CAST and TRY_CAST alike are NULL where a value does not fit."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from sqlglot import exp

from dpsql.policy.types import column_type
from dpsql.sql.parse.quoted import shown
from dpsql.sql.parse.statements import refuse
from dpsql.sql.values.arithmetic import rounded
from dpsql.sql.values.calendar import day_of, moment_of
from dpsql.sql.values.typed import DAYS, MOMENTS, Typed, always_null, as_real, clipped, exact, flat
from dpsql.workloads.expr.lines import line_of
from dpsql.workloads.expr.values import CaseValue, Cast, Compared, Constant, Unscaled, Value


def cast(t: Typed, node: exp.Cast) -> Typed:
    """CAST(t AS type) or TRY_CAST."""
    written = node.to.sql("duckdb")
    target = column_type(written)
    if t.kind == "null":
        raise always_null(node)
    if target.kind == "integer" or target.kind == "decimal":
        name = str(target)
        if target.name == "UHUGEINT":
            raise refuse("UHUGEINT does not fit the scan's integers; cast to HUGEINT", node)
        return _to_exact(t, name, node)
    if target.name == "DOUBLE":
        return _to_double(t, node)
    if target.name == "VARCHAR":
        return to_text(t, node)
    if target.name == "BOOLEAN":
        return _to_boolean(t, node)
    if target.name in {"DATE", "TIMESTAMP"}:
        if t.kind == "text":
            return _tried(t, target.name)
        return day_of(t, node) if target.name == "DATE" else moment_of(t, node)
    if target.name == "TIMESTAMP WITH TIME ZONE" and t.kind == "timestamptz":
        return t
    raise refuse(
        f"a value is not cast to {written[:40]}; cast to BIGINT, DECIMAL, DOUBLE, VARCHAR, DATE or TIMESTAMP",
        node,
        code="function",
    )


def _tried(t: Typed, kind: str) -> Typed:
    """What DuckDB's own TRY_CAST gives."""
    line = line_of(kind)
    value = Cast(t.value, kind, tries=True)
    if line.kind in {"integer", "decimal"}:
        low, high = line.low or 0, line.high or 0
        whole = value if line.kind == "integer" else Unscaled(value, "BIGINT" if high < 2**63 else "HUGEINT")
        found = exact(whole, low, high, line.kind, t, unit=Fraction(1, 10**line.scale))
        return replace(found, nulls=True)
    if line.kind == "real":
        return Typed("real", value, "double", undefined=True, gap=t.gap)
    ends = {"date": DAYS, "timestamp": MOMENTS}.get(line.kind, (0, 0))
    return Typed(line.kind, value, low=ends[0], high=ends[1], gap=t.gap)


def _to_exact(t: Typed, kind: str, node: exp.Cast) -> Typed:
    line = line_of(kind)
    if t.kind == "boolean":
        return _fitted(exact(Cast(t.value, "BIGINT"), 0, 1, "integer", t), kind, node)
    if t.kind in {"real", "text"}:
        return _tried(t, kind)
    if t.kind != "exact":
        raise refuse(f"{shown(node)} has no value; write EXTRACT or date_diff", node, code="function")
    return _fitted(rounded("round", t, node, line.scale), kind, node)


def _fitted(t: Typed, kind: str, node: exp.Cast) -> Typed:
    """The number where the type holds it."""
    line = line_of(kind)
    x = flat(t, node)
    unit = Fraction(1, 10**line.scale)
    low, high = -(-(line.low or 0) * unit // x.unit), (line.high or 0) * unit // x.unit
    if low <= x.low and x.high <= high:
        return replace(x, family=line.kind)
    low, high = int(max(low, x.low)), int(min(high, x.high))
    if low > high:
        raise always_null(node)
    own = x.value.type
    value = clipped(x.value, Constant(low, own), Constant(high, own))
    return replace(x, value=value, low=low, high=high, family=line.kind, nulls=True,
                   column=None, path=None)  # fmt: skip


def _to_double(t: Typed, node: exp.Cast) -> Typed:
    if t.kind == "text":
        return _tried(t, "DOUBLE")
    if t.kind == "boolean":
        return as_real(exact(Cast(t.value, "BIGINT"), 0, 1, "integer", t), node)
    if t.kind == "exact" and t.family == "double":
        return t
    if t.numeric:
        return as_real(t, node)
    raise refuse(f"{shown(node)} has no value; write EXTRACT or date_diff", node, code="function")


def to_text(t: Typed, node: exp.Expr) -> Typed:
    """The text of a whole number, BOOLEAN, date or time, as CAST(t AS VARCHAR) writes it."""
    if t.kind == "text":
        return t
    value: Value | None = None
    if t.kind == "exact" and t.family == "integer":
        t = flat(t, node, Fraction(1))
        value = t.value
    elif t.kind in {"boolean", "date", "timestamp"}:
        value = t.value
    if value is None:
        raise refuse(
            f"{shown(node)}: the text of such a value is not fixed; write it as a whole number or a date first",
            node,
            code="function",
        )
    return Typed("text", Cast(value, "VARCHAR"), nulls=t.nulls, gap=t.gap)


def _to_boolean(t: Typed, node: exp.Cast) -> Typed:
    if t.kind == "boolean":
        return t
    if t.kind == "text":
        return _tried(t, "BOOLEAN")
    if t.kind == "exact" and t.family == "integer":
        x = flat(t, node, Fraction(1))
        zero, own = Compared(x.value, "=", Constant(0, x.value.type)), "BOOLEAN"
        other = Compared(x.value, "<>", Constant(0, x.value.type))
        return Typed(
            "boolean", CaseValue(((zero, Constant(False, own)), (other, Constant(True, own))), None, own), nulls=x.nulls
        )
    raise refuse(f"{shown(node)}: write a comparison such as x <> 0", node)
