"""What limits cut of the rows behind the released results that a query reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace

from dpsql.errors import Error
from dpsql.release.books import Books
from dpsql.release.cut import NOTHING, Losses
from dpsql.release.payload import record_of
from dpsql.running.losses import KIND, joined


def losses_read(
    books: Books, results_read: Callable[[], Mapping[tuple[int, str], str]], of: Callable[[str], Mapping[str, Losses]]
) -> Losses:
    """What was measured of the results that a query reads (``Replicates.results_read``). ``of``: by a batch. Free.

    Nothing of results without a batch that is understood by now, as domains that were found. Unlike a release, a query
    does not say of every table that its losses are unknown.
    """
    each = list[Losses]()
    if all(entry.description.get("kind") != KIND for entry in books.entries()):
        return NOTHING
    with suppress(Error):  # of a query that is refused, which says so itself
        for (release, _), first in results_read().items():
            with suppress(Error):
                record = record_of(books.ledger().release(release).payload or b"")
                each += [losses for name, losses in of(record.sql).items() if name.lower() == first.lower()]
    together = joined(each)
    return replace(together, notes=tuple(map(str, together.cuts.values())))
