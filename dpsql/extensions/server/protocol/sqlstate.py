"""Errors as PostgreSQL's protocol tells them: SQLSTATE, message, what to do, and the place in the text."""

from __future__ import annotations

import logging
import uuid

from dpsql.errors import (
    OUT_OF_MEMORY,
    BudgetError,
    DataError,
    Error,
    IntegrityError,
    InterfaceError,
    InternalError,
    LedgerError,
    NotSupportedError,
    OperationalError,
    PolicyError,
    ProgrammingError,
    SQLError,
    printable,
    speaks_of_the_request,
)

NOT_TOLD = (
    "the server could not answer this; the custodian's log says why under the reference {}, and the budget shows what "
    "was charged"
)
"""All that an analyst is told where it is not the request that is at fault."""
FAULTS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    MemoryError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""What a fault of dpsql may raise while a session answers."""
log = logging.getLogger("dpsql")


# The first class that fits: every class stands above those that it is made of.
_STATES: tuple[tuple[type[Error], str], ...] = (
    (PolicyError, "42501"),  # insufficient_privilege
    (BudgetError, "53400"),  # configuration_limit_exceeded
    (LedgerError, "58030"),  # io_error
    (OperationalError, "57000"),  # operator_intervention
    (DataError, "22000"),
    (IntegrityError, "42710"),  # duplicate_object
    (InternalError, "XX000"),
    (NotSupportedError, "0A000"),
    (SQLError, "42601"),  # syntax_error
    (ProgrammingError, "42000"),
    (InterfaceError, "42000"),
)
_CODES = {
    "unknown-table": "42P01",
    "unknown-column": "42703",
    "syntax": "42601",
    "too-large": "54000",
    "ambiguous": "42702",
    "types": "42804",
}


class SessionError(ProgrammingError):
    """What the server itself refuses, with the SQLSTATE that it has."""

    def __init__(self, message: str, state: str) -> None:
        super().__init__(message)
        self.state = state


def public_error(error: BaseException) -> Error:
    """What an analyst sees of an error: the error itself where it speaks of the request, else one fixed sentence.

    Files, ledgers, sources, the policy and faults of dpsql are the custodian's: the log has the message of a
    ``dpsql.Error``, and of any other the kind alone, beside the reference that the sentence has.
    """
    if isinstance(error, Error) and speaks_of_the_request(error):
        return error
    if isinstance(error, MemoryError):
        log.error("memory ran out while a statement was answered; give the server more")
        return SessionError(OUT_OF_MEMORY, "53200")
    reference = uuid.uuid4().hex[:8]
    known = isinstance(error, Error)
    said = printable(str(error)) if known else "its message may hold anything and is not shown"
    log.error("reference %s: a request failed with %s: %s", reference, type(error).__name__, said)
    state = state_of(error) if isinstance(error, Error) else "XX000"
    return SessionError(NOT_TOLD.format(reference), state)


def state_of(error: Error) -> str:
    """The SQLSTATE of an error."""
    if isinstance(error, SessionError):
        return error.state
    if isinstance(error, SQLError):
        return _CODES.get(error.code, "0A000" if error.code == "not-answered" else "42601")
    return next((state for kind, state in _STATES if isinstance(error, kind)), "XX000")


def fields_of(error: Error, text: str = "", *, severity: str = "ERROR") -> dict[str, str]:
    """The fields of an ErrorResponse; ``text`` is what the client sent, in which the place is counted."""
    message = printable(str(error))
    found = {"S": severity, "V": severity, "C": state_of(error)}
    if isinstance(error, SQLError) and error.line is not None and error.column is not None:
        # The place has a field of its own, by which clients underline it.
        message = message.replace(f" (line {error.line}, column {error.column})", "")
        at = position(text, error.line, error.column)
        if at is not None:
            return found | {"M": message, "P": str(at)}
    return found | {"M": message}


def position(text: str, line: int, column: int) -> int | None:
    """The character, from 1, at a line and column; None where the text has no such place."""
    lines = text.split("\n")
    if not 1 <= line <= len(lines) or not 1 <= column <= len(lines[line - 1]) + 1:
        return None
    return sum(len(held) + 1 for held in lines[: line - 1]) + column


def fields(state: str, message: str, *, severity: str = "ERROR", hint: str = "") -> dict[str, str]:
    """The fields of an error or a notice of the server's own."""
    return {"S": severity, "V": severity, "C": state, "M": message} | ({"H": hint} if hint else {})
