"""Notes on a plan: sentences for its reader, each with what it may change in the answers."""

from __future__ import annotations

from collections.abc import Iterable

BIAS, ERROR, HINT = range(3)
"""What a note may change: numbers may be wrong or biased, errors may be larger than need be, or nothing."""


class Note(str):
    """A sentence with its class (``BIAS``, ``ERROR`` or ``HINT``); a plain string to whoever does not look at that.

    >>> note = Note("rows beyond the limit do not count", BIAS)
    >>> note, note.changes == BIAS
    ('rows beyond the limit do not count', True)
    """

    changes: int

    def __new__(cls, text: str, changes: int = HINT) -> Note:
        made = super().__new__(cls, text)
        made.changes = changes
        return made


def in_order(notes: Iterable[Note]) -> tuple[Note, ...]:
    """The notes in the order of what they may change; those of one class as they come.

    >>> in_order([Note("a run is free"), Note("values are clamped", BIAS), Note("no proof", ERROR)])
    ('values are clamped', 'no proof', 'a run is free')
    """
    return tuple(sorted(notes, key=lambda note: note.changes))
