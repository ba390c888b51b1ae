"""What is asked of the tables just before a charge: are they those of the plan, and would the scan be run?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dpsql.engines.base import Engine, Refusing, Tables, TableSource
from dpsql.errors import IntegrityError


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
    found = engine.schemas(listed) if tables is None else tables.schemas
    for name in names:
        if found[name] != schemas[name]:
            raise IntegrityError(f"the columns of {name} have changed {again} (nothing was charged)")
    return tables
