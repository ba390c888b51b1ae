"""The command line: ``dpsql plan``, ``dpsql run`` and so on, as ``dpsql.surfaces.grammar`` lists them.

Exit codes: 0 done, 1 a dpsql.Error (one line on stderr; with --json also {"error": ...} on stdout) or an
audit that failed, 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import io
import logging
import os
import sys
from collections.abc import Iterator, Sequence

from dpsql.errors import Error, PolicyError, SQLError, one_line
from dpsql.surfaces.flags import check, in_flags
from dpsql.surfaces.grammar import ACTIONS, Action, parser

INTERRUPTED = "dpsql: interrupted; what was charged stays charged, `dpsql releases list` shows it"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line with ``argv`` (``sys.argv[1:]`` by default); the exit code.

    Wrong usage raises SystemExit(2) after argparse has explained it, and --help SystemExit(0).
    """
    options = parser().parse_args(argv)
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
        with _warnings(quiet=options.quiet):
            return _action(options.action)(options) or 0
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


def _action(command: str) -> Action:
    """What a command does; its module is imported now, and the others are not.

    What modules make lives as long as the process: looking for garbage among it takes a tenth of an import's time.
    """
    module, _, name = ACTIONS[command].partition(".")
    gc.disable()
    try:
        action: Action = getattr(importlib.import_module(f"dpsql.surfaces.{module}"), name)
        gc.freeze()
    finally:
        gc.enable()
    return action


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
    try:
        yield
    finally:
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
