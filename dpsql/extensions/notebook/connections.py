"""The connections of a notebook, and what ``%dpsql tables``, ``releases`` and ``connections`` list of them.

A connection has the name of a variable, or the name that ``%dpsql connect`` gave it. All that is listed is public, and
listing it is free.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import duckdb

from dpsql.driver.connection import Connection
from dpsql.driver.opening import connect
from dpsql.errors import InterfaceError, nearest
from dpsql.extensions.notebook.line import Connect
from dpsql.extensions.notebook.results import NotebookResult
from dpsql.extensions.notebook.tables import Look
from dpsql.release import Result
from dpsql.surfaces.output import declared_columns

_NONE = (
    "there is no connection yet; write %dpsql connect policy.toml (and a database, where the policy names no sources), "
    "or con = dpsql.connect(...) and then %dpsql con"
)


class Connections:
    """Names and connections; ``current`` is the name of the one that cells use."""

    def __init__(self) -> None:
        self._opened: dict[str, Connection] = {}
        self.current: str | None = None

    def connect(self, request: Connect, variables: Mapping[str, object]) -> tuple[str, Connection]:
        """Open a connection and make it the current one; an earlier one of that name is closed. Reads no data."""
        # An open DuckDB connection goes by the name of its variable.
        variable = variables.get(request.database or "")
        database = variable if isinstance(variable, duckdb.DuckDBPyConnection) else request.database
        name = request.name or Path(request.policy).stem
        options: dict[str, Any] = dict(request.options)
        made = connect(database, policy=request.policy, **options)
        earlier = self._opened.pop(name, None)
        if earlier is not None:
            earlier.close()
        self._opened[name] = made
        self.current = name
        return name, made

    def choose(self, name: str | None, variables: Mapping[str, object]) -> Connection:
        """The connection called ``name``, or the current one; it becomes the current one where none is.

        Without any name said so far, the only connection among the variables. InterfaceError where there is none.
        """
        known = self.all(variables)
        if name is None and self.current is not None and self.current in known:
            return known[self.current]
        if name is None:
            if not known:
                raise InterfaceError(_NONE)
            if len(known) > 1:
                raise InterfaceError(
                    f"there are several connections, {', '.join(sorted(known))}; choose one with %dpsql NAME or -c NAME"
                )
            (name,) = known
        if name not in known:
            advice = nearest(name, known) if known else _NONE
            raise InterfaceError(f"no connection is called {name}: {advice}")
        if self.current not in known:
            self.current = name
        return known[name]

    def close(self, name: str | None, variables: Mapping[str, object]) -> str:
        """Close a connection, by default the current one; its name."""
        chosen = self.choose(name, variables)
        found = next(key for key, held in self.all(variables).items() if held is chosen and (name in (None, key)))
        chosen.close()
        self._opened.pop(found, None)
        if self.current == found:
            self.current = None
        return found

    def all(self, variables: Mapping[str, object]) -> dict[str, Connection]:
        """Every open connection by name; a variable comes before what was connected under its name."""
        found = dict(self._opened)
        found |= {
            name: value
            for name, value in variables.items()
            if isinstance(value, Connection) and not name.startswith("_")
        }
        return {name: held for name, held in found.items() if not held._closed}


def tables_of(con: Connection, look: Look) -> NotebookResult:
    """A line a column: the tables and views of the policy with what it declares, released views with their types."""
    kinds = {"name": "VARCHAR", "kind": "VARCHAR", "column": "VARCHAR", "values": "VARCHAR"}
    return _table("tables", kinds, declared_columns(con), look)


def releases_of(con: Connection, look: Look) -> NotebookResult:
    """A line a charge of the ledger, oldest first."""
    rows = [
        (
            *(entry.id, entry.time[:19].replace("T", " "), entry.charge.guarantee, ", ".join(entry.views)),
            *(entry.label, entry.released is not None),
        )
        for entry in con.releases()
    ]
    kinds = {"release": "BIGINT", "time_utc": "VARCHAR", "spent": "VARCHAR", "results": "VARCHAR", "label": "VARCHAR"}
    return _table("releases", {**kinds, "answered": "BOOLEAN"}, rows, look)


def connections_of(opened: Mapping[str, Connection], current: str | None, look: Look) -> NotebookResult:
    """A line a connection, by name."""
    rows = [(name, con.policy.dataset, str(con.ledger_path), name == current) for name, con in sorted(opened.items())]
    kinds = {"name": "VARCHAR", "dataset": "VARCHAR", "ledger": "VARCHAR", "current": "BOOLEAN"}
    return _table("connections", kinds, rows, look)


def _table(name: str, kinds: Mapping[str, str], rows: Sequence[Sequence[object]], look: Look) -> NotebookResult:
    # A list of what can be asked is shown whole where it is not huge.
    return NotebookResult.of(Result(list(kinds), list(kinds.values()), rows), name, look=Look(max(look.row_limit, 200)))
