"""The command ``dpsql audit``."""

from __future__ import annotations

from dpsql.surfaces.command_text import Commands
from dpsql.surfaces.option_text import BUDGET

_GRAMMAR = f"""
dpsql audit  hold a batch to its promise on generated neighbouring databases
policy POLICY  policy file (TOML)
batch BATCH.sql  SQL file of the batch
{BUDGET}
--method auto|adaptive|sparse|mwem|mwem-strategy|NAME  the mechanism of the plan, as for dpsql plan (default: auto)
--rounds N  rounds of adaptive and mwem; chosen by simulation if left out
--database FILE  DuckDB file with the private tables, for the types of their columns alone; else the policy gives them
--trials N  noisy measurements of each of two neighbouring databases (default: 1000)
--pairs N  about how many scans to spend on the largest change, for each kind of unit (default: 200)
"""

COMMANDS = Commands(
    _GRAMMAR,
    {
        "audit": "dpsql.extensions.audit.command:audit",
    },
    details={"--trials": {"type": int, "default": 1000}, "--pairs": {"type": int, "default": 200}},
)
