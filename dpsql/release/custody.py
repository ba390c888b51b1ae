"""The custodian's care of a ledger: a backup, a backup put back, and whether everything agrees.

Whether a releases file holds what its ledger says, table by table and row by row.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

import duckdb

from dpsql.common.arguments import path as a_path
from dpsql.common.arguments import taking
from dpsql.common.interrupted_calls import guards_calls
from dpsql.common.quoting import identifier, string
from dpsql.errors import IntegrityError, LedgerError, OperationalError, listed
from dpsql.privacy import anchor as anchors
from dpsql.privacy.amounts import GRID, exact
from dpsql.privacy.ledger_restore import Loss, Restored, restore
from dpsql.release.books import Books, check_replaceable
from dpsql.release.instances import ISOLATED
from dpsql.release.record import ReleaseRecord
from dpsql.release.series import places
from dpsql.release.shared_tables import sharing
from dpsql.release.store import ReleaseStore


@dataclass(frozen=True)
class Verified:
    """What a ledger and what belongs to it hold, where everything agrees.

    Links of the hash chain, charges, releases (free answers with them); ``anchor``: the link that the anchor holds,
    None without one; ``written``: how many of the releases the releases file has.
    """

    links: int
    charges: int
    releases: int
    anchor: int | None
    written: int


@guards_calls
class Custody:
    """A ledger's backup, restore and verification: ``con.ledger``. Spends nothing but what a lost ledger had spent."""

    def __init__(self, books: Books) -> None:
        self._books = books

    @taking(target=a_path())
    def backup(self, target: str | os.PathLike[str]) -> int:
        """Copy the ledger to ``target``, whole and of one moment, whoever writes meanwhile; the links in it.

        An older copy of the same ledger at ``target`` is replaced. LedgerError for anything else there, for a ledger
        that is older than its anchor or its releases, and where there is none.
        """
        self._check_there()
        return self._books.ledger().back_up(Path(target))

    @taking(source=a_path())
    def restore(self, source: str | os.PathLike[str], *, lost: object = None) -> Restored:
        """Put the backup ``source`` in the ledger's place; what is there is kept under another name.

        A backup that is not known to be the newest is refused, unless ``lost`` says what was spent since: True charges
        what the anchor counts, or, where nobody counts, all that is left; an amount (epsilon of every account, rho in a
        rho policy) is the custodian's word where nobody counts, and 0 says nothing (`dpsql.privacy.ledger_restore`).
        A releases file that holds more than the backup is kept under another name, too, and made anew. LedgerError.
        """
        said = lost if lost is None or lost is True else _amount(lost)
        books = self._books
        check_replaceable(books.store.path)
        known, number = self._released()
        loss = Loss(said, known or {}, number)
        done = restore(Path(source), books.path, books.dataset, books.budget, anchor=books.anchor, loss=loss)
        books.forget()
        aside = None if self._agrees() else books.store.set_aside()
        books.rebuild()
        return replace(done, releases=aside)

    def verify(self) -> Verified:
        """Hold ledger, anchor and releases file against each other, with every measurement; what they hold.

        LedgerError or OperationalError at the first thing that does not agree. Reads the ledger and the releases file
        once.
        """
        self._check_there()
        books = self._books
        ledger = books.ledger()
        links = ledger.verify()
        books.check_releases(ledger)
        mark = None if books.anchor is None else anchors.read(books.anchor)
        entries = ledger.entries()
        try:
            written = len(books.store.moments())
            wrong = differing(books.store, books.records()) if written else []
        except duckdb.Error:
            raise OperationalError(f"{books.store.path} cannot be read; run 'dpsql releases rebuild'") from None
        if wrong:
            raise IntegrityError(
                f"{books.store.path} is not what the ledger makes of it: {listed(wrong, 5)}; keep it for comparison, "
                "and run 'dpsql releases rebuild'"
            )
        return Verified(
            links,
            sum(entry.charge.noise != "none" for entry in entries),
            sum(entry.released is not None for entry in entries),
            None if mark is None else mark.link,
            written,
        )

    def _check_there(self) -> None:
        """LedgerError where there is no ledger; one that is missing though it was used is told by ``Books.state``."""
        if not self._books.path.exists():
            self._books.state()
            raise LedgerError(f"there is no ledger {self._books.path} yet; the first release makes it")

    def _released(self) -> tuple[Mapping[str, int], int]:
        """What the releases file shows to be spent, in units by account, and its last number."""
        spent: dict[str, int] = {}
        last = 0
        with contextlib.suppress(OperationalError, duckdb.Error):
            for number, account, amount in self._books.store.spending():
                last = max(last, number)
                if account and amount is not None:
                    units = round(Fraction(amount) * GRID)  # exact below an epsilon of 4,000
                    spent[account] = max(spent.get(account, 0), units)
        return spent, last

    def _agrees(self) -> bool:
        """Whether the releases file is one of the ledger in place, and behind it at most."""
        try:
            self._books.check_releases(self._books.ledger())
        except (LedgerError, OperationalError):
            return False
        return True


def _amount(lost: object) -> Fraction:
    nothing = not isinstance(lost, bool) and str(lost).strip() in ("0", "0.0")
    return Fraction(0) if nothing else exact("lost", lost, shortest=True)


# The rows of all periods are held against each other release by release, as their views show them (``series``).
_TABLES = (
    "SELECT schema_name, table_name FROM duckdb_tables() WHERE database_name = '{0}' AND (schema_name <> 'main' OR "
    "table_name = 'releases') UNION SELECT schema_name, view_name FROM duckdb_views() WHERE database_name = '{0}' AND "
    "NOT internal AND schema_name LIKE 'r%' AND sql LIKE '%EXCLUDE%' ORDER BY ALL"
)


def differing(store: ReleaseStore, records: Sequence[ReleaseRecord]) -> list[str]:
    """The tables of the file that are not as the ledger's ``records`` make them, such as "r3.by_state".

    Of releases that the file has; one that it lacks is written at the next use. Where a view of schema dp shows an
    earlier release is no difference. Raises as ``ReleaseStore.sql``.
    """
    present = set(store.moments())
    with tempfile.TemporaryDirectory() as folder:
        expected = ReleaseStore(Path(folder) / "expected.duckdb")
        expected.rebuild([record for record in records if record.release_id in present])
        with duckdb.connect(":memory:", config=ISOLATED | {"threads": "1"}) as connection:
            for name, path in (("held", store.path), ("made", expected.path)):
                connection.execute(f"ATTACH {string(str(path))} AS {name} (READ_ONLY)")
            # A file changed by hand may hold views that read other files.
            connection.execute("SET enable_external_access = false; SET lock_configuration = true")
            tables = [set(connection.execute(_TABLES.format(name)).fetchall()) for name in ("held", "made")]
            # A version before gave each result a table of its own, and the views of ours show the same rows.
            shared = {(f"r{record.release_id}", place) for record in records for place in sharing(record.tables)}
            found = tables[0] ^ tables[1] - (shared - tables[0])
            found |= {table for table in tables[0] & tables[1] if _differ(connection, *table)}
            found |= {("main", name) for name in _series_beyond(connection, records)}
    return [f"{schema}.{table}" for schema, table in sorted(found)]


def _series_beyond(connection: duckdb.DuckDBPyConnection, records: Sequence[ReleaseRecord]) -> Iterator[str]:
    """Tables of all periods with rows of no release of the ledger, or of another period than its own."""
    known, of_period = set[str](), {(record.release_id, record.period) for record in records}
    for file in ("made", "held"):
        connection.execute(f"USE {file}")
        for table, column in places(connection, file):
            if file == "made":
                known.add(table)
                continue
            pairs = f"SELECT DISTINCT {identifier(column)}, CAST(period AS VARCHAR) FROM main.{identifier(table)}"  # noqa: S608
            if table not in known or not set(connection.execute(pairs).fetchall()) <= of_period:
                yield table


def _differ(connection: duckdb.DuckDBPyConnection, schema: str, table: str) -> bool:
    """Whether a table is not the same in both files, as one that cannot be read is not."""
    with contextlib.suppress(duckdb.Error):
        return _has_others(connection, schema, table)
    return True


def _has_others(connection: duckdb.DuckDBPyConnection, schema: str, table: str) -> bool:
    name = f"{identifier(schema)}.{identifier(table)}"
    described = [
        connection.execute(f"SELECT column_name, column_type FROM (DESCRIBE {file}.{name}) ORDER BY 1").fetchall()  # noqa: S608
        for file in ("held", "made")
    ]
    if described[0] != described[1]:
        return True
    columns = ", ".join(identifier(column) for column, _ in described[0])
    sides = [f"SELECT {columns} FROM {file}.{name}" for file in ("held", "made")]  # noqa: S608
    return any(
        connection.execute(f"SELECT 1 FROM ({one} EXCEPT ALL {other}) LIMIT 1").fetchone() is not None  # noqa: S608
        for one, other in (sides, sides[::-1])
    )
