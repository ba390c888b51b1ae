"""Colours of the command line: on a terminal only, none where NO_COLOR is set or the terminal is a dumb one."""

from __future__ import annotations

import os
import re
from typing import TextIO

_BOLD, _DIM, _RED, _YELLOW, _END = "\x1b[1m", "\x1b[2m", "\x1b[31m", "\x1b[33m", "\x1b[0m"
_RULE = re.compile(r" *-+(?:  +-+)* *\Z")
_LABEL = re.compile(r"(?:Guarantee|Cost|Batch|Scan|Strategy|Instead|Note|Release|Policy|Budget|Ledger|Releases) {2,}")


def coloured(stream: TextIO) -> bool:
    """Whether ``stream`` is shown by something that understands colours and a reader who wants them."""
    # no-color.org: any value but the empty one says no
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def painted(text: str, stream: TextIO) -> str:
    """``text`` with heads of tables and labels of lines set off where ``stream`` takes colours; else as it is."""
    if not coloured(stream):
        return text
    lines = text.split("\n")
    for at, line in enumerate(lines):
        label = _LABEL.match(line)
        if _RULE.match(line) and at and lines[at - 1].strip():
            lines[at - 1] = f"{_BOLD}{lines[at - 1]}{_END}"
            lines[at] = f"{_DIM}{line}{_END}"
        elif label:
            lines[at] = f"{_BOLD}{label[0]}{_END}{line[label.end() :]}"
    return "\n".join(lines)


def marked(word: str, stream: TextIO) -> str:
    """The word, "error:" in red and "warning:" in yellow, where ``stream`` takes colours."""
    if not coloured(stream):
        return word
    return f"{_RED if word.startswith('error') else _YELLOW}{word}{_END}"
