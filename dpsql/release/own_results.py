"""What q1, q2, ... mean to one who ran batches: the unnamed results of these, whatever others released since."""

from __future__ import annotations

import re
from collections.abc import Mapping

import duckdb

from dpsql.quoting import identifier, string

from .names import which


def show_own(
    connection: duckdb.DuckDBPyConnection, own: Mapping[str, Mapping[str, int]], catalog: str
) -> dict[str, str]:
    """Make temporary views, which are looked up first: each name of ``own`` is the result of its release.

    ``own``: by name and label the release that is meant. Returns what is refused and why: a name under several labels,
    and one whose result was dropped or renamed since. Such a name fails, and is not that of somebody else.
    """
    refused = {}
    for name, by_label in own.items():
        releases = set(by_label.values())
        said = which(name, ((release, label) for label, release in by_label.items()))
        if len(releases) == 1:
            (release,) = releases
            said = f"{name} of release {release} is no longer among the releases; run its batch again, which is free"
            shown = f"SELECT * FROM {catalog}.r{release}.{identifier(name)}"  # noqa: S608
            try:
                connection.execute(f"CREATE TEMP VIEW {identifier(name)} AS {shown}")
            except duckdb.CatalogException:
                pass
            else:
                continue
        refused[name] = said
        failing = f"SELECT NULL AS {identifier(name)} WHERE CAST(error({string(said)}) AS BOOLEAN)"
        connection.execute(f"CREATE TEMP VIEW {identifier(name)} AS {failing}")
    return refused


def is_asked(text: str, name: str) -> bool:
    """Whether a text has ``name`` without a schema before it."""
    return re.search(rf"(?<![\w.]){re.escape(name)}\b", text.replace('"', ""), re.IGNORECASE) is not None
