"""Value trees as terms of integer arithmetic for an SMT solver, with the duties under which DuckDB does not fail.

A value is a whole number (a BOOLEAN 0 or 1, a DATE its day, a TIMESTAMP its microsecond, a DECIMAL its units) and
whether it is NULL; a DOUBLE is a real number that is off by what its roundings may make. Each function stands here
as DuckDB computes it, without a bound of its own; ``Terms.duties`` says where that would leave the result's type,
divide by zero or leave DuckDB's calendar, on the rows that the CASEs around it let through. Stored columns are anything
that their types hold.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import z3
from calendar_terms import Calendar, next_month, size, within

from dpsql.common.numerics import CYCLE, DAY, INFINITE_DAY, INFINITE_MOMENT, LEAST_MOMENT, YEAR_2000
from dpsql.workloads.expr import values as tree
from dpsql.workloads.expr.lines import line_of
from dpsql.workloads.expr.total import between

ROUNDED = 2**53
"""A DOUBLE is off by at most a part of itself of this size."""
CALENDAR = (YEAR_2000 - 725 * CYCLE, YEAR_2000 + 730 * CYCLE)
"""Days in which DuckDB's functions of the calendar do not fail: the years -288,000 to 294,000."""
_DAYS = (-INFINITE_DAY + 1, INFINITE_DAY - 1)
_MOMENTS = (LEAST_MOMENT, INFINITE_MOMENT - 1)
_INFINITE = {"DATE": INFINITE_DAY, "TIMESTAMP": INFINITE_MOMENT, "TIMESTAMP WITH TIME ZONE": INFINITE_MOMENT}
_FINITE = {"DATE": _DAYS, "TIMESTAMP": _MOMENTS, "TIMESTAMP WITH TIME ZONE": _MOMENTS}
_NEVER = z3.BoolVal(False)


class NotExpressibleError(Exception):
    """A node that has no term."""


@dataclass(frozen=True)
class Term:
    """A value of a row: its number, which means nothing where it is NULL."""

    number: Any
    null: Any


@dataclass(frozen=True)
class Duty:
    """What holds wherever a call is reached: its name, and the formula that must have no counterexample."""

    name: str
    holds: Any


class Terms(Calendar):
    """The terms of value trees over the same row; what ``counts`` says is that of ``Calendar``."""

    def __init__(self, counts: bool = True) -> None:
        super().__init__(counts)
        self._of: dict[tree.Node, Term] = {}
        self._fails: dict[tree.Node, Any] = {}
        self._names = 0

    def fresh(self, name: str, sort: Callable[[str], Any] = z3.Int) -> Any:
        self._names += 1
        return sort(f"{name} {self._names}")

    def divided(self, number: Any, divisor: Any) -> tuple[Any, Any]:
        """The quotient, rounded towards zero, and the remainder of a number by any but zero."""
        quotient, rest = self.fresh("quotient"), self.fresh("rest")
        exact = number == quotient * divisor + rest
        sign = z3.If(number >= 0, rest >= 0, rest <= 0)
        self.axioms.append(z3.Implies(divisor != 0, z3.And(exact, sign, size(rest) < size(divisor))))
        return quotient, rest

    def double(self, number: Any) -> Any:
        """A DOUBLE near a real number."""
        found = self.fresh("double", z3.Real)
        off = size(number) / ROUNDED
        self.axioms += [found - number <= off, number - found <= off]
        return found

    def of(self, value: tree.Value) -> Term:
        """The term of a value."""
        if value not in self._of:
            self._of[value], self._fails[value] = self._made(value)
        return self._of[value]

    def _made(self, value: tree.Value) -> tuple[Term, Any]:
        """The term of a value, and where its computation fails though its parts have values."""
        if isinstance(value, tree.Stored):
            return self._column(value), _NEVER
        if isinstance(value, tree.Constant):
            return _constant(value), _NEVER
        if isinstance(value, tree.Unscaled):
            inner = self.of(value.this)
            return inner, _outside(inner.number, value.type)
        if isinstance(value, tree.Cast) and not value.tries:
            return self._cast(self.of(value.this), value.this.type, value.type)
        if isinstance(value, tree.Coalesce):
            terms = [self.of(part) for part in value.arguments]
            return _first(terms), _NEVER
        if isinstance(value, tree.CaseValue):
            found = _constant(tree.Constant(None, value.type)) if value.default is None else self.of(value.default)
            for test, branch in reversed(value.branches):
                holds, branched = self.truth(test)[0], self.of(branch)
                found = Term(z3.If(holds, branched.number, found.number), z3.If(holds, branched.null, found.null))
            return found, _NEVER
        if isinstance(value, tree.Call):
            return self._call(value)
        raise NotExpressibleError(f"{value}")

    def _column(self, value: tree.Stored) -> Term:
        number, null = z3.Int(value.name), z3.Bool(f"{value.name} is NULL")
        low, high = line_of(value.type).ends
        if low is None or high is None:
            raise NotExpressibleError(value.type)
        held = within(number, low, high)
        if value.type.startswith("TIMESTAMP"):
            held = z3.And(held, z3.Or(number >= LEAST_MOMENT, number == low))
        self.axioms.append(held)
        return Term(number, null)

    def _cast(self, inner: Term, own: str, kind: str) -> tuple[Term, Any]:
        number = inner.number
        if kind == "DOUBLE":
            return Term(self.double(z3.ToReal(number)), inner.null), _NEVER
        if own in _INFINITE and kind in _INFINITE:
            moved = number * DAY if kind != "DATE" else number / DAY
            for end, to in ((_INFINITE[own], _INFINITE[kind]), (-_INFINITE[own], -_INFINITE[kind])):
                moved = z3.If(number == end, to, moved)
            return Term(moved, inner.null), z3.And(
                size(number) != _INFINITE[own], z3.Not(within(moved, *_FINITE[kind]))
            )
        if line_of(own).kind in {"integer", "boolean"} and line_of(kind).kind == "integer":
            return inner, _outside(number, kind)
        raise NotExpressibleError(f"{own} as {kind}")

    def _call(self, call: tree.Call) -> tuple[Term, Any]:
        name, kind = call.function, call.type
        if kind == "INTERVAL":
            return self.of(call.arguments[0]), _NEVER
        if name in {"greatest", "least"}:
            return _extreme(name, [self.of(part) for part in call.arguments]), _NEVER
        if name == "time_bucket":
            return self._bucket(call)
        word, *_ = call.arguments
        given = (
            call.arguments[1:] if isinstance(word, tree.Constant) and isinstance(word.value, str) else call.arguments
        )
        terms = [self.of(part) for part in given]
        null = z3.Or([term.null for term in terms])
        numbers = [term.number for term in terms]
        types = [part.type for part in given]
        if kind == "DOUBLE":
            return Term(self.double(_arithmetic(name, *numbers)), null), _NEVER
        if types[0] in _INFINITE and (name, types[-1]) != ("-", "DATE"):
            unit = str(word.value) if isinstance(word, tree.Constant) else ""
            found, fails = self._of_time(name, kind, unit, call, numbers)
            endless = z3.Or([size(n) == _INFINITE[t] for n, t in zip(numbers, types, strict=True) if t in _INFINITE])
            if name == "+":  # an infinite date stays what it is
                return Term(z3.If(endless, numbers[0], found), null), z3.And(z3.Not(endless), fails)
            return Term(found, z3.Or(null, endless)), z3.And(z3.Not(endless), fails)
        found, fails = self._of_numbers(name, kind, numbers)
        return Term(found, null), fails

    def _of_numbers(self, name: str, kind: str, of: list[Any]) -> tuple[Any, Any]:
        if name in {"//", "%"}:
            quotient, rest = self.divided(*of)
            # The least number over -1 fails, its remainder too.
            return quotient if name == "//" else rest, z3.Or(of[1] == 0, _outside(quotient, kind))
        if name == "make_date":
            first, real = self.first_day(of[0], of[1]), within(of[1], 1, 12)
            self._days_made.append((of[0], of[1]))
            self.axioms.append(z3.Implies(real, size(first) <= 366 * (size(of[0]) + 1_971)))
            return first, z3.Not(z3.And(within(of[0], -280_000, 280_000), real, of[2] == 1))
        if name == "make_timestamp":
            return of[0], z3.Not(within(of[0], *_MOMENTS))
        found = _arithmetic(name, *of)
        fails = _outside(found, kind)
        # DuckDB takes a product of exactly -2^127 for an overflow.
        return found, z3.Or(fails, found == -(2**127)) if (name, kind) == ("*", "HUGEINT") else fails

    def _of_time(self, name: str, kind: str, unit: str, call: tree.Call, of: list[Any]) -> tuple[Any, Any]:
        """A function of finite dates or moments, and where it fails."""
        micros = call.arguments[-1 if unit else 0].type != "DATE"
        days = [n / DAY if micros else n for n in of]
        far = z3.Or([z3.Not(within(day, *CALENDAR)) for day in days])
        if name in {"date_diff", "date_sub"}:
            start, end = ((n if micros else n * DAY) for n in of)
            between = self.boundaries if name == "date_diff" else self.whole_units
            return between(unit, start, end), far
        if name == "date_trunc":
            return self.start_of(unit, of[0]), far
        if name == "last_day":
            date = self.civil(days[0])
            return self.first_day(*next_month(date.year, date.month)) - 1, far
        if name == "epoch_us":
            return of[0], _NEVER
        if name == "+":
            step = call.arguments[1]
            moved = of[0] + of[1]
            if isinstance(step, tree.Call) and step.function == "to_months":
                moved = self.plus_months(of[0], of[1])
            return moved, z3.Not(within(moved, *_FINITE[kind]))
        part = self.part(name, days[0], of[0] % DAY if micros else z3.IntVal(0))
        return part, far if name in {"isoyear", "week", "yearweek"} else _NEVER

    def _bucket(self, call: tree.Call) -> tuple[Term, Any]:
        """time_bucket: units of months, or of microseconds, counted from an origin."""
        step, of, *origin = call.arguments
        term, length = self.of(of), int(self.of(step).number.as_long())
        own = DAY if call.type == "DATE" else 1
        moment = term.number * own
        months = isinstance(step, tree.Call) and step.function == "to_months"
        start = self.of(origin[0]).number * own if origin else z3.IntVal((YEAR_2000 + (0 if months else 2)) * DAY)
        found = start + (moment - start) / length * length
        if months:
            date, first = self.civil(moment / DAY), self.civil(start / DAY)
            number, since = date.year * 12 + date.month - 1, first.year * 12 + first.month - 1
            number = since + (number - since) / length * length
            found = self.first_day(number / 12, number % 12 + 1) * (DAY // own)
        else:
            found = found / own
        endless = size(term.number) == _INFINITE[call.type]
        far = z3.Not(within(moment / DAY, *CALENDAR))
        found = z3.If(endless, term.number, found)
        return Term(found, term.null), z3.And(z3.Not(endless), far)

    def truth(self, test: tree.Test) -> tuple[Any, Any]:
        """Where a test is TRUE and where FALSE."""
        if isinstance(test, tree.Compared):
            left, right = self.of(test.left), self.of(test.right)  # type: ignore[arg-type]
            a, b = left.number, right.number
            holds = {"=": a == b, "<>": a != b, "<": a < b, "<=": a <= b, ">": a > b, ">=": a >= b}[test.operator]
            both = z3.Not(z3.Or(left.null, right.null))
            return z3.And(both, holds), z3.And(both, z3.Not(holds))
        if isinstance(test, tree.Every | tree.Some):
            pairs = [self.truth(part) for part in test.tests]
            true, false = z3.And if isinstance(test, tree.Every) else z3.Or, z3.Or
            if isinstance(test, tree.Some):
                false = z3.And
            return true([t for t, _ in pairs]), false([f for _, f in pairs])
        if isinstance(test, tree.Within):
            inside = tuple(between(test.value, test.line, one) for one in map(test.line.clip, test.intervals) if one)
            null = self.of(test.value).null
            true, false = self.truth(tree.Some(inside))
            return (z3.Or(true, null), false) if test.on_null else (true, false)
        if isinstance(test, tree.Is):
            true, false = self.truth(test.test)
            truths = {True: true, False: false, None: z3.Not(z3.Or(true, false))}
            holds = z3.Or([truths[one] for one in test.truths])
            return holds, z3.Not(holds)
        if isinstance(test, tree.IsNull):
            null = self.of(test.this).null
            return (z3.Not(null), null) if test.negated else (null, z3.Not(null))
        raise NotExpressibleError(f"{test}")

    def duties(self, root: tree.Value) -> list[Duty]:
        """For every part of a value that may fail: it does not where the tests around it let a row through."""
        found: dict[str, Duty] = {}
        waiting: list[tuple[tree.Node, Any]] = [(root, z3.BoolVal(True))]
        self.of(root)
        while waiting:
            node, path = waiting.pop()
            fails = self._fails.get(node, _NEVER)
            if not z3.is_false(fails):
                given = [self._of[part].null for part in tree.parts(node) if part in self._of]
                holds = z3.Not(z3.And(path, *(z3.Not(null) for null in given), fails))
                name = getattr(node, "function", type(node).__name__.lower())
                found.setdefault(holds.sexpr(), Duty(f"{name} of {getattr(node, 'type', '')}", holds))
            if isinstance(node, tree.CaseValue):
                for test, branch in node.branches:
                    waiting.append((test, path))
                    true = self.truth(test)[0]
                    waiting.append((branch, z3.And(path, true)))
                    path = z3.And(path, z3.Not(true))
                if node.default is not None:
                    waiting.append((node.default, path))
            else:
                waiting.extend((part, path) for part in tree.parts(node))
        return list(found.values())


def _constant(value: tree.Constant) -> Term:
    number = 0 if value.value is None else value.value
    if value.type == "DOUBLE":
        return Term(z3.RealVal(str(int(number))), z3.BoolVal(value.value is None))
    if isinstance(number, str):
        raise NotExpressibleError("text")
    return Term(z3.IntVal(int(number)), z3.BoolVal(value.value is None))


def _outside(number: Any, kind: str) -> Any:
    """A whole number is none of its type."""
    low, high = line_of(kind).ends
    if low is None or high is None:
        raise NotExpressibleError(kind)
    return z3.Not(within(number, low, high))


def _arithmetic(name: str, a: Any, b: Any = None) -> Any:
    if name == "abs":
        return size(a)
    if name == "sign":
        return z3.If(a > 0, 1, z3.If(a < 0, -1, 0))
    if name not in {"+", "-", "*"}:
        raise NotExpressibleError(name)
    return a + b if name == "+" else a - b if name == "-" else a * b


def _extreme(name: str, terms: list[Term]) -> Term:
    """greatest or least, which skip NULL."""
    found = terms[0]
    for term in terms[1:]:
        better = term.number > found.number if name == "greatest" else term.number < found.number
        taken = z3.And(z3.Not(term.null), z3.Or(found.null, better))
        found = Term(z3.If(taken, term.number, found.number), z3.And(found.null, term.null))
    return found


def _first(terms: list[Term]) -> Term:
    """The first that is not NULL."""
    found = terms[-1]
    for term in reversed(terms[:-1]):
        found = Term(z3.If(term.null, found.number, term.number), z3.And(term.null, found.null))
    return found
