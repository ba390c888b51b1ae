"""GoogleSQL's ``SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS(...)``: read from the tokens and blanked out before parsing.

The clause stands right after SELECT, of a statement or inside it. Its tokens become spaces, so that every place
in a message stays that of the user's text; comments stay, so that no hint in them is lost. What the options mean here:

- ``epsilon``, ``delta``: the budget of the *whole batch*, not of one statement; all clauses of a batch must agree.
  Without ``delta`` it is what ``epsilon`` alone is in a call. No part of it is spent on choosing groups.
- ``privacy_unit_column``: must be the unit that the policy declares for the table; the policy decides alone.
- ``max_groups_contributed``: a unit has at most ``max_rows_per_unit`` rows, hence groups; a lower limit is refused,
  since it would not be kept. Leaving it out sets no further limit (in GoogleSQL it sets 1).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal

from sqlglot import Token, TokenType

from dpsql.common.options import CLAUSE, on
from dpsql.errors import SQLError, nearest
from dpsql.policy import TablePolicy
from dpsql.policy.values import fold
from dpsql.sql.parse.tokens import MAX_BATCH, QUOTED, items_of, nesting, place_of, refuse_token, replaced, tokens_of

KNOWN = tuple(on(CLAUSE))

_MAY_HOLD = re.compile(r"DIFFERENTIAL_PRIVACY|ANONYMIZATION|AGGREGATION_THRESHOLD|\bANON_|CONTRIBUTION_BOUNDS", re.I)
_NUMBER = re.compile(r"[+-]?\s*(?:\d[\d_]*(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?")
_WHOLE = re.compile(r"\d{1,15}")
_NAME = re.compile(r"[^\W\d]\w*")
_ELSEWHERE = {
    "max_rows_contributed": "how many rows of a unit count is the policy's max_rows_per_unit",
    "min_privacy_units_per_group": "groups are declared in the policy and all of them are shown",
    "group_selection_strategy": "groups are declared in the policy and all of them are shown",
    "group_selection_epsilon": "groups are declared in the policy, so no budget is spent on choosing them",
    "k_threshold": "groups are declared in the policy and all of them are shown",
    "kappa": "it is the older name of max_groups_contributed",
}
_OTHER_CLAUSES = {
    "ANONYMIZATION": "write WITH DIFFERENTIAL_PRIVACY, its newer name",
    "AGGREGATION_THRESHOLD": "a threshold on exact answers does not protect anyone; write WITH DIFFERENTIAL_PRIVACY",
}


@dataclass(frozen=True)
class Options:
    """What one clause says, numbers as written; ``line`` and ``column`` are those of its WITH.

    ``privacy_unit_column`` is the column's own name, without the table that may stand before it.
    """

    epsilon: Decimal
    delta: Decimal | None = None
    privacy_unit_column: str | None = None
    max_groups_contributed: int | None = None
    line: int = field(default=1, compare=False)
    column: int = field(default=1, compare=False)


def read_options(text: str) -> tuple[str, tuple[Options | None, ...]]:
    """The batch without its clauses, of the same length, and what each statement's clause says, in their order.

    The tuple is empty where no statement has a clause. Text that cannot be read as tokens, or is past the limits of
    ``statements.parse``, comes back as it is for ``parse`` to refuse. Cost: linear in the text, one more pass over
    its tokens where it may hold a clause. Raises SQLError, with the place, for unknown or repeated options, values
    that are no constants or out of range, clauses that disagree, and functions that go with other clauses.
    """
    if not isinstance(text, str) or len(text) > MAX_BATCH or not _MAY_HOLD.search(text):
        return text, ()
    try:
        tokens = tokens_of(text)
    except SQLError:
        return text, ()
    found: list[Options | None] = []
    blanks: list[Token] = []
    at = 0
    while at < len(tokens):
        end = next((i for i in range(at, len(tokens)) if tokens[i].token_type is TokenType.SEMICOLON), len(tokens))
        if end > at:
            found.append(_statement(text, tokens[at:end], blanks))
        at = end + 1
    if not any(found):
        return text, ()
    _agree([options for options in found if options is not None], ("epsilon", "delta"), "statements of one batch")
    blank = [(token.start, token.end + 1, " " * (token.end + 1 - token.start)) for token in blanks]
    return replaced(text, blank), tuple(found)


def budget_of(clauses: Sequence[Options | None]) -> Options | None:
    """The clause that speaks for the batch; None where there is none. ``read_options`` made sure that all agree."""
    return next((options for options in clauses if options is not None), None)


def check_table(options: Options, table: TablePolicy) -> None:
    """Hold a clause against the policy of a private table that its statement reads; SQLError where they differ."""
    at = (options.line, options.column)
    column, limit = options.privacy_unit_column, options.max_groups_contributed
    if column is not None and table.unit == "row":
        raise SQLError(
            f'privacy_unit_column is {column}, but the policy protects single rows of {table.name} (unit = "row"); '
            "leave it out, or let the custodian declare a unit",
            *at,
            code="options",
        )
    # A unit with a dot is a column of another table, which a path in the clause ends in too.
    if column is not None and fold(column) != fold(table.unit.rpartition(".")[2]):
        raise SQLError(
            f"privacy_unit_column is {column}, but the policy's unit of {table.name} is {table.unit}; "
            f"write privacy_unit_column = {table.unit}, or leave it out",
            *at,
            code="options",
        )
    rows = 1 if table.unit == "row" else (table.max_rows_per_unit or 1)
    if limit is not None and limit < rows:
        raise SQLError(
            f"max_groups_contributed is {limit}, but one unit of {table.name} has up to {rows} rows that count, each "
            f"perhaps in a group of its own; write at least {rows}, or leave it out",
            *at,
            code="options",
        )


def _statement(text: str, tokens: Sequence[Token], blanks: list[Token]) -> Options | None:
    """The one clause of a statement, its tokens added to ``blanks``."""
    clauses = []
    for i, token in enumerate(tokens):
        _refuse_functions(tokens, i)
        if token.token_type is not TokenType.SELECT or not _is(tokens, i + 1, "WITH") or i + 2 >= len(tokens):
            continue
        name = tokens[i + 2].text.upper()
        if name in _OTHER_CLAUSES and tokens[i + 2].token_type is TokenType.VAR:
            raise _refuse(f"SELECT WITH {name} is not answered: {_OTHER_CLAUSES[name]}", tokens[i + 2])
        if name != "DIFFERENTIAL_PRIVACY" or tokens[i + 2].token_type is not TokenType.VAR:
            continue
        if not _is(tokens, i + 3, "OPTIONS") or not _is(tokens, i + 4, "("):
            raise _refuse("WITH DIFFERENTIAL_PRIVACY needs OPTIONS(epsilon = 1.0, ...) right after it", tokens[i + 2])
        close = _closing(tokens, i + 4)
        clauses.append(_options(text, tokens[i + 1], tokens[i + 5 : close]))
        blanks.extend(tokens[i + 1 : close + 1])
    if len(clauses) > 1:
        _agree(clauses, KNOWN, "clauses of one statement")
    return clauses[0] if clauses else None


def _is(tokens: Sequence[Token], i: int, word: str) -> bool:
    return i < len(tokens) and tokens[i].text.upper() == word and tokens[i].token_type not in QUOTED


def _closing(tokens: Sequence[Token], start: int) -> int:
    depth = 0
    for i in range(start, len(tokens)):
        depth += nesting(tokens[i])
        if depth == 0:
            return i
    raise _refuse("OPTIONS( is not closed; write the closing parenthesis", tokens[start])


def _options(text: str, head: Token, tokens: Sequence[Token]) -> Options:
    values: dict[str, tuple[str, Sequence[Token]]] = {}
    for item in items_of(tokens) if tokens else []:
        if not item:
            raise _refuse("OPTIONS has an empty item; write name = value, separated by commas", head)
        name = "" if item[0].token_type is TokenType.STRING else item[0].text.lower()
        if name in _ELSEWHERE:
            raise _refuse(f"the option {name} is not answered: {_ELSEWHERE[name]}", item[0])
        if name not in KNOWN:
            raise _refuse(f"the option {_short(item[0].text)} is not known; {nearest(name, KNOWN)}", item[0])
        if name in values:
            raise _refuse(f"the option {name} stands twice; keep one of them", item[0])
        if len(item) < 3 or item[1].token_type is not TokenType.EQ:
            raise _refuse(f"the option {name} has no value; write {name} = ...", item[0])
        values[name] = text[item[2].start : item[-1].end + 1].strip(), item[2:]
    if "epsilon" not in values:
        raise _refuse("OPTIONS lacks epsilon; write OPTIONS(epsilon = 1.0, ...)", head)
    epsilon = _number("epsilon", *values["epsilon"])
    delta = _number("delta", *values["delta"]) if "delta" in values else None
    if delta is not None and delta >= 1:
        raise _refuse("delta must be below 1; 1e-9 is usual", values["delta"][1][0])
    groups = values.get("max_groups_contributed")
    unit = values.get("privacy_unit_column")
    return Options(
        epsilon,
        delta,
        None if unit is None else _column(*unit),
        None if groups is None or groups[0].upper() == "NULL" else _limit(*groups),
        *place_of(head),
    )


def _number(name: str, written: str, tokens: Sequence[Token]) -> Decimal:
    if not _NUMBER.fullmatch(written):
        raise _refuse(f"{name} is {_short(written)}, not a number written out; write {name} = 0.5", tokens[0])
    value = Decimal(re.sub(r"[\s_]", "", written))
    if value <= 0:
        reason = "leave delta out for none" if name == "delta" else "write epsilon = 0.5"
        raise _refuse(f"{name} is {_short(written)}, which is not positive; {reason}", tokens[0])
    return value


def _limit(written: str, tokens: Sequence[Token]) -> int:
    if not _WHOLE.fullmatch(written) or int(written) == 0:
        raise _refuse(
            f"max_groups_contributed is {_short(written)}; write a whole number such as 5, or leave it out", tokens[0]
        )
    return int(written)


def _column(written: str, tokens: Sequence[Token]) -> str:
    """The last name of a path such as visits.patient_id."""
    for i, token in enumerate(tokens):
        dot = token.token_type is TokenType.DOT
        plain = token.token_type is TokenType.IDENTIFIER or (
            token.token_type is not TokenType.STRING and _NAME.fullmatch(token.text) is not None
        )
        if dot != bool(i % 2) or not (dot or plain):
            raise _refuse(
                f"privacy_unit_column is {_short(written)}, not a column; write its name without quotes, or with "
                "double ones",
                token,
            )
    if len(tokens) % 2 == 0:
        raise _refuse(f"privacy_unit_column is {_short(written)}, not a column; write its name", tokens[0])
    return str(tokens[-1].text)


def _agree(clauses: Sequence[Options], names: Sequence[str], whose: str) -> None:
    first = clauses[0]
    for other in clauses[1:]:
        for name in names:
            if getattr(other, name) != getattr(first, name):
                raise SQLError(
                    f"the {whose} disagree about {name}: {_text_of(first, name)} in line {first.line}, "
                    f"{_text_of(other, name)} here; a batch has one budget, write the same OPTIONS",
                    other.line,
                    other.column,
                    code="options",
                )


def _text_of(options: Options, name: str) -> str:
    value = getattr(options, name)
    return "none" if value is None else _short(str(value))


def _refuse_functions(tokens: Sequence[Token], i: int) -> None:
    token = tokens[i]
    if token.token_type is not TokenType.VAR:
        return
    name = token.text.upper()
    if name.startswith("ANON_") and _is(tokens, i + 1, "("):
        plain = name.removeprefix("ANON_")
        raise _refuse(
            f"{_short(name)} is not answered: every answer is private here and bounds stand in the policy; "
            f"write {_short(plain)}",
            token,
        )
    if name.startswith("CONTRIBUTION_BOUNDS") and _is(tokens, i + 1, "=>"):
        raise _refuse(
            f"{_short(token.text)} is not answered: the policy declares lower and upper of the column; leave it out",
            token,
        )


def _refuse(message: str, token: Token) -> SQLError:
    return refuse_token(message, token, "options")


def _short(text: str) -> str:
    shown = "".join(c if c.isprintable() else " " for c in text)
    return shown if len(shown) <= 40 else shown[:37] + "..."
