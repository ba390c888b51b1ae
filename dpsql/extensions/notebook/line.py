"""What a cell says: the line of its magic, and the variables of Python in its SQL.

The line holds options, an assignment, a command or SQL; it is read from the left, so that SQL stays as it is.

``{{x}}`` is the value of a variable as one typed literal, never as SQL. A marker is found among the tokens of the
batch, so that nothing inside strings, quoted names or comments is one, and its value goes through
``dpsql.sql.parse.parameters.literal``, as the parameters of ``execute`` do: text becomes a string with its quotes
doubled, and no value can leave its literal. A list becomes literals with commas between them, where parentheses stand
around the marker: ``IN ({{states}})``.
"""

from __future__ import annotations

import os
import re
import shlex
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

import numpy as np
from sqlglot import Token, TokenType

from dpsql.common.options import CELL, CONNECT, TABLE, Option, on
from dpsql.errors import DataError, InterfaceError, ProgrammingError, SQLError, nearest
from dpsql.registry import added_options
from dpsql.sql.parse.parameters import literal
from dpsql.sql.parse.tokens import MAX_BATCH, QUOTED, refuse_token, replaced, tokens_of

COMMANDS = ("connect", "connections", "close", "tables", "budget", "releases", "help")
OPTIONS, CONNECT_OPTIONS = (on(surface, (*TABLE, *added_options())) for surface in (CELL, CONNECT))

_ASSIGN = re.compile(r"\s*([^\W\d]\w*)\s*<<(?!<)")
_OPTION = re.compile(r"\s*(--?[A-Za-z][\w-]*)(=|\s+|$)")
_VALUE = re.compile(r"""\s*("(?:[^"])*"|'(?:[^'])*'|\{\{[^{}]*\}\}|[^\s"'][^\s]*)(?:\s+|$)""")
_COMMAND = re.compile(r"\s*([A-Za-z]+)\b\s*(.*)\Z", re.DOTALL)
_VARIABLE = re.compile(r"\{\{\s*([^\W\d]\w*)\s*\}\}")


@dataclass(frozen=True)
class Line:
    """What the line says. Amounts are text as written; ``assign`` is the name before ``<<``, ``rest`` what is left."""

    connection: str | None = None
    output: str | None = None
    epsilon: str | None = None
    delta: str | None = None
    rho: str | None = None
    alpha: str | None = None
    population: str | None = None
    save: str | None = None
    dry_run: bool = False
    help: bool = False
    assign: str | None = None
    rest: str = field(default="")


def read_line(text: str, variables: Mapping[str, object]) -> Line:
    """Read a line. An option's value may be ``{{x}}``: the text of the variable x.

    Raises InterfaceError for an option that is unknown, given twice, or lacks its value.
    """
    given: dict[str, Any] = {}
    rest = text
    while True:
        found = _ASSIGN.match(rest)
        if found is not None:
            if "assign" in given:
                raise InterfaceError("two names stand before <<; one cell has one list of results, so keep one name")
            given["assign"], rest = found[1], rest[found.end() :]
            continue
        found = _OPTION.match(rest)
        if found is None:
            return Line(**given, rest=rest.strip())
        name, sign = found[1], found[2]
        rest = rest[found.end() :]
        option = OPTIONS.get(name)
        if option is None:
            raise InterfaceError(f"%dpsql has no option {name}: {nearest(name, OPTIONS)}")
        if option.name in given:
            raise InterfaceError(f"{name} is given twice; keep one of the two")
        if not option.value:
            if sign == "=":
                raise InterfaceError(f"{name} does not accept a value; write {name} alone")
            given[option.name] = True
            continue
        value = _VALUE.match(rest)
        if value is None:
            raise InterfaceError(f"{name} needs a value after it, such as {option.example(CELL)}")
        rest = rest[value.end() :]
        given[option.name] = filled(value[1], variables)


def filled(value: str, variables: Mapping[str, object]) -> str:
    """An option's value without its quotes; ``{{x}}`` is the text of the variable x."""
    if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'":
        return value[1:-1]
    found = _VARIABLE.fullmatch(value)
    if found is None:
        return value
    return str(variable(found[1], variables))


def variable(name: str, variables: Mapping[str, object]) -> object:
    """The value of a variable of the notebook. InterfaceError where there is none of that name."""
    if name not in variables:
        near = get_close_matches(name, [n for n in variables if not n.startswith("_")], n=2)
        advice = f"did you mean {' or '.join(near)}?" if near else "assign it in a cell before this one"
        raise InterfaceError(f"the notebook has no variable {name}: {advice}")
    return variables[name]


def command_of(rest: str) -> tuple[str, str] | None:
    """(command, its arguments) where the line is a command and no SQL, else None."""
    found = _COMMAND.match(rest)
    if found is None or found[1].lower() not in COMMANDS:
        return None
    return found[1].lower(), found[2].strip()


@dataclass(frozen=True)
class Connect:
    """``connect POLICY [DATABASE]`` and its options; values are text, None where nothing is said."""

    policy: str
    database: str | None = None
    name: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)


def read_connect(text: str, variables: Mapping[str, object]) -> Connect:
    """Read the arguments of ``connect``. Raises InterfaceError where they make no sense."""
    try:
        words = shlex.split(text, posix=True)
    except ValueError:
        raise InterfaceError("connect: a quote is not closed; close it") from None
    places: list[str] = []
    options: dict[str, str] = {}
    pending = ""
    for word in words:
        if pending:
            options[CONNECT_OPTIONS[pending].name] = filled(word, variables)
            pending = ""
        elif word.startswith("--"):
            name, sign, value = word.partition("=")
            if name not in CONNECT_OPTIONS:
                raise InterfaceError(f"connect has no option {name}: {nearest(name, CONNECT_OPTIONS)}")
            if sign:
                options[CONNECT_OPTIONS[name].name] = filled(value, variables)
            else:
                pending = name
        else:
            places.append(filled(word, variables))
    if pending:
        raise InterfaceError(f"connect: {pending} needs a value after it")
    policy = options.pop("policy", None if places else os.environ.get("DPSQL_POLICY"))
    places = places if policy is None else [policy, *places]
    if "database" in options:
        places = [*places[:1], options.pop("database"), *places[1:]]
    if not places or len(places) > 2:
        raise InterfaceError(
            "connect takes a policy file and, where the policy names no sources, a database: "
            "%dpsql connect visits.toml visits.duckdb"
        )
    chosen = options.pop("as", None)
    return Connect(places[0], places[1] if len(places) > 1 else os.environ.get("DPSQL_DATABASE"), chosen, options)


def _listed(options: Mapping[str, Option]) -> str:
    """A line for each option: its flags, its value, what it means."""
    lines = []
    for option in dict.fromkeys(options.values()):
        first, *more = textwrap.wrap(option.meaning, 80)
        lines.append(f"  {' '.join((', '.join(option.flags), option.value)):<26}{first}")
        lines += [f"{'':<28}{line}" for line in more]
    return "\n".join(lines)


HELP = f"""\
%%dpsql [options]                  a cell of SQL: one batch, one budget
%dpsql [options] SELECT ...        the same on one line
%%dpsql name <<                    keep the results as the variable name; only the footer is shown
%%dpsql -o name                    keep them and show them

options
{_listed(OPTIONS)}
  {{{{x}}}}                     in the SQL: the value of the Python variable x, as a literal; IN ({{{{xs}}}}) for a list

commands
  %dpsql connect [POLICY] [DATABASE] [options of connect]
  %dpsql NAME             use this connection: the name of a variable, or of connect
  %dpsql connections      all connections
  %dpsql close [NAME]     close one
  %dpsql tables           what can be asked: tables, views, released views, with their columns
  %dpsql budget           what is spent and left
  %dpsql releases         every charge, oldest first
  %config DPSqlMagic      settings: epsilon, delta, rho, alpha, row_limit, style

options of connect
{_listed(CONNECT_OPTIONS)}

Free: queries over released views, --dry-run, what an earlier release answers, and all commands."""


_NAME = re.compile(r"\s*([^\W\d]\w*)\s*")
_MARKER = re.compile(r"\{\{.*?\}\}", re.DOTALL)
MOST = 10_000
"""Items of a list that a batch may hold."""


def fill(text: str, variables: Mapping[str, object]) -> str:
    """``text`` with a literal in place of each ``{{x}}``. Cost: linear in the text.

    Raises SQLError for a marker that holds no name or stands in quotes, InterfaceError for an unknown variable,
    ProgrammingError and DataError for values without a literal (bytes, frames, NaN).
    """
    if not any(mark in text for mark in ("{{", "{%")) or len(text) > MAX_BATCH:
        return text
    try:
        tokens = tokens_of(text)
    except SQLError:
        return text  # the parser says what is wrong with it
    parts, at = [], 0
    while at < len(tokens):
        token = tokens[at]
        if token.token_type in QUOTED:
            _refuse_quoted(text, token)
        if token.token_type in (TokenType.BLOCK_START, TokenType.BLOCK_END):
            raise _refuse("{% ... %} is not answered: only {{x}} is filled in; write loops in Python", token)
        if not _double(tokens, at, TokenType.L_BRACE):
            at += 1
            continue
        stop = at + 2
        while stop < len(tokens) and not _double(tokens, stop, TokenType.R_BRACE):
            stop += 1
        inside = text[tokens[at + 1].end + 1 : tokens[stop].start] if stop < len(tokens) else ""
        found = _NAME.fullmatch(inside)
        if found is None:
            raise _refuse("{{...}} holds the name of one variable; compute the value in a cell before this one", token)
        alone = at > 0 and tokens[at - 1].token_type is TokenType.L_PAREN
        alone = alone and stop + 2 < len(tokens) and tokens[stop + 2].token_type is TokenType.R_PAREN
        new = f" {_written(found[1], variable(found[1], variables), alone)} "
        parts.append((token.start, tokens[stop + 1].end + 1, new))
        at = stop + 2
    return replaced(text, parts)


def _double(tokens: Sequence[Token], at: int, kind: TokenType) -> bool:
    """Two braces that touch; DuckDB's own structs and maps have none."""
    if at + 1 >= len(tokens):
        return False
    first, second = tokens[at], tokens[at + 1]
    return first.token_type is kind and second.token_type is kind and second.start == first.end + 1


def _written(name: str, value: object, alone: bool) -> str:
    shown = "{{" + name + "}}"
    items = _items(value)
    if items is None:
        return literal(value, shown)
    if not alone:
        raise ProgrammingError(f"{shown} is a list, which stands in parentheses of its own: write IN ({shown})")
    if not items:
        raise DataError(f"{shown} is an empty list, and IN () is no condition; leave the condition out")
    if len(items) > MOST:
        raise DataError(
            f"{shown} has {len(items):,} items, and a batch takes {MOST:,}; write a range or a join instead"
        )
    return ", ".join(literal(item, shown) for item in items)


def _items(value: object) -> list[object] | None:
    """The items of a list-like value, sets in order; None for a scalar and for what has no literal."""
    if isinstance(value, list | tuple | range):
        return list(value)
    if isinstance(value, set | frozenset):
        return sorted(value, key=lambda item: (str(type(item)), str(item)))
    if isinstance(value, np.ndarray):
        return list(value) if value.ndim == 1 else None
    if type(value).__name__ in ("Series", "Index") and hasattr(value, "tolist"):
        return list(value.tolist())
    return None


def _refuse_quoted(text: str, token: Token) -> None:
    written = text[token.start : token.end + 1]
    if not _MARKER.search(written):
        return
    if token.token_type is TokenType.IDENTIFIER:
        raise _refuse("{{...}} is a value and cannot name a table or column; write the name itself", token)
    raise _refuse("{{...}} stands in quotes; leave them out: the value becomes a literal with quotes of its own", token)


def _refuse(message: str, token: Token) -> SQLError:
    return refuse_token(message, token, "syntax")
