"""The commands of tables that grow: ``dpsql schedule``, ``dpsql release --due`` and ``dpsql budget --periods``."""

from __future__ import annotations

from dpsql.surfaces.command_text import Commands, horizon
from dpsql.surfaces.option_text import BUDGET, LABEL, PLACES, TODAY

_GRAMMAR = f"""
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

dpsql release  release an expected workload once, so that questions within it are free
--due  instead: release the standing batches ('dpsql schedule') of every period that is over and not released yet; safe
    to call at any time, from cron or several machines: each period is charged and released once

dpsql budget  show what is spent, by whom and for what, and what is left
--periods  of each period of a growing table: what is spent and what is left
"""

COMMANDS = Commands(
    _GRAMMAR,
    {
        "schedule add": "dpsql.extensions.periods.command:add",
        "schedule list": "dpsql.extensions.periods.command:list_",
        "schedule remove": "dpsql.extensions.periods.command:remove",
    },
    groups={
        "schedule": (
            "have a batch released of every period of a growing table",
            "Standing batches: what 'dpsql release --due' releases of each period once it is over.",
        ),
    },
    details={"--horizon": {"type": horizon}, "--from": {"dest": "first"}},
    instead={
        ("release", "due"): "dpsql.extensions.periods.command:due",
        ("budget", "periods"): "dpsql.extensions.periods.command:periods",
    },
)
