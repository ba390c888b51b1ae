"""The command ``dpsql synthesize``."""

from __future__ import annotations

from dpsql.surfaces.command_text import Commands

_GRAMMAR = """
dpsql synthesize  release randomised rows of a table once; ask them anything
table TABLE  the private table; with --ask, a table or a release's name
--columns A,B  release these columns together, each row randomised once
--epsilon E  epsilon of one row; a unit pays it for each row it may have
--ids A,B  columns that the policy declares public, kept as they are
--name NAME  view of the released rows; default: TABLE_synthetic
+ label
--ask SQL  answer a SELECT from what was released; free
--estimator unbiased|proper:text=unbiased  proper rounds counts and sums to possible answers (default: unbiased)
--bounds  with --ask, show bounds of the errors instead of the answers
+ level errors scanning delivered places
"""

COMMANDS = Commands(
    _GRAMMAR,
    {
        "synthesize": "dpsql.extensions.local.command:synthesize",
    },
    shown={"ask": "synthesize"},
)
