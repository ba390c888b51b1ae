"""An engine over generated rows alone, for the audit: exact values of it are nobody's.

Its database lives in memory and is made here, so that no file and no connection of a user can stand
behind it. It runs the very statements that the other engines run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import duckdb

from dpsql.engines import duckdb as real
from dpsql.engines.base import IntArray, Scan, TableSource
from dpsql.workload.expr.value_sql import select_text


def _in_memory() -> duckdb.DuckDBPyConnection:
    # One thread: these tables have a few rows, and threads cost more than they save.
    return duckdb.connect(":memory:", config={"threads": 1, "python_enable_replacements": "false"})


@dataclass(frozen=True, eq=False)
class SyntheticEngine:
    """Tables of generated rows. ``connection`` is its own, to create and fill them.

    Scans run on that connection itself, so that rows of a transaction still open are seen: two neighbouring
    databases are one ROLLBACK apart. Column types are read once.
    """

    connection: duckdb.DuckDBPyConnection = field(default_factory=_in_memory, init=False, repr=False)
    _known: dict[str, dict[str, str]] = field(default_factory=dict, init=False, repr=False)

    def schemas(self, sources: Sequence[TableSource]) -> dict[str, dict[str, str]]:
        """Column types by column name, for every table."""
        for source in sources:
            if source.name not in self._known:
                self._known[source.name] = real._schema(self.connection, source, "memory")
        return {source.name: self._known[source.name] for source in sources}

    def scan(self, asked: Scan) -> dict[str, IntArray]:
        """The integer columns of a scan, by name."""
        return real._scan(self.connection, asked, "memory")


@dataclass(frozen=True, eq=False)
class StillEngine:
    """Remembers the scans of ``engine``, whose tables do not change: a second measurement costs its noise alone."""

    engine: SyntheticEngine
    _seen: dict[str, dict[str, IntArray]] = field(default_factory=dict, init=False, repr=False)

    def schemas(self, sources: Sequence[TableSource]) -> dict[str, dict[str, str]]:
        """The schemas of the engine behind it."""
        return self.engine.schemas(sources)

    def scan(self, asked: Scan) -> dict[str, IntArray]:
        """As the engine behind it, once for each statement."""
        key = select_text(asked.select, {table.name: table.name for table in asked.tables})
        if key not in self._seen:
            self._seen[key] = self.engine.scan(asked)
        return self._seen[key]
