"""The one error tree of dpsql, laid over the exceptions of PEP 249.

    Error
    |-- InterfaceError            the library was called wrongly
    |-- DatabaseError
        |-- DataError             a value is out of range
        |-- OperationalError      a file, a lock, a time limit
        |   |-- BudgetError       the privacy budget does not allow it
        |   |-- LedgerError       the ledger cannot be trusted or written
        |   |-- RequestError      a query takes too much, or a batch waits; no file or lock is at fault
        |-- IntegrityError        a name is taken, a contract between files is broken
        |-- InternalError         a fault of dpsql itself
        |-- ProgrammingError
        |   |-- NoResultError     there is no result of that name; a KeyError, too
        |   |-- PolicyError       the policy is wrong or does not allow it
        |   |-- SQLError          the batch is refused, with its place in the text
        |-- NotSupportedError     an operation that dpsql does not offer

Every message is one line: what, where, what to do next. No message depends on
private data; errors that come out of a private scan are replaced by fixed text.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from difflib import get_close_matches


class Warning(Exception):  # noqa: A001, N818 - the name is PEP 249's
    """PEP 249's warning; dpsql does not raise it."""


class Error(Exception):
    """Base of everything that dpsql raises on purpose."""


class InterfaceError(Error):
    """The library was called in a way that it does not have."""


class DatabaseError(Error):
    """Base of all errors that concern data, budget or SQL."""


class DataError(DatabaseError):
    """A value is missing, not finite or out of range."""


class OperationalError(DatabaseError):
    """A file, lock, engine or limit stands in the way."""


class BudgetError(OperationalError):
    """The request does not fit what remains of the privacy budget."""


class LedgerError(OperationalError):
    """The ledger is missing, locked, foreign or damaged."""


class RequestError(OperationalError):
    """The request itself takes too much time, memory or rows, or waits for approval; the message names no file."""


OUT_OF_MEMORY = (
    "memory ran out; a batch that was charged by then is recorded, and asking the same again is free: give the process "
    "more memory, or ask for fewer rows at a time"
)
"""What is said wherever memory runs out, but while a batch is measured, which says what became of its charge."""


class IntegrityError(DatabaseError):
    """A name is already taken, or two files contradict each other."""


class InternalError(DatabaseError):
    """dpsql itself is at fault: please report it."""


class ProgrammingError(DatabaseError):
    """The policy or the SQL text asks for something that cannot be."""


class NoResultError(ProgrammingError, KeyError):
    """There is no result of that name; a KeyError too, as of any mapping that is asked for a key it lacks."""

    __str__ = Exception.__str__  # KeyError's shows its argument's repr


class PolicyError(ProgrammingError):
    """The policy is malformed, contradicts the schema or forbids the request.

    ``errors`` has a message for each thing that is wrong; the text of the error is all of them, numbered, on one line.
    """

    def __init__(self, *errors: str) -> None:
        self.errors = errors
        numbered = "; ".join(f"({i}) {error}" for i, error in enumerate(errors, 1))
        super().__init__(errors[0] if len(errors) == 1 else f"the policy has {len(errors)} errors: {numbered}")


class SQLError(ProgrammingError):
    """A statement is refused; ``line`` and ``column`` (from 1) say where, ``end`` where the refused part ends.

    ``code`` is a short word for the reason, which stays the same where messages change: "self-join" (docs/sql.md lists
    all of them). The message already carries the place; ``end`` is (line, column) of its last character. ``pointed``
    shows it in the user's text, as do the notes of a refused plan.
    """

    def __init__(
        self,
        message: str,
        line: int | None = None,
        column: int | None = None,
        end: tuple[int, int] | None = None,
        *,
        code: str = "not-answered",
    ) -> None:
        place = "" if line is None else f" (line {line}, column {column})"
        super().__init__(message + place)
        self.line = line
        self.column = column
        self.end = end
        self.code = code

    def pointed(self, sql: str) -> str:
        """The line of ``sql`` that holds the refused part, and carets under it; empty where no place is known."""
        lines = sql.split("\n")
        if self.line is None or self.column is None or not 1 <= self.line <= len(lines):
            return ""
        text = "".join(c if c.isprintable() else " " for c in lines[self.line - 1])
        if not 1 <= self.column <= len(text):
            return ""
        start, stop = self.column - 1, self.column
        if self.end is not None:
            stop = self.end[1] if self.end[0] == self.line else len(text.rstrip())
        stop = _closed(text, start, max(start + 1, min(stop, len(text))))
        first = max(0, start - _BEFORE) if len(text) > _SHOWN else 0
        last = min(len(text), max(first + _SHOWN, start + 1))
        head, tail = "..." if first else "", "..." if last < len(text) else ""
        blanks = sum(_cells(c) for c in head + text[first:start])
        carets = max(1, sum(_cells(c) for c in text[start : min(stop, last)]))
        return f"    {head}{text[first:last]}{tail}\n    {' ' * blanks}{'^' * carets}"


# Characters of a line that are shown, and how many of them stand before the refused part.
_SHOWN, _BEFORE = 100, 40


def _closed(text: str, start: int, stop: int) -> int:
    """``stop``, moved to the parenthesis that closes what the part opened: tokens are known by their first."""
    depth, quote = 0, ""
    for at in range(start, len(text)):
        character = text[at]
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        elif at >= stop and depth <= 0 and not (character == "(" and at == stop):
            return stop
        else:
            depth += (character == "(") - (character == ")")
            if depth < 0:
                return stop
            if at >= stop and depth == 0:
                return at + 1
    return stop


def _cells(character: str) -> int:
    """Columns of a terminal that a character takes."""
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


class NotSupportedError(DatabaseError):
    """An operation of PEP 249 that dpsql does not offer."""


def speaks_of_the_request(error: BaseException) -> bool:
    """Whether an error's message is about what was asked, and not about files, ledgers, the policy or the program."""
    kinds = (ProgrammingError, NotSupportedError, DataError, InterfaceError, IntegrityError, BudgetError)
    return isinstance(error, RequestError) or (
        isinstance(error, kinds) and not isinstance(error, LedgerError | PolicyError)
    )


def quoted(value: object) -> str:
    """What was given, in at most 40 characters of a message; Python writes out no integer of thousands of digits."""
    if isinstance(value, int) and abs(value) >= 10**40:
        return f"an integer of {value.bit_length()} bits"
    if isinstance(value, list | tuple | set | frozenset | dict):
        return f"a {type(value).__name__}"  # what is in it may be anything
    written = repr(value)
    return written if len(written) <= 40 else written[:37] + "..."


def printable(text: str) -> str:
    """The text with escapes for what could steer the terminal, or the reading, of whoever sees another's words."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def one_line(text: str) -> str:
    """The words of a text on one line, printable."""
    return printable(" ".join(text.split()))


def listed(names: Sequence[str], most: int = 8) -> str:
    """The first ``most`` names, and how many more there are."""
    shown = ", ".join(names[:most])
    return f"{shown} and {len(names) - most:,} more" if len(names) > most else shown


def nearest(name: str, choices: Iterable[str], all_of_them: str = "choose from") -> str:
    """`` Did you mean ...?`` with up to three ``choices`` like ``name``; or the first six of them, as a choice."""
    names = sorted(set(choices), key=str.lower)
    lowered = {n.lower(): n for n in names}
    close = [lowered[n] for n in get_close_matches(name.lower(), list(lowered), n=3, cutoff=0.6)]
    if close:
        return "did you mean " + " or ".join(close) + "?"
    if not names:
        return "there is none"
    return f"{all_of_them} {', '.join(names[:6])}{', ...' if len(names) > 6 else ''}"
