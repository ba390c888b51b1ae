"""The methods of a connection that release randomised rows, once, and answer questions about them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dpsql.common.arguments import maybe, taking, text
from dpsql.common.interrupted_calls import guards_calls
from dpsql.driver.connection import Connection
from dpsql.planning.needed_budget import plain

if TYPE_CHECKING:  # imported where it is asked for: a batch needs none of it
    from dpsql.extensions.local.local_release import LocalRelease, Maker


@guards_calls
class ReleasingLocally(Connection):
    """The part of a ``Connection`` that makes local releases."""

    @taking(table=text(), name=maybe(text()), label=maybe(text()))
    def synthesize(
        self,
        table: str,
        columns: Sequence[str],
        epsilon: object,
        *,
        ids: Sequence[str] = (),
        name: str | None = None,
        label: str | None = None,
    ) -> LocalRelease:
        """Release a randomised copy of some columns of a table, once; ``.sql`` of what is returned is then free.

        Every row keeps its combination of the ``columns``, over their declared domains, or gets one of the others, by
        randomised response at ``epsilon``; ``ids`` are columns that the policy declares public, kept as they are.
        Charges epsilon times the rows that a unit may have to the account ``local_epsilon`` (replace one unit's values:
        the number of rows is published, so the policy must say ``rows_public = true``). ``name``: the view of the rows
        in schema dp, ``<table>_synthetic`` by default. Raises PolicyError for columns without a finite domain or too
        many combinations, IntegrityError for columns that were released before (``synthetic`` finds them), BudgetError.
        """
        said = self._checked_label(label)
        made, record = self._local().make(table, columns, plain(epsilon), ids=ids, name=name, label=said)
        self._batches.register(record)
        return made

    @taking(name=maybe(text()))
    def synthetic(self, name: str | None = None) -> LocalRelease:
        """The local release that was made under this name or of this table; the newest of several. Free."""
        return self._local().find(name)

    def _local(self) -> Maker:
        from dpsql.extensions.local.local_release import Maker

        self._check_open()
        return Maker(self._holdings, self._books)
