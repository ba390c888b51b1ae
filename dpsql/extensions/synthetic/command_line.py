"""The option ``dpsql synthesize --rows``."""

from __future__ import annotations

from dpsql.surfaces.command_text import Commands

_GRAMMAR = """
dpsql synthesize  release randomised rows of a table once; ask them anything; or make rows from counts, for free
--rows N:whole  make N rows that agree with the counts of an earlier release; free
--release N:whole  with --rows, the release; default: the newest of that table
--seed N:whole  with --rows, makes other rows (default: 0)
"""

COMMANDS = Commands(
    _GRAMMAR,
    {},
    instead={
        ("synthesize", option): "dpsql.extensions.synthetic.command:make_rows" for option in ("rows", "release", "seed")
    },
)
