"""What the commands read: the connection that the options name, the SQL text, the releases file."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, cast

from dpsql.driver.connection import Connection
from dpsql.driver.opening import connect
from dpsql.errors import LedgerError, OperationalError, ProgrammingError
from dpsql.release import ReleaseStore
from dpsql.release.books import check_reachable

log = logging.getLogger("dpsql")
C = TypeVar("C")

Record: TypeAlias = "dict[str, Any]"
"""A row of dp.releases, by column."""


def connected(options: argparse.Namespace, **more: Any) -> Connection:
    """The connection that --policy, --database and the like name; ``more`` goes to ``connect``."""
    more |= {name: getattr(options, name) for name in ("memory_limit", "scan_timeout", "today") if name in options}
    places = {name: getattr(options, name) for name in ("policy", "ledger", "releases", "anchor")}
    return connect(options.database, **places, **more)


def connected_as(kind: type[C], options: argparse.Namespace, **more: Any) -> C:
    """``connected``, seen as a class whose methods an extension adds to every connection."""
    return cast(C, connected(options, **more))


def released(options: argparse.Namespace) -> ReleaseStore:
    """The releases alone: who queries them needs neither the private tables nor the ledger."""
    if options.releases is not None:
        check_reachable("releases", Path(options.releases))
        return ReleaseStore(options.releases)
    if options.policy is None:
        options.usage("there is nothing to query; give --releases FILE, or --policy FILE to find it beside")
    with connect(policy=options.policy) as con:
        warn_of_ledger(con)
        return ReleaseStore(con.releases_path)


def warn_of_ledger(con: Connection) -> None:
    """Log what is wrong with the ledger, such as that it is an older copy, where nothing is to be refused for it."""
    if os.access(con.ledger_path, os.R_OK):
        try:
            con.releases()
        except LedgerError as error:
            log.warning("%s", error)


def release_record(store: ReleaseStore, release: int | None) -> tuple[Record, list[Record]]:
    """The row of dp.releases for ``release``, the newest by default, and all of its rows, oldest first.

    Raises ProgrammingError where there is none.
    """
    held = store.sql("SELECT * FROM dp.releases ORDER BY release_id")
    rows = [dict(zip(held.columns, values, strict=True)) for values in held]
    if not rows:
        raise ProgrammingError(f"{store.path} holds no release yet; run a batch first")
    found = rows[-1:] if release is None else [row for row in rows if row["release_id"] == release]
    if not found:
        known = ", ".join(str(row["release_id"]) for row in rows[-10:])
        raise ProgrammingError(f"there is no release {release} in {store.path}; it holds {known}")
    return found[0], rows


def batch(options: argparse.Namespace) -> str:
    """The SQL text of a batch: --sql, a file, or stdin."""
    if options.sql is None and options.file not in (None, "-"):
        return from_file(options.file)
    return text(options.file, options)


def text(argument: str | None, options: argparse.Namespace) -> str:
    """SQL given as ``argument`` ("-" for stdin) or with --sql."""
    if (argument is None) == (options.sql is None):
        options.usage("the SQL is missing or given twice; give an argument, - for stdin, or --sql TEXT")
    if argument != "-":
        return str(options.sql if argument is None else argument)
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise OperationalError(f"the text on stdin: byte {error.start} is not UTF-8; send it as UTF-8") from None


def from_file(path: str, what: str = "batch", otherwise: str = ", or give the SQL itself with --sql") -> str:
    """The text of a file. Raises OperationalError with what to do."""
    failure = ""
    try:
        return Path(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        failure = f"{error.strerror or 'unreadable'}; check the path{otherwise}"
    except UnicodeDecodeError as error:
        failure = f"byte {error.start} is not UTF-8; save it as UTF-8"
    except ValueError:  # a NUL
        failure = f"no path; check it{otherwise}"
    raise OperationalError(f"{what} file {path}: {failure}")
