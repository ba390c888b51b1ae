"""The commands of tables that grow: ``dpsql schedule``, ``dpsql release --due`` and ``dpsql budget --periods``."""

from __future__ import annotations

from dpsql.surfaces.command_text import Commands

_GRAMMAR = """
dpsql schedule add  release a batch of every period of a growing table, once each; spends nothing yet
+ batch
--name NAME!  what the schedule is called; a name is given once
--every period!  how often: once for every period of the table
+ budget
--table NAME  the table, where the policy has several with periods
--from --first DATE  the earliest period; default: the first of all
--horizon N:periods  measure so many periods, or endless, each together with earlier ones: totals so far of least error
--windows N,N  with --horizon, also sums over the last so many periods, such as 7,30; if endless, these alone
+ label today places

dpsql schedule list  show the standing batches, and which periods of each are released, due, or cut off
+ today places

dpsql schedule remove  release nothing more of a standing batch; what was released stays
name NAME  the schedule
+ places

dpsql release  release an expected workload once; questions within it are free then
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
    instead={
        ("release", "due"): "dpsql.extensions.periods.command:due",
        ("budget", "periods"): "dpsql.extensions.periods.command:periods",
    },
)
