"""Tables that grow: batches released of every period once it is over, alone or together with earlier ones."""

from __future__ import annotations

from dpsql.registry import Extension

EXTENSION = Extension(
    "periods",
    "releases a batch of every period of a table that grows",
    commands="dpsql.extensions.periods.command_line:COMMANDS",
    connection="dpsql.extensions.periods.connection:Standing",
    provides={
        "horizon": "dpsql.extensions.periods.past_periods:of_horizon",
        "schedule": "dpsql.extensions.periods.past_periods:of_period",
    },
)
