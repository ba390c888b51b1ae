"""The methods of a connection that make rows which agree with counts that were released."""

from __future__ import annotations

from dpsql.common.arguments import maybe, taking, text, whole
from dpsql.common.interrupted_calls import guards_calls
from dpsql.driver.connection import Connection
from dpsql.errors import DataError, NotSupportedError
from dpsql.release.synthetic import SyntheticRows


@guards_calls
class MakingRows(Connection):
    """The part of a ``Connection`` that makes synthetic rows; all of it is free."""

    @taking(table=text(), n=whole(0, 10**7), release=maybe(whole(0, 2**63 - 1)), seed=whole(0, 2**63 - 1))
    def synthetic_rows(self, table: str, n: int, *, release: int | None = None, seed: int = 0) -> SyntheticRows:
        """``Release.synthetic_rows`` of the newest release that has counts of ``table``, or of ``release``. Free.

        Raises DataError where there is none, NotSupportedError.
        """
        self._check_open()
        tried = [entry for entry in reversed(self._books.entries()) if entry.released is not None]
        if release is None:
            tried = [e for e in tried if table.lower() in {name.lower() for name in e.description.get("tables", ())}]
        else:
            tried = [entry for entry in tried if entry.id == release]
        for entry in tried:
            try:
                rows = self._replicates.synthetic_rows(entry.id, n, seed)
            except (DataError, NotSupportedError):
                if release is not None:
                    raise
                continue
            if table.lower() in {name.lower() for name in rows}:
                return rows
        which = "any release" if release is None else f"release {release}"
        raise DataError(
            f"there are no counts of {table} by groups of columns in {which}; release some, as with GROUP BY "
            "dp_marginals(2, a, b, c)"
        )
