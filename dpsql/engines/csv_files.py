"""CSV files: a reader that sniffs nothing and that no line can make fail.

Names come from the header line, which is the same in every file of a source; every value is text, then TRY_CAST to
the type that the policy declares. A line that cannot be read as CSV is skipped whole, whatever it holds. Neighbours
are the rows as read: a writer that leaves a quote open changes more than its own line.
"""

from __future__ import annotations

import csv
import gzip
import zlib
from collections.abc import Sequence
from pathlib import Path

from dpsql.common.quoting import identifier, string
from dpsql.engines.base import TableSource
from dpsql.engines.files import path_columns
from dpsql.errors import OperationalError

LONGEST_HEADER = 1_000_000  # characters of the header line


def reader(source: TableSource) -> str:
    """A FROM item with the declared columns of the located source, of their declared types."""
    names = header(source)
    added = path_columns(source, names)
    types = {name.lower(): kind for name, kind in (source.csv_types or {}).items()}
    listed = [name for name in (*names, *added) if name.lower() in types]
    select = ", ".join(f"{_cast(identifier(name), types[name.lower()])} AS {identifier(name)}" for name in listed)
    columns = ", ".join(f"{string(name)}: 'VARCHAR'" for name in names)
    files = ", ".join(string(str(path)) for path in source.files)
    # Strict mode would fail where line ends are mixed.
    return (
        f"(SELECT {select} FROM system.main.read_csv([{files}], auto_detect = false, header = true, "  # noqa: S608
        f"delim = ',', quote = '\"', escape = '\"', columns = {{{columns}}}, null_padding = true, "
        "ignore_errors = true, strict_mode = false, parallel = false, union_by_name = false, "
        f"hive_partitioning = {'true, hive_types_autocast = false' if added else 'false'}))"
    )


def _cast(name: str, kind: str) -> str:
    """The value, NULL where the text is none of the type.

    A plain TRY_CAST of the column DuckDB hands to its reader, which would then skip the whole line, and only in
    statements that read the column; what is inside a CASE stays where it is.
    """
    return f"CASE WHEN {name} IS NULL THEN NULL ELSE TRY_CAST({name} AS {kind}) END"


def schema(source: TableSource) -> dict[str, str]:
    """The declared type of each declared column that the files or their paths have."""
    names = header(source)
    spelling = {name.lower(): name for name in (*names, *path_columns(source, names))}
    return {spelling[name.lower()]: kind for name, kind in (source.csv_types or {}).items() if name.lower() in spelling}


def header(source: TableSource) -> Sequence[str]:
    """The column names of all files. Raises OperationalError, which shows none: a file may lack the line."""
    first = None
    for path in source.files:
        names = _header(path)
        if not names or len({name.lower() for name in names}) < len(names):
            where = f"a file of {source.path}" if len(source.files) > 1 else str(source.path)
            raise OperationalError(f"{where} has no header line of distinct column names; add one")
        if first is not None and names != first:
            raise OperationalError(
                f"the files of {source.path} have different header lines; "
                "name files that have the same columns in the same order"
            )
        first = names
    return first or []


def _header(path: Path) -> list[str]:
    """The names in the first line, none where it cannot be read."""
    opened = gzip.open if path.suffix.lower() == ".gz" else open
    try:
        # Decoding reads ahead into private lines, which must not decide anything: it never fails.
        with opened(path, "rt", encoding="utf-8-sig", errors="replace", newline="") as lines:
            # One line only, strictly: a quote left open in it must not swallow rows into a name.
            line = lines.readline(LONGEST_HEADER)
        return [] if len(line) == LONGEST_HEADER else next(csv.reader([line], strict=True), [])
    except (OSError, EOFError, zlib.error, csv.Error):
        return []
