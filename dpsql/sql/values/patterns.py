"""Patterns: LIKE with a constant pattern, as an interval where it can be one and opaque otherwise."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from dpsql.sql.values.operands import plain_operand
from dpsql.sql.values.scope import Truth
from dpsql.workload.expr.batch import Column
from dpsql.workload.expr.conditions import Like, OpaqueAtom, union
from dpsql.workload.expr.lines import Interval


def matching(column: Column, pattern: str) -> Truth:
    """``column LIKE pattern``: the declared values that match, an interval, or an axis of its own."""
    operand = plain_operand(column)
    if column.closed is not None and column.policy.values is not None:
        matches = like(pattern)
        hits = [column.line.point(v) for v in column.policy.values if isinstance(v, str) and matches(v)]
        return operand.within(union([hit for hit in hits if hit is not None]))
    prefix = "".join(itertools.takewhile(lambda character: character not in "%_", pattern))
    rest = pattern[len(prefix) :]
    if not rest:
        point = column.line.point(prefix)
        return operand.within(() if point is None else (point,))
    if set(rest) == {"%"}:
        return operand.within(prefixed(prefix))
    predicate = Like(column.name, pattern)
    return Truth(OpaqueAtom(predicate, frozenset([True])), OpaqueAtom(predicate, frozenset([False])))


def prefixed(prefix: str) -> tuple[Interval, ...]:
    """The texts that begin with ``prefix``."""
    after = _after_prefix(prefix)
    return (((prefix, 0) if prefix else None, (after, 0) if after else None),)


def escaped(pattern: str, sign: str) -> list[tuple[str, bool]] | None:
    """The characters of a pattern of LIKE ... ESCAPE ``sign``, each with whether it is a special % or _.

    None for a pattern that ends with the escape sign.
    """
    found, rest = [], iter(pattern)
    for character in rest:
        if character == sign:
            following = next(rest, None)
            if following is None:
                return None
            found.append((following, False))
        else:
            found.append((character, character in "%_"))
    return found


def _after_prefix(prefix: str) -> str:
    """The least string above all that begin with ``prefix``; empty where there is none."""
    while prefix:
        last = ord(prefix[-1])
        if last < 0x10FFFF:
            # Surrogates are no characters: step over them.
            return prefix[:-1] + chr(0xE000 if last == 0xD7FF else last + 1)
        prefix = prefix[:-1]
    return ""


def like(pattern: str) -> Callable[[str], bool]:
    """DuckDB's LIKE without ESCAPE as a Python test: % any run, _ one character, binary comparison.

    Cost: at worst len(value) * len(pattern), whatever the pattern.
    """
    return lambda value: _fits(value, pattern)


def _fits(value: str, pattern: str) -> bool:
    """Greedy matching: on a mismatch only the last % needs to take one character more.

    An earlier % never does: what stands between two % matches at its first place if anywhere.
    """
    at = read = 0
    last, resume = -1, 0
    while at < len(value):
        wanted = pattern[read] if read < len(pattern) else ""
        if wanted == "%":
            last, resume = read, at
            read += 1
        elif wanted and wanted in ("_", value[at]):
            at += 1
            read += 1
        elif last >= 0:
            resume += 1
            at, read = resume, last + 1
        else:
            return False
    return not pattern[read:].strip("%")
