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

from dpsql.common.options import CALL, COMMAND, CONNECT, RUN, TABLE, on
from dpsql.common.progress import heard_by
from dpsql.errors import OUT_OF_MEMORY, Error, OperationalError, PolicyError, SQLError, one_line
from dpsql.registry import added_options, resolve
from dpsql.surfaces.command_text import Action
from dpsql.surfaces.grammar import action_of, overview, parser

INTERRUPTED = "dpsql: interrupted; what was charged stays charged, `dpsql releases list` shows it"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line with ``argv`` (``sys.argv[1:]`` by default); the exit code.

    Wrong usage raises SystemExit(2) after argparse has explained it, and --help SystemExit(0).
    """
    words = sys.argv[1:] if argv is None else argv
    if not words:
        print(overview(), end="")
        return 0
    options = parser(words).parse_args(words)
    check(options)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal that lacks a character, such as the plus-minus sign, gets its code instead of a crash.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        code = _run(options)
        sys.stdout.flush()
    except KeyboardInterrupt as interrupt:
        print(interrupted(interrupt), file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader, such as head, has seen enough; Python would complain once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return code


def _silence(*, quiet: bool) -> contextlib.AbstractContextManager[None]:
    """Within, nothing shows progress by itself where nobody wants to see it."""
    return heard_by(lambda _: None) if quiet else contextlib.nullcontext()


def interrupted(interrupt: KeyboardInterrupt) -> str:
    """What is said after Ctrl-C: what became of the charges, where a call of the library says so."""
    said = str(interrupt)
    return f"dpsql: {said}" if said else INTERRUPTED


def _run(options: argparse.Namespace) -> int:
    try:
        with _warnings(quiet=options.quiet), _memory(), _silence(quiet=options.quiet):
            return _action(action_of(options))(options) or 0
    except Error as error:
        show_error(error, options)
        return 1


def show_error(error: Error, options: argparse.Namespace, before_option: str = "--") -> None:
    """An error as one line on stderr, below it the place in the user's text; with --json also a document on stdout."""
    from dpsql.surfaces import output

    said = [str(error)]
    if isinstance(error, PolicyError) and len(error.errors) > 1:
        said = [f"the policy has {len(error.errors)} errors:", *error.errors]
    said = [in_flags(words, of_sql=isinstance(error, SQLError)) for words in said]
    if not isinstance(error, SQLError):
        said = [re.sub(r"--(?=[a-z])", lambda _: before_option, words) for words in said]
    print(f"dpsql: {output.marked('error:', sys.stderr)} " + "\n  ".join(map(one_line, said)), file=sys.stderr)
    for note in getattr(error, "__notes__", ()):  # the place in the user's text, underlined
        print(note, file=sys.stderr)
    if options.json:
        output.print_json({"error": _error(error)})


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


# Messages of the library are shown in the words of the command line: ``releases=`` is ``--releases FILE`` there.
_FLAGS = {
    option.name: flag
    for flag, option in on(COMMAND, (*TABLE, *added_options())).items()
    if option.surfaces & {CALL, RUN} and not flag.startswith("--no-") and flag == option.spelled(COMMAND)
}
_FILES = tuple(o.name for o in TABLE if CONNECT in o.surfaces and o.value == "FILE")
_FILE = re.compile(rf"\b({'|'.join(_FILES)})=(path|\.\.\.)?")
_GIVEN = re.compile(rf"\b({'|'.join(_FLAGS)})=('[^']*'|\{{[^}}]*\}}|\.\.\.|[\w.]*\w)?")
_ALONE = re.compile(rf"\b({'|'.join(name for name in _FLAGS if '_' in name)})\b")
_CALLED = re.compile(r"\bcon\.(plan|run)\([^()]*\)")
_PYTHON = re.compile(r"(dpsql\.\w+\([^()]*\))")
_STATEMENTS = ("select", "with", "from", "create", "pivot", "explain")


def check(options: argparse.Namespace) -> None:
    """Wrong usage (exit code 2) for options that contradict each other, and for a batch given as what it is not."""
    if hasattr(options, "as_policy"):
        _one_policy(options)
    sql, file = getattr(options, "sql", None), getattr(options, "file", None)
    if sql is not None and len(sql.split()) == 1 and (sql.lower().endswith(".sql") or os.path.isfile(sql)):
        options.usage(f"--sql is {sql}, the path of a file; leave --sql out in front of it")
    if sql is None and file is not None and len(file.split()) > 1 and _begins(file):
        options.usage("the batch is SQL where a file is asked; write --sql in front of it, or name a file")
    given = {name for name, value in vars(options).items() if value not in (None, [])}
    for option in TABLE:
        for other in given.intersection(option.against):
            if option.name in given:
                options.usage(f"{_FLAGS[option.name]} and {_FLAGS[other]} contradict each other; give one of them")


def _one_policy(options: argparse.Namespace) -> None:
    """The policy of a command that takes it as an argument, too."""
    flag, usual = options.policy, os.environ.get("DPSQL_POLICY")
    if options.as_policy and flag not in (None, usual, options.as_policy):
        options.usage(f"the policy is given twice, {options.as_policy} and --policy {flag}; give one of them")
    options.policy = options.as_policy or flag
    if options.policy is None:
        options.usage("the policy is missing; give --policy FILE, or set DPSQL_POLICY")


def _begins(given: str) -> bool:
    """Whether what stands where a file is asked begins as a statement does."""
    return given.split(None, 1)[0].lower() in _STATEMENTS and not os.path.exists(given)


def in_flags(message: str, *, of_sql: bool) -> str:
    """The message with flags for arguments; ``of_sql``: it quotes the user's text, which is left as it is.

    A call of Python's own, for what the command line cannot do, is left, too.
    """
    message = _CALLED.sub(r"dpsql \1", message)
    if of_sql:
        return message
    return "".join(part if _PYTHON.match(part) else _in_flags(part) for part in _PYTHON.split(message))


def _in_flags(message: str) -> str:
    message = message.replace("no database was given; pass the database", "no database was given; give --database FILE")
    message = _FILE.sub(r"--\1 FILE", message)
    message = _GIVEN.sub(lambda found: _flag(found[1], found[2] or ""), message)
    return _ALONE.sub(lambda found: _flag(found[1]), message)


def _flag(name: str, value: str = "") -> str:
    if value.startswith("{"):
        value = "=".join(part.strip(" '{}") for part in value.split(":"))
    return _FLAGS[name] if value in ("", "True") else f"{_FLAGS[name]} {value.strip(chr(39))}"


if __name__ == "__main__":
    raise SystemExit(main())
