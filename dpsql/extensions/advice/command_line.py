"""The commands that advise: ``dpsql policy``, ``dpsql release`` and ``dpsql plan --what-if``."""

from __future__ import annotations

from dpsql.surfaces.command_text import Commands

_GRAMMAR = """
dpsql policy init  print a first policy for the custodian to confirm: from the schema, or with --discover from the rows
--database FILE  DuckDB file with the private tables
--source PLACE+  Parquet or CSV files, folders of Parquet files, or quoted patterns such as 'visits/*.parquet'; a table
    each, and NAME=PLACE names it; no row is read, of CSV files the header line alone
--dataset NAME  id of the data set; default: file name and -1
--discover  find privately what the policy of --policy leaves out, at one charge: values, bounds, rows, rows of a unit
--policy FILE  with --discover: a policy whose unit and budget are decided
--epsilon E  with --discover: what it may cost, with --delta
--delta D  with --discover: (epsilon, delta)-differential privacy of the survey; default: half of the delta for finding
    groups; with --rho the chance that it fails
--rho R  with --discover: instead of epsilon in a rho policy
--max-groups K:whole  with --discover: in how many values of a column one unit counts at most (default: 1)
--dry-run  with --discover: say what it would cost, with the error of each part, for free
--fresh  with --discover: find and pay again even where the ledger has the answer
+ ledger anchor

dpsql policy renew  declare a new version of the data; what was spent stays spent
policy POLICY  policy file (TOML) with the new dataset name
--was NAME!  the dataset name that the ledger knows so far
--database FILE  DuckDB file with the private tables, whose next change is noticed
+ ledger anchor

dpsql policy confirm  say that tables are as they were though files were written to, and sound though a scan failed
policy POLICY  policy file (TOML)
--database FILE  DuckDB file with the private tables
+ ledger anchor

dpsql policy check  hold a policy against the types of the tables; with a budget count what domains miss and keys repeat
policy POLICY  policy file (TOML)
--database FILE  DuckDB file with the private tables
+ budget
--losses  with a budget: measure what limits cut alone, for that budget once
--dry-run  with a budget: show the plan and spend nothing
--fresh  with a budget: count and pay again even where the ledger has the answers
+ ledger anchor

dpsql policy show  show what is public by now: the policy, and the domains that were found
policy POLICY  policy file (TOML)
--toml  print it as a policy file
--database FILE  DuckDB file with the private tables
+ ledger anchor

dpsql release  release an expected workload once; questions within it are free then
--workload FAMILY*  what is expected, repeatable: 'ranges(age)', 'prefixes(age)', 'marginals(2, sex, state)' (all
    groupings by up to 2 of them), 'groups(sex, state)', each perhaps 'of count, sum(cost)'; instead of SQL or beside it
--table NAME  the private table, where the policy has several
+ today
--dry-run  show the plan and spend nothing
+ batch budget level search places fresh label scanning

dpsql plan  show the error of every answer before anything is spent; free
--what-if  also show error against budget, what each statement costs the others, and what to change
"""

COMMANDS = Commands(
    _GRAMMAR,
    {
        "policy init": "dpsql.extensions.advice.policy_commands:init",
        "policy renew": "dpsql.extensions.advice.policy_commands:renew",
        "policy confirm": "dpsql.extensions.advice.policy_commands:confirm",
        "policy check": "dpsql.extensions.advice.policy_commands:check",
        "policy show": "dpsql.extensions.advice.policy_commands:show",
        "release": "dpsql.extensions.advice.command:release",
    },
    groups={
        "policy": (
            "write a first policy, check one, declare a new version",
            "What the custodian declares: the only thing that is taken for public.",
        ),
    },
    instead={("plan", "what_if"): "dpsql.extensions.advice.command:what_if"},
)
