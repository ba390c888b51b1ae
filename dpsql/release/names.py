"""The names that results may have."""

from __future__ import annotations

import re

from dpsql.errors import IntegrityError

RESERVED = frozenset({"releases"})  # what dpsql itself keeps in schema dp


def check_name(name: str) -> None:
    """Raise IntegrityError where a result cannot bear this name.

    ``releases`` lists the releases, and q1, q2, ... are the unnamed results of a batch,
    which the next batch replaces without asking. Call it before any charge.
    """
    if not name or "\x00" in name:
        raise IntegrityError("a result needs a name of at least one character and no NUL")
    if name.lower() in RESERVED or re.fullmatch(r"q[0-9]+", name.lower()):
        raise IntegrityError(f"the name {name!r} is kept for dpsql itself; choose another name for the view")


def check_result(name: str, named: bool) -> None:
    """``check_name`` of a result that the batch named; IntegrityError where an unnamed one is not q1, q2, ..."""
    if named:
        check_name(name)
    elif not re.fullmatch(r"q[1-9][0-9]*", name):
        raise IntegrityError(f"an unnamed result is called q1, q2, ..., not {name!r}")
