"""The options that several commands share, in the language of ``dpsql.surfaces.grammar``."""

from __future__ import annotations

FORMATS = ("table", "csv", "json", "parquet")

PLACES = """
--policy FILE!  policy file (TOML); or set DPSQL_POLICY
--database FILE  DuckDB file with the private tables; not needed where the policy names it, or sources; or
    set DPSQL_DATABASE
--ledger FILE  ledger file; default: beside the policy
--releases FILE  releases file; default: beside the policy
--anchor FILE  file kept elsewhere that detects an older copy of the ledger put back
"""
RELEASED = """
--releases FILE  releases file; the only file that is read
--policy FILE  policy file, to find the releases file beside it
"""
BUDGET = """
--epsilon E  budget of the batch: pure, or with the policy's delta
--delta D  with --epsilon: (epsilon, delta)-differential privacy
--rho R  instead of both: zero-concentrated differential privacy
"""
ALPHA = """
--alpha A  1 - confidence of the intervals (default: 0.05)
"""
PLANNING = f"""
file FILE?  SQL file of the batch, or - for stdin
--sql TEXT  the batch itself, instead of FILE
{BUDGET}{ALPHA}
--time-limit SECONDS  stop searching for a better strategy after that
--objective balanced|total|max  what is least: the mean over the columns of their squared error beside asking each
    alone, the total squared error, or the largest error of an answer (default: balanced; with a wanted error, the
    budget)
--method auto|adaptive|sparse|mwem|mwem-strategy|NAME  auto: the strategy of least error, known before anything is
    spent; adaptive: for counts over many columns, marginals chosen by the data in rounds, errors estimated only;
    sparse: for one COUNT by groups of which most are empty, those that noise does not hide; mwem, mwem-strategy: the
    papers' way, over few cells; NAME: a strategy of the catalogue, such as haar or eigen-design
--no-earlier  plan as if nothing had been released before
--rounds N  rounds of adaptive and mwem; chosen by simulation if left out
--rows-per-unit N  at most N rows of a unit count, where the policy lets more count; errors fall
--max-error [NAME=]E  instead of a budget: spend the least that gives each number +-E (or those of result NAME;
    repeatable)
--relative R  the same, +-R times what the policy's expected_rows let expect
--simultaneous  with a wanted error: all intervals together, not each alone
--expect NAME=ROWS  with a wanted error: rows that a group of result NAME is guessed to have (repeatable)
{PLACES}"""
TODAY = """
--today DATE  the day that decides which periods of a growing table are over (default: the day that it is, UTC)
"""
LABEL = """
--label TEXT  who asks or why, written beside the charge
"""
SCANNING = """
--memory-limit SIZE  the most memory of a scan, such as 4GB
--scan-timeout SECONDS  stop a scan after that; it is charged
"""
NO_ERRORS = """
--no-errors  leave the _stderr, _low and _high columns out
"""
DELIVERED = f"""
--format {"|".join(FORMATS)}  how to show it; default: by the suffix of --output, else table; json is the
    document of --json
-o --output FILE  write to FILE; a folder, such as out/, for a file each of several results
"""
PAGE = """
-o --output FILE.html!  the page; - for stdout (needs the extra: dpsql[plot])
"""
LEDGER = """
policy POLICY  policy file (TOML)
--ledger FILE  ledger file; default: beside the policy
--anchor FILE  the ledger's anchor, if it has one
"""
