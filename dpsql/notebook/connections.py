"""The connections of a notebook: by the name of a variable, or by the name that ``%dpsql connect`` gave them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import duckdb

from dpsql.driver.connection import Connection
from dpsql.driver.opening import connect
from dpsql.errors import InterfaceError, nearest
from dpsql.notebook.line import Connect

_NONE = (
    "there is no connection yet; write %dpsql connect policy.toml (and a database, where the policy names no sources), "
    "or con = dpsql.connect(...) and then %dpsql con"
)


class Connections:
    """Names and connections; ``current`` is the name of the one that cells use."""

    def __init__(self) -> None:
        self._held: dict[str, Connection] = {}
        self.current: str | None = None

    def connect(self, asked: Connect, variables: Mapping[str, Any]) -> tuple[str, Connection]:
        """Open a connection and make it the current one; an earlier one of that name is closed. Reads no data."""
        database: Any = asked.database
        if database is not None and isinstance(variables.get(database), duckdb.DuckDBPyConnection):
            database = variables[database]  # an open DuckDB connection, by the name of its variable
        name = asked.name or Path(asked.policy).stem
        options: dict[str, Any] = {key.replace("-", "_"): value for key, value in asked.options.items()}
        made = connect(database, policy=asked.policy, **options)
        earlier = self._held.pop(name, None)
        if earlier is not None:
            earlier.close()
        self._held[name] = made
        self.current = name
        return name, made

    def choose(self, name: str | None, variables: Mapping[str, Any]) -> Connection:
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
            advice = nearest(name, known).replace("declared are", "there are") if known else _NONE
            raise InterfaceError(f"no connection is called {name}: {advice}")
        if self.current not in known:
            self.current = name
        return known[name]

    def close(self, name: str | None, variables: Mapping[str, Any]) -> str:
        """Close a connection, by default the current one; its name."""
        chosen = self.choose(name, variables)
        found = next(key for key, held in self.all(variables).items() if held is chosen and (name in (None, key)))
        chosen.close()
        self._held.pop(found, None)
        if self.current == found:
            self.current = None
        return found

    def all(self, variables: Mapping[str, Any]) -> dict[str, Connection]:
        """Every open connection by name; a variable comes before what was connected under its name."""
        found = dict(self._held)
        found |= {
            name: value
            for name, value in variables.items()
            if isinstance(value, Connection) and not name.startswith("_")
        }
        return {name: held for name, held in found.items() if not held._closed}
