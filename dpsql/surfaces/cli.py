"""The command line: ``dpsql plan``, ``dpsql run`` and so on, as ``dpsql.surfaces.grammar`` lists them.

Exit codes: 0 done, 1 a dpsql.Error (one line on stderr; with --json also {"error": ...} on stdout) or an
audit that failed, 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import io
import logging
import os
import re
import sys
from collections.abc import Iterator, Sequence

from dpsql.errors import OUT_OF_MEMORY, Error, OperationalError, PolicyError, SQLError, one_line
from dpsql.registry import resolve
from dpsql.surfaces.command_text import Action
from dpsql.surfaces.grammar import action_of, parser

INTERRUPTED = "dpsql: interrupted; what was charged stays charged, `dpsql releases list` shows it"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line with ``argv`` (``sys.argv[1:]`` by default); the exit code.

    Wrong usage raises SystemExit(2) after argparse has explained it, and --help SystemExit(0).
    """
    words = sys.argv[1:] if argv is None else argv
    options = parser(words).parse_args(words)
    check(options)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal that lacks a character, such as the plus-minus sign, gets its code instead of a crash.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        code = _run(options)
        sys.stdout.flush()
    except KeyboardInterrupt:
        print(INTERRUPTED, file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader, such as head, has seen enough; Python would complain once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return code


def _run(options: argparse.Namespace) -> int:
    try:
        with _warnings(quiet=options.quiet), _memory():
            return _action(action_of(options))(options) or 0
    except Error as error:
        from dpsql.surfaces import output

        said = [str(error)]
        if isinstance(error, PolicyError) and len(error.errors) > 1:
            said = [f"the policy has {len(error.errors)} errors:", *error.errors]
        said = [in_flags(words, of_sql=isinstance(error, SQLError)) for words in said]
        print(f"dpsql: {output.marked('error:', sys.stderr)} " + "\n  ".join(map(one_line, said)), file=sys.stderr)
        for note in getattr(error, "__notes__", ()):  # the place in the user's text, underlined
            print(note, file=sys.stderr)
        if options.json:
            output.print_json({"error": _error(error)})
        return 1


def _action(name: str) -> Action:
    """The function of that name; its module is imported now, and the others are not.

    What modules make lives as long as the process: looking for garbage among it takes a tenth of an import's time.
    """
    gc.disable()
    try:
        action: Action = resolve(name)
        gc.freeze()
    finally:
        gc.enable()
    return action


@contextlib.contextmanager
def _memory() -> Iterator[None]:
    """OperationalError where memory runs out, once what filled it is gone."""
    with contextlib.suppress(MemoryError):
        yield
        return
    raise OperationalError(OUT_OF_MEMORY)


@contextlib.contextmanager
def _warnings(*, quiet: bool) -> Iterator[None]:
    """What the library logs, as lines on stderr; nothing of it where ``quiet``."""

    def marked(word: str) -> str:
        from dpsql.surfaces.output import marked

        return marked(word, sys.stderr)

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if not quiet:
                text = one_line(record.getMessage())
                print(f"dpsql: {marked('warning:')} {text}", file=sys.stderr)

    handler = Lines(logging.WARNING)
    logger = logging.getLogger("dpsql")
    logger.addHandler(handler)
    before = logger.level
    logger.setLevel(logging.WARNING)  # of its own, since the package mcp lets the root logger pass errors alone
    try:
        yield
    finally:
        logger.setLevel(before)
        logger.removeHandler(handler)


def _error(error: Error) -> dict[str, object]:
    found: dict[str, object] = {"type": type(error).__name__, "message": str(error)}
    if isinstance(error, SQLError):
        found |= {"line": error.line, "column": error.column, "end": error.end}
    if isinstance(error, PolicyError):
        found["errors"] = list(error.errors)
    return found


if __name__ == "__main__":
    raise SystemExit(main())


# Messages of the library are shown in the words of the command line: ``releases=`` is ``--releases FILE`` there.
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
