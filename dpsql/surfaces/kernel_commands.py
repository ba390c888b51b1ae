"""The commands of the kernel, in the language of ``dpsql.surfaces.command_text``."""

from __future__ import annotations

from dpsql.surfaces.command_text import Commands, horizon, number, seconds
from dpsql.surfaces.option_text import (
    ALPHA,
    BUDGET,
    DELIVERED,
    LABEL,
    NO_ERRORS,
    PAGE,
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
--what-if  also show error against budget, what each statement costs the others, and what to change

dpsql run  spend the budget of a batch once, show and keep its noisy tables
{PLANNING}{TODAY}
--fresh  measure and pay again even where the ledger has the answers
{NO_ERRORS}
--estimates unbiased|feasible|whole|auto  feasible: the nearest numbers that a table could have, none negative; whole:
    whole numbers, too; auto: feasible where expected_rows lets expect less error of them. Free, also of an earlier run
    of the same batch
{LABEL}{SCANNING}{DELIVERED}

dpsql release  release an expected workload once, so that questions within it are free
--workload FAMILY  what is expected, repeatable: 'ranges(age)', 'prefixes(age)', 'marginals(2, sex, state)' (all
    groupings by up to 2 of them), 'groups(sex, state)', each perhaps 'of count, sum(cost)'; instead of SQL or beside it
--table NAME  the private table, where the policy has several
--due  instead: release the standing batches ('dpsql schedule') of every period that is over and not released yet; safe
    to call at any time, from cron or several machines: each period is charged and released once
{TODAY.strip()}
--dry-run  show the plan and spend nothing
{PLANNING}
--fresh  measure and pay again even where the ledger has it
{LABEL}{SCANNING}

dpsql schedule add  release a batch of every period of a growing table, once each; spends nothing yet
file FILE?  SQL file of the batch, or - for stdin; it reads the table as if it had one period alone
--sql TEXT  the batch itself, instead of FILE
--name NAME!  what the schedule is called; a name is given once
--every period!  how often: once for every period of the table
{BUDGET}
--table NAME  the table, where the policy has several with periods
--from DATE  the earliest period; default: the first of all
--horizon N  measure so many periods, or endless, each together with earlier ones: totals so far of least error
--windows N,N  with --horizon, also sums over the last so many periods, such as 7,30; if endless, these alone
{LABEL}{TODAY}{PLACES}

dpsql schedule list  show the standing batches, and which periods of each are released, due, or cut off
{TODAY}{PLACES}

dpsql schedule remove  release nothing more of a standing batch; what was released stays
name NAME  the schedule
{PLACES}

dpsql budget  show what is spent, by whom and for what, and what is left
--periods  of each period of a growing table: what is spent and what is left
{TODAY}{PLACES}

dpsql report plan  a page with the error of every number before anything is spent; free
{PLANNING}{PAGE}

dpsql report release  a page with the tables and pictures of a release; free
release ID?  number of the release; default: the newest
{RELEASED}{PAGE}

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

dpsql policy check  hold a policy against the types of the tables; with a budget count the rows that its domains miss
policy POLICY  policy file (TOML)
--database FILE  DuckDB file with the private tables
--epsilon E  count privately how many rows each domain misses, at that budget: pure, or with the policy's delta
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
{LABEL}{SCANNING}{DELIVERED}{PLACES}

dpsql synthesize  release randomised rows of a table once, and ask them anything; or make rows from counts, for free
table TABLE  the private table; with --ask, a table or a release's name
--rows N  make N rows that agree with the counts of an earlier release; free
--release N  with --rows, the release; default: the newest of that table
--seed N  with --rows, makes other rows (default: 0)
--columns A,B  release these columns together, each row randomised once
--epsilon E  epsilon of one row; a unit pays it for each row it may have
--ids A,B  columns that the policy declares public, kept as they are
--name NAME  view of the released rows; default: TABLE_synthetic
{LABEL}
--ask SQL  answer a SELECT from what was released; free
--estimator unbiased|proper  proper rounds counts and sums to possible answers (default: unbiased)
--bounds  with --ask, show bounds of the errors instead of the answers
{ALPHA}{NO_ERRORS}{SCANNING}{DELIVERED}{PLACES}

dpsql glossary  say what the words of plans, reports and messages mean
word WORD*  words to explain; default: all of them

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
        "release": "dpsql.surfaces.commands:release",
        "budget": "dpsql.surfaces.commands:budget",
        "report plan": "dpsql.surfaces.commands:report_plan",
        "report release": "dpsql.surfaces.commands:report_release",
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
        "policy init": "dpsql.surfaces.policies:init",
        "policy renew": "dpsql.surfaces.policies:renew",
        "policy confirm": "dpsql.surfaces.policies:confirm",
        "policy check": "dpsql.surfaces.policies:check",
        "policy show": "dpsql.surfaces.policies:show",
        "schedule add": "dpsql.surfaces.schedules:add",
        "schedule list": "dpsql.surfaces.schedules:list_",
        "schedule remove": "dpsql.surfaces.schedules:remove",
        "discover": "dpsql.surfaces.commands:discover",
        "synthesize": "dpsql.surfaces.commands:synthesize",
        "glossary": "dpsql.surfaces.glossary:glossary",
        "completion": "dpsql.surfaces.completion:completion",
        "demo": "dpsql.surfaces.demo:demo",
    },
    groups={
        "report": ("write a plan or a release as one HTML page", "Write one self-contained HTML page."),
        "releases": (
            "list, show, rename, drop, export or rebuild what was released",
            "What was released. None of these commands spends or refunds anything.",
        ),
        "schedule": (
            "have a batch released of every period of a growing table",
            "Standing batches: what 'dpsql release --due' releases of each period once it is over.",
        ),
        "ledger": (
            "back up, restore or verify the ledger",
            "The record of what was spent, which must not be lost. None of these commands gives anything back.",
        ),
        "policy": (
            "write a first policy, check one, declare a new version",
            "What the custodian declares: the only thing that is taken for public.",
        ),
    },
    details={
        "release": {"type": int},
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
        **{key: {"type": float} for key in ("--time-limit", "--scan-timeout")},
        "--alpha": {"type": float, "default": 0.05},
        "--lost": {"const": "counted"},
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
    },
)
