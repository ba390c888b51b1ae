"""Which files a source stands for: one, those of a folder, or those that a pattern matches; and what their paths add.

Names of files and folders may be made of values (``year=2013``), so they are as private as rows: no message shows
one, only the source as the policy writes it. The files are listed once for a schema and once for a scan; that scan
reads these and no others.

Columns in paths. A folder ``key=value`` above every file makes ``key`` a column where the policy declares one of that
name with a type and the files themselves have none. Values are percent-decoded by DuckDB, read as text and cast by
TRY_CAST, so that none can make a scan fail; ``__HIVE_DEFAULT_PARTITION__`` is NULL.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias
from urllib.parse import unquote_to_bytes

from dpsql.engines.base import TableSource
from dpsql.errors import OperationalError

WILDCARDS = frozenset("*?[")

State: TypeAlias = tuple[tuple[str, int, int, int, int, int], ...]
"""Path, device, inode, size and the times of the last change of contents and of the inode, of each file."""


def state_of(files: Sequence[Path]) -> State | None:
    """What tells one state of the files from another; None where one is not there."""
    try:
        seen = [(str(path), os.stat(path)) for path in files]
    except OSError:
        return None
    return tuple(
        (name, status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
        for name, status in seen
    )


def without_sizes(state: State | None) -> str:
    """A state as text, for a mark that is kept: sizes depend on rows."""
    return "" if state is None else "".join(f"{path}\n{(*held[:2], *held[3:])}\n" for path, *held in state)


def located(source: TableSource) -> TableSource:
    """The source with the files that it stands for now, in a fixed order; a table of the database as it is.

    Raises OperationalError where there is none, or where a name is one that DuckDB would not read as it stands.
    """
    if source.path is None:
        return source
    paths = _matches(source.path) if source.pattern else _below(source.path)
    lake = _lake(source.path)
    if lake:
        raise OperationalError(
            f"{source.path} is a table of {lake}, whose folder holds files with rows that it has no more; copy it into "
            "a DuckDB database with CREATE TABLE ... AS"
        )
    if not paths:
        raise OperationalError(_nothing(source))
    if not all(map(_is_plain, paths)):
        named = source.path if paths == (source.path,) else f"the path of a file of {source.path}"
        raise OperationalError(
            f"{named} holds *, ? or [, which DuckDB reads as a pattern, or is no UTF-8; rename the file or its folder"
        )
    return replace(source, files=paths)


def _lake(path: Path) -> str:
    """Whose table a folder is if not all of its Parquet files are rows of it; empty for any other."""
    if (path / "_delta_log").is_dir():
        return "Delta"
    return "Iceberg" if any(path.glob("metadata/*.metadata.json")) else ""


def _nothing(source: TableSource) -> str:
    if source.pattern:
        return f"no file matches {source.path}; correct the table's source in the policy"
    if source.path is not None and source.path.is_dir():
        return f"{source.path} holds no .parquet file; correct the table's source in the policy"
    return f"{source.path} is not a file; correct the table's source in the policy"


def _matches(pattern: Path) -> tuple[Path, ...]:
    """``**`` stands for folders of any depth; names that begin with a dot are left out, as everywhere."""
    return tuple(Path(name) for name in sorted(glob.glob(str(pattern), recursive=True)) if os.path.isfile(name))


def _below(path: Path) -> tuple[Path, ...]:
    """The file itself; for a folder its .parquet files at any depth, without what other writers hide.

    Hidden are names that begin with a dot, or with an underscore unless they are partitions: ``_temporary``,
    ``_metadata``.
    """
    if not path.is_dir():
        return (path,) if path.is_file() else ()
    # In the order of paths, by their parts: thousands of paths take longer to compare than their texts.
    return tuple(Path(name) for name in sorted(_visible(path), key=lambda name: name.split(os.sep)))


def _visible(folder: Path) -> Iterator[str]:
    for parent, folders, names in os.walk(folder, followlinks=True):
        folders[:] = sorted(name for name in folders if not _is_hidden(name))
        for name in names:
            if name.lower().endswith(".parquet") and not _is_hidden(name):
                yield os.path.join(parent, name)


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or (name.startswith("_") and "=" not in name)


def _is_plain(path: Path) -> bool:
    name = str(path)
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return WILDCARDS.isdisjoint(name)


def path_columns(source: TableSource, columns: Iterable[str]) -> dict[str, str]:
    """Declared type by name for each column that the paths of ``source.files`` add to ``columns`` of the files.

    Raises OperationalError where files disagree about the names, or where DuckDB could not tell one value.
    """
    stored = {name.lower() for name in columns}
    declared = {name.lower(): kind for name, kind in source.declared.items()}
    parts = [_partitions(path) for path in source.files]
    keys = parts[0] if parts else {}
    added = {key: declared[key.lower()] for key in keys if key.lower() in declared and key.lower() not in stored}
    if not added:
        return {}
    if any(set(part) != set(keys) for part in parts) or not all(_is_text(v) for part in parts for v in part.values()):
        raise OperationalError(
            f"the folders of {source.path} do not all have the same form key=value; "
            "give every file the same keys, once each, or leave the columns of its path undeclared"
        )
    if any(key.lower() in stored for key in keys):
        raise OperationalError(
            f"a column of {source.path} is both in the files and in the names of folders; "
            "write the files without it, or leave the columns of the path undeclared"
        )
    return added


def _partitions(path: Path) -> Mapping[str, str | None]:
    """Value by key of the folders ``key=value`` above a file, as DuckDB reads them; None where a key comes twice."""
    keys: dict[str, str | None] = {}
    for part in path.parts[:-1]:
        key, equals, value = part.partition("=")
        if key and equals and "=" not in value and "\n" not in part:
            keys[key] = None if key.lower() in {name.lower() for name in keys} else value
    return keys


def _is_text(value: str | None) -> bool:
    """Whether a value is one that DuckDB can percent-decode."""
    try:
        unquote_to_bytes(value or "").decode()
    except UnicodeDecodeError:
        return False
    return value is not None
