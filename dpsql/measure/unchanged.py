"""What is asked of the tables just before a charge: are they those of the plan, and would the scan be run?

And again after it, where the scans see the tables: inside the transaction, or the state of the files, of the release.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from dpsql.engines.base import Engine, Opened, Opening, Refusing, Tables, TableSource
from dpsql.engines.duckdb import OpenEngine
from dpsql.errors import IntegrityError, OperationalError


def checked_tables(
    engine: Engine,
    names: Iterable[str],
    sources: Mapping[str, TableSource],
    schemas: Mapping[str, Mapping[str, str]],
    again: str = "since the plan was made; plan again",
) -> Tables | None:
    """The tables as an engine of another dialect found them, for its checks of scans; None for one of DuckDB's.

    Reads no row. Raises IntegrityError where the columns of a table are no longer those of ``schemas``;
    ``again`` says since when, and what to do.
    """
    names = tuple(dict.fromkeys(names))
    listed = [sources[name] for name in names]
    tables = engine.tables(listed) if isinstance(engine, Refusing) else None
    schemas_now = engine.schemas(listed) if tables is None else tables.schemas
    for name in names:
        if schemas_now[name] != schemas[name]:
            raise IntegrityError(f"the columns of {name} have changed {again} (nothing was charged)")
    return tables


@contextmanager
def opened(
    engine: Opening, names: Iterable[str], sources: Mapping[str, TableSource], schemas: Mapping[str, Mapping[str, str]]
) -> Iterator[Opened]:
    """The engine, for all scans of a release, over tables whose columns are those of ``schemas``.

    Raises OperationalError where DuckDB finds others by now, after the charge; Spark scans what was found before it.
    """
    listed = [sources[name] for name in dict.fromkeys(names)]
    with engine.opened(listed) as open_engine:
        schemas_now = open_engine.schemas(listed) if isinstance(open_engine, OpenEngine) else {}
        for name, columns in schemas_now.items():
            if columns != schemas.get(name, columns):  # before the charge each of them was compared
                raise OperationalError(
                    f"the columns of {name} changed just after the charge, so nothing is released. What was charged "
                    "stays charged; plan again"
                )
        yield open_engine
