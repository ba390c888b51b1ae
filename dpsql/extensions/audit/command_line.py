"""The command ``dpsql audit``."""

from __future__ import annotations

from dpsql.surfaces.command_text import Commands

_GRAMMAR = """
dpsql audit  test a batch's promise on generated neighbouring databases
policy POLICY  policy file (TOML)
batch BATCH.sql  SQL file of the batch
+ budget method rounds
--database FILE  DuckDB file with the private tables, for the types of their columns alone; else the policy gives them
--trials N:whole=1000  noisy measurements of each of two neighbouring databases (default: 1000)
--pairs N:whole=200  about how many scans to spend on the largest change, for each kind of unit (default: 200)
"""

COMMANDS = Commands(_GRAMMAR, {"audit": "dpsql.extensions.audit.command:audit"})
