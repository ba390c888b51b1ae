"""The command line: ``dpsql plan|run|release|budget|report|releases|sql|policy|synthesize|audit|demo``.

Exit codes: 0 done, 1 a dpsql.Error (one line on stderr; with --json also {"error": ...} on stdout) or an
audit that failed, 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import io
import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence

import dpsql
from dpsql.errors import Error, SQLError
from dpsql.surfaces import (
    accuracy,
    auditing,
    commands,
    demo,
    formats,
    output,
    policies,
    releases,
    synthesizing,
)
from dpsql.surfaces.colours import marked

DESCRIPTION = """\
Differentially private answers to whole batches of SQL queries, with error bars before the
budget is spent. Start with `dpsql demo`."""

EXAMPLES = """\
examples:
  dpsql demo
  dpsql policy init --database visits.duckdb > visits.toml
  dpsql policy import visits.yaml > visits.toml
  dpsql policy check visits.toml --database visits.duckdb
  dpsql plan batch.sql --database visits.duckdb --policy visits.toml --epsilon 1
  dpsql run batch.sql --database visits.duckdb --policy visits.toml --epsilon 1
  dpsql release --policy visits.toml --workload "ranges(age)" --workload "marginals(2, sex, state)" --epsilon 1
  dpsql sql --policy visits.toml "SELECT * FROM by_state ORDER BY n DESC LIMIT 3"
  dpsql releases export --policy visits.toml --format csv -o tables/
  dpsql report release --policy visits.toml -o report.html
  dpsql budget --policy visits.toml
  dpsql synthesize visits --policy visits.toml --database visits.duckdb --columns state,age_group --epsilon 1
  dpsql synthesize visits --policy visits.toml --ask "SELECT state, COUNT(*) AS n FROM visits GROUP BY state"
  dpsql audit visits.toml batch.sql --epsilon 1

exit codes: 0 done, 1 refused or failed (one line on stderr says why), 2 wrong usage, 130 interrupted
"""

INTERRUPTED = "dpsql: interrupted; what was charged stays charged, `dpsql releases list` shows it"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line with ``argv`` (``sys.argv[1:]`` by default); the exit code.

    Wrong usage raises SystemExit(2) after argparse has explained it, and --help SystemExit(0).
    """
    options = parser().parse_args(argv)
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
    action: Callable[[argparse.Namespace], int | None] = options.action
    try:
        with _warnings(quiet=options.quiet):
            return action(options) or 0
    except Error as error:
        print(f"dpsql: {marked('error:', sys.stderr)} {output.one_line(str(error))}", file=sys.stderr)
        for note in getattr(error, "__notes__", ()):  # the place in the user's text, underlined
            print(note, file=sys.stderr)
        if options.json:
            output.print_json({"error": _error(error)})
        return 1


@contextlib.contextmanager
def _warnings(*, quiet: bool) -> Iterator[None]:
    """What the library logs, as lines on stderr; nothing of it where ``quiet``."""

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if not quiet:
                text = output.one_line(record.getMessage())
                print(f"dpsql: {marked('warning:', sys.stderr)} {text}", file=sys.stderr)

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
    return found


def parser() -> argparse.ArgumentParser:
    """The whole grammar of the command line."""
    top = argparse.ArgumentParser(
        prog="dpsql",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=functools.partial(argparse.RawDescriptionHelpFormatter, max_help_position=20),
    )
    top.add_argument("--version", action="version", version=f"dpsql {dpsql.__version__}")
    names = top.add_subparsers(title="commands", metavar="COMMAND", required=True)

    add = _adder(names)
    planned = add("plan", commands.plan, "show the error of every answer before anything is spent; free")
    _planning(planned)
    planned.add_argument(
        "--explain", action="store_true", help="say of each statement what is private and what follows it"
    )
    accuracy.what_if_argument(planned)
    running = add("run", commands.run, "spend the budget of a batch once, show and keep its noisy tables")
    _running(running)
    formats.arguments(running)
    expected = add(
        "release", commands.release, "release an expected workload once, so that questions within it are free"
    )
    commands.release_arguments(expected)
    _planning(expected)
    expected.add_argument("--fresh", action="store_true", help="measure and pay again even where the ledger has it")
    expected.add_argument("--label", metavar="TEXT", help="who asks or why, written beside the charge")
    _scanning(expected)
    _places(add("budget", commands.budget, "show what is spent, by whom and for what, and what is left"))

    _report(names)
    _releases(names)

    query = _adder(names)("sql", releases.sql, "run one SELECT over the releases; free")
    query.add_argument("query", nargs="?", metavar="QUERY", help="the SELECT, or - to read it from stdin")
    query.add_argument("--sql", metavar="TEXT", help="the same as QUERY")
    query.add_argument(
        "--timeout", metavar="SECONDS", type=_seconds, help="stop the query after that; default: 60, 0 for never"
    )
    formats.arguments(query)
    _released(query)

    _policy(names)

    lying = _adder(names)(
        "synthesize", synthesizing.synthesize, "release randomised rows of a table once, and ask them anything; local"
    )
    synthesizing.arguments(lying)
    _places(lying)

    auditing.arguments(
        _adder(names)("audit", auditing.audit, "hold a batch to its promise on generated neighbouring databases")
    )

    shown = _adder(names)("demo", demo.demo, "the whole way from policy to answers on data of a health-care trial")
    shown.add_argument(
        "--directory", metavar="DIR", default="demo", help="where ledger and releases go (default: ./demo)"
    )
    return top


def _report(names: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    nested = names.add_parser(
        "report", help="write a plan or a release as one HTML page", description="Write one self-contained HTML page."
    ).add_subparsers(title="commands", metavar="COMMAND", required=True)
    add = _adder(nested)
    planned = add("plan", commands.report_plan, "a page with the error of every number before anything is spent; free")
    _planning(planned)
    done = add("release", commands.report_release, "a page with the tables and pictures of a release; free")
    done.add_argument("release", nargs="?", metavar="ID", type=int, help="number of the release; default: the newest")
    _released(done)
    for command in (planned, done):
        command.add_argument(
            "-o",
            "--output",
            metavar="FILE.html",
            required=True,
            help="the page; - for stdout (needs the extra: dpsql[plot])",
        )


def _releases(names: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    nested = names.add_parser(
        "releases",
        help="list, show, rename, drop, export or rebuild what was released",
        description="What was released. None of these commands spends or refunds anything.",
    ).add_subparsers(title="commands", metavar="COMMAND", required=True)
    add = _adder(nested)
    _places(add("list", releases.list_, "list every charge of the ledger"))
    showing = add("show", releases.show, "show one released table")
    showing.add_argument("name", metavar="NAME", help="a result of the latest release that has it, such as by_state")
    formats.arguments(showing)
    _released(showing)
    renamed = add("rename", releases.rename, "show a result under another name from now on; a rebuild keeps it")
    renamed.add_argument("name", metavar="NAME", help="what the result is called now")
    renamed.add_argument("to", metavar="TO", help="what it is to be called")
    renamed.add_argument("--release", metavar="ID", type=int, help="of this release alone; default: of all releases")
    _places(renamed)
    dropped = add(
        "drop", releases.drop, "take results out of the releases file; refunds nothing, and a rebuild keeps it"
    )
    dropped.add_argument("name", nargs="*", metavar="NAME", help="results to drop")
    dropped.add_argument(
        "--release", metavar="ID", type=int, help="of this release alone; without NAME all of its results"
    )
    _places(dropped)
    exported = add("export", releases.export, "write the results of one release as files")
    exported.add_argument(
        "release", nargs="?", metavar="ID", type=int, help="number of the release; default: the newest"
    )
    exported.add_argument(
        "--result", metavar="NAME", nargs="+", action="extend", default=[], help="these results; default: all of them"
    )
    formats.arguments(exported, (*formats.FORMATS, "duckdb"))
    _released(exported)
    _places(add("rebuild", releases.rebuild, "make the releases file anew from the ledger"))


def _policy(names: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    nested = names.add_parser(
        "policy",
        help="write a first policy, check one, renew one",
        description="What the custodian declares: the only thing that is taken for public.",
    ).add_subparsers(title="commands", metavar="COMMAND", required=True)
    add = _adder(nested)
    first = add("init", policies.init, "print a first policy from the schema, for the custodian to confirm")
    first.add_argument("--database", metavar="FILE", help="DuckDB file with the private tables")
    first.add_argument(
        "--source",
        metavar="PLACE",
        nargs="+",
        action="extend",
        default=[],
        help="Parquet or CSV files, folders of Parquet files, or quoted patterns such as 'visits/*.parquet'; a table "
        "each, and NAME=PLACE names it; no row is read, of CSV files the header line alone",
    )
    first.add_argument("--dataset", metavar="NAME", help="id of the data set; default: file name and -1")
    imported = add("import", policies.import_, "print a first policy made from SmartNoise's YAML metadata")
    imported.add_argument("metadata", metavar="FILE", help="YAML of one collection (needs the extra: dpsql[yaml])")
    imported.add_argument("--dataset", metavar="NAME", help="id of the data set; default: the collection's name and -1")
    imported.add_argument("--epsilon", metavar="E", help="the whole budget, where it is decided already")
    imported.add_argument("--delta", metavar="D", help="the delta of that budget")
    renewed = add("renew", policies.renew, "declare a new version of the data; what was spent stays spent")
    renewed.add_argument("policy", metavar="POLICY", help="policy file (TOML) with the new dataset name")
    renewed.add_argument("--was", metavar="NAME", required=True, help="the dataset name that the ledger knows so far")
    renewed.add_argument("--ledger", metavar="FILE", help="ledger file; default: beside the policy")
    renewed.add_argument("--anchor", metavar="FILE", help="the ledger's anchor, if it has one")
    check = add("check", policies.check, "hold a policy against the types of the tables; reads no row")
    check.add_argument("policy", metavar="POLICY", help="policy file (TOML)")
    check.add_argument("--database", metavar="FILE", help="DuckDB file with the private tables")


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e6:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds; give one such as 60, or 0 for no limit")
    return value


def _adder(names: argparse._SubParsersAction[argparse.ArgumentParser]) -> Callable[..., argparse.ArgumentParser]:
    def add(name: str, action: Callable[[argparse.Namespace], int | None], summary: str) -> argparse.ArgumentParser:
        command = names.add_parser(name, help=summary, description=summary[0].upper() + summary[1:] + ".")
        # Options that do not go together are wrong usage too: argparse's own message and exit code.
        command.set_defaults(action=action, usage=command.error)
        command.add_argument("--json", action="store_true", help="print one JSON document instead of text")
        command.add_argument("--quiet", action="store_true", help="print results only, no progress or remarks")
        return command

    return add


def _places(command: argparse.ArgumentParser) -> None:
    command.add_argument("--policy", metavar="FILE", required=True, help="policy file (TOML)")
    command.add_argument(
        "--database",
        metavar="FILE",
        help="DuckDB file with the private tables; not needed where the policy names sources",
    )
    command.add_argument("--ledger", metavar="FILE", help="ledger file; default: beside the policy")
    command.add_argument("--releases", metavar="FILE", help="releases file; default: beside the policy")
    command.add_argument(
        "--anchor", metavar="FILE", help="file kept elsewhere that detects an older copy of the ledger put back"
    )


def _released(command: argparse.ArgumentParser) -> None:
    command.add_argument("--releases", metavar="FILE", help="releases file; the only file that is read")
    command.add_argument("--policy", metavar="FILE", help="policy file, to find the releases file beside it")


def _planning(command: argparse.ArgumentParser) -> None:
    command.add_argument("file", nargs="?", metavar="FILE", help="SQL file of the batch, or - for stdin")
    command.add_argument("--sql", metavar="TEXT", help="the batch itself, instead of FILE")
    command.add_argument("--epsilon", metavar="E", help="budget of the batch: pure, or with the policy's delta")
    command.add_argument("--delta", metavar="D", help="with --epsilon: (epsilon, delta)-differential privacy")
    command.add_argument("--rho", metavar="R", help="instead of both: zero-concentrated differential privacy")
    command.add_argument(
        "--alpha", metavar="A", type=float, default=0.05, help="1 - confidence of the intervals (default: 0.05)"
    )
    command.add_argument(
        "--time-limit", metavar="SECONDS", type=float, help="stop searching for a better strategy after that"
    )
    command.add_argument(
        "--objective",
        choices=("total", "max"),
        help="what is least: the total squared error, or the largest error of an answer (default: total; with a wanted "
        "error, the budget)",
    )
    command.add_argument(
        "--method",
        choices=("auto", "mwem", "mwem-strategy"),
        default="auto",
        help="auto: the strategy of least error, known before anything is spent; mwem, mwem-strategy: queries chosen "
        "by the data in rounds, errors estimated only",
    )
    command.add_argument(
        "--no-earlier", dest="earlier", action="store_false", help="plan as if nothing had been released before"
    )
    command.add_argument("--rounds", metavar="N", type=int, help="rounds of mwem; chosen by simulation if left out")
    accuracy.arguments(command)
    _places(command)


def _running(command: argparse.ArgumentParser) -> None:
    _planning(command)
    command.add_argument(
        "--fresh", action="store_true", help="measure and pay again even where the ledger has the answers"
    )
    command.add_argument(
        "--no-errors", dest="errors", action="store_false", help="leave the _stderr, _low and _high columns out"
    )
    command.add_argument(
        "--estimates",
        choices=("unbiased", "nonnegative", "whole"),
        default="unbiased",
        help="nonnegative: the nearest numbers that a table could have; whole: whole numbers, too. Free, also of an "
        "earlier run of the same batch",
    )
    command.add_argument("--label", metavar="TEXT", help="who asks or why, written beside the charge")
    _scanning(command)


def _scanning(command: argparse.ArgumentParser) -> None:
    command.add_argument("--memory-limit", metavar="SIZE", help="the most memory of a scan, such as 4GB")
    command.add_argument("--scan-timeout", metavar="SECONDS", type=float, help="stop a scan after that; it is charged")


if __name__ == "__main__":
    raise SystemExit(main())
