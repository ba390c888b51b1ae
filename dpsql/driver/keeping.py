"""The custodian's side of a connection: ledger, budget, names of results, versions of the data."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpsql.common.arguments import (
    each_text,
    maybe,
    taking,
    text,
    whole,
)
from dpsql.common.interrupted_calls import guards_calls
from dpsql.driver.connection_state import ConnectionState
from dpsql.errors import (
    IntegrityError,
    InterfaceError,
)
from dpsql.privacy.ledger import Entry

if TYPE_CHECKING:  # imported where they are asked for: a plan needs none of them
    from dpsql.release.custody import Custody


@guards_calls
class Keeping(ConnectionState):
    """The part of a ``Connection`` that keeps what was released; nothing here is charged."""

    @property
    def ledger(self) -> Custody:
        """The ledger's ``backup(FILE)``, ``restore(FILE)`` and ``verify()``, for its custodian."""
        from dpsql.release.custody import Custody

        self._check_open()
        return Custody(self._books)

    def releases(self) -> list[Entry]:
        """Every charge of the ledger, oldest first; ``released`` is None where nothing was recorded."""
        self._check_open()
        return list(self._books.state().charges)

    def rebuild(self) -> int:
        """Make the releases database anew from the ledger; the number of releases in it.

        Raises LedgerError where there is no ledger: nothing was released.
        """
        self._check_open()
        return self._books.rebuild()

    @taking(name=text(), to=text(), release=maybe(whole(0, 2**63 - 1)))
    def rename(self, name: str, to: str, *, release: int | None = None) -> None:
        """Show the results called ``name`` in the releases as ``to`` from now on: all of them, or those of one release.

        Free, and written to the ledger, so that a rebuild keeps it. A run of the same batch, which is free, gives its
        results their first names back. Raises ProgrammingError where nothing is called ``name``, IntegrityError
        where something is called ``to``.
        """
        self._check_open()
        if to.lower() in (known.lower() for known in (*self.policy.tables, *self.policy.views)):
            raise IntegrityError(f"{' '.join(to.split())} is a table or view of the policy; choose another name")
        self._books.rename(name, to, release, self._holdings.attachable)

    @taking(names=each_text(), release=maybe(whole(0, 2**63 - 1)))
    def drop(self, *names: str, release: int | None = None) -> None:
        """Take results out of the releases: by name, of one release if given; without names all results of ``release``.

        Nothing is refunded: the ledger keeps charge and noisy measurement, from which the same batch is answered again
        at no cost, and that shows the results again. A rebuild keeps them out. Raises ProgrammingError where there is
        nothing of that name.
        """
        self._check_open()
        if not names and release is None:
            raise InterfaceError("drop() needs the names of results, or release= for all results of one release")
        self._books.drop(names, release, self._holdings.attachable)

    @taking(was=text())
    def renew(self, was: str) -> None:
        """Declare that the policy's ``dataset`` is a new version of the data set ``was``, a public event.

        For a policy whose ``dataset`` was changed because the data were: spending goes on where it was, answers of
        before are kept and no longer used again. ``was``: the name that the ledger knows; it never returns.
        Raises LedgerError where the ledger knows another, or has had the new name before.
        """
        self._check_open()
        self._books.renew(was)

    def changed_files(self) -> tuple[str, ...]:
        """Which files were written to since this version of the data was first used: table names, "" for the database.

        For the custodian, who is warned of them in the log, too; answers, charges and errors never depend on it. Either
        the rows changed and a new version is to be declared (``renew``), or they did not (``confirm_files``). Looks at
        times of files, not at rows; of tables in memory and of Spark nothing is noticed.
        """
        self._check_open()
        return tuple(self._books.changed_files())

    def confirm_files(self) -> None:
        """Say that the tables are as they were although files were written to, and sound although a scan failed.

        Tables whose scan failed may be charged again (``dpsql.privacy.failed_scans``). LedgerError where there is no
        ledger.
        """
        self._check_open()
        self._books.confirm_files()
