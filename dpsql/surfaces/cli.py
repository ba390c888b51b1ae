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
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import dpsql
from dpsql.errors import Error, SQLError, one_line
from dpsql.surfaces import commands, demo, formats, inputs, output, policies, releases
from dpsql.surfaces.output import marked

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

Action: TypeAlias = Callable[[argparse.Namespace], int | None]

# -- the grammar, as its help shows it ----------------------------------------------------------------
# A line a command, and a line each of its options and arguments: names and value, two blanks, what it does. "FILE?"
# may be left out, "NAME*" may be several, "FILE!" must be given; an argument has its name in the code before it. An
# indented line goes on with the one above.

_PLACES = """
--policy FILE!  policy file (TOML)
--database FILE  DuckDB file with the private tables; not needed where the policy names sources
--ledger FILE  ledger file; default: beside the policy
--releases FILE  releases file; default: beside the policy
--anchor FILE  file kept elsewhere that detects an older copy of the ledger put back
"""
_RELEASED = """
--releases FILE  releases file; the only file that is read
--policy FILE  policy file, to find the releases file beside it
"""
_BUDGET = """
--epsilon E  budget of the batch: pure, or with the policy's delta
--delta D  with --epsilon: (epsilon, delta)-differential privacy
--rho R  instead of both: zero-concentrated differential privacy
"""
_ALPHA = """
--alpha A  1 - confidence of the intervals (default: 0.05)
"""
_PLANNING = f"""
file FILE?  SQL file of the batch, or - for stdin
--sql TEXT  the batch itself, instead of FILE
{_BUDGET}{_ALPHA}
--time-limit SECONDS  stop searching for a better strategy after that
--objective total|max  what is least: the total squared error, or the largest error of an answer (default: total; with
    a wanted error, the budget)
--method auto|mwem|mwem-strategy  auto: the strategy of least error, known before anything is spent; mwem,
    mwem-strategy: queries chosen by the data in rounds, errors estimated only
--no-earlier  plan as if nothing had been released before
--rounds N  rounds of mwem; chosen by simulation if left out
--rows-per-unit N  at most N rows of a unit count, where the policy lets more count; errors fall
--max-error [NAME=]E  instead of a budget: spend the least that gives each number +-E (or those of result NAME;
    repeatable)
--relative R  the same, +-R times what the policy's expected_rows let expect
--simultaneous  with a wanted error: all intervals together, not each alone
--expect NAME=ROWS  with a wanted error: rows that a group of result NAME is guessed to have (repeatable)
{_PLACES}"""
_LABEL = """
--label TEXT  who asks or why, written beside the charge
"""
_SCANNING = """
--memory-limit SIZE  the most memory of a scan, such as 4GB
--scan-timeout SECONDS  stop a scan after that; it is charged
"""
_NO_ERRORS = """
--no-errors  leave the _stderr, _low and _high columns out
"""
_DELIVERED = f"""
--format {"|".join(formats.FORMATS)}  how to show it; default: by the suffix of --output, else table; json is the
    document of --json
-o --output FILE  write to FILE; a folder, such as out/, for a file each of several results
"""
_PAGE = """
-o --output FILE.html!  the page; - for stdout (needs the extra: dpsql[plot])
"""

# What argparse is told besides.
_MORE: Mapping[str, Mapping[str, Any]] = {
    "release": {"type": int},
    **{key: {"type": int} for key in ("--rounds", "--rows-per-unit", "--release")},
    **{key: {"type": float} for key in ("--time-limit", "--scan-timeout")},
    "--alpha": {"type": float, "default": 0.05},
    "--trials": {"type": int, "default": 1000},
    "--pairs": {"type": int, "default": 200},
    "--relative": {"type": inputs.number},
    "--timeout": {"type": inputs.seconds},
    **{key: {"default": "unbiased"} for key in ("--estimates", "--estimator")},
    "--method": {"default": "auto"},
    "--directory": {"default": "demo"},
    **{key: {"action": "append"} for key in ("--max-error", "--expect")},
    "--workload": {"action": "append", "default": []},
    **{key: {"nargs": "+", "action": "extend", "default": []} for key in ("--source", "--result")},
    "--no-errors": {"dest": "errors", "action": "store_false"},
    "--no-earlier": {"dest": "earlier", "action": "store_false"},
}

_GROUPS = {
    "report": ("write a plan or a release as one HTML page", "Write one self-contained HTML page."),
    "releases": (
        "list, show, rename, drop, export or rebuild what was released",
        "What was released. None of these commands spends or refunds anything.",
    ),
    "policy": (
        "write a first policy, check one, renew one",
        "What the custodian declares: the only thing that is taken for public.",
    ),
}

ACTIONS: dict[str, Action] = {
    "plan": commands.plan,
    "run": commands.run,
    "release": commands.release,
    "budget": commands.budget,
    "report plan": commands.report_plan,
    "report release": commands.report_release,
    "releases list": releases.list_,
    "releases show": releases.show,
    "releases rename": releases.rename,
    "releases drop": releases.drop,
    "releases export": releases.export,
    "releases rebuild": releases.rebuild,
    "sql": releases.sql,
    "policy init": policies.init,
    "policy import": policies.import_,
    "policy renew": policies.renew,
    "policy check": policies.check,
    "synthesize": commands.synthesize,
    "audit": commands.audit,
    "demo": demo.demo,
}

_GRAMMAR = f"""
dpsql plan  show the error of every answer before anything is spent; free
{_PLANNING}
--explain  say of each statement what is private and what follows it
--what-if  also show error against budget, what each statement costs the others, and what to change

dpsql run  spend the budget of a batch once, show and keep its noisy tables
{_PLANNING}
--fresh  measure and pay again even where the ledger has the answers
{_NO_ERRORS}
--estimates unbiased|nonnegative|whole  nonnegative: the nearest numbers that a table could have; whole: whole numbers,
    too. Free, also of an earlier run of the same batch
{_LABEL}{_SCANNING}{_DELIVERED}

dpsql release  release an expected workload once, so that questions within it are free
--workload FAMILY  what is expected, repeatable: 'ranges(age)', 'prefixes(age)', 'marginals(2, sex, state)' (all
    groupings by up to 2 of them), 'groups(sex, state)', each perhaps 'of count, sum(cost)'; instead of SQL or beside it
--table NAME  the private table, where the policy has several
--dry-run  show the plan and spend nothing
{_PLANNING}
--fresh  measure and pay again even where the ledger has it
{_LABEL}{_SCANNING}

dpsql budget  show what is spent, by whom and for what, and what is left
{_PLACES}

dpsql report plan  a page with the error of every number before anything is spent; free
{_PLANNING}{_PAGE}

dpsql report release  a page with the tables and pictures of a release; free
release ID?  number of the release; default: the newest
{_RELEASED}{_PAGE}

dpsql releases list  list every charge of the ledger
{_PLACES}

dpsql releases show  show one released table
name NAME  a result of the latest release that has it, such as by_state
{_DELIVERED}{_RELEASED}

dpsql releases rename  show a result under another name from now on; a rebuild keeps it
name NAME  what the result is called now
to TO  what it is to be called
--release ID  of this release alone; default: of all releases
{_PLACES}

dpsql releases drop  take results out of the releases file; refunds nothing, and a rebuild keeps it
name NAME*  results to drop
--release ID  of this release alone; without NAME all of its results
{_PLACES}

dpsql releases export  write the results of one release as files
release ID?  number of the release; default: the newest
--result NAME  these results; default: all of them
{_DELIVERED.replace("  how", "|duckdb  how")}{_RELEASED}

dpsql releases rebuild  make the releases file anew from the ledger
{_PLACES}

dpsql sql  run one SELECT over the releases; free
query QUERY?  the SELECT, or - to read it from stdin
--sql TEXT  the same as QUERY
--timeout SECONDS  stop the query after that; default: 60, 0 for never
{_DELIVERED}{_RELEASED}

dpsql policy init  print a first policy from the schema, for the custodian to confirm
--database FILE  DuckDB file with the private tables
--source PLACE  Parquet or CSV files, folders of Parquet files, or quoted patterns such as 'visits/*.parquet'; a table
    each, and NAME=PLACE names it; no row is read, of CSV files the header line alone
--dataset NAME  id of the data set; default: file name and -1

dpsql policy import  print a first policy made from SmartNoise's YAML metadata
metadata FILE  YAML of one collection (needs the extra: dpsql[yaml])
--dataset NAME  id of the data set; default: the collection's name and -1
--epsilon E  the whole budget, where it is decided already
--delta D  the delta of that budget

dpsql policy renew  declare a new version of the data; what was spent stays spent
policy POLICY  policy file (TOML) with the new dataset name
--was NAME!  the dataset name that the ledger knows so far
--ledger FILE  ledger file; default: beside the policy
--anchor FILE  the ledger's anchor, if it has one

dpsql policy check  hold a policy against the types of the tables; reads no row
policy POLICY  policy file (TOML)
--database FILE  DuckDB file with the private tables

dpsql synthesize  release randomised rows of a table once, and ask them anything; local
table TABLE  the private table; with --ask, a table or a release's name
--columns A,B  release these columns together, each row randomised once
--epsilon E  epsilon of one row; a unit pays it for each row it may have
--ids A,B  columns that the policy declares public, kept as they are
--name NAME  view of the released rows; default: TABLE_synthetic
{_LABEL}
--ask SQL  answer a SELECT from what was released; free
--estimator unbiased|proper  proper rounds counts and sums to possible answers (default: unbiased)
--bounds  with --ask, show bounds of the errors instead of the answers
{_ALPHA}{_NO_ERRORS}{_SCANNING}{_DELIVERED}{_PLACES}

dpsql audit  hold a batch to its promise on generated neighbouring databases
policy POLICY  policy file (TOML)
batch BATCH.sql  SQL file of the batch
{_BUDGET}
--method auto|mwem|mwem-strategy  the mechanism of the plan, as for dpsql plan (default: auto)
--rounds N  rounds of mwem; chosen by simulation if left out
--database FILE  DuckDB file with the private tables, for the types of their columns alone; else the policy gives them
--trials N  noisy measurements of each of two neighbouring databases (default: 1000)
--pairs N  about how many scans to spend on the largest change, for each kind of unit (default: 200)

dpsql demo  the whole way from policy to answers on data of a health-care trial
--directory DIR  where ledger and releases go (default: ./demo)
"""  # noqa: S608 - no SQL

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
    action: Action = options.action
    try:
        with _warnings(quiet=options.quiet):
            return action(options) or 0
    except Error as error:
        print(f"dpsql: {marked('error:', sys.stderr)} {one_line(str(error))}", file=sys.stderr)
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
                text = one_line(record.getMessage())
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
    groups = {"": top.add_subparsers(title="commands", metavar="COMMAND", required=True)}
    command = top
    for line in filter(None, re.sub(r"\n +", " ", _GRAMMAR).split("\n")):
        spelled, said = line.split("  ", 1)
        if not spelled.startswith("dpsql "):
            _add(command, spelled, said)
            continue
        full = spelled.removeprefix("dpsql ")
        group, _, name = full.rpartition(" ")
        if group not in groups:
            short, long = _GROUPS[group]
            made = groups[""].add_parser(group, help=short, description=long)
            groups[group] = made.add_subparsers(title="commands", metavar="COMMAND", required=True)
        command = groups[group].add_parser(name, help=said, description=said[0].upper() + said[1:] + ".")
        # Options that do not go together are wrong usage too: argparse's own message and exit code.
        command.set_defaults(action=ACTIONS[full], usage=command.error)
        _add(command, "--json", "print one JSON document instead of text")
        _add(command, "--quiet", "print results only, no progress or remarks")
    return top


def _add(command: argparse.ArgumentParser, spelled: str, said: str) -> None:
    """An option or a place of a command, from its line of the grammar."""
    words = spelled.split()
    flags = [word for word in words if word.startswith("-")] or words[:1]
    given: dict[str, Any] = {"help": said, **_MORE.get(flags[-1], {})}
    value = words[-1] if len(words) > len(flags) else ""
    if value.endswith("!"):
        given["required"] = True
    elif value.endswith(("?", "*")):
        given["nargs"] = value[-1]
    if "|" in value:
        given["choices"] = value.split("|")
    elif value:
        given["metavar"] = value.rstrip("!?*")
    else:
        given.setdefault("action", "store_true")
    command.add_argument(*flags, **given)


if __name__ == "__main__":
    raise SystemExit(main())
