"""The grammar of the command line: commands, options and arguments as their help shows them, and argparse's parser."""

from __future__ import annotations

import argparse
import functools
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import dpsql

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
  dpsql ledger backup /backups/visits.ledger --policy visits.toml
  dpsql discover visits.diagnosis --policy visits.toml --database visits.duckdb --epsilon 0.1 --delta 1e-9
  dpsql synthesize visits --policy visits.toml --database visits.duckdb --columns state,age_group --epsilon 1
  dpsql synthesize visits --policy visits.toml --ask "SELECT state, COUNT(*) AS n FROM visits GROUP BY state"
  dpsql synthesize visits --policy visits.toml --rows 10000 -o visits.parquet
  dpsql audit visits.toml batch.sql --epsilon 1
  dpsql schedule add monthly.sql --policy visits.toml --name monthly --every period --epsilon 0.5
  dpsql release --due --policy visits.toml
  dpsql analyst add ann visits.toml --epsilon 0.5
  dpsql serve visits.toml --port 5432

exit codes: 0 done, 1 refused or failed (one line on stderr says why), 2 wrong usage, 130 interrupted
"""

FORMATS = ("table", "csv", "json", "parquet")
Action: TypeAlias = Callable[[argparse.Namespace], int | None]


def seconds(text: str) -> float:
    """The value of --timeout. Raises ArgumentTypeError."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e6:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds; give one such as 60, or 0 for no limit")
    return value


def horizon(text: str) -> int | str:
    """A number of periods, or that there is no last one."""
    if text == "endless":
        return text
    if text.isascii() and text.isdigit():
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is no number of periods; give one such as 120, or endless")


def number(text: str) -> float:
    """A float, which argparse calls a number in its messages."""
    return float(text)


# -- the grammar, as its help shows it ----------------------------------------------------------------
# A line a command, and a line each of its options and arguments: names and value, two blanks, what it does. "FILE?"
# may be left out, "NAME*" may be several, "FILE!" must be given; an argument has its name in the code before it. An
# indented line goes on with the one above.

_FROM_ENVIRONMENT = ("--policy", "--database")
_PLACES = """
--policy FILE!  policy file (TOML); or set DPSQL_POLICY
--database FILE  DuckDB file with the private tables; not needed where the policy names it, or sources; or
    set DPSQL_DATABASE
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
--objective balanced|total|max  what is least: the mean over the columns of their squared error beside asking each
    alone, the total squared error, or the largest error of an answer (default: balanced; with a wanted error, the
    budget)
--method auto|adaptive|sparse|mwem|mwem-strategy  auto: the strategy of least error, known before anything is spent;
    adaptive: for counts over many columns, marginals chosen by the data in rounds, errors estimated only; sparse: for
    one COUNT by groups of which most are empty, those that noise does not hide; mwem, mwem-strategy: the papers' way,
    over few cells
--no-earlier  plan as if nothing had been released before
--rounds N  rounds of adaptive and mwem; chosen by simulation if left out
--rows-per-unit N  at most N rows of a unit count, where the policy lets more count; errors fall
--max-error [NAME=]E  instead of a budget: spend the least that gives each number +-E (or those of result NAME;
    repeatable)
--relative R  the same, +-R times what the policy's expected_rows let expect
--simultaneous  with a wanted error: all intervals together, not each alone
--expect NAME=ROWS  with a wanted error: rows that a group of result NAME is guessed to have (repeatable)
{_PLACES}"""
_TODAY = """
--today DATE  the day that decides which periods of a growing table are over (default: the day that it is, UTC)
"""
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
--format {"|".join(FORMATS)}  how to show it; default: by the suffix of --output, else table; json is the
    document of --json
-o --output FILE  write to FILE; a folder, such as out/, for a file each of several results
"""
_PAGE = """
-o --output FILE.html!  the page; - for stdout (needs the extra: dpsql[plot])
"""
_LEDGER = """
policy POLICY  policy file (TOML)
--ledger FILE  ledger file; default: beside the policy
--anchor FILE  the ledger's anchor, if it has one
"""
_BOOKS = f"""{_LEDGER.rstrip()}
--passwords FILE  file of the analysts' password verifiers; default: beside the ledger
"""
_SHARE = """
--epsilon E  what the analyst may spend in all, at the policy's delta
--pure-epsilon E  how much of it without a delta; default: as large a part as in the policy
--rho R  instead of epsilon where the policy's budget is in rho
--local-epsilon E  what of the local account
--per-release E  most that one release may cost: epsilon, or rho
--tables A,B  private tables that may be asked; default: all, * for all again
--expires DATE  when the account ends (UTC), such as 2027-01-01; never for no end
--password-file FILE  the password, the first line of a file
"""

# What argparse is told besides.
_MORE: Mapping[str, Mapping[str, Any]] = {
    "release": {"type": int},
    "number": {"type": int},
    **{
        key: {"type": int}
        for key in (
            "--rounds",
            "--rows",
            "--rows-per-unit",
            "--release",
            "--seed",
            "--max-groups",
            "--max-bytes",
        )
    },
    "--horizon": {"type": horizon},
    "--host": {"default": "127.0.0.1"},
    "--port": {"type": int, "default": 5432},
    "--mcp-port": {"type": int},
    "--flight-port": {"type": int},
    "--connections": {"type": int, "default": 200},
    "--per-account": {"type": int, "default": 50},
    "--statement-bytes": {"type": int, "default": 1_000_000},
    "--statements-per-minute": {"type": int, "default": 6_000},
    "--idle-timeout": {"type": float, "default": 3600.0},
    "--grace": {"type": float, "default": 30.0},
    **{key: {"type": float} for key in ("--time-limit", "--scan-timeout")},
    "--alpha": {"type": float, "default": 0.05},
    "--lost": {"const": "counted"},
    "--trials": {"type": int, "default": 1000},
    "--pairs": {"type": int, "default": 200},
    "--relative": {"type": number},
    "--timeout": {"type": seconds},
    **{key: {"default": "unbiased"} for key in ("--estimates", "--estimator")},
    "--method": {"default": "auto"},
    "--from": {"dest": "first"},
    **{key: {"action": "append"} for key in ("--max-error", "--expect")},
    "--workload": {"action": "append", "default": []},
    **{key: {"nargs": "+", "action": "extend", "default": []} for key in ("--source", "--result")},
    "--no-errors": {"dest": "errors", "action": "store_false"},
    "--no-earlier": {"dest": "earlier", "action": "store_false"},
}

GROUPS = {
    "report": ("write a plan or a release as one HTML page", "Write one self-contained HTML page."),
    "releases": (
        "list, show, rename, drop, export or rebuild what was released",
        "What was released. None of these commands spends or refunds anything.",
    ),
    "analyst": (
        "say who may sign in to a server, and what each may spend",
        "The analysts of a server: each has a budget of its own inside the policy's, held to by the ledger.",
    ),
    "schedule": (
        "have a batch released of every period of a growing table",
        "Standing batches: what 'dpsql release --due' releases of each period once it is over.",
    ),
    "requests": (
        "see, approve or refuse the batches that wait for it",
        "Batches of a server's analysts that wait as plans, where the policy has approval = true in [budget].",
    ),
    "ledger": (
        "back up, restore or verify the ledger",
        "The record of what was spent, which must not be lost. None of these commands gives anything back.",
    ),
    "policy": (
        "write a first policy, check one, declare a new version",
        "What the custodian declares: the only thing that is taken for public.",
    ),
}

ACTIONS = {
    "plan": "commands.plan",
    "run": "commands.run",
    "release": "commands.release",
    "budget": "commands.budget",
    "report plan": "commands.report_plan",
    "report release": "commands.report_release",
    "releases list": "releases.list_",
    "releases show": "releases.show",
    "releases rename": "releases.rename",
    "releases drop": "releases.drop",
    "releases export": "releases.export",
    "releases rebuild": "releases.rebuild",
    "ledger backup": "ledgers.backup",
    "ledger restore": "ledgers.restore",
    "ledger verify": "ledgers.verify",
    "sql": "releases.sql",
    "policy init": "policies.init",
    "policy import": "policies.import_",
    "policy renew": "policies.renew",
    "policy confirm": "policies.confirm",
    "policy check": "policies.check",
    "policy show": "policies.show",
    "serve": "serve.serve",
    "mcp": "serve.mcp",
    "analyst add": "analysts.add",
    "analyst list": "analysts.list_",
    "analyst set": "analysts.set_",
    "analyst suspend": "analysts.suspend",
    "analyst resume": "analysts.resume",
    "analyst remove": "analysts.remove",
    "analyst token": "analysts.token",
    "schedule add": "schedules.add",
    "schedule list": "schedules.list_",
    "schedule remove": "schedules.remove",
    "requests list": "requests.list_",
    "requests show": "requests.show",
    "requests approve": "requests.approve",
    "requests refuse": "requests.refuse",
    "discover": "commands.discover",
    "synthesize": "commands.synthesize",
    "audit": "commands.audit",
    "glossary": "glossary.glossary",
    "completion": "completion.completion",
    "demo": "demo.demo",
}
"""What a command does: a module of this room and a function of it, which is imported when it is asked for."""

_OF_ALL = (
    ("--json", "print one JSON document instead of text"),
    ("--quiet", "print results only, no progress or remarks"),
)

_GRAMMAR = f"""
dpsql plan  show the error of every answer before anything is spent; free
{_PLANNING}{_TODAY}
--explain  say how it is measured (strategy, cells), and of each statement what is private and what follows it
--what-if  also show error against budget, what each statement costs the others, and what to change

dpsql run  spend the budget of a batch once, show and keep its noisy tables
{_PLANNING}{_TODAY}
--fresh  measure and pay again even where the ledger has the answers
{_NO_ERRORS}
--estimates unbiased|feasible|whole|auto  feasible: the nearest numbers that a table could have, none negative; whole:
    whole numbers, too; auto: feasible where expected_rows lets expect less error of them. Free, also of an earlier run
    of the same batch
{_LABEL}{_SCANNING}{_DELIVERED}

dpsql release  release an expected workload once, so that questions within it are free
--workload FAMILY  what is expected, repeatable: 'ranges(age)', 'prefixes(age)', 'marginals(2, sex, state)' (all
    groupings by up to 2 of them), 'groups(sex, state)', each perhaps 'of count, sum(cost)'; instead of SQL or beside it
--table NAME  the private table, where the policy has several
--due  instead: release the standing batches ('dpsql schedule') of every period that is over and not released yet; safe
    to call at any time, from cron or several machines: each period is charged and released once
{_TODAY.strip()}
--dry-run  show the plan and spend nothing
{_PLANNING}
--fresh  measure and pay again even where the ledger has it
{_LABEL}{_SCANNING}

dpsql schedule add  release a batch of every period of a growing table, once each; spends nothing yet
file FILE?  SQL file of the batch, or - for stdin; it reads the table as if it had one period alone
--sql TEXT  the batch itself, instead of FILE
--name NAME!  what the schedule is called; a name is given once
--every period!  how often: once for every period of the table
{_BUDGET}
--table NAME  the table, where the policy has several with periods
--from DATE  the earliest period; default: the first of all
--horizon N  measure so many periods, or endless, each together with earlier ones: totals so far of least error
--windows N,N  with --horizon, also sums over the last so many periods, such as 7,30; if endless, these alone
{_LABEL}{_TODAY}{_PLACES}

dpsql schedule list  show the standing batches, and which periods of each are released, due, or cut off
{_TODAY}{_PLACES}

dpsql schedule remove  release nothing more of a standing batch; what was released stays
name NAME  the schedule
{_PLACES}

dpsql budget  show what is spent, by whom and for what, and what is left
--periods  of each period of a growing table: what is spent and what is left
{_TODAY}{_PLACES}

dpsql report plan  a page with the error of every number before anything is spent; free
{_PLANNING}{_PAGE}

dpsql report release  a page with the tables and pictures of a release; free
release ID?  number of the release; default: the newest
{_RELEASED}{_PAGE}

dpsql releases list  list every charge of the ledger
{_PLACES}

dpsql releases show  show one released table
name NAME  a result of the latest release that has it, such as by_state; or r3.by_state, that of release 3
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

dpsql ledger backup  copy the ledger, whole and of one moment, whoever writes meanwhile
file FILE  the copy; an older copy of the same ledger is replaced
{_PLACES}

dpsql ledger restore  put a backup in the ledger's place; what is there is kept under another name
file FILE  the backup
--lost AMOUNT?  what was spent since, which is charged: without AMOUNT what the anchor counts, or all that is left where
    nobody counts; AMOUNT, where nobody counts, is epsilon of every account (rho in a rho policy), 0 for nothing
{_PLACES}

dpsql ledger verify  hold the ledger, its anchor and the releases file against each other, with every measurement
{_PLACES}

dpsql sql  run one SELECT over the releases; free
query QUERY?  the SELECT, or - to read it from stdin
--sql TEXT  the same as QUERY
--errors  an interval beside every number, computed ones too; needs --policy, for the ledger
--population sample|rows  with --errors: whether intervals are about a population that the rows are a sample of
{_ALPHA}
--timeout SECONDS  stop the query after that; default: 60, 0 for never
{_DELIVERED}{_RELEASED}
--database FILE  with --errors: DuckDB file with the private tables, whose column types are read
--ledger FILE  with --errors: ledger file; default: beside the policy
--anchor FILE  with --errors: as for dpsql run

dpsql policy init  print a first policy for the custodian to confirm: from the schema, or with --discover from the rows
--database FILE  DuckDB file with the private tables
--source PLACE  Parquet or CSV files, folders of Parquet files, or quoted patterns such as 'visits/*.parquet'; a table
    each, and NAME=PLACE names it; no row is read, of CSV files the header line alone
--dataset NAME  id of the data set; default: file name and -1
--discover  find privately what the policy of --policy leaves out, at one charge: values, bounds, rows, rows of a unit
--policy FILE  with --discover: a policy whose unit and budget are decided
--epsilon E  with --discover: what it may cost, with --delta
--delta D  with --discover: (epsilon, delta)-differential privacy of the survey; default: half of the delta for finding
    groups; with --rho the chance that it fails
--rho R  with --discover: instead of epsilon in a rho policy
--max-groups K  with --discover: in how many values of a column one unit counts at most (default: 1)
--dry-run  with --discover: say what it would cost, with the error of each part, for free
--fresh  with --discover: find and pay again even where the ledger has the answer
--ledger FILE  with --discover: ledger file; default: beside the policy
--anchor FILE  with --discover: the ledger's anchor, if it has one

dpsql policy import  print a first policy made from SmartNoise's YAML metadata
metadata FILE  YAML of one collection (needs the extra: dpsql[yaml])
--dataset NAME  id of the data set; default: the collection's name and -1
--epsilon E  the whole budget, where it is decided already
--delta D  the delta of that budget

dpsql policy renew  declare a new version of the data; what was spent stays spent
policy POLICY  policy file (TOML) with the new dataset name
--was NAME!  the dataset name that the ledger knows so far
--database FILE  DuckDB file with the private tables, whose next change is noticed
--ledger FILE  ledger file; default: beside the policy
--anchor FILE  the ledger's anchor, if it has one

dpsql policy confirm  say that tables are as they were though files were written to, and sound though a scan failed
policy POLICY  policy file (TOML)
--database FILE  DuckDB file with the private tables
--ledger FILE  ledger file; default: beside the policy
--anchor FILE  the ledger's anchor, if it has one

dpsql policy check  hold a policy against the types of the tables; with a budget count what domains miss and keys repeat
policy POLICY  policy file (TOML)
--database FILE  DuckDB file with the private tables
--epsilon E  count privately what each domain misses and key repeats, at that budget: pure, or with the policy's delta
--delta D  with --epsilon: (epsilon, delta)-differential privacy
--rho R  instead of both: zero-concentrated differential privacy
--dry-run  with a budget: show the plan and spend nothing
--fresh  with a budget: count and pay again even where the ledger has the answers
--ledger FILE  with a budget: ledger file; default: beside the policy
--anchor FILE  with a budget: the ledger's anchor, if it has one

dpsql policy show  show what is public by now: the policy, and the domains that were found
policy POLICY  policy file (TOML)
--toml  print it as a policy file
--database FILE  DuckDB file with the private tables
--ledger FILE  ledger file; default: beside the policy
--anchor FILE  the ledger's anchor, if it has one

dpsql serve  answer analysts over PostgreSQL's protocol, until SIGTERM or Ctrl-C (needs the extra: dpsql[serve])
{_BOOKS}
--database FILE  DuckDB file with the private tables
--releases FILE  releases file; default: beside the policy
--host HOST  where to listen; beyond this machine with TLS only (default: 127.0.0.1)
--port PORT  the port (default: 5432; 0: any that is free)
--tls-cert FILE  certificate, and those between it and the root (PEM)
--tls-key FILE  its key (PEM)
--mcp-port PORT  the port of agents' tools, by the Model Context Protocol over HTTP (needs the extra: dpsql[mcp])
--flight-port PORT  the port of Arrow Flight SQL, for whole results as Arrow (needs the extra: dpsql[flight])
--status PLACE  port, or host:port, of /healthz and Prometheus' /metrics; not encrypted, without data
--log FILE  audit log, a line of JSON for each statement; default: beside the ledger
--connections N  most sessions at once (default: 200)
--per-account N  most sessions of one analyst (default: 50)
--statement-bytes N  most bytes of one message (default: 1000000)
--statements-per-minute N  most statements of an analyst in a minute (default: 6000)
--idle-timeout SECONDS  end a session after so long without a message (default: 3600)
--grace SECONDS  how long running statements may take to end when the server stops (default: 30)
{_SCANNING}

dpsql mcp  tools for an analyst's agent, over stdin and stdout (needs the extra: dpsql[mcp])
{_BOOKS}
--analyst NAME!  whose account is asked and charged
--database FILE  DuckDB file with the private tables
--releases FILE  releases file; default: beside the policy
--log FILE  audit log; default: beside the ledger
{_SCANNING}

dpsql analyst add  let somebody sign in, with a budget of their own
name NAME  the name that they sign in with, which is the label of their charges
{_BOOKS}{_SHARE}

dpsql analyst list  list who may sign in, what each may spend and has spent
{_BOOKS}

dpsql analyst set  change budget, tables, end or password of an analyst
name NAME  the analyst
{_BOOKS}{_SHARE}

dpsql analyst suspend  keep an analyst from asking until resume
name NAME  the analyst
{_BOOKS}

dpsql analyst resume  let a suspended analyst ask again
name NAME  the analyst
{_BOOKS}

dpsql analyst remove  let an analyst go; what was spent stays spent
name NAME  the analyst
{_BOOKS}

dpsql analyst token  make a token for an analyst's agents, shown once
name NAME  the analyst
{_BOOKS}
--revoke  take all of their tokens back instead

dpsql requests list  list the batches that wait, who asks, and what each would cost
{_LEDGER}
--all  those that were decided, too

dpsql requests show  show one batch whole, with its plan: the error of every number
number N  the request
{_LEDGER}

dpsql requests approve  let a batch be charged, once, when its analyst asks for it again
number N  the request
{_LEDGER}
--note TEXT  what the analyst is told

dpsql requests refuse  keep a batch from being charged
number N  the request
{_LEDGER}
--note TEXT  what the analyst is told

dpsql discover  find the values of a column privately, once; they are its domain from then on
column TABLE.COLUMN  a column that the policy declares without a domain
--epsilon E  what it may cost, with --delta
--delta D  (epsilon, delta)-differential privacy of this discovery; with --rho the chance that its threshold fails
--rho R  instead of epsilon in a rho policy
--max-groups K  in how many values of the column one unit counts at most; needed where a unit may have several rows
--weighted  two rounds in which units of fewer values weigh more: more values, counts with more noise
--max-bytes N  instead of --delta: find texts of at most N bytes, at a pure epsilon
--alphabet TEXT  with --max-bytes: the characters that such a text may have, such as 0123456789 (default: any)
--bounds  find lower and upper bound of a number or a time instead, never its least or largest value
--dry-run  say what it would cost and from how many rows on values appear, for free
--fresh  find and pay again even where the ledger has the answer
{_LABEL}{_SCANNING}{_DELIVERED}{_PLACES}

dpsql synthesize  release randomised rows of a table once, and ask them anything; or make rows from counts, for free
table TABLE  the private table; with --ask, a table or a release's name
--rows N  make N rows that agree with the counts of an earlier release; free
--release N  with --rows, the release; default: the newest of that table
--seed N  with --rows, makes other rows (default: 0)
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
--method auto|adaptive|sparse|mwem|mwem-strategy  the mechanism of the plan, as for dpsql plan (default: auto)
--rounds N  rounds of adaptive and mwem; chosen by simulation if left out
--database FILE  DuckDB file with the private tables, for the types of their columns alone; else the policy gives them
--trials N  noisy measurements of each of two neighbouring databases (default: 1000)
--pairs N  about how many scans to spend on the largest change, for each kind of unit (default: 200)

dpsql glossary  say what the words of plans, reports and messages mean
word WORD*  words to explain; default: all of them

dpsql completion  print a script by which a shell completes commands and options: eval "$(dpsql completion bash)"
shell bash|zsh|fish  the shell

dpsql demo  the whole way from policy to answers on data of a health-care trial
--directory DIR  where ledger and releases go (default: beside the policy of a checkout, else ./demo)
"""  # noqa: S608 - no SQL


def parser(words: Sequence[str] = ()) -> argparse.ArgumentParser:
    """The grammar of the command line; of the command alone that ``words`` begin with, if they begin with one."""
    top = argparse.ArgumentParser(
        prog="dpsql",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=functools.partial(argparse.RawDescriptionHelpFormatter, max_help_position=20),
    )
    top.add_argument("--version", action="version", version=f"dpsql {dpsql.__version__}")
    groups = {"": top.add_subparsers(title="commands", metavar="COMMAND", required=True)}
    commands = list(grammar())
    for full, said, lines in [one for one in commands if _begin(words, one[0])] or commands:
        group, _, name = full.rpartition(" ")
        if group not in groups:
            short, long = GROUPS[group]
            made = groups[""].add_parser(group, help=short, description=long)
            groups[group] = made.add_subparsers(title="commands", metavar="COMMAND", required=True)
        command = groups[group].add_parser(name, help=said, description=said[0].upper() + said[1:] + ".")
        # Options that do not go together are wrong usage too: argparse's own message and exit code.
        command.set_defaults(action=full, usage=command.error)
        for spelled, meaning in lines:
            _add(command, spelled, meaning)
    return top


def _begin(words: Sequence[str], command: str) -> bool:
    return [*words[: len(command.split())]] == command.split()


def grammar() -> Iterator[tuple[str, str, list[tuple[str, str]]]]:
    """Commands, what they do, and their options and arguments: how each is spelled and what it does."""
    for block in re.sub(r"\n +", " ", _GRAMMAR).split("\ndpsql ")[1:]:
        (name, said), *lines = [line.split("  ", 1) for line in block.split("\n") if line]
        yield name, said, [*_OF_ALL, *((spelled, meaning) for spelled, meaning in lines)]


def _add(command: argparse.ArgumentParser, spelled: str, said: str) -> None:
    """An option or a place of a command, from its line of the grammar."""
    words = spelled.split()
    flags = [word for word in words if word.startswith("-")] or words[:1]
    given: dict[str, Any] = {"help": said, **_MORE.get(flags[-1], {})}
    value = words[-1] if len(words) > len(flags) else ""
    known = os.environ.get(f"DPSQL_{flags[-1].removeprefix('--').upper()}") if flags[-1] in _FROM_ENVIRONMENT else None
    if known:
        given["default"] = known
    elif value.endswith("!"):
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
