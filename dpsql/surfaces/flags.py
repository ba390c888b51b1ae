"""Messages of the library in the words of the command line: ``releases=`` is ``--releases FILE`` there."""

from __future__ import annotations

import argparse
import os
import re

_FILES = ("ledger", "releases", "anchor", "policy", "database")
_NAMES = {"expected": "expect"}  # an argument whose flag is called otherwise
_OPTIONS = (
    *("max_error", "relative", "simultaneous", "expected", "method", "rounds", "objective", "time_limit", "fresh"),
    *("rows_per_unit", "max_groups", "epsilon", "delta", "rho", "alpha"),
)
_FILE = re.compile(rf"\b({'|'.join(_FILES)})=(path|\.\.\.)?")
_GIVEN = re.compile(rf"\b({'|'.join(_OPTIONS)})=('[^']*'|\{{[^}}]*\}}|\.\.\.|[\w.]*\w)?")
_ALONE = re.compile(r"\b(max_error|time_limit|rows_per_unit|max_groups)\b")
_CALLED = re.compile(r"\bcon\.(plan|run)\([^()]*\)")
_PYTHON = re.compile(r"(dpsql\.\w+\([^()]*\))")
_STATEMENTS = ("select", "with", "from", "create", "pivot", "explain")
_CONTRARY = (("rho", "epsilon"), ("rho", "delta"), ("max_error", "relative"))


def check(options: argparse.Namespace) -> None:
    """Wrong usage (exit code 2) for options that contradict each other, and for a batch given as what it is not."""
    sql, file = getattr(options, "sql", None), getattr(options, "file", None)
    if sql is not None and len(sql.split()) == 1 and (sql.lower().endswith(".sql") or os.path.isfile(sql)):
        options.usage(f"--sql is {sql}, the path of a file; leave --sql out in front of it")
    if sql is None and file is not None and len(file.split()) > 1 and _begins(file):
        options.usage("the batch is SQL where a file is asked; write --sql in front of it, or name a file")
    for one, other in _CONTRARY:
        if getattr(options, one, None) not in (None, []) and getattr(options, other, None) not in (None, []):
            options.usage(f"{_flag(one)} and {_flag(other)} contradict each other; give one of them")


def _begins(given: str) -> bool:
    """Whether what stands where a file is asked begins as a statement does."""
    return given.split(None, 1)[0].lower() in _STATEMENTS and not os.path.exists(given)


def in_flags(said: str, *, of_sql: bool) -> str:
    """The message with flags for arguments; ``of_sql``: it quotes the user's text, which is left as it is.

    A call of Python's own, for what the command line cannot do, is left, too.
    """
    said = _CALLED.sub(r"dpsql \1", said)
    if of_sql:
        return said
    return "".join(part if _PYTHON.match(part) else _in_flags(part) for part in _PYTHON.split(said))


def _in_flags(said: str) -> str:
    said = said.replace("no database was given; pass the database", "no database was given; give --database FILE")
    said = _FILE.sub(r"--\1 FILE", said)
    said = _GIVEN.sub(lambda found: _flag(found[1], found[2] or ""), said)
    return _ALONE.sub(lambda found: _flag(found[1]), said)


def _flag(name: str, value: str = "") -> str:
    flag = "--" + _NAMES.get(name, name).replace("_", "-")
    if value.startswith("{"):
        value = "=".join(part.strip(" '{}") for part in value.split(":"))
    return flag if value in ("", "True") else f"{flag} {value.strip(chr(39))}"
