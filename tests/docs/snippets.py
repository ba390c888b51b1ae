"""Markdown pages as lists of snippets: fenced blocks, and what hidden comments say about them.

A page is ordinary Markdown. An HTML comment that begins with one of these words speaks to the tests and is never shown:

    <!-- setup          the rest of the comment is Python, run where it stands, before what follows
    ... -->
    <!-- noisy -->      the output below has random numbers: all but its numbers must agree
    <!-- near -->       the output below has computed numbers: they may differ by 5 %
    <!-- skip: why -->  the next block is not run
    <!-- fresh -->      the next block makes an environment of its own: test_tutorial.py runs it

A block without one of them runs, and where a block of ``text`` follows it, that is exactly what it prints.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

LANGUAGES = ("python", "sql", "toml", "bash", "console", "text", "json", "markdown")
DIRECTIVES = ("setup", "noisy", "near", "skip", "fresh")

_FENCE = re.compile(r"^(?P<indent>[ ]*)(?P<ticks>`{3,})[ ]*(?P<info>[^`]*)$")
_COMMENT = re.compile(r"<!--\s*(?P<word>[a-z]+)(?P<rest>.*?)-->", re.DOTALL)


@dataclass
class Snippet:
    """A block of a page: ``first`` to ``last`` are the lines of its text (from 0), ``marks`` the comments before it."""

    language: str
    text: str
    first: int
    last: int
    indent: str = ""
    marks: dict[str, str] = field(default_factory=dict)

    @property
    def line(self) -> int:
        """The line of its fence, as an editor counts."""
        return self.first


def snippets(page: str) -> list[Snippet]:
    """All blocks of a page in order; a ``setup`` comment is a block of that language."""
    found: list[Snippet] = []
    marks: dict[str, str] = {}
    lines = page.split("\n")
    at = 0
    while at < len(lines):
        line = lines[at]
        if "<!--" in line:
            end = at
            while "-->" not in lines[end]:
                end += 1
            comment = _COMMENT.search("\n".join(lines[at : end + 1]))
            if comment and comment["word"] in DIRECTIVES:
                if comment["word"] == "setup":
                    found.append(Snippet("setup", comment["rest"].strip("\n"), at + 1, end))
                else:
                    marks[comment["word"]] = comment["rest"].strip(" :\n")
            at = end + 1
            continue
        fence = _FENCE.match(line)
        if fence is None:
            at += 1
            continue
        end = at + 1
        while lines[end].strip() != fence["ticks"]:
            end += 1
        indent = fence["indent"]
        text = "\n".join(part.removeprefix(indent) for part in lines[at + 1 : end])
        language = (fence["info"].split() or [""])[0]
        found.append(Snippet(language, text, at + 1, end, indent, marks))
        marks = {}
        at = end + 1
    return found


_NUMBER = re.compile(r"[-+]?(?:\d[\d,]*\.?\d*|\.\d+)(?:e[-+]?\d+)?", re.IGNORECASE)


def shape(text: str) -> str:
    """``text`` with every number as ``#``, whatever widths its columns take."""
    masked = _NUMBER.sub("#", text)
    masked = re.sub(r"[-─]{2,}", "--", masked)
    return "\n".join(re.sub(r"[ \t]+", " ", line).strip() for line in masked.strip("\n").split("\n"))


def numbers(text: str) -> list[float]:
    """The numbers of ``text`` in order."""
    return [float(found.replace(",", "")) for found in _NUMBER.findall(text)]


def difference(shown: str, printed: str, marks: dict[str, str]) -> str:
    """What of the output on the page is not what was printed; empty where they agree."""
    shown, printed = _trimmed(shown), _trimmed(printed)
    if "noisy" in marks or "near" in marks:
        if shape(shown) != shape(printed):
            return f"the page shows, but for its numbers,\n{shown}\n-- and this was printed\n{printed}"
        pairs = zip(numbers(shown), numbers(printed), strict=True)
        if "near" in marks and any(abs(a - b) > 0.05 * max(abs(a), abs(b)) for a, b in pairs):
            return f"the page shows numbers more than 5 % away:\n{shown}\n-- and this was printed\n{printed}"
        return ""
    return "" if shown == printed else f"the page shows\n{shown}\n-- and this was printed\n{printed}"


def _trimmed(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.strip("\n").split("\n"))
