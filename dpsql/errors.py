"""The one error tree of dpsql, laid over the exceptions of PEP 249.

    Error
    |-- InterfaceError            the library was called wrongly
    |-- DatabaseError
        |-- DataError             a value is out of range
        |-- OperationalError      a file, a lock, a time limit
        |   |-- BudgetError       the privacy budget does not allow it
        |   |-- LedgerError       the ledger cannot be trusted or written
        |-- IntegrityError        a name is taken, a contract between files is broken
        |-- InternalError         a fault of dpsql itself
        |-- ProgrammingError
        |   |-- PolicyError       the policy is wrong or does not allow it
        |   |-- SQLError          the batch is refused, with its place in the text
        |-- NotSupportedError     an operation that dpsql does not offer

Every message is one line: what, where, what to do next. No message depends on
private data; errors that come out of a private scan are replaced by fixed text.
"""

from __future__ import annotations

from collections.abc import Iterable
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


class IntegrityError(DatabaseError):
    """A name is already taken, or two files contradict each other."""


class InternalError(DatabaseError):
    """A fault of dpsql itself."""


class ProgrammingError(DatabaseError):
    """The policy or the SQL text asks for something that cannot be."""


class PolicyError(ProgrammingError):
    """The policy is malformed, contradicts the schema or forbids the request."""


class SQLError(ProgrammingError):
    """A statement is refused; ``line`` and ``column`` (from 1) say where.

    The message already carries the place; the two attributes are for editors.
    """

    def __init__(self, message: str, line: int | None = None, column: int | None = None) -> None:
        place = "" if line is None else f" (line {line}, column {column})"
        super().__init__(message + place)
        self.line = line
        self.column = column


class NotSupportedError(DatabaseError):
    """An operation of PEP 249 that dpsql does not offer."""


def nearest(name: str, known: Iterable[str]) -> str:
    """`` Did you mean ...?`` with up to three known names like ``name``, or what is known."""
    names = sorted(set(known), key=str.lower)
    lowered = {n.lower(): n for n in names}
    close = [lowered[n] for n in get_close_matches(name.lower(), list(lowered), n=3, cutoff=0.6)]
    if close:
        return "did you mean " + " or ".join(close) + "?"
    if not names:
        return "none is declared"
    shown = ", ".join(names[:6]) + (", ..." if len(names) > 6 else "")
    return f"declared are {shown}"
