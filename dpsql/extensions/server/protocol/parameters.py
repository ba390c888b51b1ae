"""Parameters of prepared statements: their types, and their values as literals of the text."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from sqlglot import Token, TokenType

from dpsql.errors import ProgrammingError
from dpsql.extensions.server.protocol import pg_types
from dpsql.extensions.server.protocol.pg_types import TEXT, UNKNOWN, parameter, type_of
from dpsql.extensions.server.protocol.sqlstate import SessionError
from dpsql.sql.parse.parameters import Prepared as Spots
from dpsql.sql.parse.parameters import prepare
from dpsql.sql.parse.tokens import QUOTED, tokens_of

_COMPARED = frozenset({
    *(TokenType.EQ, TokenType.NEQ, TokenType.LT, TokenType.GT, TokenType.LTE, TokenType.GTE),
})  # fmt: skip
_MOST = 1_000
_CAST = re.compile(
    r"\s*::\s*(?:pg_catalog\s*\.\s*)?(double\s+precision|character\s+varying|time(?:stamp)?\s+with(?:out)?\s+time\s+zone|\w+)"
    r"(?:\s*\(\s*\d+\s*(?:,\s*\d+\s*)?\))?(?!\s*\[)",
    re.IGNORECASE,
)
_NAMES = {
    **{
        "INT": "BIGINT",
        "INTEGER": "BIGINT",
        "INT4": "BIGINT",
        "INT2": "BIGINT",
        "SMALLINT": "BIGINT",
        "INT8": "BIGINT",
    },
    **{"BIGINT": "BIGINT", "NUMERIC": "DECIMAL", "DECIMAL": "DECIMAL", "FLOAT": "DOUBLE", "DOUBLE PRECISION": "DOUBLE"},
    **{"FLOAT8": "DOUBLE", "FLOAT4": "DOUBLE", "REAL": "DOUBLE", "DOUBLE": "DOUBLE", "BOOL": "BOOLEAN"},
    **{"BOOLEAN": "BOOLEAN", "TEXT": "VARCHAR", "VARCHAR": "VARCHAR", "CHARACTER VARYING": "VARCHAR", "DATE": "DATE"},
    **{"TIMESTAMP": "TIMESTAMP", "TIMESTAMP WITHOUT TIME ZONE": "TIMESTAMP", "TIME": "TIME"},
    **{"TIME WITHOUT TIME ZONE": "TIME"},
}
_CASTS = frozenset(type_of(kind).oid for kind in _NAMES.values())
_SAMPLES = {
    pg_types.BOOL.oid: "t",
    **dict.fromkeys((pg_types.DATE.oid, pg_types.TIMESTAMP.oid), "2000-01-01"),
    pg_types.TIMESTAMPTZ.oid: "2000-01-01 00:00:00+00",
    pg_types.TIME.oid: "00:00:00",
    **dict.fromkeys((20, 21, 23, 26, 700, 701, 1700), "1"),
}


@dataclass(frozen=True)
class Place:
    """Where a parameter stands: which one it is, from 0, and the type that it is cast to there, 0 for none."""

    parameter: int
    cast: int


@dataclass(frozen=True)
class Prepared:
    """A statement and the types of its parameters $1, $2 and so on."""

    text: str
    oids: list[int]
    _spots: Spots | None = field(default=None, repr=False)
    _places: tuple[Place, ...] = field(default=(), repr=False)

    def filled(self, forms: Sequence[int], values: Sequence[bytes | None]) -> str:
        """The text with the values of its parameters. Raises DataError, ProgrammingError, SessionError."""
        if len(values) != len(self.oids):
            raise SessionError(f"{len(values)} values for {len(self.oids)} parameters; give one each", "08P01")
        if len(forms) not in (0, 1, len(values)) or any(form not in (0, 1) for form in forms):
            raise SessionError("the forms of the parameters are 0 or 1, one for all or one each", "08P01")
        each = [*(forms or [TEXT])] * len(values) if len(forms) < 2 else forms
        held = [
            parameter(oid, form, value, number)
            for number, (oid, form, value) in enumerate(zip(self.oids, each, values, strict=True), 1)
        ]
        if self._spots is None:
            return self.text
        return self._spots.fill([_cast(held[place.parameter], place) for place in self._places])

    def example(self) -> str:
        """The text with some value of the right type in each place, to see which columns it has."""
        kinds = list(self.oids)
        for place in self._places:
            if place.cast and kinds[place.parameter] == pg_types.STRING.oid:
                kinds[place.parameter] = place.cast
        return self.filled([], [_SAMPLES.get(oid, "").encode() for oid in kinds])

    def unknown(self) -> str:
        """The text with NULL in each place."""
        return self.filled([], [None] * len(self.oids))


def prepared(text: str, given: Sequence[int], columns: Mapping[str, str]) -> Prepared:
    """A statement with parameters, of the types that the client gives, or else of what they are compared with.

    A cast of a parameter is made here, once, and leaves the text: a literal needs none.
    ``columns``: DuckDB types of the columns that have one type wherever they are, by name in lower case.
    Raises SQLError, ProgrammingError, SessionError.
    """
    spots = prepare(text) if "$" in text else Spots(text, ())
    if not spots.spots:
        return Prepared(text, [] if not given else _too_many(given))
    if any(text[spot.start] != "$" or not isinstance(spot.key, int) for spot in spots.spots):
        raise ProgrammingError("parameters are $1, $2 and so on; write them so")
    keys = [spot.key for spot in spots.spots if isinstance(spot.key, int)]
    if max(keys) >= _MOST:
        raise SessionError(f"the statement has {max(keys) + 1:,} parameters, more than {_MOST:,}", "54000")
    found = _inferred(text, columns)
    oids = []
    for number in range(1 + max(keys)):
        oid = given[number] if number < len(given) else 0
        oids.append(found.get(number + 1, 0) if oid in UNKNOWN else oid)
    casts = [_CAST.match(text, spot.stop) for spot in spots.spots]
    places = tuple(Place(key, _cast_to(cast)) for key, cast in zip(keys, casts, strict=True))
    for place in places:
        oids[place.parameter] = oids[place.parameter] or place.cast
    oids = [oid or pg_types.STRING.oid for oid in oids]
    one_each = tuple(
        replace(spot, key=at, stop=cast.end() if cast is not None and place.cast else spot.stop)
        for at, (spot, cast, place) in enumerate(zip(spots.spots, casts, places, strict=True))
    )
    return Prepared(text, oids, Spots(text, one_each), places)


def _cast_to(match: re.Match[str] | None) -> int:
    """The type of a cast, 0 where a literal of it cannot be written."""
    oid = 0 if match is None else type_of(_NAMES.get(" ".join(match[1].upper().split()), "VARCHAR[]")).oid
    return oid if oid in _CASTS else 0


def _cast(value: object, place: Place) -> object:
    """A value as the type that it is cast to. Raises DataError."""
    if not place.cast or value is None:
        return value
    said = str(value).lower() if isinstance(value, bool) else str(value)
    return parameter(place.cast, TEXT, said.encode(), place.parameter + 1)


def _too_many(given: Sequence[int]) -> list[int]:
    raise SessionError(f"types of {len(given)} parameters of a statement without any; leave them out", "08P01")


def _inferred(text: str, columns: Mapping[str, str]) -> dict[int, int]:
    """The types that parameters have by what stands beside them."""
    tokens = tokens_of(text)
    found: dict[int, int] = {}
    for at, token in enumerate(tokens[:-1]):
        if token.text == "$" and token.token_type is TokenType.PARAMETER:
            kind = _beside(tokens, at, columns)
            if kind is not None and tokens[at + 1].text.isdigit():
                found.setdefault(int(tokens[at + 1].text), type_of(kind).oid)
    return found


def _beside(tokens: Sequence[Token], at: int, columns: Mapping[str, str]) -> str | None:
    """The DuckDB type of what the parameter at a token is compared with, cast to, or limits."""

    def column(place: int) -> str | None:
        if not 0 <= place < len(tokens) or tokens[place].token_type is TokenType.STRING:
            return None
        return columns.get(tokens[place].text.lower())

    def kind(place: int) -> TokenType | None:
        return tokens[place].token_type if 0 <= place < len(tokens) else None

    before, after = kind(at - 1), kind(at + 2)
    if before in (TokenType.LIMIT, TokenType.OFFSET):
        return "BIGINT"
    if before in _COMPARED or before is TokenType.BETWEEN:
        return column(at - 2)
    if before is TokenType.AND and TokenType.BETWEEN in (kind(at - 3), kind(at - 4)):
        # x BETWEEN 1 AND $2, or x BETWEEN $1 AND $2
        return column(at - 4 if kind(at - 3) is TokenType.BETWEEN else at - 5)
    if after in _COMPARED:
        place = at + 3
        while kind(place + 1) is TokenType.DOT and kind(place) not in QUOTED:
            place += 2
        return column(place)
    opening = at - 1
    while opening > 0 and kind(opening) not in (TokenType.L_PAREN, TokenType.R_PAREN):
        opening -= 1
    if kind(opening) is TokenType.L_PAREN and kind(opening - 1) is TokenType.IN:
        return column(opening - 2 if kind(opening - 2) is not TokenType.NOT else opening - 3)
    return None
