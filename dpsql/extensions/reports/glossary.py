"""The words of dpsql: docs/glossary.md, which a wheel has in the package, as a command and beside a report."""

from __future__ import annotations

import argparse
import functools
import re
from pathlib import Path

import dpsql
from dpsql.errors import OperationalError, ProgrammingError, nearest
from dpsql.surfaces import output

_ROW = re.compile(r"\| (\*\*.+?) \| (.+) \|$")
_LINK = re.compile(r"\[([^\]]+)\]\([^)]*\)")


@functools.cache
def meanings() -> dict[str, str]:
    """Every word with its meaning, in the order of the page. Raises OperationalError where the page is missing."""
    path = Path(dpsql.__file__).parent / "glossary.md"
    try:
        page = (path if path.is_file() else path.parents[1] / "docs" / path.name).read_text(encoding="utf-8")
    except OSError:
        raise OperationalError(f"this installation has no {path}; install dpsql from its wheel") from None
    rows = (_ROW.match(line) for line in page.splitlines())
    return {_plain(row[1]): _plain(row[2]) for row in rows if row}


def _plain(text: str) -> str:
    return _LINK.sub(r"\1", text).replace("**", "").replace("`", "")


def glossary(options: argparse.Namespace) -> None:
    """Show what all words mean, or those that were asked for."""
    found = meanings()
    kept: dict[str, str] = {}
    for word in options.word:
        asked = re.compile(rf"\b{re.escape(word)}\b", re.IGNORECASE)
        named = {name: said for name, said in found.items() if asked.search(name)}
        if not named:
            raise ProgrammingError(f"the glossary has no word {word!r}; {nearest(word, found)}")
        kept |= named
    kept = kept or found
    if options.json:
        output.print_json(kept)
        return
    output.show("\n".join(output.prose(f"{name}: {said}") for name, said in kept.items()))
