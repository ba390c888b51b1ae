"""The commands of the kernel, in the language of ``dpsql.surfaces.command_text``."""

from __future__ import annotations

from dpsql.surfaces.command_text import Commands

_GRAMMAR = """
dpsql plan  show the error of every answer before anything is spent; free
+ batch budget level search places today
--explain  say how it is measured (strategy, cells), and of each statement what is private and what follows it
--stages  print what each stage made of the statements, from their text to counts and sums; plans nothing

dpsql run  spend the budget of a batch once, show its noisy tables
+ batch budget level search places today
+ run scanning delivered

dpsql budget  show what is spent, by whom and for what, and what is left
+ today places

dpsql releases list  list every charge of the ledger
+ places

dpsql releases show  show one released table
name NAME  a result of the latest release that has it, such as by_state; or r3.by_state, that of release 3
+ delivered releases policy?

dpsql releases rename  show a result under another name from now on; a rebuild keeps it
name NAME  what the result is called now
to TO  what it is to be called
--release ID:whole  of this release alone; default: of all releases
+ places

dpsql releases drop  take results out of the releases file; refunds nothing, and a rebuild keeps it
name NAME*  results to drop
--release ID:whole  of this release alone; without NAME all of its results
+ places

dpsql releases export  write the results of one release as files
release ID?:whole  number of the release; default: the newest
--result NAME+  these results; default: all of them
--format table|csv|json|parquet|duckdb  how to show it; default: by the suffix of --output, else table
+ output releases policy?

dpsql releases rebuild  make the releases file anew from the ledger
+ places

dpsql ledger backup  copy the ledger, whole and of one moment, whoever writes meanwhile
file FILE  the copy; an older copy of the same ledger is replaced
+ places

dpsql ledger restore  put a backup in the ledger's place; what is there is kept under another name
file FILE  the backup
--lost AMOUNT?  what was spent since, which is charged: without AMOUNT what the anchor counts, or all that is left where
    nobody counts; AMOUNT, where nobody counts, is epsilon of every account (rho in a rho policy), 0 for nothing
+ places

dpsql ledger verify  hold the ledger, its anchor and the releases file against each other, with every measurement
+ places

dpsql sql  run one SELECT over the releases; free
query QUERY?  the SELECT, or - to read it from stdin
--sql TEXT  the same as QUERY
--errors  an interval beside every number, computed ones too; needs --policy, for the ledger
+ population level
--timeout SECONDS:seconds  stop the query after that; default: 60, 0 for never
+ delivered places?

dpsql shell  type SQL line by line; answers as of dpsql run, with history and completion
+ budget level search run scanning today places

dpsql completion  print a script with which a shell completes commands: eval "$(dpsql completion bash)"
shell bash|zsh|fish  the shell

dpsql demo  go from policy to answers on data of a health-care trial
--directory DIR  where ledger and releases go (default: beside the policy of a checkout, else ./demo)
"""

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
        "shell": "dpsql.surfaces.shell:shell",
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
    shown={"ask": "plan run sql shell budget releases demo", "keep": "ledger completion"},
)
