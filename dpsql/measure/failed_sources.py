"""Sources that fail are charged once: no charge for a table whose last scan failed, until its files have changed.

Or until the custodian clears it (``dpsql.privacy.failed_scans``). What decides is public: that the scan of an earlier
release failed, and that files were written to since. A scan that a limit of time or memory stopped, or whose files
changed meanwhile, says nothing against its source.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import TypeVar

from dpsql.engines.base import Engine, TableSource
from dpsql.engines.duckdb import ConnectionEngine, FileEngine
from dpsql.engines.files import state_of, without_sizes
from dpsql.engines.limits import FailedScanError
from dpsql.errors import LedgerError, OperationalError, listed
from dpsql.privacy.ledger import Ledger

T = TypeVar("T")
log = logging.getLogger("dpsql")


def refuse_failed(engine: Engine, ledger: Ledger, sources: Iterable[TableSource]) -> None:
    """Raise OperationalError for the first source whose last scan failed over the files that it has now.

    Before a charge. Reads no row.
    """
    failures = ledger.failed_scans()
    for source in sources:
        failed = failures.get(source.name)
        if failed is not None and failed.is_of(_files(engine, source)):
            raise OperationalError(
                f"the scan of {source.name} failed for release {failed.release} and its files have not changed since, "
                "so no charge is made for it; the custodian repairs them, or clears this with 'dpsql policy confirm' "
                "(nothing was charged)"
            )


def noting_failure(
    engine: Engine, ledger: Ledger, release: int, sources: Mapping[str, TableSource], scan: Callable[[], T]
) -> T:
    """What the ``scan`` of a release gives; where it fails, note the tables that it read.

    The error is raised outside of the ``except``, so that it has no context.
    """
    try:
        return scan()
    except FailedScanError as error:
        message, tables = error.args[0], [name for name in error.tables if name in sources]
    with suppress(LedgerError):
        ledger.note_failed_scan(release, {name: _files(engine, sources[name]) for name in tables})
        log.warning(
            "the scan of %s failed for release %d: no further charge is made for it until its files have changed, or "
            "'dpsql policy confirm' clears it",
            *(listed(tables), release),
        )
    raise OperationalError(message)


def _files(engine: Engine, source: TableSource) -> str:
    """The state of the files of a table, "" where it has none: in memory, or behind Spark."""
    with suppress(OperationalError):
        if isinstance(engine, FileEngine | ConnectionEngine):
            return without_sizes(state_of(engine.files([source])))
    return ""
