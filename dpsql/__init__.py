"""dpsql: differentially private answers to whole batches of SQL queries.

con = dpsql.connect("rand.duckdb", policy="rand.toml")
plan = con.plan(sql, epsilon=1.0)      # free: an error bar on every number
rel = con.run(plan)                    # spends, measures once, registers the views
con.sql("SELECT * FROM by_plan")       # over releases only, free
con.budget
con.cursor().execute("SELECT COUNT(*) FROM visits WHERE age >= ?", [65], epsilon=0.1)  # PEP 249

In a notebook: %load_ext dpsql, then %dpsql help.

Importing this is light: what needs numpy, scipy, DuckDB or sqlglot is imported when it is first asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Any

from dpsql import registry
from dpsql.driver.dbapi import (
    BINARY,
    DATETIME,
    NUMBER,
    ROWID,
    STRING,
    Binary,
    Date,
    DateFromTicks,
    Time,
    TimeFromTicks,
    Timestamp,
    TimestampFromTicks,
    apilevel,
    paramstyle,
    threadsafety,
)
from dpsql.errors import (
    BudgetError,
    DatabaseError,
    DataError,
    Error,
    IntegrityError,
    InterfaceError,
    InternalError,
    LedgerError,
    NoResultError,
    NotSupportedError,
    OperationalError,
    PolicyError,
    ProgrammingError,
    RequestError,
    SQLError,
    Warning,  # noqa: A004 - the name is PEP 249's
)

if TYPE_CHECKING:
    from dpsql.composition import Connection, Plan, connect
    from dpsql.driver.cursor import Cursor
    from dpsql.planning.options import PlanOptions
    from dpsql.policy import Policy
    from dpsql.registry import Extension
    from dpsql.release.release import Release

__version__ = "0.2.0"

# Public names that are imported when they are first asked for, and the rooms that are attributes of the package.
_LATER = {
    "Connection": "dpsql.driver.connection",
    "Release": "dpsql.release.release",
    "connect": "dpsql.driver.opening",
    "Cursor": "dpsql.driver.cursor",
    "Plan": "dpsql.planning.plan",
    "PlanOptions": "dpsql.planning.options",
    "Policy": "dpsql.policy",
}
_ROOMS = frozenset({
    *("bounds", "engines", "errors", "linalg", "local", "measure", "policy", "privacy", "reconstruct", "release"),
    *("sql", "strategy", "workload"),
})  # fmt: skip


def _shipped() -> Iterator[Extension]:
    """The extensions that dpsql comes with; the composition root is imported when the registry is first asked."""
    yield from import_module("dpsql.composition").shipped()


def _of_distributions() -> Iterator[Extension]:
    """The extensions that other distributions have."""
    yield from import_module("dpsql.composition").of_distributions()


registry.find_with(_shipped, _of_distributions)
register = registry.register


def __getattr__(name: str) -> Any:
    if name in _LATER:
        found = globals()[name] = getattr(import_module(_LATER[name]), name)
        return found
    if name in _ROOMS:
        return import_module(f"dpsql.{name}")
    raise AttributeError(f"module 'dpsql' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER, *_ROOMS})


def installed() -> dict[str, str]:
    """The version of every extension that is installed, by its name; those of dpsql have its own version."""
    return {extension.name: extension.version or __version__ for extension in registry.extensions()}


def load_ipython_extension(shell: Any) -> None:
    """``%load_ext dpsql``: the magics ``%dpsql`` and ``%%dpsql``, tables and completion (docs/notebook.md)."""
    # By name, as a console script is: a surface stands above everything, this module too.
    import_module("dpsql.extensions.notebook").load(shell)


def unload_ipython_extension(shell: Any) -> None:
    """``%unload_ext dpsql``: takes back what ``%load_ext`` did; connections stay open."""
    import_module("dpsql.extensions.notebook").unload(shell)


__all__ = [  # noqa: RUF022 - in the order of sorted()
    "BINARY",
    "Binary",
    "BudgetError",
    "Connection",
    "Cursor",
    "DATETIME",
    "DataError",
    "DatabaseError",
    "Date",
    "DateFromTicks",
    "Error",
    "IntegrityError",
    "InterfaceError",
    "InternalError",
    "LedgerError",
    "NUMBER",
    "NoResultError",
    "NotSupportedError",
    "OperationalError",
    "Plan",
    "PlanOptions",
    "Policy",
    "PolicyError",
    "ProgrammingError",
    "ROWID",
    "Release",
    "RequestError",
    "SQLError",
    "STRING",
    "Time",
    "TimeFromTicks",
    "Timestamp",
    "TimestampFromTicks",
    "Warning",
    "apilevel",
    "connect",
    "installed",
    "paramstyle",
    "register",
    "threadsafety",
]
