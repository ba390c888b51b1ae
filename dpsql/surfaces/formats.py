"""Where results go and in which format: --format, --json and --output of the commands that show tables."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from dpsql.common.options import FORMATS
from dpsql.errors import OperationalError
from dpsql.release import Result
from dpsql.release.files import write_result, write_results, write_text
from dpsql.surfaces import output

_SUFFIXES = {".csv": "csv", ".json": "json", ".parquet": "parquet", ".duckdb": "duckdb", ".db": "duckdb"}


def chosen(options: argparse.Namespace) -> str:
    """The format that the options name. Wrong usage where they contradict each other."""
    named: str | None = options.format
    if options.json and named not in (None, "json"):
        options.usage(f"--json and --format {named} contradict each other; give one of them")
    if options.json:
        named = "json"
    if named is None and options.output is not None:
        named = _SUFFIXES.get(Path(options.output).suffix.lower())
        if named is not None and named not in (*FORMATS, "duckdb"):
            named = None
    return named or "table"


def is_folder(path: str) -> bool:
    """Whether a path of --output means a folder."""
    return path.endswith(("/", os.sep)) or Path(path).is_dir()


def check(options: argparse.Namespace, count: int, *taken: str | Path | None) -> None:
    """Wrong usage where ``count`` results do not fit the chosen format and place: said before anything is spent.

    Raises OperationalError where --output names one of the files ``taken``, which it would replace, or a folder that
    is not there.
    """
    kind, target = chosen(options), options.output
    folder = target is not None and is_folder(target)
    if kind == "duckdb":
        options.usage("duckdb is a format of dpsql releases export; choose another suffix or --format")
    if kind in ("csv", "parquet") and count > 1 and not folder:
        options.usage(
            f"there are {count} results, and a {kind} file holds one; give a folder, as in -o out/, or --format json"
        )
    if folder and kind in ("table", "json"):
        options.usage(f"a {kind} document is one file; name a file with -o, or choose csv or parquet")
    if kind == "parquet" and target is None and sys.stdout.isatty():
        options.usage("parquet is not for a terminal; name a file with -o, or send it through a pipe")
    if target is not None and not folder:
        check_file(options, *taken)


def check_file(options: argparse.Namespace, *taken: str | Path | None) -> None:
    """Raise OperationalError where --output names one of the files ``taken``, or a folder that is not there."""
    target = options.output
    if target == "-":
        return
    for other in taken:
        if other is not None and os.path.realpath(target) == os.path.realpath(other):
            raise OperationalError(f"{target} is a file of this data set, which --output would replace; name another")
    if not Path(target).absolute().parent.is_dir():
        raise OperationalError(f"{target}: there is no folder {Path(target).absolute().parent}; make it first")


def deliver(
    options: argparse.Namespace,
    tables: Sequence[tuple[str, Result]],
    text: Callable[[], str],
    document: Callable[[], object],
) -> None:
    """Write what the options ask for: ``text`` for people, ``document`` as JSON, or ``tables`` as files.

    To stdout without --output. Raises OperationalError where a file cannot be written.
    """
    kind, target = chosen(options), options.output
    if kind in ("table", "json"):
        if target is None:
            output.show(text()) if kind == "table" else output.print_json(document())
        else:
            write_text((text() if kind == "table" else output.json_text(document())) + "\n", Path(target))
    elif target is not None and is_folder(target):
        write_results(tables, kind, Path(target))
    elif target is not None:
        write_result(tables[0][1], kind, Path(target))
    else:
        to_stdout(kind, lambda path: write_result(tables[0][1], kind, path))


def to_stdout(kind: str, write: Callable[[Path], None]) -> None:
    """What ``write`` writes to a file, on stdout."""
    with tempfile.TemporaryDirectory() as folder:
        held = Path(folder) / f"table.{kind}"
        write(held)
        if kind == "csv":
            print(held.read_text(encoding="utf-8"), end="")
        else:
            sys.stdout.flush()
            sys.stdout.buffer.write(held.read_bytes())
            sys.stdout.buffer.flush()
