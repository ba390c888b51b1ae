"""The command ``dpsql discover``."""

from __future__ import annotations

from dpsql.surfaces.command_text import Commands
from dpsql.surfaces.option_text import DELIVERED, LABEL, PLACES, SCANNING

_GRAMMAR = f"""
dpsql discover  find the values of a column privately, once; they are its domain from then on
column TABLE.COLUMN  a column that the policy declares without a domain
--epsilon E  what it may cost, with --delta
--delta D  (epsilon, delta)-differential privacy of this discovery; with --rho the chance that its threshold fails
--rho R  instead of epsilon in a rho policy
--max-groups K  in how many values of the column one unit counts at most; needed where a unit may have several rows
--max-bytes N  instead of --delta: find texts of at most N bytes, at a pure epsilon
--alphabet TEXT  with --max-bytes: the characters that such a text may have, such as 0123456789 (default: any)
--bounds  find lower and upper bound of a number or a time instead, never its least or largest value
--dry-run  say what it would cost and from how many rows on values appear, for free
--fresh  find and pay again even where the ledger has the answer
{LABEL}{SCANNING}{DELIVERED}{PLACES}
"""

COMMANDS = Commands(
    _GRAMMAR,
    {"discover": "dpsql.extensions.discovery.command:discover"},
    details={"--max-groups": {"type": int}, "--max-bytes": {"type": int}},
)
