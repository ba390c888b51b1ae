"""The names that results may have."""

from __future__ import annotations

import re
from collections.abc import Iterable

from dpsql.errors import IntegrityError, listed, one_line

RESERVED = frozenset({"releases"})  # what dpsql itself keeps in schema dp


def is_unnamed(name: str) -> bool:
    """Whether a result of that name is one that its batch gave no name: q1, q2, ..."""
    return re.fullmatch(r"q[0-9]+", name.lower()) is not None


def which(name: str, releases: Iterable[tuple[int, str]]) -> str:
    """What to write where ``name`` may mean the unnamed results of several releases: (id, label) of each."""
    newest: dict[str, int] = {}
    for release, label in releases:
        newest[label] = max(release, newest.get(label, 0))
    ordered = sorted(newest.items(), key=lambda item: -item[1])
    shown = listed([f"r{release}.{name} ({one_line(label) or 'no label'})" for label, release in ordered], 4)
    return (
        f"{name} may be the unnamed result of several releases; write which: {shown}; or give results names, with "
        "CREATE VIEW name AS SELECT ..."
    )


def check_name(name: str) -> None:
    """Raise IntegrityError where a result cannot bear this name.

    ``releases`` lists the releases, and q1, q2, ... are the unnamed results of a batch,
    which the next batch under the same label replaces without asking. Call it before any charge.
    """
    if not name or "\x00" in name:
        raise IntegrityError("a result needs a name of at least one character and no NUL")
    if name.lower() in RESERVED or is_unnamed(name):
        raise IntegrityError(f"the name {name!r} is kept for dpsql itself; choose another name for the view")


def check_result(name: str, named: bool, columns: Iterable[str]) -> None:
    """``check_name`` of a result that the batch named; IntegrityError where an unnamed one is not q1, q2, ..., and for
    the name of a column that is there twice.
    """
    if named:
        check_name(name)
    elif not re.fullmatch(r"q[1-9][0-9]*", name):
        raise IntegrityError(f"an unnamed result is called q1, q2, ..., not {name!r}")
    taken: set[str] = set()
    for column in columns:
        if column.lower() in taken:
            raise IntegrityError(f"the result {name!r} has two columns {column!r}; name one of them with AS")
        taken.add(column.lower())
