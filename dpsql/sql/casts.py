"""Casts: CAST where no value of the operand's range can fail, TRY_CAST (NULL instead) for the rest."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from sqlglot import exp

from dpsql.errors import SQLError
from dpsql.policy.types import column_type
from dpsql.sql.arithmetic import rounded
from dpsql.sql.calendar import day_of, moment_of
from dpsql.sql.statements import refuse
from dpsql.sql.typed import Typed, as_real, exact, flat, shown
from dpsql.workload.lines import line_of
from dpsql.workload.values import CaseValue, Cast, Compared, Constant, Unscaled, Value


def cast(t: Typed, node: exp.Cast) -> Typed:
    """CAST(t AS type) or TRY_CAST; refuses a CAST that may fail on a row."""
    tries = isinstance(node, exp.TryCast)
    written = node.to.sql("duckdb")
    target = column_type(written)
    if t.kind == "null":
        raise refuse(f"{shown(node)} is always NULL; write the value it should have", node)
    if target.kind == "integer" or target.kind == "decimal":
        name = str(target)
        if target.name == "UHUGEINT":
            raise refuse("UHUGEINT does not fit the scan's integers; cast to HUGEINT", node)
        return _to_exact(t, name, node, tries)
    if target.name == "DOUBLE":
        return _to_double(t, node, tries)
    if target.name == "VARCHAR":
        return _to_text(t, node)
    if target.name == "BOOLEAN":
        return _to_boolean(t, node, tries)
    if target.name == "DATE":
        if t.kind == "text":
            return _tried(t, "DATE", node, tries)
        return day_of(t, node)
    if target.name == "TIMESTAMP":
        return moment_of(t, node)
    if target.name == "TIMESTAMP WITH TIME ZONE" and t.kind == "timestamptz":
        return t
    raise refuse(
        f"a value is not cast to {written[:40]}; cast to BIGINT, DECIMAL, DOUBLE, VARCHAR, DATE or TIMESTAMP",
        node,
        code="function",
    )


def _must_try(t: Typed, node: exp.Cast) -> SQLError:
    return refuse(
        f"{shown(node)} fails on a row that does not fit, which would show it; write TRY_CAST, which gives NULL",
        node,
        code="cast-may-fail",
    )


def _tried(t: Typed, kind: str, node: exp.Cast, tries: bool) -> Typed:
    """What DuckDB's own TRY_CAST gives."""
    if not tries:
        raise _must_try(t, node)
    line = line_of(kind)
    value = Cast(t.value, kind, tries=True)
    if line.kind in {"integer", "decimal"}:
        low, high = line.low or 0, line.high or 0
        whole = value if line.kind == "integer" else Unscaled(value, "BIGINT" if high < 2**63 else "HUGEINT")
        found = exact(whole, low, high, line.kind, t, unit=Fraction(1, 10**line.scale))
        return replace(found, nulls=True)
    if line.kind == "real":
        return Typed("real", value, "double", undefined=True, gap=t.gap)
    if line.kind == "date":
        return Typed("date", value, low=-(2**31) + 1, high=2**31 - 1)
    return Typed(line.kind, value)


def _to_exact(t: Typed, kind: str, node: exp.Cast, tries: bool) -> Typed:
    line = line_of(kind)
    if t.kind == "boolean":
        return _fitted(exact(Cast(t.value, "BIGINT"), 0, 1, "integer", t), kind, node, tries)
    if t.kind in {"real", "text"}:
        return _tried(t, kind, node, tries)
    if t.kind != "exact":
        raise refuse(f"{shown(node)} has no value; write EXTRACT or date_diff", node, code="function")
    return _fitted(rounded("round", t, node, line.scale), kind, node, tries)


def _fitted(t: Typed, kind: str, node: exp.Cast, tries: bool) -> Typed:
    """The number where the type holds it."""
    line = line_of(kind)
    x = flat(t, node)
    unit = Fraction(1, 10**line.scale)
    low, high = -(-(line.low or 0) * unit // x.unit), (line.high or 0) * unit // x.unit
    if low <= x.low and x.high <= high:
        return replace(x, family=line.kind)
    if not tries:
        raise _must_try(t, node)
    low, high = int(max(low, x.low)), int(min(high, x.high))
    if low > high:
        raise refuse(f"{shown(node)} is always NULL; write the value it should have", node)
    own = x.value.type
    tests = (
        (Compared(x.value, "<", Constant(low, own)), Constant(None, own)),
        (Compared(x.value, ">", Constant(high, own)), Constant(None, own)),
    )
    return replace(x, value=CaseValue(tests, x.value, own), low=low, high=high, family=line.kind, nulls=True,
                   column=None, path=None)  # fmt: skip


def _to_double(t: Typed, node: exp.Cast, tries: bool) -> Typed:
    if t.kind == "text":
        return _tried(t, "DOUBLE", node, tries)
    if t.kind == "boolean":
        return as_real(exact(Cast(t.value, "BIGINT"), 0, 1, "integer", t), node)
    if t.kind == "exact" and t.family == "double":
        return t
    if t.numeric:
        return as_real(t, node)
    raise refuse(f"{shown(node)} has no value; write EXTRACT or date_diff", node, code="function")


def _to_text(t: Typed, node: exp.Cast) -> Typed:
    if t.kind == "text":
        return t
    value: Value | None = None
    if t.kind == "exact" and t.family == "integer":
        value = flat(t, node, Fraction(1)).value
    elif t.kind in {"boolean", "date", "timestamp"}:
        value = t.value
    if value is None:
        raise refuse(
            f"{shown(node)}: the text of such a value is not fixed; write it as a whole number or a date first",
            node,
            code="function",
        )
    return Typed("text", Cast(value, "VARCHAR"), nulls=t.nulls)


def _to_boolean(t: Typed, node: exp.Cast, tries: bool) -> Typed:
    if t.kind == "boolean":
        return t
    if t.kind == "text":
        return _tried(t, "BOOLEAN", node, tries)
    if t.kind == "exact" and t.family == "integer":
        x = flat(t, node, Fraction(1))
        zero, own = Compared(x.value, "=", Constant(0, x.value.type)), "BOOLEAN"
        other = Compared(x.value, "<>", Constant(0, x.value.type))
        return Typed(
            "boolean", CaseValue(((zero, Constant(False, own)), (other, Constant(True, own))), None, own), nulls=t.nulls
        )
    raise refuse(f"{shown(node)}: write a comparison such as x <> 0", node)
