"""``--save``: results as a released view of that name, or as files."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import duckdb

from dpsql.common.quoting import identifier
from dpsql.driver.connection import Connection
from dpsql.errors import InterfaceError, OperationalError
from dpsql.extensions.notebook.results import NotebookResult
from dpsql.release.files import write_result
from dpsql.sql import parse
from dpsql.sql.parse.options import read_options

FORMATS = (".csv", ".parquet", ".json")
_VIEW = re.compile(r"[^\W\d]\w*")


def is_file(name: str) -> bool:
    """Whether ``--save`` names a file, by its suffix."""
    return Path(name).suffix.lower() in FORMATS


def check_save(name: str, con: Connection) -> None:
    """Refuse a place that cannot be written, before anything is spent. InterfaceError or OperationalError."""
    if not is_file(name):
        if not _VIEW.fullmatch(name):
            raise InterfaceError(
                f"--save {name}: write the name of a view, such as by_state, or of a file that ends in "
                f"{', '.join(FORMATS)}"
            )
        return
    place = Path(name).absolute()
    if not place.parent.is_dir():
        raise OperationalError(f"--save {name}: there is no folder {place.parent}; make it, or choose another")
    if not os.access(place.parent, os.W_OK) or place.is_dir():
        raise OperationalError(f"--save {name}: the file cannot be written; choose another place")


def as_view(sql: str, name: str) -> str:
    """The batch with its one SELECT under a name, so that it becomes the released view dp.name.

    Raises InterfaceError where it has several statements or a name of its own, SQLError where it cannot be read.
    """
    statements = parse(read_options(sql)[0])
    if len(statements) > 1:
        raise InterfaceError(
            f"--save {name} names one SELECT and the cell has {len(statements)} statements; write CREATE VIEW for each"
        )
    if statements[0].named:
        raise InterfaceError(f"--save {name}: the SELECT is called {statements[0].name} already; leave --save out")
    return f"CREATE OR REPLACE VIEW {name} AS {sql.lstrip()}"


def save_files(name: str, results: Sequence[NotebookResult], con: Connection) -> list[str]:
    """Write the results, as the suffix says; several go to name-result.suffix each. The paths written.

    A file is replaced where it stands, but for the files of the connection itself. OperationalError where one cannot
    be written: the answers are kept, and the same cell again costs nothing.
    """
    place = Path(name)
    paths = [place] if len(results) == 1 else [place.with_name(f"{place.stem}-{r.name}{place.suffix}") for r in results]
    own_files = {os.path.realpath(path) for path in _files(con)}
    for path in paths:
        if os.path.realpath(path) in own_files:
            raise OperationalError(f"--save {path} would replace a file of this connection; choose another name")
    for path, result in zip(paths, results, strict=True):
        try:
            write_result(result, path.suffix.lower()[1:], path)
        except (OperationalError, duckdb.Error):
            raise OperationalError(
                f"{path} cannot be written; choose another place (the answers are kept: the same cell is free now)"
            ) from None
    return [str(path) for path in paths]


def _files(con: Connection) -> Iterator[Path]:
    yield con.ledger_path
    yield con.releases_path
    if con.policy.path is not None:
        yield con.policy.path
    for name in con.policy.tables:
        source = con.policy.source_path(name)
        if source is not None:
            yield source


def view_note(name: str) -> str:
    """Where a saved view is, for the footer."""
    return f"saved as the view dp.{identifier(name) if not _VIEW.fullmatch(name) else name}"
