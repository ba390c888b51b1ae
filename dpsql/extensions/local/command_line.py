"""The command ``dpsql synthesize``."""

from __future__ import annotations

from dpsql.surfaces.command_text import Commands
from dpsql.surfaces.option_text import ALPHA, DELIVERED, LABEL, NO_ERRORS, PLACES, SCANNING

_GRAMMAR = f"""
dpsql synthesize  release randomised rows of a table once, and ask them anything
table TABLE  the private table; with --ask, a table or a release's name
--columns A,B  release these columns together, each row randomised once
--epsilon E  epsilon of one row; a unit pays it for each row it may have
--ids A,B  columns that the policy declares public, kept as they are
--name NAME  view of the released rows; default: TABLE_synthetic
{LABEL}
--ask SQL  answer a SELECT from what was released; free
--estimator unbiased|proper  proper rounds counts and sums to possible answers (default: unbiased)
--bounds  with --ask, show bounds of the errors instead of the answers
{ALPHA}{NO_ERRORS}{SCANNING}{DELIVERED}{PLACES}
"""

COMMANDS = Commands(
    _GRAMMAR,
    {
        "synthesize": "dpsql.extensions.local.command:synthesize",
    },
    details={"--estimator": {"default": "unbiased"}},
)
