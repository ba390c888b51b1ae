"""The command ``dpsql discover``."""

from __future__ import annotations

from dpsql.common.options import rows
from dpsql.surfaces.command_text import Commands

OPTIONS = tuple(rows("--max-groups K:whole  call command  in how many values of a column one unit counts at most"))

_GRAMMAR = """
dpsql discover  find the values of a column privately, once; they are its domain from then on
column TABLE.COLUMN  a column that the policy declares without a domain, or with --unit-rows a table
--epsilon E  what it may cost, with --delta
--delta D  (epsilon, delta)-differential privacy of this discovery; with --rho the chance that its threshold fails
--rho R  instead of epsilon in a rho policy
--max-groups K:whole  in how many values one unit counts at most; needed where a unit may have several rows
--max-bytes N:whole  instead of --delta: find texts of at most N bytes, at a pure epsilon
--alphabet TEXT  with --max-bytes: the characters that such a text may have, such as 0123456789 (default: any)
--bounds  find lower and upper bound of a number or a time instead, never its least or largest value
--unit-sum  find a bound on what one unit adds to the sum of the column instead, with noise and cut of each bound
--unit-rows  find a limit on the rows of one unit in the table instead, with noise and cut of each limit
--unit-groups  find in how many values of the column one unit should count, with noise and cut of each limit
--per COLUMN  with --unit-sum or --unit-rows: a limit for each value of this column
--sum-epsilon E  with --unit-...: the epsilon at which sums and counts will be asked (default: the same)
--dry-run  say what it would cost and from how many rows on values appear, for free
+ fresh label scanning delivered places
"""

COMMANDS = Commands(_GRAMMAR, {"discover": "dpsql.extensions.discovery.command:discover"})
