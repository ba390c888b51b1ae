"""The commands of the kernel, in the language of ``dpsql.surfaces.command_text``."""

from __future__ import annotations

from dpsql.surfaces.command_text import Commands, number, seconds
from dpsql.surfaces.option_text import (
    ALPHA,
    DELIVERED,
    LABEL,
    NO_ERRORS,
    PLACES,
    PLANNING,
    RELEASED,
    SCANNING,
    TODAY,
)

_GRAMMAR = f"""
dpsql plan  show the error of every answer before anything is spent; free
{PLANNING}{TODAY}
--explain  say how it is measured (strategy, cells), and of each statement what is private and what follows it

dpsql run  spend the budget of a batch once, show and keep its noisy tables
{PLANNING}{TODAY}
--fresh  measure and pay again even where the ledger has the answers
{NO_ERRORS}
--estimates unbiased|feasible|whole|auto  feasible: the nearest numbers that a table could have, none negative; whole:
    whole numbers, too; auto: feasible where expected_rows lets expect less error of them. Free, also of an earlier run
    of the same batch
{LABEL}{SCANNING}{DELIVERED}

dpsql budget  show what is spent, by whom and for what, and what is left
{TODAY}{PLACES}

dpsql releases list  list every charge of the ledger
{PLACES}

dpsql releases show  show one released table
name NAME  a result of the latest release that has it, such as by_state; or r3.by_state, that of release 3
{DELIVERED}{RELEASED}

dpsql releases rename  show a result under another name from now on; a rebuild keeps it
name NAME  what the result is called now
to TO  what it is to be called
--release ID  of this release alone; default: of all releases
{PLACES}

dpsql releases drop  take results out of the releases file; refunds nothing, and a rebuild keeps it
name NAME*  results to drop
--release ID  of this release alone; without NAME all of its results
{PLACES}

dpsql releases export  write the results of one release as files
release ID?  number of the release; default: the newest
--result NAME  these results; default: all of them
{DELIVERED.replace("  how", "|duckdb  how")}{RELEASED}

dpsql releases rebuild  make the releases file anew from the ledger
{PLACES}

dpsql ledger backup  copy the ledger, whole and of one moment, whoever writes meanwhile
file FILE  the copy; an older copy of the same ledger is replaced
{PLACES}

dpsql ledger restore  put a backup in the ledger's place; what is there is kept under another name
file FILE  the backup
--lost AMOUNT?  what was spent since, which is charged: without AMOUNT what the anchor counts, or all that is left where
    nobody counts; AMOUNT, where nobody counts, is epsilon of every account (rho in a rho policy), 0 for nothing
{PLACES}

dpsql ledger verify  hold the ledger, its anchor and the releases file against each other, with every measurement
{PLACES}

dpsql sql  run one SELECT over the releases; free
query QUERY?  the SELECT, or - to read it from stdin
--sql TEXT  the same as QUERY
--errors  an interval beside every number, computed ones too; needs --policy, for the ledger
--population sample|rows  with --errors: whether intervals are about a population that the rows are a sample of
{ALPHA}
--timeout SECONDS  stop the query after that; default: 60, 0 for never
{DELIVERED}{RELEASED}
--database FILE  with --errors: DuckDB file with the private tables, whose column types are read
--ledger FILE  with --errors: ledger file; default: beside the policy
--anchor FILE  with --errors: as for dpsql run

dpsql completion  print a script by which a shell completes commands and options: eval "$(dpsql completion bash)"
shell bash|zsh|fish  the shell

dpsql demo  the whole way from policy to answers on data of a health-care trial
--directory DIR  where ledger and releases go (default: beside the policy of a checkout, else ./demo)
"""  # noqa: S608 - no SQL

COMMANDS = Commands(
    _GRAMMAR,
    {
        "plan": "dpsql.surfaces.commands:plan",
        "run": "dpsql.surfaces.commands:run",
        "budget": "dpsql.surfaces.commands:budget",
        "releases list": "dpsql.surfaces.releases:list_",
        "releases show": "dpsql.surfaces.releases:show",
        "releases rename": "dpsql.surfaces.releases:rename",
        "releases drop": "dpsql.surfaces.releases:drop",
        "releases export": "dpsql.surfaces.releases:export",
        "releases rebuild": "dpsql.surfaces.releases:rebuild",
        "ledger backup": "dpsql.surfaces.ledgers:backup",
        "ledger restore": "dpsql.surfaces.ledgers:restore",
        "ledger verify": "dpsql.surfaces.ledgers:verify",
        "sql": "dpsql.surfaces.releases:sql",
        "completion": "dpsql.surfaces.completion:completion",
        "demo": "dpsql.surfaces.demo:demo",
    },
    groups={
        "releases": (
            "list, show, rename, drop, export or rebuild what was released",
            "What was released. None of these commands spends or refunds anything.",
        ),
        "ledger": (
            "back up, restore or verify the ledger",
            "The record of what was spent, which must not be lost. None of these commands gives anything back.",
        ),
    },
    details={
        "release": {"type": int},
        **{
            key: {"type": int}
            for key in (
                "--rounds",
                "--rows-per-unit",
                "--release",
            )
        },
        **{key: {"type": float} for key in ("--time-limit", "--scan-timeout")},
        "--alpha": {"type": float, "default": 0.05},
        "--lost": {"const": "counted"},
        "--relative": {"type": number},
        "--timeout": {"type": seconds},
        **{key: {"default": "unbiased"} for key in ("--estimates",)},
        "--method": {"default": "auto"},
        **{key: {"action": "append"} for key in ("--max-error", "--expect")},
        **{key: {"nargs": "+", "action": "extend", "default": []} for key in ("--result",)},
        "--no-errors": {"dest": "errors", "action": "store_false"},
        "--no-earlier": {"dest": "earlier", "action": "store_false"},
    },
)
