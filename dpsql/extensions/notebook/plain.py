"""A user's mistake as one clean message: what, where, what next. Never a traceback."""

from __future__ import annotations

from typing import TypeVar

from dpsql.errors import Error, one_line

INTERRUPTED = "interrupted; what was charged stays charged: %dpsql releases shows it"
_RED, _END = "\x1b[31m", "\x1b[0m"

Failure = TypeVar("Failure", bound=BaseException)


def lines_of(error: BaseException) -> list[str]:
    """The message on one line under the name of the error, then its place in the user's text where there is one."""
    said = one_line(str(error)) or INTERRUPTED
    notes = [line for note in getattr(error, "__notes__", ()) for line in str(note).split("\n")]
    return [f"{_RED}{type(error).__name__}{_END}: {said}", *notes]


def plain(error: Failure) -> Failure:
    """The same error, which IPython then shows as ``lines_of`` and nothing else.

    It is still raised, so that "run all cells" stops there and Python code can catch it. IPython asks an exception for
    ``_render_traceback_`` before it looks at any frame.
    """
    if isinstance(error, Error | KeyboardInterrupt):
        error._render_traceback_ = lambda: lines_of(error)  # type: ignore[union-attr]
        error.__cause__ = error.__context__ = None
    return error
