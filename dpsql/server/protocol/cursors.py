"""DECLARE, FETCH and CLOSE: a query whose rows a client takes a few at a time, by name."""

from __future__ import annotations

import re
from dataclasses import dataclass

from dpsql.errors import SQLError
from dpsql.server.protocol.statements import Part, without

_NAME = r"(?P<name>\"[^\"]+\"|\w+)"
_DECLARE = re.compile(
    rf"DECLARE\s+{_NAME}\s+(?:(?:BINARY|INSENSITIVE|ASENSITIVE|NO\s+SCROLL)\s+)*CURSOR\s+"
    r"(?P<hold>(?:WITH|WITHOUT)\s+HOLD\s+)?FOR\s+",
    re.IGNORECASE,
)
_FETCH = re.compile(
    r"FETCH\s+(?:(?P<next>NEXT)\s+|(?:FORWARD\s+)?(?:(?P<count>\d{1,18})|(?P<all>ALL))\s+|(?P<one>FORWARD)\s+)?(?:(?:FROM|IN)\s+)?"
    + _NAME,
    re.IGNORECASE,
)
_CLOSE = re.compile(rf"CLOSE\s+{_NAME}", re.IGNORECASE)


@dataclass(frozen=True)
class Declared:
    """A cursor that is declared: its name, its query, and whether it outlives its transaction."""

    name: str
    part: Part
    holds: bool


def declared(part: Part) -> Declared:
    """What DECLARE says. Raises SQLError."""
    found = _DECLARE.match(part.bare)
    batch = without(part, found.end()) if found else part
    if found is None or not batch.bare:
        raise SQLError("DECLARE is not understood; write DECLARE name CURSOR FOR SELECT ...", code="syntax")
    return Declared(_plain(found["name"]), batch, bool(found["hold"]) and found["hold"].upper().startswith("WITH "))


def fetched(part: Part) -> tuple[str, int]:
    """Which cursor FETCH names, and how many of the next rows it takes; 0 for all. Raises SQLError."""
    found = _FETCH.fullmatch(part.bare)
    if found is None or found["count"] == "0":
        raise SQLError("FETCH is not understood; write FETCH FORWARD 100 FROM name", code="syntax")
    return _plain(found["name"]), 0 if found["all"] else int(found["count"] or 1)


def closed(part: Part) -> str:
    """Which cursor CLOSE names; ALL for all of them. Raises SQLError."""
    found = _CLOSE.fullmatch(part.bare)
    if found is None:
        raise SQLError("CLOSE is not understood; write CLOSE name", code="syntax")
    return _plain(found["name"])


def _plain(name: str) -> str:
    return name[1:-1] if name.startswith('"') else name.lower()
