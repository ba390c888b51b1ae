"""Copies: what DuckDB writes out again, so that a short statement becomes a very long one.

Copies of copies grow exponentially: thirteen functions in one another, each with an argument that is copied, are 8,192
expressions. DuckDB looks for no interrupt and at no limit of memory while it makes them, so they are counted before.
Its parser copies the operand of CASE to every WHEN and the definition of a named window to every OVER; these are
counted from its tokens. Everything else is copied after the parse and counted where the tree is walked: arguments of
functions that are macros, what IN compares with few or computed values, what an alias stands for, a query of WITH that
is NOT MATERIALIZED, the columns of a star, and those of a PIVOT.
"""

from __future__ import annotations

from dataclasses import dataclass

import duckdb

DOUBLED = frozenset(
    ["nullif", "array_to_string", "split_part", "array_pop_back", "json_group_array", "json_group_object"]
) | {"weighted_avg", "wavg"}
"""Functions that DuckDB writes out as an expression in which an argument stands twice."""
FEW_CONSTANTS = 4
"""Constants after IN of which DuckDB makes comparisons one by one, each with a copy of what is compared."""
_NAMING = (b"as", b".", b"$")
"""After these the words of CASE are names."""


@dataclass
class _Case:
    """Tokens of a CASE: of its operand, after its first WHEN, and its WHENs; copies are counted as tokens."""

    operand: int = 0
    rest: int = 0
    whens: int = 0

    def add(self, tokens: int) -> None:
        if self.whens:
            self.rest += tokens
        else:
            self.operand += tokens

    @property
    def written_out(self) -> int:
        return self.operand * max(1, self.whens) + self.rest


def copied_by_parser(text: str) -> int:
    """Tokens that DuckDB's parser copies. Cost: nothing for a text with at most one CASE and no WINDOW, else linear."""
    lower = text.lower()
    if lower.count("case") < 2 and "window" not in lower:
        return 0
    written = text.encode("utf-8", "replace")
    tokens = [one for one in duckdb.tokenize(written.decode()) if one[1] != duckdb.token_type.comment]
    ends = [start for start, _ in tokens[1:]] + [len(written)]
    cases = [_Case(whens=1)]
    overs = windows = 0
    before = b""
    for (start, kind), end in zip(tokens, ends, strict=True):
        head = written[start:end].split(None, 1)[:1]
        word = head[0].lower() if head and kind == duckdb.token_type.keyword and before not in _NAMING else b""
        before = head[0].lower() if head else b""
        if word == b"end" and len(cases) > 1:
            done = cases.pop()
            cases[-1].add(done.written_out)
        if word == b"case":
            cases.append(_Case())
        if word == b"when":
            cases[-1].whens += 1
        overs += word == b"over"
        windows += word == b"window" or windows > 0
        cases[-1].add(1)
    while len(cases) > 1:
        done = cases.pop()
        cases[-1].add(done.written_out)
    return cases[0].rest - len(tokens) + windows * overs
