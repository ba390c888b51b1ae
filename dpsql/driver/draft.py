"""A first policy for a custodian to confirm, drafted from public schemas alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from dpsql.errors import OperationalError
from dpsql.measure import read_declared
from dpsql.policy import skeleton

_CSV_NOTE = """\
# The columns of a CSV file are written down as VARCHAR, since only rows could tell their types: correct
# each type, as in year = { type = "INTEGER", lower = 1990, upper = 2030 }.

"""


def draft_policy(database: Path | None, sources: Mapping[str, str], dataset: str) -> tuple[str, list[str]]:
    """TOML of a policy, and its tables, for ``database`` and the files of ``sources`` (by table name).

    Column types, CHECK bounds and ENUM members come from the catalog, the Parquet footer or the
    CSV header line; no row is read. What the custodian must decide is commented out and marked.
    Raises OperationalError where a file cannot be read or there is no table.
    """
    found = read_declared(database, {name: Path(source).absolute() for name, source in sources.items()})
    if not found:
        raise OperationalError(f"{database} has no table; name the database that holds the private tables")
    text = skeleton(
        {name: table.columns for name, table in found.items()},
        dataset,
        checks={name: table.bounds for name, table in found.items()},
        enums={name: table.members for name, table in found.items()},
        sources=sources,
    )
    if any(source.lower().endswith((".csv", ".csv.gz")) for source in sources.values()):
        text = _CSV_NOTE + text
    return text, list(found)
