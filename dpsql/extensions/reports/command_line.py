"""The commands ``dpsql report`` and ``dpsql glossary``."""

from __future__ import annotations

from dpsql.surfaces.command_text import Commands

_PAGE = "-o --output FILE.html!  the page; - for stdout (needs the extra: dpsql[plot])"
_GRAMMAR = f"""
dpsql report plan  a page with the error of every number before anything is spent; free
+ batch budget level search places
{_PAGE}

dpsql report release  a page with the tables and pictures of a release; free
release ID?:whole  number of the release; default: the newest
+ releases policy?
{_PAGE}

dpsql glossary  say what the words of plans, reports and messages mean
word WORD*  words to explain; default: all of them
"""

COMMANDS = Commands(
    _GRAMMAR,
    {
        "report plan": "dpsql.extensions.reports.command:report_plan",
        "report release": "dpsql.extensions.reports.command:report_release",
        "glossary": "dpsql.extensions.reports.glossary:glossary",
    },
    shown={"ask": "report glossary"},
    groups={
        "report": ("write a plan or a release as one HTML page", "Write one self-contained HTML page."),
    },
)
