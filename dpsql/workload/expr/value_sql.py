"""The SQL text of values: what the private scan runs for each row, and an empty DuckDB for public domains.

Every function and operator is named in ``system.main``, where no macro or view of a user stands;
comparisons, CASE, CAST, TRY and COALESCE are no functions that a macro could replace. Text is compared
in binary order whatever collation its column has, FLOAT is widened to DOUBLE, NaN is NULL wherever a column is
read, and no constant is written in a type other than the operand's, so that no column is ever cast implicitly.

Total by construction. ``read_once`` is the one way from a value to what a scan cuts and sums. A value is built of
forms that cannot fail (``values``); every function and cast in it stands in a TRY of its own, which gives NULL where it
does so all the same; and what comes out is held to the range that the plan relies on, outside of which it is NULL. So a
wrong range costs accuracy on the rows where it is wrong, and no row decides whether a scan succeeds.

One TRY around the whole would not do: DuckDB computes what stands twice in a projection once, below it and so outside
of every TRY around a larger part. It takes the largest part first, and what stands right in a TRY stands nowhere else,
so that here the TRY is always computed with it.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from dpsql.quoting import identifier, string
from dpsql.workload.expr.lines import Interval, Line, line_of
from dpsql.workload.expr.values import (
    Call,
    Cast,
    Coalesce,
    Compared,
    Constant,
    Every,
    Is,
    Matches,
    Number,
    Stored,
    Test,
    Unscaled,
    Value,
    Within,
)

# The alias of the table that a scan is over (``engines.base.BASE``).
BASE = "dpsql_base"
# The alias of the rows whose columns are the values of a scan, each computed once.
VALUES = "dpsql_values"
LONGEST_READ = 65_536
"""Bytes of a text that LIKE and the functions of text look at; a longer one has no value there, it is NULL."""
MOST_STEPS = 4_000_000
"""Bytes of a text times signs of a pattern that a row may take in LIKE: about a millisecond."""
MOST_STATES = 100_000
"""The same for a pattern of more than ``FEW_SIGNS`` with wildcards, for which RE2 may run out of states: some
milliseconds."""
FEW_SIGNS = 12
# Day and microsecond numbers of DuckDB's infinite dates and timestamps.
INFINITE_DAY = 2**31 - 1
INFINITE_MOMENT = 2**63 - 1
# The least finite timestamp, midnight of a day; between it and minus infinity there is none.
_LEAST_MOMENT = -9_223_372_022_400_000_000
_DAY = 86_400_000_000
# The least finite day or moment of a type, and minus infinity; nothing else is below.
_FIRST = {
    "DATE": (-INFINITE_DAY + 1, -INFINITE_DAY),
    **dict.fromkeys(("TIMESTAMP", "TIMESTAMPTZ", "TIMESTAMP WITH TIME ZONE"), (_LEAST_MOMENT, -INFINITE_MOMENT)),
}
# The Gregorian calendar repeats after 400 years.
_CYCLE = 146_097
_DECIMAL = re.compile(r"DECIMAL\((\d+),\s*(\d+)\)")


def call(function: str, *arguments: str) -> str:
    """A call of DuckDB's own function, by its qualified name."""
    return f"system.main.{identifier(function)}({', '.join(arguments)})"


def operand(column: str, line: Line, values: Mapping[str, Value]) -> str:
    """What a column of an axis or measure is in the scan: an expression, or the stored column of that name."""
    value = values.get(column)
    return render(Stored(column, line.type) if value is None else value)


@dataclass(frozen=True)
class Once:
    """A value of a row that is computed once and has the name ``name`` from then on.

    ``first`` is computed from the stored columns. ``then``, where there is one, holds that (under the same name) to
    what the plan relies on.
    """

    name: str
    first: str
    then: str | None


def read_once(value: Value, line: Line, name: str) -> Once:
    """A value on its ``line`` as a column called ``name``, for any row: nothing that it holds can make a scan fail.

    A stored column is read as it is, NaN as NULL. Anything else is NULL where a part of it fails, where it is NaN, and
    where it leaves the range of the line. DuckDB evaluates a vector in which TRY met a failure row by row, a hundred
    times slower: it is there for what nobody foresaw, and every form in the tree is total without it.
    """
    text = render(value)
    held = None if isinstance(value, Stored | Number) else _held(identifier(name), line)
    return Once(name, text, held)


def _held(name: str, line: Line) -> str | None:
    """A column within the range of its line, NULL elsewhere; None where its type has no other values."""
    if line.kind == "real":
        return _number(name)
    if line.kind not in {"integer", "grid"} or line.low is None or line.high is None:
        return None
    whole = Line("integer", line.type)
    low, high = literal(whole, line.low), literal(whole, line.high)
    return f"CASE WHEN {name} >= {low} AND {name} <= {high} THEN {name} END"


def _number(text: str) -> str:
    """A DOUBLE, NULL where it is NaN."""
    return f"CASE WHEN NOT {call('isnan', text)} THEN {text} END"


def render(value: Value) -> str:
    """The expression for a value; its size is that of the tree."""
    if isinstance(value, Stored):
        return _stored(value)
    if isinstance(value, Constant):
        if value.value is None:
            return f"CAST(NULL AS {value.type})"
        return literal(line_of(value.type), value.value)
    if isinstance(value, Unscaled):
        return _unscaled(value)
    if isinstance(value, Call):
        return _net(call(value.function, *map(render, value.arguments)))
    if isinstance(value, Cast):
        cast = f"CAST({render(value.this)} AS {value.type})"
        return f"TRY_{cast}" if value.tries else _net(cast)
    if isinstance(value, Coalesce):
        return f"COALESCE({', '.join(map(render, value.arguments))})"
    if isinstance(value, Number):
        return _number(render(value.this))
    branches = " ".join(f"WHEN {holds(test)} THEN {render(found)}" for test, found in value.branches)
    default = f"CAST(NULL AS {value.type})" if value.default is None else render(value.default)
    return f"CASE {branches} ELSE {default} END"


def _net(text: str) -> str:
    """A function or cast, NULL where it fails."""
    return f"TRY({text})"


def holds(test: Test) -> str:
    """A condition: TRUE where the test holds, FALSE or NULL elsewhere."""
    if isinstance(test, Compared):
        return f"({render(test.left)} {test.operator} {render(test.right)})"
    if isinstance(test, Matches):
        return like(render(test.value), test.pattern)
    if isinstance(test, Is):
        shown = holds(test.test)
        words = {True: "TRUE", False: "FALSE", None: "NULL"}
        listed = [f"{shown} IS NOT DISTINCT FROM {words[t]}" for t in (True, False, None) if t in test.truths]
        return f"({' OR '.join(listed)})" if listed else "FALSE"
    if isinstance(test, Within):
        found = render(test.value)
        pieces = [_inside(found, test.line, interval) for interval in test.intervals]
        if test.on_null:
            pieces.append(f"{found} IS NULL")
        return f"({' OR '.join(pieces)})" if pieces else "FALSE"
    if not test.tests:
        return "TRUE" if isinstance(test, Every) else "FALSE"
    word = " AND " if isinstance(test, Every) else " OR "
    return f"({word.join(map(holds, test.tests))})"


def like(value: str, pattern: str) -> str:
    """``value LIKE pattern`` in bounded time: NULL for a text of more than ``LONGEST_READ`` bytes.

    DuckDB's own LIKE steps back over ``_`` between several ``%``, so that one long text could take years. There, RE2
    matches, which reads a text once, at worst with a step for each sign of the pattern. The text is NULL where the
    steps could be too many.
    """
    matched = call("~~", value, string(pattern))
    if "_" in pattern and "%" in pattern:
        matched = call("regexp_full_match", value, string(plain_expression(pattern)))
    return f"CASE WHEN {call('strlen', value)} <= {longest_matched(pattern)} THEN {_net(matched)} END"


def longest_matched(pattern: str) -> int:
    """The most bytes of a text that LIKE ``pattern`` looks at."""
    wild = "_" in pattern and "%" in pattern
    return longest_searched(max(1, len(pattern)), wild=wild)


def longest_searched(weight: int, *, wild: bool) -> int:
    """The most bytes of a text that a pattern is held against which takes at most ``weight`` steps a byte.

    ``wild``: it has wildcards that RE2 may need a state for at every byte, which is slower by far.
    """
    return min(LONGEST_READ, (MOST_STATES if wild and weight > FEW_SIGNS else MOST_STEPS) // weight)


def expression_of(signs: Iterable[tuple[str, bool]]) -> str:
    """A LIKE pattern, as characters with whether each is a special % or _, as a regular expression of RE2."""
    written = {"%": ".*", "_": "."}
    return "(?s)" + "".join(
        written[c] if special else c if c.isalnum() or c == " " else f"\\x{{{ord(c):x}}}" for c, special in signs
    )


def plain_expression(pattern: str) -> str:
    """A LIKE pattern without ESCAPE as a regular expression of RE2."""
    return expression_of((character, character in "%_") for character in pattern)


def _inside(found: str, line: Line, interval: Interval) -> str:
    low, high = interval
    sides = []
    if low is not None:
        sides.append(f"{found} {'>' if low[1] else '>='} {literal(line, low[0])}")
    if high is not None:
        sides.append(f"{found} {'<=' if high[1] else '<'} {literal(line, high[0])}")
    return f"({' AND '.join(sides)})" if sides else f"{found} IS NOT NULL"


def _stored(value: Stored) -> str:
    """The column as its line compares it: text in binary order, FLOAT widened exactly to DOUBLE.

    NULL where it is NaN, or what its type does not hold.
    """
    name = f"{identifier(value.source or BASE)}.{identifier(value.name)}"
    kind = value.type.upper()
    if kind.startswith("ENUM"):
        name, kind = f"CAST({name} AS VARCHAR)", "VARCHAR"
    if kind == "VARCHAR":
        # A NOCASE column would otherwise merge what the cuts tell apart.
        return f'({name} COLLATE "binary")'
    if value.source != VALUES:
        name = _number(name) if kind in {"FLOAT", "DOUBLE"} else _within_type(name, kind)
    return f"CAST({name} AS DOUBLE)" if kind == "FLOAT" else name


def _within_type(name: str, kind: str) -> str:
    """A column, NULL where it holds what its type does not: a number of more digits, a moment before all moments.

    DuckDB takes such values from Parquet files as they are stored, into its own tables too, and its functions fail on
    them, or while a statement is planned, where no TRY stands; some failures end the whole instance.
    """
    decimal = _DECIMAL.fullmatch(kind)
    if decimal:
        line = line_of(kind)
        most = 10 ** int(decimal[1]) - 1
        inside = f"{name} >= {literal(line, -most)} AND {name} <= {literal(line, most)}"
    elif kind in _FIRST:
        line = line_of(kind)
        first, below = _FIRST[kind]
        inside = f"{name} >= {literal(line, first)} OR {name} = {literal(line, below)}"
    else:
        return name
    return f"CASE WHEN {inside} THEN {name} END"


def _unscaled(value: Unscaled) -> str:
    found = _DECIMAL.fullmatch(value.this.type.upper())
    assert found is not None  # noqa: S101 - the front end makes it of DECIMAL columns alone
    width, scale = int(found[1]), int(found[2])
    name = _stored(value.this) if isinstance(value.this, Stored) else render(value.this)
    if not scale:
        return _net(f"CAST({name} AS {value.type})")
    if width + scale <= 38:
        wide = _net(f"CAST({name} AS DECIMAL(38,{scale}))")
        return _net(f"CAST({_net(call('*', wide, f'CAST({10**scale} AS DECIMAL({scale + 1},0))'))} AS {value.type})")
    # The product would leave 38 digits; the text of a decimal always has all its decimals.
    digits = _net(call("replace", _net(f"CAST({name} AS VARCHAR)"), string("."), string("")))
    return _net(f"CAST({digits} AS {value.type})")


def literal(line: Line, value: object) -> str:
    """A constant of a line, of exactly the column's type, so that the column itself is never cast."""
    kind = line.kind
    if kind == "integer":
        return f"CAST({value} AS {line.type})"
    if kind == "boolean":
        return "TRUE" if value else "FALSE"
    if kind == "decimal":
        number = int(value)  # type: ignore[call-overload]
        digits = f"{abs(number):0{line.scale + 1}d}"
        whole, part = (digits[: -line.scale], digits[-line.scale :]) if line.scale else (digits, "")
        return f"CAST('{'-' if number < 0 else ''}{whole}{'.' + part if part else ''}' AS {line.type})"
    if kind == "real":
        return f"CAST('{float(value)!r}' AS DOUBLE)"  # type: ignore[arg-type]
    if kind == "text":
        return string(str(value))
    if kind == "date":
        return f"CAST('{_day(int(value))}' AS DATE)"  # type: ignore[call-overload]
    moment = int(value)  # type: ignore[call-overload]
    zone = "TIMESTAMPTZ" if kind == "timestamptz" else "TIMESTAMP"
    if abs(moment) >= INFINITE_MOMENT:
        return f"CAST('{'-' if moment < 0 else ''}infinity' AS {zone})"
    days, micros = divmod(max(moment, _LEAST_MOMENT), _DAY)
    clock = dt.datetime(2000, 1, 1) + dt.timedelta(microseconds=micros)
    shown = f"{_day(days)} {clock:%H:%M:%S.%f}"
    return f"CAST('{shown}{'+00' if kind == 'timestamptz' else ''}' AS {zone})"


def _day(days: int) -> str:
    """The date of a day number as DuckDB writes it, in any year; the calendar of Python ends in 9999."""
    if abs(days) >= INFINITE_DAY:
        return "-infinity" if days < 0 else "infinity"
    cycles, rest = divmod(days, _CYCLE)
    found = dt.date(1970, 1, 1) + dt.timedelta(days=rest)
    year = found.year + 400 * cycles
    shown = f"{year if year > 0 else 1 - year:04d}-{found:%m-%d}"
    return shown if year > 0 else f"{shown} (BC)"
