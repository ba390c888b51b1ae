"""Parameters: Python values written into a batch as typed literals, by its tokens and never by formatting.

A parameter is a literal of the batch. ``?`` and ``$1`` take values of a sequence, ``:name`` and ``$name`` those
of a mapping. Strings, quoted names and comments are tokens of their own, so that nothing inside them is
taken for a parameter, and a value always stays one literal: quotes are doubled and spaces keep it
apart from what stands beside it.
"""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, TypeAlias

import numpy as np
from sqlglot import Token, TokenType

from dpsql.common.quoting import string
from dpsql.errors import DataError, ProgrammingError, SQLError
from dpsql.sql.parse.tokens import MAX_BATCH, QUOTED, refuse_token, replaced, tokens_of

Parameters: TypeAlias = "Sequence[object] | Mapping[str, object] | None"

# A colon after one of these is DuckDB's own: {'a': x}, a[1:x], a[:x] and the alias in front of an expression.
_BEFORE_COLON = frozenset({
    *(TokenType.VAR, TokenType.IDENTIFIER, TokenType.STRING, TokenType.NUMBER),
    *(TokenType.R_PAREN, TokenType.R_BRACKET, TokenType.R_BRACE, TokenType.L_BRACKET),
})  # fmt: skip
_NAME = re.compile(r"[^\W\d]\w*")
_LEFT = frozenset(" \t\r\n(,=<>")
_RIGHT = frozenset(" \t\r\n),;")
_DIGITS = 38  # of a DECIMAL


@dataclass(frozen=True)
class _Spot:
    """Characters ``start`` to ``stop`` of the text are a parameter: a position, from 0, or a name."""

    start: int
    stop: int
    key: int | str


@dataclass(frozen=True)
class Prepared:
    """A batch's text and where its parameters stand; ``fill`` writes values there."""

    text: str
    spots: tuple[_Spot, ...] = field(repr=False)

    def fill(self, parameters: Parameters) -> str:
        """The text with literals in place of its parameters. Cost: linear in the text.

        Raises ProgrammingError where the number of values is wrong, a name is missing, or a value has no literal
        (bytes, lists); DataError for NaN and numbers that DuckDB cannot hold.
        """
        parts = []
        for spot, value in zip(self.spots, self._values(parameters), strict=True):
            before, after = self.text[spot.start - 1 : spot.start], self.text[spot.stop : spot.stop + 1]
            left = "" if not before or before in _LEFT else " "
            right = "" if not after or after in _RIGHT else " "
            parts.append((spot.start, spot.stop, f"{left}{literal(value, _label(spot.key))}{right}"))
        return replaced(self.text, parts)

    def _values(self, parameters: Parameters) -> list[object]:
        keys = [spot.key for spot in self.spots]
        named = [key for key in keys if isinstance(key, str)]
        if parameters is None:
            if keys:
                raise ProgrammingError(
                    f"the statement has {len(keys)} parameter{'s' * (len(keys) > 1)}, the first is {_label(keys[0])}, "
                    "and no values were given; pass them as the second argument of execute()"
                )
            return []
        if isinstance(parameters, Mapping):
            if len(named) < len(keys):
                raise ProgrammingError(
                    "the statement has ? parameters and the values have names; pass a sequence, or write :name"
                )
            missing = next((name for name in named if name not in parameters), None)
            if missing is not None:
                raise ProgrammingError(f"no value is given for the parameter :{missing}; add it to the mapping")
            return [parameters[name] for name in named]
        values = _sequence(parameters)
        if named:
            raise ProgrammingError(
                f"the statement has the named parameter :{named[0]} and the values have no names; pass a mapping, or "
                "write ?"
            )
        wanted = max((key for key in keys if isinstance(key, int)), default=-1) + 1
        if len(values) != wanted:
            raise ProgrammingError(
                f"the statement has {wanted} parameter{'s' * (wanted != 1)} and {len(values)} "
                f"value{'s' * (len(values) != 1)} {'were' if len(values) != 1 else 'was'} given; pass one for each"
            )
        return [values[key] for key in keys if isinstance(key, int)]


def prepare(text: str) -> Prepared:
    """Find the parameters of a batch. Raises SQLError where it cannot be read, ProgrammingError for mixed styles."""
    if not isinstance(text, str):
        raise SQLError(f"a batch is a string of SQL, not {type(text).__name__}", code="syntax")
    if len(text) > MAX_BATCH or not re.search(r"[?:$]", text):
        return Prepared(text, ())  # past the limit the parser refuses it
    tokens = tokens_of(text)
    spots: list[_Spot] = []
    marks = numbers = 0
    for i, token in enumerate(tokens):
        after = tokens[i + 1] if i + 1 < len(tokens) and tokens[i + 1].start == token.end + 1 else None
        key: int | str | None = None
        if token.token_type in (TokenType.PLACEHOLDER, TokenType.QDCOLON, TokenType.DQMARK):
            # "?::" is one token.
            if token.token_type is TokenType.DQMARK or (after is not None and after.token_type is TokenType.NUMBER):
                raise refuse_token(
                    "a parameter is ?, with a space or an operator after it; write $1 for a numbered one", token
                )
            spots.append(_Spot(token.start, token.start + 1, marks))
            marks += 1
            continue
        if after is None:
            continue
        if token.text == "$" and token.token_type is TokenType.PARAMETER:
            if after.token_type is TokenType.NUMBER and re.fullmatch(r"[1-9][0-9]{0,5}", after.text):
                key = int(after.text) - 1
                numbers += 1
            elif _is_name(after):
                key = after.text
        elif token.token_type is TokenType.COLON and _is_name(after):
            before = tokens[i - 1].token_type if i else None
            key = after.text if before not in _BEFORE_COLON else None
        if key is not None:
            spots.append(_Spot(token.start, after.end + 1, key))
    named = sum(isinstance(spot.key, str) for spot in spots)
    if sum(map(bool, (marks, numbers, named))) > 1:
        raise ProgrammingError("the statement mixes ?, numbered and named parameters; write all of them in one way")
    return Prepared(text, tuple(spots))


def literal(value: object, name: str) -> str:
    """``value`` as a DuckDB literal of its own type; ``name`` is what messages call the parameter.

    int and Decimal as exact numbers, float as DOUBLE, str, bool, None, date, datetime (aware ones as TIMESTAMPTZ)
    and time; numpy and pandas scalars as what they hold. Raises ProgrammingError for anything else, DataError for
    NaN, infinities and numbers past DuckDB's.
    """
    held = _plain(value, name)
    if held is None:
        return "NULL"
    if isinstance(held, bool):
        return "TRUE" if held else "FALSE"
    if isinstance(held, int | float | Decimal):
        written = _number(held, name)
        return f"({written})" if written.startswith("-") else written  # x-? must not begin a comment
    if isinstance(held, str):
        if re.search("[\x00\ud800-\udfff]", held):
            raise DataError(f"parameter {name} holds a NUL or a lone surrogate, which is no text; remove it")
        return string(str.__str__(held))
    if isinstance(held, dt.datetime):
        if held.tzinfo is not None:
            return f"TIMESTAMPTZ '{_iso(held.astimezone(dt.UTC).replace(tzinfo=None))}+00'"
        return f"TIMESTAMP '{_iso(held)}'"
    if isinstance(held, dt.date):
        return f"DATE '{dt.date.isoformat(held)}'"
    if isinstance(held, dt.time) and held.tzinfo is None:
        return f"TIME '{dt.time.isoformat(held)}'"
    advice = {
        bytes: "no column of a policy holds bytes",
        list: "write one ? for each value of an IN list",
        dt.timedelta: "write INTERVAL 5 DAY in the statement",
        dt.time: "leave the time zone out",
    }
    said = next((text for kind, text in advice.items() if isinstance(held, kind)), "pass a number, text or date")
    raise ProgrammingError(f"parameter {name} is a {type(value).__name__}, which has no literal; {said}")


def _plain(value: object, name: str) -> object:
    """Scalars of numpy and pandas as Python's own; tuples, sets and arrays as lists, binary as bytes."""
    if isinstance(value, np.datetime64 | np.timedelta64):
        fine = value.astype("datetime64[us]" if isinstance(value, np.datetime64) else "timedelta64[us]")
        if not np.isnat(value) and fine.astype(value.dtype) != value:
            raise DataError(f"parameter {name} has fractions of a microsecond, which are not compared; round it")
        days = isinstance(value, np.datetime64) and value.dtype == np.dtype("datetime64[D]")
        held: Any = value if days else fine
        return held.item()
    if isinstance(value, np.generic):
        return _plain(value.item(), name) if not isinstance(value, np.longdouble) else float(value)
    if isinstance(value, dt.datetime):
        if value != value:  # pandas' NaT is a datetime that equals nothing
            return None
        if getattr(value, "nanosecond", 0):
            raise DataError(f"parameter {name} has fractions of a microsecond, which are not compared; round it")
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    return list(value) if isinstance(value, tuple | set | frozenset | np.ndarray) else value


def _number(value: int | float | Decimal, name: str) -> str:
    if isinstance(value, int):
        # Beyond 38 digits DuckDB would read a DOUBLE.
        if abs(value) < 10**_DIGITS:
            return str(int(value))
    elif isinstance(value, float):
        if math.isfinite(value):
            text = repr(float(value))
            return text if "e" in text else text + "e0"  # without an exponent it would be a DECIMAL
    elif value.is_finite() and abs(value.adjusted()) < _DIGITS:
        text = format(value, "f")
        if sum(map(str.isdigit, text)) <= _DIGITS:
            return text
    shown = repr(value) if isinstance(value, float) else f"a number past {_DIGITS} digits"
    raise DataError(
        f"parameter {name} is {shown}, which DuckDB does not compare; give None for NULL, or a plain number"
    )


def _iso(moment: dt.datetime) -> str:
    return dt.datetime.isoformat(moment, sep=" ")


def _sequence(parameters: object) -> list[object]:
    if isinstance(parameters, np.ndarray) and parameters.ndim == 1:
        return list(parameters)
    if isinstance(parameters, Sequence) and not isinstance(parameters, str | bytes | bytearray | memoryview):
        return list(parameters)
    raise ProgrammingError(
        f"the values are a {type(parameters).__name__}; pass a sequence such as [65] or a mapping such as {{'age': 65}}"
    )


def _is_name(token: Token) -> bool:
    return token.token_type not in (*QUOTED, TokenType.NUMBER) and _NAME.fullmatch(token.text) is not None


def _label(key: int | str) -> str:
    return f":{key}" if isinstance(key, str) else f"number {key + 1}"
